//! IREE's compiler as packages have it: what its wheel has, without the names of functions, and with the
//! C++ library of an old system, so that it needs glibc and `/bin/sh`, by which it starts its linker.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use iree_src::Manifest;

use super::{COMPILER, elf, roots, tree};

/// The C++ library, and what it needs itself.
const LIBRARIES: [&str; 2] = ["libstdc++.so.6", "libgcc_s.so.1"];

/// Puts the compiler of the IREE folder `iree` into `tree`. The C++ library is that of the system whose
/// root is `system`, or else of Debian 11, which is brought below `folder`.
pub fn install(iree: &Path, system: Option<&Path>, folder: &Path, tree: &Path) -> Result<()> {
    let to = tree.join(COMPILER);
    copy(iree, &to)?;

    let system = match system {
        Some(system) => system.to_owned(),
        None => roots::debian(folder, roots::OLDEST)?,
    };
    for name in LIBRARIES {
        fs::write(to.join(name), elf::read(&find(&system, name)?)?)?;
    }
    let licence = system.join("usr/share/doc/libstdc++6/copyright");
    let licence = if licence.exists() {
        licence
    } else {
        system.join("usr/share/licenses/libgcc/COPYING.RUNTIME")
    };
    tree::copy(&licence, &tree.join("share/doc/iree-llm/LICENSE-libstdc++"))
}

/// Puts the compiler of the IREE folder `iree` into the folder `to`, without the C++ library.
pub fn copy(iree: &Path, to: &Path) -> Result<()> {
    let manifest = Manifest::load(iree)?;
    let library = manifest.compiler_library.context("the IREE folder has no compiler in it")?;
    for name in ["iree-compile", "iree-lld"] {
        let path = iree.join("bin").join(name);
        let mut data = elf::read(&path)?;
        elf::share_runpath(&mut data).with_context(|| path.display().to_string())?;
        tree::copy(&path, &to.join(name))?;
        fs::write(to.join(name), data)?;
    }
    let path = iree.join(&library);
    let mut data = elf::read(&path)?;
    elf::strip(&mut data).with_context(|| path.display().to_string())?;
    let to = to.join(library.file_name().context("a library has a name")?);
    fs::write(&to, data).with_context(|| to.display().to_string())
}

/// The library `name` of the system whose root is `system`.
fn find(system: &Path, name: &str) -> Result<PathBuf> {
    let multiarch = format!("{}-linux-gnu", std::env::consts::ARCH);
    let folders = [format!("usr/lib/{multiarch}"), format!("lib/{multiarch}"), "usr/lib64".into()];
    let mut found = folders.iter().map(|folder| system.join(folder).join(name));
    found.find(|path| path.exists()).with_context(|| format!("{} has no {name}", system.display()))
}
