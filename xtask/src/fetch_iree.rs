//! `cargo xtask fetch-iree`: brings IREE, or verifies what was brought.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

#[cfg(feature = "release")]
use anyhow::ensure;
use anyhow::{Context, Result, bail};
use iree_src::{
    CUDA_HOME_VAR, DIST_VAR, Located, Manifest, OriginKind, Overrides, locate_in_target,
};

use crate::iree::check;
use crate::iree::fetch::{Outcome, fetch};
use crate::iree::progress::Progress;
use crate::iree::request::{Compiler, Machine, Origin, Request};
use crate::{flags, workspace};

pub fn run(flags: &flags::FetchIree) -> Result<()> {
    if flags.from == Some(flags::From::Dist) && cfg!(not(feature = "dist")) && !flags.check {
        return workspace::again_with("dist", &flags.network, &[]);
    }
    let request = request(flags)?;
    if flags.check {
        let manifest = check::check(&request.out, request.progress)?;
        print(&request.out, &manifest, "is good");
        return Ok(());
    }
    let outcome = fetch(&request)?;
    let (Outcome::AlreadyThere(manifest) | Outcome::Made(manifest)) = &outcome;
    let made = matches!(outcome, Outcome::Made(_));
    print(&request.out, manifest, if made { "is ready" } else { "is already there" });
    if request.out != workspace::target_dir()?.join("iree") {
        let variable = if request.cuda { CUDA_HOME_VAR } else { DIST_VAR };
        println!("to build with it: export {variable}={}", request.out.display());
    } else if made {
        look_again();
    }
    Ok(())
}

/// The folder that a build uses; the default one is brought when it is not there. A folder that
/// the environment names is left alone.
pub fn ensure(network: &flags::Network) -> Result<Located> {
    ensure_with(network, false)
}

/// The same with the Vulkan driver in it, which tests use where there is a device; upstream's folder and a
/// checkout's have what they have.
pub fn ensure_for_tests(network: &flags::Network) -> Result<Located> {
    ensure_with(network, true)
}

fn ensure_with(network: &flags::Network, vulkan: bool) -> Result<Located> {
    let target = workspace::target_dir()?;
    let var = |name| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let overrides = Overrides { cuda_home: var(CUDA_HOME_VAR), dist: var(DIST_VAR) };
    if overrides == Overrides::default() {
        let mut request = base_request(target.join("iree"), network);
        // What somebody has asked for stays, whatever it has: a checkout's folder, or upstream's.
        let is_asked_for = |it: Manifest| it.origin.kind != OriginKind::Registry;
        request.vulkan = vulkan && !Manifest::load(&request.out).is_ok_and(is_asked_for);
        if let Outcome::Made(manifest) = fetch(&request)? {
            print(&request.out, &manifest, "is ready");
            look_again();
        }
    }
    locate_in_target(&overrides, &target)?.context("there is no IREE folder")
}

/// Has the next build look for the folder. Where the last one has built a runtime of its own (the feature `bundled`)
/// cargo watches no folder, and would go on to link that.
fn look_again() {
    let script = workspace::root().join("iree-sys/build/main.rs");
    let touched = File::options().append(true).open(&script);
    if let Err(error) = touched.and_then(|file| file.set_modified(SystemTime::now())) {
        eprintln!(
            "warning: builds may go on to link a runtime of their own: cannot touch {} ({error})",
            script.display()
        );
    }
}

/// The folder with the drivers of GPUs, CUDA's and Vulkan's: the one that the environment names, else
/// `iree-cuda` in cargo's target folder, which is brought when it is not there.
#[cfg(feature = "release")]
pub fn ensure_gpus(network: &flags::Network) -> Result<PathBuf> {
    if let Some(folder) = std::env::var_os(CUDA_HOME_VAR).filter(|it| !it.is_empty()) {
        let folder = PathBuf::from(folder);
        let manifest = Manifest::load(&folder)?;
        ensure!(
            manifest.has_driver("cuda") && manifest.has_driver("vulkan"),
            "{} does not have both drivers: make one that has with `cargo xtask fetch-iree --cuda \
             --vulkan`, or unset {CUDA_HOME_VAR}",
            folder.display()
        );
        return Ok(folder);
    }
    let mut request = base_request(workspace::target_dir()?.join("iree-cuda"), network);
    request.cuda = true;
    request.vulkan = true;
    if let Outcome::Made(manifest) = fetch(&request)? {
        print(&request.out, &manifest, "is ready");
    }
    Ok(request.out)
}

/// A request with the machine's defaults.
pub fn base_request(out: PathBuf, network: &flags::Network) -> Request {
    let mut machine = Machine::from_env();
    if let Some(cache) = &network.cache {
        // Tools out of it are started in other folders.
        machine.cache = std::path::absolute(cache).unwrap_or_else(|_| cache.clone());
    }
    let mut request = Request::new(out, machine);
    request.offline = network.offline;
    request.progress = Progress::detect();
    request
}

fn request(flags: &flags::FetchIree) -> Result<Request> {
    let out = match &flags.out {
        Some(out) => std::path::absolute(out)?,
        None => workspace::target_dir()?.join(match (flags.cuda, flags.vm_trace) {
            (true, _) => "iree-cuda",
            (false, true) => "iree-trace",
            (false, false) => "iree",
        }),
    };
    let mut request = base_request(out, &flags.network);
    request.origin = origin(flags)?;
    request.cuda = flags.cuda;
    request.vulkan = flags.vulkan;
    request.vm_trace = flags.vm_trace;
    request.version.clone_from(&flags.iree_version);
    request.force = flags.force;
    if let Some(path) = &flags.iree_compile {
        request.compiler = Compiler::Path(path.clone());
    }
    Ok(request)
}

fn origin(flags: &flags::FetchIree) -> Result<Option<Origin>> {
    let only = |flag: &str, given: bool, from: flags::From| {
        if given && flags.from != Some(from) {
            bail!("{flag} has a meaning only with --from {}", format!("{from:?}").to_lowercase());
        }
        Ok(())
    };
    only("--source-dir", flags.source_dir.is_some(), flags::From::Source)?;
    only("--git", flags.git.is_some(), flags::From::Source)?;
    only("--sha256", flags.sha256.is_some(), flags::From::Dist)?;
    // A variable may be set for other runs; what is not its value was given to this one.
    let set = std::env::var(flags::BASE_URL_VAR).ok();
    only("--base-url", flags.base_url != set, flags::From::Dist)?;
    if flags.from == Some(flags::From::Dist) && flags.iree_compile.is_some() {
        bail!("--iree-compile has no meaning with --from dist: the archive has its own compiler");
    }
    Ok(flags.from.map(|from| match from {
        flags::From::Registry => Origin::Registry,
        flags::From::Dist => {
            Origin::Dist { base_url: flags.base_url.clone(), sha256: flags.sha256.clone() }
        }
        flags::From::Source => {
            Origin::Source { dir: flags.source_dir.clone(), git: flags.git.clone() }
        }
    }))
}

fn print(folder: &Path, manifest: &Manifest, state: &str) {
    println!(
        "IREE {} {state}: {} ({}: {}; drivers {})",
        manifest.iree,
        folder.display(),
        manifest.origin.kind,
        manifest.origin.detail,
        manifest.drivers.join(", ")
    );
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[test]
    fn flags_of_another_origin_are_refused() {
        let origin = |arguments: &[&str]| {
            let line = ["xtask", "fetch-iree"].iter().chain(arguments);
            let flags::Task::FetchIree(flags) = flags::Xtask::parse_from(line).task else {
                panic!("another task");
            };
            super::origin(&flags).map_err(|error| error.to_string())
        };
        let url = ["--base-url", "https://a.example/only-here"];
        let error = origin(&url).unwrap_err();
        assert!(error.contains("--base-url") && error.contains("--from dist"), "{error}");
        assert!(origin(&["--from", "dist", url[0], url[1]]).is_ok());
        assert_eq!(origin(&[]).unwrap(), None);
    }
}
