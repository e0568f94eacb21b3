//! What every test of the program needs: the program in a clean environment, and a tiny model.

#![allow(dead_code, reason = "each test program uses a part")]

use std::path::{Path, PathBuf};

use assert_cmd::Command;
use serde_json::{Value, json as value};

#[path = "../fixture/mod.rs"]
pub mod fixture;
pub mod python;

/// What of the caller's environment the program reads.
fn foreign() -> impl Iterator<Item = String> {
    let ours = ["IREE_LLM_", "HF_", "TRANSFORMERS_", "OTEL_"];
    std::env::vars().map(|(name, _)| name).filter(move |name| {
        let proxy = name.to_lowercase().ends_with("_proxy");
        proxy || ours.iter().any(|prefix| name.starts_with(prefix))
    })
}

/// The program, untouched by the caller's environment, for those who talk with it while it runs.
pub fn running() -> std::process::Command {
    let mut command = std::process::Command::new(assert_cmd::cargo::cargo_bin("iree-llm"));
    for name in foreign() {
        command.env_remove(name);
    }
    command
}

/// Sends a signal, by the shell's own `kill`: there may be no program of that name.
pub fn signal(name: &str, process: &std::process::Child) {
    let id = process.id().to_string();
    let mut shell = std::process::Command::new("sh");
    assert!(shell.args(["-c", "kill \"$0\" \"$1\"", name, &id]).status().unwrap().success());
}

/// The program with `arguments`, untouched by the caller's environment.
pub fn program(arguments: &[&str]) -> Command {
    let mut command = Command::cargo_bin("iree-llm").unwrap();
    for name in foreign() {
        command.env_remove(name);
    }
    // Compiled graphs are shared by the tests of one build.
    let cache = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("compiled");
    command
        .env("IREE_LLM_CACHE_DIR", cache)
        // Of models that go with the test, whose weights nobody would ask for again.
        .env("IREE_LLM_NO_WEIGHTS_CACHE", "1")
        .args(arguments)
        .timeout(std::time::Duration::from_secs(300));
    command
}

/// Runs the program, which fails with `code`, and returns what it says; stdout stays empty.
pub fn fails(code: i32, arguments: &[&str]) -> String {
    let assert = program(arguments).assert().code(code);
    let output = assert.get_output();
    assert!(output.stdout.is_empty(), "{output:?}");
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// Runs the program, which succeeds, and returns its stdout.
pub fn succeeds(arguments: &[&str]) -> String {
    let assert = program(arguments).assert().success();
    String::from_utf8(assert.get_output().stdout.clone()).unwrap()
}

/// Runs the program, which succeeds and prints one JSON object.
pub fn json(arguments: &[&str]) -> Value {
    let text = succeeds(arguments);
    assert_eq!(text.matches('\n').count(), 1, "{text}");
    serde_json::from_str(&text).unwrap()
}

/// A folder with the tiny model.
pub fn model() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fixture::write_model(folder.path());
    folder
}

const INFILL_MARKS: [&str; 4] =
    ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|fim_pad|>"];

/// Gives the model in `folder` the marks of Qwen2.5-Coder, in place of bytes that no text has.
pub fn mark(folder: &Path) {
    let path = folder.join("tokenizer.json");
    let mut json: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    for (byte, mark) in ["ø", "ù", "ú", "û"].into_iter().zip(INFILL_MARKS) {
        let vocab = json["model"]["vocab"].as_object_mut().unwrap();
        let id = vocab.remove(byte).unwrap();
        vocab.insert(mark.into(), id.clone());
        json["added_tokens"].as_array_mut().unwrap().push(value!({
            "id": id, "content": mark, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": false,
        }));
    }
    std::fs::write(&path, json.to_string()).unwrap();
}
