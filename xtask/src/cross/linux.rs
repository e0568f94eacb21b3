//! AArch64 with Linux: IREE, the program, and what runs under qemu.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};
use iree_src::{CUDA_HOME_VAR, Cross, DIST_VAR};

use super::count;
use super::emulator::Emulator;
use super::standard_library::{self, StandardLibrary};
use crate::iree::fetch::fetch;
use crate::iree::request::{Compiler, Origin};
use crate::{fetch_iree, flags, workspace};

pub const TARGET: &str = "aarch64-unknown-linux-gnu";

pub fn run(flags: &flags::Cross) -> Result<()> {
    let machine = Cross::to(TARGET).context("iree-src knows this machine")?;
    machine.check(&path())?;
    let emulated = flags.test || flags.count;
    let emulator = emulated.then(|| Emulator::find(machine, &flags.cpu)).transpose()?;
    eprintln!("==> Rust's standard library");
    let std = standard_library::ensure(TARGET, Some(machine), &flags.network)?;
    eprintln!("==> IREE");
    let iree = iree(&flags.network)?;
    let build = Build { machine, std, iree, offline: flags.network.offline };
    eprintln!("==> the program");
    workspace::run(build.cargo("build").args(["--package", "cli"]))?;
    let folder = workspace::target_dir()?.join(TARGET).join("release");
    println!("{}", folder.join("iree-llm").display());
    let Some(emulator) = emulator else { return Ok(()) };
    if flags.count {
        workspace::run(build.cargo("build").args([
            "--package",
            "kernels",
            "--example",
            count::EXAMPLE,
        ]))?;
        count::table(&emulator, &folder.join("examples").join(count::EXAMPLE))?;
    }
    if flags.test {
        emulator.test(&build, &folder, flags.all)?;
    }
    Ok(())
}

fn path() -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).collect()
}

/// The IREE folder: a runtime for the machine, and the compiler of this one.
fn iree(network: &flags::Network) -> Result<PathBuf> {
    let default = fetch_iree::ensure(network)?;
    let compiler = default.manifest.compiler.as_ref();
    let compiler =
        compiler.with_context(|| format!("{} has no compiler", default.folder.display()))?;
    let mut request =
        fetch_iree::base_request(workspace::target_dir()?.join("iree-aarch64"), network);
    request.origin = Some(Origin::Registry);
    request.target = TARGET.to_owned();
    request.compiler = Compiler::Path(default.folder.join(compiler));
    fetch(&request)?;
    Ok(request.out)
}

/// How cargo builds for the machine.
pub struct Build {
    machine: Cross,
    std: StandardLibrary,
    iree: PathBuf,
    offline: bool,
}

impl Build {
    /// The compiler, which runs here and compiles for the machine.
    pub fn compiler(&self) -> PathBuf {
        self.iree.join("bin/iree-compile")
    }

    /// `cargo NAME`, in release builds: an emulator is slow enough.
    pub fn cargo(&self, name: &str) -> Command {
        let mut cargo = workspace::cargo();
        cargo.args([name, "--locked", "--release", "--target", TARGET]);
        standard_library::with_linker(&mut cargo, TARGET, self.machine);
        self.std.use_in(&mut cargo);
        // Where the programs look for the compiler, too.
        cargo.env(DIST_VAR, &self.iree).env_remove(CUDA_HOME_VAR);
        if self.offline {
            cargo.env("CARGO_NET_OFFLINE", "true");
        }
        cargo
    }
}
