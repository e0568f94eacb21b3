//! The official clients of both APIs, and one that means no good.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::server::*;
use crate::support::python::{self, output};
use crate::tools::with_tools;

const SCRIPTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../server/tests/clients");
const PACKAGES: [&str; 2] = ["openai", "anthropic"];

/// A Python with the official clients.
///
/// # Errors
///
/// Why there is none.
fn python() -> Result<PathBuf, String> {
    python::with("clients", &PACKAGES, &PACKAGES)
}

/// Says why nobody was here.
fn skip(why: &str) {
    let line = format!("SKIPPED: no client in Python has met the server: {why}\n");
    std::io::stderr().write_all(line.as_bytes()).unwrap();
}

/// A server with a template that knows tools as `style` writes them, and what its model is called.
fn started(style: &str, flags: &[&str]) -> (tempfile::TempDir, Server, String) {
    let folder = with_tools(style);
    let server = Server::of(&["-m", folder.path().to_str().unwrap()], flags);
    let name = server.get("/v1/models").json()["data"][0]["id"].as_str().unwrap().to_owned();
    (folder, server, name)
}

/// Runs `script`, whose last word is that all is well.
#[track_caller]
fn tour(python: &Path, script: &str, server: &Server, more: &[&str]) {
    let url = format!("http://{}", server.address);
    let mut command = Command::new(python);
    // Else what is asked of this machine would be asked of a proxy.
    command.env("NO_PROXY", "127.0.0.1").arg(format!("{SCRIPTS}/{script}")).arg(url).args(more);
    let text = output(&mut command).unwrap_or_else(|error| panic!("{script}: {error}"));
    print!("{script}: {text}");
    assert!(text.ends_with("ok\n"), "{script}: {text}");
    server.is_empty();
    assert_eq!(server.number("iree_llm_step_failures_total", ""), 0.0);
}

/// What `cargo xtask test --all` adds.
mod long {
    use super::*;

    #[test]
    #[ignore = "long: cargo xtask test --all"]
    fn official_clients_read_what_is_answered() {
        let python = match python() {
            Ok(python) => python,
            Err(why) => return skip(&why),
        };
        for style in ["qwen2.5", "llama3.2", "mistral-v0.3"] {
            let (_folder, server, name) = started(style, &["--log", "off"]);
            tour(&python, "openai_tour.py", &server, &[]);
            tour(&python, "anthropic_tour.py", &server, &[&name]);
        }
    }

    #[test]
    #[ignore = "long: cargo xtask test --all"]
    fn clients_that_mean_no_good_get_an_answer() {
        let python = std::env::var_os("PYTHON").unwrap_or_else(|| "python3".into());
        if let Err(why) = output(Command::new(&python).arg("--version")) {
            return skip(&why);
        }
        let (_folder, server, _) = started("qwen2.5", &["--log", "off", "--context", "256"]);
        tour(Path::new(&python), "hostile.py", &server, &["500"]);
    }
}
