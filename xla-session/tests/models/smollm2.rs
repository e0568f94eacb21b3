//! A trained model: every token that transformers generates with SmolLM2-135M-Instruct.
//!
//! `tests/reference/smollm2_model.py` makes the model from a package of PyPI, once, below the target
//! folder. Where that cannot be had (no network, no Python), the test says so and passes.

use std::collections::HashMap;
use std::io::Write as _;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;
use xla_session::batching::{BatcherOptions, Request, RequestId, Token};
use xla_session::{
    Batcher, Engine, EngineOptions, Model, Precision, SessionOptions, Tuning, generate_greedy,
};

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

/// The model's folder or its file `file`, and the cases; `None` where there is none.
fn given(file: &str) -> Option<(PathBuf, Vec<Case>)> {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let folder = match model("python3", &target.join("SmolLM2-135M-Instruct")) {
        Ok(folder) => folder,
        Err(why) => {
            skip(&why);
            return None;
        }
    };
    let Reference { cases } = serde_json::from_str(include_str!("../smollm2.json")).unwrap();
    assert_eq!(cases.len(), 12);
    assert!(cases.iter().all(|case| case.tokens.len() == 64));
    Some((if file.is_empty() { folder } else { folder.join(file) }, cases))
}

fn cached(options: &SessionOptions) -> SessionOptions {
    let cache_dir = Some(crate::fixtures::compiled());
    SessionOptions { cache_dir, ..options.clone() }
}

/// All tokens, all prompts at once: bits are the same in any company.
fn compare_together(file: &str) {
    let Some((path, cases)) = given(file) else { return };
    let model = Model::open(&path, &cached(&on("local-task"))).unwrap();
    let engine = Engine::new(&model, &EngineOptions::default()).unwrap();
    let mut batcher = Batcher::new(engine, &BatcherOptions::default()).unwrap();
    let mut tokens: HashMap<RequestId, Vec<u32>> = HashMap::new();
    let submitted: Vec<_> = cases
        .iter()
        .map(|Case { prompt, tokens }| {
            let (prompt, max_tokens) = (prompt.clone(), tokens.len());
            batcher.submit(Request { prompt, max_tokens, ..Request::default() }).unwrap()
        })
        .collect();
    let mut ended = 0;
    while ended < cases.len() {
        let mut on_token = |id, token: Token| {
            tokens.entry(id).or_default().push(token.id);
            ControlFlow::Continue(())
        };
        ended += batcher.advance(&mut on_token).unwrap().len();
    }
    for (case, (id, expected)) in submitted.iter().zip(&cases).enumerate() {
        assert_eq!(tokens[id], expected.tokens, "{file} prompt {case}");
    }
}

/// All tokens, one prompt after the other, with what `options` says beside the cache.
fn compare_alone(file: &str, options: &[SessionOptions]) {
    let Some((path, cases)) = given(file) else { return };
    for options in options {
        let mut session = xla_session::open(&path, &cached(options)).unwrap().session;
        for (case, Case { prompt, tokens }) in cases.iter().enumerate() {
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
    compare_together("");
}

/// Integers and scales as the file has them, beside activations of 16 bits.
#[test]
fn a_trained_model_gives_the_tokens_of_transformers_from_its_gguf() {
    compare_together(GGUF);
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
    fn a_trained_model_gives_the_tokens_of_transformers_alone() {
        let all = ["local-task", "local-sync"].map(on);
        compare_alone("", &all);
        compare_alone(GGUF, &all);
    }

    /// The checkpoint is f32: stored and f32 are the same graphs and weights, and have to stay so.
    #[test]
    #[ignore = "long: cargo xtask test --all"]
    fn a_trained_model_gives_the_tokens_of_transformers_in_f32_and_uncompressed() {
        let f32 = |device| SessionOptions { precision: Precision::F32, ..on(device) };
        let tuning = Tuning { compress: false, ..Tuning::default() };
        let plain =
            |device| SessionOptions { tuning: tuning.clone(), weights_cache: false, ..on(device) };
        compare_alone("", &["local-task", "local-sync"].map(f32));
        compare_alone("", &["local-task", "local-sync"].map(plain));
    }
}
