//! What every call of IREE ends in, and what its calls of us begin with.

pub(crate) mod callback;
pub(crate) mod canceller;
pub(crate) mod error;
pub(crate) mod exit;
pub(crate) mod float_mode;
pub(crate) mod instance;
pub(crate) mod object;
pub(crate) mod proactor_pool;
pub(crate) mod status;
pub(crate) mod text;
