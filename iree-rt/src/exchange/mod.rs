//! Tensors from and to other libraries, and as text.

#[cfg(feature = "cuda")]
pub(crate) mod cuda;
#[cfg(feature = "dlpack")]
pub(crate) mod dlpack;
pub(crate) mod literal;
#[cfg(feature = "ndarray")]
pub(crate) mod ndarray;
