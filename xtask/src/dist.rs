//! `cargo xtask dist`: what people download, for machines like this one but with older systems.
//!
//! One tree of files (`tree`) is put together of the program (`program`), the compiler (`compiler`), licences
//! and papers, and written in each form: an archive, one without the compiler, a Python wheel, a Debian
//! package. The same sources give the same bytes.

mod archive;
mod check;
pub mod compiler;
mod deb;
mod elf;
mod licences;
mod program;
mod roots;
mod tree;
mod wheel;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use iree_src::sha256;

use crate::{flags, workspace};
use program::Program;
use tree::Tree;

/// The newest glibc that anything of it may need: that of Debian 10, RHEL 8 and Ubuntu 20.04's elders.
pub const GLIBC: (u32, u32) = (2, 28);

/// Where the compiler lies in the tree: where the program looks for it.
pub const COMPILER: &str = "lib/iree-llm";

/// The files that people download.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packages {
    /// The archive of all.
    pub archive: PathBuf,
    /// The archive without the compiler.
    pub runtime: PathBuf,
    /// The Python wheel.
    pub wheel: PathBuf,
    /// The Debian package.
    pub deb: PathBuf,
}

/// What names and contents of the packages depend on.
#[derive(Debug, Clone)]
pub struct Release {
    /// The workspace's version.
    pub version: String,
    /// The target triple.
    pub target: String,
    /// When its sources were committed, in seconds since 1970: the time of every file.
    pub time: u64,
}

pub fn run(flags: &flags::Dist) -> Result<()> {
    let folder = match &flags.out {
        Some(folder) => std::path::absolute(folder)?,
        None => workspace::target_dir()?.join("dist"),
    };
    let release = Release::of(workspace::root())?;
    let packages = make(workspace::root(), &folder, &release, flags)?;
    let sums = packages.sums()?;
    fs::write(folder.join("SHA256SUMS"), &sums)?;
    for path in packages.all() {
        println!("{}: {:.1} MB", path.display(), fs::metadata(path)?.len() as f64 / 1e6);
    }
    if flags.check {
        check::installs(&packages, &folder, flags)?;
        check::is_reproducible(&packages, &folder, &release, flags)?;
    }
    Ok(())
}

/// What is removed without a question lies in a folder of `folder` that nobody else calls so.
fn scratch(folder: &Path) -> PathBuf {
    folder.join(".xtask-dist")
}

/// The files of the packages that are made in `folder`.
fn tree_of(folder: &Path) -> PathBuf {
    scratch(folder).join("tree")
}

/// Makes everything of the sources in `sources`, below `folder`.
fn make(sources: &Path, folder: &Path, release: &Release, flags: &flags::Dist) -> Result<Packages> {
    fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    let program = Program::build(sources, folder, release, &flags.network)?;
    eprintln!("==> the files of {} {}", release.version, release.target);
    let staged = tree_of(folder);
    roots::remove(&staged)?;
    program.install(&staged)?;
    compiler::install(&program.iree, flags.libstdcxx.as_deref(), folder, &staged)?;
    papers(sources, &staged)?;
    licences::write(sources, &release.target, &staged.join("share/doc/iree-llm/THIRD-PARTY"))?;
    let tree = Tree::read(&staged)?;

    let base = format!("iree-llm-{}-{}", release.version, release.target);
    let packages = Packages {
        archive: folder.join(format!("{base}.tar.xz")),
        runtime: folder.join(format!("{base}-runtime.tar.xz")),
        wheel: folder.join(wheel::file_name(release)),
        deb: folder.join(deb::file_name(release)),
    };
    eprintln!("==> packing {:.0} MB in four ways", tree.bytes() as f64 / 1e6);
    let without = tree.without(COMPILER);
    std::thread::scope(|scope| {
        let work = [
            scope.spawn(|| archive::write(&tree, &base, release, &packages.archive)),
            scope.spawn(|| {
                archive::write(&without, &format!("{base}-runtime"), release, &packages.runtime)
            }),
            scope.spawn(|| wheel::write(&tree, release, &packages.wheel)),
            scope.spawn(|| deb::write(&tree, release, &packages.deb)),
        ];
        let join = |it: std::thread::ScopedJoinHandle<'_, Result<()>>| {
            it.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        work.into_iter().try_for_each(join)
    })?;
    Ok(packages)
}

/// Licences, and the model that answers where nobody has brought another.
fn papers(sources: &Path, tree: &Path) -> Result<()> {
    let documents = ["README.md", "LICENSE", "LICENSE-IREE", "NOTICE"];
    for name in documents {
        tree::copy(&sources.join(name), &tree.join("share/doc/iree-llm").join(name))?;
    }
    let model = sources.join("models/tiny-tales");
    for entry in fs::read_dir(&model).with_context(|| model.display().to_string())? {
        let name = entry?.file_name();
        let to = tree.join("share/iree-llm/models/tiny-tales").join(&name);
        tree::copy(&model.join(name), &to)?;
    }
    Ok(())
}

impl Release {
    fn of(sources: &Path) -> Result<Release> {
        let version = workspace::metadata()?["packages"]
            .as_array()
            .and_then(|all| all.iter().find(|it| it["name"] == "cli"))
            .and_then(|cli| cli["version"].as_str())
            .context("cargo metadata has no package cli")?
            .to_owned();
        let target = iree_src::host_target();
        ensure!(
            target.ends_with("-linux-gnu"),
            "packages are made for Linux with glibc: not {target}"
        );
        let time = match std::env::var("SOURCE_DATE_EPOCH") {
            Ok(text) => text,
            Err(_) => {
                let mut git = std::process::Command::new("git");
                git.arg("-C").arg(sources).args(["log", "-1", "--format=%ct"]);
                iree_src::process::output("git log", &mut git)
                    .context("the sources are no git checkout: set SOURCE_DATE_EPOCH")?
            }
        };
        let time = time.trim().parse().with_context(|| format!("{time:?} is no time"))?;
        Ok(Release { version, target, time })
    }

    /// The processor, as the target triple calls it.
    fn arch(&self) -> &str {
        self.target.split('-').next().unwrap_or_default()
    }
}

impl Packages {
    fn all(&self) -> [&Path; 4] {
        [&self.archive, &self.runtime, &self.wheel, &self.deb]
    }

    /// Their hashes, as `sha256sum` prints them.
    fn sums(&self) -> Result<String> {
        let line = |path: &Path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            Ok(format!("{}  {name}\n", sha256::of_file(path)?))
        };
        self.all().into_iter().map(line).collect()
    }
}
