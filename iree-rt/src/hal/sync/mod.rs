//! Points in time that work waits for and reaches.

pub(crate) mod fence;
pub(crate) mod host_call;
pub(crate) mod reached;
pub(crate) mod semaphore;
pub(crate) mod signal;
pub(crate) mod timeline;
pub(crate) mod timepoint;
