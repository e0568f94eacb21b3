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

use crate::base::error::{Code, Error, Result};
use crate::base::instance::Instance;
use crate::base::status::check;
use crate::base::text::text;
use crate::vm::function::FunctionInfo;

/// A compiled program, ready to be put in sessions. Cloning gives another handle to it.
///
/// Any thread may use it at any time; sessions do not share state through it.
#[derive(Clone)]
pub struct Module(Arc<Inner>);

struct Inner {
    raw: NonNull<sys::iree_vm_module_t>,
}

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
    /// As [`from_bytes`](Self::from_bytes); and the file is not changed or truncated while the
    /// module or a session of it lives.
    pub unsafe fn from_file(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let load = || {
            let file = File::open(path)?;
            if file.metadata()?.len() == 0 {
                return Err(Error::invalid("the file is empty, not an IREE module (.vmfb)"));
            }
            // SAFETY: nobody changes the file (by the contract of this function).
            let map = unsafe { Mmap::map(&file)? };
            // SAFETY: by the contract of this function; a mapping is page-aligned.
            unsafe { Self::from_owner(map) }
        };
        load().map_err(|e| e.context(path.display()))
    }

    /// Loads a module from the bytes of a `.vmfb`, which are copied to aligned memory.
    ///
    /// # Errors
    /// [`InvalidArgument`](Code::InvalidArgument) for bytes that are no module, or a damaged
    /// one; [`Incompatible`](Code::Incompatible) for a module of another IREE version.
    ///
    /// # Safety
    /// A module is native code that will run in this process, and its bytecode is only partly
    /// verified: the bytes come from a compiler that the caller trusts, for a CPU or GPU of the
    /// features of this one. It writes to no argument that is read-only, and updates one in place
    /// only where whoever calls it [knows](crate::buffer#who-may-write), and keeps others from that
    /// memory meanwhile. Where it calls a [`Kernel`](crate::Kernel) of a device, it passes what the
    /// maker of the kernel has [vouched](crate::Kernel::new) for.
    pub unsafe fn from_bytes(bytes: &[u8]) -> Result<Self> {
        if bytes.is_empty() {
            return Err(Error::invalid("no bytes: not an IREE module (.vmfb)"));
        }
        // An anonymous mapping is page-aligned; executables in the module need 64 bytes.
        let mut copy = MmapMut::map_anon(bytes.len())?;
        copy.copy_from_slice(bytes);
        // SAFETY: by the contract of this function.
        unsafe { Self::from_owner(copy.make_read_only()?) }
    }

    /// # Safety
    /// As [`from_bytes`](Self::from_bytes).
    unsafe fn from_owner(archive: Mmap) -> Result<Self> {
        check_archive(&archive)?;
        let instance = Instance::get()?;
        let contents = sys::iree_make_const_byte_span(&archive);
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
            // SAFETY: a failed creation leaves the archive to us.
            drop(unsafe { Box::from_raw(owner) });
            return Err(explain(error));
        }
        let raw = NonNull::new(raw).expect("IREE returned OK with a null module");
        Ok(Self(Arc::new(Inner { raw })))
    }

    /// Its name, the first part of its functions' full names.
    pub fn name(&self) -> String {
        // SAFETY: the module is live and owns the text.
        unsafe { text(sys::iree_vm_module_name(self.raw())) }
    }

    /// The functions that it exports, in the order of the file.
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
    /// assert!(scale.declaration.contains("@scale")); // the compiler's `iree.abi.declaration`
    /// # Ok(()) }
    /// # #[cfg(not(all(feature = "link", feature = "compiler")))] fn main() {}
    /// ```
    ///
    /// # Errors
    /// When IREE cannot read its own table.
    pub fn functions(&self) -> Result<Vec<FunctionInfo>> {
        // SAFETY: the module is live.
        let count = unsafe { sys::iree_vm_module_signature(self.raw()) }.export_function_count;
        let mut functions = Vec::new();
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
            let info = unsafe { FunctionInfo::of(&raw) };
            if !info.name.starts_with("__") {
                functions.push(info);
            }
        }
        Ok(functions)
    }

    pub(crate) fn raw(&self) -> *mut sys::iree_vm_module_t {
        self.0.raw.as_ptr()
    }
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
        drop(unsafe { Box::from_raw(self_.cast::<Mmap>()) });
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

fn explain(error: Error) -> Error {
    if error.message().contains("version") {
        return error.with_code(Code::Incompatible).context(format!(
            "the module was compiled by another version of IREE than this runtime ({})",
            sys::IREE_VERSION
        ));
    }
    error.context("the module is damaged or truncated")
}
