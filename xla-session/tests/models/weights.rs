//! Packed weights on disk: a session that maps them is the session that packed them.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use tempfile::TempDir;
use xla_session::cache::{Cache, Kind};
use xla_session::{Event, InferenceSession, LoadMode, Opened, Precision, SessionOptions};

use crate::fixtures::{self, Fixture, assert_same_tokens};

const FIXTURE: &str = "llama-llama3-tied-bf16";

/// A cache folder that has the fixture's graphs, from the one that the tests of a build share.
fn cache(precision: Precision) -> TempDir {
    let shared = fixtures::compiled();
    let fixture = fixtures::named(FIXTURE);
    let options = SessionOptions {
        cache_dir: Some(shared.clone()),
        weights_cache: false,
        precision,
        ..SessionOptions::default()
    };
    xla_session::open(&fixture.folder, &options).unwrap();
    let folder = tempfile::tempdir().unwrap();
    for entry in Cache::open(shared).unwrap().entries().unwrap() {
        if entry.label.kind == Kind::Graph && entry.label.model == fixture.name {
            for path in [&entry.path, &entry.path.with_extension("json")] {
                fs::copy(path, folder.path().join(path.file_name().unwrap())).unwrap();
            }
        }
    }
    folder
}

/// A model folder of its own, with the fixture's files, called as the fixture.
fn model() -> (TempDir, Fixture) {
    let outer = tempfile::tempdir().unwrap();
    let folder = outer.path().join(FIXTURE);
    copy(&fixtures::named(FIXTURE).folder, &folder);
    (outer, Fixture::read(folder))
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

/// What opening a session said.
#[derive(Debug, Default, PartialEq)]
struct Said {
    compiled: usize,
    packed: bool,
    kept: Vec<PathBuf>,
    not_kept: Vec<String>,
}

fn options(cache: &TempDir) -> SessionOptions {
    SessionOptions { cache_dir: Some(cache.path().into()), ..SessionOptions::default() }
}

/// Opens with a cache that has the graphs.
fn open(folder: &Path, options: &SessionOptions) -> (Opened, Said) {
    let (opened, said) = open_anew(folder, options);
    assert_eq!(said.compiled, 0, "the graphs are cached");
    (opened, said)
}

fn open_anew(folder: &Path, options: &SessionOptions) -> (Opened, Said) {
    let said = Arc::new(Mutex::new(Said::default()));
    let hear = said.clone();
    let observer = move |event| {
        let mut said = hear.lock().unwrap();
        match event {
            Event::Compiled { .. } => said.compiled += 1,
            Event::Loading { .. } => said.packed = true,
            Event::WeightsKept { path, bytes } => {
                assert_eq!(fs::metadata(&path).unwrap().len(), bytes);
                said.kept.push(path);
            }
            Event::NotKept { what, reason } => said.not_kept.push(format!("{what}: {reason}")),
            _ => {}
        }
    };
    let options = SessionOptions { observer: Some(Arc::new(observer)), ..options.clone() };
    let opened = xla_session::open(folder, &options).unwrap();
    let said = std::mem::take(&mut *said.lock().unwrap());
    (opened, said)
}

/// The logits after the fixture's longest prompt, to the last bit.
fn logits(session: &mut dyn InferenceSession, fixture: &Fixture) -> Vec<u32> {
    session.reset();
    session.prefill(&fixture.cases.last().unwrap().prompt).unwrap();
    let mut logits = Vec::new();
    session.read_logits(&mut logits).unwrap();
    logits.into_iter().map(f32::to_bits).collect()
}

/// The packed weights in the cache.
fn kept(cache: &TempDir) -> Vec<PathBuf> {
    let entries = Cache::open(cache.path()).unwrap().entries().unwrap().into_iter();
    entries.filter(|it| it.label.kind == Kind::Weights).map(|it| it.path).collect()
}

fn set_modified(path: &Path, time: SystemTime) {
    fs::File::options().append(true).open(path).unwrap().set_modified(time).unwrap();
}

/// Also where several matrices lie in one tensor.
#[test]
fn what_is_loaded_ends_where_it_was_said_to() {
    let fixture = fixtures::named("qwen3-next-mqa-f16");
    let progress = Arc::new(Mutex::new((0, 0)));
    let hear = progress.clone();
    let observer = move |event| {
        if let Event::Loading { bytes, total } = event {
            *hear.lock().unwrap() = (bytes, total);
        }
    };
    let options = SessionOptions {
        cache_dir: Some(fixtures::compiled()),
        weights_cache: false,
        observer: Some(Arc::new(observer)),
        ..SessionOptions::default()
    };
    xla_session::open(&fixture.folder, &options).unwrap();
    let (bytes, total) = *progress.lock().unwrap();
    assert!(total > 0);
    assert_eq!(bytes, total);
}

#[test]
fn later_starts_map_what_the_first_packed() {
    let fixture = fixtures::named(FIXTURE);
    for (name, precision) in Precision::ALL {
        let cache = cache(precision);
        let options = SessionOptions { precision, ..options(&cache) };
        let private = SessionOptions { weights_cache: false, ..options.clone() };
        let (mut alone, said) = open(&fixture.folder, &private);
        assert_eq!(said, Said { packed: true, ..Said::default() });
        assert!(kept(&cache).is_empty());

        let (mut first, said) = open(&fixture.folder, &options);
        assert!(said.packed);
        assert_eq!(said.kept, kept(&cache));
        assert_eq!(said.kept.len(), 1);
        assert_eq!(alone.weights, first.weights);
        assert_eq!(first.weights, fs::metadata(&said.kept[0]).unwrap().len());

        for load_mode in [LoadMode::Mmap, LoadMode::Read] {
            let options = SessionOptions { load_mode, ..options.clone() };
            let (mut later, said) = open(&fixture.folder, &options);
            assert_eq!(said, Said::default());
            let expected = logits(alone.session.as_mut(), &fixture);
            assert!(logits(first.session.as_mut(), &fixture) == expected, "{name}");
            assert!(logits(later.session.as_mut(), &fixture) == expected, "{name}");
            assert_eq!(later.weights, first.weights);
            if [Precision::Stored, Precision::F32].contains(&precision) {
                assert_same_tokens(&fixture, later.session.as_mut());
            }
        }
    }
}

#[test]
fn each_precision_has_its_own() {
    let cache = cache(Precision::Stored);
    let f32 = self::cache(Precision::F32);
    for entry in fs::read_dir(f32.path()).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, cache.path().join(path.file_name().unwrap())).unwrap();
    }
    let fixture = fixtures::named(FIXTURE);
    for (at, precision) in [Precision::Stored, Precision::F32].into_iter().enumerate() {
        let options = SessionOptions { precision, ..options(&cache) };
        assert_eq!(open(&fixture.folder, &options).1.kept.len(), 1);
        assert_eq!(kept(&cache).len(), at + 1);
    }
    let size = |path: &PathBuf| fs::metadata(path).unwrap().len();
    let sizes: Vec<_> = kept(&cache).iter().map(size).collect();
    assert!(sizes[0] > sizes[1] * 3 / 2, "{sizes:?}");
}

#[test]
fn bf16_shares_what_is_stored_so() {
    drop(cache(Precision::Stored));
    let cache = cache(Precision::Bf16);
    let fixture = fixtures::named(FIXTURE);
    let open = |precision| open(&fixture.folder, &SessionOptions { precision, ..options(&cache) });
    let (stored, said) = open(Precision::Stored);
    assert_eq!(said.kept.len(), 1);
    let (bf16, said) = open(Precision::Bf16);
    assert_eq!((said, bf16.weights), (Said::default(), stored.weights));
    assert_eq!(kept(&cache).len(), 1);
}

#[test]
fn a_changed_checkpoint_is_packed_again() {
    let cache = cache(Precision::Stored);
    let (_outer, fixture) = model();
    let path = fixture.folder.join("model.safetensors");
    let original = fs::read(&path).unwrap();
    let modified = fs::metadata(&path).unwrap().modified().unwrap();
    let before = logits(open(&fixture.folder, &options(&cache)).0.session.as_mut(), &fixture);
    assert!(!open(&fixture.folder, &options(&cache)).1.packed);

    // Another model at the same path, as containers have it, which has not changed since.
    let mut bytes = original.clone();
    let header = u64::from_le_bytes(*bytes.first_chunk().unwrap()) as usize + 8;
    bytes[header..].rotate_left(4);
    fs::write(&path, &bytes).unwrap();
    set_modified(&path, modified);
    assert!(open(&fixture.folder, &options(&cache)).1.packed, "all but its data is the same");
    assert_eq!(kept(&cache).len(), 2, "both may be asked for");

    // Other weights, now.
    bytes[header..].rotate_left(2);
    fs::write(&path, &bytes).unwrap();
    let modified_again = fs::metadata(&path).unwrap().modified().unwrap();
    let (mut opened, said) = open(&fixture.folder, &options(&cache));
    assert!(said.packed);
    let after = logits(opened.session.as_mut(), &fixture);
    assert!(after != before);
    assert_eq!(kept(&cache).len(), 1, "nobody will ask for what it was");

    // Another header, of the same length, at the same time.
    let text = String::from_utf8(original[8..header].to_vec()).unwrap();
    assert!(text.contains("\"format\":\"pt\""), "{text}");
    let text = text.replace("\"format\":\"pt\"", "\"format\":\"tp\"");
    bytes[8..header].copy_from_slice(text.as_bytes());
    fs::write(&path, &bytes).unwrap();
    set_modified(&path, modified_again);
    assert!(open(&fixture.folder, &options(&cache)).1.packed);

    // As it was.
    fs::write(&path, &original).unwrap();
    set_modified(&path, modified);
    let (mut opened, _) = open(&fixture.folder, &options(&cache));
    assert!(logits(opened.session.as_mut(), &fixture) == before);
}

#[test]
fn a_moved_model_is_the_same() {
    let cache = cache(Precision::Stored);
    let (outer, fixture) = model();
    assert!(open(&fixture.folder, &options(&cache)).1.packed);
    let moved = outer.path().join("moved");
    fs::rename(&fixture.folder, &moved).unwrap();
    assert_eq!(open(&moved, &options(&cache)).1, Said::default());
}

#[test]
fn damaged_weights_are_packed_again() {
    let cache = cache(Precision::Stored);
    let fixture = fixtures::named(FIXTURE);
    let path = open(&fixture.folder, &options(&cache)).1.kept.remove(0);
    let good = fs::read(&path).unwrap();
    let flipped = |at: usize| {
        let mut bytes = good.clone();
        bytes[at] ^= 64;
        bytes
    };
    let seal = path.with_extension("json");
    let text = fs::read(&seal).unwrap();
    for damaged in [flipped(0), flipped(good.len() - 1), good[..good.len() / 2].to_vec(), vec![]] {
        fs::write(&path, damaged).unwrap();
        let (mut opened, said) = open(&fixture.folder, &options(&cache));
        assert!(said.packed);
        assert!(fs::read(&path).unwrap() == good);
        assert_same_tokens(&fixture, opened.session.as_mut());
    }
    fs::write(&seal, &text[..text.len() / 2]).unwrap();
    assert!(open(&fixture.folder, &options(&cache)).1.packed);
    assert_eq!(open(&fixture.folder, &options(&cache)).1, Said::default());
}

#[test]
fn of_many_that_start_at_once_one_packs() {
    let cache = cache(Precision::Stored);
    let fixture = fixtures::named(FIXTURE);
    let said: Vec<Said> = std::thread::scope(|scope| {
        let start = || {
            let (mut opened, said) = open(&fixture.folder, &options(&cache));
            assert_same_tokens(&fixture, opened.session.as_mut());
            said
        };
        let starts: Vec<_> = (0..4).map(|_| scope.spawn(start)).collect();
        starts.into_iter().map(|start| start.join().unwrap()).collect()
    });
    assert_eq!(said.iter().filter(|said| said.packed).count(), 1, "{said:?}");
    assert_eq!(said.iter().flat_map(|said| &said.kept).count(), 1, "{said:?}");
}

#[test]
fn a_start_does_not_fail_for_want_of_a_cache() {
    let cache = cache(Precision::Stored);
    let fixture = fixtures::named(FIXTURE);
    let path = open(&fixture.folder, &options(&cache)).1.kept.remove(0);
    Cache::open(cache.path()).unwrap().clear_if(|it| it.label.kind == Kind::Weights).unwrap();
    // Where this is a folder nobody can lock the entry; permissions would not stop root.
    fs::create_dir(path.with_extension("lock")).unwrap();
    for _ in 0..2 {
        let (mut opened, said) = open(&fixture.folder, &options(&cache));
        assert!(said.packed && said.kept.is_empty(), "{said:?}");
        let [reason] = &said.not_kept[..] else { panic!("{said:?}") };
        assert!(reason.contains(cache.path().to_str().unwrap()), "{reason}");
        assert_same_tokens(&fixture, opened.session.as_mut());
    }
}

#[test]
fn a_start_does_not_fail_for_want_of_a_folder() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let fixture = fixtures::named(FIXTURE);
    let folder = file.path().join("cache");
    let options = SessionOptions { cache_dir: Some(folder), ..SessionOptions::default() };
    let (mut opened, said) = open_anew(&fixture.folder, &options);
    assert!(said.packed && said.compiled > 0, "{said:?}");
    assert_eq!(said.not_kept.len(), said.compiled + 1, "{said:?}");
    for reason in &said.not_kept {
        assert!(reason.contains(file.path().to_str().unwrap()), "{reason}");
    }
    assert_same_tokens(&fixture, opened.session.as_mut());
}

#[test]
fn a_session_outlives_what_it_has_mapped() {
    let cache = cache(Precision::Stored);
    let fixture = fixtures::named(FIXTURE);
    let (mut opened, _) = open(&fixture.folder, &options(&cache));
    let expected = logits(opened.session.as_mut(), &fixture);
    let weights = |cache: &Cache| cache.clear_if(|it| it.label.kind == Kind::Weights).unwrap();
    assert!(weights(&Cache::open(cache.path()).unwrap()) >= opened.weights);
    assert!(kept(&cache).is_empty());
    assert_same_tokens(&fixture, opened.session.as_mut());

    // Nor does it matter to it that others pack again.
    assert!(open(&fixture.folder, &options(&cache)).1.packed);
    assert!(logits(opened.session.as_mut(), &fixture) == expected);
}

#[cfg(target_os = "linux")]
#[test]
fn sessions_share_the_file() {
    let cache = cache(Precision::Stored);
    let fixture = fixtures::named(FIXTURE);
    let mappings = || {
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        let folder = cache.path().to_str().unwrap();
        let ours = |line: &&str| line.contains(folder) && line.ends_with(".weights");
        let access = |line: &str| line.split_whitespace().nth(1).unwrap().to_owned();
        maps.lines().filter(ours).map(access).collect::<Vec<_>>()
    };
    let first = open(&fixture.folder, &options(&cache)).0;
    assert_eq!(mappings(), ["r--s"], "read-only and shared");
    let second = open(&fixture.folder, &options(&cache)).0;
    assert_eq!(mappings(), ["r--s", "r--s"]);
    drop((first, second));
    assert!(mappings().is_empty());
}
