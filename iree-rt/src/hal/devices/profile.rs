//! Profiles: what each compiled function of a device costs.

use iree_sys as sys;

use crate::base::error::{Code, Error, Result};
use crate::base::status::check;
use crate::hal::devices::device::Device;
use crate::hal::devices::recorder::Profile;

impl Device {
    /// What has been dispatched since the last call, or since the device was opened.
    ///
    /// ```
    /// # #[cfg(all(feature = "link", feature = "compiler", feature = "profile"))]
    /// # fn main() -> iree_rt::Result<()> {
    /// # use iree_rt::{CompileOptions, Compiler, DeviceOptions, Instance, Module, Session};
    /// # let vmfb = Compiler::find()?.compile(
    /// #     "module @gate { func.func @add(%a: tensor<4xf32>, %b: tensor<4xf32>) -> tensor<4xf32> {
    /// #        %sum = stablehlo.add %a, %b : tensor<4xf32>
    /// #        return %sum : tensor<4xf32> } }",
    /// #     &CompileOptions::default(),
    /// # )?;
    /// # let folder = tempfile::tempdir()?;
    /// let file = folder.path().join("run.ireeprof"); // for `iree-profile`
    /// let options = DeviceOptions::default().profile(file.clone());
    /// let device = Instance::get()?.device_with("local-task", &options)?;
    /// # // SAFETY: compiled just now for the CPU of this machine.
    /// # let module = unsafe { Module::from_bytes(&vmfb)? };
    /// # let mut session = Session::builder(&device).module(module).build()?;
    /// let add = session.function("gate.add")?;
    /// let x = device.buffer_view(&[4], &[1f32; 4])?;
    /// for _ in 0..3 {
    ///     session.call(&add, [&x, &x])?;
    /// }
    /// let profile = device.take_profile()?;
    /// assert_eq!(profile.dispatches[0].calls, 3);
    /// assert!(profile.dispatches[0].name.starts_with("add_dispatch_0"));
    /// drop((session, x, device));
    /// assert!(file.metadata()?.len() > 0);
    /// # Ok(()) }
    /// # #[cfg(not(all(feature = "link", feature = "compiler", feature = "profile")))] fn main() {}
    /// ```
    ///
    /// # Errors
    /// [`FailedPrecondition`](Code::FailedPrecondition) when the device was not opened with
    /// [`DeviceOptions::profile`](crate::DeviceOptions::profile); the file's own errors.
    pub fn take_profile(&self) -> Result<Profile> {
        let recorder = self.recorder().ok_or_else(|| {
            let message = "the device was not opened with `DeviceOptions::profile`";
            Error::new(Code::FailedPrecondition, message)
        })?;
        // SAFETY: the device is live, and records until the process ends.
        check(unsafe { sys::iree_hal_device_profiling_flush(self.raw()) })?;
        recorder.take()
    }
}
