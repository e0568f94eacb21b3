//! Opening devices of CUDA, and why that fails.

use std::ptr::NonNull;
use std::sync::OnceLock;

use iree_sys as sys;
use libloading::Library;

use crate::cuda::{Context, DRIVER, Options};
use crate::base::error::{Code, Error, Result};
use crate::base::instance::Instance;

/// The one name that IREE looks for.
const LIBRARY: &str = "libcuda.so";

/// Whether devices of CUDA can be looked for: the runtime was built with IREE's CUDA driver, and the
/// library of NVIDIA's is on this machine. There may still be no GPU.
///
/// # Errors
/// [`NotFound`](Code::NotFound) for a runtime that was built without, and
/// [`Unavailable`](Code::Unavailable) for a machine without the library: in one sentence each, which
/// says what to do.
pub fn available() -> Result<()> {
    if !Instance::get()?.drivers()?.iter().any(|driver| driver.name == DRIVER) {
        return Err(not_built());
    }
    library().map(drop)
}

fn not_built() -> Error {
    Error::new(
        Code::NotFound,
        "this program was built with an IREE runtime that has no CUDA driver: make one that has \
         with `cargo xtask fetch-iree --cuda`, and build again with IREE_CUDA_HOME set to its folder",
    )
}

/// The library of NVIDIA's driver, which stays once it is loaded: it has threads of its own.
pub(crate) fn library() -> Result<&'static Library> {
    static LOADED: OnceLock<Library> = OnceLock::new();
    if let Some(library) = LOADED.get() {
        return Ok(library);
    }
    // SAFETY: its initializers are those of NVIDIA's driver, which IREE loads in the same way.
    let library = unsafe { Library::new(LIBRARY) }.map_err(|_| no_library())?;
    Ok(LOADED.get_or_init(|| library))
}

/// Why there is no [`library`].
pub(crate) fn no_library() -> Error {
    // SAFETY: as in `library`.
    let message = match unsafe { Library::new("libcuda.so.1") } {
        Ok(_) => {
            "NVIDIA's driver library is here as libcuda.so.1 only and IREE looks for libcuda.so: \
             make a link of that name beside it, or in a folder of LD_LIBRARY_PATH"
        }
        Err(_) => {
            "there is no NVIDIA driver on this machine: its library libcuda.so cannot be loaded; \
             install the driver (or give the container the GPU), or use another device"
        }
    };
    Error::new(Code::Unavailable, message)
}

/// Opens the device `uri`.
#[cfg(cuda_driver)]
pub(crate) fn open(
    uri: &str,
    options: &Options,
) -> Result<(NonNull<sys::iree_hal_device_t>, Context)> {
    use std::ptr;

    use sys::allocator::host_allocator;

    use crate::hal::devices::device::ProactorPool;
    use crate::base::status::check;

    available()?;
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
