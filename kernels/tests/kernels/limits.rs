//! What benchmarks hold kernels against is done, all of it.

use kernels::Isa;
use kernels::limits::{multiply_add, sum};

#[test]
fn every_byte_is_read_once_whatever_the_streams() {
    let words: Vec<u64> = (0..16 * (128 << 10) / 8 * 2).collect();
    let expected: u64 = words.iter().sum();
    for isa in Isa::all_here() {
        for streams in [1, 4, 8, 16] {
            assert_eq!(sum(isa, bytemuck::cast_slice(&words), streams), expected, "{isa:?}");
        }
    }
}

#[test]
fn the_multiplications_are_done() {
    const TURNS: usize = 1000;
    // What n turns make of zero: they leave one as it is.
    let each = 1.0 - 0.9999f32.powi(TURNS as i32);
    for isa in Isa::all_here() {
        let (sum, operations) = multiply_add(isa, TURNS);
        let numbers = (operations / (2 * TURNS)) as f32;
        assert!(numbers >= 16.0, "{isa:?}: {numbers}");
        assert!((sum - numbers * each).abs() < 0.001 * sum, "{isa:?}: {sum} of {numbers}");
    }
}
