//! Python wheels as plain archives: in the cache, fetched once, unpacked where they are needed.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use iree_src::wheel::Wheel;
use iree_src::{FileHash, sha256};

use super::request::Request;
use super::{Error, Result, tools};

/// The verified file in the cache, fetched first when it is not there.
///
/// # Errors
///
/// [`Error::Offline`], [`iree_src::Error::Tool`] when Python or pip are missing,
/// [`iree_src::Error::Command`] when pip fails, [`iree_src::Error::Hash`].
pub fn obtain(wheel: &Wheel, request: &Request) -> Result<PathBuf> {
    let folder = request.machine.cache.join("wheels");
    let path = folder.join(wheel.file);
    let is_there = || Ok::<_, Error>(path.exists() && sha256::of_file(&path)? == wheel.sha256);
    // A cache that is another user's, or cannot be written, is enough where it has the file: it comes by renaming.
    if is_there()? {
        return Ok(path);
    }
    fs::create_dir_all(&folder).map_err(Error::io("create", &folder))?;
    // Two runs that need the same wheel download it once.
    let lock = folder.join(".lock");
    let lock_file = File::create(&lock).map_err(Error::io("create", &lock))?;
    lock_file.lock().map_err(Error::io("lock", &lock))?;
    if is_there()? {
        return Ok(path);
    }
    if path.exists() {
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
    let arrived = wheel.download(&request.machine.python, &incoming, |bytes| step.set(bytes))?;
    fs::rename(&arrived, &path).map_err(Error::io("put in place", &path))?;
    super::place::remove(&incoming)?;
    step.done();
    Ok(path)
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
    let name = wheel.file_name().unwrap_or_default().to_string_lossy();
    let label = format!("unpack {}", name.split("-cp").next().unwrap_or(&name));
    let step = request.progress.bytes(label.split("-py").next().unwrap_or(&label), 0);
    let hashes = iree_src::wheel::unpack(wheel, into, place, |done, total| {
        step.set_total(total);
        step.set(done);
    })?;
    step.done();
    Ok(hashes)
}
