//! The workspace's own tasks. `cargo xtask --help` lists them.

mod fetch_iree;
mod flags;
mod workspace;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    let result = match flags::Xtask::parse().task {
        flags::Task::FetchIree(flags) => fetch_iree::run(&flags),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
