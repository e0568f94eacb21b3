//! The graphs for NVIDIA GPUs, as far as they can be checked without one: what they compute, on the
//! CPU, and that they compile ahead of time. `cuda_code.rs` has what the compiler makes of them.
#![cfg(feature = "iree")]

mod fixtures;

use std::collections::BTreeSet;
use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use fixtures::{Fixture, SOME, assert_contract, assert_same_tokens};
use xla_session::checkpoint::Checkpoint;
use xla_session::config::ModelConfig;
use xla_session::emit::{Format, WeightFormats};
use xla_session::{
    Backend, Event, InferenceSession, LoadMode, Precision, SessionOptions, Step, Tuning,
    compile_ahead,
};

/// Architectures that graphs are compiled for, the older one of GPUs since 2020.
const ARCHITECTURES: [&str; 2] = ["sm_80", "sm_89"];

/// The graphs of GPUs on the CPU.
fn options(precision: Precision) -> SessionOptions {
    SessionOptions {
        tuning: Tuning { cuda_graphs: true, ..Tuning::default() },
        precision,
        cache_dir: Some(shared_cache()),
        ..SessionOptions::default()
    }
}

/// Compiled graphs are shared by the tests of one build.
fn shared_cache() -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("compiled")
}

fn open(fixture: &Fixture, options: &SessionOptions) -> Box<dyn InferenceSession> {
    Backend::Iree.open(&fixture.folder, options).unwrap().session
}

#[test]
fn every_token_equals_the_reference_as_stored() {
    for name in SOME {
        let fixture = fixtures::named(name);
        assert_same_tokens(&fixture, open(&fixture, &options(Precision::Stored)).as_mut());
    }
}

#[test]
fn every_token_equals_the_reference_in_f32() {
    for name in ["llama-mha-f32", "qwen3-gqa-tied-bf16"] {
        let fixture = fixtures::named(name);
        assert_same_tokens(&fixture, open(&fixture, &options(Precision::F32)).as_mut());
    }
}

/// What `cargo xtask test --all` adds.
mod long {
    use super::*;

    #[test]
    #[ignore = "long: cargo xtask test --all"]
    fn every_token_of_every_fixture_equals_the_reference() {
        for fixture in fixtures::all() {
            for precision in [Precision::Stored, Precision::F32] {
                assert_same_tokens(&fixture, open(&fixture, &options(precision)).as_mut());
            }
        }
    }
}

#[test]
fn the_contract_holds() {
    let options = SessionOptions { context: Some(80), ..options(Precision::Stored) };
    let fixture = fixtures::named("mistral-window-gqa-bf16");
    assert_contract(&fixture, open(&fixture, &options).as_mut());
}

/// A decode step has a function for each capacity of the cache: from one to the next the cache
/// moves, and every token is what the graphs for CPUs say.
#[test]
fn decoding_goes_on_where_the_cache_grows() {
    let fixture = fixtures::named("llama-gqa-long-bf16");
    // The smallest cache is for 1280 tokens.
    let prompt: Vec<_> = fixture.cases[3].prompt.iter().copied().cycle().take(960).collect();
    let run = |options: &SessionOptions| {
        let mut session = open(&fixture, options);
        let mut tokens = vec![session.prefill(&prompt).unwrap().token];
        let on_step = &mut |step: Step| {
            tokens.push(step.token);
            ControlFlow::Continue(())
        };
        let first = fixture.cases[0].prompt[0];
        session.decode_greedy(first, 350, on_step).unwrap();
        let mut logits = Vec::new();
        session.read_logits(&mut logits).unwrap();
        (tokens, logits)
    };
    let gpu = options(Precision::F32);
    let cpu = SessionOptions { tuning: Tuning::default(), ..gpu.clone() };
    let expected = run(&cpu);
    // Which is never ahead of itself, and which has two steps in flight.
    for device in ["local-sync", "local-task"] {
        let (tokens, logits) = run(&SessionOptions { device: Some(device.into()), ..gpu.clone() });
        assert_eq!(tokens, expected.0, "{device}");
        for (a, b) in logits.iter().zip(&expected.1) {
            assert!((a - b).abs() < 1e-3, "{device}: {a} is not {b}");
        }
    }
}

/// Compiles every graph of `config` for `architecture`.
fn compile(config: &ModelConfig, formats: &WeightFormats, architecture: &str, name: &str) {
    let options = SessionOptions { cache_dir: Some(shared_cache()), ..SessionOptions::default() };
    let graphs = compile_ahead(config, formats, architecture, name, &options)
        .unwrap_or_else(|e| panic!("{name} for {architecture}: {e}"));
    assert_eq!(graphs, 4, "the decode step and the prefills of 8, 64 and 256 rows");
}

fn compile_fixture(fixture: &Fixture, precision: Precision, architecture: &str) {
    let mut config = ModelConfig::from_dir(&fixture.folder).unwrap();
    let checkpoint = Checkpoint::open(&fixture.folder, LoadMode::Mmap).unwrap();
    config.tie_word_embeddings = checkpoint.is_tied(&config).unwrap();
    let formats = WeightFormats::new(precision, &config, &checkpoint);
    compile(&config, &formats, architecture, &fixture.name);
}

/// In every kind of precision, for every architecture; `cuda_code.rs` has every fixture.
#[test]
fn models_compile_ahead_of_time() {
    let fixture = fixtures::named(SOME[1]);
    for precision in [Precision::F32, Precision::Int8, Precision::Int4] {
        compile_fixture(&fixture, precision, ARCHITECTURES[0]);
    }
    compile_fixture(&fixture, Precision::Stored, ARCHITECTURES[1]);
}

#[test]
fn an_architecture_that_the_compiler_does_not_know_is_refused() {
    let fixture = fixtures::named("llama-mha-f32");
    let config = ModelConfig::from_dir(&fixture.folder).unwrap();
    let formats = WeightFormats::all(Format::F32);
    let folder = tempfile::tempdir().unwrap();
    let options =
        SessionOptions { cache_dir: Some(folder.path().into()), ..SessionOptions::default() };
    let error = compile_ahead(&config, &formats, "sm_90", "a", &options).unwrap_err().to_string();
    assert!(error.contains("no CUDA target `sm_90`: there are sm_60"), "{error}");
    let error = compile_ahead(&config, &formats, "sm_80", "a", &SessionOptions::default());
    assert!(error.unwrap_err().to_string().contains("cache folder"));
}

#[test]
fn a_copied_cache_needs_no_compiler() {
    let fixture = fixtures::named("llama-mha-f32");
    let folder = tempfile::tempdir().unwrap();
    let with = SessionOptions { cache_dir: Some(folder.path().into()), ..options(Precision::F32) };
    let mut expected = open(&fixture, &with);
    let compiled = Arc::new(Mutex::new(BTreeSet::new()));
    let heard = compiled.clone();
    let elsewhere = tempfile::tempdir().unwrap();
    let without = SessionOptions {
        cache_dir: Some(elsewhere.path().into()),
        compiler: Some(elsewhere.path().join("no-compiler")),
        observer: Some(Arc::new(move |event| {
            if let Event::Compiling { graph } = event {
                heard.lock().unwrap().insert(graph);
            }
        })),
        ..with.clone()
    };
    let error = Backend::Iree.open(&fixture.folder, &without).err().unwrap().to_string();
    assert!(error.contains("no cache holds"), "{error}");
    for entry in fs::read_dir(folder.path()).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, Path::join(elsewhere.path(), path.file_name().unwrap())).unwrap();
    }
    let mut session = open(&fixture, &without);
    let prompt = &fixture.cases[1].prompt;
    assert_eq!(session.prefill(prompt).unwrap().token, expected.prefill(prompt).unwrap().token);
    assert!(compiled.lock().unwrap().is_empty());
}
