//! The low bits of [split](crate::quantise::split_block) weights, row by row, and the activations
//! that meet them.

use std::marker::PhantomData;

use super::LANES;
use super::coarse::middle;
use super::integers::{Integer, PAIRS, Rounding, WORD, round};
use super::tile::Job;
use super::vector::Vector;
use crate::format::{CHUNK, GROUP};

/// The low bits of integers: a lane is a group of one row.
pub(super) struct Fine<const BITS: usize>;

/// Pairs of columns that a word has.
const fn pairs_of_word(bits: usize) -> usize {
    PAIRS / bits
}

impl<const BITS: usize> Rounding for Fine<BITS> {
    const OFFSET: i32 = 0;

    /// What the coarse part has added.
    #[inline(always)]
    fn start(sum: i32) -> i32 {
        -(middle(sum, BITS as u32) << BITS)
    }

    /// The columns of the low half of a word meet those of its high half.
    #[inline(always)]
    unsafe fn arranged(integers: &[u32; GROUP]) -> [u32; PAIRS] {
        std::array::from_fn(|i| {
            let pairs = pairs_of_word(BITS);
            let first = i / pairs * 2 * pairs + i % pairs;
            integers[first] & 0xffff | integers[first + pairs] << 16
        })
    }
}

impl<const BITS: usize> Integer for Fine<BITS> {
    const GROUP_BYTES: usize = BITS * WORD;

    #[inline(always)]
    unsafe fn pairs<V: Vector>(group: *const u8, i: usize) -> V::Integers {
        let pairs = pairs_of_word(BITS);
        // SAFETY: as the caller promises.
        unsafe {
            V::bits(group.add(i / pairs * WORD), BITS * (i % pairs), ((1 << BITS) - 1) * 0x1_0001)
        }
    }
}

/// Activations as a chunk of a fine row meets them.
#[repr(C, align(64))]
pub(super) struct Chunk {
    /// Of each group, as [`Rounding::arranged`] has them.
    pub pairs: [[u32; LANES]; PAIRS],
    pub starts: [i32; LANES],
    pub scales: [f32; LANES],
}

/// The factor by which the norms of activations are larger than they are: `Search::may_win` in
/// `refine.rs` counts what that covers.
pub(super) const MORE: f64 = 1.002;

/// Rounds `columns` f32 at `x`.
pub(super) struct Round<F> {
    pub x: *const f32,
    pub columns: usize,
    pub to: *mut Chunk,
    /// `[chunks + 1]`: the norm of the activations from each chunk on, times [`MORE`].
    pub norms: *mut f32,
    pub format: PhantomData<F>,
}

impl<V: Vector, F: Integer> Job<V> for Round<F> {
    #[inline(always)]
    unsafe fn run(&self) {
        let mut square = 0.0;
        let chunks = self.columns.div_ceil(CHUNK);
        // SAFETY: the caller's promise covers `columns` activations, as many chunks and one norm
        // more.
        unsafe {
            self.norms.add(chunks).write(0.0);
            for number in (0..chunks).rev() {
                let columns = CHUNK.min(self.columns - number * CHUNK);
                let x = std::slice::from_raw_parts(self.x.add(number * CHUNK), columns);
                let to = &mut *self.to.add(number);
                if columns < CHUNK {
                    *to = Chunk {
                        pairs: [[0; LANES]; PAIRS],
                        starts: [0; LANES],
                        scales: [0.0; LANES],
                    };
                }
                for group in 0..columns.div_ceil(GROUP) {
                    // As where whole rows are rounded.
                    let group = std::hint::black_box(group);
                    let rest = &x[group * GROUP..];
                    let mut of_group = [0.0; GROUP];
                    match rest.first_chunk() {
                        Some(whole) => of_group = *whole,
                        None => of_group[..rest.len()].copy_from_slice(rest),
                    }
                    let mut pairs = [0; PAIRS];
                    (to.scales[group], to.starts[group]) = round::<F>(&of_group, &mut pairs);
                    for (to, pair) in to.pairs.iter_mut().zip(pairs) {
                        to[group] = pair;
                    }
                    // f64 holds the squares of all f32.
                    let mut squares = [0.0; 8];
                    for x in of_group.as_chunks::<8>().0 {
                        for (square, x) in squares.iter_mut().zip(x) {
                            *square += f64::from(*x) * f64::from(*x);
                        }
                    }
                    square += squares.iter().sum::<f64>();
                }
                self.norms.add(number).write((square.sqrt() * MORE) as f32);
            }
        }
    }
}
