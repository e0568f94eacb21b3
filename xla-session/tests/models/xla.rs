//! The IREE engine against the reference tokens of Hugging Face transformers, through the
//! contract.

use std::path::Path;

use xla_session::{InferenceSession, Precision, SessionOptions, Tuning, generate_greedy};

use crate::fixtures::{self, Fixture, SOME, assert_close, assert_contract, assert_same_tokens};

fn options() -> SessionOptions {
    SessionOptions { cache_dir: Some(fixtures::compiled()), ..SessionOptions::default() }
}

fn open(
    fixture: &Fixture,
    options: &SessionOptions,
) -> xla_session::Result<Box<dyn InferenceSession>> {
    xla_session::open(&fixture.folder, options).map(|opened| opened.session)
}

fn tuning(sketch: Option<bool>) -> Tuning {
    Tuning { sketch, ..Tuning::default() }
}

/// Output projections as small as here are sketched only where that is asked for.
fn every_token(fixtures: &[Fixture], device: &str, precision: Precision, sketch: Option<bool>) {
    let device = Some(device.into());
    let options = SessionOptions { device, precision, tuning: tuning(sketch), ..options() };
    for fixture in fixtures {
        let mut session = open(fixture, &options).unwrap();
        assert_same_tokens(fixture, session.as_mut());
    }
}

#[test]
fn every_token_equals_the_reference_as_stored_on_local_task() {
    every_token(&SOME.map(fixtures::named), "local-task", Precision::Stored, None);
}

#[test]
fn every_token_equals_the_reference_in_f32_on_local_task() {
    every_token(&SOME.map(fixtures::named), "local-task", Precision::F32, None);
}

#[test]
fn every_token_equals_the_reference_as_stored_on_local_sync() {
    every_token(&fixtures::all(), "local-sync", Precision::Stored, None);
}

#[test]
fn every_token_equals_the_reference_in_f32_on_local_sync() {
    every_token(&fixtures::of_each_family(fixtures::all()), "local-sync", Precision::F32, None);
}

#[test]
fn every_token_equals_the_reference_as_stored_on_local_sync_with_a_sketch() {
    every_token(&SOME.map(fixtures::named), "local-sync", Precision::Stored, Some(true));
}

#[test]
fn every_token_equals_the_reference_in_f32_on_local_sync_with_a_sketch() {
    every_token(&SOME.map(fixtures::named), "local-sync", Precision::F32, Some(true));
}

/// What `cargo xtask test --all` adds.
mod long {
    use super::*;

    #[test]
    #[ignore = "long: cargo xtask test --all"]
    fn every_token_of_every_fixture_equals_the_reference_as_stored_on_local_task() {
        every_token(&fixtures::all(), "local-task", Precision::Stored, None);
    }

    #[test]
    #[ignore = "long: cargo xtask test --all"]
    fn every_token_of_every_fixture_equals_the_reference_in_f32() {
        for device in ["local-task", "local-sync"] {
            every_token(&fixtures::all(), device, Precision::F32, None);
        }
    }

    #[test]
    #[ignore = "long: cargo xtask test --all"]
    fn every_token_of_every_fixture_equals_the_reference_with_a_sketch() {
        for precision in [Precision::Stored, Precision::F32] {
            every_token(&fixtures::all(), "local-sync", precision, Some(true));
        }
    }
}

#[test]
fn the_contract_holds() {
    let options = SessionOptions { context: Some(80), ..options() };
    for name in ["llama-gqa-long-bf16", "mistral-window-gqa-bf16", "qwen3-mqa-untied-f16"] {
        let fixture = fixtures::named(name);
        assert_contract(&fixture, open(&fixture, &options).unwrap().as_mut(), true);
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

/// `reference.json` of the model in the repository; its script is `models/train/reference.py`.
#[derive(serde::Deserialize)]
struct Stories {
    cases: Vec<Story>,
}

#[derive(serde::Deserialize)]
struct Story {
    name: String,
    prompt_tokens: Vec<u32>,
    tokens: Vec<u32>,
}

#[test]
fn the_model_in_the_repository_tells_the_reference_stories() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/tiny-tales");
    let text = std::fs::read(folder.join("reference.json")).unwrap();
    let stories: Stories = serde_json::from_slice(&text).unwrap();
    assert!(stories.cases.len() >= 5);
    for sketch in [None, Some(true)] {
        let options = SessionOptions { tuning: tuning(sketch), ..options() };
        let mut session = xla_session::open(&folder, &options).unwrap().session;
        for Story { name, prompt_tokens, tokens } in &stories.cases {
            session.reset();
            let story =
                generate_greedy(session.as_mut(), prompt_tokens, tokens.len(), &[]).expect(name);
            assert_eq!(story.tokens, *tokens, "{name} {sketch:?}");
        }
    }
}

#[test]
fn a_failed_call_leaves_the_session_as_it_was() {
    let fixture = fixtures::named("llama-mha-f32");
    let case = &fixture.cases[1];
    let used = |id: &u32| case.prompt.contains(id) || case.tokens.contains(id);
    let poisoned = (0..case.logits.len() as u32).find(|id| !used(id)).unwrap();

    let folder = fixtures::with_embedding(&fixture, poisoned, f32::NAN);
    // Nobody will ask for these weights again.
    let options = SessionOptions { weights_cache: false, ..options() };
    let mut session = xla_session::open(folder.path(), &options).unwrap().session;
    let mut token = session.prefill(&case.prompt).unwrap().token;
    let (mut before, mut after) = (Vec::new(), Vec::new());
    for (i, expected) in case.tokens.iter().take(8).enumerate() {
        assert_eq!(token, *expected);
        session.read_logits(&mut before).unwrap();
        let bad = if i % 2 == 0 { vec![poisoned] } else { vec![poisoned; 70] };
        let error = session.prefill(&bad).unwrap_err().to_string();
        assert!(error.contains("not numbers"), "{error}");
        assert_eq!(session.position(), case.prompt.len() + i);
        session.read_logits(&mut after).unwrap();
        assert_eq!(before, after);
        token = session.decode_step(token).unwrap().token;
    }
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
    assert_eq!(first, 1, "one graph is for steps of any rows");
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
