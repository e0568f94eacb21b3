//! NumPy's files: what is read is written as what is read as the same.
#![no_main]

use iree_rt::{ElementType, Literal};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let mut rest = bytes;
    while let Ok(literal) = Literal::read_npy(&mut rest, Some(ElementType::BF16)) {
        let mut file = Vec::new();
        if literal.write_npy(&mut file).is_ok() {
            assert_eq!(
                Literal::read_npy(&mut &file[..], Some(ElementType::BF16)).unwrap(),
                literal
            );
        }
    }
});
