//! The header of one file: what it says, and where each tensor lies, checked before it is believed.
//!
//! The format: magic, version, counts, keys with their values, a description of each tensor, and from
//! the next aligned byte on the tensors' data. Numbers are little-endian.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

use super::metadata::{Metadata, Value};
use super::reader::Reader;
use super::types;
use crate::header::Entry;
use crate::tensor::RowOrder;
use crate::{Error, Result};

/// Where data begins, if the file does not say: at multiples of so many bytes.
const ALIGNMENT: u64 = 32;
const MAX_DIMENSIONS: u32 = 4;

/// What one file holds.
#[derive(Debug)]
pub(crate) struct Header {
    pub metadata: Metadata,
    /// Under the names that the file has.
    pub tensors: BTreeMap<String, Entry>,
    /// SHA-256.
    pub digest: String,
}

impl Header {
    /// Reads that of `file`, which is at `path` and has `file_bytes`.
    pub fn read(file: &File, path: &Path, file_bytes: u64) -> Result<Self> {
        let mut from = Reader::new(BufReader::new(file), path, file_bytes);
        if file_bytes < 4 || from.bytes(4, "the magic")? != b"GGUF" {
            return Err(from.wrong("no GGUF file: it does not begin with \"GGUF\""));
        }
        let version = from.u32("the version")?;
        if (1..=3).contains(&version.swap_bytes()) {
            return Err(from.wrong(
                "a big-endian GGUF file: not supported; convert the model to little-endian",
            ));
        }
        if !(2..=3).contains(&version) {
            return Err(from.wrong(format!(
                "GGUF version {version} is not supported: supported are 2 and 3; convert the model \
                 again"
            )));
        }
        let tensors = from.u64("the number of tensors")?;
        let keys = from.u64("the number of keys")?;
        let metadata = Metadata::read(&mut from, keys)?;
        let alignment = alignment(&from, &metadata)?;
        let mut described = descriptions(&mut from, tensors, alignment)?;

        let data = from.at.checked_next_multiple_of(alignment).filter(|data| *data <= file_bytes);
        let Some(data) = data.or(described.is_empty().then_some(file_bytes)) else {
            return Err(from.wrong(format!(
                "truncated: the header alone takes {} bytes, the file has {file_bytes}; download \
                 it again",
                from.at
            )));
        };
        described.sort_by_key(|(_, entry)| (entry.start, entry.end));
        let mut tensors = BTreeMap::new();
        let mut before = 0;
        for (name, mut entry) in described {
            if entry.start < before {
                return Err(from.wrong(format!(
                    "tensor `{name}` overlaps the tensor before it (it starts at byte {} of the \
                     data, the one before it ends at {before}): the file is damaged",
                    entry.start
                )));
            }
            if entry.end > file_bytes - data {
                return Err(from.wrong(format!(
                    "truncated: tensor `{name}` ends at byte {} of the data, the file has {}; \
                     download it again",
                    entry.end,
                    file_bytes - data
                )));
            }
            before = entry.end;
            entry.start += data;
            entry.end += data;
            if tensors.insert(name.clone(), entry).is_some() {
                return Err(twice(&from, &name));
            }
        }
        Ok(Self { metadata, tensors, digest: from.digest() })
    }
}

fn twice(from: &Reader<impl Read>, name: &str) -> Error {
    from.wrong(format!("tensor `{name}` is there twice: the file is damaged"))
}

fn alignment(from: &Reader<impl Read>, metadata: &Metadata) -> Result<u64> {
    match metadata.get("general.alignment") {
        None => Ok(ALIGNMENT),
        Some(Value::Integer(value)) if u32::try_from(*value).is_ok_and(u32::is_power_of_two) => {
            Ok(*value as u64)
        }
        Some(other) => Err(from.wrong(format!(
            "`general.alignment` is {other:?}: expected a power of two; the file is damaged"
        ))),
    }
}

/// `count` tensors, whose places are from the first byte of the data on.
fn descriptions(
    from: &mut Reader<impl Read>,
    count: u64,
    alignment: u64,
) -> Result<Vec<(String, Entry)>> {
    // Of each: the length of its name and that, dimensions, type, offset.
    from.expect(count, 8 + 1 + 4 + 8 + 4 + 8, &format!("a list of {count} tensors"))?;
    let mut all = Vec::new();
    for number in 0..count {
        let name = from.name(&format!("the name of tensor {number}"))?;
        let what = format!("tensor `{name}`");
        let dimensions = from.u32(&what)?;
        if !(1..=MAX_DIMENSIONS).contains(&dimensions) {
            return Err(from.wrong(format!(
                "{what} has {dimensions} dimensions, not 1 to {MAX_DIMENSIONS}: the file is damaged"
            )));
        }
        let mut sizes = Vec::with_capacity(dimensions as usize);
        for _ in 0..dimensions {
            sizes.push(from.u64(&what)?);
        }
        let kind = from.u32(&what)?;
        let start = from.u64(&what)?;
        let Some(kind) = types::find(kind) else {
            return Err(from.wrong(format!(
                "{what} has the unknown element type {kind}: supported are {}",
                types::supported()
            )));
        };
        let elements = sizes.iter().try_fold(1_u64, |all, size| all.checked_mul(*size));
        let elements = elements.filter(|n| (1..=isize::MAX as u64).contains(n));
        let (of_block, bytes) = kind.block;
        let end = elements
            .and_then(|elements| (elements / of_block).checked_mul(bytes))
            .and_then(|bytes| start.checked_add(bytes))
            .filter(|end| *end <= i64::MAX as u64);
        let Some(end) = end else {
            return Err(from.wrong(format!(
                "{what} has dimensions {sizes:?} from byte {start} on, which no file can have: it \
                 is damaged"
            )));
        };
        if !sizes[0].is_multiple_of(of_block) {
            return Err(from.wrong(format!(
                "{what} has rows of {}, which are no whole blocks of {of_block} of {}: the file is \
                 damaged",
                sizes[0], kind.name
            )));
        }
        if !start.is_multiple_of(alignment) {
            return Err(from.wrong(format!(
                "{what} starts at byte {start} of the data, which is no multiple of {alignment} \
                 (`general.alignment`): the file is damaged"
            )));
        }
        // The file has the innermost dimension first.
        let shape = sizes.iter().rev().map(|size| *size as usize).collect();
        let (dtype, dtype_name) = (kind.dtype, kind.name.to_owned());
        let rows = RowOrder::Stored;
        all.push((name, Entry { dtype, dtype_name, shape, start, end, rows }));
    }
    Ok(all)
}
