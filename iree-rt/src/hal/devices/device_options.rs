//! How devices are opened.

use std::path::PathBuf;

use crate::hal::cuda::options::Options;
use crate::hal::devices::kernel::Kernels;

/// How to open a device; the default suits most programs.
///
/// ```
/// # #[cfg(feature = "link")] fn main() -> iree_rt::Result<()> {
/// use iree_rt::{DeviceOptions, Instance};
///
/// let options = DeviceOptions::default().threads(2);
/// let device = Instance::get()?.device_with("local-task", &options)?;
/// assert_eq!(device.buffer_view(&[1], &[7f32])?.read::<f32>()?, [7.]);
/// # Ok(()) }
/// # #[cfg(not(feature = "link"))] fn main() {}
/// ```
#[derive(Clone, Debug, Default)]
pub struct DeviceOptions {
    pub(crate) threads: Option<usize>,
    pub(crate) cpus: Option<Vec<u32>>,
    pub(crate) kernels: Kernels,
    pub(crate) profile: Option<PathBuf>,
    pub(crate) cuda: Options,
    pub(crate) allow_racy_runtime: bool,
}

impl DeviceOptions {
    /// Worker threads of `local-task`, 1 to 64; `None` (the default) is one for each physical core
    /// that this process may use. Other devices take only `None`.
    pub fn threads(mut self, threads: impl Into<Option<usize>>) -> Self {
        self.threads = threads.into();
        self
    }

    /// Logical CPU numbers to pin the workers of `local-task` to, one worker each, instead of
    /// `threads` workers that the system places.
    pub fn cpus(mut self, cpus: impl Into<Option<Vec<u32>>>) -> Self {
        self.cpus = cpus.into();
        self
    }

    /// Rust functions that modules on `local-task` or `local-sync` may dispatch. Other devices take
    /// none.
    pub fn kernels(mut self, kernels: Kernels) -> Self {
        self.kernels = kernels;
        self
    }

    /// A file to be made, into which `local-task` or `local-sync` records every dispatch: see
    /// [`Device::take_profile`](crate::Device::take_profile). Such a device stays until the process
    /// ends, as IREE may look at its recorder after the last call has returned. Other devices take
    /// only `None`.
    #[cfg(feature = "profile")]
    pub fn profile(mut self, file: impl Into<Option<PathBuf>>) -> Self {
        self.profile = file.into();
        self
    }

    /// Opens `local-task` on a runtime in which it has a known race, too.
    ///
    /// IREE 3.13 reads an operation of the task queue that its workers may be done with and have
    /// freed. `cargo xtask fetch-iree` and the feature `bundled` mend that before they build the
    /// runtime; upstream's archive and a checkout of one's own have it, and `local-task` is refused
    /// there, for it corrupts memory. `local-sync` has no queue, and is not.
    ///
    /// # Safety
    /// The runtime has been mended in another way, or whoever runs the program accepts that
    /// submitting work to the device may read freed memory.
    pub unsafe fn allow_racy_runtime(mut self) -> Self {
        self.allow_racy_runtime = true;
        self
    }

    /// How a device of CUDA works. Other devices take only the default.
    pub fn cuda(mut self, options: Options) -> Self {
        self.cuda = options;
        self
    }
}
