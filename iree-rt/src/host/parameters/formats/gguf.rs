//! The format of GGML, as `docs/gguf.md` of its repository describes it.

use super::{Data, Found, Reader, text, truncated, unsupported};
use crate::base::error::{Error, Result};

/// Where tensors begin, when the archive does not say otherwise, bytes.
const DEFAULT_ALIGNMENT: u64 = 32;

/// Types by their numbers in `ggml.h`: elements of a block, and bytes of it.
const TYPES: [(u32, u64, u64); 32] = [
    (0, 1, 4),      // F32
    (1, 1, 2),      // F16
    (2, 32, 18),    // Q4_0
    (3, 32, 20),    // Q4_1
    (6, 32, 22),    // Q5_0
    (7, 32, 24),    // Q5_1
    (8, 32, 34),    // Q8_0
    (9, 32, 36),    // Q8_1
    (10, 256, 84),  // Q2_K
    (11, 256, 110), // Q3_K
    (12, 256, 144), // Q4_K
    (13, 256, 176), // Q5_K
    (14, 256, 210), // Q6_K
    (15, 256, 292), // Q8_K
    (16, 256, 66),  // IQ2_XXS
    (17, 256, 74),  // IQ2_XS
    (18, 256, 98),  // IQ3_XXS
    (19, 256, 50),  // IQ1_S
    (20, 32, 18),   // IQ4_NL
    (21, 256, 110), // IQ3_S
    (22, 256, 82),  // IQ2_S
    (23, 256, 136), // IQ4_XS
    (24, 1, 1),     // I8
    (25, 1, 2),     // I16
    (26, 1, 4),     // I32
    (27, 1, 8),     // I64
    (28, 1, 8),     // F64
    (29, 256, 56),  // IQ1_M
    (30, 1, 2),     // BF16
    (34, 256, 54),  // TQ1_0
    (35, 256, 66),  // TQ2_0
    (39, 32, 17),   // MXFP4
];

const UINT32: u32 = 4;
const STRING: u32 = 8;
const ARRAY: u32 = 9;

pub(super) fn parse(archive: &[u8], found: &mut dyn FnMut(Found<'_>) -> Result<()>) -> Result<()> {
    let mut reader = Reader::new(archive, 0)?;
    if reader.take(4)? != b"GGUF" {
        return Err(Error::invalid("no GGUF archive: it does not begin with GGUF"));
    }
    let version = reader.u32()?;
    if !(2..=3).contains(&version) {
        return Err(unsupported(format_args!("version {version} of the format")));
    }
    let (tensors, pairs) = (reader.u64()?, reader.u64()?);
    let mut alignment = DEFAULT_ALIGNMENT;
    for _ in 0..pairs {
        let key = string(&mut reader)?;
        let ty = reader.u32()?;
        if key == b"general.alignment" && ty == UINT32 {
            alignment = reader.u32()?.into();
        } else {
            skip(&mut reader, ty)?;
        }
    }
    if alignment == 0 {
        return Err(Error::invalid("an alignment of 0"));
    }
    // Tensors lie behind the list of them: once through it to find its end.
    let mut list = Reader { ..reader };
    for _ in 0..tensors {
        Tensor::read(&mut reader)?;
    }
    let data = (reader.at as u64).next_multiple_of(alignment);
    for _ in 0..tensors {
        let tensor = Tensor::read(&mut list)?;
        let offset = data.checked_add(tensor.offset).ok_or_else(truncated)?;
        let data = Data::Stored { offset, length: tensor.length()? };
        found(Found { name: tensor.name, metadata: b"", data })?;
    }
    Ok(())
}

struct Tensor<'a> {
    name: &'a str,
    elements: u64,
    ty: u32,
    /// From the first tensor on, bytes.
    offset: u64,
}

impl<'a> Tensor<'a> {
    fn read(reader: &mut Reader<'a>) -> Result<Self> {
        let name = text(string(reader)?)?;
        let mut elements = 1u64;
        for _ in 0..reader.u32()? {
            elements = elements.checked_mul(reader.u64()?).ok_or_else(truncated)?;
        }
        Ok(Self { name, elements, ty: reader.u32()?, offset: reader.u64()? })
    }

    /// Bytes.
    fn length(&self) -> Result<u64> {
        let known = TYPES.iter().find(|(ty, ..)| *ty == self.ty);
        let &(_, block, bytes) = known.ok_or_else(|| {
            unsupported(format_args!("tensor `{}` of GGML type {}", self.name, self.ty))
        })?;
        if !self.elements.is_multiple_of(block) {
            return Err(Error::invalid(format!(
                "tensor `{}`: {} elements are not whole blocks of {block}",
                self.name, self.elements
            )));
        }
        (self.elements / block).checked_mul(bytes).ok_or_else(truncated)
    }
}

fn string<'a>(reader: &mut Reader<'a>) -> Result<&'a [u8]> {
    let length = reader.u64()?;
    reader.take(length)
}

/// Goes past a value of metadata.
fn skip(reader: &mut Reader<'_>, ty: u32) -> Result<()> {
    match ty {
        STRING => string(reader).map(drop),
        ARRAY => {
            let (element, count) = (reader.u32()?, reader.u64()?);
            if let Some(size) = size(element) {
                return reader.take(count.checked_mul(size).ok_or_else(truncated)?).map(drop);
            }
            // Not nested: GGML has no such arrays, and a damaged file could nest them deeply.
            if element != STRING {
                return Err(unsupported(format_args!("an array of metadata of type {element}")));
            }
            (0..count).try_for_each(|_| string(reader).map(drop))
        }
        other => match size(other) {
            Some(size) => reader.take(size).map(drop),
            None => Err(unsupported(format_args!("metadata of type {other}"))),
        },
    }
}

/// Bytes of a value of metadata that is neither text nor an array.
fn size(ty: u32) -> Option<u64> {
    match ty {
        0 | 1 | 7 => Some(1),
        2 | 3 => Some(2),
        4..=6 => Some(4),
        10..=12 => Some(8),
        _ => None,
    }
}
