//! A compiler that runs here and compiles for another machine.

use std::fs;
use std::path::{Path, PathBuf};

use super::{Error, Result};

/// Programs ask for code for the CPU that they run on, or any of its architecture, which is not that of the one that the
/// compiler runs on.
/// An emulator of user programs starts others natively, so that this script runs here, too.
const SCRIPT: &str = r#"#!/bin/sh
n=$#
while [ $n -gt 0 ]; do
  argument=$1; shift; n=$((n-1))
  case "$argument" in
    --iree-llvmcpu-target-cpu=host|--iree-llvmcpu-target-cpu=generic)
      set -- "$@" --iree-llvmcpu-target-triple=TARGET --iree-llvmcpu-target-cpu=generic;;
    *) set -- "$@" "$argument";;
  esac
done
exec 'COMPILER' "$@"
"#;

/// Writes `iree-compile` into the folder `bin` of an IREE folder, which runs `compiler` for `target`; its
/// path in the IREE folder.
pub fn compiler(target: &str, compiler: &Path, bin: &Path) -> Result<PathBuf> {
    let path = bin.join("iree-compile");
    let quoted = compiler.display().to_string().replace('\'', r"'\''");
    let script = SCRIPT.replace("TARGET", target).replace("COMPILER", &quoted);
    fs::write(&path, script).map_err(Error::io("write", &path))?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let executable = fs::Permissions::from_mode(0o755);
        fs::set_permissions(&path, executable).map_err(Error::io("make executable", &path))?;
    }
    Ok(Path::new("bin").join("iree-compile"))
}

#[cfg(all(test, unix))]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn code_for_the_host_is_code_for_the_other_machine() {
        let dir = tempfile::tempdir().unwrap();
        let program = compiler("aarch64-unknown-linux-gnu", Path::new("/bin/echo"), dir.path());
        assert_eq!(program.unwrap(), Path::new("bin/iree-compile"));
        for cpu in ["--iree-llvmcpu-target-cpu=host", "--iree-llvmcpu-target-cpu=generic"] {
            let mut compile = Command::new(dir.path().join("iree-compile"));
            let said = compile.args(["a b", cpu, "-o", "c"]).output().unwrap();
            assert_eq!(
                String::from_utf8(said.stdout).unwrap(),
                "a b --iree-llvmcpu-target-triple=aarch64-unknown-linux-gnu \
                 --iree-llvmcpu-target-cpu=generic -o c\n"
            );
        }
    }
}
