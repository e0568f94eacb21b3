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
    let message = fails(1, &["generate", "-m", folder, "-p", "x", "--echo", "--json"]);
    assert!(message.contains("--echo") && message.contains("--json"), "{message}");
    let no = program(&["generate", "-p", "", "--echo"]).env("IREE_LLM_JSON", "0").assert().code(1);
    let message = String::from_utf8_lossy(&no.get_output().stderr).into_owned();
    assert!(message.contains("the prompt is empty"), "{message}");
    let message = fails(1, &["generate", "-m", folder, "--prompt-file", "no/such/file"]);
    assert!(message.contains("no/such/file"), "{message}");
    let message = fails(1, &["generate", "-m", folder, "-p", "x", "--stop", ""]);
    assert!(message.contains("--stop"), "{message}");

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
