//! The most likely token.

use crate::dispatch::enter;

use crate::vector::{Job, Vector};
use crate::{Isa, LANES};

/// What [`argmax`] says where one of the numbers is NaN.
pub const NOT_A_NUMBER: i32 = i32::MAX;

/// The index of the largest of `len` numbers, the lowest on ties; [`NOT_A_NUMBER`] if one is NaN.
///
/// # Safety
///
/// The CPU has `isa`, and there are as many numbers.
pub unsafe fn argmax(isa: Isa, numbers: *const f32, len: usize) -> i32 {
    let mut index = 0;
    // SAFETY: the caller's promise.
    unsafe { enter(isa, &Argmax { numbers, len, index: &raw mut index }) };
    index
}

struct Argmax {
    numbers: *const f32,
    len: usize,
    index: *mut i32,
}

/// Numbers whose largest is kept, so that its place is looked for among them alone.
const PART: usize = 64 * LANES;

impl<V: Vector> Job<V> for Argmax {
    #[inline(always)]
    unsafe fn run(&self) {
        // SAFETY: the caller's promise.
        let numbers = unsafe { std::slice::from_raw_parts(self.numbers, self.len) };
        let (mut best, mut place) = (f32::NEG_INFINITY, 0);
        let mut has_nan = false;
        for (i, part) in numbers.chunks(PART).enumerate() {
            let mut largest = [f32::NEG_INFINITY; LANES];
            let mut nan = [false; LANES];
            let (vectors, rest) = part.as_chunks::<LANES>();
            for vector in vectors {
                for lane in 0..LANES {
                    let x = vector[lane];
                    largest[lane] = if x > largest[lane] { x } else { largest[lane] };
                    nan[lane] |= x.is_nan();
                }
            }
            has_nan |= nan.contains(&true) || rest.iter().any(|x| x.is_nan());
            let most = |a: f32, &b: &f32| if b > a { b } else { a };
            let largest = rest.iter().chain(&largest).fold(f32::NEG_INFINITY, most);
            if largest > best {
                best = largest;
                place = i * PART + part.iter().position(|&x| x == largest).unwrap_or(0);
            }
        }
        // SAFETY: the caller's own.
        unsafe { *self.index = if has_nan { NOT_A_NUMBER } else { place as i32 } };
    }
}
