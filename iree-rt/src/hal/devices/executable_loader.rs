//! Executable loaders that load one executable at a time.
//!
//! IREE's loaders look at the CPU anew for each executable, in a table of the process that they
//! clear first (`iree_cpu_initialize`): one that loads on another thread at that moment would see a
//! CPU without any features, and refuse code that needs some. Runtimes that we build fill the table
//! once (`iree_src::mend`), which helps those too who read it without loading anything; this is for
//! others.

use std::ffi::c_char;
use std::sync::{Mutex, PoisonError};

use iree_sys as sys;

/// Held while an executable is loaded, for any device.
static LOADING: Mutex<()> = Mutex::new(());

type Base = sys::iree_hal_executable_loader_t;

/// Another loader behind [`LOADING`].
#[repr(C)]
struct Locked {
    base: Base,
    inner: *mut Base,
}

static VTABLE: sys::iree_hal_executable_loader_vtable_t =
    sys::iree_hal_executable_loader_vtable_t {
        destroy: Some(destroy),
        infer_format: Some(infer_format),
        query_support: Some(query_support),
        try_load: Some(try_load),
    };

/// A loader that does what `inner` does, one executable at a time. It takes over the reference.
///
/// # Safety
/// `inner` is a reference to a live loader, and is not used again.
pub(crate) unsafe fn one_at_a_time(inner: *mut Base) -> *mut Base {
    let locked = Box::into_raw(Box::new(Locked { base: Base::default(), inner }));
    // SAFETY: the vtable is never freed; the base, at the beginning of
    // what it is a part of, is freed by `destroy` when its last reference is released.
    unsafe {
        let vtable = (&raw const VTABLE).cast();
        let imports = sys::iree_hal_executable_import_provider_t::default();
        sys::iree_hal_executable_loader_initialize(vtable, imports, &mut (*locked).base);
    }
    locked.cast()
}

unsafe extern "C" fn destroy(loader: *mut Base) {
    // SAFETY: IREE destroys each loader once; this is the box made for it, which holds a reference.
    unsafe {
        let locked = Box::from_raw(loader.cast::<Locked>());
        sys::iree_hal_executable_loader_release(locked.inner);
    }
}

/// # Safety
/// `loader` is live and one of ours.
unsafe fn inner(loader: *mut Base) -> *mut Base {
    // SAFETY: by the contract of this function.
    unsafe { (*loader.cast::<Locked>()).inner }
}

unsafe extern "C" fn infer_format(
    loader: *mut Base,
    caching_mode: sys::iree_hal_executable_caching_mode_t,
    data: sys::iree_const_byte_span_t,
    capacity: sys::iree_host_size_t,
    format: *mut c_char,
    size: *mut sys::iree_host_size_t,
) -> sys::iree_status_t {
    // SAFETY: IREE's arguments, passed on to the loader that it holds.
    unsafe {
        let inner = inner(loader);
        sys::iree_hal_executable_loader_infer_format(
            inner,
            caching_mode,
            data,
            capacity,
            format,
            size,
        )
    }
}

unsafe extern "C" fn query_support(
    loader: *mut Base,
    caching_mode: sys::iree_hal_executable_caching_mode_t,
    format: sys::iree_string_view_t,
) -> bool {
    // SAFETY: IREE's arguments, passed on to the loader that it holds.
    unsafe { sys::iree_hal_executable_loader_query_support(inner(loader), caching_mode, format) }
}

unsafe extern "C" fn try_load(
    loader: *mut Base,
    params: *const sys::iree_hal_executable_params_t,
    workers: sys::iree_host_size_t,
    executable: *mut *mut sys::iree_hal_executable_t,
) -> sys::iree_status_t {
    let _one = LOADING.lock().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: IREE's arguments, passed on to the loader that it holds.
    unsafe { sys::iree_hal_executable_loader_try_load(inner(loader), params, workers, executable) }
}

#[cfg(all(test, feature = "link", target_arch = "x86_64", cpu_features_once))]
mod tests {
    use super::*;
    use crate::base::instance::Instance;
    use crate::base::status::check;

    #[test]
    fn the_cpu_has_its_features_before_anything_is_loaded() {
        let device = Instance::get().unwrap().device("local-sync").unwrap();
        let has = |feature| {
            let mut has = 0;
            let (category, key) = ("hal.cpu", feature);
            // SAFETY: the device is live, and so are the texts.
            check(unsafe {
                sys::iree_hal_device_query_i64(
                    device.raw(),
                    sys::iree_make_string_view(category),
                    sys::iree_make_string_view(key),
                    &mut has,
                )
            })
            .unwrap();
            has == 1
        };
        assert_eq!(has("sse4.2"), is_x86_feature_detected!("sse4.2"));
        assert_eq!(has("avx2"), is_x86_feature_detected!("avx2"));
    }
}
