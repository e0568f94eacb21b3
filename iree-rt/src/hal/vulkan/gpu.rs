//! Devices as Vulkan describes them.

use std::borrow::Cow;
use std::fmt;

use super::{DRIVER, ask, not_built, path};
use crate::base::error::{Code, Error, Result};
use crate::base::instance::Instance;

/// Whether devices of Vulkan can be looked for: the runtime was built with IREE's Vulkan driver, and the
/// system has Vulkan's library. There may still be no device.
///
/// # Errors
/// [`NotFound`](Code::NotFound) for a runtime that was built without,
/// [`Unavailable`](Code::Unavailable) for a system without the library, and
/// [`Unimplemented`](Code::Unimplemented) without the feature `vulkan`: in one sentence each, which
/// says what to do.
pub fn available() -> Result<()> {
    if !Instance::get()?.drivers()?.iter().any(|driver| driver.name == DRIVER) {
        return Err(not_built());
    }
    ask::loader().map(|_| ())
}

/// What kind of device it is, by `VkPhysicalDeviceType`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// A GPU with memory of its own.
    Discrete,
    /// A GPU that shares the memory of the CPU.
    Integrated,
    /// A GPU that a hypervisor lends.
    Virtual,
    /// A driver that computes on the CPU, as Mesa's lavapipe does.
    Cpu,
    /// None of these.
    Other,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Discrete => "discrete GPU",
            Self::Integrated => "integrated GPU",
            Self::Virtual => "virtual GPU",
            Self::Cpu => "software on the CPU",
            Self::Other => "device",
        })
    }
}

/// What code for a device may use, as far as graphs care.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Features {
    /// `shaderFloat16`
    pub float16: bool,
    /// `shaderFloat64`
    pub float64: bool,
    /// `shaderInt8`
    pub int8: bool,
    /// `shaderInt16`
    pub int16: bool,
    /// `shaderInt64`
    pub int64: bool,
    /// `storageBuffer8BitAccess`
    pub storage8: bool,
    /// `storageBuffer16BitAccess`
    pub storage16: bool,
    /// Subgroups shuffle.
    pub shuffle: bool,
    /// Subgroups add and compare.
    pub arithmetic: bool,
}

/// A device that Vulkan offers. Asking for it makes no device of IREE and takes none of its memory.
///
/// The functions that ask need the feature `vulkan` and answer
/// [`Unimplemented`](Code::Unimplemented) without.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Gpu {
    /// Its number, counted from 0: `vulkan://0`.
    pub ordinal: usize,
    /// Its name, for people.
    pub name: String,
    /// What kind of device it is.
    pub kind: Kind,
    /// `GPU-…`, 32 hexadecimal digits; part of the URI that always means this device.
    pub uuid: String,
    /// The version of Vulkan that it has: major, minor, patch.
    pub api_version: (u32, u32, u32),
    /// Its driver and that one's version, for people.
    pub driver: String,
    /// Bytes of its own memory, used or not; of a device that shares the CPU's, what it may take.
    pub total_bytes: u64,
    /// The smallest, usual and largest number of threads that run in step.
    pub subgroup_sizes: (u32, u32, u32),
    /// Most threads of a workgroup along each dimension.
    pub workgroup_size: [u32; 3],
    /// Most threads of a workgroup in all.
    pub workgroup_threads: u32,
    /// Most workgroups along each dimension.
    pub workgroup_count: [u32; 3],
    /// Bytes of memory that the threads of a workgroup share.
    pub shared_bytes: u32,
    /// Most bytes of a buffer that code reads or writes.
    pub buffer_bytes: u32,
    /// What code may use.
    pub features: Features,
    /// What IREE's driver needs and it lacks, in words; empty where it can be opened.
    pub lacking: Vec<&'static str>,
}

impl Gpu {
    /// The devices of this machine; none when there is Vulkan without one.
    ///
    /// # Errors
    /// [`Unavailable`](Code::Unavailable) without Vulkan's library; its own errors.
    pub fn all() -> Result<Vec<Self>> {
        ask::all()
    }

    /// The device that a URI means, if it is one of Vulkan (`vulkan`, `vulkan://0`, `vulkan://GPU-…`).
    ///
    /// # Errors
    /// As [`all`](Self::all), [`NotFound`](Code::NotFound) when there is no such device, and
    /// [`Incompatible`](Code::Incompatible) when it lacks what IREE's driver needs.
    pub fn at(uri: &str) -> Result<Option<Self>> {
        let Some(path) = path(uri) else { return Ok(None) };
        let all = Self::all()?;
        let found = all.iter().find(|gpu| match path {
            "" => gpu.lacking.is_empty(),
            path if path.starts_with("GPU-") => gpu.uuid.eq_ignore_ascii_case(path),
            path => path.parse() == Ok(gpu.ordinal),
        });
        match found {
            Some(gpu) if gpu.lacking.is_empty() => Ok(Some(gpu.clone())),
            Some(gpu) => Err(Error::new(
                Code::Incompatible,
                format!(
                    "{} (vulkan://{}) cannot be used: it lacks {}",
                    gpu.name,
                    gpu.ordinal,
                    gpu.lacking.join(", ")
                ),
            )),
            None if all.is_empty() => Err(Error::new(
                Code::NotFound,
                "Vulkan has no device on this machine: install the driver of its GPU, or Mesa's for \
                 the CPU (Debian: apt install mesa-vulkan-drivers)",
            )),
            None if path.is_empty() => Err(Error::new(
                Code::Incompatible,
                format!(
                    "no device of Vulkan can be used: {} lacks {}",
                    all[0].name,
                    all[0].lacking.join(", ")
                ),
            )),
            None => Err(Error::new(
                Code::NotFound,
                format!("there is no device `{uri}` on this machine, which has {}", all.len()),
            )),
        }
    }

    /// The URI that opens it, whatever the order of the devices.
    pub fn uri(&self) -> String {
        format!("{}://{}", DRIVER, self.uuid)
    }

    /// Bytes of its memory that nobody uses now; `None` where the driver does not say
    /// (`VK_EXT_memory_budget`).
    ///
    /// # Errors
    /// As [`all`](Self::all).
    pub fn free_bytes(&self) -> Result<Option<u64>> {
        ask::free_bytes(self.ordinal)
    }

    /// Whether `bytes` more bytes fit in its memory now; of all its memory where the driver does not
    /// say how much is free.
    ///
    /// # Errors
    /// [`ResourceExhausted`](Code::ResourceExhausted) when they do not; the message names the bytes
    /// needed and there. As [`free_bytes`](Self::free_bytes).
    pub fn check_fits(&self, bytes: u64) -> Result<()> {
        self.check_fits_in(bytes, self.free_bytes()?.unwrap_or(self.total_bytes))
    }

    fn check_fits_in(&self, needed: u64, free: u64) -> Result<()> {
        if needed <= free {
            return Ok(());
        }
        Err(Error::new(
            Code::ResourceExhausted,
            format!(
                "{needed} bytes needed, but {} (vulkan://{}) has {free} free of {} bytes",
                self.name, self.ordinal, self.total_bytes
            ),
        ))
    }
}

/// The URI by which IREE's driver opens a device: it knows them by UUID, and not by number. What is wrong
/// is said here in one sentence, and by IREE in many. Without the feature `vulkan`, and of other
/// drivers, URIs stay as they are.
pub(crate) fn by_uuid(uri: &str) -> Result<Cow<'_, str>> {
    if !cfg!(feature = "vulkan") || path(uri).is_none() {
        return Ok(uri.into());
    }
    available()?;
    let parameters = uri.find('?').map_or("", |at| &uri[at..]);
    Ok(match Gpu::at(uri)? {
        Some(gpu) => (gpu.uri() + parameters).into(),
        None => uri.into(),
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// As lavapipe of Mesa 22.3 describes itself on a CPU with AVX2.
    pub(crate) fn lavapipe() -> Gpu {
        Gpu {
            ordinal: 1,
            name: "llvmpipe".into(),
            kind: Kind::Cpu,
            uuid: "GPU-00".into(),
            api_version: (1, 3, 230),
            driver: "llvmpipe Mesa 22.3.6".into(),
            total_bytes: 2 << 30,
            subgroup_sizes: (8, 8, 8),
            workgroup_size: [1024; 3],
            workgroup_threads: 1024,
            workgroup_count: [65535; 3],
            shared_bytes: 32768,
            buffer_bytes: 128 << 20,
            features: Features {
                float16: true,
                float64: true,
                int8: true,
                int16: true,
                int64: true,
                storage8: true,
                storage16: true,
                shuffle: true,
                arithmetic: true,
            },
            lacking: Vec::new(),
        }
    }

    #[test]
    fn what_does_not_fit_is_refused_with_both_numbers() {
        let gpu = lavapipe();
        gpu.check_fits_in(1 << 30, 1 << 30).unwrap();
        let error = gpu.check_fits_in((1 << 30) + 1, 1 << 30).unwrap_err();
        assert_eq!(error.code(), Code::ResourceExhausted);
        assert_eq!(
            error.message(),
            "1073741825 bytes needed, but llvmpipe (vulkan://1) has 1073741824 free of 2147483648 bytes"
        );
        assert_eq!(gpu.uri(), "vulkan://GPU-00");
    }
}
