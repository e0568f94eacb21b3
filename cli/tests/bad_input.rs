//! Bad input: one clear message that names the file, key or flag, and nothing on stdout.

mod support;

use std::fs;

use support::{fails, model, program};

#[test]
fn unknown_names_list_the_known_ones() {
    for (flag, known) in [("--precision=int3", "stored, f32"), ("--load-mode=slurp", "mmap, read")]
    {
        let message = fails(2, &["generate", flag]);
        assert!(message.contains(known), "{message}");
        assert!(message.contains(flag.split('=').next().unwrap()), "{message}");
    }
}

#[test]
fn variables_are_checked_as_their_flags_are() {
    let run = program(&["generate"]).env("IREE_LLM_PRECISION", "int3").assert().code(2);
    let message = String::from_utf8_lossy(&run.get_output().stderr).into_owned();
    assert!(message.contains("--precision") && message.contains("stored, f32"), "{message}");
}

/// Who gets as far as the model has a line that is understood.
#[cfg(unix)]
#[test]
fn flags_go_before_variables_of_those_that_they_exclude() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("socket");
    let socket = socket.to_str().unwrap();
    let variables = [
        ("IREE_LLM_HOST", "0.0.0.0"),
        ("IREE_LLM_PORT", "1"),
        ("IREE_LLM_TLS_CERT", "/nowhere/cert"),
        ("IREE_LLM_TLS_KEY", "/nowhere/key"),
    ];
    let line = ["serve", "-m", "no/such/model/here"];
    let says = |line: &[&str], variables: &[(&str, &str)]| {
        let output = program(line).envs(variables.iter().copied()).assert().code(1);
        let message = String::from_utf8_lossy(&output.get_output().stderr).into_owned();
        assert!(message.contains("no/such/model/here"), "{message}");
    };
    says(&[&line[..], &["--socket", socket]].concat(), &variables);
    says(&[&line[..], &["--port", "0"]].concat(), &[("IREE_LLM_SOCKET", socket)]);
    let message = fails(2, &[&line[..], &["--socket", socket, "--port", "0"]].concat());
    assert!(message.contains("--socket") && message.contains("--port"), "{message}");
    let help = |variables: &[(&str, &str)]| {
        let run = program(&["serve", "--help"]).envs(variables.iter().copied()).assert().success();
        String::from_utf8(run.get_output().stdout.clone()).unwrap()
    };
    assert!(help(&variables).contains("[env: IREE_LLM_HOST=0.0.0.0]"), "{}", help(&variables));
}

#[test]
fn an_empty_variable_is_none() {
    let line = ["serve", "--port", "0", "-m", "no/such/model/here"];
    let mut serve = program(&line);
    for name in ["OTEL_EXPORTER_OTLP_ENDPOINT", "IREE_LLM_HOST", "IREE_LLM_API_KEY_FILE"] {
        serve.env(name, "");
    }
    serve.assert().code(1).stderr(predicates::str::contains("no/such/model/here"));
    let path = |folder: Option<&str>| {
        let mut command = program(&["cache", "path"]);
        command.env_remove("IREE_LLM_CACHE_DIR").envs(folder.map(|it| ("IREE_LLM_CACHE_DIR", it)));
        command.assert().success().get_output().stdout.clone()
    };
    assert_eq!(path(Some("")), path(None));
}

#[test]
fn a_server_drafts_as_many_tokens_as_it_is_told() {
    let line = ["serve", "--port", "0", "-m", "no/such/model/here", "--speculate"];
    for drafts in ["4", "auto", "off"] {
        fails(1, &[&line[..], &[drafts]].concat());
    }
    assert!(fails(2, &[&line[..], &["256"]].concat()).contains("auto, off"));
}

#[test]
fn flags_are_checked_before_anything_is_opened() {
    for arguments in [
        ["generate", "--threads=0"],
        ["generate", "--context=none"],
        ["generate", "--temp=-1"],
        ["generate", "--prompt-tokens=5,x"],
        ["generate", "--prompt-tokens="],
        ["generate", "--prompt-tokens=-5"],
        ["generate", "--no-such-flag"],
        ["no-such-command", ""],
        ["completions", "tcl"],
        ["emit", "--rows=7"],
        ["quality", "--prompts=9223372036854775808"],
        ["bench", "--prompt=18446744073709551615"],
    ] {
        let message = fails(2, &arguments);
        assert!(message.starts_with("error:"), "{message}");
    }
    let message = fails(2, &["compile", "--target", "x86-64", "--no-cache"]);
    assert!(message.contains("--no-cache"), "{message}");
    fails(2, &["generate", "-p", "a", "--prompt-tokens", "5"]);
    fails(2, &["generate", "--chat", "--prompt-tokens", "5"]);
}

#[test]
fn a_model_that_is_not_there() {
    for name in ["./no/such/model", "nosuchmodel", "/nowhere"] {
        let message = fails(1, &["generate", "-m", name, "-p", "x"]);
        assert!(message.starts_with("error: ") && message.contains(name), "{message}");
    }
    let empty = tempfile::tempdir().unwrap();
    let message = fails(1, &["generate", "-m", empty.path().to_str().unwrap(), "-p", "x"]);
    assert!(message.contains("config.json"), "{message}");
}

#[test]
fn damaged_model_files_are_named() {
    type Damage = fn(&std::path::Path);
    let cases: [(&str, Damage); 5] = [
        ("config.json", |folder| fs::write(folder.join("config.json"), "{").unwrap()),
        ("no_such_family", |folder| {
            let path = folder.join("config.json");
            let text = fs::read_to_string(&path).unwrap();
            let text = text.replace("\"llama\"", "\"no_such_family\"");
            fs::write(path, text.replace("LlamaForCausalLM", "NoSuchForCausalLM")).unwrap();
        }),
        ("tokenizer.json", |folder| fs::remove_file(folder.join("tokenizer.json")).unwrap()),
        ("tokenizer.json", |folder| fs::write(folder.join("tokenizer.json"), "[]").unwrap()),
        ("model.safetensors", |folder| {
            let path = folder.join("model.safetensors");
            let bytes = fs::read(&path).unwrap();
            fs::write(path, &bytes[..bytes.len() - 4]).unwrap();
        }),
    ];
    for (named, damage) in cases {
        let model = model();
        damage(model.path());
        let message = fails(1, &["generate", "-m", model.path().to_str().unwrap(), "-p", "x"]);
        // An engine that is not built in cannot look at the weights.
        if cfg!(feature = "iree") || named != "model.safetensors" {
            assert!(message.contains(named), "{message}");
        }
    }
}

#[test]
fn prompts_that_cannot_be_used() {
    let model = model();
    let folder = model.path().to_str().unwrap();
    let message = fails(1, &["generate", "-m", folder, "-p", ""]);
    assert!(message.contains("the prompt is empty"), "{message}");
    program(&["generate", "-m", folder, "-p", "-"]).write_stdin("").assert().code(1);
    // What fills a pipe had nothing to say, and wants no story.
    let message = fails(1, &["generate", "-m", folder, "--system", "Summarise."]);
    assert!(message.contains("stdin is empty"), "{message}");
    let message = fails(2, &["generate", "-m", folder, "-p", "x", "--echo", "--json"]);
    assert!(message.contains("--echo") && message.contains("--json"), "{message}");
    for json in ["0", "1"] {
        let mut no = program(&["generate", "-p", "", "--echo"]);
        let no = no.env("IREE_LLM_JSON", json).assert().code(1);
        let message = String::from_utf8_lossy(&no.get_output().stderr).into_owned();
        assert!(message.contains("the prompt is empty"), "{message}");
    }
    let message = fails(1, &["generate", "-m", folder, "--prompt-file", "no/such/file"]);
    assert!(message.contains("no/such/file"), "{message}");
    let message = fails(1, &["generate", "-m", folder, "-p", "x", "--stop", ""]);
    assert!(message.contains("--stop"), "{message}");
    let message = fails(1, &["generate", "-m", "no/such/model", "-p", "x", "--stop", ""]);
    assert!(message.contains("--stop"), "before anything is fetched: {message}");

    let config = folder.to_owned() + "/tokenizer_config.json";
    fs::write(&config, r#"{"chat_template": "{% if %}"}"#).unwrap();
    let message = fails(1, &["generate", "-m", folder, "-p", "x"]);
    assert!(message.contains("chat template: ") && message.contains("--raw"), "{message}");
    fs::write(config, "{}").unwrap();
    let message = fails(1, &["generate", "-m", folder, "--chat", "-p", "x"]);
    assert!(message.contains("chat template") && message.contains("--raw"), "{message}");
    let message = fails(1, &["chat", "-m", folder]);
    assert!(message.contains("chat template"), "{message}");
}

#[cfg(feature = "iree")]
#[test]
fn what_only_the_engine_can_refuse() {
    let model = model();
    let generate = |more: &[&str]| {
        let folder = model.path().to_str().unwrap();
        fails(1, &[&["generate", "-m", folder, "-n", "2"], more].concat())
    };
    let message = generate(&["--prompt-tokens", "5,100000"]);
    assert!(message.contains("100000") && message.contains("vocabulary"), "{message}");
    let message = generate(&["-p", "a long one", "--context", "4"]);
    assert!(message.contains("context of 4") && message.contains("256"), "{message}");
    let message = generate(&["-p", "x", "--context", "1000"]);
    assert!(message.contains("256"), "{message}");
    let message = generate(&["-p", "x", "--device", "abacus"]);
    assert!(message.contains("abacus") && message.contains("local-task"), "{message}");
    let message = generate(&["-p", "x", "--no-cache", "--iree-compile", "/no/such/compiler"]);
    assert!(message.contains("/no/such/compiler"), "{message}");
}

#[cfg(feature = "iree")]
#[test]
fn without_a_gpu_one_sentence_says_so() {
    use iree_rt::cuda;

    let Err(expected) = cuda::available() else { return };
    let model = model();
    let folder = model.path().to_str().unwrap();
    for command in [&["generate", "-p", "x"][..], &["bench"]] {
        for device in ["cuda", "cuda://0"] {
            let message = fails(1, &[command, &["-m", folder, "--device", device]].concat());
            assert!(message.contains(expected.message()), "{message}");
            assert_eq!(message.trim_end().lines().count(), 1, "{message}");
        }
    }
    // The same program still runs on the CPU.
    let text = support::succeeds(&["generate", "-m", folder, "-p", "x", "-n", "2", "-q"]);
    assert!(!text.is_empty());
}

#[cfg(feature = "iree")]
#[test]
fn files_that_inspect_cannot_read() {
    let folder = tempfile::tempdir().unwrap();
    for (name, bytes) in [("a.vmfb", &b"none"[..]), ("a.safetensors", b"12345"), ("a.txt", b"")] {
        let path = folder.path().join(name);
        fs::write(&path, bytes).unwrap();
        let message = fails(1, &["inspect", path.to_str().unwrap()]);
        assert!(message.contains(name), "{message}");
    }
}

#[cfg(not(feature = "iree"))]
#[test]
fn a_build_without_the_engine_says_how_to_get_one() {
    let model = model();
    let folder = model.path().to_str().unwrap();
    let message = fails(1, &["generate", "-m", folder, "-p", "x"]);
    assert!(message.contains("built without iree") && message.contains("fetch-iree"), "{message}");
    let message = fails(1, &["selftest"]);
    assert!(message.contains("fetch-iree"), "{message}");
    let message = fails(1, &["devices"]);
    assert!(message.contains("fetch-iree"), "{message}");
}
