//! Parameters: the weights that a program names instead of containing them.

use anyhow::Result;
use iree_rt::{ParameterIndex, SessionBuilder};

/// Gives a session the archives of `specs` (`[SCOPE=]FILE`, in order), each read by `open`, those of
/// one scope together.
///
/// # Errors
/// A file's, which names it; two parameters of one scope and name.
pub fn give(
    mut builder: SessionBuilder,
    specs: &[String],
    open: impl Fn(&str) -> iree_rt::Result<ParameterIndex>,
) -> Result<SessionBuilder> {
    let mut scopes: Vec<(&str, ParameterIndex)> = Vec::new();
    for spec in specs {
        let (scope, path) = spec.split_once('=').unwrap_or(("", spec));
        let archive = open(path)?;
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
