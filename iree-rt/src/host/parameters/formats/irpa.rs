//! IREE's own format, as `iree/schemas/parameter_archive.h` describes it.

use super::{Data, Found, Reader, text, truncated, unsupported};
use crate::base::error::{Error, Result};

const MAGIC: &[u8] = b"IRPA";
/// Bytes of a header of version 0.
const HEADER: u64 = 88;
/// Entries begin at multiples of it, bytes.
const ENTRY_ALIGNMENT: u64 = 16;

const SKIP: u32 = 0;
const SPLAT: u32 = 1;
const DATA: u32 = 2;
const EXTERNAL: u32 = 3;

pub(super) fn parse(archive: &[u8], found: &mut dyn FnMut(Found<'_>) -> Result<()>) -> Result<()> {
    let mut base = 0;
    loop {
        // Offsets lead forward, so that a damaged chain ends.
        match header(archive, base, found)? {
            0 => return Ok(()),
            next => base = base.checked_add(next).ok_or_else(truncated)?,
        }
    }
}

/// The parameters of the header at `base`, and how far from it the next one is, if any.
fn header(
    archive: &[u8],
    base: u64,
    found: &mut dyn FnMut(Found<'_>) -> Result<()>,
) -> Result<u64> {
    let mut reader = Reader::new(archive, base)?;
    if reader.take(4)? != MAGIC {
        return Err(Error::invalid("no IREE parameter archive: it does not begin with IRPA"));
    }
    let (major, minor) = (u16::from_le_bytes(reader.array()?), u16::from_le_bytes(reader.array()?));
    let (size, next, _flags) = (reader.u64()?, reader.u64()?, reader.u64()?);
    if (major, minor) != (0, 0) {
        return Err(unsupported(format_args!("version {major}.{minor} of the format")));
    }
    if size != HEADER {
        return Err(Error::invalid(format!("a header of {size} bytes instead of {HEADER}")));
    }
    let count = reader.u64()?;
    let entries = Segment::read(&mut reader, base)?;
    let metadata = Segment::read(&mut reader, base)?;
    let storage = Segment::read(&mut reader, base)?;
    let mut at = 0u64;
    for _ in 0..count {
        let size = Reader::new(archive, entries.range(at, 8)?)?.u64()?;
        let start = entries.range(at, size)?;
        let mut entry = Reader::new(Reader::new(archive, start)?.take(size)?, 8)?;
        let (kind, _flags) = (entry.u32()?, entry.u64()?);
        let blob =
            |offset, length| Reader::new(archive, metadata.range(offset, length)?)?.take(length);
        let name = text(blob(entry.u64()?, entry.u64()?)?)?;
        let metadata = blob(entry.u64()?, entry.u64()?)?;
        let _minimum_alignment = entry.u64()?;
        let data = match kind {
            SKIP => None,
            SPLAT => {
                let length = entry.u64()?;
                let pattern = entry.take(16)?;
                let [used] = entry.array()?;
                let pattern = pattern.get(..used.into()).ok_or_else(truncated)?;
                Some(Data::Splat { pattern, length })
            }
            DATA => {
                let (offset, length) = (entry.u64()?, entry.u64()?);
                Some(Data::Stored { offset: storage.range(offset, length)?, length })
            }
            EXTERNAL => return Err(unsupported(format_args!("`{name}` in another file"))),
            other => return Err(unsupported(format_args!("an entry of type {other}"))),
        };
        if let Some(data) = data {
            found(Found { name, metadata, data })?;
        }
        at = size
            .checked_next_multiple_of(ENTRY_ALIGNMENT)
            .and_then(|size| at.checked_add(size))
            .ok_or_else(truncated)?;
    }
    Ok(next)
}

/// A part of the archive.
struct Segment {
    start: u64,
    length: u64,
}

impl Segment {
    fn read(reader: &mut Reader<'_>, base: u64) -> Result<Self> {
        let start = base.checked_add(reader.u64()?).ok_or_else(truncated)?;
        Ok(Self { start, length: reader.u64()? })
    }

    /// Where in the archive the bytes from `offset` on are, of which there are `length`.
    fn range(&self, offset: u64, length: u64) -> Result<u64> {
        let end = offset.checked_add(length).ok_or_else(truncated)?;
        if end > self.length {
            return Err(truncated());
        }
        self.start.checked_add(offset).ok_or_else(truncated)
    }
}
