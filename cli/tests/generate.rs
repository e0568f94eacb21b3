//! Generating and talking with the tiny model, on whichever engine is built in.
#![cfg(feature = "iree")]

mod support;

use std::process::Stdio;

use serde_json::Value;
use support::{json, model, program, succeeds};

fn keys(value: &Value) -> Vec<&str> {
    value.as_object().unwrap().keys().map(String::as_str).collect()
}

#[test]
fn json_has_exactly_these_fields() {
    let model = model();
    let folder = model.path().to_str().unwrap();
    let report = json(&[
        "generate",
        "-m",
        folder,
        "--prompt-tokens",
        "5,17,23",
        "-n",
        "6",
        "--ignore-eos",
        "--json",
    ]);
    assert_eq!(
        keys(&report),
        [
            "prompt_tokens",
            "tokens",
            "text",
            "finish_reason",
            "drafts",
            "timings",
            "peak_bytes",
            "model",
            "device",
            "precision"
        ]
    );
    assert_eq!(
        keys(&report["timings"]),
        ["load_s", "compile_s", "ttft_s", "prefill_n", "prefill_s", "decode_n", "decode_s"]
    );
    assert_eq!(report["prompt_tokens"], serde_json::json!([5, 17, 23]));
    assert_eq!(report["tokens"].as_array().unwrap().len(), 6);
    assert_eq!(report["finish_reason"], "length");
    assert_eq!(report["timings"]["prefill_n"], 3);
    assert_eq!(report["timings"]["decode_n"], 5);
    assert_eq!((&report["model"], &report["precision"]), (&folder.into(), &"stored".into()));
    assert!(report["text"].is_string());

    // Ids need no tokenizer.
    std::fs::remove_file(model.path().join("tokenizer.json")).unwrap();
    let again = json(&[
        "generate",
        "-m",
        folder,
        "--prompt-tokens",
        "5, 17, 23",
        "-n",
        "6",
        "--ignore-eos",
        "--json",
        "--precision",
        "f32",
    ]);
    assert_eq!(again["text"], Value::Null);
    assert_eq!(again["tokens"], report["tokens"]);
    assert_eq!(again["precision"], "f32");
    let ids = succeeds(&[
        "generate",
        "-m",
        folder,
        "--prompt-tokens",
        "5,17,23",
        "-n",
        "6",
        "--ignore-eos",
        "-q",
    ]);
    let ids: Vec<u32> = ids.trim_end().split(',').map(|id| id.parse().unwrap()).collect();
    assert_eq!(serde_json::json!(ids), report["tokens"]);
}

#[test]
fn what_stands_between_two_texts_is_filled_in() {
    let model = model();
    let folder = model.path().to_str().unwrap();
    let flags = ["generate", "-m", folder, "-p", "the fox", "-n", "12", "--ignore-eos"];
    let unmarked = support::fails(1, &[&flags[..], &["--suffix", " ran"]].concat());
    assert!(unmarked.contains("no marks for filling in"), "{unmarked}");

    support::mark(model.path());
    let marks = "<|fim_prefix|>the fox<|fim_suffix|> ran<|fim_middle|>";
    let written = ["generate", "-m", folder, "--raw", "-p", marks, "-n", "12", "--ignore-eos"];
    let written = json(&[&written[..], &["--json"]].concat());
    let between = [&flags[..], &["--suffix", " ran"]].concat();
    let report = json(&[&between[..], &["--json"]].concat());
    assert_eq!(report["prompt_tokens"], written["prompt_tokens"]);
    assert_eq!(report["tokens"], written["tokens"]);

    let text = report["text"].as_str().unwrap();
    let echo = succeeds(&[&between[..], &["--echo"]].concat());
    assert_eq!(echo, format!("the fox{text} ran\n"));
    // Files are taken as they are, to their last line's end; either may be stdin.
    let file = model.path().join("suffix.txt");
    std::fs::write(&file, " ran").unwrap();
    let of_file = [&flags[..], &["--json", "--suffix-file", file.to_str().unwrap()]].concat();
    assert_eq!(json(&of_file)["tokens"], report["tokens"]);
    let of_stdin = [&flags[..], &["--suffix-file", "-"]].concat();
    let run = program(&of_stdin).write_stdin(" ran").assert().success();
    assert_eq!(run.get_output().stdout, format!("{text}\n").as_bytes());
    let twice = ["generate", "-m", folder, "-p", "-", "--suffix-file", "-"];
    assert!(support::fails(1, &twice).contains("both be stdin"));
    let alone =
        ["generate", "-m", folder, "-n", "3", "--json", "--suffix", "\n", "--prompt-file", "-"];
    let run = program(&alone).write_stdin("a\n").assert().success();
    let report: Value = serde_json::from_slice(&run.get_output().stdout).unwrap();
    let line = "<|fim_prefix|>a\n<|fim_suffix|>\n<|fim_middle|>";
    let written = json(&["generate", "-m", folder, "--raw", "-p", line, "-n", "3", "--json"]);
    assert_eq!(report["prompt_tokens"], written["prompt_tokens"]);

    let many = "{\"prompt\": \"the fox\", \"suffix\": \" ran\"}\n";
    let run = ["generate", "-m", folder, "-n", "12", "--ignore-eos", "--prompts", "-"];
    let run = program(&run).write_stdin(many).assert().success();
    let answer: Value = serde_json::from_slice(&run.get_output().stdout).unwrap();
    assert_eq!(answer["text"], text);
}

#[test]
fn stdout_is_the_text_and_stderr_the_rest() {
    let model = model();
    let folder = model.path().to_str().unwrap();
    let flags = ["generate", "-m", folder, "--raw", "-p", "the fox", "-n", "12", "--ignore-eos"];
    let report = json(&[&flags[..], &["--json"]].concat());
    let run = program(&flags).assert().success();
    let output = run.get_output();
    let text = report["text"].as_str().unwrap().to_owned() + "\n";
    assert_eq!(String::from_utf8(output.stdout.clone()).unwrap(), text);
    let summary = String::from_utf8(output.stderr.clone()).unwrap();
    assert!(summary.contains("first token") && summary.contains("tok/s"), "{summary}");

    let quiet = program(&[&flags[..], &["--quiet"]].concat()).assert().success();
    assert!(quiet.get_output().stderr.is_empty());
    let echo = succeeds(&[&flags[..], &["--echo"]].concat());
    assert_eq!(echo, format!("the fox{text}"));
    // One BOS, from the post-processor.
    assert_eq!(report["prompt_tokens"][0], support::fixture::BOS);
    assert_ne!(report["prompt_tokens"][1], support::fixture::BOS);
}

#[test]
fn prompts_come_from_a_file_or_a_pipe() {
    let model = model();
    let folder = model.path().to_str().unwrap();
    let file = model.path().join("prompt.txt");
    std::fs::write(&file, "the fox\n").unwrap();
    let flags = ["generate", "-m", folder, "-n", "8", "-q", "--ignore-eos"];
    let given = succeeds(&[&flags[..], &["-p", "the fox"]].concat());
    let read = succeeds(&[&flags[..], &["--prompt-file", file.to_str().unwrap()]].concat());
    assert_eq!(read, given);
    std::fs::write(&file, "\u{feff}the fox\r\n").unwrap();
    let marked = succeeds(&[&flags[..], &["--prompt-file", file.to_str().unwrap()]].concat());
    assert_eq!(marked, given, "what Windows' editors put around a text is no part of it");
    for more in [&["-p", "-"][..], &["--prompt-file", "-"], &[]] {
        let run = program(&[&flags[..], more].concat()).write_stdin("the fox\n").assert();
        assert_eq!(String::from_utf8_lossy(&run.success().get_output().stdout), given);
    }
    // Nothing given: a story, and where it is gone on with, its beginning included.
    let asked = succeeds(&[&flags[..], &["-p", "Tell me a story."]].concat());
    let nothing = |more: &[&str]| {
        let mut command = support::running();
        command.args(flags).args(more).stdin(Stdio::null());
        command.env("IREE_LLM_CACHE_DIR", concat!(env!("CARGO_TARGET_TMPDIR"), "/compiled"));
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    };
    assert_eq!(nothing(&[]), asked);
    let story = nothing(&["--raw"]);
    assert!(story.starts_with("Once upon a time"), "{story}");
}

#[test]
fn a_prompt_goes_through_the_chat_template_where_there_is_one() {
    let model = model();
    let folder = model.path().to_str().unwrap();
    let flags = ["generate", "-m", folder, "-p", "Who?", "-n", "4", "--ignore-eos", "--json"];
    let prompt = |more: &[&str]| json(&[&flags[..], more].concat())["prompt_tokens"].clone();
    let (answered, raw) = (prompt(&[]), prompt(&["--raw"]));
    assert_eq!(answered, prompt(&["--chat"]));
    assert_eq!(answered[1], support::fixture::TURN);
    assert_eq!(raw.as_array().unwrap().len(), 1 + "Who?".len());
    assert_eq!(prompt(&["--raw", "--chat"]), answered, "the last one counts");
    assert_eq!(prompt(&["--chat", "--raw"]), raw);

    let echo = ["generate", "-m", folder, "-p", "Who?", "-n", "1", "--echo", "-q"];
    assert!(succeeds(&echo).starts_with("Who?\n\n"));

    std::fs::write(model.path().join("tokenizer_config.json"), "{}").unwrap();
    assert_eq!(prompt(&[]), raw);
}

#[test]
fn the_model_of_this_repository_answers_and_goes_on() {
    let tales = concat!(env!("CARGO_MANIFEST_DIR"), "/../models/tiny-tales");
    let flags = ["generate", "-m", tales, "-q", "-n", "30"];
    let answer = succeeds(&[&flags[..], &["-p", "Tell me a story about a fox."]].concat());
    assert!(answer.contains("fox"), "{answer}");
    let story = succeeds(&[&flags[..], &["--raw", "-p", "The little fox"]].concat());
    assert!(story.trim().len() > 30, "{story}");
}

#[test]
fn a_seed_repeats_itself_and_stop_strings_end_the_text() {
    let model = model();
    let folder = model.path().to_str().unwrap();
    let flags =
        ["generate", "-m", folder, "-p", "the", "-n", "24", "--ignore-eos", "--temp", "1.5"];
    let sampled = |seed: &str| json(&[&flags[..], &["--json", "--seed", seed]].concat());
    let (one, two) = (sampled("1"), sampled("2"));
    assert_eq!(sampled("1")["tokens"], one["tokens"]);
    assert_ne!(two["tokens"], one["tokens"]);
    // A character of the text is a stop string that certainly comes.
    let text = one["text"].as_str().unwrap();
    let (at, stop) = text.char_indices().find(|it| it.0 > 3 && it.1 != '\u{fffd}').unwrap();
    let at = text[..at].find(stop).unwrap_or(at);
    let ended =
        json(&[&flags[..], &["--json", "--seed", "1", "--stop", &stop.to_string()]].concat());
    assert_eq!(ended["finish_reason"], "stop");
    assert_eq!(ended["text"], text[..at]);
}

#[test]
fn the_context_ends_the_text() {
    let model = model();
    let folder = model.path().to_str().unwrap();
    let report = json(&[
        "generate",
        "-m",
        folder,
        "--prompt-tokens",
        "5,17",
        "--context",
        "8",
        "--ignore-eos",
        "--json",
    ]);
    assert_eq!(report["finish_reason"], "context");
    // The last token is known, but not in the context any more.
    assert_eq!(report["tokens"].as_array().unwrap().len(), 7);
}

#[test]
fn a_second_run_compiles_nothing() {
    let model = model();
    let folder = model.path().to_str().unwrap();
    let flags = ["generate", "-m", folder, "-p", "x", "-n", "1", "--json"];
    json(&flags);
    let run = program(&flags).assert().success();
    let messages = String::from_utf8_lossy(&run.get_output().stderr).into_owned();
    assert!(!messages.contains("compiled "), "{messages}");
}

#[test]
fn chat_answers_each_line_and_keeps_the_conversation() {
    let model = model();
    let folder = model.path().to_str().unwrap();
    let run = program(&["chat", "-m", folder, "-n", "5", "--system", "Be kind."])
        .write_stdin("Who?\n/help\n\n/nonsense\nWhy?\n/reset\nWho?\n/exit\nnever read\n")
        .assert()
        .success();
    let output = run.get_output();
    let messages = String::from_utf8_lossy(&output.stderr);
    let prefills: Vec<usize> = messages
        .lines()
        .filter_map(|line| line.split_once("prefill ")?.1.split(' ').next()?.parse().ok())
        .collect();
    assert_eq!(prefills.len(), 3, "{messages}");
    assert!(prefills[1] < prefills[0], "the second turn is shorter: {prefills:?}");
    assert_eq!(prefills[2], 1, "what was said before the reset is still known");
    assert!(messages.contains("/nonsense: no such command"), "{messages}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("/reset"));
}

/// What is read from a pipe is not prompted for, on whatever terminal; and chance is another one after a reset, but
/// where a seed was given.
#[test]
fn chat_writes_answers_alone_and_others_after_a_reset() {
    let model = model();
    let folder = model.path().to_str().unwrap();
    let answers = |more: &[&str]| {
        let flags = ["chat", "-m", folder, "-q", "-n", "12", "--temp", "1"];
        let mut run = program(&[&flags[..], more].concat());
        let run = run.env("TERM", "dumb").write_stdin("Who?\n/reset\nWho?\n").assert().success();
        String::from_utf8(run.get_output().stdout.clone()).unwrap()
    };
    let twice = |text: &str| {
        let (first, second) = text.as_bytes().split_at(text.len() / 2);
        first == second
    };
    let chance = answers(&[]);
    assert!(!chance.starts_with("> ") && !chance.contains("\n> "), "{chance:?}");
    assert!(!twice(&chance), "{chance:?}");
    let seeded = answers(&["--seed", "7"]);
    assert!(twice(&seeded), "{seeded:?}");
}

/// Quietly, as of any program, and not with a code that a command has an answer in.
#[cfg(unix)]
#[test]
fn a_reader_that_leaves_ends_the_program() {
    let model = model();
    let folder = model.path().to_str().unwrap();
    for line in [&["generate", "-p", "x", "-n", "9", "-m", folder][..], &["inspect", folder]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let child = support::running()
            .args(line)
            .env("IREE_LLM_CACHE_DIR", concat!(env!("CARGO_TARGET_TMPDIR"), "/compiled"))
            .stdin(Stdio::null())
            .stdout(writer)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let output = child.wait_with_output().unwrap();
        let messages = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(141), "{output:?}");
        assert!(!messages.contains("error"), "{messages}");
    }
}

/// The program, at an answer that nobody sees the end of, and its model.
#[cfg(unix)]
fn endless(flags: &[&str]) -> (std::process::Child, tempfile::TempDir) {
    let model = model();
    let config = model.path().join("config.json");
    let text = std::fs::read_to_string(&config).unwrap();
    let text =
        text.replace("\"max_position_embeddings\": 256", "\"max_position_embeddings\": 200000");
    std::fs::write(config, text).unwrap();
    let folder = model.path().to_str().unwrap();
    let child = support::running()
        .args(["generate", "-m", folder, "-p", "x", "-n", "200000", "--ignore-eos"])
        .args(flags)
        .env("IREE_LLM_CACHE_DIR", concat!(env!("CARGO_TARGET_TMPDIR"), "/compiled"))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    (child, model)
}

#[cfg(unix)]
#[test]
fn ctrl_c_ends_the_text_and_keeps_the_result() {
    use std::io::Read;

    let (mut child, _model) = endless(&[]);
    let mut stdout = child.stdout.take().unwrap();
    stdout.read_exact(&mut [0; 20]).unwrap();
    support::signal("-INT", &child);
    let mut rest = Vec::new();
    stdout.read_to_end(&mut rest).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{output:?}");
    assert_eq!(rest.last(), Some(&b'\n'));
    let messages = String::from_utf8_lossy(&output.stderr);
    assert!(messages.contains("tok/s"), "the summary is still printed: {messages}");
}

#[test]
fn a_question_that_does_not_fit_leaves_the_conversation_as_it_was() {
    let model = model();
    let folder = model.path().to_str().unwrap();
    let long = "x".repeat(400);
    let lines = format!("Who?\n{long}\nWhy?\n");
    let said = |lines: &str| {
        let run = program(&["chat", "-m", folder, "-n", "5"])
            .write_stdin(lines.to_owned())
            .assert()
            .success();
        let output = run.get_output();
        (output.stdout.clone(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (answers, messages) = said(&lines);
    assert!(messages.contains("/reset begins anew"), "{messages}");
    assert_eq!(answers, said("Who?\nWhy?\n").0);
}

#[cfg(unix)]
#[test]
fn ctrl_c_is_why_an_answer_ended() {
    // Nothing shows when it has begun, and before that Ctrl-C ends the program.
    let outputs = [1, 4, 16].into_iter().map(|seconds| {
        let (child, _model) = endless(&["--json"]);
        std::thread::sleep(std::time::Duration::from_secs(seconds));
        support::signal("-INT", &child);
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(130), "{output:?}");
        output.stdout
    });
    let report = outputs.into_iter().find(|it| !it.is_empty()).expect("it answers within seconds");
    let report: Value = serde_json::from_slice(&report).unwrap();
    assert_eq!(report["finish_reason"], "interrupted");
    let tokens = report["tokens"].as_array().unwrap().len();
    assert!(tokens > 1 && !report["text"].as_str().unwrap().is_empty());
    assert_eq!(report["timings"]["decode_n"], tokens - 1);
    assert!(report["timings"]["prefill_n"].as_u64().unwrap() > 0);
}

#[test]
fn a_smaller_model_drafts_and_the_tokens_are_the_same() {
    let ask = ["generate", "-m", TALES, "-p", "A fox lived", "-n", "60", "--json", "-q"];
    let more = ["--speculate", "4", "--draft-model", TALES];
    for chance in [&[][..], &["--temp", "0.8", "--seed", "3"]] {
        let plain = json(&[&ask[..], &["--speculate", "off"], chance].concat());
        let drafted = json(&[&ask[..], &more, chance].concat());
        assert_eq!(drafted["tokens"], plain["tokens"]);
        assert_eq!(plain["drafts"]["drafted"], 0);
        let count = |name: &str| drafted["drafts"][name].as_u64().unwrap();
        assert!(2 * count("accepted") > count("drafted"), "{}", drafted["drafts"]);
    }
    // Of another vocabulary; and where nothing is drafted, nobody asks what would.
    let model = model();
    let folder = model.path().to_str().unwrap();
    let other = ["generate", "-m", TALES, "-p", "x", "-n", "2", "--draft-model", folder];
    let message = support::fails(1, &other);
    assert!(message.contains("--draft-model") && message.contains("vocabulary"), "{message}");
    for more in [["--speculate", "off"], ["--regex", "a|b"]] {
        succeeds(&[&other[..], &more].concat());
    }
}

const TALES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../models/tiny-tales");

#[test]
fn an_answer_is_kept_to_the_form_that_flags_say() {
    let ask = ["generate", "-m", TALES, "-q", "-p", "Who lived under the leaves?", "-n", "80"];
    let told = |flags: &[&str]| {
        let output = program(&[&ask[..], flags].concat()).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        (output.status.success(), text, String::from_utf8(output.stderr).unwrap())
    };
    let schema = serde_json::json!({
        "type": "object", "required": ["name", "age"], "additionalProperties": false,
        "properties": {"name": {"type": "string", "maxLength": 12},
                       "age": {"type": "integer", "minimum": 0, "maximum": 99}},
    });
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("schema.json");
    std::fs::write(&file, schema.to_string()).unwrap();
    for given in [&*schema.to_string(), file.to_str().unwrap()] {
        let (good, text, error) = told(&["--json-schema", given]);
        let value: Value = serde_json::from_str(&text).unwrap_or_else(|_| panic!("{text}{error}"));
        assert!(good && value["name"].is_string() && value["age"].is_u64(), "{text}");
    }
    // Drawn, too.
    for seed in ["1", "2"] {
        let (_, text, _) =
            told(&["--regex", "(blue|green) [0-9]{3}", "--temp", "2", "--seed", seed]);
        let (colour, number) = text.trim_end().split_once(' ').unwrap();
        assert!(["blue", "green"].contains(&colour), "{text}");
        assert!(number.len() == 3 && number.bytes().all(|it| it.is_ascii_digit()), "{text}");
    }
    std::fs::write(&file, "start: \"yes\" | \"no\"").unwrap();
    let (_, text, _) = told(&["--grammar", file.to_str().unwrap()]);
    assert!(["yes\n", "no\n"].contains(&&*text), "{text}");

    for (flags, what) in [
        (&["--json-schema", "{\"type\": \"animal\"}"][..], "--json-schema cannot be kept to"),
        (&["--json-schema", "{\"type\""], "--json-schema"),
        (&["--json-schema", "no/such/file"], "no/such/file"),
        (&["--grammar", "-"], "read from a file"),
        (&["--regex", "("], "--regex cannot be kept to"),
        (&["--regex", "a", "--ignore-eos"], "forms have an end"),
        (&["--regex", "a", "--json-schema", "{}"], "cannot be used with"),
    ] {
        let (good, _, error) = told(flags);
        assert!(!good && error.contains(what), "{flags:?}: {error}");
    }
}
