//! Verifies an IREE folder: its files, their hashes, and that its compiler works.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use iree_src::{MANIFEST, Manifest, prebuilt, sha256};

use super::progress::Progress;
use super::{Error, Result};

/// A function that needs the whole way to machine code, linker included.
const PROGRAM: &str = "func.func @add(%a: tensor<4xf32>, %b: tensor<4xf32>) -> tensor<4xf32> {
  %c = arith.addf %a, %b : tensor<4xf32>
  return %c : tensor<4xf32>
}
";

/// Verifies `folder` and returns its manifest.
///
/// # Errors
///
/// [`Error::Check`] with every problem that was found; there is no such folder; the errors of
/// [`Manifest::load`].
pub fn check(folder: &Path, progress: Progress) -> Result<Manifest> {
    if !folder.join(MANIFEST).exists() {
        return Err(Error::request(format!(
            "{} is no IREE folder: run `cargo xtask fetch-iree`, which makes one, without --check",
            folder.display()
        )));
    }
    let manifest = Manifest::load(folder)?;
    let mut problems = Vec::new();
    for path in manifest.missing(folder) {
        problems.push(format!("{} is missing", path.display()));
    }
    let step = progress.pieces("verify hashes", manifest.files.len() as u64);
    for file in &manifest.files {
        let path = folder.join(&file.path);
        if path.exists() && sha256::of_file(&path)? != file.sha256 {
            problems.push(format!("{} is not the file that was put there", file.path.display()));
        }
        step.add(1);
    }
    step.done();
    // One of the libraries has them all.
    let drivers = |archive: PathBuf| prebuilt::drivers(&folder.join(archive)).unwrap_or_default();
    let drivers: Vec<_> = manifest.archives().flat_map(drivers).collect();
    for driver in manifest.drivers.iter().filter(|driver| !drivers.contains(driver)) {
        problems.push(format!("no library has the driver {driver}"));
    }
    if let Some(compiler) = &manifest.compiler {
        let step = progress.spinner("try the compiler");
        problems.extend(try_compiler(&folder.join(compiler), &manifest.iree).err());
        step.done();
    }
    if problems.is_empty() {
        return Ok(manifest);
    }
    Err(Error::Check { folder: folder.to_owned(), problems })
}

fn try_compiler(compiler: &Path, version: &str) -> Result<(), String> {
    let name = compiler.display();
    match prebuilt::compiler_version(compiler) {
        None => return Err(format!("{name} --version does not run")),
        Some(found) if prebuilt::release(&found) != version => {
            return Err(format!("{name} is of version {found} instead of {version}"));
        }
        Some(_) => {}
    }
    let run = || {
        let mut command = Command::new(compiler);
        // IREE 3.13 starts its linker by a shell, and in a folder with a space in its name finds none. (`iree-rt` does
        // the same.) A compiler that is linked to has its own beside it.
        let linker = compiler.with_file_name("iree-lld");
        if linker.is_file() {
            let linker = linker.display().to_string().replace('\'', r"'\''");
            command.env("IREE_LLVM_EMBEDDED_LINKER_PATH", format!("'{linker}'"));
        }
        let mut child = command
            .args(["--iree-hal-target-device=local"])
            .args(["--iree-hal-local-target-device-backends=llvm-cpu"])
            .args(["--iree-llvmcpu-target-cpu=generic", "-o", "-", "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        if let Some(mut stdin) = child.stdin.take() {
            stdin.write_all(PROGRAM.as_bytes())?;
        }
        child.wait_with_output()
    };
    match run() {
        Ok(output) if output.status.success() && !output.stdout.is_empty() => Ok(()),
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            Err(format!("{name} cannot compile a small function: {text}"))
        }
        Err(e) => Err(format!("{name} cannot compile a small function: {e}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use iree_src::FileHash;
    use std::fs;

    #[test]
    fn lists_every_problem() {
        let dir = tempfile::tempdir().unwrap();
        let none = check(dir.path(), Progress::Silent).unwrap_err().to_string();
        assert!(none.contains("run `cargo xtask fetch-iree`"), "{none}");
        fs::create_dir_all(dir.path().join("lib")).unwrap();
        fs::write(dir.path().join("lib/libx.a"), "iree_hal_local_sync_driver_module_register")
            .unwrap();
        fs::write(dir.path().join("lib/libw.a"), "parameters").unwrap();
        let sum = sha256::of_file(&dir.path().join("lib/libx.a")).unwrap();
        let mut manifest = Manifest {
            link: vec!["static=w".into(), "static=x".into()],
            files: vec![FileHash { path: "lib/libx.a".into(), sha256: sum }],
            ..crate::iree::tests::manifest()
        };
        manifest.save(dir.path()).unwrap();
        check(dir.path(), Progress::Silent).unwrap();

        manifest.drivers.push("cuda".into());
        manifest.link.push("static=y".into());
        manifest.save(dir.path()).unwrap();
        fs::write(dir.path().join("lib/libx.a"), "changed").unwrap();
        let Err(Error::Check { problems, .. }) = check(dir.path(), Progress::Silent) else {
            panic!("the check passed");
        };
        let text = problems.join("\n");
        for expected in ["liby.a is missing", "libx.a is not the file", "the driver cuda"] {
            assert!(text.contains(expected), "{expected} is not in:\n{text}");
        }
    }
}
