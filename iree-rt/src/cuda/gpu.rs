//! GPUs as NVIDIA's driver describes them.

use crate::base::error::{Code, Error, Result};
use crate::base::instance::Instance;
use crate::cuda::target::Target;
use crate::hal::cuda::{self, uri};
use crate::hal::devices::device::Device;

/// Whether devices of CUDA can be looked for: the runtime was built with IREE's CUDA driver, and the
/// library of NVIDIA's is on this machine. There may still be no GPU.
///
/// # Errors
/// [`NotFound`](Code::NotFound) for a runtime that was built without, and
/// [`Unavailable`](Code::Unavailable) for a machine without the library: in one sentence each, which
/// says what to do.
pub fn available() -> Result<()> {
    if !Instance::get()?.drivers()?.iter().any(|driver| driver.name == uri::DRIVER) {
        return Err(cuda::not_built());
    }
    cuda::library().map(|_| ())
}

/// A GPU that NVIDIA's driver offers. Asking for it makes no device of IREE and takes none of the
/// GPU's memory.
///
/// The functions that ask the driver need the feature `cuda` and answer
/// [`Unimplemented`](Code::Unimplemented) without.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Gpu {
    /// Its number, counted from 0: `cuda://0`.
    pub ordinal: usize,
    /// Its name, for people: `NVIDIA H200`.
    pub name: String,
    /// `GPU-…`, as `nvidia-smi -L` writes it; part of the URI that always means this GPU.
    pub uuid: String,
    /// Major and minor.
    pub compute_capability: (u32, u32),
    /// Bytes of memory, used or not.
    pub total_bytes: u64,
    /// The newest CUDA version (major, minor) that the driver supports.
    pub driver: (u32, u32),
}

impl Gpu {
    /// The GPUs of this machine; none when there is a driver without one.
    ///
    /// # Errors
    /// [`Unavailable`](Code::Unavailable) without NVIDIA's driver; its own errors.
    pub fn all() -> Result<Vec<Self>> {
        driver::all()
    }

    /// The GPU that the URI of a device means, if it is one of CUDA (`cuda`, `cuda://0`,
    /// `cuda://GPU-…`).
    ///
    /// # Errors
    /// As [`all`](Self::all), and [`NotFound`](Code::NotFound) when there is no such GPU.
    pub fn at(uri: &str) -> Result<Option<Self>> {
        let Some(path) = uri::path(uri) else { return Ok(None) };
        let found = Self::all()?.into_iter().find(|gpu| match path {
            "" => gpu.ordinal == 0,
            path if path.starts_with("GPU-") => gpu.uuid.eq_ignore_ascii_case(path),
            path => path.parse() == Ok(gpu.ordinal),
        });
        found.map(Some).ok_or_else(|| {
            Error::new(Code::NotFound, format!("there is no GPU `{uri}` on this machine"))
        })
    }

    /// The GPU of a device, if it has one.
    ///
    /// # Errors
    /// As [`all`](Self::all).
    pub fn of(device: &Device) -> Result<Option<Self>> {
        Self::at(device.uri())
    }

    /// The URI that opens it, whatever the order of the GPUs.
    pub fn uri(&self) -> String {
        format!("{}://{}", uri::DRIVER, self.uuid)
    }

    /// What to compile for it.
    ///
    /// # Errors
    /// As [`Target::for_gpu`].
    pub fn target(&self) -> Result<Target> {
        Target::for_gpu(self.compute_capability, self.driver)
            .map_err(|error| error.context(&self.name))
    }

    /// Everything compiled code may be for to run on it, the newest first.
    ///
    /// # Errors
    /// As [`Target::for_gpu`].
    pub fn targets(&self) -> Result<Vec<Target>> {
        Target::all_for_gpu(self.compute_capability, self.driver)
            .map_err(|error| error.context(&self.name))
    }

    /// Bytes of its memory that nobody uses now.
    ///
    /// The driver answers only in a context of the GPU: where no device of this process has one, it
    /// is made for the time of the question, which takes some tenths of a second.
    ///
    /// # Errors
    /// As [`all`](Self::all).
    pub fn free_bytes(&self) -> Result<u64> {
        driver::free_bytes(self.ordinal)
    }

    /// Whether `bytes` more bytes fit in its memory now.
    ///
    /// # Errors
    /// [`ResourceExhausted`](Code::ResourceExhausted) when they do not; the message names the bytes
    /// needed and free. As [`free_bytes`](Self::free_bytes).
    pub fn check_fits(&self, bytes: u64) -> Result<()> {
        self.check_fits_in(bytes, self.free_bytes()?)
    }

    fn check_fits_in(&self, needed: u64, free: u64) -> Result<()> {
        if needed <= free {
            return Ok(());
        }
        Err(Error::new(
            Code::ResourceExhausted,
            format!(
                "{} needed, but {} (cuda://{}) has {} free of {}",
                bytes(needed),
                self.name,
                self.ordinal,
                bytes(free),
                bytes(self.total_bytes),
            ),
        ))
    }
}

impl Device {
    /// Whether it is a GPU of NVIDIA.
    pub fn is_cuda(&self) -> bool {
        uri::path(self.uri()).is_some()
    }

    /// Whether `bytes` more bytes fit in the device's memory, before they are uploaded.
    ///
    /// Devices whose memory is not known take anything: those of the CPU, and GPUs without the
    /// feature `cuda` (or `vulkan`).
    ///
    /// # Errors
    /// [`ResourceExhausted`](Code::ResourceExhausted) when they do not; the message names the bytes
    /// needed and free.
    pub fn check_fits(&self, bytes: u64) -> Result<()> {
        if cfg!(feature = "vulkan")
            && let Some(gpu) = crate::hal::vulkan::gpu::Gpu::at(self.uri())?
        {
            return gpu.check_fits(bytes);
        }
        if !cfg!(feature = "cuda") {
            return Ok(());
        }
        match Gpu::of(self)? {
            Some(gpu) => gpu.check_fits(bytes),
            None => Ok(()),
        }
    }
}

/// `1073741824 bytes (1.0 GiB)`.
fn bytes(count: u64) -> String {
    format!("{count} bytes ({:.1} GiB)", count as f64 / f64::from(1 << 30))
}

#[cfg(not(feature = "cuda"))]
mod driver {
    use super::available;
    use super::{Gpu, Result};

    pub(super) fn all() -> Result<Vec<Gpu>> {
        available().map(|()| Vec::new())
    }

    pub(super) fn free_bytes(_: usize) -> Result<u64> {
        available().map(|()| 0)
    }
}

#[cfg(feature = "cuda")]
mod driver {
    use cudarc::driver::sys::CUdevice_attribute as Attribute;
    use cudarc::driver::sys::CUresult::CUDA_ERROR_NO_DEVICE;
    use cudarc::driver::{CudaContext, DriverError, result, sys};

    use super::{Gpu, Result};
    use crate::base::error::{Code, Error};
    use crate::hal::cuda::no_library;

    /// What cudarc's functions need, as they panic without the library.
    pub(super) fn load() -> Result<()> {
        // SAFETY: loads the library of NVIDIA's driver, if there is one, and lets it go.
        if unsafe { sys::is_culib_present() } { Ok(()) } else { Err(no_library()) }
    }

    pub(super) fn all() -> Result<Vec<Gpu>> {
        load()?;
        match result::init() {
            Err(DriverError(CUDA_ERROR_NO_DEVICE)) => return Ok(Vec::new()),
            started => started.map_err(|e| error("starting NVIDIA's driver", e))?,
        }
        query().map_err(|e| error("asking NVIDIA's driver for GPUs", e))
    }

    fn query() -> Result<Vec<Gpu>, DriverError> {
        let mut version = 0;
        // SAFETY: a valid out pointer.
        unsafe { sys::cuDriverGetVersion(&mut version) }.result()?;
        let version = version.unsigned_abs();
        let count = result::device::get_count()?;
        let gpu = |ordinal| {
            let device = result::device::get(ordinal)?;
            // SAFETY: a device that the driver gave.
            let number = |attribute| unsafe {
                result::device::get_attribute(device, attribute).map(i32::unsigned_abs)
            };
            Ok(Gpu {
                ordinal: ordinal.unsigned_abs() as usize,
                name: result::device::get_name(device)?,
                uuid: uuid(result::device::get_uuid(device)?.bytes.map(|byte| byte as u8)),
                compute_capability: (
                    number(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
                    number(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
                ),
                // SAFETY: as above.
                total_bytes: unsafe { result::device::total_mem(device)? } as u64,
                driver: (version / 1000, version % 1000 / 10),
            })
        };
        (0..count).map(gpu).collect()
    }

    pub(super) fn free_bytes(ordinal: usize) -> Result<u64> {
        load()?;
        let ask = || {
            result::init()?;
            // cudarc makes a context current that may be gone afterwards.
            let before = result::ctx::get_current()?;
            let free = CudaContext::new(ordinal).and_then(|context| context.mem_get_info());
            // SAFETY: the thread's context of before, or none.
            unsafe { result::ctx::set_current(before.unwrap_or(std::ptr::null_mut()))? };
            Ok(free?.0 as u64)
        };
        ask().map_err(|e| error(&format!("asking for the free memory of GPU {ordinal}"), e))
    }

    fn error(what: &str, error: DriverError) -> Error {
        let code = match error.0 {
            sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => Code::ResourceExhausted,
            sys::CUresult::CUDA_ERROR_NO_DEVICE => Code::NotFound,
            _ => Code::Internal,
        };
        Error::new(code, format!("{what}: {error}"))
    }

    fn uuid(bytes: [u8; 16]) -> String {
        let mut text = "GPU".to_owned();
        for (index, byte) in bytes.iter().enumerate() {
            if matches!(index, 0 | 4 | 6 | 8 | 10) {
                text.push('-');
            }
            text += &format!("{byte:02x}");
        }
        text
    }

    #[cfg(test)]
    mod tests {
        #[test]
        fn uuids_are_written_as_iree_writes_them() {
            let bytes = std::array::from_fn(|index| index as u8 * 16 + 1);
            assert_eq!(super::uuid(bytes), "GPU-01112131-4151-6171-8191-a1b1c1d1e1f1");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu() -> Gpu {
        Gpu {
            ordinal: 1,
            name: "NVIDIA Test".into(),
            uuid: "GPU-00".into(),
            compute_capability: (9, 0),
            total_bytes: 8 << 30,
            driver: (12, 4),
        }
    }

    #[test]
    fn what_does_not_fit_is_refused_with_both_numbers() {
        let gpu = gpu();
        gpu.check_fits_in(1 << 30, 1 << 30).unwrap();
        let error = gpu.check_fits_in((1 << 30) + 1, 1 << 30).unwrap_err();
        assert_eq!(error.code(), Code::ResourceExhausted);
        assert_eq!(
            error.message(),
            "1073741825 bytes (1.0 GiB) needed, but NVIDIA Test (cuda://1) has 1073741824 bytes \
             (1.0 GiB) free of 8589934592 bytes (8.0 GiB)"
        );
    }

    #[test]
    fn a_gpu_knows_its_uri_and_target() {
        assert_eq!(gpu().uri(), "cuda://GPU-00");
        assert_eq!(gpu().target().unwrap(), Target::SM_89);
        let error = Gpu { compute_capability: (3, 5), ..gpu() }.target().unwrap_err();
        assert!(error.message().starts_with("NVIDIA Test: "), "{error}");
    }
}
