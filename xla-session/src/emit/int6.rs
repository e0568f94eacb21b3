//! Integers of six bits in words of several lanes, taken apart by loops that IREE compiles.

use super::Emitter;
use super::builder::{Generic, Value};
use super::linear::Matrix;
use crate::quantise::GROUP;

/// Words of a group and lane: [`Format::Int6`](super::Format::Int6).
const WORDS: usize = 6;

impl Emitter<'_> {
    /// Of words `[n, groups, 6, …]` those with nibbles, `[n, groups, 2, 2, …]`, and those with the
    /// bits above them, `[n, groups, 2, …]`: `[h, p]` of the former and `[h]` of the latter have
    /// the columns `16 h + 8 p + i`.
    pub(super) fn split_int6(&mut self, words: &Value) -> (Value, Value) {
        let nibbles = self.b.slice(words, 2, 0, 4);
        let above = self.b.slice(words, 2, 4, WORDS);
        let dims = words.dims();
        let dims = [&dims[..2], &[2, 2], &dims[3..]].concat();
        (self.b.reshape(&nibbles, &dims), above)
    }

    /// Rows of a packed matrix at `indices`, widened, `[indices, columns]`.
    pub(super) fn gather_int6(&mut self, table: &Matrix, scales: &Value, indices: &Value) -> Value {
        let &[blocks, groups, lanes] = scales.dims() else { unreachable!("scales have 3 dims") };
        let n = indices.dims()[0];
        let words = self.b.reshape(&table.weights, &[blocks, groups * WORDS, lanes]);
        let words = self.b.gather_lanes(&words, indices);
        let words = self.b.reshape(&words, &[n, groups, WORDS]);
        let (nibbles, above) = self.split_int6(&words);
        let scales = self.b.gather_lanes(scales, indices);
        let into = self.b.empty(&[n, groups, 2, 2, 8], None);
        let body = integer("%in0", "%in1", [3, 4])
            + "%scale = arith.extf %in2 : f16 to f32
               %weight = arith.mulf %wide, %scale : f32
               linalg.yield %weight : f32";
        let rows = self.b.generic(
            &Generic {
                loops: "m,g,h,p,i",
                inputs: &[(&nibbles, "m,g,h,p"), (&above, "m,g,h"), (&scales, "m,g")],
                result: "m,g,h,p,i",
                body: &body,
                config: None,
            },
            &into,
        );
        let rows = self.b.reshape(&rows, &[n, groups * GROUP]);
        self.b.slice(&rows, 1, 0, table.columns)
    }
}

/// The part of a body that makes `%wide`, the integer of column `16 h + 8 p + i` as f32, of the words
/// that have its nibble and the bits above it; `p` and `i` are loops of these numbers.
pub(super) fn integer(nibbles: &str, above: &str, [p, i]: [usize; 2]) -> String {
    format!(
        "%p = linalg.index {p} : index
         %p_i32 = arith.index_cast %p : index to i32
         %i = linalg.index {i} : index
         %i_i32 = arith.index_cast %i : index to i32
         %one = arith.constant 1 : i32
         %two = arith.constant 2 : i32
         %three = arith.constant 3 : i32
         %four = arith.constant 4 : i32
         %shift = arith.shli %i_i32, %two : i32
         %shifted = arith.shrui {nibbles}, %shift : i32
         %fifteen = arith.constant 15 : i32
         %low = arith.andi %shifted, %fifteen : i32
         %of_p = arith.shli %p_i32, %three : i32
         %pair = arith.andi %i_i32, %three : i32
         %of_pair = arith.shli %pair, %one : i32
         %second = arith.shrui %i_i32, %two : i32
         %of_second = arith.shli %second, %four : i32
         %bits = arith.addi %of_p, %of_pair : i32
         %bit = arith.addi %bits, %of_second : i32
         %shifted_above = arith.shrui {above}, %bit : i32
         %above = arith.andi %shifted_above, %three : i32
         %high = arith.shli %above, %four : i32
         %stored = arith.ori %low, %high : i32
         %offset = arith.constant 32 : i32
         %integer = arith.subi %stored, %offset : i32
         %wide = arith.sitofp %integer : i32 to f32\n"
    )
}
