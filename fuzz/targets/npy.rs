//! NumPy's files: what is read is written as what is read as the same.
#![no_main]

use iree_rt::ElementType;
use libfuzzer_sys::fuzz_target;

#[allow(dead_code)]
#[path = "../../cli/src/run/files.rs"]
mod files;
#[path = "../../cli/src/run/npy.rs"]
mod npy;

fuzz_target!(|bytes: &[u8]| {
    let mut rest = bytes;
    while let Ok(literal) = npy::read(&mut rest, Some(ElementType::BF16)) {
        let mut file = Vec::new();
        if npy::write(&mut file, &literal).is_ok() {
            assert_eq!(npy::read(&mut &file[..], Some(ElementType::BF16)).unwrap(), literal);
        }
    }
});
