//! The script of `cargo xtask gpu-check`, on the CPU: what it does where a GPU is, with less. And on a device
//! of Vulkan, where there is one that computes on the CPU.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

const PROGRAM: &str = env!("CARGO_BIN_EXE_iree-llm");

const BUNDLED: [(&str, &str); 3] = [
    ("xtask/src/gpu_check/run.py", "run.py"),
    ("xtask/src/gpu_check/hf.py", "peers/hf.py"),
    ("xtask/src/gpu_check/models/tiny.json", "models/tiny/config.json"),
];

/// A bundle as xtask makes it, of one fixture and without compiled graphs.
fn bundle(folder: &Path, reference: impl FnOnce(String) -> String) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let copy = |from: &Path, to: &str| {
        let to = folder.join(to);
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::copy(from, to).unwrap();
    };
    for (from, to) in BUNDLED {
        copy(&root.join(from), to);
    }
    let fixture = root.join("xla-session/tests/fixtures/llama-mha-f32");
    for name in ["config.json", "generation_config.json", "model.safetensors", "reference.json"] {
        copy(&fixture.join(name), &format!("fixtures/llama-mha-f32/{name}"));
    }
    let path = folder.join("fixtures/llama-mha-f32/reference.json");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(path, reference(text)).unwrap();
    fs::create_dir(folder.join("bin")).unwrap();
    #[cfg(unix)]
    std::os::unix::fs::symlink(PROGRAM, folder.join("bin/iree-llm")).unwrap();
}

/// A bundle whose program, without a device, lists `devices`.
#[cfg(unix)]
fn bundle_with(folder: &Path, devices: &Value) {
    use std::os::unix::fs::PermissionsExt;
    bundle(folder, |text| text);
    let program = folder.join("bin/iree-llm");
    fs::remove_file(&program).unwrap();
    fs::write(&program, format!("#!/bin/sh\ncat <<END\n{devices}\nEND\n")).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
}

fn check(folder: &Path, out: &Path, parts: &str) -> (bool, String) {
    check_on(&["--device", "local-task"], folder, out, parts)
}

fn check_on(device: &[&str], folder: &Path, out: &Path, parts: &str) -> (bool, String) {
    let mut command = Command::new("python3");
    command.arg(folder.join("run.py")).arg(out).args(device).args(["--part", parts]);
    // Found before those that may be installed.
    command.env("PYTHONPATH", folder.join("packages"));
    let output = command.output().expect("python3");
    let text = [output.stdout, output.stderr].map(|it| String::from_utf8_lossy(&it).into_owned());
    (output.status.success(), text.concat())
}

#[test]
#[cfg(all(unix, feature = "iree"))]
fn the_script_checks_measures_and_writes_its_table() {
    let (folder, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    bundle(folder.path(), |text| text);
    let parts = "device,tests,exact,copy,speed-1b-stored,parallel-1b-stored";
    let (_, text) = check(folder.path(), out.path(), parts);
    assert!(
        text.contains(
            "==> local-task: tests\n    failed: the bundle holds no test programs of cuda"
        ),
        "{text}"
    );
    // What earlier calls left stays.
    let (success, text) = check(folder.path(), out.path(), "exact,llama-1b,table");
    assert!(success, "{text}");
    let table = fs::read_to_string(out.path().join("local-task/table.md")).unwrap();
    for expected in [
        "a check of the script, no figures",
        "Exactness, f32, 1, 8, 32 sequences together: 1 models, 4 prompts: every token is the",
        "| iree-llm stored |",
        "sequences together, tokens a second in total\n\n| | 1 | 8 | 32 |",
        "GB/s (read and written)",
        "- tests: the bundle holds no test programs",
        "- llama-1b: llama.cpp's model is of one size",
        "tg to eager | tg to compiled | pp to eager | tg to llama | pp to llama |",
    ] {
        assert!(table.contains(expected), "{expected}: {table}");
    }
    let results: Value =
        serde_json::from_slice(&fs::read(out.path().join("local-task/results.json")).unwrap())
            .unwrap();
    let together = results["parallel-1b-stored"]["parallel"].as_array().unwrap();
    let sequences: Vec<_> = together.iter().map(|it| it["sequences"].as_u64().unwrap()).collect();
    assert_eq!(sequences, [1, 8, 32]);
    let tests = results["speed-1b-stored"]["tests"].as_array().unwrap();
    let names: Vec<_> = tests.iter().map(|test| test["test"].as_str().unwrap()).collect();
    assert_eq!(names, ["pp64", "tg8", "tg8"]);
    // 2 layers of 64 x 96, and the tied head: what a token reads, in bf16.
    let layer = 2 * 64 * 64 + 2 * 64 * 16 + 3 * 64 * 96;
    assert_eq!(results["speed-1b-stored"]["bytes_per_token"], 2 * (2 * layer + 64 * 416));
}

#[test]
#[cfg(all(unix, feature = "iree"))]
fn wrong_tokens_are_an_error_and_missing_parts_are_not() {
    let (folder, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    bundle(folder.path(), |text| {
        let mut reference: Value = serde_json::from_str(&text).unwrap();
        let token = &mut reference["cases"][1]["tokens"][7];
        *token = (token.as_u64().unwrap() ^ 1).into();
        reference.to_string()
    });
    let (success, text) = check(folder.path(), out.path(), "exact,table");
    assert!(!success, "{text}");
    assert!(text.contains("llama-mha-f32 after 17, 1 together: 7 of 48"), "{text}");
    let (success, text) = check(folder.path(), out.path(), "llama-1b");
    assert!(success, "{text}");
    let (success, text) = check(folder.path(), out.path(), "speed-9b");
    assert!(!success && text.contains("unknown part speed-9b; known: device"), "{text}");
}

/// Of a shape whose tokens on the CPU the bundle brings.
#[test]
#[cfg(all(unix, feature = "iree"))]
fn tokens_after_measured_prompts_are_compared() {
    let (folder, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    bundle(folder.path(), |text| text);
    let reference = folder.path().join("models/tiny/reference.json");
    let table = || fs::read_to_string(out.path().join("local-task/table.md")).unwrap();
    fs::write(&reference, r#"{"stored": {"pp64": 416}}"#).unwrap();
    let (success, text) = check(folder.path(), out.path(), "speed-1b-stored,table");
    assert!(!success, "{text}");
    let said = table();
    let (_, said) = said.split_once("stored: **wrong tokens** after pp64: ").expect("it says so");
    let (token, rest) = said.split_once(", not 416").unwrap();
    assert!(rest.starts_with('.'), "{rest}");
    fs::write(&reference, format!(r#"{{"stored": {{"pp64": {token}}}}}"#)).unwrap();
    let (success, text) = check(folder.path(), out.path(), "speed-1b-stored,table");
    assert!(success, "{text}");
    assert!(table().contains("stored: the tokens after pp64 are the CPU's."), "{}", table());
}

/// Every part of a run is tried, and what is missing is said where its figures would be.
#[test]
#[cfg(all(unix, feature = "iree"))]
fn a_run_goes_on_where_a_part_fails() {
    let (folder, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    bundle(folder.path(), |text| text);
    let packages = folder.path().join("packages");
    fs::create_dir(&packages).unwrap();
    fs::write(packages.join("torch.py"), "raise ImportError('there is no torch')").unwrap();
    // No configuration for the measured shape, a peer that is not installed, one that cannot be.
    fs::remove_dir_all(folder.path().join("models")).unwrap();
    let parts = "device,exact,speed-1b-int8,eager-1b,compiled-1b,llama-1b,copy,table";
    let (success, text) = check(folder.path(), out.path(), parts);
    assert!(success, "{text}");
    let table = fs::read_to_string(out.path().join("local-task/table.md")).unwrap();
    for expected in [
        "Exactness, f32, 1, 8, 32 sequences together: 1 models, 4 prompts: every token is the",
        "GB/s (read and written)",
        "Not measured:\n",
        "- speed-1b-int8: error: ",
        "- eager-1b: ImportError: there is no torch",
        "- compiled-1b: ImportError: there is no torch",
        "- llama-1b: llama.cpp's model is of one size",
    ] {
        assert!(table.contains(expected), "{expected}: {table}");
    }
    // Without the program nothing can be shown to be exact.
    fs::remove_file(folder.path().join("bin/iree-llm")).unwrap();
    let (success, text) = check(folder.path(), out.path(), "exact,speed-1b-stored,table");
    assert!(!success, "{text}");
    let table = fs::read_to_string(out.path().join("local-task/table.md")).unwrap();
    assert!(table.contains("iree-llm does not start"), "{table}");
}

/// On the device of Vulkan that computes on the CPU, if there is one.
#[test]
#[cfg(all(unix, feature = "iree"))]
fn the_script_runs_on_vulkan() {
    let listed = Command::new(PROGRAM).args(["devices", "--json"]).output().unwrap();
    let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
    let is_software = |it: &&Value| {
        let name = it["device"].as_str().unwrap();
        name.starts_with("vulkan://") && it["usable"] == true && it["gpu"].is_null()
    };
    let Some(device) = listed.as_array().unwrap().iter().find(is_software) else {
        println!("SKIPPED: no device of Vulkan computes on the CPU: install mesa-vulkan-drivers");
        return;
    };
    let device = device["device"].as_str().unwrap();
    let (folder, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    // Few tokens: this device takes tenths of a second for each.
    bundle(folder.path(), |text| {
        let mut reference: Value = serde_json::from_str(&text).unwrap();
        let cases = reference["cases"].as_array_mut().unwrap();
        cases.truncate(1);
        cases[0]["tokens"].as_array_mut().unwrap().truncate(4);
        reference.to_string()
    });
    // What is measured has the fixture's graphs: a shader takes this device's driver longer than a test.
    fs::copy(
        folder.path().join("fixtures/llama-mha-f32/config.json"),
        folder.path().join("models/tiny/config.json"),
    )
    .unwrap();
    // What all tests of a build have compiled.
    let graphs = Path::new(env!("CARGO_TARGET_TMPDIR")).join("compiled");
    fs::create_dir_all(&graphs).unwrap();
    std::os::unix::fs::symlink(graphs, out.path().join("graphs")).unwrap();
    let on = ["--device", device];
    let parts = "device,tests,exact,copy,speed-1b-stored,table";
    let (_, text) = check_on(&on, folder.path(), out.path(), parts);
    let results = out.path().join(device.replace("://", "-"));
    let table = fs::read_to_string(results.join("table.md")).unwrap();
    for expected in [
        &format!("iree-llm on `{device}`: llvmpipe"),
        "software on the CPU",
        "a check of the script, no figures",
        "Exactness, f32, 1, 8, 32 sequences together: 1 models, 1 prompts: every token is the",
        "GB/s (read and written)",
        "pp64 | tg to llama | pp to llama |",
        "- tests: the bundle holds no test programs of vulkan",
    ] {
        assert!(table.contains(expected), "{expected}: {table}{text}");
    }
    assert!(!table.contains("speed-1b-stored"), "{table}");
}

/// Without `--device` every GPU is taken, CUDA's first, and of those of one name the first.
#[test]
#[cfg(unix)]
fn every_gpu_has_its_table() {
    let gpu = |device: &str, gpu: Value| serde_json::json!({"device": device, "description": device, "usable": true, "gpu": gpu});
    let (folder, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let devices = [
        gpu("local-task", Value::Null),
        gpu("vulkan://0", "A".into()),
        gpu("vulkan://1", "B".into()),
        gpu("vulkan://2", Value::Null),
        gpu("cuda://0", "A".into()),
        gpu("cuda://1", "A".into()),
    ];
    bundle_with(folder.path(), &Value::from(devices.to_vec()));
    let (success, text) = check_on(&[], folder.path(), out.path(), "device,table");
    assert!(success, "{text}");
    let order: Vec<_> = text.lines().filter(|line| line.starts_with("==> ")).collect();
    let expected = ["cuda://0", "vulkan://0", "vulkan://1"];
    assert_eq!(order, expected.map(|device| format!("==> {device}: device")), "{text}");
    for device in expected {
        let table = out.path().join(device.replace("://", "-")).join("table.md");
        let table = fs::read_to_string(table).unwrap();
        assert!(table.contains("### Llama-3.1-8B's shape, random weights"), "{table}");
        assert_eq!(table.contains("tg to eager"), device == "cuda://0", "{table}");
    }
    let folder = tempfile::tempdir().unwrap();
    bundle_with(folder.path(), &Value::from(devices[..1].to_vec()));
    let (success, text) = check_on(&[], folder.path(), out.path(), "device");
    assert!(!success && text.contains("there is no GPU here that can be used"), "{text}");
}
