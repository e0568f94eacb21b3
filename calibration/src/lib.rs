//! Rounds a model's matrices to four bits by what they read of a text, and writes a folder that loads like
//! any other.
//!
//! The modules in reading order: who watches (`watch`), matrices in memory (`rows`), a layer in f32 (`forward`), the integers
//! and scales of a group (`grid`), what of a matrix' errors its other columns make up for (`rounding`), the
//! tensors that it becomes (`encoding`), the folder that they are written to (`folder`), and all of it, layer
//! by layer ([`Quantisation`]).

mod watch;

mod rows;
mod triangular;

mod forward;

mod grid;
mod rounding;

mod encoding;
mod folder;

mod quantisation;

mod error;

pub use error::{Error, Result};
pub use quantisation::{Made, Quantisation};
pub use watch::Watch;
