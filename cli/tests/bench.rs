//! `iree-llm bench` on a tiny model.

mod support;

use serde_json::Value;
use support::{fails, json, model, succeeds};

/// A cache of its own, so that the first start has something to compile.
fn line<'a>(folder: &'a str, cache: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [&["bench", "-m", folder, "--cache-dir", cache, "--threads", "2", "-q"], more].concat()
}

#[test]
fn tests_depths_and_a_second_start_that_compiles_nothing() {
    let (model, cache) = (model(), tempfile::tempdir().unwrap());
    let (folder, cache) = (model.path().to_str().unwrap(), cache.path().to_str().unwrap());
    let more = ["-p", "5,40", "-n", "3", "-d", "0,16", "--pg", "20,2", "-r", "3", "--json"];
    let runs = json(&line(folder, cache, &more));
    let [run] = &runs.as_array().unwrap()[..] else { panic!("{runs}") };
    let tests = run["tests"].as_array().unwrap();
    let names: Vec<_> = tests
        .iter()
        .map(|test| format!("{}@{}", test["test"].as_str().unwrap(), test["depth"]))
        .collect();
    assert_eq!(
        names,
        [
            "pp5@0", "pp40@0", "tg3@0", "pp20@0", "tg2@20", "pp5@16", "pp40@16", "tg3@16",
            "pp20@16", "tg2@36"
        ]
    );
    for test in tests {
        let seconds: Vec<_> =
            test["seconds"].as_array().unwrap().iter().map(|it| it.as_f64().unwrap()).collect();
        assert_eq!(seconds.len(), 3, "{test}");
        let rate = &test["tokens_per_second"];
        let fastest = seconds.iter().copied().fold(f64::INFINITY, f64::min);
        let expected = test["tokens"].as_f64().unwrap() / fastest;
        assert!((rate["max"].as_f64().unwrap() / expected - 1.0).abs() < 1e-9, "{test}");
        assert!(rate["min"].as_f64() <= rate["median"].as_f64(), "{test}");
        let generated = test["test"].as_str().unwrap().starts_with("tg");
        assert_eq!(test["step_seconds"].is_null(), !generated, "{test}");
        assert_eq!(test["next_token"].is_null(), generated, "{test}");
    }
    assert_eq!((run["threads"].as_u64(), run["precision"].as_str()), (Some(2), Some("stored")));
    assert!(run["start"]["compiled_graphs"].as_u64().unwrap() > 0, "{run}");
    let start = |key: &str| run["start"][key].as_f64().unwrap();
    assert!(start("ready_s") >= start("load_s") + start("compile_s"), "{run}");
    assert!(start("first_token_s") > start("ready_s"), "{run}");
    if cfg!(target_os = "linux") {
        let memory = |key: &str| run["memory"][key].as_u64().unwrap();
        assert!(memory("weights") <= memory("load_peak"), "{run}");
        assert!(memory("load_peak") <= memory("peak"), "{run}");
    }

    let again = json(&line(folder, cache, &["-p", "5", "-n", "0", "-r", "1", "--json"]));
    assert_eq!(again[0]["start"]["compiled_graphs"], 0, "{again}");
    assert_eq!(again[0]["tests"][0]["next_token"], tests[0]["next_token"], "{again}");
}

#[test]
fn several_precisions_have_a_process_each_and_rows_in_one_table() {
    let (model, cache) = (model(), tempfile::tempdir().unwrap());
    let (folder, cache) = (model.path().to_str().unwrap(), cache.path().to_str().unwrap());
    let more = ["-p", "8", "-n", "2", "-r", "1", "--precision", "stored,f32"];
    let text = succeeds(&line(folder, cache, &more));
    for row in ["| stored ", "| f32 "] {
        let tests = text.lines().filter(|line| line.starts_with(row)).count();
        assert_eq!(tests, 3, "two tests and a start: {text}");
    }
    assert!(text.contains("tok/s") && text.contains("| pp8 ") && text.contains("| tg2 "), "{text}");

    let runs = json(&line(folder, cache, &[&more[..], &["--json"]].concat()));
    let names: Vec<_> = runs.as_array().unwrap().iter().map(|run| &run["precision"]).collect();
    assert_eq!(names, [&Value::from("stored"), &Value::from("f32")]);
    // The model is stored in float32: both are the same size.
    assert_eq!(runs[0]["memory"]["weights"], runs[1]["memory"]["weights"]);
}

/// As a terminal sends it, to all of them, and as `kill` does, to the one that was named.
#[cfg(unix)]
#[test]
fn ctrl_c_keeps_what_is_measured() {
    use std::io::{BufRead, BufReader, Read};
    use std::os::unix::process::CommandExt;
    use std::process::Stdio;

    let (model, cache) = (model(), tempfile::tempdir().unwrap());
    let folder = model.path().to_str().unwrap();
    // More than anybody waits for, so that the signal comes in between.
    let precisions = format!("stored{}", ",f32".repeat(500));
    for to in ["-", ""] {
        let mut bench = support::running()
            .args(["bench", "-m", folder, "--cache-dir", cache.path().to_str().unwrap()])
            .args(["-p", "8", "-n", "0", "-r", "1", "--json", "--precision", &precisions])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
            .unwrap();
        let mut messages = BufReader::new(bench.stderr.take().unwrap());
        let mut line = String::new();
        while !line.starts_with("f32 ") {
            line.clear();
            assert!(messages.read_line(&mut line).unwrap() > 0, "it ended");
        }
        let target = format!("{to}{}", bench.id());
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", "kill -s INT -- \"$0\"", &target]);
        assert!(shell.status().unwrap().success());
        let mut rest = String::new();
        messages.read_to_string(&mut rest).unwrap();
        let output = bench.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(130), "{rest}");
        let runs: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(runs[0]["precision"], "stored");
        assert!(runs.as_array().unwrap().len() < 500 && !rest.contains("error"), "{rest}");
    }
}

#[test]
fn a_profile_says_what_ran_and_leaves_its_events() {
    let (model, cache) = (model(), tempfile::tempdir().unwrap());
    let (folder, cache) = (model.path().to_str().unwrap(), cache.path().to_str().unwrap());
    let file = model.path().join("bench.ireeprof");
    let more = ["-p", "40", "-n", "3", "--profile", file.to_str().unwrap()];
    let text = succeeds(&line(folder, cache, &more));
    assert!(text.contains("pp40: ") && text.contains("tg3: "), "{text}");
    assert!(text.contains("one of 3 passes") && text.contains("| between dispatches "), "{text}");

    let runs = json(&line(folder, cache, &[&more[..], &["--json"]].concat()));
    assert!(runs[0]["tests"].as_array().unwrap().is_empty(), "rates beside a profile are none");
    for breakdown in runs[0]["breakdowns"].as_array().unwrap() {
        let number = |value: &Value| value.as_f64().unwrap();
        let dispatches = breakdown["dispatches"].as_array().unwrap();
        assert!(dispatches.len() > 3, "{breakdown}");
        for cost in dispatches {
            let calls = number(&cost["calls"]);
            assert!(calls >= 1.0 && calls.fract() == 0.0, "every pass runs the same: {cost}");
        }
        assert!(number(&breakdown["submitted_s"]) <= number(&breakdown["seconds"]), "{breakdown}");
        assert_eq!(breakdown["dropped"], 0, "{breakdown}");
    }
    let bytes = std::fs::read(&file).unwrap();
    assert_eq!(bytes[..4], *b"IRPF");

    let precisions = ["--precision", "stored,f32"];
    let message = fails(1, &line(folder, cache, &[&more[..], &precisions].concat()));
    assert!(message.contains("--profile takes one precision"), "{message}");
}

#[test]
fn what_cannot_be_measured_is_said_before_anything_is() {
    let model = model();
    let folder = model.path().to_str().unwrap();
    let message = fails(1, &["bench", "-m", folder, "-p", "0", "-n", "0"]);
    assert!(message.contains("nothing to measure"), "{message}");
    let message = fails(1, &["bench", "-m", folder, "-q", "-p", "300", "-n", "0"]);
    assert!(message.contains("pp300 needs 300 tokens, but the context holds 256"), "{message}");
    let message =
        fails(1, &["bench", "-m", folder, "-q", "--context", "64", "-p", "60", "-d", "8"]);
    assert!(message.contains("--context"), "{message}");
    let message = fails(2, &["bench", "-m", folder, "--precision", "stored,f8"]);
    assert!(message.contains("f8") && message.contains("stored, f32"), "{message}");
    let message = fails(2, &["bench", "-m", folder, "--pg", "5"]);
    assert!(message.contains("2048,32"), "{message}");
}

#[cfg(feature = "iree")]
fn spread(value: &Value) {
    let [median, min, max] = ["median", "min", "max"].map(|key| value[key].as_f64().unwrap());
    assert!(0.0 < min && min <= median && median <= max, "{value}");
}

#[cfg(feature = "iree")]
#[test]
fn sequences_together_are_measured_for_every_number_of_them() {
    let (model, cache) = (model(), tempfile::tempdir().unwrap());
    let (folder, cache) = (model.path().to_str().unwrap(), cache.path().to_str().unwrap());
    let more = ["--parallel", "1,3", "-p", "70", "-n", "4", "-r", "2"];
    let runs = json(&line(folder, cache, &[&more[..], &["--json"]].concat()));
    let [run] = &runs.as_array().unwrap()[..] else { panic!("{runs}") };
    assert_eq!((&run["precision"], &run["threads"]), (&"stored".into(), &2.into()));
    let together = run["parallel"].as_array().unwrap();
    for (it, sequences) in together.iter().zip([1, 3]) {
        assert_eq!(it["sequences"], sequences);
        assert_eq!((&it["prompt"], &it["generate"]), (&70.into(), &4.into()));
        spread(&it["tokens_per_second_prompt"]);
        spread(&it["tokens_per_second_decode"]);
    }
    assert_eq!(together.len(), 2);

    let precisions = ["--precision", "stored,f32"];
    let text = succeeds(&line(folder, cache, &[&more[..], &precisions].concat()));
    for row in ["| stored ", "| f32 "] {
        assert_eq!(text.lines().filter(|line| line.starts_with(row)).count(), 2, "{text}");
    }
    // 128 tokens each unless -p says otherwise; the model takes 256.
    let defaults = json(&line(folder, cache, &["--parallel", "2", "-r", "1", "--json"]));
    assert_eq!(defaults[0]["parallel"][0]["prompt"], 128, "{defaults}");
    assert_eq!(defaults[0]["parallel"][0]["generate"], 128, "{defaults}");

    let message = fails(1, &line(folder, cache, &["--parallel", "2", "-p", "250", "-n", "7"]));
    assert!(message.contains("257 tokens") && message.contains("256"), "{message}");
    let message = fails(1, &line(folder, cache, &["--parallel", "300", "-p", "1", "-n", "1"]));
    assert!(message.contains("300 sequences"), "{message}");
    let message = fails(1, &line(folder, cache, &["--parallel", "2", "-n", "0"]));
    assert!(message.contains("nothing to measure"), "{message}");
    fails(2, &line(folder, cache, &["--parallel", "2", "--depth", "5"]));
}

#[cfg(feature = "iree")]
#[test]
fn answers_of_every_length_are_measured_with_drafts_and_without() {
    let (model, cache) = (model(), tempfile::tempdir().unwrap());
    let config = model.path().join("config.json");
    let text = std::fs::read_to_string(&config).unwrap();
    let longer = "\"max_position_embeddings\": 512";
    std::fs::write(config, text.replace("\"max_position_embeddings\": 256", longer)).unwrap();
    let (folder, cache) = (model.path().to_str().unwrap(), cache.path().to_str().unwrap());
    let more = ["--speculate", "-n", "4,0,9", "-r", "1"];
    let runs = json(&line(folder, cache, &[&more[..], &["--json"]].concat()));
    let measured = runs[0]["speculation"].as_array().unwrap();
    let what: Vec<_> =
        measured.iter().map(|it| (it["text"].as_str().unwrap(), &it["tokens"])).collect();
    let (four, nine) = (&Value::from(4), &Value::from(9));
    assert_eq!(
        what,
        [("repeating", four), ("random", four), ("repeating", nine), ("random", nine)]
    );
    let text = succeeds(&line(folder, cache, &more));
    assert_eq!(text.lines().filter(|line| line.starts_with("| stored ")).count(), 4, "{text}");
    let message = fails(1, &line(folder, cache, &["--speculate", "-n", "4,300"]));
    assert!(message.contains("556 tokens"), "{message}");
    let message = fails(1, &line(folder, cache, &["--speculate", "-n", "1"]));
    assert!(message.contains("nothing to measure"), "{message}");
}

#[cfg(feature = "iree")]
#[test]
fn a_shared_prefix_is_measured_beside_its_parts() {
    let (model, cache) = (model(), tempfile::tempdir().unwrap());
    let (folder, cache) = (model.path().to_str().unwrap(), cache.path().to_str().unwrap());
    let more = ["--shared-prefix", "128,5,6", "-r", "3"];
    let runs = json(&line(folder, cache, &[&more[..], &["--json"]].concat()));
    let it = &runs[0]["shared_prefix"];
    let shape = ["common", "own", "requests"].map(|key| it[key].as_u64().unwrap());
    assert_eq!(shape, [128, 5, 6], "{runs}");
    spread(&it["all_first_tokens_seconds"]);
    spread(&it["one_prompt_and_own_tokens_seconds"]);
    let text = succeeds(&line(folder, cache, &more));
    assert!(text.contains("| stored ") && text.contains("128") && text.contains("ratio"), "{text}");

    let message = fails(2, &line(folder, cache, &["--shared-prefix", "128,5"]));
    assert!(message.contains("1024,32,16"), "{message}");
    let message = fails(1, &line(folder, cache, &["--shared-prefix", "250,7,2"]));
    assert!(message.contains("257 tokens"), "{message}");
}
