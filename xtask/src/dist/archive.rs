//! A `.tar.zst`: unpack it anywhere, and run `bin/iree-llm`.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use anyhow::{Context, Result};
use zstd::Encoder;

use super::Release;
use super::tree::Tree;

/// The slowest that ordinary `zstd -d` and `tar` take without flags, in level and window.
const LEVEL: i32 = 19;
const WINDOW_LOG: u32 = 27;

/// Writes `tree` as the folder `name` to the archive `to`.
pub fn write(tree: &Tree, name: &str, release: &Release, to: &Path) -> Result<()> {
    let file = File::create(to).with_context(|| to.display().to_string())?;
    let mut encoder = Encoder::new(BufWriter::new(file), LEVEL)?;
    encoder.long_distance_matching(true)?;
    encoder.window_log(WINDOW_LOG)?;
    // What comes of one worker comes of any number.
    encoder.multithread(std::thread::available_parallelism().map_or(1, |it| it.get() as u32))?;
    tar(tree, &format!("{name}/"), release.time, &mut encoder)?;
    encoder.finish()?.flush()?;
    Ok(())
}

/// Writes `tree` in tar's format; every name begins with `prefix`, which ends with a slash or is empty.
pub fn tar(tree: &Tree, prefix: &str, time: u64, to: impl Write) -> Result<()> {
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
        let mut archive = tar::Archive::new(zstd::Decoder::new(&archive[..]).unwrap());
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
