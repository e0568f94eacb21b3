//! Integers of six bits, taken apart by loops that IREE compiles; how they lie is said at
//! [`pack_int6`](crate::quantise::pack_int6).

use super::Emitter;
use super::builder::{Generic, Value};
use super::linear::Matrix;
use crate::quantise::GROUP;

/// Words of a group and lane.
const WORDS: usize = 6;

impl Emitter<'_> {
    /// Words `[n, groups, 6, …]`, of whose halves `h` a loop `p` takes twelve pairs; then of those
    /// that have the low and the high bits of the rest, `[n, groups, 2, 2, …]` (`p` again is the
    /// last) and `[n, groups, 2, …]`.
    pub(super) fn split_int6(&mut self, words: &Value) -> (Value, [Value; 2]) {
        let low = self.b.slice(words, 2, 0, 4);
        let high = self.b.slice(words, 2, 4, WORDS);
        let dims = words.dims();
        let dims = [&dims[..2], &[2, 2], &dims[3..]].concat();
        (words.clone(), [self.b.reshape(&low, &dims), high])
    }

    /// Rows of a packed matrix at `indices`, widened, `[indices, columns]`.
    pub(super) fn gather_int6(&mut self, table: &Matrix, scales: &Value, indices: &Value) -> Value {
        let &[blocks, groups, lanes] = scales.dims() else { unreachable!("scales have 3 dims") };
        let n = indices.dims()[0];
        let words = self.b.reshape(&table.weights, &[blocks, groups * WORDS, lanes]);
        let words = self.b.gather_lanes(&words, indices);
        let words = self.b.reshape(&words, &[n, groups, WORDS]);
        let scales = self.b.gather_lanes(scales, indices);
        let (most, [low, high]) = self.split_int6(&words);
        let mut part = |words: usize, inputs: &[(&Value, &str)], integer: String| {
            let into = self.b.empty(&[n, groups, words, 2, 2], None);
            let body = integer
                + "%scale = arith.extf %in0 : f16 to f32
                   %weight = arith.mulf %wide, %scale : f32
                   linalg.yield %weight : f32";
            let rows = self.b.generic(
                &Generic {
                    loops: "m,g,w,p,h",
                    inputs,
                    result: "m,g,w,p,h",
                    body: &body,
                    config: None,
                },
                &into,
            );
            self.b.reshape(&rows, &[n, groups, words * 4])
        };
        let most = part(WORDS, &[(&scales, "m,g"), (&most, "m,g,w")], integer_of_most("%in1", 3));
        let inputs = [(&scales, "m,g"), (&low, "m,g,w,p"), (&high, "m,g,w")];
        let rest = part(2, &inputs, integer_of_rest("%in1", "%in2", 3));
        let rows = self.b.concat(&[most, rest], 2);
        let rows = self.b.reshape(&rows, &[n, groups * GROUP]);
        self.b.slice(&rows, 1, 0, table.columns)
    }
}

/// The part of a body that makes `%wide`, an integer of the first twelve pairs as f32, of the word
/// that has it; the loops `p` and `h` have the numbers `p` and the next.
pub(super) fn integer_of_most(word: &str, p: usize) -> String {
    loops(p)
        + &format!(
            "%six = arith.constant 6 : i32
             %of_pair = arith.muli %p, %six : i32
             %at = arith.addi %of_pair, %of_half : i32
             %shifted = arith.shrui {word}, %at : i32
             %mask = arith.constant 63 : i32
             %stored = arith.andi %shifted, %mask : i32\n"
        )
        + WIDEN
}

/// As [`integer_of_most`], of one of the last four pairs.
pub(super) fn integer_of_rest(low: &str, high: &str, p: usize) -> String {
    loops(p)
        + &format!(
            "%twelve = arith.constant 12 : i32
             %at = arith.addi %of_half, %twelve : i32
             %shifted = arith.shrui {low}, %at : i32
             %mask = arith.constant 15 : i32
             %low = arith.andi %shifted, %mask : i32
             %two = arith.constant 2 : i32
             %of_pair = arith.muli %p, %two : i32
             %at_high = arith.addi %at, %of_pair : i32
             %shifted_high = arith.shrui {high}, %at_high : i32
             %three = arith.constant 3 : i32
             %both = arith.andi %shifted_high, %three : i32
             %four = arith.constant 4 : i32
             %high = arith.shli %both, %four : i32
             %stored = arith.ori %low, %high : i32\n"
        )
        + WIDEN
}

/// `%p`, and `%of_half`, the first bit of the half `h` of a word.
fn loops(p: usize) -> String {
    let h = p + 1;
    format!(
        "%p_index = linalg.index {p} : index
         %p = arith.index_cast %p_index : index to i32
         %h_index = linalg.index {h} : index
         %h = arith.index_cast %h_index : index to i32
         %sixteen = arith.constant 16 : i32
         %of_half = arith.muli %h, %sixteen : i32\n"
    )
}

const WIDEN: &str = "%offset = arith.constant 32 : i32
                     %integer = arith.subi %stored, %offset : i32
                     %wide = arith.sitofp %integer : i32 to f32\n";
