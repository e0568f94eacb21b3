//! Apple silicon with macOS: whether it compiles. There is no machine to link or to run it on.

use anyhow::Result;

use super::standard_library;
use crate::{flags, workspace};

const TARGET: &str = "aarch64-apple-darwin";

/// Without what links IREE, and without what builds C of its own.
const CRATES: [(&str, &[&str]); 2] = [
    ("iree-rt", &["--no-default-features", "--features", "compiler,parameters,profile"]),
    ("xla-session", &["--no-default-features"]),
];

pub fn run(flags: &flags::Cross) -> Result<()> {
    eprintln!("==> Rust's standard library");
    let std = standard_library::ensure(TARGET, None, &flags.network)?;
    for (package, features) in CRATES {
        eprintln!("==> {package}");
        let mut cargo = workspace::cargo();
        cargo.args(["check", "--locked", "--target", TARGET, "--package", package]).args(features);
        std.use_in(&mut cargo);
        if flags.network.offline {
            cargo.env("CARGO_NET_OFFLINE", "true");
        }
        workspace::run(&mut cargo)?;
    }
    println!("compiles for {TARGET}; not linked, not run");
    Ok(())
}
