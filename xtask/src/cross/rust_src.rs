//! The sources of Rust's standard library, of exactly the version that is installed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use super::standard_library::rustc;
use crate::{fetch_iree, flags, workspace};

/// Debian's keys.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// Suites that may have a version, the one with the fewest packages first.
const SUITES: [&str; 3] = ["trixie-backports", "testing", "unstable"];

/// The folder `library`: the toolchain's, else one of Debian's package, which is kept in the cache.
pub fn find(network: &flags::Network) -> Result<PathBuf> {
    let sysroot = rustc(&["--print", "sysroot"])?;
    let of_toolchain = Path::new(sysroot.trim()).join("lib/rustlib/src/rust/library");
    if of_toolchain.is_dir() {
        return Ok(of_toolchain);
    }
    let version = rustc(&["--version"])?;
    let version = version.split(' ').nth(1).context("rustc has no version")?;
    let request = fetch_iree::base_request(PathBuf::new(), network);
    let folder = request.machine.cache.join(format!("rust-src-{version}"));
    let library = folder.join("library");
    if library.is_dir() {
        return Ok(library);
    }
    let missing =
        "the toolchain has no sources of the standard library: `rustup component add rust-src`";
    if network.offline {
        bail!("{missing} brings them, and --offline forbids to look elsewhere");
    }
    eprintln!("looking for rust-src {version} in Debian's archive");
    from_debian(version, &folder).with_context(|| missing.to_owned())?;
    Ok(library)
}

/// Unpacks Debian's package into `folder`.
fn from_debian(version: &str, folder: &Path) -> Result<()> {
    let parent = folder.parent().context("the cache is a folder")?;
    fs::create_dir_all(parent)?;
    let staged = tempfile::Builder::new().prefix(".rust-src-").tempdir_in(parent)?;
    let apt = Apt::new(&staged.path().join("apt"))?;
    let package = apt.download("rust-src", version)?;
    let unpacked = staged.path().join("unpacked");
    workspace::run(Command::new("dpkg-deb").arg("--extract").arg(package).arg(&unpacked))?;
    let sources = unpacked.join(format!("usr/src/rustc-{version}"));
    ensure!(sources.join("library").is_dir(), "the package has no usr/src/rustc-{version}/library");
    fs::rename(&sources, folder).with_context(|| format!("cannot make {}", folder.display()))
}

/// An apt of its own, which knows Debian's newer suites and changes nothing of the machine.
struct Apt {
    folder: PathBuf,
}

impl Apt {
    fn new(folder: &Path) -> Result<Self> {
        for name in ["etc/apt.conf.d", "etc/preferences.d", "lists/partial", "cache/partial"] {
            fs::create_dir_all(folder.join(name))?;
        }
        fs::write(folder.join("status"), "")?;
        let apt = Self { folder: folder.to_owned() };
        let at = |name: &str| folder.join(name).display().to_string();
        fs::write(
            folder.join("apt.conf"),
            format!(
                "Dir::Etc {:?};\nDir::Etc::sourceparts \"-\";\nDir::Etc::sourcelist {:?};\n\
                 Dir::State::lists {:?};\nDir::State::status {:?};\nDir::Cache {:?};\n\
                 Acquire::Languages \"none\";\nAPT::Sandbox::User \"root\";\n",
                at("etc"),
                at("etc/sources.list"),
                at("lists"),
                at("status"),
                at("cache"),
            ),
        )?;
        Ok(apt)
    }

    fn run(&self, program: &str, arguments: &[&str]) -> Result<String> {
        let mut command = Command::new(program);
        command.args(arguments).env("APT_CONFIG", self.folder.join("apt.conf"));
        let output = command.current_dir(&self.folder).output();
        let output = output.with_context(|| format!("cannot run {program}"))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            bail!("`{program} {}` failed: {said}", arguments.join(" "));
        }
        Ok(String::from_utf8(output.stdout)?)
    }

    /// The newest package of this upstream version, as a file.
    fn download(&self, package: &str, version: &str) -> Result<PathBuf> {
        let archive = archive()?;
        for suite in SUITES {
            // A mirror may lack one, or have an old one.
            let source = format!("deb [signed-by={KEYRING}] {archive} {suite} main\n");
            fs::write(self.folder.join("etc/sources.list"), source)?;
            if let Err(error) = self.run("apt-get", &["update", "--quiet", "--error-on=any"]) {
                eprintln!("{suite}: {error}");
                continue;
            }
            let known = self.run("apt-cache", &["madison", package])?;
            let mut versions = known.lines().filter_map(|line| line.split('|').nth(1));
            let of_upstream = |it: &&str| it.trim().split(['+', '-']).next() == Some(version);
            let Some(found) = versions.find(of_upstream) else { continue };
            let wanted = format!("{package}={}", found.trim());
            self.run("apt-get", &["download", "--quiet", &wanted])?;
            let files = fs::read_dir(&self.folder)?.flatten().map(|file| file.path());
            let mut files = files.filter(|path| path.extension().is_some_and(|it| it == "deb"));
            return files.next().context("apt-get downloaded nothing");
        }
        bail!("Debian has no {package} {version} in {}", SUITES.join(", "))
    }
}

/// Where this machine's apt gets Debian from.
fn archive() -> Result<String> {
    let mut apt = Command::new("apt-get");
    apt.args([
        "indextargets",
        "--format",
        "$(ORIGIN) $(LABEL) $(REPO_URI)",
        "Created-By: Packages",
    ]);
    let output = apt.output().context("cannot run apt-get")?;
    let all = String::from_utf8(output.stdout)?;
    let debian = all.lines().find_map(|line| line.strip_prefix("Debian Debian "));
    Ok(debian.context("this machine's apt knows no archive of Debian")?.to_owned())
}
