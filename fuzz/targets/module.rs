//! The bytes of a `.vmfb`: header, archive and bytecode are verified, functions are listed, and
//! nothing is run.
//!
//! Loading a module is `unsafe`, as IREE promises less than this: see the README.
#![no_main]

use iree_rt::Module;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    // SAFETY: no function of the module is called, and no session runs its initializers.
    let Ok(module) = (unsafe { Module::from_bytes(bytes) }) else { return };
    std::hint::black_box((module.name(), module.functions().is_ok()));
});
