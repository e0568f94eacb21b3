//! Devices: how they are found, opened and told apart, and what they run and record.

pub(crate) mod device;
pub(crate) mod device_group;
pub(crate) mod device_options;
pub(crate) mod driver;
pub(crate) mod executable_loader;
pub(crate) mod heap;
pub(crate) mod kernel;
pub(crate) mod kernel_executable;
pub(crate) mod local_device;
pub(crate) mod member;
pub(crate) mod open;
#[cfg(feature = "profile")]
pub(crate) mod profile;
#[cfg_attr(not(feature = "profile"), path = "recorder_off.rs")]
pub(crate) mod recorder;
pub(crate) mod statistics;
