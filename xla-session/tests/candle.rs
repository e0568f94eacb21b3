//! candle against the reference tokens of Hugging Face transformers, through the contract.
#![cfg(feature = "candle")]

mod fixtures;

use fixtures::{Fixture, assert_close, assert_contract, assert_same_tokens};
use xla_session::{Backend, Error, InferenceSession, SessionOptions};

/// Fixtures that candle-transformers cannot run, and the word that its refusal must say.
const UNSUPPORTED: [(&str, &[&str]); 6] = [
    ("llama-linear-attention-bias-bf16", &["attention_bias", "head_dim 6", "rope_type linear"]),
    ("llama-llama3-biases-mqa-f16", &["attention_bias", "mlp_bias", "head_dim 20"]),
    ("mistral-window-gqa-bf16", &["sliding_window of 50"]),
    ("qwen2-window-untied-f16", &["sliding_window of 40"]),
    ("qwen3-bias-linear-mha-f32", &["rope_type linear"]),
    ("qwen3-layer-types-bf16", &["sliding_window of 33"]),
];

fn open(
    fixture: &Fixture,
    options: &SessionOptions,
) -> xla_session::Result<Box<dyn InferenceSession>> {
    Backend::Candle.open(&fixture.folder, options).map(|opened| opened.session)
}

#[test]
fn every_token_equals_the_reference() {
    let mut ran = 0;
    for fixture in fixtures::all() {
        if UNSUPPORTED.iter().any(|(name, _)| *name == fixture.name) {
            continue;
        }
        let mut session = open(&fixture, &SessionOptions::default()).unwrap();
        assert_same_tokens(&fixture, session.as_mut());
        ran += 1;
    }
    assert_eq!(ran, 8, "fixtures that candle ran");
}

#[test]
fn what_candle_lacks_is_refused_by_name() {
    for (name, words) in UNSUPPORTED {
        let error = open(&fixtures::named(name), &SessionOptions::default()).err().expect(name);
        assert!(matches!(error, Error::Unsupported(_)), "{name}: {error}");
        for word in words {
            assert!(error.to_string().contains(word), "{name}: {error}");
        }
    }
}

#[test]
fn a_chosen_number_of_threads_changes_nothing() {
    let options = SessionOptions { threads: Some(1), ..SessionOptions::default() };
    let fixture = fixtures::named("qwen3-gqa-tied-bf16");
    assert_same_tokens(&fixture, open(&fixture, &options).unwrap().as_mut());
}

#[test]
fn the_contract_holds() {
    let options = SessionOptions { context: Some(80), ..SessionOptions::default() };
    for name in [
        "llama-gqa-long-bf16",
        "mistral-full-mqa-f16",
        "qwen2-gqa-tied-bf16",
        "qwen3-mqa-untied-f16",
    ] {
        let fixture = fixtures::named(name);
        assert_contract(&fixture, open(&fixture, &options).unwrap().as_mut());
    }
}

#[test]
fn prefill_in_pieces_is_the_prefill() {
    for name in [
        "llama-llama3-tied-bf16",
        "mistral-full-mqa-f16",
        "qwen2-gqa-tied-bf16",
        "qwen3-gqa-tied-bf16",
    ] {
        let fixture = fixtures::named(name);
        let mut session = open(&fixture, &SessionOptions::default()).unwrap();
        let case = fixture.cases.last().unwrap();
        let (head, tail) = case.prompt.split_at(37);
        session.prefill(head).unwrap();
        assert_eq!(session.prefill(tail).unwrap().token, case.tokens[0], "{name}");
        assert_eq!(session.position(), case.prompt.len(), "{name}");
        let mut logits = Vec::new();
        session.read_logits(&mut logits).unwrap();
        assert_close(&logits, &case.logits, name);
    }
}

#[test]
fn an_unknown_device_lists_the_known() {
    let options = SessionOptions { device: Some("cuda://0".into()), ..SessionOptions::default() };
    let error = open(&fixtures::named("llama-mha-f32"), &options).err().unwrap().to_string();
    assert_eq!(error, "unknown device `cuda://0`; known: cpu");
}

#[test]
fn a_context_beyond_the_model_is_refused() {
    let fixture = fixtures::named("llama-mha-f32");
    for context in [0, 513] {
        let options = SessionOptions { context: Some(context), ..SessionOptions::default() };
        let error = open(&fixture, &options).err().unwrap().to_string();
        assert!(error.contains("1 to 512"), "{error}");
    }
}

#[test]
fn a_missing_tensor_is_named() {
    for name in ["llama-llama3-tied-bf16", "qwen3-mqa-untied-f16"] {
        let folder = tempfile::tempdir().unwrap();
        for file in ["config.json", "model.safetensors"] {
            std::fs::copy(fixtures::named(name).folder.join(file), folder.path().join(file))
                .unwrap();
        }
        // One layer more than the checkpoint holds.
        let path = folder.path().join("config.json");
        let config = std::fs::read_to_string(&path).unwrap();
        let layers = config.replace("\"num_hidden_layers\": ", "\"num_hidden_layers\": 1");
        assert_ne!(layers, config);
        std::fs::write(&path, layers).unwrap();
        let error = Backend::Candle.open(folder.path(), &SessionOptions::default()).err().unwrap();
        assert!(matches!(error, Error::Checkpoint { .. }), "{error}");
        assert!(error.to_string().contains("model.layers."), "{error}");
    }
}
