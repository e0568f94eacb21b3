//! IREE's virtual machine: programs, their functions, and the values that these take and return.

pub(crate) mod extents;
pub(crate) mod function;
pub(crate) mod list;
pub(crate) mod module;
pub(crate) mod reference;
pub(crate) mod reflection;
pub(crate) mod signature;
pub(crate) mod tuples;
pub(crate) mod typed;
pub(crate) mod value;
