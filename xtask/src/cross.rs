//! `cargo xtask cross`: everything for another machine, and its tests in an emulator.

#[cfg(feature = "cross")]
mod count;
#[cfg(feature = "cross")]
mod emulator;
#[cfg(feature = "cross")]
mod linux;
#[cfg(feature = "cross")]
mod macos;
#[cfg(feature = "cross")]
mod rust_src;
#[cfg(feature = "cross")]
mod standard_library;

use anyhow::Result;

use crate::flags;

#[cfg(feature = "cross")]
pub fn run(flags: &flags::Cross) -> Result<()> {
    match flags.machine {
        flags::Machine::Aarch64 => linux::run(flags),
        flags::Machine::Macos => macos::run(flags),
    }
}

#[cfg(not(feature = "cross"))]
pub fn run(flags: &flags::Cross) -> Result<()> {
    crate::workspace::again_with("cross", &flags.network, &[])
}
