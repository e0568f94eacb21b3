//! Opening devices of CUDA, and why that fails.

use std::ptr::NonNull;

use iree_sys as sys;

use crate::base::error::{Code, Error, Result};
use crate::hal::cuda::context::Context;
use crate::hal::cuda::options::Options;

/// A runtime that was built without the driver.
pub(crate) fn not_built() -> Error {
    Error::new(
        Code::NotFound,
        "this program was built with an IREE runtime that has no CUDA driver: make one that has \
         with `cargo xtask fetch-iree --cuda`, and build again with IREE_CUDA_HOME set to its folder",
    )
}

/// Opens the device `uri`.
#[cfg(cuda_driver)]
pub(crate) fn open(
    uri: &str,
    options: &Options,
) -> Result<(NonNull<sys::iree_hal_device_t>, Context)> {
    use std::ptr;

    use sys::allocator::host_allocator;

    use crate::base::proactor_pool::ProactorPool;
    use crate::base::status::check;
    use crate::hal::cuda::driver_library;
    use crate::hal::cuda::uri::DRIVER;

    driver_library::library()?;
    let mut driver_options = sys::iree_hal_cuda_driver_options_t::default();
    let mut params = sys::iree_hal_cuda_device_params_t::default();
    // SAFETY: fills the structs.
    unsafe {
        sys::iree_hal_cuda_driver_options_initialize(&mut driver_options);
        sys::iree_hal_cuda_device_params_initialize(&mut params);
    }
    options.set(&mut params);
    let opening = |error: Error| error.context(format!("opening device `{uri}`"));
    let mut driver = ptr::null_mut();
    // SAFETY: the structs are filled, and copied by the driver.
    check(unsafe {
        sys::iree_hal_cuda_driver_create(
            sys::iree_make_string_view(DRIVER),
            &driver_options,
            &params,
            host_allocator(),
            &mut driver,
        )
    })
    .map_err(opening)?;
    let pool = ProactorPool::new();
    let mut device = ptr::null_mut();
    let created = pool.and_then(|pool| {
        let create_params =
            sys::iree_hal_device_create_params_t { next: ptr::null(), proactor_pool: pool.raw() };
        // SAFETY: driver and pool are live, and the device retains what it keeps of them.
        check(unsafe {
            sys::iree_hal_driver_create_device_by_uri(
                driver,
                sys::iree_make_string_view(uri),
                &create_params,
                host_allocator(),
                &mut device,
            )
        })
        .map_err(opening)
    });
    // SAFETY: ours, and not used again.
    unsafe { sys::iree_hal_driver_release(driver) };
    created?;
    let device = NonNull::new(device).expect("IREE returned OK with a null device");
    let context = Context::current().inspect_err(|_| {
        // SAFETY: ours, and not used again.
        unsafe { sys::iree_hal_device_release(device.as_ptr()) };
    })?;
    Ok((device, context))
}

/// Says why there are none.
#[cfg(not(cuda_driver))]
pub(crate) fn open(_: &str, _: &Options) -> Result<(NonNull<sys::iree_hal_device_t>, Context)> {
    Err(not_built())
}
