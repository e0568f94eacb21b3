//! Tensors that programs trace (`flow.tensor.trace`), as they pass by.

use std::ffi::c_void;
use std::sync::{Mutex, PoisonError, TryLockError};

use iree_sys as sys;

use crate::base::callback;
use crate::base::error::{Code, Error, Result};
use crate::base::status::status_of;
use crate::base::text::{entries, text};
use crate::hal::devices::device::Device;
use crate::hal::memory::buffer_view::BufferView;

/// What is told of each trace: its key, and its tensors.
pub(crate) type OnTrace = Box<dyn FnMut(&str, &[BufferView]) -> Result<()> + Send>;

struct Sink {
    device: Device,
    /// A lock only to notice a sink that calls into its own session.
    on_trace: Mutex<OnTrace>,
}

/// The sink for one HAL module, which has to be given to one: it frees what is behind it.
///
/// Without `on_trace`, one that drops what programs trace: a library prints nothing.
pub(crate) fn debug_sink(
    device: &Device,
    on_trace: Option<OnTrace>,
) -> sys::iree_hal_module_debug_sink_t {
    let Some(on_trace) = on_trace else { return Default::default() };
    let sink = Box::new(Sink { device: device.clone(), on_trace: Mutex::new(on_trace) });
    let user_data = Box::into_raw(sink).cast();
    sys::iree_hal_module_debug_sink_t {
        release: sys::iree_hal_module_debug_sink_release_callback_t {
            fn_: Some(release),
            user_data,
        },
        buffer_view_trace: sys::iree_hal_module_buffer_view_trace_callback_t {
            fn_: Some(trace),
            user_data,
        },
    }
}

/// Frees what is behind a sink that no HAL module has taken.
pub(crate) fn discard(sink: sys::iree_hal_module_debug_sink_t) {
    if let Some(release) = sink.release.fn_ {
        // SAFETY: nobody else has the sink.
        unsafe { release(sink.release.user_data) };
    }
}

unsafe extern "C" fn trace(
    user_data: *mut c_void,
    key: sys::iree_string_view_t,
    count: usize,
    views: *mut *mut sys::iree_hal_buffer_view_t,
    _host_allocator: sys::iree_allocator_t,
) -> sys::iree_status_t {
    // SAFETY: the box that `debug_sink` made, which the HAL module keeps; key and views are live
    // during the call.
    let (sink, key, views) =
        unsafe { (&*user_data.cast::<Sink>(), text(key), entries(views.cast_const(), count)) };
    let traced = callback::catch(|| {
        let views: Vec<BufferView> = views
            .iter()
            .map(|&view| {
                // SAFETY: live, of the session's device, and retained for the handle.
                unsafe { sys::iree_hal_buffer_view_retain(view) };
                BufferView::own(view, &sink.device)
            })
            .collect();
        let mut on_trace = match sink.on_trace.try_lock() {
            Ok(on_trace) => on_trace,
            Err(TryLockError::Poisoned(poisoned)) => PoisonError::into_inner(poisoned),
            Err(TryLockError::WouldBlock) => {
                return Err(Error::new(Code::FailedPrecondition, "traced while it is being told"));
            }
        };
        on_trace(&key, &views)
    });
    status_of(traced.map_err(|error| error.context(format!("trace `{key}`"))))
}

unsafe extern "C" fn release(user_data: *mut c_void) {
    // SAFETY: the box that `debug_sink` made; its HAL module releases it once.
    callback::catch_quietly(|| drop(unsafe { Box::from_raw(user_data.cast::<Sink>()) }));
}
