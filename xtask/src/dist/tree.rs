//! The files of a package, in one order, with nothing of this machine about them.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

/// Files below a folder.
#[derive(Debug, Clone)]
pub struct Tree {
    /// By their names.
    pub files: Vec<File>,
}

/// A file of the tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct File {
    /// Its name in the tree, with slashes.
    pub name: String,
    /// Where it lies.
    pub path: PathBuf,
    /// Whether it is a program.
    pub is_program: bool,
    /// Its size in bytes.
    pub bytes: u64,
}

impl Tree {
    /// All files in `folder`.
    pub fn read(folder: &Path) -> Result<Tree> {
        let mut files = Vec::new();
        collect(folder, "", &mut files)?;
        files.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(Tree { files })
    }

    /// The tree without the files in its folder `name`.
    pub fn without(&self, name: &str) -> Tree {
        let inside = format!("{name}/");
        let files = self.files.iter().filter(|file| !file.name.starts_with(&inside));
        Tree { files: files.cloned().collect() }
    }

    /// The folders of all files, each behind the one that it is in.
    pub fn folders(&self) -> Vec<&str> {
        let mut folders: Vec<_> = self
            .files
            .iter()
            .flat_map(|file| file.name.match_indices('/').map(|(at, _)| &file.name[..at]))
            .collect();
        folders.sort_unstable();
        folders.dedup();
        folders
    }

    /// Bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }
}

fn collect(folder: &Path, inside: &str, files: &mut Vec<File>) -> Result<()> {
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let entry = entry?;
        let name = entry.file_name().into_string().ok().context("a name that is not UTF-8")?;
        let (path, name) = (entry.path(), format!("{inside}{name}"));
        let meta = entry.metadata()?;
        if meta.is_dir() {
            collect(&path, &format!("{name}/"), files)?;
        } else {
            ensure!(meta.is_file(), "{} is neither file nor folder", path.display());
            let is_program = is_program(&meta);
            files.push(File { name, path, is_program, bytes: meta.len() });
        }
    }
    Ok(())
}

#[cfg(unix)]
fn is_program(meta: &fs::Metadata) -> bool {
    use std::os::unix::fs::PermissionsExt;
    meta.permissions().mode() & 0o100 != 0
}

#[cfg(not(unix))]
fn is_program(_: &fs::Metadata) -> bool {
    false
}

/// Copies a file into a folder that need not be there.
pub fn copy(from: &Path, to: &Path) -> Result<()> {
    if let Some(parent) = to.parent() {
        fs::create_dir_all(parent).with_context(|| parent.display().to_string())?;
    }
    fs::copy(from, to).map(drop).with_context(|| format!("{} to {}", from.display(), to.display()))
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A tree of a program and two other files.
    pub fn example(folder: &Path) -> Tree {
        for (name, text) in [("share/doc/a.txt", "a"), ("bin/run", "#!"), ("lib/x/y.so", "yyy")] {
            let path = folder.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, text).unwrap();
            #[cfg(unix)]
            if name.starts_with("bin") {
                use std::os::unix::fs::PermissionsExt;
                fs::set_permissions(&path, fs::Permissions::from_mode(0o775)).unwrap();
            }
        }
        Tree::read(folder).unwrap()
    }

    #[test]
    fn files_and_folders_are_in_order() {
        let dir = tempfile::tempdir().unwrap();
        let tree = example(dir.path());
        let names = |tree: &Tree| tree.files.iter().map(|it| it.name.clone()).collect::<Vec<_>>();
        assert_eq!(names(&tree), ["bin/run", "lib/x/y.so", "share/doc/a.txt"]);
        assert_eq!(tree.folders(), ["bin", "lib", "lib/x", "share", "share/doc"]);
        assert_eq!(tree.bytes(), 6);
        assert_eq!(names(&tree.without("lib/x")), ["bin/run", "share/doc/a.txt"]);
        assert_eq!(
            tree.files.iter().map(|it| it.is_program).collect::<Vec<_>>(),
            [true, false, false]
        );
    }
}
