use std::fs;
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, SystemTime};

use super::*;

const BYTES: usize = 1000;

fn open(folder: &Path, pages: u64) -> SharedPages {
    open_for("a model", folder, pages)
}

fn open_for(model: &str, folder: &Path, pages: u64) -> SharedPages {
    let share = KvShare { most_bytes: pages * (BYTES as u64 + 8), ..KvShare::new(folder) };
    SharedPages::open(&share, &Key::of([model.as_bytes()]), BYTES).unwrap()
}

/// So many pages of tokens; those of another `seed` have none in common.
fn text(seed: u32, pages: usize) -> Vec<u32> {
    (0..(pages * KV_BLOCK) as u32).map(|at| seed * 1_000_000 + at).collect()
}

/// Keeps all pages of `tokens`, each with its number as data.
fn keep(pages: &SharedPages, tokens: &[u32]) {
    for (number, end) in (KV_BLOCK..=tokens.len()).step_by(KV_BLOCK).enumerate() {
        pages.keep(&pages.names(&tokens[..end]), |data| {
            data.fill(number as u8);
            Ok(())
        });
    }
}

/// What is counted when all that is on its way has been written.
fn close(mut pages: SharedPages) -> Statistics {
    pages.queue = None;
    pages.writer.take().unwrap().join().unwrap();
    pages.statistics()
}

/// Which pages of `tokens` are found.
fn found(pages: &mut SharedPages, tokens: &[u32]) -> Vec<usize> {
    let names = pages.names(tokens).into_iter().enumerate();
    let found = names.filter(|(number, name)| {
        let data = pages.find(name).map(<[u8]>::to_vec);
        assert!(data.as_ref().is_none_or(|it| *it == [*number as u8; BYTES]), "page {number}");
        data.is_some()
    });
    found.map(|(number, _)| number).collect()
}

fn files(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder).unwrap().map(|it| it.unwrap().path()).collect()
}

#[test]
fn pages_are_found_by_all_tokens_before_them_and_by_their_model() {
    let folder = tempfile::tempdir().unwrap();
    let pages = open(folder.path(), 100);
    keep(&pages, &text(1, 3));
    keep(&pages, &text(1, 3));
    assert_eq!(close(pages), Statistics { kept: 3, ..Statistics::default() });

    let mut pages = open(folder.path(), 100);
    assert_eq!(found(&mut pages, &text(1, 4)), [0, 1, 2]);
    assert_eq!(
        found(&mut pages, &text(1, 3)[..150]),
        [0, 1],
        "a page that is not full has no name"
    );
    let mut elsewhere = text(1, 3);
    elsewhere[KV_BLOCK + 5] += 1;
    assert_eq!(found(&mut pages, &elsewhere), [0]);
    assert_eq!(found(&mut pages, &text(1, 3)[KV_BLOCK..]), [0; 0], "at another place");
    assert_eq!(found(&mut open_for("another model", folder.path(), 100), &text(1, 3)), [0; 0]);
    assert_eq!(pages.statistics().damaged, 0);
}

#[test]
fn a_damaged_file_is_no_page_and_is_made_again() {
    type Damage = fn(&Path);
    let kinds: [(&str, Damage); 5] = [
        ("a bit", |path| {
            let mut data = fs::read(path).unwrap();
            data[BYTES / 2] ^= 4;
            fs::write(path, data).unwrap();
        }),
        ("the checksum", |path| {
            let mut data = fs::read(path).unwrap();
            data[BYTES] ^= 1;
            fs::write(path, data).unwrap();
        }),
        ("the end", |path| fs::write(path, &fs::read(path).unwrap()[..BYTES]).unwrap()),
        ("everything", |path| fs::write(path, []).unwrap()),
        ("zeros", |path| fs::write(path, [0; BYTES + 8]).unwrap()),
    ];
    for (what, damage) in kinds {
        let folder = tempfile::tempdir().unwrap();
        let pages = open(folder.path(), 100);
        keep(&pages, &text(1, 1));
        close(pages);
        damage(&files(folder.path())[0]);
        let mut pages = open(folder.path(), 100);
        assert_eq!(found(&mut pages, &text(1, 1)), [0; 0], "{what}");
        assert_eq!(pages.statistics().damaged, 1, "{what}");
        assert!(files(folder.path()).is_empty(), "{what}");
        keep(&pages, &text(1, 1));
        close(pages);
        assert_eq!(found(&mut open(folder.path(), 100), &text(1, 1)), [0], "{what}");
    }

    // A file that is whole, under the name of another page.
    let folder = tempfile::tempdir().unwrap();
    let pages = open(folder.path(), 100);
    keep(&pages, &text(1, 1));
    let name = pages.names(&text(2, 1))[0];
    close(pages);
    fs::rename(&files(folder.path())[0], folder.path().join(format!("{name}.kv"))).unwrap();
    assert_eq!(found(&mut open(folder.path(), 100), &text(2, 1)), [0; 0]);
}

#[test]
fn the_least_recently_used_go_and_of_a_prompt_its_last() {
    let folder = tempfile::tempdir().unwrap();
    let pages = open(folder.path(), 32);
    keep(&pages, &text(1, 10));
    keep(&pages, &text(2, 10));
    keep(&pages, &text(3, 10));
    assert_eq!(close(pages).kept, 30);
    let bytes =
        |folder: &Path| files(folder).iter().map(|it| it.metadata().unwrap().len()).sum::<u64>();
    assert_eq!(bytes(folder.path()), 30 * (BYTES as u64 + 8));

    let mut pages = open(folder.path(), 32);
    assert_eq!(found(&mut pages, &text(1, 10)).len(), 10);
    pages.look_up(640);
    pages.found(&pages.names(&text(1, 10)), 10);
    for seed in 4..6 {
        keep(&pages, &text(seed, 4));
    }
    let counts = close(pages);
    assert_eq!((counts.tokens_looked_up, counts.tokens_found), (640, 640));
    assert!(bytes(folder.path()) <= 32 * (BYTES as u64 + 8));
    let mut pages = open(folder.path(), 32);
    for (seed, expected) in [(1, 10), (3, 10), (4, 4), (5, 4)] {
        assert_eq!(found(&mut pages, &text(seed, 10)).len(), expected, "text {seed}");
    }
    // Of the one that nobody has asked for since.
    let left = found(&mut pages, &text(2, 10));
    assert!(left.len() < 10 && left.iter().copied().eq(0..left.len()), "{left:?}");
}

#[test]
fn what_killed_processes_left_goes_when_it_is_old() {
    let folder = tempfile::tempdir().unwrap();
    let [old, new, other] = ["a.tmp", "b.tmp", "notes.txt"].map(|it| folder.path().join(it));
    for path in [&old, &new, &other] {
        fs::write(path, "x").unwrap();
    }
    for path in [&old, &other] {
        let file = fs::File::options().append(true).open(path).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(3600)).unwrap();
    }
    let pages = open(folder.path(), 16);
    keep(&pages, &text(1, 1));
    close(pages);
    assert!(!old.exists() && new.exists() && other.exists());
}

#[test]
fn a_folder_that_is_removed_is_made_again() {
    let above = tempfile::tempdir().unwrap();
    let folder = above.path().join("pages");
    let pages = open(&folder, 100);
    fs::remove_dir_all(&folder).unwrap();
    keep(&pages, &text(1, 2));
    assert_eq!(close(pages).kept, 2);
    assert_eq!(found(&mut open(&folder, 100), &text(1, 2)), [0, 1]);
}

#[test]
fn a_disk_that_takes_nothing_is_said_once() {
    let above = tempfile::tempdir().unwrap();
    let folder = above.path().join("pages");
    let said = Arc::new(Mutex::new(Vec::new()));
    let observer: Observer = {
        let said = Arc::clone(&said);
        Arc::new(move |event| said.lock().unwrap().push(event))
    };
    let share = KvShare { observer: Some(observer), ..KvShare::new(&folder) };
    let mut pages = SharedPages::open(&share, &Key::of([b"a".as_slice()]), BYTES).unwrap();
    // No folder can be there any more.
    fs::remove_dir_all(&folder).unwrap();
    fs::write(&folder, "a file").unwrap();
    keep(&pages, &text(1, 5));
    assert_eq!(found(&mut pages, &text(1, 5)), [0; 0]);
    let counts = close(pages);
    assert_eq!((counts.kept, counts.lost), (0, 5));
    let said = said.lock().unwrap();
    let [Event::NotKept { what, reason }] = &said[..] else { panic!("{said:?}") };
    assert!(what.contains("pages") && reason.contains("pages:"), "{what}: {reason}");
}

#[test]
fn what_cannot_be_is_an_error_at_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let key = Key::of([b"a".as_slice()]);
    let small = KvShare { most_bytes: 15 * BYTES as u64, ..KvShare::new(folder.path()) };
    let error = SharedPages::open(&small, &key, BYTES).err().unwrap().to_string();
    assert!(error.contains("15000 bytes") && error.contains("16000 bytes"), "{error}");
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    let error = SharedPages::open(&KvShare::new(&file), &key, BYTES).err().unwrap().to_string();
    assert!(error.contains("file: shared pages cannot be written there"), "{error}");
}

#[test]
fn a_clock_that_was_wrong_changes_the_order_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let pages = open(folder.path(), 16);
    keep(&pages, &text(1, 12));
    close(pages);
    let tomorrow = SystemTime::now() + Duration::from_secs(86400);
    for path in files(folder.path()) {
        fs::File::options().append(true).open(path).unwrap().set_modified(tomorrow).unwrap();
    }
    fs::write(folder.path().join("a.tmp"), "x").unwrap();
    let pages = open(folder.path(), 16);
    keep(&pages, &text(2, 10));
    assert_eq!(close(pages).kept, 10);
    assert!(files(folder.path()).len() <= 17);
    let mut pages = open(folder.path(), 16);
    assert_eq!(found(&mut pages, &text(1, 12)).len(), 12, "they seem to be the newest");
    assert!(found(&mut pages, &text(2, 10)).len() <= 4);
}

#[test]
fn a_writer_that_is_behind_is_told_no_more_than_it_can_take() {
    let folder = tempfile::tempdir().unwrap();
    let mut pages = open(folder.path(), 100);
    let (queue, notes) = sync_channel(NOTES);
    pages.queue = Some(queue);
    let names = pages.names(&text(1, 2));
    (0..2 * NOTES).for_each(|_| pages.touch(&names));
    keep(&pages, &text(2, 1));
    assert_eq!(pages.statistics().lost, 1);
    assert_eq!(pages.queued.load(Relaxed), 0);
    assert_eq!(notes.try_iter().count(), NOTES);
    keep(&pages, &text(2, 1));
    assert!(matches!(notes.try_recv(), Ok(Note::Keep { .. })));
}
