//! The workspace's own tasks. `cargo xtask --help` lists them.

mod bench;
mod bindgen;
mod cross;
mod demo;
mod deny;
#[cfg(feature = "release")]
mod dist;
mod features;
mod fetch_iree;
mod flags;
#[cfg(feature = "release")]
mod gpu_check;
mod iree;
mod package;
mod sanitize;
mod test;
mod workspace;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    let result = match flags::Xtask::parse().task {
        flags::Task::FetchIree(flags) => fetch_iree::run(&flags),
        flags::Task::Bindgen(flags) => bindgen::run(&flags),
        flags::Task::Demo(flags) => demo::run(&flags),
        flags::Task::Test(flags) => test::run(&flags),
        flags::Task::Package(flags) => package::run(&flags),
        #[cfg(feature = "release")]
        flags::Task::Dist(flags) => dist::run(&flags),
        #[cfg(not(feature = "release"))]
        flags::Task::Dist(_) => workspace::again_with("release", &[]),
        flags::Task::Sanitize(flags) => sanitize::run(&flags),
        flags::Task::Cross(flags) => cross::run(&flags),
        flags::Task::Bench(flags) => bench::run(&flags),
        #[cfg(feature = "release")]
        flags::Task::GpuCheck(flags) => gpu_check::run(&flags),
        #[cfg(not(feature = "release"))]
        flags::Task::GpuCheck(_) => workspace::again_with("release", &[]),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
