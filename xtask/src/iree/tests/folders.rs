//! Real IREE folders from real sources. Minutes of compiling and 200 MB of downloads, so they run
//! only when asked for:
//!
//! ```text
//! cargo test -p xtask folders -- --ignored --test-threads 1
//! ```

use std::path::PathBuf;

use iree_src::sources::Places;
use iree_src::{IREE_VERSION, Manifest, OriginKind};

use crate::iree::fetch::{Outcome, fetch};
use crate::iree::progress::Progress;
use crate::iree::request::{Compiler, Machine, Origin, Request};
use crate::iree::{Error, check, source};

fn request(out: PathBuf) -> Request {
    let mut request = Request::new(out, Machine::from_env());
    request.progress = Progress::Silent;
    request
}

/// The manifest of a folder that is made for `request`.
fn made(request: &Request) -> Manifest {
    let outcome = fetch(request).unwrap();
    let Outcome::Made(manifest) = outcome else { panic!("{outcome:?}") };
    manifest
}

#[test]
#[ignore = "builds IREE"]
fn from_the_registry_then_offline_then_from_its_own_parts() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("iree");
    let mut wanted = request(out.clone());
    let outcome = fetch(&wanted).unwrap();
    assert!(matches!(outcome, Outcome::Made(_)));
    let manifest = check::check(&out, Progress::Silent).unwrap();
    assert_eq!(manifest.origin.kind, OriginKind::Registry);
    assert_eq!(manifest.iree, IREE_VERSION);
    assert_eq!(manifest.drivers, ["local-sync", "local-task"]);
    for header in ["runtime/api.h", "compiler/embedding_api.h", "hal/profile_metrics.inc"] {
        assert!(out.join("include/iree").join(header).exists(), "{header}");
    }
    assert!(matches!(fetch(&wanted).unwrap(), Outcome::AlreadyThere(_)));

    // Everything is cached now.
    wanted.offline = true;
    wanted.force = true;
    assert!(matches!(fetch(&wanted).unwrap(), Outcome::Made(_)));

    // A compiler that is already on the machine is linked to, not copied.
    let mut linked = request(dir.path().join("linked"));
    linked.compiler = Compiler::Path(out.join("bin/iree-compile"));
    linked.offline = true;
    let manifest = made(&linked);
    assert!(linked.out.join(manifest.compiler_library.unwrap()).is_symlink());
    check::check(&linked.out, Progress::Silent).unwrap();

    std::fs::write(out.join("lib/libflatcc_parsing.a"), "damaged").unwrap();
    let error = check::check(&out, Progress::Silent).unwrap_err();
    assert!(error.to_string().contains("libflatcc_parsing.a"), "{error}");
}

#[test]
#[ignore = "builds IREE"]
fn with_the_cuda_driver() {
    let dir = tempfile::tempdir().unwrap();
    let mut wanted = request(dir.path().join("iree-cuda"));
    wanted.cuda = true;
    wanted.compiler = Compiler::None;
    let manifest = made(&wanted);
    assert!(manifest.has_driver("cuda"), "{:?}", manifest.drivers);
    assert_eq!(manifest.compiler, None);
    check::check(&wanted.out, Progress::Silent).unwrap();
}

#[test]
#[ignore = "builds IREE"]
fn from_a_checkout() {
    let dir = tempfile::tempdir().unwrap();
    let tree = Places::from_env().find().unwrap().dir;
    let mut wanted = request(dir.path().join("iree"));
    wanted.origin = Some(Origin::Source { dir: Some(tree.clone()), git: None });
    wanted.compiler = Compiler::None;
    let manifest = made(&wanted);
    assert_eq!(manifest.origin.kind, OriginKind::Source);
    assert_eq!(manifest.origin.detail, tree.display().to_string());
    check::check(&wanted.out, Progress::Silent).unwrap();
}

#[test]
#[ignore = "builds IREE"]
fn two_at_once_build_it_once() {
    let dir = tempfile::tempdir().unwrap();
    let mut wanted = request(dir.path().join("iree"));
    wanted.compiler = Compiler::None;
    let made = std::thread::scope(|scope| {
        let both = [0, 1].map(|_| scope.spawn(|| fetch(&wanted).unwrap()));
        both.map(|thread| thread.join().unwrap())
    });
    let count = made.iter().filter(|outcome| matches!(outcome, Outcome::Made(_))).count();
    assert_eq!(count, 1);
}

#[test]
fn an_empty_cache_offline_says_so_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut wanted = request(dir.path().join("iree"));
    wanted.machine.cache = dir.path().join("cache");
    // No cmake on this PATH, so the first thing that is needed is a wheel.
    wanted.machine.path = Vec::new();
    wanted.machine.cc = Some("cc".into());
    wanted.offline = true;
    let tree = dir.path().join("tree/runtime");
    std::fs::create_dir_all(&tree).unwrap();
    let version = format!(r#"{{"package-version": "{IREE_VERSION}.dev"}}"#);
    std::fs::write(tree.join("version.json"), version).unwrap();
    wanted.origin = Some(Origin::Source { dir: Some(dir.path().join("tree")), git: None });
    let error = fetch(&wanted).unwrap_err();
    assert!(matches!(error, Error::Offline { .. }), "{error}");
    assert!(error.to_string().contains("cmake"), "{error}");
    assert!(!wanted.out.exists() && !dir.path().join(".iree.new").exists());
}

#[test]
fn another_target_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let mut wanted = request(dir.path().join("iree"));
    wanted.target = "riscv64gc-unknown-linux-gnu".into();
    assert!(fetch(&wanted).unwrap_err().to_string().contains("riscv64gc"));
}

#[test]
fn the_registry_has_one_version() {
    let dir = tempfile::tempdir().unwrap();
    let mut wanted = request(dir.path().join("iree"));
    wanted.version = "0.0.1".into();
    let error = fetch(&wanted).unwrap_err().to_string();
    assert!(error.contains(IREE_VERSION) && error.contains("0.0.1"), "{error}");
}

#[test]
fn a_checkout_that_was_changed_is_another_one() {
    if std::process::Command::new("git").arg("--version").output().is_err() {
        eprintln!("SKIPPED: there is no git");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let git = |arguments: &[&str]| {
        let author = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"];
        let mut git = std::process::Command::new("git");
        let done = git.arg("-C").arg(dir.path()).args(author).args(arguments).output().unwrap();
        assert!(done.status.success(), "{done:?}");
    };
    let wanted = request(dir.path().join("iree"));
    let file = dir.path().join("a.c");
    std::fs::write(&file, "1").unwrap();
    assert!(!source::is_changed(&wanted, dir.path()), "nobody knows");
    git(&["init", "-q"]);
    git(&["add", "a.c"]);
    git(&["commit", "-qm", "a"]);
    std::fs::write(dir.path().join("notes"), "").unwrap();
    assert!(!source::is_changed(&wanted, dir.path()));
    std::fs::write(&file, "22").unwrap();
    assert!(source::is_changed(&wanted, dir.path()));
}

#[test]
fn a_clone_that_fails_keeps_its_log() {
    if std::process::Command::new("git").arg("--version").output().is_err() {
        eprintln!("SKIPPED: there is no git");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut wanted = request(dir.path().join("iree"));
    let nowhere = dir.path().join("no-such-repository").display().to_string();
    wanted.origin = Some(Origin::Source { dir: None, git: Some(nowhere.clone()) });
    let error = fetch(&wanted).unwrap_err().to_string();
    assert!(error.contains("no-such-repository"), "{error}");
    let log = std::fs::read_to_string(dir.path().join("iree.log")).unwrap();
    assert!(log.contains("no-such-repository"), "{log}");
    assert!(Manifest::load(&wanted.out).is_err());
}
