//! Rust's standard library for another machine: that of the toolchain, else built from its sources.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use iree_src::Cross;
use rustc_build_sysroot::{BuildMode, SysrootBuilder, SysrootConfig};

use super::rust_src;
use crate::{flags, workspace};

/// Where rustc finds it.
pub struct StandardLibrary {
    /// A folder for `--sysroot`; `None` is the toolchain's own.
    sysroot: Option<PathBuf>,
}

/// The standard library for `target`; only to type-check with where there is no `machine` to link for.
pub fn ensure(
    target: &str,
    machine: Option<Cross>,
    network: &flags::Network,
) -> Result<StandardLibrary> {
    if in_toolchain(target)? {
        return Ok(StandardLibrary { sysroot: None });
    }
    let sources = rust_src::find(network)?;
    let sysroot = workspace::target_dir()?.join("std");
    let mut cargo = workspace::cargo();
    // The library is written in what the stable compiler keeps to it.
    cargo.env("RUSTC_BOOTSTRAP", "1");
    let mode = match machine {
        Some(machine) => {
            with_linker(&mut cargo, target, machine);
            BuildMode::Build
        }
        None => BuildMode::Check,
    };
    let std_features = ["backtrace", "panic-unwind"].map(str::to_owned).into();
    SysrootBuilder::new(&sysroot, target)
        .build_mode(mode)
        .sysroot_config(SysrootConfig::WithStd { std_features })
        .cargo(cargo)
        .when_build_required(|| eprintln!("building it takes a minute, once"))
        .build_from_source(&sources)
        .with_context(|| format!("cannot build the standard library for {target}"))?;
    Ok(StandardLibrary { sysroot: Some(sysroot) })
}

impl StandardLibrary {
    /// Tells `cargo`, which runs with `--target`, where it is.
    pub fn use_in(&self, cargo: &mut Command) {
        if let Some(sysroot) = &self.sysroot {
            // Not RUSTFLAGS, which a space in the folder's name would cut in two.
            cargo.env("CARGO_ENCODED_RUSTFLAGS", format!("--sysroot={}", sysroot.display()));
        }
    }
}

/// Tells `cargo` what links for `target`, and what compiles C.
pub fn with_linker(cargo: &mut Command, target: &str, machine: Cross) {
    let linker = format!("CARGO_TARGET_{}_LINKER", target.replace('-', "_").to_uppercase());
    cargo.env(linker, machine.program("gcc"));
    for (name, program) in [("CC", "gcc"), ("CXX", "g++"), ("AR", "ar")] {
        cargo.env(format!("{name}_{}", target.replace('-', "_")), machine.program(program));
    }
}

/// Whether the toolchain has it.
fn in_toolchain(target: &str) -> Result<bool> {
    let folder = rustc(&["--print", "target-libdir", "--target", target])?;
    let Ok(files) = Path::new(folder.trim()).read_dir() else { return Ok(false) };
    let is_std = |name: &std::ffi::OsStr| name.to_string_lossy().starts_with("libstd-");
    Ok(files.flatten().any(|file| is_std(&file.file_name())))
}

/// What rustc prints.
pub fn rustc(arguments: &[&str]) -> Result<String> {
    let mut rustc = Command::new("rustc");
    let output = rustc.args(arguments).stderr(Stdio::inherit()).output();
    let output = output.context("cannot run rustc")?;
    if !output.status.success() {
        bail!("`rustc {}` failed ({})", arguments.join(" "), output.status);
    }
    Ok(String::from_utf8(output.stdout)?)
}
