//! The IREE engine against the reference tokens of Hugging Face transformers, through the
//! contract.
#![cfg(feature = "iree")]

mod fixtures;

use std::path::PathBuf;

use fixtures::{Fixture, assert_close, assert_contract, assert_same_tokens};
use xla_session::{Backend, InferenceSession, Precision, SessionOptions};

/// Compiled graphs are shared by the tests of one build.
fn options() -> SessionOptions {
    SessionOptions {
        cache_dir: Some(PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("compiled")),
        ..SessionOptions::default()
    }
}

fn open(
    fixture: &Fixture,
    options: &SessionOptions,
) -> xla_session::Result<Box<dyn InferenceSession>> {
    Backend::Iree.open(&fixture.folder, options).map(|opened| opened.session)
}

fn every_token(device: &str, precision: Precision) {
    let options = SessionOptions { device: Some(device.into()), precision, ..options() };
    for fixture in fixtures::all() {
        let mut session = open(&fixture, &options).unwrap();
        assert_same_tokens(&fixture, session.as_mut());
    }
}

#[test]
fn every_token_equals_the_reference_as_stored_on_local_task() {
    every_token("local-task", Precision::Stored);
}

#[test]
fn every_token_equals_the_reference_in_f32_on_local_task() {
    every_token("local-task", Precision::F32);
}

#[test]
fn every_token_equals_the_reference_as_stored_on_local_sync() {
    every_token("local-sync", Precision::Stored);
}

#[test]
fn every_token_equals_the_reference_in_f32_on_local_sync() {
    every_token("local-sync", Precision::F32);
}

#[test]
fn the_contract_holds() {
    let options = SessionOptions { context: Some(80), ..options() };
    for name in ["llama-gqa-long-bf16", "mistral-window-gqa-bf16", "qwen3-mqa-untied-f16"] {
        let fixture = fixtures::named(name);
        assert_contract(&fixture, open(&fixture, &options).unwrap().as_mut());
    }
}

#[test]
fn prefill_in_pieces_is_the_prefill() {
    for fixture in
        [fixtures::named("llama-llama3-tied-bf16"), fixtures::named("mistral-window-gqa-bf16")]
    {
        let mut session = open(&fixture, &options()).unwrap();
        let case = fixture.cases.last().unwrap();
        for cut in [1, 5, 37, 63, 64, 129, 299] {
            session.reset();
            let (head, tail) = case.prompt.split_at(cut);
            session.prefill(head).unwrap();
            let step = session.prefill(tail).unwrap();
            assert_eq!(step.token, case.tokens[0], "{} cut at {cut}", fixture.name);
            assert_eq!(session.position(), case.prompt.len());
            let mut logits = Vec::new();
            session.read_logits(&mut logits).unwrap();
            assert_close(&logits, &case.logits, &format!("{} cut at {cut}", fixture.name));
        }
    }
}

#[test]
fn the_decode_step_and_the_prefill_agree() {
    let fixture = fixtures::named("qwen2-gqa-tied-bf16");
    let mut session = open(&fixture, &options()).unwrap();
    let case = fixture.cases.last().unwrap();
    let mut token = 0;
    for &next in &case.prompt {
        token = session.decode_step(next).unwrap().token;
    }
    assert_eq!(token, case.tokens[0]);
    let mut logits = Vec::new();
    session.read_logits(&mut logits).unwrap();
    assert_close(&logits, &case.logits, "token by token");
}

#[test]
fn a_second_start_compiles_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let compiled = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let count = compiled.clone();
    let options = SessionOptions {
        cache_dir: Some(folder.path().into()),
        observer: Some(std::sync::Arc::new(move |event| {
            if matches!(event, xla_session::Event::Compiled { .. }) {
                count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            }
        })),
        ..SessionOptions::default()
    };
    let fixture = fixtures::named("llama-mha-f32");
    open(&fixture, &options).unwrap();
    let first = compiled.load(std::sync::atomic::Ordering::Relaxed);
    assert!(first >= 2, "decode step and prefill were compiled: {first}");
    open(&fixture, &options).unwrap();
    assert_eq!(compiled.load(std::sync::atomic::Ordering::Relaxed), first);
}

#[test]
fn an_unknown_device_lists_the_known() {
    let options = SessionOptions { device: Some("quantum".into()), ..options() };
    let error = open(&fixtures::named("llama-mha-f32"), &options).err().unwrap();
    let text = format!("{error}");
    assert!(text.contains("quantum") && text.contains("local-task"), "{text}");
}

#[test]
fn a_context_beyond_the_model_is_refused() {
    for context in [0, 513] {
        let options = SessionOptions { context: Some(context), ..options() };
        let error = open(&fixtures::named("llama-mha-f32"), &options).err().unwrap().to_string();
        assert!(error.contains("1 to 512"), "{error}");
    }
}
