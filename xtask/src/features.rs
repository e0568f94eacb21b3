//! The features of iree-rt: each builds without a warning by itself, and what is off is gone.

use std::process::Command;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::workspace;

/// Those that add to the crate: without the one for newcomers and those that build IREE.
pub fn of_iree_rt() -> Result<Vec<String>> {
    let package = iree_rt()?;
    let features = package["features"].as_object().context("iree-rt has no features")?;
    let features = features.keys();
    let features = features.filter(|name| *name != "default" && !name.starts_with("bundled"));
    Ok(features.cloned().collect())
}

/// The lints for what of the tests is left with the fewest features that run; with `each`, for none, for each of them alone
/// and for all. Of all the workspace's lints are, and of none those without IREE.
pub fn clippy(cargo: impl Fn(&[&str]) -> Command, each: bool) -> Result<()> {
    let clippy = |features: &str, rest: &[&str]| {
        let package = ["clippy", "--package=iree-rt", "--no-default-features", "--features"];
        let mut clippy = cargo(&package);
        clippy.arg(features).args(rest).args(["--", "-D", "warnings"]);
        workspace::run(&mut clippy)
    };
    if each {
        let features = of_iree_rt()?;
        let all = features.join(",");
        let alone = features.iter().map(String::as_str);
        for features in [""].into_iter().chain(alone).chain([all.as_str()]) {
            clippy(features, &[])?;
        }
    }
    clippy("link", &["--all-targets"])
}

/// The tests of what is said where a feature is off.
pub fn test(cargo: impl Fn(&[&str]) -> Command) -> Result<()> {
    let mut test = cargo(&["test", "--package=iree-rt", "--no-default-features"]);
    test.args(["--features=link,compiler", "--test=cuda", "--test=dependencies", "--test=vulkan"]);
    workspace::run(test.args(["--", "without", "gpus_are_asked_for"]))
}

/// What `cargo metadata` says of iree-rt.
pub fn iree_rt() -> Result<Value> {
    let metadata = workspace::metadata()?;
    let packages = metadata["packages"].as_array().context("cargo metadata has no packages")?;
    let package = packages.iter().find(|package| package["name"] == "iree-rt");
    package.cloned().context("cargo metadata has no iree-rt")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The optional dependencies of iree-rt with the versions that it asks for.
    fn optional() -> Vec<(String, String)> {
        let package = iree_rt().unwrap();
        let all = package["dependencies"].as_array().unwrap().iter();
        let optional = all.filter(|it| it["optional"] == true);
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        optional.map(|it| (text(&it["name"]), text(&it["req"]))).collect()
    }

    fn tree(edges: &str, features: &str) -> String {
        let mut tree = workspace::cargo();
        tree.args(["tree", "--package=iree-rt", "--prefix=none", "--edges", edges]);
        tree.args(["--no-default-features", "--features", features]);
        let output = tree.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    #[test]
    fn what_is_off_brings_no_dependency() {
        let optional = optional();
        assert!(optional.len() >= 6, "{optional:?}");
        let has =
            |tree: &str, name: &str| tree.lines().any(|line| line.split(' ').next() == Some(name));
        let least = tree("normal", "link");
        let most = tree("normal", &of_iree_rt().unwrap().join(","));
        for (name, _) in &optional {
            assert!(!has(&least, name), "{name} is there for `link`:\n{least}");
            assert!(has(&most, name), "{name} is for no feature:\n{most}");
        }
        assert!(!has(&tree("normal", "link,profile"), "tempfile"));
        assert!(!has(&tree("normal", "link,parameters"), "libloading"));
        assert!(!has(&tree("normal", "link,compiler"), "safetensors"));
    }

    #[test]
    fn only_tests_have_hooks_in_the_allocator() {
        let hooks = "allocation-hooks";
        assert!(tree("normal,dev,features", "link").contains(hooks));
        let all = of_iree_rt().unwrap().join(",");
        assert!(!tree("normal,features", &all).contains(hooks));
    }

    /// The Rust of the page is that of doctests, which compile it.
    #[test]
    fn the_programs_of_pages_compile() {
        let read = |path: &str| std::fs::read_to_string(workspace::root().join(path)).unwrap();
        let (page, compiled) = (read("docs/from-onnx-or-jax.md"), read("iree-rt/src/pages.rs"));
        let blocks: Vec<_> = page.split("```rust\n").skip(1).collect();
        assert!(blocks.len() >= 2, "only {} programs", blocks.len());
        for block in blocks {
            let lines = block.split("\n```").next().unwrap().lines();
            let documented: String = lines.map(|line| format!("///     {line}\n")).collect();
            assert!(
                compiled.contains(&documented),
                "iree-rt/src/pages.rs is without\n{documented}"
            );
        }
    }

    /// Crates whose types are in signatures are documented with their versions.
    #[test]
    fn public_dependencies_are_named_with_their_versions() {
        let folder = workspace::root().join("iree-rt/src");
        let mut text = String::new();
        let mut folders = vec![folder];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                match path.is_dir() {
                    true => folders.push(path),
                    false => text += &std::fs::read_to_string(path).unwrap(),
                }
            }
        }
        text += &std::fs::read_to_string(workspace::root().join("iree-rt/Cargo.toml")).unwrap();
        for name in ["cudarc", "dlpark", "ndarray"] {
            let (_, asked_for) = optional().into_iter().find(|(it, _)| it == name).unwrap();
            let quoted = format!("`{name}` ");
            let named = text.split(&quoted).skip(1).filter_map(|rest| {
                let digits = |c: char| c.is_ascii_digit() || c == '.';
                let version = rest.split(|c| !digits(c)).next()?.trim_end_matches('.');
                (!version.is_empty()).then_some(version)
            });
            let named: Vec<_> = named.collect();
            assert!(named.len() >= 3, "{name} is named {} times with a version", named.len());
            let fits = |version: &&str| asked_for.starts_with(&format!("^{version}"));
            assert!(named.iter().all(fits), "{name} {asked_for} is called {named:?}");
        }
    }
}
