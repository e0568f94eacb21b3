//! Archives of parameters, in each of their formats: what is found in one is read.
#![no_main]

use iree_rt::{ParameterFormat, ParameterIndex};
use libfuzzer_sys::fuzz_target;

/// Bytes that one splat may ask for: more would only be slow.
const MAX: u64 = 1 << 16;

fuzz_target!(|bytes: &[u8]| {
    for format in [ParameterFormat::Irpa, ParameterFormat::Gguf, ParameterFormat::Safetensors] {
        let Ok(index) = ParameterIndex::from_bytes(format, bytes) else { continue };
        for entry in index.entries().unwrap() {
            if entry.length <= MAX {
                assert_eq!(index.read(&entry.name).unwrap().len() as u64, entry.length);
            }
        }
    }
});
