//! Lowerings: how a kind of device runs a model. Each walks the layers of an
//! [architecture](checkpoint::architecture) and composes its parts in its own way; what they write
//! with is in [`emit`](crate::emit).

pub mod cpu;
pub mod cuda;
pub mod paged;
pub mod portable;
pub mod vulkan;
