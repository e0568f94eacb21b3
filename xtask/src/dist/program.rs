//! The program, built against an old glibc by the C compiler in zig's wheel, which has all of them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::{GLIBC, Release, elf, tree};
use crate::iree::tools;
use crate::{fetch_iree, flags, workspace};

/// The profile in the workspace's `Cargo.toml`.
const PROFILE: &str = "dist";
/// What the program can; not what remembers this machine.
const FEATURES: &str = "iree,cuda,vulkan";

/// A program that runs on other machines.
pub struct Program {
    path: PathBuf,
    /// The IREE folder that it was built with.
    pub iree: PathBuf,
}

impl Program {
    /// Builds the program of `sources`, and IREE's runtime before it, below `folder`.
    pub fn build(
        sources: &Path,
        folder: &Path,
        release: &Release,
        network: &flags::Network,
    ) -> Result<Program> {
        let iree = folder.join("iree");
        let request = fetch_iree::base_request(iree.clone(), network);
        let zig = tools::zig(&request)?;
        let zigbuild = tools::cargo_zigbuild(&request)?;
        let target = format!("{}.{}.{}", release.target, GLIBC.0, GLIBC.1);

        eprintln!("==> IREE's runtime for {target}");
        let mut fetch = Command::new(std::env::current_exe()?);
        fetch.args(["fetch-iree", "--from", "registry", "--out"]).arg(&iree);
        if network.offline {
            fetch.arg("--offline");
        }
        if let Some(cache) = &network.cache {
            fetch.arg("--cache").arg(cache);
        }
        for (variable, language) in [("CC", "cc"), ("CXX", "c++")] {
            fetch.env(variable, compiler(&zig, language, release.arch(), folder)?);
        }
        workspace::run(&mut fetch)?;

        eprintln!("==> iree-llm for {target}");
        let build = folder.join("build");
        let mut cargo = Command::new(zigbuild);
        cargo.args(["zigbuild", "--locked", "--package=cli", "--no-default-features"]);
        cargo.args(["--profile", PROFILE, "--features", FEATURES, "--target", &target]);
        if network.offline {
            cargo.arg("--offline");
        }
        cargo.current_dir(sources).env("CARGO_ZIGBUILD_ZIG_PATH", &zig);
        cargo.env(iree_src::DIST_VAR, &iree).env_remove(iree_src::CUDA_HOME_VAR);
        cargo.env("CARGO_TARGET_DIR", &build);
        // Whatever the user's own are: packages are for every machine, and say nothing of this one.
        cargo.env_remove("RUSTFLAGS").env("CARGO_ENCODED_RUSTFLAGS", remapped(sources, folder)?);
        workspace::run(&mut cargo)?;
        let path = build.join(&release.target).join(PROFILE).join("iree-llm");
        Ok(Program { path, iree })
    }

    /// Puts the program into `tree`, with what it says about itself.
    pub fn install(&self, tree: &Path) -> Result<()> {
        elf::read(&self.path)?;
        tree::copy(&self.path, &tree.join("bin/iree-llm"))?;
        let completions = [
            ("bash", "share/bash-completion/completions/iree-llm"),
            ("fish", "share/fish/vendor_completions.d/iree-llm.fish"),
            ("zsh", "share/zsh/site-functions/_iree-llm"),
        ];
        for (shell, place) in completions {
            let mut program = Command::new(&self.path);
            let script = iree_src::process::output(shell, program.args(["completions", shell]))?;
            let place = tree.join(place);
            fs::create_dir_all(place.parent().context("it lies in a folder")?)?;
            fs::write(&place, script).with_context(|| place.display().to_string())?;
        }
        let mut program = Command::new(&self.path);
        workspace::run(program.arg("man").arg(tree.join("share/man/man1")))
    }
}

/// A program that compiles `language` as zig does for the oldest glibc: cmake takes one word.
fn compiler(zig: &Path, language: &str, arch: &str, folder: &Path) -> Result<PathBuf> {
    let path = folder.join(format!("zig-{language}"));
    // Zig turns off what a baseline lacks, also where a file asks for it; "evex512", which -mavx512f does
    // not imply there, has no meaning without.
    let cpu = if arch == "x86_64" { " -mcpu=x86_64+evex512" } else { "" };
    let script = format!(
        "#!/bin/sh\nexec '{}' {language} -target {arch}-linux-gnu.{}.{}{cpu} \"$@\"\n",
        zig.display(),
        GLIBC.0,
        GLIBC.1
    );
    fs::write(&path, script).with_context(|| path.display().to_string())?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
    }
    Ok(path)
}

/// Flags of rustc by which panics name files as anybody has them, with cargo's separator.
fn remapped(sources: &Path, folder: &Path) -> Result<String> {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(std::env::home_dir()?.join(".cargo")));
    let home = home.context("there is no home folder: set CARGO_HOME")?;
    // The last one that fits counts.
    let places = [(home.as_path(), "/cargo"), (sources, "/iree-llm"), (folder, "/iree-llm/target")];
    let flags = places.map(|(from, to)| format!("--remap-path-prefix={}={to}", from.display()));
    Ok(flags.join("\x1f"))
}
