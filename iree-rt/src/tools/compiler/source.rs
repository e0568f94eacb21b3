//! What is compiled.

use std::borrow::Cow;
use std::path::{self, Path, PathBuf};

use crate::base::error::{Error, Result};

/// MLIR for [`Compiler::compile`](crate::Compiler::compile): text, bytecode, or a file of either.
///
/// A string is the text itself and never a name; a [`Path`] is a file, which the compiler reads by
/// itself. Bytes are text or bytecode, such as what JAX exports
/// (`jax.export.export(f)(x).mlir_module_serialized`).
///
/// ```no_run
/// # fn main() -> iree_rt::Result<()> {
/// use std::path::Path;
///
/// use iree_rt::{CompileOptions, Compiler};
///
/// let (compiler, options) = (Compiler::find()?, CompileOptions::default());
/// compiler.compile("func.func @f() { return }", &options)?;
/// compiler.compile(&std::fs::read("vit.mlirbc")?, &options)?;
/// compiler.compile(Path::new("vit.mlirbc"), &options)?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Source<'a>(Kind<'a>);

#[derive(Clone, Debug)]
enum Kind<'a> {
    Bytes(Cow<'a, [u8]>),
    File(Cow<'a, Path>),
}

impl Source<'_> {
    /// The bytes, if they are in memory.
    pub(super) fn bytes(&self) -> &[u8] {
        match &self.0 {
            Kind::Bytes(bytes) => bytes,
            Kind::File(_) => &[],
        }
    }

    /// The absolute path, if it is a file: one that begins with `-` is no flag then.
    ///
    /// # Errors
    /// When there is no such file.
    pub(super) fn file(&self) -> Result<Option<PathBuf>> {
        let Kind::File(file) = &self.0 else { return Ok(None) };
        let absolute = std::fs::File::open(file).and_then(|_| path::absolute(file));
        let absolute = absolute
            .map_err(|e| Error::from(e).context(format!("reading MLIR of {}", file.display())))?;
        Ok(Some(absolute))
    }

    pub(super) fn to_owned(&self) -> Source<'static> {
        Source(match &self.0 {
            Kind::Bytes(bytes) => Kind::Bytes(Cow::Owned(bytes.to_vec())),
            Kind::File(file) => Kind::File(Cow::Owned(file.to_path_buf())),
        })
    }
}

impl<'a> From<&'a [u8]> for Source<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Self(Kind::Bytes(bytes.into()))
    }
}

impl<'a, const N: usize> From<&'a [u8; N]> for Source<'a> {
    fn from(bytes: &'a [u8; N]) -> Self {
        bytes.as_slice().into()
    }
}

impl<'a> From<&'a Vec<u8>> for Source<'a> {
    fn from(bytes: &'a Vec<u8>) -> Self {
        bytes.as_slice().into()
    }
}

impl<'a> From<&'a str> for Source<'a> {
    fn from(text: &'a str) -> Self {
        text.as_bytes().into()
    }
}

impl<'a> From<&'a String> for Source<'a> {
    fn from(text: &'a String) -> Self {
        text.as_bytes().into()
    }
}

impl<'a> From<&'a Path> for Source<'a> {
    fn from(file: &'a Path) -> Self {
        Self(Kind::File(file.into()))
    }
}

impl<'a> From<&'a PathBuf> for Source<'a> {
    fn from(file: &'a PathBuf) -> Self {
        file.as_path().into()
    }
}
