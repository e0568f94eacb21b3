//! The origin `dist` against a loopback server that serves an archive made here.

use std::fs;
use std::path::{Path, PathBuf};

use iree_src::{IREE_VERSION, Manifest, OriginKind};
use sha2::{Digest, Sha256};

use super::server::{Behaviour, Server};
use crate::iree::fetch::{Outcome, fetch};
use crate::iree::progress::Progress;
use crate::iree::request::{Machine, Origin, Request};
use crate::iree::{Error, Result};

/// An archive with the layout of upstream's, small.
fn archive(note: &str) -> Vec<u8> {
    let mut tar = tar::Builder::new(Vec::new());
    let mut put = |path: &str, mode: u32, bytes: &[u8]| {
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(mode);
        header.set_cksum();
        tar.append_data(&mut header, path, bytes).unwrap();
    };
    let version = format!("#!/bin/sh\necho IREE compiler version {IREE_VERSION}rc1 @ x\n");
    put("bin/iree-compile", 0o755, version.as_bytes());
    put("include/iree/runtime/api.h", 0o644, b"#pragma once\n");
    let library = b"!<arch>\niree_hal_local_task_driver_module_register\0";
    put("lib/libiree_runtime_unified.a", 0o644, library);
    put("lib/libflatcc_parsing.a", 0o644, b"!<arch>\n");
    put("lib/libIREECompiler.so", 0o644, b"\x7fELF");
    // Incompressible, so that half of the archive is half of a file.
    let mut noise: Vec<u8> = Sha256::digest(note).to_vec();
    while noise.len() < 300_000 {
        noise.extend_from_within(noise.len() - 32..);
        let at = noise.len() - 32;
        let next = Sha256::digest(&noise[at..]);
        noise[at..].copy_from_slice(&next);
    }
    put("share/noise", 0o644, &noise);
    let tar = tar.into_inner().unwrap();
    let options = lzma_rust2::XzOptions::with_preset(1);
    let mut xz = lzma_rust2::XzWriter::new(Vec::new(), options).unwrap();
    std::io::Write::write_all(&mut xz, &tar).unwrap();
    xz.finish().unwrap()
}

fn hash(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect()
}

struct Bench {
    dir: tempfile::TempDir,
    server: Server,
}

impl Bench {
    fn new() -> Bench {
        Bench { dir: tempfile::tempdir().unwrap(), server: Server::start() }
    }

    fn out(&self) -> PathBuf {
        self.dir.path().join("iree")
    }

    fn cached(&self) -> PathBuf {
        self.dir.path().join(format!("cache/dist/{}", name()))
    }

    fn request(&self, sha256: Option<&str>) -> Request {
        let mut machine = Machine::from_env();
        machine.cache = self.dir.path().join("cache");
        let mut request = Request::new(self.out(), machine);
        request.progress = Progress::Silent;
        request.origin = Some(Origin::Dist {
            base_url: Some(self.server.url()),
            sha256: sha256.map(str::to_owned),
        });
        request
    }

    fn fetch(&self, sha256: Option<&str>) -> Result<Outcome> {
        fetch(&self.request(sha256))
    }
}

fn name() -> String {
    format!("iree-dist-{IREE_VERSION}-linux-{}.tar.xz", std::env::consts::ARCH)
}

#[test]
fn a_good_archive_becomes_a_folder_and_stays() {
    let bench = Bench::new();
    let bytes = archive("good");
    bench.server.serve(bytes.clone(), Behaviour::Whole);
    let outcome = bench.fetch(Some(&hash(&bytes))).unwrap();
    assert!(matches!(outcome, Outcome::Made(_)));
    let manifest = Manifest::load(&bench.out()).unwrap();
    assert_eq!(manifest.origin.kind, OriginKind::Dist);
    assert_eq!(manifest.iree, IREE_VERSION);
    assert_eq!(manifest.drivers, ["local-task"]);
    assert_eq!(manifest.fetched[0].sha256, hash(&bytes));
    assert_eq!(manifest.compiler_library.as_deref(), Some(Path::new("lib/libIREECompiler.so")));
    let expected = format!("/v{IREE_VERSION}/{}", name());
    assert_eq!(bench.server.requests()[0].path, expected);

    assert!(matches!(bench.fetch(None).unwrap(), Outcome::AlreadyThere(_)));
    assert_eq!(bench.server.requests().len(), 1);
}

#[test]
fn offline_works_from_the_cache_only() {
    let bench = Bench::new();
    let mut request = bench.request(None);
    request.offline = true;
    assert!(matches!(fetch(&request).unwrap_err(), Error::Offline { .. }));
    bench.server.serve(archive("offline"), Behaviour::Whole);
    bench.fetch(None).unwrap();
    fs::remove_dir_all(bench.out()).unwrap();
    assert!(matches!(fetch(&request).unwrap(), Outcome::Made(_)));
    assert_eq!(bench.server.requests().len(), 1);
}

#[test]
fn a_wrong_hash_leaves_nothing() {
    let bench = Bench::new();
    bench.server.serve(archive("wrong"), Behaviour::Whole);
    let wrong = "0".repeat(64);
    let error = bench.fetch(Some(&wrong)).unwrap_err();
    assert!(matches!(error, Error::Iree(iree_src::Error::Hash { .. })), "{error}");
    assert!(error.to_string().contains(&wrong) && error.to_string().contains("--sha256"));
    assert!(!bench.out().exists() && !bench.cached().exists());
    assert!(bench.fetch(Some("12")).unwrap_err().to_string().contains("64 hex"));
}

#[test]
fn a_changed_archive_is_refused_until_its_hash_is_given() {
    let bench = Bench::new();
    let (first, second) = (archive("first"), archive("second"));
    bench.server.serve(first.clone(), Behaviour::Whole);
    bench.fetch(None).unwrap();
    // Neither the folder nor the archive: the remembered hash alone has to refuse.
    fs::remove_dir_all(bench.out()).unwrap();
    fs::remove_file(bench.cached()).unwrap();
    bench.server.serve(second.clone(), Behaviour::Whole);
    let error = bench.fetch(None).unwrap_err();
    assert!(
        matches!(&error, Error::Iree(iree_src::Error::Hash { expected, .. }) if *expected == hash(&first))
    );
    assert!(!bench.out().exists());
    bench.fetch(Some(&hash(&second))).unwrap();
    assert_eq!(Manifest::load(&bench.out()).unwrap().fetched[0].sha256, hash(&second));
}

#[test]
fn a_missing_file_says_what_to_check() {
    let bench = Bench::new();
    let error = bench.fetch(None).unwrap_err().to_string();
    assert!(error.contains("404") && error.contains("--iree-version"), "{error}");
    assert_eq!(bench.server.requests().len(), 1, "a 404 is not tried again");
    assert!(!bench.out().exists());
}

#[test]
fn a_truncated_download_is_an_error_and_is_resumed_by_the_next_run() {
    let bench = Bench::new();
    let bytes = archive("truncated");
    bench.server.serve(bytes.clone(), Behaviour::Stuck { at: bytes.len() / 2 });
    let error = bench.fetch(None).unwrap_err().to_string();
    assert!(error.contains("run the same command again"), "{error}");
    assert!(!bench.out().exists() && !bench.cached().exists());
    let before = bench.server.requests().len();

    bench.server.serve(bytes.clone(), Behaviour::Whole);
    bench.fetch(Some(&hash(&bytes))).unwrap();
    let resumed = &bench.server.requests()[before..];
    assert_eq!(resumed.len(), 1);
    assert_eq!(resumed[0].range.as_deref(), Some(&*format!("bytes={}-", bytes.len() / 2)));
}

#[test]
fn a_connection_that_breaks_once_is_resumed_in_the_same_run() {
    let bench = Bench::new();
    let bytes = archive("broken");
    bench.server.serve(bytes.clone(), Behaviour::BreaksOnce { at: 1000 });
    bench.fetch(Some(&hash(&bytes))).unwrap();
    let ranges: Vec<_> = bench.server.requests().into_iter().map(|r| r.range).collect();
    assert_eq!(ranges, [None, Some("bytes=1000-".to_owned())]);
}

#[test]
fn a_file_that_changed_between_two_attempts_is_begun_again() {
    let bench = Bench::new();
    let (old, new) = (archive("old"), archive("new"));
    bench.server.serve(old.clone(), Behaviour::Stuck { at: 5000 });
    bench.fetch(None).unwrap_err();
    bench.server.serve(new.clone(), Behaviour::Whole);
    bench.fetch(Some(&hash(&new))).unwrap();
}

#[test]
fn a_file_that_is_no_archive_leaves_nothing() {
    let bench = Bench::new();
    bench.server.serve(b"<html>sign in</html>".to_vec(), Behaviour::Whole);
    let error = bench.fetch(None).unwrap_err().to_string();
    assert!(error.contains("unpack"), "{error}");
    assert!(!bench.out().exists() && !bench.cached().exists());
    // What was not usable is not what later files are compared with.
    bench.server.serve(archive("after"), Behaviour::Whole);
    bench.fetch(None).unwrap();
}

#[test]
fn a_failed_replacement_keeps_the_old_folder() {
    let bench = Bench::new();
    bench.server.serve(archive("kept"), Behaviour::Whole);
    bench.fetch(None).unwrap();
    let before = Manifest::load(&bench.out()).unwrap();
    let wrong = "1".repeat(64);
    assert!(matches!(
        bench.fetch(Some(&wrong)).unwrap_err(),
        Error::Iree(iree_src::Error::Hash { .. })
    ));
    assert_eq!(Manifest::load(&bench.out()).unwrap(), before);
}

#[test]
fn cuda_is_not_in_upstreams_archive() {
    let bench = Bench::new();
    let mut request = bench.request(None);
    request.cuda = true;
    assert!(fetch(&request).unwrap_err().to_string().contains("--from registry"));
}
