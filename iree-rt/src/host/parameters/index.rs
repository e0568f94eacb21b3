//! Indexes: which parameters there are, and where.

use std::fmt;
use std::ops::Range;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use bytemuck::NoUninit;
use iree_sys as sys;
use iree_sys::allocator::host_allocator;

use super::memory::Memory;
use crate::base::error::{Code, Error, Result};
use crate::base::status::check;
use crate::base::text::{entries, text};

/// The parameters of an archive, or of several, or made in memory, by name. Cloning gives another
/// handle to the same index.
///
/// Any thread may use it at any time. [`SessionBuilder::parameters`] gives it to a session under
/// the name of a scope. CPU devices use its memory in place, but for what programs may change
/// (mutable globals), which they get copies of.
///
/// [`SessionBuilder::parameters`]: crate::SessionBuilder::parameters
///
/// ```
/// # #[cfg(all(feature = "link", feature = "compiler", feature = "parameters"))]
/// # fn main() -> iree_rt::Result<()> {
/// # use iree_rt::{CompileOptions, Compiler, Instance, Module, ParameterIndex, Session};
/// let vmfb = Compiler::find()?.compile(
///     r#"module @program {
///          util.global private @w = #flow.parameter.named<"model"::"w"> : tensor<2xf32>
///          func.func @run(%a: tensor<2xf32>) -> tensor<2xf32> {
///            %w = util.global.load @w : tensor<2xf32>
///            %0 = stablehlo.multiply %a, %w : tensor<2xf32>
///            return %0 : tensor<2xf32>
///          }
///        }"#,
///     &CompileOptions::default(),
/// )?;
/// let model = ParameterIndex::new()?;
/// model.add("w", &[10f32, 100.], b"")?;
/// let file = tempfile::Builder::new().suffix(".irpa").tempfile()?;
/// model.write_archive(file.path())?;
///
/// let model = ParameterIndex::read_file(file.path())?;
/// assert_eq!(model.entries()?[0].length, 8);
/// let device = Instance::get()?.device("local-task")?;
/// // SAFETY: compiled just now for the CPU of this machine.
/// let program = unsafe { Module::from_bytes(&vmfb)? };
/// let mut session =
///     Session::builder(&device).parameters("model", &model).module(program).build()?;
/// let run = session.function("program.run")?;
/// let out = session.call(&run, [device.buffer_view(&[2], &[1f32, 2.])?])?;
/// assert_eq!(out.view(0)?.read::<f32>()?, [10., 200.]);
/// # Ok(()) }
/// # #[cfg(not(all(feature = "link", feature = "compiler", feature = "parameters")))] fn main() {}
/// ```
#[derive(Clone)]
pub struct ParameterIndex(Arc<Inner>);

struct Inner(NonNull<sys::iree_io_parameter_index_t>);

// SAFETY: an index guards its table with a lock, and entries do not change or go.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

/// A parameter of an index.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ParameterEntry {
    /// Its name within its scope.
    pub name: String,
    /// Bytes of its data.
    pub length: u64,
    /// What whoever wrote it added; IREE makes no use of it.
    pub metadata: Vec<u8>,
    /// Whether it is one value over and over, of which only one is stored.
    pub is_splat: bool,
}

/// The widest value that a device fills a buffer with, bytes.
const WIDEST_FILL: usize = 4;

impl ParameterIndex {
    /// An index of nothing.
    ///
    /// # Errors
    /// When the host has no memory for it.
    pub fn new() -> Result<Self> {
        let mut raw = ptr::null_mut();
        // SAFETY: plain creation into a valid out pointer.
        check(unsafe { sys::iree_io_parameter_index_create(host_allocator(), &mut raw) })?;
        let raw = NonNull::new(raw).expect("IREE returned OK with a null parameter index");
        Ok(Self(Arc::new(Inner(raw))))
    }

    /// Adds a parameter that holds a copy of `data`.
    ///
    /// # Errors
    /// [`AlreadyExists`](Code::AlreadyExists) when there is one of this name.
    pub fn add<T: NoUninit>(&self, name: &str, data: &[T], metadata: &[u8]) -> Result<()> {
        self.add_memory(name, Memory::copy(bytemuck::cast_slice(data)), metadata)
    }

    /// Adds a parameter that is the bytes of `owner` (a mapped file, an `Arc<[u8]>`), without a copy; `owner` lives as
    /// long as anything that uses them. CPU devices use them where they are, if they start at a multiple of
    /// [`ALIGNMENT`](crate::buffer::ALIGNMENT).
    ///
    /// # Errors
    /// [`AlreadyExists`](Code::AlreadyExists) when there is one of this name. `owner` is dropped.
    pub fn add_owner<O>(&self, name: &str, owner: O, metadata: &[u8]) -> Result<()>
    where
        O: AsRef<[u8]> + Send + Sync + 'static,
    {
        self.add_memory(name, Memory::of_owner(owner), metadata)
    }

    pub(super) fn add_owned(&self, name: &str, data: Vec<u8>) -> Result<()> {
        self.add_memory(name, Memory::of(data), b"")
    }

    fn add_memory(&self, name: &str, memory: Memory, metadata: &[u8]) -> Result<()> {
        self.check_new(name)?;
        self.push(new_entry(name, memory.length() as u64, metadata), memory)
    }

    /// Adds the bytes `part` of the parameter `name` to another index, as the parameter `key`, in memory
    /// of its own.
    pub(super) fn copy(&self, name: &str, part: Range<u64>, to: &Self, key: &str) -> Result<()> {
        let entry = self.find(name)?;
        check_part(&part, entry.length)?;
        let (start, length) = (part.start, part.end - part.start);
        match Stored::of(&entry) {
            Stored::Bytes(stored) => to.add(key, &stored[start as usize..part.end as usize], b""),
            Stored::Splat(value) => {
                let width = value.len() as u64;
                if value.len() <= WIDEST_FILL && (start | length).is_multiple_of(width) {
                    return to.splat(key, value, length, b"");
                }
                to.add_owned(key, filled(value, start % width, length, name)?)
            }
        }
    }

    /// Whether the bytes of the parameter `name` are those at `address`.
    pub(super) fn is_at(&self, name: &str, address: *const u8) -> bool {
        let entry = self.lookup(name);
        entry.is_some_and(|entry| match Stored::of(&entry) {
            Stored::Bytes(stored) => stored.as_ptr() == address,
            Stored::Splat(_) => false,
        })
    }

    /// Whether there is a splat that devices cannot fill a buffer with.
    pub(super) fn has_wide_splats(&self) -> Result<bool> {
        for at in 0..self.len() {
            if matches!(Stored::of(&self.get(at)?), Stored::Splat(value) if value.len() > WIDEST_FILL)
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Adds a parameter of `length` bytes that is `value` over and over.
    ///
    /// # Errors
    /// [`AlreadyExists`](Code::AlreadyExists) when there is one of this name;
    /// [`InvalidArgument`](Code::InvalidArgument) for a value that has not 1, 2, 4, 8 or 16 bytes,
    /// or that does not divide the length.
    pub fn add_splat<T: NoUninit>(
        &self,
        name: &str,
        value: T,
        length: u64,
        metadata: &[u8],
    ) -> Result<()> {
        self.check_new(name)?;
        self.splat(name, bytemuck::bytes_of(&value), length, metadata)
    }

    pub(super) fn splat(
        &self,
        name: &str,
        value: &[u8],
        length: u64,
        metadata: &[u8],
    ) -> Result<()> {
        let mut splat = sys::iree_io_parameter_index_entry_t__bindgen_ty_1__bindgen_ty_1::default();
        let width = value.len();
        if !matches!(width, 1 | 2 | 4 | 8 | 16) || !length.is_multiple_of(width as u64) {
            return Err(Error::invalid(format!(
                "parameter `{name}`: {length} bytes cannot be filled with a value of {width} (a \
                 value has 1, 2, 4, 8 or 16, and divides the length)"
            )));
        }
        splat.pattern_length = value.len() as u8;
        splat.pattern[..value.len()].copy_from_slice(value);
        let mut entry = new_entry(name, length, metadata);
        entry.type_ = sys::IREE_IO_PARAMETER_INDEX_ENTRY_STORAGE_TYPE_SPLAT;
        entry.storage.splat = splat;
        // SAFETY: the index is live and copies the entry.
        check(unsafe { sys::iree_io_parameter_index_add(self.raw(), &entry) })
    }

    /// Adds the parameters of `other`, whose data is shared: archives in several files.
    ///
    /// # Errors
    /// [`AlreadyExists`](Code::AlreadyExists) when both have one of the same name; those before
    /// it are added.
    pub fn extend(&self, other: &Self) -> Result<()> {
        for at in 0..other.len() {
            let entry = other.get(at)?;
            // SAFETY: the other index owns the name.
            self.check_new(&unsafe { text(entry.key) })?;
            // SAFETY: the entry is of a live index; this one copies it.
            check(unsafe { sys::iree_io_parameter_index_add(self.raw(), &entry) })?;
        }
        Ok(())
    }

    /// How many parameters there are.
    pub fn len(&self) -> usize {
        // SAFETY: the index is live.
        unsafe { sys::iree_io_parameter_index_count(self.raw()) }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What there is, in the order of the archive.
    ///
    /// # Errors
    /// None in practice.
    pub fn entries(&self) -> Result<Vec<ParameterEntry>> {
        (0..self.len()).map(|at| self.get(at).map(|entry| describe(&entry))).collect()
    }

    /// The parameter of this name.
    pub fn entry(&self, name: &str) -> Option<ParameterEntry> {
        self.lookup(name).map(|entry| describe(&entry))
    }

    /// The bytes of the parameter of this name.
    ///
    /// # Errors
    /// [`NotFound`](Code::NotFound); [`ResourceExhausted`](Code::ResourceExhausted) for a splat
    /// larger than memory.
    pub fn read(&self, name: &str) -> Result<Vec<u8>> {
        let entry = self.find(name)?;
        match Stored::of(&entry) {
            Stored::Splat(value) => filled(value, 0, entry.length, name),
            Stored::Bytes(stored) => {
                let mut bytes = Vec::new();
                bytes.try_reserve_exact(stored.len()).map_err(|_| too_large(name, entry.length))?;
                bytes.extend(stored);
                Ok(bytes)
            }
        }
    }

    pub(super) fn raw(&self) -> *mut sys::iree_io_parameter_index_t {
        self.0.0.as_ptr()
    }

    /// A copy of entry `at`, whose texts and file the index keeps.
    fn get(&self, at: usize) -> Result<sys::iree_io_parameter_index_entry_t> {
        let mut entry = ptr::null();
        // SAFETY: the index is live, and so are its entries; IREE checks the number.
        unsafe {
            check(sys::iree_io_parameter_index_get(self.raw(), at, &mut entry))?;
            Ok(*entry)
        }
    }

    fn lookup(&self, name: &str) -> Option<sys::iree_io_parameter_index_entry_t> {
        let mut entry = ptr::null();
        let key = sys::iree_make_string_view(name);
        // SAFETY: index and name are live; entries live as long as the index.
        unsafe {
            check(sys::iree_io_parameter_index_lookup(self.raw(), key, &mut entry)).ok()?;
            Some(*entry)
        }
    }

    fn find(&self, name: &str) -> Result<sys::iree_io_parameter_index_entry_t> {
        self.lookup(name).ok_or_else(|| {
            Error::new(Code::NotFound, format!("the index has no parameter `{name}`"))
        })
    }

    fn check_new(&self, name: &str) -> Result<()> {
        if self.lookup(name).is_none() {
            return Ok(());
        }
        let message = format!("the index has a parameter `{name}` already");
        Err(Error::new(Code::AlreadyExists, message))
    }

    /// Adds `entry`, whose data is all of `memory`.
    pub(super) fn push(
        &self,
        mut entry: sys::iree_io_parameter_index_entry_t,
        memory: Memory,
    ) -> Result<()> {
        let file = memory.file()?;
        entry.type_ = sys::IREE_IO_PARAMETER_INDEX_ENTRY_STORAGE_TYPE_FILE;
        entry.storage.file = sys::iree_io_parameter_index_entry_t__bindgen_ty_1__bindgen_ty_2 {
            handle: file.raw(),
            offset: 0,
        };
        // SAFETY: index and file are live; the index copies the entry and retains the file.
        check(unsafe { sys::iree_io_parameter_index_add(self.raw(), &entry) })
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: a reference of ours, not used again.
        unsafe { sys::iree_io_parameter_index_release(self.0.as_ptr()) };
    }
}

impl fmt::Debug for ParameterIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ParameterIndex({} parameters)", self.len())
    }
}

/// What an entry of a live index has.
enum Stored<'a> {
    Bytes(&'a [u8]),
    Splat(&'a [u8]),
}

impl<'a> Stored<'a> {
    fn of(entry: &'a sys::iree_io_parameter_index_entry_t) -> Self {
        // SAFETY: the type of an entry says which field is filled. Files are host memory of
        // exactly the entry (`push` makes all of them), which no program is given to change.
        unsafe {
            if entry.type_ == sys::IREE_IO_PARAMETER_INDEX_ENTRY_STORAGE_TYPE_SPLAT {
                let splat = &entry.storage.splat;
                return Self::Splat(&splat.pattern[..usize::from(splat.pattern_length)]);
            }
            let file = sys::iree_io_file_handle_primitive(entry.storage.file.handle);
            let span = file.value.host_allocation;
            Self::Bytes(entries(span.data, span.data_length))
        }
    }
}

/// `length` bytes of `value` over and over, without the first `skipped`.
fn filled(value: &[u8], skipped: u64, length: u64, name: &str) -> Result<Vec<u8>> {
    let count = usize::try_from(length).map_err(|_| too_large(name, length))?;
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(count).map_err(|_| too_large(name, length))?;
    bytes.extend(value.iter().cycle().skip(skipped as usize).take(count));
    Ok(bytes)
}

fn too_large(name: &str, length: u64) -> Error {
    Error::new(Code::ResourceExhausted, format!("parameter `{name}` of {length} bytes"))
}

/// Whether a parameter of `length` bytes has the bytes `part`.
pub(super) fn check_part(part: &Range<u64>, length: u64) -> Result<()> {
    if part.end <= length {
        return Ok(());
    }
    Err(Error::new(
        Code::OutOfRange,
        format!("the program takes bytes {} to {} of {length}", part.start, part.end),
    ))
}

/// An entry that says nothing yet of its data; it is used while name and metadata live.
pub(super) fn new_entry(
    name: &str,
    length: u64,
    metadata: &[u8],
) -> sys::iree_io_parameter_index_entry_t {
    sys::iree_io_parameter_index_entry_t {
        key: sys::iree_make_string_view(name),
        metadata: sys::iree_make_const_byte_span(metadata),
        length,
        ..Default::default()
    }
}

fn describe(entry: &sys::iree_io_parameter_index_entry_t) -> ParameterEntry {
    // SAFETY: name and metadata are of a live index.
    let (name, metadata) = unsafe {
        let metadata = entries(entry.metadata.data, entry.metadata.data_length);
        (text(entry.key), metadata.to_vec())
    };
    ParameterEntry {
        name,
        metadata,
        length: entry.length,
        is_splat: entry.type_ == sys::IREE_IO_PARAMETER_INDEX_ENTRY_STORAGE_TYPE_SPLAT,
    }
}
