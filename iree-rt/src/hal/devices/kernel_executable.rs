//! Executables whose exports are [`Kernels`], for the devices of the CPU.
//!
//! An executable's format names them: `kernels:` and a name for each export, in the order of the
//! exports, with commas between them. Its data means nothing.

use std::ffi::{CString, c_char};
use std::ptr;
use std::sync::Arc;

use iree_sys as sys;
use iree_sys::allocator::host_allocator;

use crate::base::callback;
use crate::base::error::{Code, Error, Result};
use crate::base::status::{into_status, status_of};
use crate::base::text::text;
use crate::hal::devices::kernel::{Kernel, KernelArguments, Kernels};

/// What a format begins with.
const FORMAT: &str = "kernels:";

/// IREE's commands number the exports of an executable in 16 bits.
const MOST_EXPORTS: usize = 1 << 16;

type Loader = sys::iree_hal_executable_loader_t;

/// A loader of executables whose exports are among some kernels. IREE counts references in its base, so
/// that only the rest is borrowed.
#[repr(C)]
struct KernelLoader {
    base: Loader,
    kernels: Kernels,
}

static LOADER: sys::iree_hal_executable_loader_vtable_t =
    sys::iree_hal_executable_loader_vtable_t {
        destroy: Some(destroy_loader),
        infer_format: Some(infer_format),
        query_support: Some(query_support),
        try_load: Some(try_load),
    };

/// A reference to a new loader.
pub(crate) fn loader(kernels: &Kernels) -> *mut Loader {
    let loader = Box::new(KernelLoader { base: Loader::default(), kernels: kernels.clone() });
    let loader = Box::into_raw(loader);
    // SAFETY: made just now, so nobody else has it; the vtable is never freed; the base, at the beginning
    // of what it is a part of, is freed by `destroy_loader` when its last reference is released.
    unsafe {
        let imports = sys::iree_hal_executable_import_provider_t::default();
        sys::iree_hal_executable_loader_initialize(
            (&raw const LOADER).cast(),
            imports,
            &mut (*loader).base,
        );
    }
    loader.cast()
}

unsafe extern "C" fn destroy_loader(loader: *mut Loader) {
    // SAFETY: IREE destroys each loader once; this is the box made for it.
    callback::catch_quietly(|| drop(unsafe { Box::from_raw(loader.cast::<KernelLoader>()) }));
}

/// Nothing in the data says what they are.
unsafe extern "C" fn infer_format(
    _loader: *mut Loader,
    _caching_mode: sys::iree_hal_executable_caching_mode_t,
    _data: sys::iree_const_byte_span_t,
    _capacity: sys::iree_host_size_t,
    _format: *mut c_char,
    _size: *mut sys::iree_host_size_t,
) -> sys::iree_status_t {
    sys::iree_status_from_code(sys::IREE_STATUS_INCOMPATIBLE)
}

unsafe extern "C" fn query_support(
    _loader: *mut Loader,
    _caching_mode: sys::iree_hal_executable_caching_mode_t,
    format: sys::iree_string_view_t,
) -> bool {
    // SAFETY: IREE's argument, a live text.
    unsafe { text(format) }.starts_with(FORMAT)
}

unsafe extern "C" fn try_load(
    loader: *mut Loader,
    params: *const sys::iree_hal_executable_params_t,
    _workers: sys::iree_host_size_t,
    executable: *mut *mut sys::iree_hal_executable_t,
) -> sys::iree_status_t {
    // SAFETY: a live loader of ours, and IREE's argument, whose format is a live text.
    let (kernels, format) =
        unsafe { (&(*loader.cast::<KernelLoader>()).kernels, text((*params).executable_format)) };
    match callback::catch(|| Executable::new(kernels, &format)) {
        Ok(made) => {
            // SAFETY: a place for the result, which IREE takes over.
            unsafe { *executable = made.cast() };
            sys::iree_status_from_code(sys::IREE_STATUS_OK)
        }
        Err(error) => into_status(&error),
    }
}

/// An executable: the kernels that one format names. IREE counts references in its base, so that only the
/// exports are borrowed.
#[repr(C)]
struct Executable {
    base: sys::iree_hal_local_executable_t,
    exports: Box<[Export]>,
    /// Of the exports; the base points into them.
    attributes: Box<[sys::iree_hal_executable_dispatch_attrs_v0_t]>,
    /// As `attributes`.
    names: Box<[*const c_char]>,
}

struct Export {
    name: CString,
    kernel: Arc<Kernel>,
}

static EXECUTABLE: sys::iree_hal_local_executable_vtable_t =
    sys::iree_hal_local_executable_vtable_t {
        base: sys::iree_hal_executable_vtable_t {
            destroy: Some(destroy),
            function_count: Some(function_count),
            function_info: Some(function_info),
            function_parameters: Some(function_parameters),
            lookup_function_by_name: Some(lookup_function_by_name),
            lookup_global_by_name: Some(lookup_global_by_name),
        },
        issue_call: Some(issue_call),
    };

impl Executable {
    /// A reference to a new one.
    fn new(kernels: &Kernels, format: &str) -> Result<*mut Self> {
        let names: Vec<_> = format[FORMAT.len()..].split(',').collect();
        if names.len() > MOST_EXPORTS {
            return Err(Error::invalid(format!("an executable of {} kernels", names.len())));
        }
        // All or none: what comes behind one that is left out would be another export.
        let export = |name: &&str| {
            Some(Export { name: CString::new(*name).ok()?, kernel: kernels.get(name)?.clone() })
        };
        let Some(exports) = names.iter().map(export).collect::<Option<Box<[_]>>>() else {
            let missing = names.iter().filter(|name| kernels.get(name).is_none());
            let missing: Vec<_> = missing.map(|name| format!("`{name}`")).collect();
            let known: Vec<_> = kernels.names().map(|name| format!("`{name}`")).collect();
            // Not NOT_FOUND, which means to IREE that another loader may know the executable: it would
            // forget this message.
            return Err(Error::new(
                Code::Incompatible,
                format!(
                    "the module dispatches kernels that the device was not opened with: {} (it was with {})",
                    missing.join(", "),
                    if known.is_empty() { "none".into() } else { known.join(", ") }
                ),
            ));
        };
        let attributes = exports.iter().map(|Export { kernel, .. }| {
            sys::iree_hal_executable_dispatch_attrs_v0_t {
                constant_count: kernel.constants,
                binding_count: kernel.bindings,
                ..Default::default()
            }
        });
        let made = Box::into_raw(Box::new(Self {
            base: sys::iree_hal_local_executable_t::default(),
            attributes: attributes.collect(),
            names: exports.iter().map(|export| export.name.as_ptr()).collect(),
            exports,
        }));
        // SAFETY: made just now, so nobody else has it; the vtable is never freed, and `destroy` frees the
        // base, at the beginning of what it is a part of, when its last reference is released. Until
        // then what the base points to stays where it is.
        unsafe {
            let it = &mut *made;
            sys::iree_hal_local_executable_initialize(&EXECUTABLE, host_allocator(), &mut it.base);
            it.base.dispatch_attrs = it.attributes.as_ptr();
            // Without `dispatch_ptrs`, which are called without being told which export they are.
            it.base.export_count = it.exports.len();
            it.base.export_names = it.names.as_ptr();
        }
        Ok(made)
    }

    /// # Safety
    /// `executable` is live and one of ours.
    unsafe fn exports<'a>(executable: *mut sys::iree_hal_executable_t) -> &'a [Export] {
        // SAFETY: by the contract of this function.
        unsafe { &(*executable.cast::<Self>()).exports }
    }
}

fn export(exports: &[Export], ordinal: usize) -> Result<&Export> {
    exports.get(ordinal).ok_or_else(|| {
        Error::new(Code::OutOfRange, format!("export {ordinal} of {} kernels", exports.len()))
    })
}

unsafe extern "C" fn destroy(executable: *mut sys::iree_hal_executable_t) {
    // SAFETY: IREE destroys each executable once; this is the box made for it.
    callback::catch_quietly(|| unsafe {
        let mut executable = Box::from_raw(executable.cast::<Executable>());
        sys::iree_hal_local_executable_deinitialize(&mut executable.base);
    });
}

/// What a workgroup of a dispatch does.
unsafe extern "C" fn issue_call(
    executable: *mut sys::iree_hal_local_executable_t,
    ordinal: sys::iree_host_size_t,
    dispatch: *const sys::iree_hal_executable_dispatch_state_v0_t,
    workgroup: *const sys::iree_hal_executable_workgroup_state_v0_t,
    _worker: u32,
) -> sys::iree_status_t {
    // SAFETY: a live executable of ours, and IREE's arguments, which live unchanged until this returns.
    let (exports, arguments) = unsafe {
        (Executable::exports(executable.cast()), KernelArguments::new(&*dispatch, &*workgroup))
    };
    let run = || {
        let Export { name, kernel } = export(exports, ordinal)?;
        let failed = |error: Error| error.context(format!("kernel `{}`", name.to_string_lossy()));
        callback::catch_as_is(|| kernel.run(&arguments)).map_err(failed)
    };
    status_of(run())
}

unsafe extern "C" fn function_count(
    executable: *mut sys::iree_hal_executable_t,
) -> sys::iree_host_size_t {
    // SAFETY: a live executable of ours.
    unsafe { Executable::exports(executable) }.len()
}

unsafe extern "C" fn function_info(
    executable: *mut sys::iree_hal_executable_t,
    function: sys::iree_hal_executable_function_t,
    info: *mut sys::iree_hal_executable_function_info_t,
) -> sys::iree_status_t {
    // SAFETY: a live executable of ours.
    let exports = unsafe { Executable::exports(executable) };
    let known = export(exports, function.value as usize).map(|Export { name, kernel }| {
        let name = sys::iree_string_view_t { data: name.as_ptr(), size: name.as_bytes().len() };
        let info_of_it = sys::iree_hal_executable_function_info_t {
            name,
            constant_count: kernel.constants.into(),
            binding_count: kernel.bindings.into(),
            ..Default::default()
        };
        // SAFETY: a place for the result; the name lives as long as the executable.
        unsafe { *info = info_of_it };
    });
    status_of(known)
}

/// They have no names or types to tell.
unsafe extern "C" fn function_parameters(
    _executable: *mut sys::iree_hal_executable_t,
    _function: sys::iree_hal_executable_function_t,
    _capacity: sys::iree_host_size_t,
    _parameters: *mut sys::iree_hal_executable_function_parameter_t,
) -> sys::iree_status_t {
    sys::iree_status_from_code(sys::IREE_STATUS_OK)
}

unsafe extern "C" fn lookup_function_by_name(
    executable: *mut sys::iree_hal_executable_t,
    name: sys::iree_string_view_t,
    function: *mut sys::iree_hal_executable_function_t,
) -> sys::iree_status_t {
    // SAFETY: a live executable of ours, and IREE's argument, a live text.
    let (exports, name) = unsafe { (Executable::exports(executable), text(name)) };
    let at = exports.iter().position(|known| known.name.as_bytes() == name.as_bytes());
    let found = at.ok_or_else(|| Error::new(Code::NotFound, format!("no kernel `{name}`")));
    status_of(found.map(|at| {
        // SAFETY: a place for the result.
        unsafe { *function = sys::iree_hal_executable_function_t { value: at as u64 } };
    }))
}

unsafe extern "C" fn lookup_global_by_name(
    _executable: *mut sys::iree_hal_executable_t,
    _name: sys::iree_string_view_t,
    _affinity: sys::iree_hal_queue_affinity_t,
    buffer: *mut *mut sys::iree_hal_buffer_t,
) -> sys::iree_status_t {
    // SAFETY: a place for the result.
    unsafe { *buffer = ptr::null_mut() };
    into_status(&Error::new(Code::Unimplemented, "kernels have no globals"))
}
