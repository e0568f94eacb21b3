//! One file for each subcommand.

pub mod bench;
pub mod cache;
pub mod chat;
pub mod check;
pub mod compile;
pub mod completions;
pub mod convert;
pub mod devices;
pub mod doctor;
pub mod embed;
pub mod emit;
pub mod fetch;
pub mod generate;
pub mod inspect;
pub mod man;
pub mod pull;
pub mod quality;
pub mod quantize;
pub mod rank;
pub mod run;
pub mod selftest;
pub mod serve;
