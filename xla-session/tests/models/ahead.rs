//! Graphs compiled ahead of time for a CPU that is not known.

use xla_session::checkpoint::Checkpoint;
use xla_session::config::ModelConfig;
use xla_session::emit::WeightFormats;
use xla_session::{LoadMode, Precision, SessionOptions, compile_ahead};

use crate::fixtures::{self, assert_same_tokens};

#[test]
fn without_a_compiler_a_cpu_takes_what_was_compiled_for_any() {
    let fixture = fixtures::named("llama-mha-f32");
    let folder = tempfile::tempdir().unwrap();
    let config = ModelConfig::from_dir(&fixture.folder).unwrap();
    let checkpoint = Checkpoint::open(&fixture.folder, LoadMode::Mmap).unwrap();
    let formats = WeightFormats::new(Precision::Stored, &config, &checkpoint);
    let ahead =
        SessionOptions { cache_dir: Some(folder.path().into()), ..SessionOptions::default() };
    let here = SessionOptions { compiler: Some(folder.path().join("none")), ..ahead.clone() };
    let error = xla_session::open(&fixture.folder, &here).unwrap_err().to_string();
    assert!(error.contains("no cache holds"), "{error}");

    assert!(compile_ahead(&config, &formats, "cpu", "it", &ahead).unwrap() >= 1);
    for threads in [1, 3] {
        let here = SessionOptions { threads: Some(threads), ..here.clone() };
        let mut session = xla_session::open(&fixture.folder, &here).unwrap().session;
        assert_same_tokens(&fixture, session.as_mut());
    }
    // A KV cache that it was not compiled for.
    let other = SessionOptions { kv_cache: Some(xla_session::KvFormat::F16), ..here };
    let error = xla_session::open(&fixture.folder, &other).unwrap_err().to_string();
    assert!(error.contains("no cache holds"), "{error}");
}

/// So that they are for any CPU.
#[test]
fn graphs_for_cpus_hold_no_machine_code() {
    let folder = tempfile::tempdir().unwrap();
    let options =
        SessionOptions { cache_dir: Some(folder.path().into()), ..SessionOptions::default() };
    let has = |text: &[u8], what: &[u8]| text.windows(what.len()).any(|it| it == what);
    for fixture in ["llama-mha-f32", fixtures::WITH_STATES, "qwen3-moe-gqa-bf16"] {
        let config = ModelConfig::from_dir(&fixtures::named(fixture).folder).unwrap();
        let formats = WeightFormats::all(xla_session::emit::Format::Int4);
        compile_ahead(&config, &formats, "cpu", fixture, &options).unwrap();
    }
    let mut graphs = 0;
    for entry in std::fs::read_dir(folder.path()).unwrap() {
        let entry = std::fs::read(entry.unwrap().path()).unwrap();
        assert!(!has(&entry, b"\x7fELF") && !has(&entry, b"embedded-elf"));
        graphs += usize::from(has(&entry, b"kernels:append_"));
    }
    assert!(graphs >= 3, "{graphs}");
}

#[test]
fn a_target_that_nobody_knows_is_refused_with_those_that_there_are() {
    let fixture = fixtures::named("llama-mha-f32");
    let config = ModelConfig::from_dir(&fixture.folder).unwrap();
    let formats = WeightFormats::all(xla_session::emit::Format::F32);
    let folder = tempfile::tempdir().unwrap();
    let options =
        SessionOptions { cache_dir: Some(folder.path().into()), ..SessionOptions::default() };
    let error =
        compile_ahead(&config, &formats, "x86-64-v9", "it", &options).unwrap_err().to_string();
    assert!(
        error.contains("x86-64-v9") && error.contains("`cpu`") && error.contains("sm_80"),
        "{error}"
    );
}
