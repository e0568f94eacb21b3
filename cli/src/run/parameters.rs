//! Parameters: the weights that a program names instead of containing them.

use anyhow::Result;
use iree_rt::{ParameterIndex, SessionBuilder};

use crate::commands::run::ParameterMode;

/// Gives a session the archives of `specs` (`[SCOPE=]FILE`, in order), those of one scope together.
///
/// # Errors
/// A file's, which names it; two parameters of one scope and name.
pub fn give(
    mut builder: SessionBuilder,
    specs: &[String],
    mode: ParameterMode,
) -> Result<SessionBuilder> {
    let mut scopes: Vec<(&str, ParameterIndex)> = Vec::new();
    for spec in specs {
        let (scope, path) = spec.split_once('=').unwrap_or(("", spec));
        let archive = match mode {
            // SAFETY: the archive is the user's, who has asked for it to be used in place, and
            // nothing here writes to the file.
            ParameterMode::File => unsafe { ParameterIndex::from_file(path)? },
            ParameterMode::Preload => ParameterIndex::read_file(path)?,
        };
        match scopes.iter().find(|(known, _)| *known == scope) {
            Some((_, index)) => index.extend(&archive).map_err(|e| e.context(path))?,
            None => scopes.push((scope, archive)),
        }
    }
    for (scope, index) in &scopes {
        builder = builder.parameters(scope, index);
    }
    Ok(builder)
}
