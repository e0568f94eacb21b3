//! The CUDA context of a device, on every thread that uses it.

use std::ffi::{c_int, c_void};
use std::{fmt, ptr};

use crate::base::error::{Code, Error, Result};
use crate::hal::cuda::driver_library;

/// What a device's memory and stream live in.
///
/// Functions of CUDA work in the context of the thread that calls them, and IREE sets it on its own
/// threads and on the one that opens a device only. To allocate, copy, call or release on another
/// thread it has to be set there: see [`enter`](Self::enter).
#[derive(Clone, Copy)]
pub(crate) struct Context {
    raw: *mut c_void,
    get_current: GetCurrent,
    set_current: SetCurrent,
}

type GetCurrent = unsafe extern "C" fn(*mut *mut c_void) -> c_int;
type SetCurrent = unsafe extern "C" fn(*mut c_void) -> c_int;

// SAFETY: CUDA's functions may be called from any thread, and a context may be current on many.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    /// The context that is current on this thread: the device's, when it was opened just now.
    #[cfg_attr(not(cuda_driver), expect(dead_code, reason = "the runtime has no CUDA driver"))]
    pub(crate) fn current() -> Result<Self> {
        let library = driver_library::library()?;
        // SAFETY: the signatures of cuda.h (`CUresult` is an int, `CUcontext` a pointer), and the
        // library stays.
        let (get_current, set_current) = unsafe {
            let get = library.get::<GetCurrent>(b"cuCtxGetCurrent\0").map_err(strange)?;
            let set = library.get::<SetCurrent>(b"cuCtxSetCurrent\0").map_err(strange)?;
            (*get, *set)
        };
        let mut context = Self { raw: ptr::null_mut(), get_current, set_current };
        context.raw = context.of_thread();
        if context.raw.is_null() {
            let message = "IREE opened a CUDA device and left no context for it";
            return Err(Error::new(Code::Internal, message));
        }
        Ok(context)
    }

    fn of_thread(&self) -> *mut c_void {
        let mut current = ptr::null_mut();
        // SAFETY: a valid out pointer. Where it fails it leaves null, and so the context is set.
        unsafe { (self.get_current)(&mut current) };
        current
    }

    /// Makes this the context of the thread, which it stays: the device must be alive.
    ///
    /// A failure is not told of here, as the call that follows fails with it.
    pub(crate) fn enter(&self) {
        if self.of_thread() != self.raw {
            // SAFETY: the device, which retains the context, is alive.
            unsafe { (self.set_current)(self.raw) };
        }
    }

    /// The `CUcontext`.
    pub(crate) fn raw(&self) -> *mut c_void {
        self.raw
    }
}

fn strange(error: libloading::Error) -> Error {
    Error::new(Code::Incompatible, format!("NVIDIA's driver library is incomplete: {error}"))
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Context({:p})", self.raw)
    }
}
