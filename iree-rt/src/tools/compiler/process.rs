//! `iree-compile` as a child process.

use std::env;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;

use super::{CompileLimits, CompileOptions, Compiled, Source};
use crate::base::error::{Code, Error, Result};

/// Most text of diagnostics that an error carries, bytes.
const MOST_DIAGNOSTICS: usize = 16 << 10;

/// The variable by which the compiler is told of another linker.
const LINKER: &str = "IREE_LLVM_EMBEDDED_LINKER_PATH";

/// A compiler program that has told its version.
#[derive(Clone, Debug)]
pub(super) struct Program(Arc<(PathBuf, String)>);

impl Program {
    pub(super) fn open(path: PathBuf) -> Result<Self> {
        let output = Command::new(&path)
            .arg("--version")
            .stdin(Stdio::null())
            .output()
            .map_err(|e| Error::from(e).context(format!("running {}", path.display())))?;
        let text = String::from_utf8_lossy(&output.stdout);
        let version: Vec<&str> =
            text.lines().map(str::trim).filter(|line| line.contains("version")).collect();
        if !output.status.success() || version.is_empty() {
            return Err(Error::invalid(format!(
                "{} is no IREE compiler: `--version` ended with {}",
                path.display(),
                output.status
            )));
        }
        let version = version.join("; ");
        Ok(Self(Arc::new((path, version))))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0.0
    }

    pub(super) fn version(&self) -> &str {
        &self.0.1
    }

    pub(super) fn compile(
        &self,
        source: &Source<'_>,
        options: &CompileOptions,
        limits: &CompileLimits,
    ) -> Result<Compiled> {
        let scratch = tempfile::Builder::new()
            .prefix("iree-compile-")
            .tempdir()
            .map_err(|e| Error::from(e).context("making a temporary folder to compile in"))?;
        let output = scratch.path().join("out.vmfb");
        let input = match source.file()? {
            Some(file) => file,
            None => {
                let input = scratch.path().join("input.mlir");
                fs::write(&input, source.bytes())
                    .map_err(|e| Error::from(e).context(format!("writing {}", input.display())))?;
                input
            }
        };
        let mut command = Command::new(self.path());
        command.args(&options.flags).args(limits.flag());
        command.arg("-o").arg(&output).arg(&input).stdin(Stdio::null());
        if env::var_os(LINKER).is_none()
            && let Some(linker) = quoted_linker(self.path())
        {
            command.env(LINKER, linker);
        }
        let (status, diagnostics) = run(command, limits)
            .map_err(|e| e.context(format!("running {}", self.path().display())))?;
        // The user knows no such folder.
        let folder = format!("{}/", scratch.path().display());
        let diagnostics = String::from_utf8_lossy(&diagnostics).replace(&folder, "");
        let diagnostics = shorten(&diagnostics);
        if !status.success() {
            return Err(failure(status, diagnostics));
        }
        let module = fs::read(&output)
            .map_err(|e| Error::from(e).context("reading the compiler's output"))?;
        Ok(Compiled { module, diagnostics: diagnostics.to_owned() })
    }
}

/// The linker beside the compiler `program`, as a shell has to read it: IREE 3.13 starts it by one, and
/// in a folder with a space in its name finds none. `None` where there is no need.
fn quoted_linker(program: &Path) -> Option<String> {
    let linker = program.with_file_name(format!("iree-lld{}", env::consts::EXE_SUFFIX));
    let path =
        linker.to_str().filter(|_| cfg!(unix) && linker.is_absolute() && linker.is_file())?;
    let is_plain = |c: char| c.is_alphanumeric() || "/._-+".contains(c);
    (!path.chars().all(is_plain)).then(|| format!("'{}'", path.replace('\'', r"'\''")))
}

/// Runs `command` to its end, or until `limits` say that it is enough.
fn run(mut command: Command, limits: &CompileLimits) -> Result<(ExitStatus, Vec<u8>)> {
    let mut watch = limits.begin();
    watch.check()?;
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
    let mut errors = child.stderr.take().expect("a pipe was asked for");
    // Read all the time, or else the compiler waits for room in the pipe.
    let (sender, diagnostics) = mpsc::channel();
    let read = move || {
        let mut text = Vec::new();
        let _ = errors.read_to_end(&mut text);
        let _ = sender.send(text);
    };
    let reader = thread::Builder::new().name("iree-rt-diagnostics".into()).spawn(read);
    if let Err(error) = reader {
        let _ = child.kill();
        child.wait()?;
        return Err(error.into());
    }
    loop {
        // The pipe closes when the compiler ends, and nothing else waits for that without polling.
        match diagnostics.recv_timeout(watch.pause()) {
            Ok(text) => return Ok((child.wait()?, text)),
            Err(RecvTimeoutError::Disconnected) => return Ok((child.wait()?, Vec::new())),
            Err(RecvTimeoutError::Timeout) => {}
        }
        if let Err(error) = watch.check() {
            let _ = child.kill();
            child.wait()?;
            return Err(error);
        }
    }
}

fn failure(status: ExitStatus, diagnostics: &str) -> Error {
    let message = format!("iree-compile ended with {status}: {diagnostics}");
    // No exit code: a signal ended it.
    let code = if status.code().is_some() { Code::InvalidArgument } else { Code::Internal };
    Error::new(code, message)
}

/// The first [`MOST_DIAGNOSTICS`] bytes, which say more than the last.
pub(super) fn shorten(text: &str) -> &str {
    let mut end = text.len().min(MOST_DIAGNOSTICS);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].trim()
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn only_names_that_a_shell_would_split_are_quoted() {
        let folder = tempfile::tempdir().unwrap();
        let quoted = |name: &str| {
            let place = folder.path().join(name);
            fs::create_dir_all(&place).unwrap();
            fs::write(place.join("iree-lld"), "").unwrap();
            quoted_linker(&place.join("iree-compile"))
        };
        let at = folder.path().display();
        assert_eq!(quoted("plain-1.0"), None);
        assert_eq!(quoted("a b"), Some(format!("'{at}/a b/iree-lld'")));
        assert_eq!(quoted("it's"), Some(format!(r"'{at}/it'\''s/iree-lld'")));
        assert_eq!(quoted_linker(Path::new("/no/where at all/iree-compile")), None);
    }
}
