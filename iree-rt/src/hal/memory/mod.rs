//! Tensors in a device's memory, and their ways in and out.

pub(crate) mod async_transfer;
pub mod buffer;
pub(crate) mod buffer_view;
pub(crate) mod element;
pub(crate) mod exclusive;
pub(crate) mod export;
pub(crate) mod import;
pub(crate) mod mapping;
pub(crate) mod staging;
pub(crate) mod transfer;
pub(crate) mod upload;
