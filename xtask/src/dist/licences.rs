//! The licences of the Rust crates that are linked into the program, as their packages have them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// How files are called in which packages say under which licence they are.
const NAMES: [&str; 6] = ["license", "licence", "copying", "notice", "copyright", "unlicense"];

/// Writes those of the program in `sources`, for `target`, to the file `to`.
pub fn write(sources: &Path, target: &str, to: &Path) -> Result<()> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["metadata", "--format-version=1", "--locked", "--no-default-features"]);
    cargo.args(["--features", "iree,cuda,vulkan", "--filter-platform", target, "--manifest-path"]);
    cargo.arg(sources.join("cli/Cargo.toml"));
    let metadata = iree_src::process::output("cargo metadata", &mut cargo)?;
    let metadata: Value = serde_json::from_str(&metadata)?;
    let mut packages = Vec::new();
    for package in linked(&metadata)? {
        packages.push(Package::read(package)?);
    }
    ensure!(!packages.is_empty(), "cargo metadata knows no dependency of the program");
    fs::write(to, text(&packages)).with_context(|| to.display().to_string())
}

/// A package and its papers.
#[derive(Debug)]
struct Package {
    /// With its version.
    name: String,
    /// As its `Cargo.toml` names it.
    licence: String,
    texts: Vec<String>,
}

/// The packages of others that `cli` is linked with, by their names.
fn linked(metadata: &Value) -> Result<Vec<&Value>> {
    let list = |value: &'_ Value| value.as_array().cloned().unwrap_or_default();
    let nodes = list(&metadata["resolve"]["nodes"]);
    let nodes: BTreeMap<_, _> = nodes.iter().map(|node| (node["id"].as_str(), node)).collect();
    let root = metadata["resolve"]["root"].as_str();
    let mut seen = BTreeSet::from([root]);
    let mut waiting = vec![root];
    while let Some(id) = waiting.pop() {
        let node = nodes.get(&id).context("cargo metadata lacks a package")?;
        for dependency in node["deps"].as_array().into_iter().flatten() {
            // Not what only builds or tests.
            let kinds = dependency["dep_kinds"].as_array();
            let is_linked = kinds.is_some_and(|all| all.iter().any(|it| it["kind"].is_null()));
            if is_linked && seen.insert(dependency["pkg"].as_str()) {
                waiting.push(dependency["pkg"].as_str());
            }
        }
    }
    let packages = metadata["packages"].as_array().into_iter().flatten();
    let mut linked: Vec<_> = packages
        // Those of the workspace come from no registry.
        .filter(|it| seen.contains(&it["id"].as_str()) && !it["source"].is_null())
        .collect();
    linked.sort_by_key(|it| (it["name"].as_str(), it["version"].as_str()));
    Ok(linked)
}

impl Package {
    fn read(package: &Value) -> Result<Package> {
        let word = |key: &str| package[key].as_str().unwrap_or_default();
        let manifest = Path::new(word("manifest_path"));
        let folder = manifest.parent().context("a manifest lies in a folder")?;
        let mut papers = Vec::new();
        for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
            if path.is_file() && NAMES.iter().any(|it| name.starts_with(it)) {
                papers.push(path);
            }
        }
        papers.sort();
        let read = |path| Ok(String::from_utf8_lossy(&fs::read(path)?).trim().to_owned());
        Ok(Package {
            name: format!("{} {}", word("name"), word("version")),
            licence: word("license").to_owned(),
            texts: papers.into_iter().map(read).collect::<Result<_>>()?,
        })
    }
}

/// Each text once, behind the names of all who have it.
fn text(packages: &[Package]) -> String {
    let mut all = "Rust crates that are linked into iree-llm, and their licences.\n\n".to_owned();
    let mut texts: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for package in packages {
        let _ = writeln!(all, "{}: {}", package.name, package.licence);
        for text in &package.texts {
            texts.entry(text).or_default().push(&package.name);
        }
    }
    let mut texts: Vec<_> = texts.into_iter().collect();
    texts.sort_by(|a, b| (&a.1, a.0).cmp(&(&b.1, b.0)));
    for (text, names) in texts {
        let _ = write!(all, "\n{}\n{}\n\n{text}\n", "-".repeat(80), names.join(", "));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_linked_counts() {
        let metadata = serde_json::json!({
            "packages": [
                {"id": "cli", "name": "cli", "version": "1.0.0", "source": null},
                {"id": "b", "name": "b", "version": "1.0.0", "source": "registry"},
                {"id": "a", "name": "a", "version": "1.0.0", "source": "registry"},
                {"id": "cc", "name": "cc", "version": "1.0.0", "source": "registry"},
            ],
            "resolve": {"root": "cli", "nodes": [
                {"id": "cli", "deps": [
                    {"pkg": "a", "dep_kinds": [{"kind": null}]},
                    {"pkg": "cc", "dep_kinds": [{"kind": "build"}, {"kind": "dev"}]},
                ]},
                {"id": "a", "deps": [{"pkg": "b", "dep_kinds": [{"kind": "build"}, {"kind": null}]}]},
                {"id": "b", "deps": []},
            ]},
        });
        let names: Vec<_> =
            linked(&metadata).unwrap().iter().map(|it| it["name"].as_str()).collect();
        assert_eq!(names, [Some("a"), Some("b")]);
    }

    #[test]
    fn a_text_that_many_have_stands_there_once() {
        let package = |name: &str, text: &str| Package {
            name: name.into(),
            licence: "MIT".into(),
            texts: vec![text.into()],
        };
        let text =
            text(&[package("a 1", "Be kind."), package("b 1", "Be kind."), package("c 1", "Be.")]);
        assert_eq!(text.matches("Be kind.").count(), 1);
        assert!(text.contains("a 1, b 1\n\nBe kind.") && text.contains("c 1: MIT"), "{text}");
    }
}
