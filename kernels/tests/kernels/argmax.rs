//! The most likely token.

use kernels::{Isa, NOT_A_NUMBER, argmax};

#[test]
fn the_lowest_of_the_largest() {
    for len in [1, 15, 16, 17, 1000, 1024, 1025, 5000] {
        for isa in Isa::all_here() {
            // SAFETY: this CPU has the instructions.
            let of = |numbers: &[f32]| unsafe { argmax(isa, numbers.as_ptr(), numbers.len()) };
            let numbers: Vec<f32> = (0..len).map(|i| -1.0 - (i % 77) as f32).collect();
            for place in [0, 1, 14, 30, 999, 1023, 1024, len - 1] {
                if place >= len {
                    continue;
                }
                let with = |value: f32| {
                    let mut numbers = numbers.clone();
                    numbers[place] = value;
                    numbers[len - 1] = value;
                    of(&numbers)
                };
                assert_eq!(with(3.0), place as i32, "{isa:?} {len}");
                assert_eq!(with(f32::INFINITY), place as i32, "{isa:?} {len}");
                assert_eq!(with(f32::NAN), NOT_A_NUMBER, "{isa:?} {len} {place}");
            }
            assert_eq!(of(&vec![f32::NEG_INFINITY; len]), 0, "{isa:?} {len}");
        }
    }
}
