//! Many prompts from a file of JSON lines, answered together.
//!
//! A line is read when there is room for its request ([`flights`](crate::flights)), understood ([`request`]), and its
//! answer written when it is whole ([`run`]): neither file is ever in memory.

pub mod request;
pub mod run;
