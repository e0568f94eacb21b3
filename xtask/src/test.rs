//! `cargo xtask test`: everything that must hold, in the order in which it fails fastest.

use std::num::NonZero;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, thread};

use anyhow::{Context, Result};

use crate::{deny, features, fetch_iree, flags, package, workspace};

/// Features that no default build turns on; the tests run with all of them.
const OPTIONAL_FEATURES: &str = "cli/otel,iree-rt/cuda,iree-rt/dlpack,iree-rt/ndarray,\
     iree-rt/parameters,iree-rt/profile,iree-rt/raw,iree-rt/vulkan,iree-src/bundled,xtask/bench,xtask/bindgen,xtask/cross,\
     xtask/dist,xtask/release";

/// Those of them that need no IREE, and of iree-rt none: so its lints without features are among those without IREE, and
/// nearly all dependencies are checked already.
const WITHOUT_IREE: &str =
    "cli/otel,xtask/bench,xtask/bindgen,xtask/cross,xtask/dist,xtask/release";

/// What is looked at where tests are not. With an example, as dependencies of tests have features of others on: without
/// any, tokio and dozens that need it would be checked once more.
const WITHOUT_TESTS: [&str; 3] = ["--lib", "--bins", "--example=calls"];

/// What is documented, one after the other.
const DOCUMENTED: [[&str; 3]; 2] = [
    ["documentation of programs", "--bins", "--example=calls"],
    ["documentation", "--lib", "--example=calls"],
];

/// How many tests nextest runs at once: one more than there are cores, as some wait for a clock or for
/// processes of theirs.
const TEST_THREADS: &str = "NEXTEST_TEST_THREADS";

/// The tests of `--all`: ignored ones in modules called `long`. Others are ignored because they
/// need what a machine may lack.
const LONG: [&str; 3] = ["--", "--ignored", "long::"];

/// The tests of kernels and of what calls them, with checks of pointers, of overflow and all other assertions.
const CHECKED_KERNELS: [&str; 6] = [
    "--package=kernels",
    "--package=xla-session",
    "--config",
    "profile.dev.package.kernels.debug-assertions=true",
    "--config",
    "profile.dev.package.kernels.overflow-checks=true",
];

pub fn run(flags: &flags::Test) -> Result<()> {
    let mut steps = Steps::default();
    steps.step("fetch IREE", || fetch_iree::ensure_for_tests(&flags.network).map(drop))?;
    // For the tests that bring something: the one of the bindings brings libclang.
    let cache = flags.network.cache.as_ref().map(std::path::absolute).transpose()?;
    let cargo = |args: &[&str]| {
        let mut command = workspace::cargo();
        command.args(args).envs(cache.iter().map(|folder| (flags::CACHE_VAR, folder)));
        if flags.network.offline {
            command.env("CARGO_NET_OFFLINE", "true").env(flags::OFFLINE_VAR, "1");
        }
        command
    };
    if !flags.quick {
        steps.run("format", &mut cargo(&["fmt", "--all", "--", "--check"]))?;
        steps.step("dependencies", || deny::check(&flags.network, flags.all))?;
        let mut clippy = cargo(&["clippy", "--workspace", "--all-targets"]);
        clippy.args(["--features", OPTIONAL_FEATURES, "--", "-D", "warnings"]);
        steps.run("clippy", &mut clippy)?;
        steps.step("clippy of features of iree-rt", || features::clippy(cargo, flags.all))?;
        // Of the features that clippy has checked what all depend on.
        // Programs first: there is a library in the place of one of its name.
        for [name, targets @ ..] in DOCUMENTED {
            let mut doc = cargo(&["doc", "--workspace", "--no-deps"]);
            doc.args(targets).args(["--features", OPTIONAL_FEATURES]);
            steps.run(name, doc.env("RUSTDOCFLAGS", "-D warnings"))?;
        }
        let mut doc = cargo(&["doc", "--package=iree-rt", "--no-deps"]);
        let doc = doc.env("RUSTDOCFLAGS", "-D warnings");
        steps.run("documentation of iree-rt's default features", doc)?;
        let bare = ["--workspace", "--no-default-features"];
        let mut clippy = cargo(&["clippy"]);
        clippy.args(bare).args(WITHOUT_TESTS);
        clippy.args(["--features", WITHOUT_IREE, "--", "-D", "warnings"]);
        steps.run("clippy without IREE", &mut clippy)?;
        // Others ask for its client of the hub.
        let mut clippy = cargo(&["clippy", "--package=iree-llm", "--no-default-features", "--lib"]);
        steps.run("clippy without the hub", clippy.args(["--", "-D", "warnings"]))?;
        if flags.all {
            let mut clippy = cargo(&["clippy"]);
            clippy.args(bare).args(["--", "-D", "warnings"]);
            steps.run("clippy without features", &mut clippy)?;
            // Machine code of all of it, for what the linker alone would find.
            steps.run("build without features", cargo(&["build"]).args(bare))?;
            // In the same folder, where they find IREE and what else is built already.
            let mut fuzz = cargo(&["check", "--manifest-path", "fuzz/Cargo.toml", "--target-dir"]);
            steps.run("fuzz targets", fuzz.arg(workspace::target_dir()?))?;
        }
        let packages = flags::Package { network: flags.network.clone() };
        // The runtime that the tests link was built from the same sources, by the same code.
        steps.step("packages", || package::check(&packages, flags.all))?;
    }
    let features = ["--workspace", "--features", OPTIONAL_FEATURES];
    let nextest = has_nextest();
    let test: &[&str] = if nextest { &["nextest", "run"] } else { &["test"] };
    let cargo_test = || {
        let mut command = cargo(test);
        if env::var_os(TEST_THREADS).is_none() {
            let cores = thread::available_parallelism().map_or(1, NonZero::get);
            command.env(TEST_THREADS, (cores + 1).to_string());
        }
        command
    };
    steps.run("tests", cargo_test().args(features))?;
    if nextest {
        steps.run("documentation tests", cargo(&["test", "--doc"]).args(features))?;
    }
    if flags.all {
        steps.run("long tests", cargo_test().args(features).args(LONG))?;
        steps.run("tests with checked kernels", cargo_test().args(CHECKED_KERNELS))?;
    }
    steps.step("tests of features that are off", || features::test(cargo))?;
    steps.summary();
    Ok(())
}

fn has_nextest() -> bool {
    let mut command = Command::new("cargo-nextest");
    command.args(["nextest", "--version"]).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

#[derive(Default)]
struct Steps {
    done: Vec<(String, Duration)>,
}

impl Steps {
    fn run(&mut self, name: &str, command: &mut Command) -> Result<()> {
        self.step(name, || workspace::run(command))
    }

    fn step(&mut self, name: &str, work: impl FnOnce() -> Result<()>) -> Result<()> {
        eprintln!("==> {name}");
        let started = Instant::now();
        let result = work();
        if result.is_err() {
            self.summary();
        }
        result.with_context(|| format!("the step \"{name}\" failed"))?;
        self.done.push((name.to_owned(), started.elapsed()));
        Ok(())
    }

    fn summary(&self) {
        if self.done.is_empty() {
            return;
        }
        eprintln!("==> passed:");
        for (name, time) in &self.done {
            eprintln!("{:>8.1} s  {name}", time.as_secs_f32());
        }
        let total: Duration = self.done.iter().map(|(_, time)| time).sum();
        eprintln!("{:>8.1} s  in total", total.as_secs_f32());
    }
}
