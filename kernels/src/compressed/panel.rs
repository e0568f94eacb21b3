//! Many rows meet blocks that were decoded: a piece of some columns at a time, which all rows meet
//! while it is in the L1 cache.
//!
//! Between pieces sums are in memory. They are added up in the order of the columns, as without
//! pieces. What is decoded next is prefetched all the while, a little in every group of columns:
//! memory would stand still while rows meet a piece, and they while one is decoded.

use std::marker::PhantomData;
use std::ops::Range;

use super::super::floats::Float;
use super::super::tile::{Job, Tile};
use super::super::walk::tiles;
use super::super::{LANES, Product};
use super::block::{GROUP, HEADER};
use super::decode::{Arithmetic, Decode};
use super::tile::{PAIRS, Rows, Stored};

/// Blocks that rows meet together.
pub(super) const TOGETHER: usize = 2;

/// Vectors of a block in a piece: two blocks of as many take two thirds of an L1 cache of 48 KB, and
/// all of one of 32, where half as many are hardly slower.
const DEPTH: usize = 256;

/// Bytes of a vector.
const VECTOR: usize = LANES * 4;

/// Bytes of a cache line, which is the unit of what blocks are padded to.
const LINE: usize = HEADER;

/// Words of scratch for so many rows.
pub(super) fn words(rows: usize) -> usize {
    TOGETHER * LANES * (DEPTH + rows)
}

/// Multiplies with the blocks of `p`, at most [`TOGETHER`], behind which there are `more`. All have
/// low halves as `WHOLE` says.
///
/// # Safety
///
/// As for [`Kernel`](super::Kernel); the scratch has [`words`].
pub(super) unsafe fn multiply<V: Decode, A: Arithmetic<V>, const WHOLE: bool>(
    p: &Product,
    more: usize,
    scratch: *mut f32,
) {
    let stored = Stored::<WHOLE> { matrix: p.weights, index: p.index, columns: p.columns };
    let group_bytes = Stored::<WHOLE>::GROUP_BYTES;
    let words = PAIRS * A::WORDS;
    let depth = DEPTH / words * GROUP;
    let x = Rows { at: p.x.cast_mut().cast(), words: p.columns / GROUP * words };
    // SAFETY: the caller's promise; the scratch has both, and a prefetch never faults.
    unsafe {
        let weights = scratch.cast::<u8>();
        let sums =
            Rows { at: scratch.add(TOGETHER * DEPTH * LANES).cast(), words: TOGETHER * LANES };
        for first in (0..p.columns).step_by(depth) {
            let end = p.columns.min(first + depth);
            let piece = Piece::<A, WHOLE> {
                stored,
                blocks: p.blocks,
                columns: first..end,
                to: weights,
                arithmetic: PhantomData,
            };
            V::enter(&piece);

            let (next, columns) = match end == p.columns {
                true if more < p.blocks => ([std::ptr::null(); TOGETHER], 0),
                true => (bodies(&stored, p.blocks, p.blocks), depth.min(p.columns)),
                false => {
                    let bodies = bodies(&stored, 0, p.blocks);
                    let next = bodies.map(|body| body.wrapping_add(end / GROUP * group_bytes));
                    (next, depth.min(p.columns - end))
                }
            };
            let lines = columns / GROUP * group_bytes / LINE;
            let panel = Panel::<A> {
                weights,
                groups: (end - first) / GROUP,
                blocks: p.blocks,
                x: Rows { at: x.at.add(first / GROUP * words), ..x },
                from: (first > 0).then_some(sums),
                to: match end == p.columns {
                    true => Rows { at: p.y.cast(), words: p.stride },
                    false => sums,
                },
                next,
                lines: 0,
                arithmetic: PhantomData,
            };
            for (row, rows) in tiles(p.used, V::ROWS) {
                let [from, to] = [row, row + rows].map(|row| row * lines / p.used);
                let next = next.map(|next| next.wrapping_add(from * LINE));
                V::run(rows, &Panel { next, lines: to - from, ..panel.rows_from(row) });
            }
        }
        for block in 0..p.blocks {
            let y = Rows { at: p.y.add(block * LANES).cast(), words: p.stride };
            stored.finish::<V, A>(block, p.used, x, y);
        }
    }
}

/// Of `blocks` blocks from `first` on.
///
/// # Safety
///
/// There are such blocks.
unsafe fn bodies<const WHOLE: bool>(
    stored: &Stored<WHOLE>,
    first: usize,
    blocks: usize,
) -> [*const u8; TOGETHER] {
    // SAFETY: the caller's promise.
    let body = |i: usize| unsafe { stored.block(first + i.min(blocks - 1)) }.body();
    std::array::from_fn(body)
}

/// Decodes some columns of the first `blocks` blocks.
struct Piece<A, const WHOLE: bool> {
    stored: Stored<WHOLE>,
    blocks: usize,
    columns: Range<usize>,
    /// `[blocks, DEPTH, VECTOR]`
    to: *mut u8,
    arithmetic: PhantomData<A>,
}

impl<V: Decode, A: Arithmetic<V>, const WHOLE: bool> Job<V> for Piece<A, WHOLE> {
    #[inline(always)]
    unsafe fn run(&self) {
        let Range { start, end } = self.columns;
        // SAFETY: the caller's promise.
        unsafe {
            for block in 0..self.blocks {
                let to = self.to.add(block * DEPTH * VECTOR);
                let (groups, table) = self.stored.open::<V>(block);
                for group in 0..(end - start) / GROUP {
                    let at = groups.add((start / GROUP + group) * Stored::<WHOLE>::GROUP_BYTES);
                    let to = to.add(group * PAIRS * A::WORDS * VECTOR);
                    let codes = Stored::<WHOLE>::codes::<V>(at);
                    unroll!(I, {
                        let pair = Stored::<WHOLE>::pair::<V>(at, codes, I, table);
                        let lows = Stored::<WHOLE>::lows::<V>(at, I);
                        for word in 0..A::WORDS {
                            let weights = A::weights(pair, lows, word);
                            A::store(weights, to.add((I * A::WORDS + word) * VECTOR));
                        }
                    }, 0 1 2 3);
                }
            }
        }
    }
}

/// Rows of `x` times a piece.
struct Panel<A> {
    /// `[blocks, DEPTH, VECTOR]`
    weights: *const u8,
    groups: usize,
    blocks: usize,
    x: Rows,
    /// The sums of earlier pieces.
    from: Option<Rows>,
    to: Rows,
    /// For each block where to prefetch, and how many lines.
    next: [*const u8; TOGETHER],
    lines: usize,
    arithmetic: PhantomData<A>,
}

impl<A> Clone for Panel<A> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<A> Copy for Panel<A> {}

impl<A> Panel<A> {
    /// The same from row `first` on.
    ///
    /// # Safety
    ///
    /// There is such a row.
    unsafe fn rows_from(self, first: usize) -> Self {
        // SAFETY: the caller's promise.
        let from = |rows: Rows| Rows { at: unsafe { rows.row(first) }, ..rows };
        Self { x: from(self.x), from: self.from.map(from), to: from(self.to), ..self }
    }
}

impl<V: Decode, A: Arithmetic<V>> Tile<V> for Panel<A> {
    fn blocks(&self) -> usize {
        self.blocks
    }

    #[inline(always)]
    unsafe fn multiply<const R: usize, const M: usize>(&self, block: usize, step: usize) {
        // SAFETY: the caller's promise; a prefetch never faults.
        unsafe {
            let place = |rows: Rows, r: usize, m: usize| -> *mut f32 {
                rows.row(m).add((block + r * step) * LANES).cast()
            };
            let mut sums = [[V::splat(0.0); M]; R];
            if let Some(from) = self.from {
                for (r, sums) in sums.iter_mut().enumerate() {
                    for (m, sum) in sums.iter_mut().enumerate() {
                        *sum = V::load(place(from, r, m));
                    }
                }
            }
            let weights = self.weights.add(block * DEPTH * VECTOR);
            let apart = step * DEPTH * VECTOR;
            let most = self.lines.div_ceil(self.groups);
            let mut line = 0;
            for group in 0..self.groups {
                for _ in 0..most.min(self.lines - line) {
                    for r in 0..R {
                        V::prefetch(self.next[block + r * step].wrapping_add(line * LINE));
                    }
                    line += 1;
                }
                let at = weights.add(group * PAIRS * A::WORDS * VECTOR);
                let x = self.x.at.add(group * PAIRS * A::WORDS);
                unroll!(I, {
                    for word in 0..A::WORDS {
                        let i = I * A::WORDS + word;
                        let mut weights = [A::load(at.add(i * VECTOR)); R];
                        for (r, weights) in weights.iter_mut().enumerate().skip(1) {
                            *weights = A::load(at.add(r * apart + i * VECTOR));
                        }
                        for m in 0..M {
                            let x = x.add(m * self.x.words + i).read_unaligned();
                            for (sums, weights) in sums.iter_mut().zip(weights) {
                                sums[m] = A::Float::add_products(sums[m], weights, x);
                            }
                        }
                        for sum in sums.as_flattened_mut() {
                            *sum = sum.pin();
                        }
                    }
                }, 0 1 2 3);
            }
            for (r, sums) in sums.into_iter().enumerate() {
                for (m, sum) in sums.into_iter().enumerate() {
                    sum.store(place(self.to, r, m));
                }
            }
        }
    }
}
