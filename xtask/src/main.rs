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
        flags::Task::Dist(flags) => workspace::again_with("release", &flags.network, &[]),
        flags::Task::Sanitize(flags) => sanitize::run(&flags),
        flags::Task::Cross(flags) => cross::run(&flags),
        flags::Task::Bench(flags) => bench::run(&flags),
        #[cfg(feature = "release")]
        flags::Task::GpuCheck(flags) => gpu_check::run(&flags),
        #[cfg(not(feature = "release"))]
        flags::Task::GpuCheck(flags) => workspace::again_with("release", &flags.network, &[]),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", chain(&error));
            ExitCode::FAILURE
        }
    }
}

/// An error and its causes; a cause that the message before it repeats is left out.
fn chain(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn causes_follow_once() {
        let error = std::io::Error::from(std::io::ErrorKind::NotFound);
        let said = error.to_string();
        let error = iree_src::Error::io("read", Path::new("a.json"))(error);
        let text = chain(&anyhow::Error::from(error).context("the step failed"));
        assert!(text.starts_with("the step failed: cannot read a.json"), "{text}");
        assert_eq!(text.matches(&said).count(), 1, "{text}");
    }
}
