//! `cargo xtask package`: packages the crates of IREE, and builds them as a stranger gets them.
//!
//! What is built is what `iree-rt/README.md` says, word for word but for `REPOSITORY`: its `Cargo.toml`s, its program.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{env, fs};

use anyhow::{Context, Result, bail, ensure};
use iree_src::{CUDA_HOME_VAR, DIST_VAR, Located, MANIFEST, Manifest};

use crate::{fetch_iree, flags, iree, workspace};

/// In the order in which they are published.
const CRATES: [&str; 3] = ["iree-src", "iree-sys", "iree-rt"];
/// Where the README has `iree-rt` from; here the package takes its place. A `[patch]` of the repository would not do, as
/// cargo may fetch what it patches (rust-lang/cargo#16574), and this works without a network.
const REPOSITORY: &str = r#"git = "https://github.com/iree-llm/iree-llm""#;
const PROGRAM: &str = "sum";
/// What all build for but the one from sources: one profile shares nothing with another.
const RELEASE: &str = "release";
const PRINTED: &str = "[11.0, 22.0, 33.0, 44.0]";

/// Builds all ways that the README says, that of IREE from its sources last.
pub fn run(flags: &flags::Package) -> Result<()> {
    check(flags, true)
}

/// [`run`], where `all` says whether also with IREE in the target folder, and built from its sources, which take longer
/// than the rest.
pub fn check(flags: &flags::Package, all: bool) -> Result<()> {
    let found = fetch_iree::ensure(&flags.network)?;
    ensure!(found.manifest.compiler.is_some(), "{} has no compiler", found.folder.display());
    let readme = fs::read_to_string(workspace::root().join("iree-rt/README.md"))?;
    let manifests = blocks(&readme, "toml");
    let [bundled, dist] = manifests[..] else {
        bail!("iree-rt/README.md has {} blocks of toml instead of 2", manifests.len());
    };

    // Outside of every workspace, and of every folder with an IREE folder in it.
    let place = tempfile::Builder::new().prefix("iree-package-").tempdir()?;
    let stranger = Stranger {
        crates: package(place.path(), flags.network.offline)?,
        readme: &readme,
        folder: place.path().to_owned(),
        offline: flags.network.offline,
    };

    let nothing = stranger.dependent("nothing", dist, RELEASE)?;
    let said = nothing.fails(&[])?;
    for part in ["there is no IREE", "feature `bundled`", "IREE_DIST"] {
        ensure!(said.contains(part), "a build without IREE does not say {part:?}:\n{said}");
    }
    ensure!(!said.contains("linking with"), "a build without IREE goes on to the linker:\n{said}");
    let said = nothing.fails(&[(DIST_VAR, "target/iree".into())])?;
    ensure!(said.contains("absolute"), "a relative IREE_DIST is not refused:\n{said}");

    let other = stranger.folder.join("other");
    let copy = |change: &dyn Fn(&mut Manifest)| copy_of(&found, &other, change);
    copy(&|it| it.iree = "3.12.0".into())?;
    let said = nothing.fails(&[(DIST_VAR, other.clone().into())])?;
    for part in ["holds IREE 3.12.0", "unset IREE_DIST", "feature `bundled`"] {
        ensure!(said.contains(part), "another version is refused without {part:?}:\n{said}");
    }
    copy(&|_| {})?;
    fs::remove_file(other.join(MANIFEST))?;
    fs::remove_file(other.join("bin"))?;
    let said = nothing.fails(&[(DIST_VAR, other.clone().into())])?;
    ensure!(said.contains("version cannot be told"), "an unknown version is not refused:\n{said}");

    let iree = found.folder.as_os_str().to_owned();
    let with_dist = stranger.dependent("dist", dist, RELEASE)?;
    has_no_path(&with_dist.runs_and_stays(&[(DIST_VAR, iree)])?, &found.folder)?;

    if !all {
        println!("{} build in an empty folder with IREE_DIST", CRATES.join(", "));
        return Ok(());
    }
    let in_target = stranger.dependent("target", dist, RELEASE)?;
    let folder = stranger.target().join("iree");
    copy_of(&found, &folder, &|it| it.mended.clear())?;
    // A release build remembers no folder: it finds the compiler on the `PATH`.
    let path = env::var_os("PATH").unwrap_or_default();
    let path = env::join_paths([folder.join("bin")].into_iter().chain(env::split_paths(&path)))?;
    let on_path = [("PATH", path)];
    let said = in_target.refuses_to_run(&on_path)?;
    ensure!(said.contains("has faults of IREE"), "an unmended runtime is linked silently:\n{said}");
    ensure!(said.contains("known race"), "`local-task` opens on a runtime with a race:\n{said}");
    copy_of(&found, &folder, &|_| {})?;
    has_no_path(&in_target.runs_and_stays(&on_path)?, &folder)?;
    fs::remove_dir_all(&folder)?;

    let with_sources = stranger.dependent("bundled", bundled, "dev")?;
    let mut variables = bundled_variables(&flags.network)?;
    with_sources.runs_and_stays(&variables)?;
    variables.extend(["CC", "CXX"].map(|name| (name, "/bin/false".into())));
    let said = with_sources.fails(&variables)?;
    for part in ["whole output in", "is not able to compile a simple test program"] {
        ensure!(said.contains(part), "a build that cmake ends does not say {part:?}:\n{said}");
    }
    println!("{} build in an empty folder, with IREE_DIST and with `bundled`", CRATES.join(", "));
    Ok(())
}

/// That a release build does not remember `folder`, where it found IREE.
fn has_no_path(program: &Path, folder: &Path) -> Result<()> {
    let folder = folder.display().to_string();
    let has_path = fs::read(program)?.windows(folder.len()).any(|part| part == folder.as_bytes());
    ensure!(!has_path, "a release build has the path of the IREE folder, {folder}, in it");
    Ok(())
}

/// An IREE folder at `to` with the files of `found` and a manifest that `change` has changed.
fn copy_of(found: &Located, to: &Path, change: &dyn Fn(&mut Manifest)) -> Result<()> {
    if to.exists() {
        fs::remove_dir_all(to)?;
    }
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(&found.folder)? {
        let path = std::path::absolute(entry?.path())?;
        let name = path.file_name().unwrap_or_default().to_owned();
        if name != MANIFEST {
            std::os::unix::fs::symlink(&path, to.join(name))?;
        }
    }
    let mut manifest = found.manifest.clone();
    change(&mut manifest);
    Ok(manifest.save(to)?)
}

/// What building IREE needs of the machine, out of the cache of `cargo xtask fetch-iree`: cmake,
/// ninja, and pip's index.
fn bundled_variables(network: &flags::Network) -> Result<Vec<(&'static str, OsString)>> {
    let request = fetch_iree::base_request(PathBuf::new(), network);
    let tools = iree::tools::build_tools(&request)?;
    let wheels = iree::compiler_wheel(&request)?;
    let ninja = tools.ninja.as_deref().and_then(Path::parent).map(Path::to_owned);
    let path = ninja.into_iter().chain(request.machine.path);
    Ok(vec![
        ("CMAKE", tools.cmake.into_os_string()),
        ("PATH", env::join_paths(path)?),
        ("PIP_NO_INDEX", "1".into()),
        ("PIP_FIND_LINKS", wheels.into_os_string()),
    ])
}

/// The crates as the registry would hand them out, unpacked.
fn package(to: &Path, offline: bool) -> Result<Vec<Package>> {
    let target = to.join("packages");
    let mut cargo = workspace::cargo();
    // Not verified here: that is what the dependents are for.
    cargo.args(["package", "--no-verify", "--allow-dirty", "--quiet", "--target-dir"]).arg(&target);
    cargo.args(CRATES.map(|name| format!("--package={name}")));
    if offline {
        cargo.arg("--offline");
    }
    workspace::run(&mut cargo)?;
    let metadata = workspace::metadata()?;
    let packages = metadata["packages"].as_array().context("cargo metadata has no packages")?;
    let unpacked = |name: &'static str| {
        let package = packages.iter().find(|it| it["name"] == name).context(name)?;
        for key in ["description", "license", "repository", "documentation", "readme"] {
            ensure!(package[key].is_string(), "{name} has no {key}");
        }
        let version = package["version"].as_str().context("a package has a version")?;
        let folder = format!("{name}-{version}");
        let archive = target.join("package").join(format!("{folder}.crate"));
        workspace::run(Command::new("tar").arg("-xzf").arg(archive).arg("-C").arg(to))?;
        let folder = to.join(folder);
        for file in ["LICENSE", "LICENSE-IREE", "NOTICE", "README.md"] {
            ensure!(folder.join(file).is_file(), "{name} is packaged without {file}");
        }
        let licence = fs::read_to_string(folder.join("LICENSE-IREE"))?;
        ensure!(licence.contains("LLVM Exceptions"), "{name} has no licence of IREE's");
        Ok(Package { name, version: version.to_owned(), folder })
    };
    CRATES.into_iter().map(unpacked).collect()
}

/// The text of the blocks in `language`.
fn blocks<'a>(readme: &'a str, language: &str) -> Vec<&'a str> {
    let fence = format!("```{language}\n");
    let parts = readme.split(fence.as_str()).skip(1);
    parts.filter_map(|part| part.split("```").next()).collect()
}

/// A crate as it would be published, unpacked.
struct Package {
    name: &'static str,
    version: String,
    folder: PathBuf,
}

/// Somebody who has the packages and the README.
struct Stranger<'a> {
    crates: Vec<Package>,
    readme: &'a str,
    folder: PathBuf,
    offline: bool,
}

impl Stranger<'_> {
    /// The target folder of all dependents.
    fn target(&self) -> PathBuf {
        self.folder.join("target")
    }

    /// A package that depends on iree-rt as `dependencies` says, with the README's program.
    fn dependent(
        &self,
        name: &str,
        dependencies: &str,
        profile: &'static str,
    ) -> Result<Dependent<'_>> {
        let folder = self.folder.join(name);
        fs::create_dir_all(folder.join("src"))?;
        ensure!(dependencies.contains(REPOSITORY), "iree-rt/README.md is without {REPOSITORY}");
        let package = self.crates.iter().find(|it| it.name == "iree-rt").context("no iree-rt")?;
        let version = format!("version = {:?}", package.version);
        let dependencies = dependencies.replace(REPOSITORY, &version);
        // Nothing is published: cargo takes the packages from here.
        let patch = |it: &Package| format!("{}.path = {:?}\n", it.name, it.folder);
        let patches = self.crates.iter().map(patch);
        let manifest = format!(
            "[package]\nname = {PROGRAM:?}\nedition = \"2024\"\n\n{dependencies}\n[workspace]\n\n\
             [patch.crates-io]\n{}",
            patches.collect::<String>()
        );
        fs::write(folder.join("Cargo.toml"), manifest)?;
        // The versions that everything else is tested with.
        fs::copy(workspace::root().join("Cargo.lock"), folder.join("Cargo.lock"))?;
        for (language, file) in [("rust", "main.rs"), ("mlir", "add.mlir")] {
            let text = blocks(self.readme, language);
            let text = text.first().with_context(|| format!("the README has no {language}"))?;
            fs::write(folder.join("src").join(file), text)?;
        }
        Ok(Dependent { stranger: self, folder, profile })
    }
}

struct Dependent<'a> {
    stranger: &'a Stranger<'a>,
    folder: PathBuf,
    profile: &'static str,
}

impl Dependent<'_> {
    fn cargo(&self, arguments: &[&str], variables: &[(&str, OsString)]) -> Command {
        let mut cargo = workspace::cargo();
        cargo.args(arguments).args(["--profile", self.profile]).current_dir(&self.folder);
        for name in [DIST_VAR, CUDA_HOME_VAR, "RUSTFLAGS", "CARGO_BUILD_TARGET"] {
            cargo.env_remove(name);
        }
        cargo.env("CARGO_TARGET_DIR", self.stranger.target());
        // What a release build is without is the same, and optimised it takes twice as long.
        cargo.env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "0");
        cargo.envs(variables.iter().map(|(name, value)| (name, value)));
        if self.stranger.offline {
            cargo.arg("--offline");
        }
        cargo
    }

    /// What cargo says of a build that has to fail.
    fn fails(&self, variables: &[(&str, OsString)]) -> Result<String> {
        let output = self.cargo(&["build"], variables).output()?;
        ensure!(!output.status.success(), "a build without IREE succeeds");
        Ok(String::from_utf8_lossy(&output.stderr).into_owned())
    }

    /// What the program says when it does not run.
    fn refuses_to_run(&self, variables: &[(&str, OsString)]) -> Result<String> {
        let output = self.cargo(&["run"], variables).output()?;
        ensure!(!output.status.success(), "the program runs");
        Ok(String::from_utf8_lossy(&output.stderr).into_owned())
    }

    /// Builds and runs the program; building it once more does nothing. Returns the program.
    fn runs_and_stays(&self, variables: &[(&str, OsString)]) -> Result<PathBuf> {
        let name = self.folder.file_name().unwrap_or_default().to_string_lossy();
        eprintln!("==> a dependent: {name}");
        workspace::run(&mut self.cargo(&["build", "--quiet"], variables))?;
        let mut again = self.cargo(&["build", "--quiet", "--message-format=json"], variables);
        let output = again.stderr(Stdio::inherit()).output()?;
        let (mut stale, mut program) = (Vec::new(), None);
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            let message: serde_json::Value = serde_json::from_str(line)?;
            if message["fresh"] == false {
                stale.push(message["package_id"].to_string());
            }
            if let Some(path) = message["executable"].as_str() {
                program = Some(PathBuf::from(path));
            }
        }
        ensure!(stale.is_empty(), "a second build compiles again: {}", stale.join(", "));
        let program = program.context("cargo built no program")?;
        let mut run = Command::new(&program);
        let output = run
            .envs(variables.iter().map(|(name, value)| (name, value)))
            .stderr(Stdio::inherit())
            .output()?;
        let printed = String::from_utf8_lossy(&output.stdout);
        ensure!(output.status.success() && printed.trim() == PRINTED, "{name} prints {printed:?}");
        Ok(program)
    }
}

#[cfg(test)]
mod tests {
    use super::blocks;

    #[test]
    fn finds_the_blocks_of_a_language() {
        let text = "a\n```toml\nx = 1\n```\nb\n```rust\nfn x() {}\n```\n```toml\ny = 2\n```\n";
        assert_eq!(blocks(text, "toml"), ["x = 1\n", "y = 2\n"]);
        assert_eq!(blocks(text, "mlir"), [""; 0]);
    }
}
