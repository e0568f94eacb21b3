//! Another machine than this one, for which the runtime is built here.

use std::path::Path;

use crate::{Error, Result, cmake};

/// A machine with Linux that GCC builds for, under the names that Debian gives its programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cross {
    /// As cmake calls it.
    processor: &'static str,
    /// What the names of programs begin with, and where C libraries for it are.
    gnu: &'static str,
}

const MACHINES: [(&str, Cross); 1] =
    [("aarch64-unknown-linux-gnu", Cross { processor: "aarch64", gnu: "aarch64-linux-gnu" })];

impl Cross {
    /// The machine that Rust calls `target`; `None` where nobody has tried.
    pub fn to(target: &str) -> Option<Cross> {
        MACHINES.into_iter().find_map(|(name, machine)| (name == target).then_some(machine))
    }

    /// What a program of GCC for this machine is called: `gcc`, `g++`, `ar`.
    pub fn program(self, name: &str) -> String {
        format!("{}-{name}", self.gnu)
    }

    /// The folder with what dynamic programs for this machine load.
    pub fn libraries(self) -> String {
        format!("/usr/{}", self.gnu)
    }

    /// Whether its compilers are on `path`.
    ///
    /// # Errors
    ///
    /// [`Error::Tool`] when one is not.
    pub fn check(self, path: &[std::path::PathBuf]) -> Result<()> {
        let missing = |name: &&str| cmake::find(path, &self.program(name)).is_none();
        let Some(name) = ["gcc", "g++", "ar"].into_iter().find(missing) else { return Ok(()) };
        Err(Error::Tool {
            tool: self.program(name),
            why: "not on PATH".into(),
            fix: format!(
                "install GCC for {} (Debian: apt install gcc-{gnu} g++-{gnu})",
                self.processor,
                gnu = self.gnu
            ),
        })
    }

    /// What cmake is told; `host` is a folder with IREE's `iree-flatcc-cli`, which writes sources.
    pub(crate) fn options(self, host: &Path) -> Vec<String> {
        let mut options = vec![
            "CMAKE_SYSTEM_NAME=Linux".to_owned(),
            format!("CMAKE_SYSTEM_PROCESSOR={}", self.processor),
            format!("CMAKE_FIND_ROOT_PATH={}", self.libraries()),
            "CMAKE_FIND_ROOT_PATH_MODE_PROGRAM=NEVER".to_owned(),
            format!("IREE_HOST_BIN_DIR={}", host.display()),
        ];
        let only = ["LIBRARY", "INCLUDE", "PACKAGE"];
        options.extend(only.map(|it| format!("CMAKE_FIND_ROOT_PATH_MODE_{it}=ONLY")));
        let programs =
            [("C_COMPILER", "gcc"), ("CXX_COMPILER", "g++"), ("AR", "ar"), ("RANLIB", "ranlib")];
        options.extend(programs.map(|(it, name)| format!("CMAKE_{it}={}", self.program(name))));
        options
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_compiler_says_what_to_install() {
        let machine = Cross::to("aarch64-unknown-linux-gnu").unwrap();
        let error = machine.check(&[]).unwrap_err().to_string();
        assert!(error.contains("apt install gcc-aarch64-linux-gnu"), "{error}");
        assert_eq!(Cross::to("riscv64gc-unknown-linux-gnu"), None);
    }
}
