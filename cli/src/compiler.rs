//! IREE's compiler, where this program has it: beside itself, as packages do, or as `fetch compiler` left it.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use iree_src::wheel::{self, Wheel};
use iree_src::{IREE_VERSION, compiler_part, host_target};

use crate::incoming;
use crate::progress::Progress;

/// What to do where a model has to be compiled and there is no compiler.
pub const ADVICE: &str = "run `iree-llm fetch compiler`, which brings it";

/// The compiler that came with the program, or else the one that was fetched, if there is one.
///
/// Where there is none, [`iree_rt::Compiler::find`] looks elsewhere.
pub fn installed() -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?;
    let packaged = program.parent()?.join("../lib/iree-llm");
    [Some(packaged), folder()]
        .into_iter()
        .flatten()
        .map(|it| program_in(&it))
        .find(|it| it.is_file())
}

/// What a stranger does about `error`, if that is that there is no compiler.
pub fn advice(error: &anyhow::Error) -> Option<&'static str> {
    let missing = error
        .chain()
        .any(|cause| matches!(cause.downcast_ref(), Some(xla_session::Error::NoCompiler { .. })));
    missing.then_some(ADVICE)
}

/// What to do about `error` where a compiler was asked for; `named` is whether there was one to try.
pub fn fix(error: &iree_rt::Error, named: bool) -> &'static str {
    match named {
        false if error.code() == iree_rt::Code::NotFound => ADVICE,
        _ => "name another iree-compile with --iree-compile",
    }
}

/// Where the compiler of this version is kept once it was fetched: what belongs to the user and is no
/// cache.
fn folder() -> Option<PathBuf> {
    Some(dirs::data_local_dir()?.join("iree-llm").join(format!("iree-{IREE_VERSION}")))
}

fn program_in(folder: &Path) -> PathBuf {
    folder.join(format!("iree-compile{}", std::env::consts::EXE_SUFFIX))
}

/// Where the compiler is taken from.
pub enum Origin<'a> {
    /// The Python registry, by pip.
    Registry,
    /// The registry's wheel, which somebody brought.
    File(&'a Path),
    /// Nowhere: it is there, or that is an error.
    Offline,
}

/// Brings the pinned compiler, unless it is there; returns where its program is.
///
/// # Errors
///
/// There is none for this machine, pip or the network are missing, or another file came.
pub fn fetch(origin: &Origin<'_>, progress: &Progress) -> Result<PathBuf> {
    let folder = folder().context("no folder for the user's data is known: set XDG_DATA_HOME")?;
    fetch_into(&folder, origin, progress)
}

fn fetch_into(folder: &Path, origin: &Origin<'_>, progress: &Progress) -> Result<PathBuf> {
    let program = program_in(folder);
    if program.is_file() {
        return Ok(program);
    }
    let fix = "name an iree-compile with --iree-compile";
    let wheel = Wheel::find("iree-base-compiler", &host_target(), fix)?;
    let parent = folder.parent().unwrap_or(folder);
    // Two that need it bring it once.
    let _lock = incoming::lock(parent, progress)?;
    if program.is_file() {
        return Ok(program);
    }
    let incoming = incoming::folder(parent)?;
    let file = match origin {
        Origin::Offline => bail!(
            "the compiler is not there ({}), and --offline forbids to fetch it: bring {} of the \
             Python registry (sha256 {}), and give it with --from",
            program.display(),
            wheel.file,
            wheel.sha256
        ),
        Origin::File(path) => {
            wheel.verify(path, &format!("{} is needed", wheel.file))?;
            path.to_path_buf()
        }
        Origin::Registry => download(&wheel, incoming.path(), progress)?,
    };
    let unpacked = incoming.path().join("compiler");
    let bar = progress.bytes("unpack the compiler", 0);
    let hashes = wheel::unpack(
        &file,
        &unpacked,
        |path| compiler_part(path).map(PathBuf::from),
        |done, of| {
            bar.set_length(of);
            bar.set_position(done);
        },
    )?;
    bar.finish_and_clear();
    if !hashes.iter().any(|it| unpacked.join(&it.path) == program_in(&unpacked)) {
        bail!("{} has no iree-compile in it", wheel.file);
    }
    fs::rename(&unpacked, folder).with_context(|| folder.display().to_string())?;
    Ok(program)
}

fn download(wheel: &Wheel, into: &Path, progress: &Progress) -> Result<PathBuf> {
    let shown = progress.transfer("download the compiler", Some(wheel.bytes));
    let set = |bytes| shown.set(bytes, Some(wheel.bytes));
    let file = wheel.download("python3".as_ref(), into, set);
    drop(shown);
    file.map_err(|error| {
        anyhow!(
            "{error}\nthe compiler is fetched by pip (Python 3 with pip, and a network); or bring {} \
             of the Python registry (sha256 {}), and give it with --from",
            wheel.file,
            wheel.sha256
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_there_is_not_fetched_and_what_is_not_is_said_offline() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("iree-llm/iree");
        let progress = Progress::new(true);
        let error = fetch_into(&folder, &Origin::Offline, &progress).unwrap_err().to_string();
        assert!(error.contains("--from") && error.contains("iree_base_compiler"), "{error}");
        fs::create_dir_all(&folder).unwrap();
        fs::write(program_in(&folder), "").unwrap();
        let found = fetch_into(&folder, &Origin::Offline, &progress).unwrap();
        assert_eq!(found, program_in(&folder));
    }

    #[test]
    fn another_file_than_the_pinned_one_is_refused_and_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let (folder, wheel) = (dir.path().join("there/iree"), dir.path().join("a.whl"));
        fs::write(&wheel, "not a wheel").unwrap();
        let error = fetch_into(&folder, &Origin::File(&wheel), &Progress::new(true)).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("a.whl") && text.contains("sha256"), "{text}");
        let left: Vec<_> = fs::read_dir(dir.path().join("there")).unwrap().flatten().collect();
        assert_eq!(left.len(), 1, "only the lock: {left:?}");
    }

    #[test]
    fn only_a_missing_compiler_is_advised_about() {
        let source = iree_rt::Error::new(iree_rt::Code::NotFound, "no iree-compile: looked here");
        let (graph, code) = ("model".into(), "x".into());
        let missing = xla_session::Error::NoCompiler { graph, code, source };
        let error = anyhow::Error::from(missing).context("opening it");
        assert_eq!(advice(&error), Some(ADVICE));
        assert!(crate::chain(&error).contains("looked here"), "{error:?}");
        assert_eq!(advice(&anyhow!("no such file")), None);
        let error = iree_rt::Error::new(iree_rt::Code::NotFound, "no such program");
        assert_eq!(fix(&error, false), ADVICE);
        assert!(fix(&error, true).contains("--iree-compile"));
        let error = iree_rt::Error::new(iree_rt::Code::Internal, "it does not run");
        assert!(fix(&error, false).contains("--iree-compile"));
    }
}
