//! What the runtime does that no test beside it could disturb: one program for all of it, as each would link IREE for
//! itself. Those that count or fail the process's allocations, those that bring the compiler into it, and those that are
//! run by themselves are programs of their own.

#[cfg(feature = "parameters")]
mod api;
mod async_session;
mod async_transfers;
mod asynchronous;
mod asynchronous_lifetimes;
mod buffers;
mod calls;
mod devices;
#[cfg(feature = "dlpack")]
mod dlpack;
mod elements;
mod fences;
mod imports;
#[cfg(feature = "raw")]
mod literals;
mod mapping;
mod modules;
mod native;
#[cfg(feature = "ndarray")]
mod ndarray;
#[cfg(feature = "parameters")]
mod parameter_archives;
#[cfg(feature = "parameters")]
mod parameter_providers;
#[cfg(feature = "parameters")]
mod parameter_writes;
#[cfg(feature = "parameters")]
mod parameters;
#[cfg(feature = "profile")]
mod profile;
#[cfg(feature = "raw")]
mod raw;
mod reflection;
mod refused;
mod staging;
mod trace;
mod values;

#[path = "../support/mod.rs"]
mod support;
