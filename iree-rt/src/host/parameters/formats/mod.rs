//! Where an archive has its parameters.
//!
//! IREE has parsers of its own. They are not used: that of 3.13 for `.irpa` reads outside of
//! damaged files, and that for `.gguf` has the numbers of types of 2023, when there was no BF16.

mod gguf;
mod irpa;

use std::fmt;
use std::path::Path;

use safetensors::SafeTensors;

use crate::base::error::{Code, Error, Result};

/// The format of an archive of parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ParameterFormat {
    /// IREE's own.
    Irpa,
    /// That of GGML and llama.cpp; tensors lie in it as they are, quantized or not.
    Gguf,
    /// That of Hugging Face.
    Safetensors,
}

impl ParameterFormat {
    /// The format that the extension of `path` says.
    pub fn of(path: impl AsRef<Path>) -> Option<Self> {
        let extension = path.as_ref().extension()?.to_str()?.to_ascii_lowercase();
        [Self::Irpa, Self::Gguf, Self::Safetensors]
            .into_iter()
            .find(|format| format.extension() == extension)
    }

    fn extension(self) -> &'static str {
        match self {
            Self::Irpa => "irpa",
            Self::Gguf => "gguf",
            Self::Safetensors => "safetensors",
        }
    }
}

/// A parameter of an archive.
pub(super) struct Found<'a> {
    pub(super) name: &'a str,
    pub(super) metadata: &'a [u8],
    pub(super) data: Data<'a>,
}

pub(super) enum Data<'a> {
    /// So many bytes from this one of the archive on, which may not all be there.
    Stored { offset: u64, length: u64 },
    /// These over and over, in so many bytes.
    Splat { pattern: &'a [u8], length: u64 },
}

/// Calls `found` with every parameter that `archive` lists.
pub(super) fn parse(
    format: ParameterFormat,
    archive: &[u8],
    found: &mut dyn FnMut(Found<'_>) -> Result<()>,
) -> Result<()> {
    match format {
        ParameterFormat::Irpa => irpa::parse(archive, found),
        ParameterFormat::Gguf => gguf::parse(archive, found),
        ParameterFormat::Safetensors => safetensors(archive, found),
    }
}

fn safetensors(archive: &[u8], found: &mut dyn FnMut(Found<'_>) -> Result<()>) -> Result<()> {
    let damaged = |error| Error::invalid(format!("no safetensors, or damaged: {error}"));
    let (header, metadata) = SafeTensors::read_metadata(archive).map_err(damaged)?;
    let data = 8 + header;
    for name in metadata.offset_keys() {
        let Some(info) = metadata.info(&name) else { continue };
        let (start, end) = info.data_offsets;
        found(Found {
            name: &name,
            metadata: b"",
            data: Data::Stored { offset: (data + start) as u64, length: (end - start) as u64 },
        })?;
    }
    Ok(())
}

/// The rest of an archive that is not read yet.
struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn new(bytes: &'a [u8], at: u64) -> Result<Self> {
        let at = usize::try_from(at).ok().filter(|&at| at <= bytes.len());
        Ok(Self { bytes, at: at.ok_or_else(truncated)? })
    }

    fn take(&mut self, length: u64) -> Result<&'a [u8]> {
        let length = usize::try_from(length).map_err(|_| truncated())?;
        let end = self.at.checked_add(length).ok_or_else(truncated)?;
        let taken = self.bytes.get(self.at..end).ok_or_else(truncated)?;
        self.at = end;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        self.take(N as u64).map(|bytes| bytes.try_into().expect("as many as were taken"))
    }

    fn u32(&mut self) -> Result<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64> {
        self.array().map(u64::from_le_bytes)
    }
}

fn text(bytes: &[u8]) -> Result<&str> {
    std::str::from_utf8(bytes).map_err(|_| Error::invalid("a parameter's name is not UTF-8"))
}

fn truncated() -> Error {
    Error::new(Code::OutOfRange, "the archive is truncated or damaged")
}

fn unsupported(what: impl fmt::Display) -> Error {
    Error::new(Code::Unimplemented, format!("the archive has {what}, which is not supported"))
}
