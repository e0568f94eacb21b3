//! Many rows meet blocks that were decoded: a piece of some columns at a time, which all rows meet
//! while it is in the L1 cache. The first rows decode it as they go, so that the units which multiply
//! do not wait for those which decode.
//!
//! Between pieces sums are in memory. They are added up in the order of the columns, as without
//! pieces. What is decoded next is prefetched while the other rows meet a piece, a little in every
//! group of columns: memory would stand still.

use super::super::vector::Tile;
use std::marker::PhantomData;

use super::super::floats::Float;
use super::super::walk::tiles;
use super::super::{LANES, Product};
use super::block::{GROUP, HEADER};
use super::decode::{Arithmetic, Decode};
use super::tile::{PAIRS, Rows, Stored, VECTOR, add_escapes, add_group};

/// Blocks that rows meet together.
pub(super) const TOGETHER: usize = 2;

/// Vectors of a block in a piece: two blocks of as many take two thirds of an L1 cache of 48 KB, and
/// all of one of 32, where half as many are hardly slower.
const DEPTH: usize = 256;

/// Bytes of a cache line, which is the unit of what blocks are padded to.
const LINE: usize = HEADER;

/// Words of scratch for so many rows.
pub(super) fn words(rows: usize) -> usize {
    TOGETHER * LANES * (DEPTH + 2 * rows)
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
        let of_rows = |at: *mut f32| Rows { at: at.cast(), words: TOGETHER * LANES };
        let sums = of_rows(scratch.add(TOGETHER * DEPTH * LANES));
        let escaped = of_rows(sums.row(p.used).cast());
        escaped.at.write_bytes(0, p.used * escaped.words);
        let y = Rows { at: p.y.cast(), words: p.stride };
        let mut escapes: [_; TOGETHER] =
            std::array::from_fn(|block| stored.block(block.min(p.blocks - 1)).escapes(p.columns));
        for first in (0..p.columns).step_by(depth) {
            let end = p.columns.min(first + depth);
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
                weights: scratch.cast(),
                groups: (end - first) / GROUP,
                blocks: p.blocks,
                x: Rows { at: x.at.add(first / GROUP * words), ..x },
                from: (first > 0).then_some(sums),
                to: match end == p.columns {
                    true => y,
                    false => sums,
                },
                next,
                lines: 0,
                arithmetic: PhantomData,
            };
            // While the activations are in the caches.
            let of_piece = escapes.each_mut().map(|escapes| escapes.before(end));
            let add_escapes = |row: usize, rows: usize| {
                for (block, of_piece) in of_piece.into_iter().take(p.blocks).enumerate() {
                    let sums = Rows { at: escaped.row(row).add(block * LANES), ..escaped };
                    add_escapes::<V, A>(of_piece, rows, Rows { at: x.row(row), ..x }, sums);
                }
            };
            let most = A::Float::ROWS;
            let decoding = tiles::<V>(p.used, most).next().map_or(0, |(_, rows)| rows);
            let decoding = decoding.min(V::DECODING);
            V::run(decoding, &Decoding { panel, stored, first: first / GROUP });
            add_escapes(0, decoding);
            for (row, rows) in tiles::<V>(p.used - decoding, most) {
                let row = decoding + row;
                let [from, to] =
                    [row, row + rows].map(|row| (row - decoding) * lines / (p.used - decoding));
                let next = next.map(|next| next.wrapping_add(from * LINE));
                V::run(rows, &Panel { next, lines: to - from, ..panel.rows_from(row) });
                add_escapes(row, rows);
            }
        }
        for row in 0..p.used {
            for of_block in 0..p.blocks {
                let [escaped, y] = [escaped, y]
                    .map(|rows| rows.row(row).add(of_block * LANES).cast::<[f32; LANES]>());
                for (y, escaped) in (&mut *y).iter_mut().zip(&*escaped) {
                    *y += escaped;
                }
            }
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

/// Rows of `x` times a piece.
struct Panel<A> {
    /// `[blocks, DEPTH, VECTOR]`
    weights: *mut u8,
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

    /// The sums of `M` rows and `R` blocks from `block` on, each `step` behind the one before,
    /// [turned](Float::turn).
    ///
    /// # Safety
    ///
    /// There are such rows and blocks, and as for [`Decode`].
    #[inline(always)]
    unsafe fn sums<V: Decode, const R: usize, const M: usize>(
        &self,
        block: usize,
        step: usize,
    ) -> [[V; M]; R]
    where
        A: Arithmetic<V>,
    {
        // SAFETY: the caller's promise.
        unsafe {
            let mut sums = [[V::splat(0.0); M]; R];
            if let Some(from) = self.from {
                each!(r in R, {
                    each!(m in M, {
                        sums[r][m] = V::load(from.row(m).add((block + r * step) * LANES).cast());
                    });
                    A::Float::turn(&mut sums[r]);
                });
            }
            sums
        }
    }

    /// Stores what [`sums`](Self::sums) has become.
    ///
    /// # Safety
    ///
    /// As there.
    #[inline(always)]
    unsafe fn store<V: Decode, const R: usize, const M: usize>(
        &self,
        mut sums: [[V; M]; R],
        block: usize,
        step: usize,
    ) where
        A: Arithmetic<V>,
    {
        // SAFETY: the caller's promise.
        unsafe {
            each!(r in R, {
                A::Float::turn(&mut sums[r]);
                each!(m in M, {
                    sums[r][m].store(self.to.row(m).add((block + r * step) * LANES).cast());
                });
            });
        }
    }
}

/// The first rows of `x` times a piece, which they decode.
struct Decoding<A, const WHOLE: bool> {
    panel: Panel<A>,
    stored: Stored<WHOLE>,
    /// The first group of the piece.
    first: usize,
}

impl<A, const WHOLE: bool> Clone for Decoding<A, WHOLE> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<A, const WHOLE: bool> Copy for Decoding<A, WHOLE> {}

impl<V: Decode, A: Arithmetic<V>, const WHOLE: bool> Tile<V> for Decoding<A, WHOLE> {
    const BLOCKS: usize = TOGETHER;

    fn blocks(&self) -> usize {
        self.panel.blocks
    }

    #[inline(always)]
    unsafe fn multiply<const R: usize, const M: usize>(&self, block: usize, step: usize) {
        let Panel { weights, groups, x, .. } = self.panel;
        // SAFETY: the caller's promise.
        unsafe {
            let mut sums = self.panel.sums::<V, R, M>(block, step);
            let blocks: [_; R] = std::array::from_fn(|r| self.stored.open::<V>(block + r * step));
            for group in 0..groups {
                let x = Rows { at: x.at.add(group * PAIRS * A::WORDS), ..x };
                let at =
                    |r: usize| blocks[r].0.add((self.first + group) * Stored::<WHOLE>::GROUP_BYTES);
                let keep = |r: usize| {
                    let vector = (block + r * step) * DEPTH + group * PAIRS * A::WORDS;
                    weights.add(vector * VECTOR)
                };
                add_group::<V, A, R, M, WHOLE, true>(
                    std::array::from_fn(at),
                    blocks.map(|(_, uppers)| uppers),
                    x,
                    &mut sums,
                    std::array::from_fn(keep),
                );
            }
            self.panel.store(sums, block, step);
        }
    }
}

impl<V: Decode, A: Arithmetic<V>> Tile<V> for Panel<A> {
    const BLOCKS: usize = TOGETHER;

    fn blocks(&self) -> usize {
        self.blocks
    }

    #[inline(always)]
    unsafe fn multiply<const R: usize, const M: usize>(&self, block: usize, step: usize) {
        // SAFETY: the caller's promise; a prefetch never faults.
        unsafe {
            let mut sums = self.sums::<V, R, M>(block, step);
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
                    each!(word in A::WORDS, {
                        let i = I * A::WORDS + word;
                        let mut weights = [A::load(at.add(i * VECTOR)); R];
                        each!(r in R, { weights[r] = A::load(at.add(r * apart + i * VECTOR)) });
                        let x = x.add(i / 2 * 2);
                        A::Float::add_half(&mut sums, weights, i % 2, x, self.x.words);
                    });
                }, 0 1 2 3);
            }
            self.store(sums, block, step);
        }
    }
}
