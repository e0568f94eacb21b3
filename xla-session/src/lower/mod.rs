//! Lowerings: how a kind of device runs a model.

pub mod cpu;
