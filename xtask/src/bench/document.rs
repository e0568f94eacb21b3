//! The parts of `docs/performance.md` and `docs/measurements.md` that are made here, each between two marks.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::flags::BenchPart;
use crate::workspace;

/// The document with `part`: what most people ask for, or the rest.
pub fn of(part: BenchPart) -> PathBuf {
    let name = match part {
        BenchPart::Table | BenchPart::Batched | BenchPart::Serve => "performance.md",
        BenchPart::Plot | BenchPart::Prefix | BenchPart::Speculate | BenchPart::Profile => {
            "measurements.md"
        }
    };
    workspace::root().join("docs").join(name)
}

/// The marks around `part`; `None` of what is only printed.
fn marks(part: BenchPart) -> Option<[String; 2]> {
    let command = match part {
        BenchPart::Table => "cargo xtask bench",
        BenchPart::Plot => "cargo xtask bench --part plot",
        BenchPart::Batched => "cargo xtask bench --part batched",
        BenchPart::Prefix => "cargo xtask bench --part prefix",
        BenchPart::Speculate => "cargo xtask bench --part speculate",
        BenchPart::Serve => "cargo xtask bench --part serve",
        BenchPart::Profile => return None,
    };
    Some(["begin", "end"].map(|mark| format!("<!-- made by `{command}`: {mark} -->")))
}

/// Checks that [`replace`] will find its place, before anything is measured.
///
/// # Errors
///
/// As [`replace`].
pub fn check(path: &Path, part: BenchPart) -> Result<()> {
    document(path, part, "").map(drop)
}

/// Puts `section` between the marks of `part` in the document at `path`, and says whether it has any.
///
/// # Errors
///
/// The file cannot be read or written, or lacks the marks.
pub fn replace(path: &Path, part: BenchPart, section: &str) -> Result<bool> {
    let Some(text) = document(path, part, section)? else { return Ok(false) };
    write(path, &text)?;
    Ok(true)
}

/// Makes `text` what is in the file at `path`: all of it, or what was there stays.
///
/// # Errors
///
/// The file cannot be written.
pub fn write(path: &Path, text: &str) -> Result<()> {
    // What a link leads to is written, and the link stays.
    let path = &fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let mut part = path.clone().into_os_string();
    part.push(".part");
    let written = fs::write(&part, text).and_then(|()| fs::rename(&part, path));
    written.with_context(|| path.display().to_string())
}

fn document(path: &Path, part: BenchPart, section: &str) -> Result<Option<String>> {
    let Some([begin, end]) = marks(part) else { return Ok(None) };
    let name = path.display();
    let text = fs::read_to_string(path).with_context(|| name.to_string())?;
    let text = between(&text, [&begin, &end], section).with_context(|| {
        format!("{name}: the lines `{begin}` and `{end}` are missing: add them")
    })?;
    Ok(Some(text))
}

fn between(text: &str, [begin, end]: [&str; 2], section: &str) -> Option<String> {
    let (before, rest) = text.split_once(begin)?;
    let (_, after) = rest.split_once(end)?;
    Some(format!("{before}{begin}\n\n{}\n\n{end}{after}", section.trim()))
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    use super::*;

    #[test]
    fn only_what_lies_between_the_marks_changes() {
        let text = "# Title\n<a>\nold\n</a>\n<b>\nother\n</b>\nrest\n";
        let expected = "# Title\n<a>\n\nnew\n\n</a>\n<b>\nother\n</b>\nrest\n";
        assert_eq!(between(text, ["<a>", "</a>"], "new\n").as_deref(), Some(expected));
        assert_eq!(between(expected, ["<a>", "</a>"], "new").as_deref(), Some(expected));
        assert_eq!(between("# Title", ["<a>", "</a>"], "new"), None);
    }

    #[test]
    fn a_file_is_replaced_as_a_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("page.md");
        write(&path, "one").unwrap();
        let mut open = fs::File::open(&path).unwrap();
        write(&path, "another").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "another");
        // Who has it open reads what was there, and not half of each.
        assert_eq!(std::io::read_to_string(&mut open).unwrap(), "one");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn the_documents_have_the_marks_of_every_part() {
        for &part in BenchPart::value_variants() {
            check(&of(part), part).unwrap();
        }
        let without = workspace::root().join("Cargo.toml");
        assert!(!replace(&without, BenchPart::Profile, "a profile").unwrap());
        let error = check(&without, BenchPart::Table).unwrap_err().to_string();
        assert!(error.contains("Cargo.toml") && error.contains("begin"), "{error}");
    }
}
