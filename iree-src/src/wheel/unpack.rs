//! What is wanted of a wheel, as files.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::{Error, FileHash, Result, sha256};

/// Unpacks the files of `wheel` that `place` gives a path below `into`; returns their hashes.
/// `progress` is told how many of how many bytes are done.
///
/// # Errors
///
/// [`Error::Io`] when the archive is damaged or a file cannot be written.
pub fn unpack(
    wheel: &Path,
    into: &Path,
    place: impl Fn(&str) -> Option<PathBuf>,
    mut progress: impl FnMut(u64, u64),
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
    let mut done = 0;
    let mut hashes = Vec::new();
    for (relative, index) in chosen {
        let mut entry = archive.by_index(index).map_err(damaged)?;
        let path = into.join(&relative);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(Error::io("create", parent))?;
        }
        let file = File::create(&path).map_err(Error::io("write", &path))?;
        set_mode(&file, entry.unix_mode()).map_err(Error::io("set the mode of", &path))?;
        let before = done;
        let count = |written| progress(before + written, total);
        let counted = Counting { inner: file, count, written: 0 };
        let mut hashing = sha256::Hashing::new(counted);
        let copied = sha256::copy(&mut entry, &mut hashing);
        let sha256 = hashing.finish();
        done += copied.map_err(Error::io("write", &path))?;
        hashes.push(FileHash { path: relative, sha256 });
    }
    Ok(hashes)
}

struct Counting<F> {
    inner: File,
    count: F,
    written: u64,
}

impl<F: FnMut(u64)> Write for Counting<F> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = self.inner.write(bytes)?;
        self.written += n as u64;
        (self.count)(self.written);
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
    use zip::write::SimpleFileOptions;

    use super::*;

    #[test]
    fn what_is_wanted_comes_with_its_hash_and_mode() {
        let dir = tempfile::tempdir().unwrap();
        let wheel = dir.path().join("a.whl");
        let mut zip = zip::ZipWriter::new(File::create(&wheel).unwrap());
        for (name, mode, text) in
            [("a/run", 0o755, "abc"), ("a/data", 0o644, "defg"), ("b", 0o644, "")]
        {
            zip.start_file(name, SimpleFileOptions::default().unix_permissions(mode)).unwrap();
            zip.write_all(text.as_bytes()).unwrap();
        }
        zip.finish().unwrap();
        let mut seen = Vec::new();
        let wanted = |name: &str| name.strip_prefix("a/").map(|it| Path::new("bin").join(it));
        let hashes =
            unpack(&wheel, dir.path(), wanted, |done, total| seen.push((done, total))).unwrap();
        assert_eq!(seen, [(4, 7), (7, 7)]);
        assert_eq!(hashes.len(), 2);
        for hash in hashes {
            assert_eq!(sha256::of_file(&dir.path().join(&hash.path)).unwrap(), hash.sha256);
        }
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            let mode =
                |name| dir.path().join("bin").join(name).metadata().unwrap().permissions().mode();
            assert_eq!((mode("run") & 0o777, mode("data") & 0o777), (0o755, 0o644));
        }
        let text = unpack(&dir.path().join("bin/run"), dir.path(), wanted, |_, _| {}).unwrap_err();
        assert!(text.to_string().contains("bin/run"), "{text}");
    }
}
