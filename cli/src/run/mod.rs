//! Calling any compiled module: arguments from text and files, results to text, files and a
//! comparison.

pub mod compare;
pub mod files;
pub mod parameters;
pub mod timing;
pub mod value;
