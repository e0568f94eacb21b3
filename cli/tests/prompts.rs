//! `iree-llm generate --prompts`: many prompts of a file, answered together.
#![cfg(feature = "iree")]

mod support;

use std::io::Write;
use std::path::Path;
use std::process::Stdio;

use serde_json::{Value, json};
use support::{fails, model, program};

const TALES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../models/tiny-tales");

fn lines(text: &[u8]) -> Vec<Value> {
    let text = std::str::from_utf8(text).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The answer with the id `id`.
fn answer<'a>(answers: &'a [Value], id: &Value) -> &'a Value {
    let mut found = answers.iter().filter(|it| it["id"] == *id);
    let answer = found.next().unwrap_or_else(|| panic!("no answer {id} in {answers:?}"));
    assert!(found.next().is_none(), "{id} is answered twice");
    answer
}

/// The text that a prompt alone gets.
fn alone(flags: &[&str]) -> (Value, Value, usize) {
    let line = ["generate", "-m", TALES, "-q", "--json", "--kv-cache", "f32", "--raw"];
    let report = support::json(&[&line[..], flags].concat());
    let tokens = report["tokens"].as_array().unwrap().len();
    (report["text"].clone(), report["finish_reason"].clone(), tokens)
}

#[test]
fn every_prompt_gets_the_answer_that_it_gets_alone() {
    let folder = tempfile::tempdir().unwrap();
    let (input, output) = (folder.path().join("in.jsonl"), folder.path().join("out.jsonl"));
    let prompts = [
        json!({"prompt": "Once upon a time"}),
        json!({"id": "b", "prompt": "One day, a cat", "max_tokens": 40}),
        json!({"id": {"c": 1}, "prompt": "The dog", "temperature": 0.9, "top_k": 30, "seed": 7}),
        json!({"id": 9, "prompt": "Once upon a time", "stop": [" was", " the"]}),
        json!({"id": "t", "prompt": "Lily said", "temperature": 1.1, "top_p": 0.9, "seed": 8}),
    ];
    let text: String = prompts.iter().map(|it| format!("{it}\n")).collect();
    // A blank line is no prompt, and has a number.
    std::fs::write(&input, format!("\n{text}")).unwrap();
    let [input, output] = [&input, &output].map(|it| it.to_str().unwrap());
    let line = ["generate", "-m", TALES, "--kv-cache", "f32", "-n", "24", "--raw"];
    let files = ["--prompts", input, "--output", output];
    let run = program(&[&line[..], &files].concat()).assert().success();
    let messages = String::from_utf8_lossy(&run.get_output().stderr).into_owned();
    assert!(messages.contains("answered 5") && messages.contains("tok/s"), "{messages}");
    assert!(run.get_output().stdout.is_empty());

    let answers = lines(&std::fs::read(output).unwrap());
    assert_eq!(answers.len(), 5);
    let expected = [
        (json!(2), alone(&["-p", "Once upon a time", "-n", "24"])),
        (json!("b"), alone(&["-p", "One day, a cat", "-n", "40"])),
        (
            json!({"c": 1}),
            alone(&["-p", "The dog", "-n", "24", "--temp", "0.9", "--top-k", "30", "--seed", "7"]),
        ),
        (
            json!(9),
            alone(&["-p", "Once upon a time", "-n", "24", "--stop", " was", "--stop", " the"]),
        ),
        (
            json!("t"),
            alone(&[
                "-p",
                "Lily said",
                "-n",
                "24",
                "--temp",
                "1.1",
                "--top-p",
                "0.9",
                "--seed",
                "8",
            ]),
        ),
    ];
    for (id, (text, reason, tokens)) in expected {
        let answer = answer(&answers, &id);
        let keys: Vec<_> = answer.as_object().unwrap().keys().collect();
        assert_eq!(keys, ["id", "text", "tokens", "finish_reason"]);
        assert_eq!((&answer["text"], &answer["finish_reason"]), (&text, &reason), "{id}");
        assert_eq!(answer["tokens"], tokens, "{id}");
    }
    assert_eq!(answer(&answers, &json!(9))["finish_reason"], "stop");
}

#[test]
fn lines_that_cannot_be_answered_are_named_and_the_others_run() {
    let model = model();
    let folder = model.path().to_str().unwrap();
    let long = "x".repeat(300);
    let input = [
        "{\"prompt\": \"the fox\"}".to_owned(),
        "this is no JSON".to_owned(),
        json!({"id": "none"}).to_string(),
        json!({"id": "long", "prompt": long}).to_string(),
        json!({"id": "large", "prompt": "the fox", "max_tokens": 200}).to_string(),
        json!({"id": "chat", "messages": [{"role": "user", "content": "Who?"}]}).to_string(),
        json!({"id": "odd", "messages": [{"role": "user", "content": "Who?"}], "n": 3}).to_string(),
    ];
    let flags = ["generate", "-m", folder, "-n", "5", "--ignore-eos", "--prompts", "-", "--quiet"];
    let run = program(&flags).write_stdin(input.join("\n")).assert().code(1);
    let answers = lines(&run.get_output().stdout);
    assert_eq!(answers.len(), 7, "{answers:?}");
    let messages = String::from_utf8_lossy(&run.get_output().stderr).into_owned();
    let failed = [
        (json!(2), 2, "not JSON"),
        (json!("none"), 3, "no \"prompt\""),
        (json!("long"), 4, "context"),
        (json!("odd"), 7, "unknown field `n`"),
    ];
    for (id, line, message) in failed {
        let answer = answer(&answers, &id);
        let keys: Vec<_> = answer.as_object().unwrap().keys().collect();
        assert_eq!(keys, ["id", "line", "error"]);
        assert_eq!(answer["line"], line);
        let error = answer["error"].as_str().unwrap();
        assert!(error.contains(message), "{error}");
        assert!(messages.contains(&format!("line {line}: {error}")), "{messages}");
    }
    for (id, tokens) in [(json!(1), 5), (json!("chat"), 5), (json!("large"), 200)] {
        assert_eq!(answer(&answers, &id)["tokens"], tokens, "{id}");
    }
}

#[test]
fn prompts_go_through_the_chat_template_where_there_is_one() {
    let model = model();
    let folder = model.path().to_str().unwrap();
    let line = ["generate", "-m", folder, "-n", "9", "--ignore-eos", "--prompts", "-", "-q"];
    let input = [
        json!({"id": "prompt", "prompt": "Who?"}).to_string(),
        json!({"id": "chat", "messages": [{"role": "user", "content": "Who?"}]}).to_string(),
    ];
    let texts = |more: &[&str]| {
        let run = program(&[&line[..], more].concat()).write_stdin(input.join("\n")).assert();
        let answers = lines(&run.success().get_output().stdout);
        ["prompt", "chat"].map(|id| answer(&answers, &id.into())["text"].clone())
    };
    let [prompt, chat] = texts(&[]);
    assert_eq!(prompt, chat);
    let [raw, same] = texts(&["--raw"]);
    assert_eq!(same, chat, "messages are a conversation anyway");
    assert_ne!(raw, chat);
    std::fs::write(model.path().join("tokenizer_config.json"), "{}").unwrap();
    let run = program(&line).write_stdin(input[0].as_str()).assert().success();
    assert_eq!(lines(&run.get_output().stdout)[0]["text"], raw);
}

#[test]
fn what_is_wrong_with_the_whole_is_said_before_anything_is_written() {
    let model = model();
    let folder = model.path().to_str().unwrap();
    let line = ["generate", "-m", folder, "-q"];
    let message = fails(1, &[&line[..], &["--prompts", "/nowhere/in.jsonl"]].concat());
    assert!(message.contains("/nowhere/in.jsonl"), "{message}");
    let before = model.path().join("before.jsonl");
    std::fs::write(&before, "{}").unwrap();
    let output = before.to_str().unwrap();
    let message = fails(1, &[&line[..], &["--prompts", folder, "--output", output]].concat());
    assert!(message.contains(folder), "{message}");
    assert_eq!(std::fs::read_to_string(&before).unwrap(), "{}");
    let input = model.path().join("in.jsonl");
    std::fs::write(&input, "{\"prompt\": \"a\"}\n").unwrap();
    let input = input.to_str().unwrap();
    let same = ["--prompts", input, "--output", input];
    let message = fails(1, &[&line[..], &same].concat());
    assert!(message.contains("give --output another file"), "{message}");
    assert!(Path::new(input).metadata().unwrap().len() > 0);
    let nowhere = ["--prompts", input, "--output", "/nowhere/out.jsonl"];
    let message = fails(1, &[&line[..], &nowhere].concat());
    assert!(message.contains("/nowhere/out.jsonl"), "{message}");
    if Path::new("/dev/full").exists() {
        let full = ["--prompts", input, "--output", "/dev/full"];
        let message = fails(1, &[&line[..], &full].concat());
        assert!(message.contains("/dev/full"), "{message}");
    }
    let new = model.path().join("new.jsonl");
    for output in [output, new.to_str().unwrap()] {
        let files = ["--prompts", input, "--output", output, "--device", "nowhere"];
        let message = fails(1, &[&line[..], &files].concat());
        assert!(message.contains("nowhere"), "{message}");
    }
    assert_eq!(std::fs::read_to_string(&before).unwrap(), "{}");
    assert!(!new.exists(), "a file without answers");
    let drafts = ["--prompts", input, "--draft-model", "nowhere"];
    let message = fails(1, &[&line[..], &drafts].concat());
    assert!(message.contains("nowhere"), "{message}");
    let message = fails(1, &[&line[..], &["--prompts", input, "--stop", ""]].concat());
    assert!(message.contains("--stop"), "{message}");
    fails(2, &[&line[..], &["--prompts", input, "-p", "x"]].concat());
    fails(2, &[&line[..], &["-p", "x", "--output", "y"]].concat());
}

/// The program, on prompts that come through a pipe and are never all there.
#[cfg(unix)]
fn start(folder: &str, flags: &[&str]) -> std::process::Child {
    support::running()
        .args(["generate", "-m", folder, "--prompts", "-", "--ignore-eos"])
        .args(flags)
        .env("IREE_LLM_CACHE_DIR", concat!(env!("CARGO_TARGET_TMPDIR"), "/compiled"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

#[cfg(unix)]
#[test]
fn answers_come_while_the_pipe_is_open_and_ctrl_c_keeps_them() {
    use std::io::{BufRead, BufReader, Read};

    let model = model();
    let config = model.path().join("config.json");
    let text = std::fs::read_to_string(&config).unwrap();
    let longer = "\"max_position_embeddings\": 200000";
    std::fs::write(config, text.replace("\"max_position_embeddings\": 256", longer)).unwrap();
    let mut child = start(model.path().to_str().unwrap(), &["-n", "3"]);
    let mut input = child.stdin.take().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    // One that takes for ever, and others that are answered meanwhile.
    let endless = json!({"id": "endless", "prompt": "x", "max_tokens": 199_000});
    writeln!(input, "{endless}").unwrap();
    for id in 0..2 {
        writeln!(input, "{}", json!({"id": id, "prompt": "the fox"})).unwrap();
        let mut answer = String::new();
        output.read_line(&mut answer).unwrap();
        let answer: Value = serde_json::from_str(&answer).unwrap();
        assert_eq!((&answer["id"], &answer["tokens"]), (&id.into(), &3.into()));
    }
    support::signal("-INT", &child);
    let mut rest = String::new();
    output.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "");
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{output:?}");
    let messages = String::from_utf8_lossy(&output.stderr);
    assert!(messages.contains("answered 2") && messages.contains("not finished: 1"), "{messages}");
}

#[test]
fn more_prompts_than_run_at_a_time_are_all_answered() {
    let model = model();
    let folder = model.path().to_str().unwrap();
    let input: String = (0..150)
        .map(|at| format!("{}\n", json!({"id": at, "prompt": format!("the fox {at}")})))
        .collect();
    let flags = ["generate", "-m", folder, "-n", "4", "--ignore-eos", "--prompts", "-", "-q"];
    let run = program(&flags).write_stdin(input).assert().success();
    let answers = lines(&run.get_output().stdout);
    assert_eq!(answers.len(), 150);
    for at in 0..150 {
        assert_eq!(answer(&answers, &at.into())["tokens"], 4);
    }
}

#[test]
fn answers_to_many_prompts_are_kept_to_a_form() {
    let folder = tempfile::tempdir().unwrap();
    let input = folder.path().join("in.jsonl");
    let prompts: String =
        (0..5).map(|at| json!({"prompt": format!("Who is {at}?")}).to_string() + "\n").collect();
    std::fs::write(&input, prompts).unwrap();
    let ask = ["generate", "-m", TALES, "-q", "-n", "40", "--regex", "(Bram|Pip) is [0-9]\\."];
    let output = program(&ask).arg("--prompts").arg(&input).output().unwrap();
    let answers = lines(&output.stdout);
    assert_eq!(answers.len(), 5);
    for answer in answers {
        let text = answer["text"].as_str().unwrap();
        assert!(
            text.ends_with('.') && (text.starts_with("Bram is ") || text.starts_with("Pip is ")),
            "{text}"
        );
    }
}
