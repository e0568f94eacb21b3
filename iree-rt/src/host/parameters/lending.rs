//! Memory of an index in the hands of programs: read-only.

use std::ffi::c_void;
use std::ptr;

use iree_sys as sys;

use super::index::ParameterIndex;
use super::request::span;
use crate::base::callback;
use crate::base::status::{check, status_of};

/// A load of parameters by a program that does not change them, and so may be given memory of the
/// index itself.
///
/// IREE imports it with the access that the program has to its own buffers, writing included, while
/// the index reads it and other sessions do.
pub(super) struct Lending<'a> {
    pub(super) index: &'a ParameterIndex,
    /// What is asked for.
    pub(super) enumerator: sys::iree_io_parameter_enumerator_t,
    /// To whom the buffers go.
    pub(super) emitter: sys::iree_io_parameter_emitter_t,
}

impl Lending<'_> {
    /// The emitter for IREE, while `self` lives.
    pub(super) fn emitter(&self) -> sys::iree_io_parameter_emitter_t {
        let user_data = (&raw const *self).cast_mut().cast();
        sys::iree_io_parameter_emitter_t { fn_: Some(lend), user_data }
    }
}

/// Passes a buffer on to the program, as read-only where its memory is the index's.
unsafe extern "C" fn lend(
    user_data: *mut c_void,
    at: usize,
    buffer: *mut sys::iree_hal_buffer_t,
) -> sys::iree_status_t {
    // SAFETY: what `emitter` was made of.
    let Lending { index, enumerator, emitter } = unsafe { &*user_data.cast::<Lending<'_>>() };
    let marked = callback::catch(|| {
        // SAFETY: the enumerator is that of the load; the buffer is live and new, so that nobody
        // else has it yet.
        unsafe {
            let (name, _) = span(at, *enumerator)?;
            if index.is_at(name, host_address(buffer)) {
                (*buffer).allowed_access = sys::IREE_HAL_MEMORY_ACCESS_READ as _;
            }
        }
        Ok(())
    });
    if marked.is_err() {
        return status_of(marked);
    }
    // SAFETY: IREE's emitter, and what it was to be called with.
    unsafe { emitter.fn_.expect("IREE passes an emitter")(emitter.user_data, at, buffer) }
}

/// The address of the first byte of a buffer of host memory that is there; else null.
///
/// # Safety
/// The buffer is live.
unsafe fn host_address(buffer: *mut sys::iree_hal_buffer_t) -> *const u8 {
    let mut mapping = sys::iree_hal_buffer_mapping_t::default();
    // SAFETY: by the contract of this function; what was mapped is unmapped.
    unsafe {
        let mapped = check(sys::iree_hal_buffer_map_range(
            buffer,
            sys::IREE_HAL_MAPPING_MODE_SCOPED as _,
            sys::IREE_HAL_MEMORY_ACCESS_READ as _,
            0,
            sys::iree_hal_buffer_byte_length(buffer),
            &mut mapping,
        ));
        if mapped.is_err() {
            return ptr::null();
        }
        let address = mapping.contents.data;
        let _ = check(sys::iree_hal_buffer_unmap_range(&mut mapping));
        address
    }
}

#[cfg(all(test, feature = "link"))]
mod tests {
    use super::*;
    use crate::base::error::Code;
    use crate::base::instance::Instance;
    use crate::hal::devices::device::Device;
    use crate::hal::devices::heap::ALONE;
    use crate::hal::memory::buffer::{Buffer, Memory, params};
    use crate::hal::sync::timeline::Timeline;
    use crate::host::parameters::provider::Provider;

    unsafe extern "C" fn enumerate(
        _: *mut c_void,
        _: usize,
        key: *mut sys::iree_string_view_t,
        span: *mut sys::iree_io_parameter_span_t,
    ) -> sys::iree_status_t {
        // SAFETY: out pointers of the load.
        unsafe {
            *key = sys::iree_make_string_view("w");
            *span = sys::iree_io_parameter_span_t { length: 64, ..Default::default() };
        }
        ptr::null_mut()
    }

    unsafe extern "C" fn take(
        user_data: *mut c_void,
        _: usize,
        buffer: *mut sys::iree_hal_buffer_t,
    ) -> sys::iree_status_t {
        // SAFETY: the place that `load` passes, and a live buffer, which is kept.
        unsafe {
            sys::iree_hal_buffer_retain(buffer);
            *user_data.cast::<*mut sys::iree_hal_buffer_t>() = buffer;
        }
        ptr::null_mut()
    }

    /// The parameter as a program gets it that has it as a constant, or may change it.
    fn load(device: &Device, index: &ParameterIndex, constant: bool) -> Buffer {
        let provider = Provider::of_index("model", index).unwrap();
        let done = Timeline::new(device, 0).unwrap();
        let mut params = params(device, Memory::Device, sys::IREE_HAL_MEMORY_ACCESS_ALL);
        if constant {
            params.usage |= sys::IREE_HAL_BUFFER_USAGE_SHARING_IMMUTABLE;
        }
        let (mut semaphores, mut values) = ([done.raw()], [1]);
        let mut loaded = ptr::null_mut::<sys::iree_hal_buffer_t>();
        // SAFETY: everything is live, and of the lengths that are said.
        check(unsafe {
            sys::iree_io_parameter_provider_load(
                provider.raw(),
                device.raw(),
                u64::MAX,
                sys::iree_hal_semaphore_list_t::default(),
                sys::iree_hal_semaphore_list_t {
                    count: 1,
                    semaphores: semaphores.as_mut_ptr(),
                    payload_values: values.as_mut_ptr(),
                },
                sys::iree_make_string_view("model"),
                params,
                1,
                sys::iree_io_parameter_enumerator_t {
                    fn_: Some(enumerate),
                    user_data: ptr::null_mut(),
                },
                sys::iree_io_parameter_emitter_t {
                    fn_: Some(take),
                    user_data: (&raw mut loaded).cast(),
                },
            )
        })
        .unwrap();
        done.wait(1, None).unwrap();
        Buffer::own(loaded, device)
    }

    #[test]
    fn a_program_cannot_write_to_memory_of_an_index() {
        let _alone = ALONE.lock();
        let index = ParameterIndex::new().unwrap();
        index.add("w", &[7u8; 64], b"").unwrap();
        for uri in ["local-task", "local-sync"] {
            let device = Instance::get().unwrap().device(uri).unwrap();
            let mut lent = load(&device, &index, true);
            assert!(index.is_at("w", lent.host_ptr().unwrap().as_ptr()), "{uri}: a copy");
            let error = lent.write(0, &[1u8]).unwrap_err();
            assert_eq!(error.code(), Code::PermissionDenied, "{uri}: {error}");
            let error = lent.map_mut().unwrap_err();
            assert_eq!(error.code(), Code::PermissionDenied, "{uri}: {error}");
            // Who may change it has a copy.
            let mut own = load(&device, &index, false);
            own.write(0, &[1u8]).unwrap();
            assert_eq!(index.read("w").unwrap(), [7; 64], "{uri}");
        }
    }
}
