//! What runs under qemu, which runs programs for another machine on this system.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use iree_src::{Cross, cmake};

use super::linux::{Build, TARGET};
use crate::workspace;

/// qemu as a CPU.
pub struct Emulator {
    qemu: PathBuf,
    libraries: String,
    cpu: String,
}

/// A test program, and which of its tests run.
struct Tests {
    package: &'static str,
    program: &'static str,
    /// Parts of their names; all if there are none.
    some: &'static [&'static str],
}

/// What every instruction set computes, and then models: all fixtures as stored and in f32, on both devices,
/// and the trained ones.
const TESTS: [Tests; 2] = [
    Tests { package: "kernels", program: "kernels", some: &[] },
    Tests {
        package: "xla-session",
        program: "models",
        some: &[
            "xla::every_token_equals_the_reference_as_stored_on_local_task",
            "xla::every_token_equals_the_reference_in_f32_on_local_task",
            "xla::every_token_equals_the_reference_as_stored_on_local_sync",
            "xla::every_token_equals_the_reference_in_f32_on_local_sync",
            "xla::the_model_in_the_repository",
            "smollm2::a_trained_model",
        ],
    },
];

/// What `--all` adds: the long ones of those, and what checks precisions and bits.
const MORE: [Tests; 1] = [Tests {
    package: "xla-session",
    program: "models",
    some: &["xla::", "bf16::", "quantised::", "gguf::", "engine::", "invariance::"],
}];

impl Emulator {
    /// That of `machine`, as the CPU that it calls `cpu`.
    pub fn find(machine: Cross, cpu: &str) -> Result<Self> {
        let path: Vec<_> =
            std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()).collect();
        let arch = TARGET.split('-').next().unwrap_or_default();
        let names = [format!("qemu-{arch}-static"), format!("qemu-{arch}")];
        let qemu = names.iter().find_map(|name| cmake::find(&path, name));
        let qemu = qemu.with_context(|| {
            format!(
                "{} is not on PATH: install it (Debian: apt install qemu-user-static)",
                names[0]
            )
        })?;
        Ok(Self { qemu, libraries: machine.libraries(), cpu: cpu.to_owned() })
    }

    /// Runs `program`.
    pub fn run(&self, program: &Path) -> Command {
        let mut command = Command::new(&self.qemu);
        command.args(["-cpu", &self.cpu, "-L", &self.libraries]).arg(program);
        command
    }

    /// What cargo is told to run tests by: word by word, as its variable would be cut at every space.
    fn runner(&self) -> String {
        let qemu = self.qemu.to_string_lossy();
        let words = [&qemu, "-cpu", &self.cpu, "-L", &self.libraries];
        // A list of strings is written in TOML as in JSON.
        format!("target.{TARGET}.runner={}", serde_json::json!(words))
    }

    /// Runs `program`, and writes a line that begins with `Trace` for each of its instructions.
    pub fn logging(&self, program: &Path, log: &Path) -> Result<Command> {
        let help = Command::new(&self.qemu).arg("-h").output()?;
        let has = |option: &str| String::from_utf8_lossy(&help.stdout).contains(option);
        let single = ["-one-insn-per-tb", "-singlestep"].into_iter().find(|option| has(option));
        let mut command = Command::new(&self.qemu);
        command.arg(single.context("this qemu cannot take single steps")?);
        command.args(["-d", "exec,nochain", "-D"]).arg(log);
        command.args(["-cpu", &self.cpu, "-L", &self.libraries]).arg(program);
        Ok(command)
    }

    /// Runs the program of `build`, which is in `folder`, and the tests.
    pub fn test(&self, build: &Build, folder: &Path, all: bool) -> Result<()> {
        for device in ["local-task", "local-sync"] {
            eprintln!("==> selftest on {device}, {}", self.cpu);
            let mut selftest = self.run(&folder.join("iree-llm"));
            selftest.args(["selftest", "--device", device]);
            // One that was fetched for this machine's programs would come first, and compile for this machine.
            selftest.env("IREE_LLM_IREE_COMPILE", build.compiler());
            let output = selftest.output()?;
            let printed = String::from_utf8_lossy(&output.stdout);
            let said = String::from_utf8_lossy(&output.stderr);
            ensure!(printed.trim() == "[11, 22, 33, 44]", "selftest printed {printed:?}: {said}");
        }
        for tests in TESTS.iter().chain(if all { &MORE[..] } else { &[] }) {
            let Tests { package, program, some } = tests;
            eprintln!("==> tests {program} of {package}, {}", self.cpu);
            let mut cargo = build.cargo("test");
            cargo.arg("--config").arg(self.runner());
            cargo.args(["--package", package, "--test", program, "--"]).args(*some);
            workspace::run(&mut cargo)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod unit_tests {
    use super::*;

    #[test]
    fn a_runner_keeps_the_spaces_of_its_words() {
        let (libraries, cpu) = ("/usr/aarch64-linux-gnu".to_owned(), "max".to_owned());
        let emulator = Emulator { qemu: "/my tools/qemu".into(), libraries, cpu };
        assert_eq!(
            emulator.runner(),
            r#"target.aarch64-unknown-linux-gnu.runner=["/my tools/qemu","-cpu","max","-L","/usr/aarch64-linux-gnu"]"#
        );
    }
}
