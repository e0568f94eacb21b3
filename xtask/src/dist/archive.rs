//! A `.tar.xz`: unpack it anywhere, and run `bin/iree-llm`. Of xz, as neither tar of Debian 10 nor dpkg of Debian 11 reads
//! zstd.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::num::NonZero;
use std::path::Path;
use std::thread;

use anyhow::{Context, Result};
use lzma_rust2::{XzOptions, XzWriterMt};

use super::Release;
use super::tree::Tree;

/// The one that `xz` has by itself, with a window of 8 MiB.
const LEVEL: u32 = 6;
/// Uncompressed bytes that are compressed by themselves, and so beside others: a few times the level's window.
const BLOCK: NonZero<u64> = NonZero::new(32 << 20).unwrap();

/// Writes `tree` as the folder `name` to the archive `to`.
pub fn write(tree: &Tree, name: &str, release: &Release, to: &Path) -> Result<()> {
    let file = File::create(to).with_context(|| to.display().to_string())?;
    compressed(tree, &format!("{name}/"), release, BufWriter::new(file))?.flush()?;
    Ok(())
}

/// Writes `tree` as [`tar()`] does, compressed. What comes of one worker comes of any number.
pub fn compressed<W: Write>(tree: &Tree, prefix: &str, release: &Release, to: W) -> Result<W> {
    let mut options = XzOptions::with_preset(LEVEL);
    options.set_block_size(Some(BLOCK));
    let workers = thread::available_parallelism().map_or(1, |it| it.get() as u32);
    let mut xz = XzWriterMt::new(to, options, workers)?;
    tar(tree, prefix, release.time, &mut xz)?;
    Ok(xz.finish()?)
}

/// Writes `tree` in tar's format; every name begins with `prefix`, which ends with a slash or is empty.
fn tar(tree: &Tree, prefix: &str, time: u64, to: impl Write) -> Result<()> {
    let mut tar = tar::Builder::new(to);
    let folders = tree.folders().into_iter().map(|folder| format!("{prefix}{folder}/"));
    let first = Some(prefix.to_owned()).filter(|prefix| !prefix.is_empty());
    for folder in first.into_iter().chain(folders) {
        let mut header = header(0o755, time);
        header.set_entry_type(tar::EntryType::Directory);
        header.set_size(0);
        tar.append_data(&mut header, folder, std::io::empty())?;
    }
    for file in &tree.files {
        let mut header = header(if file.is_program { 0o755 } else { 0o644 }, time);
        header.set_size(file.bytes);
        let data = File::open(&file.path).with_context(|| file.path.display().to_string())?;
        tar.append_data(&mut header, format!("{prefix}{}", file.name), data)?;
    }
    tar.into_inner()?;
    Ok(())
}

fn header(mode: u32, time: u64) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_mode(mode);
    header.set_mtime(time);
    header.set_uid(0);
    header.set_gid(0);
    header
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use lzma_rust2::XzReader;

    use super::super::tree::tests::example;
    use super::*;

    #[test]
    fn holds_the_tree_and_the_same_bytes_each_time() {
        let dir = tempfile::tempdir().unwrap();
        let tree = example(&dir.path().join("tree"));
        let release = Release { version: "1.2.3".into(), target: "x".into(), time: 12345 };
        let written = |name: &str| {
            let path = dir.path().join(name);
            write(&tree, "it-1.2.3", &release, &path).unwrap();
            std::fs::read(path).unwrap()
        };
        let archive = written("a");
        assert_eq!(archive, written("b"));
        let mut archive = tar::Archive::new(XzReader::new(&archive[..], false));
        let mut found = Vec::new();
        for entry in archive.entries().unwrap() {
            let mut entry = entry.unwrap();
            let mut text = String::new();
            entry.read_to_string(&mut text).unwrap();
            let header = entry.header();
            assert_eq!((header.mtime().unwrap(), header.uid().unwrap()), (12345, 0));
            let name = entry.path().unwrap().display().to_string();
            found.push((name, header.mode().unwrap(), text));
        }
        let files: Vec<_> = found.iter().filter(|it| !it.0.ends_with('/')).collect();
        assert_eq!(found[0].0, "it-1.2.3/");
        assert_eq!(files.len(), 3);
        assert_eq!(*files[0], ("it-1.2.3/bin/run".into(), 0o755, "#!".into()));
        assert_eq!(*files[1], ("it-1.2.3/lib/x/y.so".into(), 0o644, "yyy".into()));
    }
}
