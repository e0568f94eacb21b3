//! The commands that look at things, and the help of all.

mod support;

use support::{fails, json, model, program, succeeds};
use xla_session::cache::{Cache, Key, KeyParts, Kind, Label};
use xla_session::checkpoint::FileStamp;

const COMMANDS: [&str; 21] = [
    "compile",
    "fetch",
    "man",
    "generate",
    "chat",
    "embed",
    "rank",
    "check",
    "bench",
    "quality",
    "emit",
    "convert",
    "quantize",
    "inspect",
    "pull",
    "devices",
    "doctor",
    "cache",
    "run",
    "selftest",
    "completions",
];

#[test]
fn every_command_teaches_by_example() {
    let all = succeeds(&["--help"]);
    for command in COMMANDS {
        assert!(all.contains(&format!("\n  {command} ")), "{all}");
        let help = succeeds(&[command, "--help"]);
        assert!(help.contains("Examples:\n  iree-llm "), "{help}");
        assert!(help.contains("Usage: iree-llm "), "{help}");
    }
    assert!(succeeds(&["--version"]).starts_with("iree-llm "));
}

#[test]
fn completions_know_the_commands() {
    for shell in ["bash", "zsh", "fish"] {
        let script = succeeds(&["completions", shell]);
        assert!(COMMANDS.iter().all(|command| script.contains(command)), "{script}");
    }
}

#[test]
fn every_command_has_a_manual_page() {
    assert!(succeeds(&["man"]).contains(".TH iree-llm 1"));
    let folder = tempfile::tempdir().unwrap();
    succeeds(&["man", folder.path().to_str().unwrap()]);
    for command in COMMANDS {
        let page = folder.path().join(format!("iree-llm-{command}.1"));
        let page = std::fs::read_to_string(&page).unwrap();
        assert!(page.contains("Examples:"), "{page}");
    }
}

#[test]
fn graphs_compiled_ahead_need_no_compiler() {
    let (model, graphs) = (model(), tempfile::tempdir().unwrap());
    let (model, graphs) = (model.path().to_str().unwrap(), graphs.path().to_str().unwrap());
    let generate = ["generate", "-m", model, "--prompt-tokens", "1,2,3", "-n", "8"];
    let without = ["--cache-dir", graphs, "--iree-compile", "/no/such/compiler"];
    let said = program(&[&generate[..], &without].concat()).assert().failure();
    let said = String::from_utf8_lossy(&said.get_output().stderr).into_owned();
    assert!(said.contains("no cache holds"), "{said}");
    let told = succeeds(&["compile", "-m", model, "--target", "cpu", "--cache-dir", graphs]);
    assert!(told.contains("graphs in"), "{told}");
    assert_eq!(succeeds(&[&generate[..], &without].concat()), succeeds(&generate));
}

#[test]
fn inspect_a_model_and_a_file() {
    let model = model();
    let folder = model.path().to_str().unwrap();
    let text = succeeds(&["inspect", folder, "--tensors"]);
    for expected in [
        "llama (LlamaForCausalLM)",
        "263 tokens",
        "256 tokens",
        "11 tensors, F32",
        "BPE, 263 tokens",
        "model.layers.0.mlp.down_proj.weight",
        "[32, 48]",
    ] {
        assert!(text.contains(expected), "{expected} in {text}");
    }
    let text = succeeds(&["inspect", &format!("{folder}/model.safetensors")]);
    assert_eq!(text.lines().count(), 11, "{text}");
    assert!(text.contains("model.embed_tokens.weight") && text.contains("[263, 32]"), "{text}");
    let mut named = program(&["inspect"]);
    let named = named.env("IREE_LLM_MODEL", folder).assert().success();
    assert!(String::from_utf8_lossy(&named.get_output().stdout).contains("263 tokens"));
}

#[test]
fn a_converted_model_is_whole_and_says_the_same() {
    let (model, out) = (model(), tempfile::tempdir().unwrap());
    let (before, after) = (model.path().to_str().unwrap(), out.path().join("new/model"));
    let folder = after.to_str().unwrap();
    let printed = succeeds(&["convert", before, folder, "--dtype", "f32"]);
    assert_eq!(printed.trim_end(), folder);
    for name in ["tokenizer.json", "tokenizer_config.json", "generation_config.json"] {
        assert!(after.join(name).is_file(), "{name}");
    }
    // Nothing beside it.
    assert_eq!(out.path().join("new").read_dir().unwrap().count(), 1);
    let answer = |model: &str| {
        let asked = ["-p", "the fox", "-n", "12", "--raw", "--quiet"];
        succeeds(&[&["generate", "-m", model], &asked[..]].concat())
    };
    assert_eq!(answer(folder), answer(before));

    let said = fails(1, &["convert", before, folder]);
    assert!(said.contains("not empty"), "{said}");
    let said = fails(1, &["convert", "no/such/folder/here", &format!("{folder}-2")]);
    assert!(said.contains("no such file or folder"), "{said}");
    assert_eq!(out.path().join("new").read_dir().unwrap().count(), 1);
}

#[test]
#[cfg(unix)]
fn a_folder_that_is_there_is_filled_wherever_it_is() {
    let (model, out) = (model(), tempfile::tempdir().unwrap());
    let before = model.path().to_str().unwrap();
    write_vectors(model.path());
    let [here, real, link] = ["here", "real", "link"].map(|name| out.path().join(name));
    std::fs::create_dir(&here).unwrap();
    std::fs::create_dir(&real).unwrap();
    std::os::unix::fs::symlink(&real, &link).unwrap();
    program(&["convert", before, "."]).current_dir(&here).assert().success();
    succeeds(&["convert", before, link.to_str().unwrap()]);
    let names = |folder: &std::path::Path| {
        let names = folder.read_dir().unwrap().map(|entry| entry.unwrap().file_name());
        let mut names: Vec<_> = names.map(|name| name.into_string().unwrap()).collect();
        names.sort();
        names
    };
    assert_eq!(names(&here), names(&real));
    for name in ["config.json", "model.safetensors", "modules.json"] {
        assert!(names(&here).iter().any(|it| it == name), "{:?}", names(&here));
    }
    assert!(here.join("1_Pooling/config.json").is_file());
    assert!(!names(&here).iter().any(|it| it.starts_with('.')), "{:?}", names(&here));

    // Of one that cannot be converted nothing is left, and it is the model's file that is named.
    let weights = model.path().join("model.safetensors");
    let mut bytes = std::fs::read(&weights).unwrap();
    let end = bytes.len();
    bytes[end - 4..].copy_from_slice(&1e6_f32.to_le_bytes());
    std::fs::write(&weights, bytes).unwrap();
    let new = out.path().join("new");
    let said = fails(1, &["convert", before, new.to_str().unwrap(), "--dtype", "f16", "-q"]);
    assert!(said.contains(weights.to_str().unwrap()) && said.contains("cannot hold"), "{said}");
    assert!(!new.exists());
}

/// What models of vectors say of them.
fn write_vectors(folder: &std::path::Path) {
    std::fs::create_dir(folder.join("1_Pooling")).unwrap();
    std::fs::write(folder.join("1_Pooling/config.json"), r#"{"pooling_mode_lasttoken": true}"#)
        .unwrap();
    std::fs::write(folder.join("modules.json"), "[]").unwrap();
}

#[test]
fn what_is_wrong_with_a_part_of_a_model_does_not_hide_the_others() {
    let model = model();
    let folder = model.path().to_str().unwrap();
    std::fs::write(model.path().join("tokenizer.json"), "[]").unwrap();
    let run = program(&["inspect", folder, "--tensors"]).assert().code(1);
    let text = String::from_utf8_lossy(&run.get_output().stdout).into_owned();
    let tokenizer = text.lines().find(|line| line.starts_with("tokenizer ")).unwrap();
    assert!(tokenizer.contains("tokenizer.json"), "{text}");
    assert!(text.contains("11 tensors, F32") && text.contains("[32, 48]"), "{text}");

    let config = model.path().join("config.json");
    let said = std::fs::read_to_string(&config).unwrap();
    let said = said.replace("\"llama\"", "\"new\"").replace("LlamaForCausalLM", "NewForCausalLM");
    std::fs::write(&config, said).unwrap();
    let run = program(&["inspect", folder]).assert().code(1);
    let text = String::from_utf8_lossy(&run.get_output().stdout).into_owned();
    let family = text.lines().find(|line| line.starts_with("family ")).unwrap();
    assert!(family.contains("\"new\"") && text.contains("11 tensors, F32"), "{text}");
}

#[test]
#[cfg(feature = "iree")]
fn a_folder_that_cannot_be_checked_is_not_one_with_other_tokens() {
    let (model, none) = (model(), tempfile::tempdir().unwrap());
    let folder = model.path().to_str().unwrap();
    let write = |tokens: &str| {
        let reference = format!("{{\"cases\": [{{\"prompt\": [5], \"tokens\": [{tokens}]}}]}}");
        std::fs::write(model.path().join("reference.json"), reference).unwrap();
    };
    // More tokens than there are: none of them can be it.
    write("1000000");
    let run = program(&["check", "--json", folder]).assert().code(1);
    let checked: serde_json::Value = serde_json::from_slice(&run.get_output().stdout).unwrap();
    assert_eq!(checked[0]["cases"][0]["same"], 0);
    let none = none.path().to_str().unwrap();
    let run = program(&["check", "--json", none, folder]).assert().code(2);
    let checked: serde_json::Value = serde_json::from_slice(&run.get_output().stdout).unwrap();
    assert!(checked[0]["error"].as_str().unwrap().contains("reference.json"), "{checked}");
    assert_eq!(checked[1]["cases"][0]["of"], 1, "the others are checked");
}

#[test]
fn a_quantized_model_runs_and_is_not_overwritten() {
    let (model, out) = (model(), tempfile::tempdir().unwrap());
    let (before, after) = (model.path().to_str().unwrap(), out.path().join("model"));
    let (folder, text) = (after.to_str().unwrap(), out.path().join("text.txt"));
    write_vectors(model.path());
    std::fs::write(&text, "the fox and the crow ".repeat(20)).unwrap();
    let text = text.to_str().unwrap();
    let quantize =
        |text, folder| ["quantize", "-m", before, "--calibrate", text, "-o", folder, "-q"];
    assert_eq!(succeeds(&quantize(text, folder)).trim_end(), folder);
    assert!(after.join("1_Pooling/config.json").is_file() && after.join("modules.json").is_file());
    let shown = succeeds(&["inspect", folder]);
    // Rows of one group. Gate and up have four bits, the ends of the one layer and the embedding eight.
    for counted in ["int4, a scale for each row: 2", "int8, a scale for each row: 5"] {
        assert!(shown.contains(&format!("compressed-tensors {counted}")), "{shown}");
    }
    let line = ["quality", "-m", before, "--with", folder, "--precision", "int4", "-q", "--json"];
    let report = json(&[&line[..], &["-n", "64", "--prompts", "1"]].concat());
    let [_, made] = &report["precisions"].as_array().unwrap()[..] else { panic!("{report}") };
    assert_eq!(made["precision"], folder);
    assert!(made["kl"]["mean"].as_f64().unwrap() > 0.0, "{report}");

    let said = fails(1, &quantize(text, folder));
    assert!(said.contains("not empty"), "{said}");
    let other = out.path().join("other");
    let said = fails(1, &quantize("no/such/text", other.to_str().unwrap()));
    assert!(said.contains("no/such/text") && !other.exists(), "{said}");
}

#[test]
fn emit_describes_every_argument() {
    let model = model();
    let out = tempfile::tempdir().unwrap();
    let folder = out.path().join("graphs");
    let graphs = folder.to_str().unwrap();
    succeeds(&[
        "emit",
        graphs,
        "-m",
        model.path().to_str().unwrap(),
        "--portable",
        "--rows",
        "1,64",
        "--context",
        "100",
    ]);
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap();
    let described: serde_json::Value = serde_json::from_str(&read("arguments.json")).unwrap();
    assert_eq!(described["capacity"], 100);
    let names: Vec<_> = described["graphs"].as_array().unwrap().iter().collect();
    assert_eq!(names.len(), 2);
    let decode = names[0];
    assert_eq!((&decode["file"], &decode["rows"]), (&"decode_step.mlir".into(), &1.into()));
    let sources: Vec<_> = decode["arguments"]
        .as_array()
        .unwrap()
        .iter()
        .map(|argument| argument["source"].as_str().unwrap())
        .collect();
    for source in [
        "tokens",
        "start",
        "keys.0",
        "values.0",
        "model.norm.weight",
        "model.layers.0.self_attn.q_proj.weight",
    ] {
        assert!(sources.contains(&source), "{source} in {sources:?}");
    }
    let results: Vec<_> = decode["results"]
        .as_array()
        .unwrap()
        .iter()
        .map(|result| result["name"].as_str().unwrap())
        .collect();
    assert_eq!(results, ["token", "logits", "keys.0", "values.0"]);
    let text = read("prefill_64.mlir");
    assert!(text.contains("stablehlo.") && !text.contains("iree"), "not portable");
    assert!(folder.join("rope.safetensors").exists());

    // Without --rows those that the context holds.
    let model = model.path().to_str().unwrap();
    let small = out.path().join("small");
    let line = ["emit", small.to_str().unwrap(), "-m", model];
    succeeds(&[&line[..], &["--portable", "--context", "100"]].concat());
    assert!(small.join("prefill_64.mlir").exists() && !small.join("prefill_256.mlir").exists());
    let said = fails(2, &[&line[..], &["--rows", "1"]].concat());
    assert!(said.contains("--portable"), "{said}");
}

#[test]
fn the_cache_is_listed_verified_and_cleared() {
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path().join("cache");
    let run = |action: &[&str]| {
        succeeds(&[&["cache"], action, &["--cache-dir", cache.to_str().unwrap()]].concat())
    };
    assert_eq!(run(&["path"]).trim_end(), cache.to_str().unwrap());
    for action in [&["list"][..], &["verify"], &["clear"], &["clear", "--stale"]] {
        assert_eq!(run(action), "");
    }
    assert!(!cache.exists(), "looking makes no folder");

    let opened = Cache::open(&cache).unwrap();
    let make = |graph: &str, kind: Kind, sources: &[FileStamp]| {
        let parts = KeyParts { graph, flags: &[], target: "", compiler: "", runtime: "" };
        let label = Label {
            kind,
            name: graph.into(),
            model: "tiny".into(),
            sources: sources.into(),
            ..Label::default()
        };
        let found = opened.get_or_make(&Key::new(&parts), &label, |w| w.write(graph.as_bytes()));
        found.unwrap().path
    };
    let gone = FileStamp {
        path: folder.path().join("gone.safetensors"),
        bytes: 1,
        modified: None,
        contents: String::new(),
    };
    make("decode_step", Kind::Graph, &[]);
    let damaged = make("stored", Kind::Weights, &[]);
    make("f32", Kind::Weights, &[gone]);
    let list = run(&["list"]);
    assert_eq!(list.lines().count(), 3, "{list}");
    let line = |name: &str| list.lines().find(|line| line.contains(name)).unwrap();
    for (name, kind, stale) in
        [("decode_step", "graph", false), ("stored", "weights", false), ("f32", "weights", true)]
    {
        assert!(line(name).contains(kind) && line(name).contains("tiny"), "{list}");
        assert_eq!(line(name).contains("stale"), stale, "{list}");
    }

    std::fs::write(&damaged, "STORED").unwrap();
    // What nobody can tell any more what it was.
    let lost = make("lost", Kind::Graph, &[]);
    std::fs::write(lost.with_extension("json"), "{").unwrap();
    let list = run(&["list"]);
    assert_eq!(list.lines().filter(|line| line.contains("damaged")).count(), 1, "{list}");
    let verify = program(&["cache", "verify", "--cache-dir", cache.to_str().unwrap()]);
    let verified = { verify }.assert().code(1).get_output().clone();
    let said = String::from_utf8(verified.stderr).unwrap();
    assert!(said.contains("verifying ("), "{said}");
    let verified = String::from_utf8(verified.stdout).unwrap();
    assert_eq!(verified.matches("good").count(), 2, "{verified}");
    let removed: Vec<_> = verified.lines().filter(|it| it.contains("damaged, removed")).collect();
    assert_eq!(removed.len(), 2, "{verified}");
    assert!(removed[0].contains("stored") && !damaged.exists() && !lost.exists(), "{verified}");
    assert_eq!(run(&["verify"]).lines().count(), 2);

    // Nor is it removed while somebody makes it anew.
    let damaged = make("stored", Kind::Weights, &[]);
    std::fs::write(&damaged, "STORED").unwrap();
    let lock = std::fs::File::create(damaged.with_extension("lock")).unwrap();
    lock.lock().unwrap();
    let verify = program(&["cache", "verify", "--cache-dir", cache.to_str().unwrap()]);
    let verified = { verify }.assert().code(1).get_output().stdout.clone();
    assert!(String::from_utf8(verified).unwrap().contains("damaged, in use"));
    drop(lock);
    opened.clear_if(|it| it.label.name == "stored").unwrap();

    let names = || opened.entries().unwrap().into_iter().map(|it| it.label.name);
    run(&["clear", "--stale"]);
    assert_eq!(names().collect::<Vec<_>>(), ["decode_step"]);
    make("stored", Kind::Weights, &[]);
    run(&["clear", "--weights"]);
    assert_eq!(names().collect::<Vec<_>>(), ["decode_step"]);
    run(&["clear"]);
    assert_eq!(names().count(), 0);
}

#[test]
fn doctor_reports_a_cache_that_cannot_be_written() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    let run = program(&["doctor", "--json", "--cache-dir", file.to_str().unwrap()]);
    let output = { run }.assert().code(1).get_output().stdout.clone();
    let found: serde_json::Value = serde_json::from_slice(&output).unwrap();
    assert_eq!(found["ok"], false);
    let checks = found["checks"].as_array().unwrap();
    let cache = checks.iter().find(|check| check["name"] == "cache").unwrap();
    assert_eq!(cache["state"], "problem");
    assert!(cache["do"].as_str().unwrap().contains("--cache-dir"));
}

#[cfg(feature = "iree")]
#[test]
fn the_addition_is_right() {
    assert_eq!(succeeds(&["selftest"]), "[11, 22, 33, 44]\n");
    let devices = succeeds(&["devices"]);
    assert!(devices.contains("local-task") && devices.contains("local-sync"), "{devices}");
    // And GPUs, or why there are none.
    let cuda = devices.lines().find(|line| line.starts_with("cuda")).unwrap();
    let reasons = ["`cargo xtask fetch-iree --cuda`", "libcuda.so", "no device"];
    assert!(
        cuda.starts_with("cuda://0") || reasons.iter().any(|why| cuda.contains(why)),
        "{devices}"
    );
    let listed: serde_json::Value =
        serde_json::from_str(&succeeds(&["devices", "--json"])).unwrap();
    let listed = listed.as_array().unwrap();
    assert_eq!(listed.len(), devices.lines().count());
    let cpu = listed.iter().find(|it| it["device"] == "local-task").unwrap();
    assert!(cpu["usable"] == true && cpu["gpu"].is_null(), "{cpu}");
    // What computes on the CPU is no GPU, whoever offers it.
    let lavapipe = listed.iter().find(|it| it["description"].to_string().contains("llvmpipe"));
    assert!(lavapipe.is_none_or(|it| it["gpu"].is_null()), "{lavapipe:?}");
    let rate = json(&["devices", "--copy", "local-task", "--json"]);
    assert!(rate["bytes_per_second"].as_f64().unwrap() > 1e6, "{rate}");
}

#[cfg(feature = "iree")]
#[test]
fn a_compiler_that_was_named_is_not_fetched() {
    let message = fails(1, &["selftest", "--iree-compile", "/no/such/compiler"]);
    let lines: Vec<_> = message.lines().collect();
    let [error, fix] = lines[..] else { panic!("{message}") };
    assert!(error.starts_with("error: ") && error.contains("/no/such/compiler"), "{message}");
    assert!(fix.contains("--iree-compile"), "{message}");
    let mut doctor = program(&["doctor", "--json"]);
    let output = doctor.env("IREE_LLM_IREE_COMPILE", "/no/such/compiler").assert().code(1);
    let found: serde_json::Value = serde_json::from_slice(&output.get_output().stdout).unwrap();
    let checks = found["checks"].as_array().unwrap();
    let compiler = checks.iter().find(|check| check["name"] == "compiler").unwrap();
    assert!(compiler["do"].as_str().unwrap().contains("--iree-compile"), "{compiler}");
}

#[cfg(feature = "iree")]
#[test]
fn doctor_is_content_with_a_good_build() {
    let text = succeeds(&["doctor"]);
    for check in ["runtime", "compiler", "driver", "addition", "cache"] {
        assert!(text.contains(&format!("ok       {check}")), "{text}");
    }
    // Of a CPU that is slow here it says so.
    assert!(["ok", "note"].iter().any(|it| text.contains(&format!("{it:<9}cpu"))), "{text}");
}

/// A file of its size is the pulled model to everything but who reads it, and says so.
#[test]
fn the_default_is_the_model_that_was_pulled() {
    let cache = tempfile::tempdir().unwrap();
    let before = support::program(&["inspect"]).env("IREE_LLM_CACHE_DIR", cache.path()).assert();
    before.success().stdout(predicates::str::contains("tiny-tales"));
    let pulled = cache.path().join("models/SmolLM2-135M-Instruct.Q4_1.gguf");
    std::fs::create_dir(pulled.parent().unwrap()).unwrap();
    std::fs::File::create(&pulled).unwrap().set_len(98_362_432).unwrap();
    for arguments in [&["inspect"][..], &["inspect", "smollm2"]] {
        let after = support::program(arguments).env("IREE_LLM_CACHE_DIR", cache.path()).assert();
        after.failure().stderr(predicates::str::contains(pulled.to_str().unwrap()));
    }
    let pull =
        support::program(&["pull", "smollm2"]).env("IREE_LLM_CACHE_DIR", cache.path()).assert();
    pull.success().stdout(format!("{}\n", pulled.display()));
}

#[test]
fn offline_nothing_is_pulled() {
    let cache = tempfile::tempdir().unwrap();
    let mut pull = support::program(&["pull", "smollm2"]);
    pull.env("IREE_LLM_CACHE_DIR", cache.path()).env("IREE_LLM_OFFLINE", "1");
    pull.assert().failure().stderr(predicates::str::contains("IREE_LLM_OFFLINE is set"));
    assert_eq!(cache.path().read_dir().unwrap().count(), 0);
}

#[test]
fn offline_the_compiler_is_taken_from_a_file_that_somebody_brought() {
    let data = tempfile::tempdir().unwrap();
    let wheel = data.path().join("other.whl");
    std::fs::write(&wheel, "not a wheel").unwrap();
    let mut fetch = support::program(&["fetch", "compiler", "--from", wheel.to_str().unwrap()]);
    fetch.env("XDG_DATA_HOME", data.path().join("data")).env("IREE_LLM_OFFLINE", "1");
    // It was looked at, which is all that this file is good for.
    fetch.assert().code(1).stderr(predicates::str::contains("other.whl"));
}

#[test]
fn doctor_looks_at_the_model_that_is_named_and_fetches_none() {
    let cache = tempfile::tempdir().unwrap();
    let checked = |name: &str| {
        let mut doctor = support::program(&["doctor", "--json"]);
        doctor.env("IREE_LLM_CACHE_DIR", cache.path()).env("HF_HOME", cache.path());
        let output = doctor.env("IREE_LLM_MODEL", name).output().unwrap();
        let found: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let checks = found["checks"].as_array().unwrap();
        checks.iter().find(|check| check["name"] == "model").unwrap().clone()
    };
    let folder = support::model();
    let good = checked(folder.path().to_str().unwrap());
    assert_eq!(good["state"], "ok", "{good}");
    for absent in ["no such model", "smollm2", "some/model"] {
        let bad = checked(absent);
        assert_eq!(bad["state"], "problem", "{bad}");
        assert!(bad["found"].as_str().unwrap().contains(absent), "{bad}");
    }
}

#[test]
fn what_cannot_be_pulled_is_told_what_can() {
    let error = support::fails(1, &["pull", "no such model"]);
    for part in ["no such model", "smollm2", "owner/name"] {
        assert!(error.contains(part), "{part}: {error}");
    }
}
