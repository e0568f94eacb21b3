//! The file: what `iree/hal/utils/profile_file.h` says of a profile bundle.

use std::fs::File;
use std::io::{self, BufWriter, Seek, Write};
use std::path::{Path, PathBuf};

use iree_sys as sys;

use crate::base::error::{Error, Result};
use crate::base::text::entries;

/// What a chunk says about itself.
pub(super) struct Metadata<'a> {
    pub(super) raw: &'a sys::iree_hal_profile_chunk_metadata_t,
    pub(super) content_type: &'a [u8],
    name: &'a [u8],
}

impl<'a> Metadata<'a> {
    /// # Safety
    /// `raw` points to metadata whose strings are live for `'a`.
    pub(super) unsafe fn new(raw: *const sys::iree_hal_profile_chunk_metadata_t) -> Self {
        // SAFETY: by the contract of this function.
        unsafe {
            let raw = &*raw;
            let text = |view: sys::iree_string_view_t| entries(view.data.cast(), view.size);
            Self { raw, content_type: text(raw.content_type), name: text(raw.name) }
        }
    }
}

#[derive(Clone, Copy)]
pub(super) enum RecordType {
    SessionBegin = sys::IREE_HAL_PROFILE_FILE_RECORD_TYPE_SESSION_BEGIN as isize,
    Chunk = sys::IREE_HAL_PROFILE_FILE_RECORD_TYPE_CHUNK as isize,
    SessionEnd = sys::IREE_HAL_PROFILE_FILE_RECORD_TYPE_SESSION_END as isize,
}

/// A profile bundle that is written as records come.
pub(super) struct ProfileFile {
    path: PathBuf,
    out: BufWriter<File>,
    /// Bytes written.
    length: u64,
    session_id: u64,
}

impl ProfileFile {
    /// Bytes before the content type of a record.
    const RECORD_HEADER: usize = 104;

    pub(super) fn create(path: &Path) -> Result<Self> {
        let file = File::create(path).map_err(|error| {
            Error::from(error).context(format!("creating the profile {}", path.display()))
        })?;
        let mut file =
            Self { path: path.to_owned(), out: BufWriter::new(file), length: 0, session_id: 0 };
        // The length 0 stands for an unfinished file.
        file.header(0).map_err(|error| file.error(error))?;
        Ok(file)
    }

    fn header(&mut self, length: u64) -> io::Result<()> {
        let mut header = Vec::new();
        header.extend(b"IRPF");
        header.extend(1u16.to_le_bytes());
        header.extend(6u16.to_le_bytes());
        header.extend(24u32.to_le_bytes());
        header.extend(0u32.to_le_bytes());
        header.extend(length.to_le_bytes());
        self.length = self.length.max(header.len() as u64);
        self.out.write_all(&header)
    }

    pub(super) fn record(
        &mut self,
        kind: RecordType,
        metadata: &Metadata<'_>,
        payload: &[&[u8]],
    ) -> Result<()> {
        self.append(kind, metadata, payload).map_err(|error| self.error(error))
    }

    fn append(
        &mut self,
        kind: RecordType,
        metadata: &Metadata<'_>,
        payload: &[&[u8]],
    ) -> io::Result<()> {
        let raw = metadata.raw;
        self.session_id = raw.session_id;
        let payload_length: usize = payload.iter().map(|bytes| bytes.len()).sum();
        let header_length = Self::RECORD_HEADER;
        let length =
            header_length + metadata.content_type.len() + metadata.name.len() + payload_length;
        let truncated = if raw.dropped_record_count == 0 { 0 } else { 1 };
        let mut header = Vec::with_capacity(header_length);
        for value in [
            length as u64,
            payload_length as u64,
            raw.session_id,
            raw.stream_id,
            raw.event_id,
            raw.executable_id,
            raw.command_buffer_id,
        ] {
            header.extend(value.to_le_bytes());
        }
        for value in [
            header_length as u32,
            metadata.content_type.len() as u32,
            metadata.name.len() as u32,
            raw.physical_device_ordinal,
            raw.queue_ordinal,
            0, // padding
        ] {
            header.extend(value.to_le_bytes());
        }
        header.extend((raw.flags | truncated).to_le_bytes());
        header.extend(raw.dropped_record_count.to_le_bytes());
        header.extend(0u32.to_le_bytes());
        header.extend((kind as u16).to_le_bytes());
        header.extend(0u16.to_le_bytes());
        debug_assert_eq!(header.len(), header_length);
        self.length += length as u64;
        self.out.write_all(&header)?;
        self.out.write_all(metadata.content_type)?;
        self.out.write_all(metadata.name)?;
        payload.iter().try_for_each(|bytes| self.out.write_all(bytes))
    }

    /// Writes the end of the session and the file's length.
    pub(super) fn finish(&mut self) -> Result<()> {
        let raw = sys::iree_hal_profile_chunk_metadata_t {
            session_id: self.session_id,
            physical_device_ordinal: u32::MAX,
            queue_ordinal: u32::MAX,
            ..Default::default()
        };
        let end = Metadata {
            raw: &raw,
            content_type: b"application/vnd.iree.hal.profile.session",
            name: b"",
        };
        self.record(RecordType::SessionEnd, &end, &[])?;
        let completed = self.out.rewind().and_then(|()| self.header(self.length));
        completed.map_err(|error| self.error(error))?;
        self.flush()
    }

    pub(super) fn flush(&mut self) -> Result<()> {
        self.out.flush().map_err(|error| self.error(error))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    fn error(&self, error: io::Error) -> Error {
        Error::from(error).context(format!("writing the profile {}", self.path.display()))
    }
}
