//! NVIDIA's driver library.

use std::sync::OnceLock;

use libloading::Library;

use crate::base::error::{Code, Error, Result};

/// The one name that IREE looks for.
const LIBRARY: &str = "libcuda.so";

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
