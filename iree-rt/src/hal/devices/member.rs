//! What a group knows of each of its devices.

use std::ptr::NonNull;

use iree_sys as sys;

use crate::base::error::Result;
use crate::hal::cuda::Context;
use crate::hal::devices::device_options::DeviceOptions;
use crate::hal::devices::recorder::Recorder;

/// What this crate knows of a device.
pub(crate) struct Member {
    pub(crate) uri: String,
    pub(crate) threads: Option<usize>,
    pub(crate) recorder: Option<Recorder>,
    /// Where its memory is, when it is of CUDA.
    pub(crate) context: Option<Context>,
}

/// A reference to a HAL device.
pub(crate) struct RawDevice(pub(crate) NonNull<sys::iree_hal_device_t>);

impl Drop for RawDevice {
    fn drop(&mut self) {
        // SAFETY: a reference of ours, not used again.
        unsafe { sys::iree_hal_device_release(self.0.as_ptr()) };
    }
}

impl Member {
    /// One that records nothing yet.
    pub(crate) fn new(uri: &str, threads: Option<usize>, context: Option<Context>) -> Self {
        Self { uri: uri.to_owned(), threads, recorder: None, context }
    }

    /// What a thread has to do before it calls anything of IREE that touches the device.
    pub(crate) fn enter(&self) {
        if let Some(context) = &self.context {
            context.enter();
        }
    }

    /// Begins what the options ask for on a device that is in its group.
    pub(crate) fn begin(&mut self, raw: &RawDevice, options: &DeviceOptions) -> Result<()> {
        if let Some(path) = &options.profile {
            self.recorder = Some(Recorder::begin(raw.0, path)?);
        }
        Ok(())
    }

    /// Ends a recording, and whether there was one.
    pub(crate) fn finish(&self, raw: &RawDevice) -> bool {
        if let Some(recorder) = &self.recorder {
            recorder.finish(raw.0);
        }
        self.recorder.is_some()
    }
}
