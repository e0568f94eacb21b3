//! Vectors of texts.
#![cfg(feature = "iree")]

mod support;

use std::fs;

use support::{fails, model, program, succeeds};

/// The lines that `arguments` print.
fn embedded(arguments: &[&str]) -> Vec<serde_json::Value> {
    let output = succeeds(arguments);
    output.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn vector(line: &serde_json::Value) -> Vec<f64> {
    line["embedding"].as_array().unwrap().iter().map(|it| it.as_f64().unwrap()).collect()
}

#[test]
fn a_text_has_its_vector_in_any_company_and_form() {
    let model = model();
    let folder = model.path().to_str().unwrap();
    let together = embedded(&["embed", "-q", "-m", folder, "abc", "a longer text", "abc"]);
    let alone = embedded(&["embed", "-q", "-m", folder, "a longer text"]);
    assert_eq!(together.len(), 3);
    assert_eq!(together[1]["embedding"], alone[0]["embedding"]);
    assert_eq!(together[0]["embedding"], together[2]["embedding"]);
    assert_ne!(together[0]["embedding"], together[1]["embedding"]);
    assert_eq!(together[1]["index"], 1);
    for line in &together {
        let length: f64 = vector(line).iter().map(|x| x * x).sum();
        assert!((length - 1.0).abs() < 1e-5, "{length}");
    }

    // The folder says how, and flags say it differently.
    fs::create_dir(model.path().join("1_Pooling")).unwrap();
    let pooling = model.path().join("1_Pooling/config.json");
    fs::write(&pooling, r#"{"pooling_mode_mean_tokens": true}"#).unwrap();
    fs::write(model.path().join("modules.json"), "[]").unwrap();
    let mean = embedded(&["embed", "-q", "-m", folder, "a longer text"]);
    let length: f64 = vector(&mean[0]).iter().map(|x| x * x).sum();
    assert!((length - 1.0).abs() > 1e-3, "not normalized: {length}");
    let last = embedded(&["embed", "-q", "-m", folder, "--pooling", "last", "a longer text"]);
    let (last, alone) = (vector(&last[0]), vector(&alone[0]));
    let length = last.iter().map(|x| x * x).sum::<f64>().sqrt();
    for (last, alone) in last.iter().zip(&alone) {
        assert!((last / length - alone).abs() < 1e-6, "{last} {alone}");
    }

    let file = model.path().join("texts.txt");
    fs::write(&file, "abc\na longer text\n").unwrap();
    let npy = model.path().join("vectors.npy");
    let [file, to] = [&file, &npy].map(|path| path.to_str().unwrap());
    succeeds(&["embed", "-q", "-m", folder, "--file", file, "-o", to]);
    let bytes = fs::read(&npy).unwrap();
    let header = String::from_utf8_lossy(&bytes[10..128]).into_owned();
    assert!(bytes.starts_with(b"\x93NUMPY\x01\x00"));
    let width = mean[0]["embedding"].as_array().unwrap().len();
    assert!(header.contains(&format!("'shape': (2, {width})")), "{header}");
    let data = &bytes[bytes.len() - width * 4..];
    let last_row: Vec<f32> =
        data.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    let expected: Vec<f32> = vector(&mean[0]).iter().map(|&x| x as f32).collect();
    assert_eq!(last_row, expected);
}

#[test]
fn the_folders_prompts_go_before_texts_and_vectors_may_be_cut() {
    let model = model();
    let folder = model.path().to_str().unwrap();
    let embed = |more: &[&str]| {
        embedded(&[&["embed", "-q", "-m", folder][..], more].concat()).swap_remove(0)
    };
    let (plain, asked) = (embed(&["abc"]), embed(&["find: abc"]));
    let prompts = model.path().join("config_sentence_transformers.json");
    fs::write(&prompts, r#"{"prompts": {"query": "find: "}, "default_prompt_name": null}"#)
        .unwrap();
    assert_eq!(embed(&["abc"]), plain);
    assert_eq!(embed(&["--prompt-name", "query", "abc"]), asked);
    let said = fails(1, &["embed", "-m", folder, "--prompt-name", "passage", "abc"]);
    assert!(said.contains("it has query"), "{said}");
    fs::write(&prompts, r#"{"prompts": {"query": "find: "}, "default_prompt_name": "query"}"#)
        .unwrap();
    assert_eq!(embed(&["abc"]), asked);
    assert_eq!(embed(&["--prefix", "", "abc"]), plain);

    let short = embed(&["--prefix", "", "--dimensions", "3", "abc"]);
    let (short, plain) = (vector(&short), vector(&plain));
    let length = plain[..3].iter().map(|x| x * x).sum::<f64>().sqrt();
    assert_eq!(short.len(), 3);
    assert!(short.iter().zip(&plain).all(|(a, b)| (a - b / length).abs() < 1e-6), "{short:?}");
    let said = fails(1, &["embed", "-m", folder, "--dimensions", "99", "abc"]);
    assert!(said.contains("have 32"), "{said}");

    // A mean without the prompt is another.
    fs::create_dir(model.path().join("1_Pooling")).unwrap();
    let pooling = model.path().join("1_Pooling/config.json");
    fs::write(&pooling, r#"{"pooling_mode": "mean", "include_prompt": false}"#).unwrap();
    let said = fails(1, &["embed", "-m", folder, "abc"]);
    assert!(said.contains("include_prompt"), "{said}");
    embed(&["--prefix", "", "abc"]);
}

#[test]
fn flags_may_follow_texts() {
    let model = model();
    let line = ["embed", "-q", "-m", model.path().to_str().unwrap(), "abc"];
    let cut = embedded(&[&line[..], &["--dimensions", "3"]].concat());
    assert_eq!((cut.len(), vector(&cut[0]).len()), (1, 3));
    assert_eq!(embedded(&[&line[..], &["--", "-1", "--dimensions"]].concat()).len(), 3);
    let message = fails(2, &[&line[..], &["--dimension", "3"]].concat());
    assert!(message.contains("--dimension"), "{message}");
}

#[test]
fn a_line_that_gets_no_vector_is_named_and_the_others_have_theirs() {
    let model = model();
    let folder = model.path().to_str().unwrap();
    let file = model.path().join("texts.txt");
    fs::write(&file, [&b"abc\n"[..], &b"x".repeat(300), b"\n\xff\nabc\r\n"].concat()).unwrap();
    let line = ["embed", "-q", "-m", folder, "--file", file.to_str().unwrap()];
    let run = program(&line).assert().code(1);
    let output = run.get_output();
    let lines: Vec<serde_json::Value> = String::from_utf8_lossy(&output.stdout)
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(lines.len(), 4, "{lines:?}");
    assert_eq!(lines[0]["embedding"], lines[3]["embedding"]);
    for (index, what) in [(1, "context"), (2, "UTF-8")] {
        let error = lines[index]["error"].as_str().unwrap();
        assert!(error.contains(what), "{error}");
        let named = format!("texts.txt: line {}: {error}", index + 1);
        assert!(said.contains(&named), "{named} in {said}");
    }
    // In an array rows are those of the lines.
    let npy = model.path().join("vectors.npy");
    program(&[&line[..], &["-o", npy.to_str().unwrap()]].concat()).assert().code(1);
    let bytes = fs::read(&npy).unwrap();
    assert!(String::from_utf8_lossy(&bytes[10..128]).contains("'shape': (4, 32)"));
    let rows: Vec<_> = bytes[128..].chunks(4 * 32).collect();
    assert!(rows.len() == 4 && rows[0] == rows[3] && rows[0] != rows[1]);
    assert!(rows[1].as_chunks().0.iter().all(|bytes| f32::from_le_bytes(*bytes).is_nan()));
}

#[test]
fn what_is_wrong_with_the_output_is_said_before_anything_is_written() {
    let model = model();
    let folder = model.path().to_str().unwrap();
    let file = model.path().join("texts.txt");
    fs::write(&file, "abc\n").unwrap();
    let texts = file.to_str().unwrap();
    // Whoever gets to the device has come too far.
    let line = ["embed", "-q", "-m", folder, "--device", "nowhere", "--file", texts];
    let said = fails(1, &[&line[..], &["-o", texts]].concat());
    assert!(said.contains("that is the input"), "{said}");
    assert_eq!(fs::read_to_string(&file).unwrap(), "abc\n");
    let said = fails(1, &[&line[..], &["-o", "/nowhere/vectors.npy"]].concat());
    assert!(said.contains("/nowhere/vectors.npy"), "{said}");
    let before = model.path().join("before.jsonl");
    fs::write(&before, "{}").unwrap();
    let said = fails(1, &[&line[..], &["-o", before.to_str().unwrap()]].concat());
    assert!(said.contains("nowhere"), "{said}");
    assert_eq!(fs::read_to_string(&before).unwrap(), "{}");
    let new = model.path().join("new.npy");
    fails(1, &[&line[..], &["-o", new.to_str().unwrap()]].concat());
    assert!(!new.exists(), "a file without results");
}

#[test]
fn without_texts_the_output_keeps_what_it_has() {
    let model = model();
    let (folder, out) = (model.path().to_str().unwrap(), model.path().join("old.npy"));
    fs::write(&out, "old").unwrap();
    let nothing = model.path().join("nothing.txt");
    fs::write(&nothing, "").unwrap();
    for (texts, why) in [(&nothing, "no text"), (&model.path().to_owned(), folder)] {
        let texts = texts.to_str().unwrap();
        let message = fails(1, &["embed", "-m", folder, "-f", texts, "-o", out.to_str().unwrap()]);
        assert!(message.contains(why), "{message}");
        assert_eq!(fs::read_to_string(&out).unwrap(), "old");
    }
}

/// A pipe that never ends: what is done is written, and Ctrl-C keeps it.
#[cfg(unix)]
#[test]
fn vectors_are_written_as_they_come_and_stay_after_an_interrupt() {
    use std::io::{BufRead, BufReader, Write};
    use std::process::Stdio;

    let model = model();
    let npy = model.path().join("vectors.npy");
    let start = |more: &[&str]| {
        let mut command = support::running();
        command.args(["embed", "-q", "-m", model.path().to_str().unwrap(), "--file", "-"]);
        command.args(more).stdin(Stdio::piped()).stdout(Stdio::piped());
        command.env("IREE_LLM_CACHE_DIR", concat!(env!("CARGO_TARGET_TMPDIR"), "/compiled"));
        command.env("IREE_LLM_NO_WEIGHTS_CACHE", "1").spawn().unwrap()
    };
    let mut running = start(&[]);
    let mut stdin = running.stdin.take().unwrap();
    let mut lines = BufReader::new(running.stdout.take().unwrap()).lines();
    for index in 0..3 {
        writeln!(stdin, "a text").unwrap();
        let line: serde_json::Value =
            serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
        assert_eq!(line["index"], index);
    }
    support::signal("-INT", &running);
    assert_eq!(running.wait().unwrap().code(), Some(130));
    assert!(lines.next().is_none());

    let mut running = start(&["-o", npy.to_str().unwrap()]);
    let mut stdin = running.stdin.take().unwrap();
    writeln!(stdin, "a text\nanother").unwrap();
    let whole = 128 + 2 * 32 * 4;
    while fs::metadata(&npy).map_or(0, |it| it.len()) < whole {
        assert!(running.try_wait().unwrap().is_none(), "it ends by itself");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    support::signal("-INT", &running);
    assert_eq!(running.wait().unwrap().code(), Some(130));
    let bytes = fs::read(&npy).unwrap();
    assert!(String::from_utf8_lossy(&bytes[10..128]).contains("'shape': (2, 32)"));
    assert_eq!(bytes.len() as u64, whole);
}

#[test]
fn an_encoder_takes_whole_texts_and_makes_no_tokens() {
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../xla-session/tests/encoders/bert-f32");
    let long = "w60 ".repeat(400);
    let texts = ["w20 w30", &long, "w20 w30 w40"];
    let flags = ["embed", "-q", "-m", model, "--truncate"];
    let lines = embedded(&[&flags[..], &texts].concat());
    assert_eq!(lines.iter().map(|it| &it["tokens"]).collect::<Vec<_>>(), [4, 320, 5]);
    for (line, text) in lines.iter().zip(texts) {
        assert_eq!(vector(&embedded(&[&flags[..], &[text]].concat())[0]), vector(line));
    }
    let written = program(&[&flags[..4], &texts].concat()).assert().code(1);
    let message = String::from_utf8_lossy(&written.get_output().stderr).into_owned();
    assert!(message.contains("text 2") && message.contains("402"), "{message}");
    for command in [&["generate", "--raw", "-p", "w20"][..], &["bench", "-p", "5", "-n", "3"]] {
        let message = fails(1, &[command, &["-m", model]].concat());
        assert!(message.contains("encoder"), "{message}");
    }
}
