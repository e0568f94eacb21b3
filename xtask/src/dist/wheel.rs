//! A Python wheel that puts the program on the path; no Python code is in it.
//!
//! What lies in its folder of data goes to the environment's own folders `lib` and `share`, beside the
//! `bin` with the program, so that the program finds it as in an archive. The format: "Binary distribution
//! format" of the Python packaging user guide, and PEP 600 for the tag.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::Path;

use anyhow::{Context, Result};
use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use sha2::{Digest, Sha256};
use zip::ZipWriter;
use zip::write::SimpleFileOptions;

use super::tree::Tree;
use super::{GLIBC, Release};

fn tag(release: &Release) -> String {
    format!("py3-none-manylinux_{}_{}_{}", GLIBC.0, GLIBC.1, release.arch())
}

/// What the wheel is called.
pub fn file_name(release: &Release) -> String {
    format!("iree_llm-{}-{}.whl", release.version, tag(release))
}

/// Writes `tree` as a wheel.
pub fn write(tree: &Tree, release: &Release, to: &Path) -> Result<()> {
    let file = File::create(to).with_context(|| to.display().to_string())?;
    let name = format!("iree_llm-{}", release.version);
    let mut wheel = Wheel { zip: ZipWriter::new(BufWriter::new(file)), record: String::new() };
    for file in &tree.files {
        let data = fs::read(&file.path).with_context(|| file.path.display().to_string())?;
        let place = match file.name.strip_prefix("bin/") {
            Some(program) => format!("{name}.data/scripts/{program}"),
            None => format!("{name}.data/data/{}", file.name),
        };
        wheel.add(&place, &data, file.is_program)?;
    }
    let info = format!("{name}.dist-info");
    wheel.add(&format!("{info}/METADATA"), metadata(release).as_bytes(), false)?;
    let about = format!(
        "Wheel-Version: 1.0\nGenerator: cargo xtask dist\nRoot-Is-Purelib: false\nTag: {}\n",
        tag(release)
    );
    wheel.add(&format!("{info}/WHEEL"), about.as_bytes(), false)?;
    let record = format!("{info}/RECORD");
    let lines = format!("{}{record},,\n", wheel.record);
    wheel.add(&record, lines.as_bytes(), false)?;
    wheel.zip.finish()?.flush()?;
    Ok(())
}

fn metadata(release: &Release) -> String {
    format!(
        "Metadata-Version: 2.1\nName: iree-llm\nVersion: {}\nSummary: {}\nLicense: Apache-2.0\n\
         Project-URL: Source, {}\nRequires-Python: >=3.7\nDescription-Content-Type: text/plain\n\n{}\n",
        release.version,
        super::deb::SUMMARY,
        super::deb::HOMEPAGE,
        super::deb::DESCRIPTION
    )
}

struct Wheel {
    zip: ZipWriter<BufWriter<File>>,
    record: String,
}

impl Wheel {
    fn add(&mut self, name: &str, data: &[u8], is_program: bool) -> Result<()> {
        let mode = if is_program { 0o755 } else { 0o644 };
        // The earliest time that the format has: what pip installs has the time of installing.
        let options = SimpleFileOptions::default()
            .compression_level(Some(9))
            .last_modified_time(zip::DateTime::default())
            .unix_permissions(mode);
        self.zip.start_file(name, options)?;
        self.zip.write_all(data)?;
        let hash = BASE64_URL_SAFE_NO_PAD.encode(Sha256::digest(data));
        self.record += &format!("{name},sha256={hash},{}\n", data.len());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::super::tree::tests::example;
    use super::*;

    #[test]
    fn every_file_is_recorded_and_lies_where_pip_looks() {
        let dir = tempfile::tempdir().unwrap();
        let tree = example(&dir.path().join("tree"));
        let target = "x86_64-unknown-linux-gnu".to_owned();
        let release = Release { version: "1.2.3".into(), target, time: 1 };
        let path = dir.path().join(file_name(&release));
        assert!(path.ends_with("iree_llm-1.2.3-py3-none-manylinux_2_28_x86_64.whl"));
        write(&tree, &release, &path).unwrap();
        let first = fs::read(&path).unwrap();
        write(&tree, &release, &path).unwrap();
        assert!(first == fs::read(&path).unwrap(), "another wheel the second time");

        let mut zip = zip::ZipArchive::new(File::open(&path).unwrap()).unwrap();
        let mut text = |name: &str| {
            let mut text = String::new();
            let mut file = zip.by_name(name).unwrap();
            file.read_to_string(&mut text).unwrap();
            (text, file.unix_mode().unwrap() & 0o777)
        };
        assert_eq!(text("iree_llm-1.2.3.data/scripts/run"), ("#!".into(), 0o755));
        assert_eq!(text("iree_llm-1.2.3.data/data/lib/x/y.so"), ("yyy".into(), 0o644));
        let (record, _) = text("iree_llm-1.2.3.dist-info/RECORD");
        // The hash of "a", as Python's documentation of the format writes it.
        let hash = "ypeBEsobvcr6wjGzmiPcTaeG7_gUfE5yuYB3ha_uSLs";
        let line = format!("iree_llm-1.2.3.data/data/share/doc/a.txt,sha256={hash},1");
        assert!(record.lines().any(|it| it == line), "{record}");
        assert!(record.ends_with("iree_llm-1.2.3.dist-info/RECORD,,\n"), "{record}");
        assert_eq!(record.lines().count(), zip.len());
    }
}
