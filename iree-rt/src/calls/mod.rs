//! Sessions of programs, and calls of their functions: waited for, or in flight.

pub(crate) mod arguments;
pub(crate) mod async_session;
pub(crate) mod call;
pub(crate) mod call_async;
pub(crate) mod outputs;
pub(crate) mod pending;
pub(crate) mod results;
pub(crate) mod session;
pub(crate) mod session_builder;
pub(crate) mod typed_function;
