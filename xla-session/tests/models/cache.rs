//! The cache of compiled graphs and packed weights: damage, races, killed writers, full disks.

use std::cell::Cell;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, SystemTime};

use tempfile::TempDir;
use xla_session::cache::{Cache, Key, KeyParts, Kind, Label, Writer};
use xla_session::checkpoint::FileStamp;
use xla_session::{Error, Result};

const GRAPH: &[u8] = b"a compiled graph";

fn key(graph: &str) -> Key {
    Key::new(&KeyParts { graph, flags: &[], target: "avx2", compiler: "3.13.0", runtime: "3.13.0" })
}

fn label() -> Label {
    Label { name: "decode_step".into(), model: "tiny".into(), ..Label::default() }
}

fn open(folder: &TempDir) -> Cache {
    Cache::open(folder.path()).unwrap()
}

fn write(writer: &mut Writer) -> Result<()> {
    writer.write(GRAPH)
}

/// Asks for the entry and says whether it had to be compiled.
#[track_caller]
fn compiled(cache: &Cache, key: &Key) -> bool {
    let ran = Cell::new(false);
    let found = cache
        .get_or_make(key, &label(), |writer| {
            ran.set(true);
            write(writer)
        })
        .unwrap();
    assert_eq!(fs::read(found.path).unwrap(), GRAPH);
    ran.get()
}

/// The files in the folder that end so.
fn files(folder: &TempDir, end: &str) -> Vec<PathBuf> {
    let paths = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path());
    paths.filter(|path| path.to_str().unwrap().ends_with(end)).collect()
}

#[track_caller]
fn says(error: &Error, folder: &Path, parts: &[&str]) {
    let Error::Cache { path, .. } = error else { panic!("{error:?}") };
    assert_eq!(path, folder);
    let text = error.to_string();
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in: {text}");
    }
}

#[test]
fn compiles_once() {
    let folder = TempDir::new().unwrap();
    let nested = folder.path().join("made/on/demand");
    let cache = Cache::open(&nested).unwrap();
    assert!(cache.get(&key("a")).is_none());
    assert!(compiled(&cache, &key("a")));
    assert!(!compiled(&cache, &key("a")));
    assert!(compiled(&cache, &key("b")));
    // As another process would.
    assert!(!compiled(&Cache::open(&nested).unwrap(), &key("b")));
    let path = cache.get(&key("a")).unwrap().path;
    assert_eq!(path, nested.join(format!("{}.vmfb", key("a"))));
}

#[test]
fn compiles_damaged_entries_again() {
    let folder = TempDir::new().unwrap();
    let cache = open(&folder);
    let key = key("a");
    let vmfb = folder.path().join(format!("{key}.vmfb"));
    let seal = folder.path().join(format!("{key}.json"));
    type Damage<'a> = (&'a str, Box<dyn Fn() + 'a>);
    let damages: Vec<Damage> = vec![
        ("truncated", Box::new(|| fs::write(&vmfb, &GRAPH[..5]).unwrap())),
        ("emptied", Box::new(|| fs::write(&vmfb, "").unwrap())),
        ("longer", Box::new(|| fs::write(&vmfb, [GRAPH, b"x"].concat()).unwrap())),
        (
            "one bit flipped",
            Box::new(|| {
                let mut bytes = GRAPH.to_vec();
                bytes[7] ^= 4;
                fs::write(&vmfb, bytes).unwrap();
            }),
        ),
        ("removed", Box::new(|| fs::remove_file(&vmfb).unwrap())),
        ("seal removed", Box::new(|| fs::remove_file(&seal).unwrap())),
        ("seal emptied", Box::new(|| fs::write(&seal, "").unwrap())),
        ("seal is no seal", Box::new(|| fs::write(&seal, "{\"bytes\": 16}").unwrap())),
    ];
    compiled(&cache, &key);
    for (name, damage) in damages {
        assert!(!compiled(&cache, &key), "before: {name}");
        damage();
        assert!(cache.get(&key).is_none(), "{name}");
        assert!(compiled(&cache, &key), "{name}");
        assert!(!compiled(&cache, &key), "after: {name}");
    }
}

#[test]
fn a_failed_compile_leaves_no_entry() {
    let folder = TempDir::new().unwrap();
    let cache = open(&folder);
    let failure = cache.get_or_make(&key("a"), &label(), |writer| {
        write(writer)?;
        Err(Error::Unsupported("the compiler says no".into()))
    });
    assert_eq!(failure.unwrap_err().to_string(), "the compiler says no");
    assert!(cache.get(&key("a")).is_none());
    assert!(files(&folder, ".tmp").is_empty());

    let empty = cache.get_or_make(&key("a"), &label(), |_| Ok(())).unwrap_err();
    says(&empty, folder.path(), &["nothing was written for decode_step"]);
    let removed = cache.get_or_make(&key("a"), &label(), |writer| {
        fs::remove_file(&files(&folder, ".tmp")[0]).unwrap();
        write(writer)
    });
    says(&removed.unwrap_err(), folder.path(), &["cannot write an entry"]);
    assert!(cache.entries().unwrap().is_empty());
    assert!(compiled(&cache, &key("a")));
}

#[test]
fn a_panicking_compile_leaves_no_entry() {
    let folder = TempDir::new().unwrap();
    let cache = open(&folder);
    let panicked = std::thread::scope(|scope| {
        let compile = || cache.get_or_make(&key("a"), &label(), |_| panic!("in the compiler"));
        scope.spawn(compile).join().is_err()
    });
    assert!(panicked);
    assert!(files(&folder, ".tmp").is_empty());
    assert!(compiled(&cache, &key("a")));
}

#[test]
fn explains_a_full_disk() {
    let folder = TempDir::new().unwrap();
    let cache = open(&folder);
    let full = |kind: ErrorKind| {
        let compile = |_: &mut Writer| Err(Error::io("a.vmfb")(kind.into()));
        cache.get_or_make(&key("a"), &label(), compile).unwrap_err()
    };
    for kind in [ErrorKind::StorageFull, ErrorKind::QuotaExceeded] {
        says(&full(kind), folder.path(), &["no room", "free some space", "another cache folder"]);
    }
    assert!(matches!(full(ErrorKind::PermissionDenied), Error::Io { .. }));
    let large = cache.get_or_make(&key("a"), &label(), |writer| writer.expect(u64::MAX));
    says(&large.unwrap_err(), folder.path(), &["no room", "free some space"]);
    assert!(compiled(&cache, &key("a")));
}

#[test]
fn refuses_folders_that_cannot_be_made() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("a file");
    fs::write(&file, "").unwrap();
    let below = file.join("cache");
    for path in [&file, &below] {
        let error = Cache::open(path).unwrap_err();
        says(&error, path, &["cannot make the folder", "choose another cache folder"]);
    }
}

#[test]
fn lists_and_clears() {
    let folder = TempDir::new().unwrap();
    let cache = open(&folder);
    let start = SystemTime::now() - Duration::from_secs(2);
    for graph in ["a", "b"] {
        compiled(&cache, &key(graph));
    }
    // `a` was used an hour ago, then `b` was; then `a` again.
    let hour_ago = SystemTime::now() - Duration::from_secs(3600);
    for graph in ["a", "b"] {
        let seal = folder.path().join(format!("{}.json", key(graph)));
        fs::File::options().append(true).open(seal).unwrap().set_modified(hour_ago).unwrap();
    }
    cache.get(&key("a")).unwrap();
    fs::write(folder.path().join("readme.txt"), "not the cache's").unwrap();

    let entries = cache.entries().unwrap();
    assert_eq!(entries.len(), 2);
    assert_eq!(entries[0].key, key("a"));
    assert_eq!(entries[0].label, label());
    assert_eq!(entries[0].bytes, GRAPH.len() as u64);
    assert!(entries[0].created >= start && entries[0].created <= SystemTime::now());
    assert!(entries[0].last_used >= start);
    assert!(entries[1].last_used < start);

    let total = cache.total_bytes().unwrap();
    assert!(total > 2 * GRAPH.len() as u64);
    assert_eq!(cache.clear().unwrap(), total);
    assert_eq!(cache.total_bytes().unwrap(), 0);
    assert!(cache.entries().unwrap().is_empty());
    let left: Vec<_> = files(&folder, "");
    assert_eq!(left, [folder.path().join("readme.txt")]);
    assert!(compiled(&cache, &key("a")));
}

/// The bytes of many blocks, in odd pieces.
fn write_weights(writer: &mut Writer) -> Result<Vec<u8>> {
    let mut all = Vec::new();
    for i in 0..40usize {
        let piece = writer.next(i * 33_333)?;
        assert!(piece.iter().all(|byte| *byte == 0));
        piece.iter_mut().enumerate().for_each(|(at, byte)| *byte = (at / 256 + i) as u8);
        all.extend_from_slice(piece);
    }
    writer.write(&[7; 20 << 20])?;
    all.extend_from_slice(&[7; 20 << 20]);
    Ok(all)
}

#[test]
fn models_are_called_what_people_call_them() {
    let called = |path: &str| Label::model_of(Path::new(path));
    assert_eq!(called("/models/tiny-tales"), "tiny-tales");
    assert_eq!(called("/models/tiny-tales.gguf"), "tiny-tales.gguf");
    assert_eq!(called("/hub/models--owner--a--b/snapshots/0123abcd"), "owner/a--b");
    assert_eq!(called("/hub/models--owner--a/snapshots/0123abcd/a-Q4_0.gguf"), "a-Q4_0.gguf");
    assert_eq!(called("/else/snapshots/0123abcd"), "0123abcd");
}

fn weights_of(file: &Path) -> Label {
    let metadata = fs::metadata(file).unwrap();
    let source = FileStamp {
        path: file.into(),
        bytes: metadata.len(),
        modified: metadata.modified().ok(),
        contents: String::new(),
    };
    let (name, model) = ("stored".into(), "tiny".into());
    Label { kind: Kind::Weights, name, model, sources: vec![source], ..Label::default() }
}

#[test]
fn weights_are_verified_in_part_and_on_request_as_a_whole() {
    let folder = TempDir::new().unwrap();
    let cache = open(&folder);
    let label = Label { kind: Kind::Weights, ..label() };
    let mut expected = Vec::new();
    let make = |writer: &mut Writer| write_weights(writer).map(|all| expected = all);
    let path = cache.get_or_make(&key("w"), &label, make).unwrap().path;
    assert_eq!(path, folder.path().join(format!("{}.weights", key("w"))));
    assert!(fs::read(&path).unwrap() == expected);
    let entry = cache.entries().unwrap().remove(0);
    assert_eq!((entry.label.kind, entry.bytes), (Kind::Weights, expected.len() as u64));
    assert!(cache.verify(&entry).unwrap());

    // Both ends are looked at every time.
    for at in [0, expected.len() - 1] {
        let mut damaged = expected.clone();
        damaged[at] ^= 1;
        fs::write(&path, damaged).unwrap();
        assert!(cache.get(&key("w")).is_none(), "byte {at}");
        assert!(!cache.verify(&entry).unwrap(), "byte {at}");
    }
    // What lies between is found sooner or later, or when somebody asks.
    let mut damaged = expected.clone();
    damaged[9_999_999] ^= 1;
    fs::write(&path, damaged).unwrap();
    assert!(!cache.verify(&entry).unwrap());
    fs::write(&path, &expected[..expected.len() - 1]).unwrap();
    assert!(cache.get(&key("w")).is_none(), "truncated");
    fs::write(&path, &expected).unwrap();
    assert!(cache.get(&key("w")).is_some());
}

#[test]
fn what_an_earlier_run_of_the_system_wrote_is_verified_as_a_whole_once() {
    let folder = TempDir::new().unwrap();
    let cache = open(&folder);
    let label = Label { kind: Kind::Weights, ..label() };
    let make = |writer: &mut Writer| write_weights(writer).map(drop);
    let path = cache.get_or_make(&key("w"), &label, make).unwrap().path;
    let seal = folder.path().join(format!("{}.json", key("w")));
    let text = fs::read_to_string(&seal).unwrap();
    let Some((head, tail)) = text.split_once("\"boot\":\"") else {
        return; // A system that does not tell its runs apart waits for its disk.
    };
    let (_, tail) = tail.split_once('"').unwrap();
    fs::write(&seal, format!("{head}\"boot\":\"earlier\"{tail}")).unwrap();
    // As a crash leaves it: the length is there, some of the data are not.
    let whole = fs::read(&path).unwrap();
    let mut holey = whole.clone();
    holey[9 << 20..10 << 20].fill(0);
    fs::write(&path, holey).unwrap();
    assert!(cache.get(&key("w")).is_none());
    fs::write(&path, whole).unwrap();
    assert!(cache.get(&key("w")).is_some());
    assert!(!fs::read_to_string(&seal).unwrap().contains("boot"), "verified once and for all");
}

#[test]
fn weights_of_a_changed_model_make_room_for_the_new() {
    let folder = TempDir::new().unwrap();
    let cache = open(&folder);
    let (ours, other) = (folder.path().join("ours"), folder.path().join("other"));
    let touch = |path: &Path, text: &str| fs::write(path, text).unwrap();
    touch(&ours, "first");
    touch(&other, "first");
    let make = |name: &str, file: &Path| {
        cache.get_or_make(&key(name), &weights_of(file), write).unwrap();
    };
    make("ours", &ours);
    make("other", &other);
    compiled(&cache, &key("graph"));
    assert!(cache.entries().unwrap().iter().all(|entry| !entry.label.is_stale()));

    touch(&ours, "second, longer");
    touch(&other, "second, longer");
    let stale = cache.entries().unwrap().iter().filter(|it| it.label.is_stale()).count();
    assert_eq!(stale, 2);
    make("ours, changed", &ours);
    assert!(cache.get(&key("ours")).is_none());
    for kept in ["ours, changed", "other", "graph"] {
        assert!(cache.get(&key(kept)).is_some(), "{kept}");
    }
    assert!(cache.clear_if(|entry| entry.label.is_stale()).unwrap() > 0);
    assert!(cache.get(&key("other")).is_none());
    assert!(cache.get(&key("ours, changed")).is_some());
    assert_eq!(cache.entries().unwrap().len(), 2);
}

#[test]
fn weights_that_an_older_build_made_make_room_when_nobody_uses_them() {
    let folder = TempDir::new().unwrap();
    let cache = open(&folder);
    let model = folder.path().join("model");
    fs::write(&model, "a model").unwrap();
    let label = weights_of(&model);
    let other = Label { name: "int4".into(), ..label.clone() };
    let make = |name: &str, label: &Label| {
        cache.get_or_make(&key(name), label, write).unwrap();
    };
    for name in ["left", "used"] {
        make(name, &label);
    }
    make("left, of another precision", &other);
    for name in ["left", "left, of another precision"] {
        let seal =
            File::options().write(true).open(folder.path().join(format!("{}.json", key(name))));
        let month = Duration::from_secs(31 * 24 * 60 * 60);
        seal.unwrap().set_modified(SystemTime::now() - month).unwrap();
    }
    make("made now", &label);
    let there = |name: &str| cache.get(&key(name)).is_some();
    assert!(!there("left"));
    assert!(there("used") && there("made now") && there("left, of another precision"));
}

#[test]
fn a_moved_model_is_noted() {
    let folder = TempDir::new().unwrap();
    let cache = open(&folder);
    let (before, after) = (folder.path().join("before"), folder.path().join("after"));
    fs::write(&before, "a model").unwrap();
    cache.get_or_make(&key("w"), &weights_of(&before), write).unwrap();
    fs::rename(&before, &after).unwrap();
    assert!(cache.entries().unwrap()[0].label.is_stale());
    let no = |_: &mut Writer| panic!("it is there");
    cache.get_or_make(&key("w"), &weights_of(&after), no).unwrap();
    let label = cache.entries().unwrap().remove(0).label;
    assert_eq!(label, weights_of(&after));
    assert!(!label.is_stale());
}

#[test]
fn clearing_leaves_what_is_being_compiled() {
    let folder = TempDir::new().unwrap();
    let cache = open(&folder);
    compiled(&cache, &key("other"));
    let found = cache
        .get_or_make(&key("a"), &label(), |writer| {
            cache.clear()?;
            // Nor does opening it take the half-written file for a dead process's.
            open(&folder);
            assert_eq!(files(&folder, ".tmp").len(), 1);
            write(writer)
        })
        .unwrap();
    assert_eq!(fs::read(found.path).unwrap(), GRAPH);
    assert!(cache.get(&key("a")).is_some());
    assert!(cache.get(&key("other")).is_none());
}

#[test]
fn threads_compile_once() {
    let folder = TempDir::new().unwrap();
    let cache = open(&folder);
    let count: usize = std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..8).map(|_| scope.spawn(|| usize::from(compiled(&cache, &key("a"))))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert_eq!(count, 1);
}

#[test]
fn clearing_while_others_compile_harms_nobody() {
    let folder = TempDir::new().unwrap();
    let cache = open(&folder);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for i in 0..50 {
                    let key = key(["a", "b"][i % 2]);
                    cache.get_or_make(&key, &label(), write).unwrap();
                }
            });
        }
        for _ in 0..50 {
            cache.clear().unwrap();
        }
    });
    assert!(files(&folder, ".tmp").is_empty());
    compiled(&cache, &key("a"));
    assert!(!compiled(&cache, &key("a")));
}

/// This test binary again, running only [`child`] with these variables.
fn spawn(folder: &TempDir, wait: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "cache::child", "--ignored", "--nocapture"])
        .env("CACHE_TEST_FOLDER", folder.path())
        .env("CACHE_TEST_WAIT_MS", wait)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// Not a test: another process that compiles slowly, for the tests below.
#[test]
#[ignore = "run by the other tests in a process of its own"]
fn child() {
    let Some(folder) = std::env::var_os("CACHE_TEST_FOLDER") else { return };
    let wait = std::env::var("CACHE_TEST_WAIT_MS").unwrap().parse().unwrap();
    let cache = Cache::open(Path::new(&folder)).unwrap();
    let compile = |writer: &mut Writer| {
        writer.write(&GRAPH[..5])?;
        // A line of its own, also when the test harness has begun one.
        println!("\ncompiling");
        std::io::stdout().flush().unwrap();
        std::thread::sleep(Duration::from_millis(wait));
        writer.write(&GRAPH[5..])
    };
    cache.get_or_make(&key("a"), &label(), compile).unwrap();
}

#[test]
fn processes_compile_once() {
    let folder = TempDir::new().unwrap();
    let children: Vec<_> = (0..4).map(|_| spawn(&folder, "300")).collect();
    let mut compiles = 0;
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success());
        let text = String::from_utf8(output.stdout).unwrap();
        compiles += text.lines().filter(|line| *line == "compiling").count();
    }
    assert_eq!(compiles, 1);
    assert!(!compiled(&open(&folder), &key("a")));
    assert!(files(&folder, ".tmp").is_empty());
}

#[test]
fn a_killed_process_leaves_the_cache_whole() {
    let folder = TempDir::new().unwrap();
    let mut child = spawn(&folder, "600000");
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap() == "compiling"));
    assert_eq!(files(&folder, ".tmp").len(), 1);
    let early = open(&folder);
    assert_eq!(files(&folder, ".tmp").len(), 1, "it still compiles");
    child.kill().unwrap();
    child.wait().unwrap();

    assert!(early.get(&key("a")).is_none());
    assert_eq!(files(&folder, ".tmp").len(), 1);
    let cache = open(&folder);
    assert!(files(&folder, ".tmp").is_empty());
    assert!(compiled(&cache, &key("a")));
    assert!(!compiled(&cache, &key("a")));
}
