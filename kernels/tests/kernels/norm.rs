//! Norms, and rounding to bfloat16.

use half::bf16;
use kernels::{Isa, Norm, norm, round_to_bf16};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;

use crate::weights::random;

fn numbers(rng: &mut ChaCha8Rng, n: usize) -> Vec<f32> {
    (0..n).map(|_| random(rng)).collect()
}

#[test]
fn rows_of_any_length_match_f64() {
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    for columns in [1, 5, 16, 50, 64, 96, 200, 2048] {
        let (x, weight) = (numbers(&mut rng, columns), numbers(&mut rng, columns));
        let epsilon = 1e-5;
        let mean = |of: &dyn Fn(f64) -> f64| {
            x.iter().map(|&x| of(f64::from(x))).sum::<f64>() / columns as f64
        };
        let zeros = vec![0.0; columns];
        // What is added, whether to what is there, whether the mean is taken off, whether there are weights.
        let ways = [
            (0.0, false, false, true),
            (1.0, false, false, true),
            (1.0, true, false, true),
            (0.0, false, true, true),
            (1.0, false, false, false),
            (0.0, false, true, false),
        ];
        for (isa, (offset, add, centred, weighted)) in
            Isa::all_here().into_iter().flat_map(|isa| ways.map(|way| (isa, way)))
        {
            let middle = if centred { mean(&|x| x) } else { 0.0 };
            let root = (mean(&|x| (x - middle).powi(2)) + f64::from(epsilon)).sqrt();
            let mut y = vec![if add { 2.0 } else { f32::NAN }; columns];
            let of = Norm {
                x: x.as_ptr(),
                weight: if weighted { weight.as_ptr() } else { std::ptr::null() },
                // Any numbers: the weights are some.
                bias: if centred { weight.as_ptr() } else { std::ptr::null() },
                y: y.as_mut_ptr(),
                columns,
                epsilon,
                offset,
                centred,
                add,
            };
            // SAFETY: this CPU has the instructions, and all are as long as stated.
            unsafe { norm(isa, &of) };
            let bias = if centred { &weight } else { &zeros };
            let weight = if weighted { &weight } else { &zeros };
            for (((&y, &x), &weight), &bias) in y.iter().zip(&x).zip(weight).zip(bias) {
                let before = if add { 2.0 } else { 0.0 } + f64::from(bias);
                let weight = f64::from(offset) + f64::from(weight);
                let expected = before + (f64::from(x) - middle) / root * weight;
                let error = (f64::from(y) - expected).abs();
                assert!(error <= 1e-6, "{isa:?} {columns}: {y}, not {expected}");
            }
        }
    }
}

#[test]
fn bfloat16_is_the_nearest_and_keeps_what_is_no_number() {
    let mut numbers = numbers(&mut ChaCha8Rng::seed_from_u64(2), 1000);
    numbers.extend([0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, f32::MIN_POSITIVE]);
    // Halfway between two, above an even one and above an odd one.
    numbers.extend([0x3f80_8000, 0x3f81_8000, 0x3f80_8001, 0x0000_8001].map(f32::from_bits));
    numbers.extend([f32::NAN, f32::from_bits(0x7f80_0001), f32::from_bits(0xffff_ffff)]);
    for isa in Isa::all_here() {
        let mut rounded = vec![0; numbers.len()];
        // SAFETY: this CPU has the instructions, and both are as long.
        unsafe {
            round_to_bf16(isa, numbers.as_ptr(), rounded.as_mut_ptr(), numbers.len());
        }
        for (&number, &rounded) in numbers.iter().zip(&rounded) {
            let expected = bf16::from_f32(number);
            let found = bf16::from_bits(rounded);
            let same = found == expected && found.is_sign_negative() == number.is_sign_negative();
            assert!(same || found.is_nan() && number.is_nan(), "{isa:?}: {number} {found}");
        }
    }
}
