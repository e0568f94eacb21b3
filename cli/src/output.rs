//! The file that results go to: it is opened before there is a model, and keeps what it has until then.

use std::fs::File;
use std::path::Path;

use anyhow::{Context, Result, ensure};

/// Opens `output` for what is made of `input`; `None` where it is `-`, stdout.
///
/// # Errors
///
/// It cannot be written, or is `input`.
pub fn open(output: &Path, input: Option<&Path>) -> Result<Option<File>> {
    if output.as_os_str() == "-" {
        return Ok(None);
    }
    let name = || output.display().to_string();
    if let (Some(Ok(from)), Ok(to)) = (input.map(Path::canonicalize), output.canonicalize()) {
        ensure!(from != to, "{}: that is the input; give --output another file", name());
    }
    let mut options = File::options();
    let file = options.write(true).create(true).truncate(false).open(output);
    Ok(Some(file.with_context(name)?))
}

/// Empties `file`, which is at `output`: now there will be results.
///
/// # Errors
///
/// The system's.
pub fn empty(file: &File, output: &Path) -> Result<()> {
    let empty = || match file.metadata()?.is_file() {
        true => file.set_len(0),
        false => Ok(()),
    };
    empty().with_context(|| output.display().to_string())
}
