//! Archives: files of parameters, read and written.

use std::collections::HashSet;
use std::ffi::c_void;
#[cfg(unix)]
use std::fs;
use std::fs::File;
use std::io;
use std::path::Path;

use fs4::fs_std::FileExt;

use iree_sys as sys;
use iree_sys::allocator::host_allocator;
use tempfile::NamedTempFile;

use super::formats::{self, Data, Found, ParameterFormat};
use super::index::{ParameterIndex, new_entry};
use super::memory::Memory;
use crate::base::callback;
use crate::base::error::{Code, Error, Result};
use crate::base::status::{check, status_of};

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

    /// The archive that the bytes of `owner` are (a mapped part of a larger file, what `include_bytes!` gives), where
    /// they are; `owner` lives as long as anything that uses them.
    ///
    /// # Errors
    /// As [`from_bytes`](Self::from_bytes). `owner` is dropped.
    pub fn from_owner<O>(format: ParameterFormat, owner: O) -> Result<Self>
    where
        O: AsRef<[u8]> + Send + Sync + 'static,
    {
        Self::parse(format, Memory::of_owner(owner))
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
    /// The file's; [`InvalidArgument`](Code::InvalidArgument) for a path that IREE cannot be told.
    pub fn write_archive(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        // Of a link to a file, the file is replaced.
        let place = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let write = || {
            let file = beside(&place)?;
            self.write_to(&file)?;
            file.persist(&place).map_err(|error| error.error)?;
            Ok(())
        };
        write().map_err(|e: Error| e.context(format!("writing {}", path.display())))
    }

    fn write_to(&self, file: &NamedTempFile) -> Result<()> {
        // What IREE is told ends at the first zero byte.
        let name = file
            .path()
            .to_str()
            .filter(|name| !name.contains('\0'))
            .ok_or_else(|| Error::invalid("the path is not UTF-8, or has a zero byte in it"))?;
        let place = Place { name, file: file.as_file() };
        let written = Self::new()?;
        let open = sys::iree_io_parameter_archive_file_open_callback_t {
            fn_: Some(open_file),
            user_data: (&raw const place).cast_mut().cast(),
        };
        // SAFETY: both indexes and the place are live during the call.
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

/// Where an archive is written.
struct Place<'a> {
    name: &'a str,
    file: &'a File,
}

/// A new file beside `path`, with the rights that new files have.
fn beside(path: &Path) -> Result<NamedTempFile> {
    let folder = path.parent().filter(|it| !it.as_os_str().is_empty());
    let mut prefix = path.file_name().unwrap_or_default().to_owned();
    prefix.push(".");
    let mut file = tempfile::Builder::new();
    file.prefix(&prefix).suffix(".part");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        file.permissions(fs::Permissions::from_mode(0o666));
    }
    Ok(file.tempfile_in(folder.unwrap_or(Path::new(".")))?)
}

/// Opens the file that an archive is written to, when its length is known.
unsafe extern "C" fn open_file(
    user_data: *mut c_void,
    offset: u64,
    length: u64,
    out: *mut *mut sys::iree_io_file_handle_t,
) -> sys::iree_status_t {
    // SAFETY: the place that `write_to` passes, live during its call.
    let Place { name, file } = unsafe { &*user_data.cast::<Place<'_>>() };
    let mode = sys::IREE_IO_FILE_MODE_READ | sys::IREE_IO_FILE_MODE_WRITE;
    status_of(callback::catch(|| {
        reserve(file, offset + length)?;
        // Not to be made by IREE: the group could write it, others not read it.
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

/// Makes `file` so long, and takes the room for that on its disk where it can be asked for: IREE writes the last bytes
/// when it closes the file, and does not say when there is none for them.
fn reserve(file: &File, length: u64) -> io::Result<()> {
    use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    match file.allocate(length) {
        Err(error) if matches!(error.kind(), StorageFull | QuotaExceeded | FileTooLarge) => {
            Err(error)
        }
        _ => file.set_len(length),
    }
}

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn an_archive_has_its_room_and_the_rights_of_new_files() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.irpa");
        let index = ParameterIndex::new().unwrap();
        index.add("w", &[1u8; 1 << 20], b"").unwrap();
        index.write_archive(&path).unwrap();
        let other = folder.path().join("other");
        fs::write(&other, "").unwrap();
        let [archive, other] = [path, other].map(|it| it.metadata().unwrap());
        assert_eq!(archive.mode(), other.mode());

        let file = beside(&folder.path().join("y.irpa")).unwrap();
        reserve(file.as_file(), 1 << 20).unwrap();
        let metadata = file.as_file().metadata().unwrap();
        assert_eq!(metadata.len(), 1 << 20);
        let other = beside(&folder.path().join("z.irpa")).unwrap();
        let can_be_asked = other.as_file().allocate(1).is_ok();
        assert!(!can_be_asked || metadata.blocks() * 512 >= 1 << 20, "no hole");
    }
}
