//! `cargo xtask sanitize`: the tests of iree-rt, and those of models on a device of Vulkan, with
//! sanitizers, in Rust and in IREE's C.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use iree_src::{CUDA_HOME_VAR, DIST_VAR, Sanitizer};

use crate::iree::fetch::fetch;
use crate::iree::request::{Compiler, Origin};
use crate::{features, fetch_iree, flags, workspace};

/// Tests that do not run: those that have the compiler in their process, which is LLVM and not ours,
/// and those of leaks, which bring a sanitizer of their own.
const LEFT_OUT: [&str; 3] = ["compiler", "leaks", "other_models"];

/// The program with the tests of models; what is for it follows.
const MODELS: [&str; 7] =
    ["--package", "xla-session", "--features", "vulkan", "--test", "models", "--"];

/// What makes it list them, the ignored ones too.
const LIST: [&str; 3] = ["--list", "--format", "terse"];

pub fn run(flags: &flags::Sanitize) -> Result<()> {
    let both = [flags::Sanitizer::Address, flags::Sanitizer::Thread];
    let chosen = if flags.sanitizer.is_empty() { &both[..] } else { &flags.sanitizer[..] };
    for sanitizer in chosen {
        let sanitizer = match sanitizer {
            flags::Sanitizer::Address => Sanitizer::Address,
            flags::Sanitizer::Thread => Sanitizer::Thread,
        };
        eprintln!("==> {} sanitizer", sanitizer.as_str());
        let folder = iree(sanitizer, &flags.network)?;
        let cargo = || -> Result<Command> {
            let mut cargo = cargo(sanitizer, &folder)?;
            if flags.network.offline {
                cargo.env("CARGO_NET_OFFLINE", "true");
            }
            Ok(cargo)
        };
        let run = |command: &mut Command| {
            workspace::run(command)
                .with_context(|| format!("the {} sanitizer found something", sanitizer.as_str()))
        };
        run(cargo()?.args(of_iree_rt()?).args(&flags.only))?;
        let only = flags.only.as_deref();
        let models = on_vulkan(&listed(cargo()?.args(MODELS).args(LIST))?, only);
        ensure!(only.is_some() || !models.is_empty(), "no test of models is on a device of Vulkan");
        // Without a name all would run.
        if !models.is_empty() {
            run(cargo()?.args(MODELS).args(["--include-ignored", "--exact"]).args(models))?;
        }
    }
    Ok(())
}

/// An IREE folder that is instrumented, with the compiler of the default one.
fn iree(sanitizer: Sanitizer, network: &flags::Network) -> Result<PathBuf> {
    let default = fetch_iree::ensure(network)?;
    let Some(compiler) = &default.manifest.compiler else {
        bail!("{} has no compiler for the tests", default.folder.display());
    };
    let out = workspace::target_dir()?.join(format!("iree-{}", sanitizer.as_str()));
    let mut request = fetch_iree::base_request(out, network);
    request.origin = Some(Origin::Registry);
    request.sanitizer = Some(sanitizer);
    request.vulkan = true;
    request.compiler = Compiler::Path(default.folder.join(compiler));
    fetch(&request)?;
    Ok(request.out)
}

/// What cargo is asked for, of iree-rt.
fn of_iree_rt() -> Result<Vec<String>> {
    let mut all = ["--package", "iree-rt", "--lib", "--features"].map(str::to_owned).to_vec();
    all.push(features::of_iree_rt()?.join(","));
    for test in tests()? {
        all.extend(["--test".to_owned(), test]);
    }
    all.push("--".to_owned());
    Ok(all)
}

/// Of the tests of models that the program has listed those that run, by their whole names: what has steps in flight
/// on a device that computes by itself. All fixtures would take hours.
fn on_vulkan(listed: &str, only: Option<&str>) -> Vec<String> {
    let names = listed.lines().filter_map(|line| line.strip_suffix(": test"));
    let ours = names.filter(|name| {
        let long = ["every_fixture", "each_family"].iter().any(|part| name.contains(part));
        name.starts_with("vulkan::") && !long && only.is_none_or(|part| name.contains(part))
    });
    ours.map(ToOwned::to_owned).collect()
}

/// What `cargo` prints.
fn listed(cargo: &mut Command) -> Result<String> {
    let output = cargo.stderr(Stdio::inherit()).output().context("cannot run cargo")?;
    ensure!(output.status.success(), "cargo cannot list tests ({})", output.status);
    Ok(String::from_utf8(output.stdout)?)
}

/// `cargo test`, whose arguments are to follow.
fn cargo(sanitizer: Sanitizer, iree: &Path) -> Result<Command> {
    let name = sanitizer.as_str();
    let mut cargo = workspace::cargo();
    cargo.args(["test", "--no-fail-fast", "--target", &host()?]);
    cargo.arg("--target-dir").arg(workspace::target_dir()?.join(format!("sanitize-{name}")));
    if has_std_sources()? {
        cargo.args(["-Z", "build-std"]);
    } else if sanitizer == Sanitizer::Thread {
        bail!("ThreadSanitizer needs std built with it: run `rustup component add rust-src`");
    } else {
        eprintln!("note: std is not instrumented; `rustup component add rust-src` brings it");
    }
    // Sanitizers are unstable flags of the stable compiler.
    cargo.env("RUSTC_BOOTSTRAP", "1").env(DIST_VAR, iree).env_remove(CUDA_HOME_VAR);
    cargo.env("RUSTFLAGS", format!("-Zsanitizer={name} -Cforce-frame-pointers=yes"));
    // Sizes that no machine has are part of the tests, and GCC merges equal constants.
    cargo.env(
        "ASAN_OPTIONS",
        "detect_leaks=1:allocator_may_return_null=1:detect_odr_violation=0:malloc_context_size=60",
    );
    let suppressions = |of: &str| {
        let file = workspace::root().join("xtask/src/sanitize").join(format!("{of}.supp"));
        // Unquoted, a space or a colon would end it.
        format!("suppressions='{}'", file.display())
    };
    let races = suppressions("races");
    cargo.env("TSAN_OPTIONS", format!("allocator_may_return_null=1:halt_on_error=1:{races}"));
    cargo.env("LSAN_OPTIONS", suppressions("leaks"));
    if sanitizer == Sanitizer::Address {
        // Vulkan's loader unloads drivers, and what their globals held is nobody's then: 128 bytes of lavapipe each
        // time. Where there is none, the dynamic linker says so and goes on.
        let runner = host()?.to_uppercase().replace('-', "_");
        cargo.env(format!("CARGO_TARGET_{runner}_RUNNER"), "env LD_PRELOAD=libvulkan_lvp.so");
    }
    Ok(cargo)
}

/// The test programs of iree-rt that run.
fn tests() -> Result<Vec<String>> {
    let package = features::iree_rt()?;
    let targets = package["targets"].as_array().context("iree-rt has no targets")?;
    let tests = targets.iter().filter(|target| target["kind"][0] == "test");
    let tests = tests.filter_map(|target| target["name"].as_str());
    Ok(tests.filter(|name| !LEFT_OUT.contains(name)).map(ToOwned::to_owned).collect())
}

fn rustc(arguments: &[&str]) -> Result<String> {
    let output = Command::new("rustc").args(arguments).output().context("cannot run rustc")?;
    Ok(String::from_utf8(output.stdout)?)
}

fn host() -> Result<String> {
    let version = rustc(&["-vV"])?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("rustc does not say its host")?.to_owned())
}

fn has_std_sources() -> Result<bool> {
    let sysroot = rustc(&["--print", "sysroot"])?;
    Ok(Path::new(sysroot.trim()).join("lib/rustlib/src/rust/library").is_dir())
}

#[cfg(test)]
mod unit_tests {
    use super::*;

    #[test]
    fn of_models_only_what_is_short_runs_on_vulkan() {
        let listed = "cuda::mixed_steps: test\nvulkan::long::mixed_steps: test\n\
             vulkan::each_family_of_all: test\nvulkan::the_contract_holds: test\n\n3 tests\n";
        let both = ["vulkan::long::mixed_steps", "vulkan::the_contract_holds"];
        assert_eq!(on_vulkan(listed, None), both);
        assert_eq!(on_vulkan(listed, Some("mixed")), both[..1]);
        assert!(on_vulkan(listed, Some("threads")).is_empty());
    }
}
