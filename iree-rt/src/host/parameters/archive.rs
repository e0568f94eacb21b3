//! Archives: files of parameters, read and written.

use std::collections::HashSet;
use std::ffi::c_void;
use std::fs::{self, File, OpenOptions};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};

use iree_sys as sys;
use iree_sys::allocator::host_allocator;

use super::formats::{self, Data, Found, ParameterFormat};
use super::index::{ParameterIndex, Stored, new_entry};
use super::memory::Memory;
use crate::base::callback;
use crate::base::error::{Code, Error, Result};
use crate::base::status::{check, status_of};
use crate::base::text::text;

impl ParameterIndex {
    /// The archive at `path`, of the format that its extension says, mapped into memory and read
    /// as far as it is used. CPU devices use parameters where they are, when they are aligned to
    /// [`ALIGNMENT`](crate::hal::memory::buffer::ALIGNMENT) in the file: IREE's own format aligns them.
    ///
    /// # Errors
    /// The file's, and those of [`from_bytes`](Self::from_bytes); the message names the file.
    ///
    /// # Safety
    /// The file is not changed or truncated while the index, or a session that it was given to,
    /// or a tensor that is a parameter, lives.
    pub unsafe fn from_file(path: impl AsRef<Path>) -> Result<Self> {
        // SAFETY: by the contract of this function.
        Self::load(path.as_ref(), |file| unsafe { Memory::map(file) })
    }

    /// The archive at `path`, of the format that its extension says, read into memory.
    ///
    /// # Errors
    /// The file's, and those of [`from_bytes`](Self::from_bytes); the message names the file.
    pub fn read_file(path: impl AsRef<Path>) -> Result<Self> {
        Self::load(path.as_ref(), Memory::read)
    }

    fn load(path: &Path, bring: impl FnOnce(&mut File) -> Result<Memory>) -> Result<Self> {
        let load = || {
            let format = ParameterFormat::of(path).ok_or_else(|| {
                Error::invalid("its name ends in none of .irpa, .gguf and .safetensors")
            })?;
            Self::parse(format, bring(&mut File::open(path)?)?)
        };
        load().map_err(|e| e.context(path.display()))
    }

    /// The archive that `bytes` are; they are copied.
    ///
    /// # Errors
    /// When they are no archive of that format, or a damaged or truncated one, or one with two
    /// parameters of one name.
    pub fn from_bytes(format: ParameterFormat, bytes: &[u8]) -> Result<Self> {
        Self::parse(format, Memory::copy(bytes))
    }

    fn parse(format: ParameterFormat, memory: Memory) -> Result<Self> {
        let index = Self::new()?;
        // SAFETY: the memory is valid as long as we have it, and nobody writes it meanwhile.
        let archive = unsafe { memory.bytes() };
        let mut names = HashSet::new();
        formats::parse(format, archive, &mut |found| {
            let Found { name, metadata, data } = found;
            if !names.insert(name.to_owned()) {
                return Err(Error::invalid(format!("two parameters are named `{name}`")));
            }
            match data {
                Data::Stored { offset, length } => {
                    // Each parameter as a file of its own: IREE makes buffers of whole files, and
                    // from the middle of a file such a buffer would reach past the end.
                    let part = memory.part(offset, length).ok_or_else(|| {
                        let message = format!("the archive ends within parameter `{name}`");
                        Error::new(Code::OutOfRange, message)
                    })?;
                    index.push(new_entry(name, length, metadata), part)
                }
                Data::Splat { pattern, length } => index.splat(name, pattern, length, metadata),
            }
        })?;
        Ok(index)
    }

    /// Writes all parameters as an archive of IREE's own format (`.irpa`), in a new file that takes the
    /// place of one that is there when it is whole, with the rights that new files have. Whoever has that one [mapped](Self::from_file), this
    /// index for one, keeps what was in it.
    ///
    /// # Errors
    /// The file's; [`InvalidArgument`](Code::InvalidArgument) for a path that IREE cannot be told;
    /// [`DataLoss`](Code::DataLoss) when not all of it has arrived, as on a full disk.
    pub fn write_archive(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        // Of a link to a file, the file is replaced.
        let place = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let beside = beside(&place);
        self.write_new(&beside)
            .and_then(|()| self.check_written(&beside))
            .and_then(|()| Ok(fs::rename(&beside, &place)?))
            .inspect_err(|_| drop(fs::remove_file(&beside)))
            .map_err(|e| e.context(format!("writing {}", path.display())))
    }

    fn write_new(&self, path: &Path) -> Result<()> {
        // What IREE is told ends at the first zero byte.
        let name = path
            .to_str()
            .filter(|name| !name.contains('\0'))
            .ok_or_else(|| Error::invalid("the path is not UTF-8, or has a zero byte in it"))?;
        let written = Self::new()?;
        let open = sys::iree_io_parameter_archive_file_open_callback_t {
            fn_: Some(create_file),
            user_data: (&raw const name).cast_mut().cast(),
        };
        // SAFETY: both indexes and the name are live during the call.
        check(unsafe {
            sys::iree_io_build_parameter_archive(
                self.raw(),
                written.raw(),
                open,
                0,
                host_allocator(),
            )
        })
    }
}

impl ParameterIndex {
    /// Whether the new archive at `path` has all of this: IREE writes its last bytes when it closes the file, and does
    /// not say what became of them.
    fn check_written(&self, path: &Path) -> Result<()> {
        let file = File::open(path)?;
        // SAFETY: the file is ours alone until it has its name.
        let written = Self::parse(ParameterFormat::Irpa, unsafe { Memory::map(&file)? });
        let lost =
            |what: String| Error::new(Code::DataLoss, what + " was not written: is the disk full?");
        let written = written.map_err(|error| lost(format!("the table ({})", error.message())))?;
        for at in 0..self.len() {
            let (ours, theirs) = (self.get(at)?, written.get(at)?);
            if ours.length != theirs.length || Stored::of(&ours) != Stored::of(&theirs) {
                // SAFETY: this index owns the name.
                return Err(lost(format!("parameter `{}`", unsafe { text(ours.key) })));
            }
        }
        Ok(())
    }
}

/// A name beside `path` that no other archive is written to.
fn beside(path: &Path) -> PathBuf {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}-{}.part", process::id(), NEXT.fetch_add(1, Ordering::Relaxed)));
    path.with_file_name(name)
}

/// Makes the file that an archive is written to, when its length is known.
unsafe extern "C" fn create_file(
    user_data: *mut c_void,
    offset: u64,
    length: u64,
    out: *mut *mut sys::iree_io_file_handle_t,
) -> sys::iree_status_t {
    // SAFETY: the name that `write_new` passes, live during its call.
    let name = unsafe { *user_data.cast::<&str>() };
    let mode = sys::IREE_IO_FILE_MODE_READ | sys::IREE_IO_FILE_MODE_WRITE;
    status_of(callback::catch(|| {
        // IREE would let the group write it, others not read it, and follow a link that is there.
        let file = OpenOptions::new().write(true).create_new(true).open(name)?;
        file.set_len(offset + length)?;
        // SAFETY: the name is live, and the out pointer valid.
        check(unsafe {
            sys::iree_io_file_handle_open(
                mode.into(),
                sys::iree_make_string_view(name),
                host_allocator(),
                out,
            )
        })
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_of_which_something_is_lost_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.part");
        let index = ParameterIndex::new().unwrap();
        index.add("first", &[1u8; 100], b"").unwrap();
        index.add_splat("splat", 7u8, 100, b"").unwrap();
        index.add("last", &[2u8; 100], b"").unwrap();
        index.write_new(&path).unwrap();
        index.check_written(&path).unwrap();
        let whole = fs::read(&path).unwrap();
        let lost = |from: usize| {
            let mut bytes = whole.clone();
            bytes[from..].fill(0);
            fs::write(&path, bytes).unwrap();
            let error = index.check_written(&path).unwrap_err();
            assert_eq!(error.code(), Code::DataLoss, "{error}");
            error.message().to_owned()
        };
        let last = whole.windows(100).rposition(|it| it == [2; 100]).unwrap();
        assert!(lost(last + 99).contains("`last`"), "a byte");
        assert!(lost(8).contains("table"), "nearly all");
        let taken = index.write_new(&path).unwrap_err();
        assert!(taken.message().contains("exists"), "nobody else's file is written to: {taken}");
    }
}
