//! Modules: compiled programs (`.vmfb` files).

use std::ffi::c_void;
use std::fmt;
use std::fs::File;
use std::path::Path;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use iree_sys as sys;
use iree_sys::allocator::host_allocator;
use memmap2::{Mmap, MmapMut};

use crate::base::callback::catch_quietly;
use crate::base::error::{Code, Error, Result};
use crate::base::instance::Instance;
use crate::base::status::check;
use crate::base::text::{entries, text};
use crate::hal::memory::buffer::ALIGNMENT;
use crate::vm::function::FunctionInfo;

/// A compiled program, ready to be put in sessions. Cloning gives another handle to it.
///
/// Any thread may use it at any time; sessions do not share state through it.
#[derive(Clone)]
pub struct Module(Arc<Inner>);

struct Inner {
    raw: NonNull<sys::iree_vm_module_t>,
}

/// What has the bytes of a module.
type Archive = Arc<dyn AsRef<[u8]> + Send + Sync>;

// SAFETY: bytecode modules do not change after creation; their state is each context's own.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

/// A reference to a module of one session (not of a program), until the session has its own.
pub(crate) struct VmModule(*mut sys::iree_vm_module_t);

impl VmModule {
    /// Takes over a reference that IREE returned.
    pub(crate) fn own(raw: *mut sys::iree_vm_module_t) -> Self {
        Self(raw)
    }

    pub(crate) fn raw(&self) -> *mut sys::iree_vm_module_t {
        self.0
    }
}

impl Drop for VmModule {
    fn drop(&mut self) {
        // SAFETY: a reference of ours, not used again.
        unsafe { sys::iree_vm_module_release(self.0) };
    }
}

impl Module {
    /// Loads the `.vmfb` file at `path`, mapped into memory and read as far as it is used.
    ///
    /// # Errors
    /// The file's, and those of [`from_bytes`](Self::from_bytes); the message names the file.
    ///
    /// # Safety
    /// As [`from_bytes`](Self::from_bytes); and the file is not changed or truncated while
    /// the module or a session of it lives.
    pub unsafe fn from_file(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let load = || {
            let file = File::open(path)?;
            let metadata = file.metadata()?;
            if metadata.is_dir() {
                return Err(Error::invalid(
                    "a folder, not an IREE module (.vmfb): give the file that the compiler wrote",
                ));
            }
            if metadata.len() == 0 {
                return Err(Error::invalid("the file is empty, not an IREE module (.vmfb)"));
            }
            // SAFETY: nobody changes the file (by the contract of this function).
            let map = unsafe { Mmap::map(&file)? };
            // SAFETY: by the contract of this function; a mapping is page-aligned.
            unsafe { Self::from_archive(Arc::new(map)) }
        };
        load().map_err(|e| e.context(path.display()))
    }

    /// Loads a module from the bytes of a `.vmfb`, which are copied to aligned memory.
    ///
    /// # What a program says of its arguments
    ///
    /// Compiled code does not check that dynamic dimensions fit together. A function may say which
    /// are equal, and every call of it from Rust is checked for that (calls by another module of the
    /// session are not), and refused with an error that names the arguments and their extents:
    ///
    /// ```mlir
    /// func.func @add(%a: tensor<?x4xf32> {iree.abi.name = "left"}, %b: tensor<?xf32>)
    ///     -> tensor<?x4xf32> attributes {iree.reflection = {"iree_rt.shapes" = "n, 4; n"}}
    /// ```
    ///
    /// Arguments are separated by `;`, dimensions by `,`: a name (equal wherever it stands), a number,
    /// or `?`. An argument of which nothing is said is left empty. Nothing puts this in by itself: it is
    /// added to the MLIR before it is compiled, to what IREE's importer of ONNX writes just as well.
    /// (JAX's export with symbolic shapes names them only in messages of `@shape_assertion` calls,
    /// which IREE 3.13 drops, checks and all.) What else must hold, an index in its range for example,
    /// [`SessionBuilder::validate`](crate::SessionBuilder::validate) checks.
    ///
    /// # Versions
    ///
    /// A `.vmfb` does not say which IREE compiled it, only which bytecode it has: 17.0 in IREE 3.12
    /// and 3.13. Other bytecode is refused here. A module of another IREE with the same bytecode
    /// loads; whether it does what it should is for who loads it to know.
    ///
    /// # Errors
    /// [`InvalidArgument`](Code::InvalidArgument) for bytes that are no module, or a damaged
    /// one; [`Incompatible`](Code::Incompatible) for bytecode of another version.
    ///
    /// # Safety
    /// A module is native code that will run in this process, and its bytecode is only partly
    /// verified. Who loads it vouches for this:
    ///
    /// - The bytes come from a compiler that the caller trusts, of the version of IREE that this
    ///   crate is made for ([`IREE_VERSION`](crate::IREE_VERSION)) or one whose modules it is known to
    ///   run, for a CPU or GPU of the features of this one.
    /// - The code is memory-safe for all arguments of its declared types, whatever their values and
    ///   dynamic extents, in whatever order its functions are called: what safe code may pass. IREE's
    ///   compiler does not see to that. Tensors whose dynamic extents have to be equal, an index that
    ///   has to be inside a tensor, a slice that has to fit: code reads and writes out of bounds where
    ///   they are not. A program of which it is not so is only put into sessions that refuse such
    ///   arguments, by what it says of them (above) or a
    ///   [validator](crate::SessionBuilder::validate), or is kept from safe code that would pass them.
    /// - It does not write to arguments that are read-only, and to others in place only where it was
    ///   compiled to: such a write is part of the call, and nobody may use that memory meanwhile.
    /// - It dispatches each [`Kernel`](crate::Kernel) of its devices with the tensors and constants that
    ///   the kernel expects; how many there are is checked.
    pub unsafe fn from_bytes(bytes: &[u8]) -> Result<Self> {
        if bytes.is_empty() {
            return Err(Error::invalid("no bytes: not an IREE module (.vmfb)"));
        }
        // An anonymous mapping is page-aligned.
        let mut copy = MmapMut::map_anon(bytes.len())?;
        copy.copy_from_slice(bytes);
        // SAFETY: by the contract of this function.
        unsafe { Self::from_archive(Arc::new(copy.make_read_only()?)) }
    }

    /// Loads a module from the bytes of a `.vmfb` where they are; `owner` (what `include_bytes!` gives, a
    /// mapped part of a larger file, an `Arc<[u8]>`) lives as long as the module or a session of it. Bytes that do
    /// not start at a multiple of [`ALIGNMENT`](crate::buffer::ALIGNMENT) are copied.
    ///
    /// # Errors
    /// As [`from_bytes`](Self::from_bytes). `owner` is dropped.
    ///
    /// # Safety
    /// As [`from_bytes`](Self::from_bytes); and nothing changes the bytes while `owner` lives.
    pub unsafe fn from_owner<O>(owner: O) -> Result<Self>
    where
        O: AsRef<[u8]> + Send + Sync + 'static,
    {
        // SAFETY: by the contract of this function.
        unsafe { Self::from_archive(Arc::new(owner)) }
    }

    /// # Safety
    /// As [`from_owner`](Self::from_owner).
    unsafe fn from_archive(archive: Archive) -> Result<Self> {
        // Where they stay: a container that holds its bytes inline must not move afterwards.
        let bytes = (*archive).as_ref();
        // Executables in a module need it.
        if !bytes.as_ptr().addr().is_multiple_of(ALIGNMENT) {
            // SAFETY: by the contract of this function.
            return unsafe { Self::from_bytes(bytes) };
        }
        check_archive(bytes)?;
        let contents = sys::iree_make_const_byte_span(bytes);
        let instance = Instance::get()?;
        let owner = Box::into_raw(Box::new(archive));
        let release = sys::iree_allocator_t { self_: owner.cast(), ctl: Some(release_archive) };
        let mut raw = ptr::null_mut();
        // SAFETY: instance and contents are live; on success the module frees the archive
        // through `release` when it is destroyed.
        let created = check(unsafe {
            sys::iree_vm_bytecode_module_create(
                instance.vm.as_ptr(),
                0,
                contents,
                release,
                host_allocator(),
                &mut raw,
            )
        });
        if let Err(error) = created {
            // SAFETY: a failed creation leaves the archive to us, where it was.
            let (_archive, bytes) =
                unsafe { (Box::from_raw(owner), entries(contents.data, contents.data_length)) };
            return Err(explain(error, bytes));
        }
        let raw = NonNull::new(raw).expect("IREE returned OK with a null module");
        Ok(Self(Arc::new(Inner { raw })))
    }

    /// Its name, the first part of its functions' full names.
    pub fn name(&self) -> String {
        // SAFETY: the module is live and owns the text.
        unsafe { text(sys::iree_vm_module_name(self.raw())) }
    }

    /// The functions that it exports, in the order of the file. Two forms of one function, `f` and
    /// `f$async`, are one that may be called [either way](FunctionInfo::coarse_fences).
    ///
    /// ```
    /// # #[cfg(all(feature = "link", feature = "compiler"))] fn main() -> iree_rt::Result<()> {
    /// # use iree_rt::{CompileOptions, Compiler, Module, ScalarType, ValueType};
    /// let vmfb = Compiler::find()?.compile(
    ///     "module @gate { func.func @scale(%a: tensor<?x4xf32>, %by: i32) -> i32 {
    ///        return %by : i32 } }",
    ///     &CompileOptions::default(),
    /// )?;
    /// // SAFETY: compiled just now for the CPU of this machine.
    /// let module = unsafe { Module::from_bytes(&vmfb)? };
    /// let [scale] = &module.functions()?[..] else { panic!("one function") };
    /// assert_eq!((module.name().as_str(), scale.name.as_str()), ("gate", "scale"));
    /// assert_eq!(scale.signature.to_string(), "(tensor<?x4xf32>, i32) -> (i32)");
    /// assert_eq!(scale.signature.arguments[1], ValueType::Scalar(ScalarType::I32));
    /// assert!(scale.declaration().contains("@scale"));
    /// assert_eq!(scale.attributes["iree.abi.declaration"], scale.declaration());
    /// # Ok(()) }
    /// # #[cfg(not(all(feature = "link", feature = "compiler")))] fn main() {}
    /// ```
    ///
    /// # Errors
    /// [`InvalidArgument`](Code::InvalidArgument) when what a function says of its arguments cannot
    /// be read.
    pub fn functions(&self) -> Result<Vec<FunctionInfo>> {
        // SAFETY: the module is live.
        let count = unsafe { sys::iree_vm_module_signature(self.raw()) }.export_function_count;
        let mut functions: Vec<FunctionInfo> = Vec::new();
        for ordinal in 0..count {
            let mut raw = sys::iree_vm_function_t::default();
            // SAFETY: the module is live and the ordinal inside.
            check(unsafe {
                sys::iree_vm_module_lookup_function_by_ordinal(
                    self.raw(),
                    sys::IREE_VM_FUNCTION_LINKAGE_EXPORT,
                    ordinal,
                    &mut raw,
                )
            })?;
            // SAFETY: the function is of this live module.
            let info = unsafe { FunctionInfo::of(&raw)? };
            if !is_internal(&info.name) {
                functions.push(info);
            }
        }
        let of_plain =
            |info: &FunctionInfo| functions.iter().position(|plain| info.is_async_form_of(plain));
        let paired: Vec<_> = functions.iter().map(of_plain).collect();
        for &plain in paired.iter().flatten() {
            functions[plain].coarse_fences = true;
        }
        let mut paired = paired.iter();
        functions.retain(|_| paired.next().is_none_or(Option::is_none));
        Ok(functions)
    }

    pub(crate) fn raw(&self) -> *mut sys::iree_vm_module_t {
        self.0.raw.as_ptr()
    }
}

/// Whether a function of this name in a compiled module is for IREE itself to call.
pub(crate) fn is_internal(name: &str) -> bool {
    name.starts_with("__")
}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: a reference of ours, not used again.
        unsafe { sys::iree_vm_module_release(self.raw.as_ptr()) };
    }
}

impl fmt::Debug for Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Module({})", self.name())
    }
}

/// Frees the archive that `self_` boxes, when its module is destroyed.
unsafe extern "C" fn release_archive(
    self_: *mut c_void,
    command: sys::iree_allocator_command_t,
    _params: *const c_void,
    _inout: *mut *mut c_void,
) -> sys::iree_status_t {
    if command == sys::IREE_ALLOCATOR_COMMAND_FREE {
        // SAFETY: the module frees its archive once; this is the box made for it.
        catch_quietly(|| drop(unsafe { Box::from_raw(self_.cast::<Archive>()) }));
        return sys::iree_status_from_code(sys::IREE_STATUS_OK);
    }
    sys::iree_status_from_code(sys::IREE_STATUS_UNIMPLEMENTED)
}

/// Says early and plainly what is no module at all; IREE checks the rest.
fn check_archive(bytes: &[u8]) -> Result<()> {
    // A .vmfb is a FlatBuffer with the identifier IREE, or a zip that begins with one.
    let flatbuffer = bytes.len() >= 16 && (&bytes[4..8] == b"IREE" || &bytes[8..12] == b"IREE");
    if flatbuffer || bytes.starts_with(b"PK") {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "not an IREE module (.vmfb): {} bytes without the IREE identifier",
        bytes.len()
    )))
}

/// Major and minor version of the bytecode that this runtime runs
/// (`IREE_VM_BYTECODE_VERSION_MAJOR`); lower minor versions, too.
const BYTECODE: (u16, u16) = (17, 0);

fn explain(error: Error, archive: &[u8]) -> Error {
    match bytecode_version(archive) {
        Some((major, minor)) if major != BYTECODE.0 || minor > BYTECODE.1 => {
            error.with_code(Code::Incompatible).context(format!(
                "the module was compiled by another version of IREE: it has bytecode {major}.{minor}, \
                 and this runtime ({}) runs {}.{}",
                sys::IREE_VERSION,
                BYTECODE.0,
                BYTECODE.1
            ))
        }
        _ if matches!(error.code(), Code::InvalidArgument | Code::OutOfRange) => {
            error.context("the module is damaged or truncated")
        }
        _ => error.context("loading a module"),
    }
}

/// The version of the bytecode in a module that may be damaged: a field of the FlatBuffer's root
/// (`bytecode_module_def.fbs`). IREE's status tells it in words only.
fn bytecode_version(archive: &[u8]) -> Option<(u16, u16)> {
    const FIELD: usize = 13;
    let u16_at = |at: usize| Some(u16::from_le_bytes(*archive.get(at..)?.first_chunk()?));
    let u32_at = |at: usize| Some(u32::from_le_bytes(*archive.get(at..)?.first_chunk()?));
    // A zip has it as its first file, behind a header, a name and an extra field.
    let start = match archive.starts_with(b"PK") {
        true => 30 + usize::from(u16_at(26)?) + usize::from(u16_at(28)?),
        false => 0,
    };
    let prefixed = archive.get(start + 8..start + 12)? == b"IREE";
    let root = start + if prefixed { 4 } else { 0 };
    let table = root.checked_add(u32_at(root)? as usize)?;
    let vtable = table.checked_add_signed(-(u32_at(table)? as i32 as isize))?;
    let slot = 4 + 2 * FIELD;
    if usize::from(u16_at(vtable)?) < slot + 2 {
        return None;
    }
    let version = u32_at(table.checked_add(u16_at(vtable.checked_add(slot)?)?.into())?)?;
    Some(((version >> 16) as u16, version as u16))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_is_called_damaged_for_what_is_wrong_with_its_bytes() {
        let told = |code| explain(Error::new(code, "why"), b"").message().contains("damaged");
        assert!(told(Code::InvalidArgument) && told(Code::OutOfRange));
        assert!(!told(Code::ResourceExhausted) && !told(Code::NotFound) && !told(Code::Internal));
    }
}
