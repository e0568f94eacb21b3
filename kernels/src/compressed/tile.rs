//! The innermost loops: a few rows of `x` against blocks that are decoded on the way.

use std::marker::PhantomData;

use super::super::floats::Float;
use super::super::tile::{Parts, Tile};
use super::super::{LANES, Product};
use super::block::{Block, CODES, GROUP, Kind, MANTISSAS};
use super::decode::{Arithmetic, Decode};

/// Bytes between the groups being read and those being prefetched. Measured: 1024, which is best for
/// plain weights, is up to a tenth slower on one thread.
const AHEAD: usize = 2048;

/// Pairs of columns of a group.
pub(super) const PAIRS: usize = GROUP / 2;

/// Rows of activations or of results, so many words apart.
#[derive(Clone, Copy)]
pub(super) struct Rows {
    pub at: *mut u32,
    pub words: usize,
}

impl Rows {
    /// # Safety
    ///
    /// There is such a row, or the end is there.
    #[inline(always)]
    pub unsafe fn row(self, row: usize) -> *mut u32 {
        // SAFETY: the caller's promise.
        unsafe { self.at.add(row * self.words) }
    }
}

/// Compressed blocks as they are stored, all with low halves or all without.
#[derive(Clone, Copy)]
pub(super) struct Stored<const WHOLE: bool> {
    pub matrix: *const u8,
    pub index: *const u64,
    pub columns: usize,
}

impl<const WHOLE: bool> Stored<WHOLE> {
    pub const GROUP_BYTES: usize =
        if WHOLE { Kind::Whole.group_bytes() } else { Kind::Upper.group_bytes() };

    /// # Safety
    ///
    /// There is such a block, or group below, and as for [`Decode`].
    #[inline(always)]
    pub unsafe fn block(&self, block: usize) -> Block {
        // SAFETY: the caller's promise.
        unsafe { Block::new(self.matrix.add(self.index.add(block).read_unaligned() as usize)) }
    }

    /// Where the groups of block `block` begin, and what is looked up in it.
    ///
    /// # Safety
    ///
    /// As above.
    #[inline(always)]
    pub unsafe fn open<V: Decode>(&self, block: usize) -> (*const u8, V::Exponents) {
        // SAFETY: the caller's promise.
        unsafe {
            let block = self.block(block);
            (block.body(), V::exponents(block.exponents()))
        }
    }

    /// # Safety
    ///
    /// As above.
    #[inline(always)]
    pub unsafe fn codes<V: Decode>(group: *const u8) -> V::Codes {
        // SAFETY: the caller's promise.
        unsafe { V::codes(group.add(MANTISSAS)) }
    }

    /// # Safety
    ///
    /// As above.
    #[inline(always)]
    pub unsafe fn pair<V: Decode>(
        group: *const u8,
        codes: V::Codes,
        i: usize,
        exponents: V::Exponents,
    ) -> V::Integers {
        // SAFETY: the caller's promise.
        unsafe { V::pair(group.add(i * MANTISSAS / PAIRS), codes, i, exponents) }
    }

    /// # Safety
    ///
    /// As above.
    #[inline(always)]
    pub unsafe fn lows<V: Decode>(group: *const u8, i: usize) -> Option<V::Integers> {
        // SAFETY: the caller's promise.
        WHOLE.then(|| unsafe { V::load_words(group.add(MANTISSAS + CODES + i * LANES * 4)) })
    }

    /// Adds to `rows` rows at `y`, lane 0 of a block, what its groups do not hold. Last of all, for
    /// few rows and for many: so a row has the same bits among any others.
    ///
    /// # Safety
    ///
    /// As above, `x` and `y` having so many rows.
    #[inline(always)]
    pub unsafe fn finish<V: Decode, A: Arithmetic<V>>(
        &self,
        block: usize,
        rows: usize,
        x: Rows,
        y: Rows,
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            for escape in self.block(block).escapes(self.columns) {
                let weight = f32::from_bits(escape.bits());
                for m in 0..rows {
                    let x = A::activation(x.row(m), escape.column());
                    *y.row(m).cast::<f32>().add(escape.lane()) += x * weight;
                }
            }
        }
    }
}

/// Rows of `x` times a run of blocks as they are stored.
pub(super) struct PairTile<A, const WHOLE: bool> {
    stored: Stored<WHOLE>,
    x: Rows,
    y: Rows,
    groups: usize,
    blocks: usize,
    arithmetic: PhantomData<A>,
}

impl<A, const WHOLE: bool> Clone for PairTile<A, WHOLE> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<A, const WHOLE: bool> Copy for PairTile<A, WHOLE> {}

impl<A, const WHOLE: bool> PairTile<A, WHOLE> {
    /// The product with the blocks of `stored`.
    pub fn new<V: Decode>(p: &Product, stored: Stored<WHOLE>) -> Self
    where
        A: Arithmetic<V>,
    {
        Self {
            stored,
            x: Rows { at: p.x.cast_mut().cast(), words: p.columns / 2 * A::WORDS },
            y: Rows { at: p.y.cast(), words: p.stride },
            groups: p.columns / GROUP,
            blocks: p.blocks,
            arithmetic: PhantomData,
        }
    }

    /// Adds to each sum what a group of its block and the words at `x` of its row make.
    #[inline(always)]
    unsafe fn group<V: Decode, const M: usize>(
        &self,
        at: *const u8,
        exponents: V::Exponents,
        x: *const u32,
        sums: &mut [V; M],
    ) where
        A: Arithmetic<V>,
    {
        // SAFETY: as for `multiply`; a prefetch never faults.
        unsafe {
            let codes = Stored::<WHOLE>::codes::<V>(at);
            unroll!(I, {
                for line in (I * 64..Stored::<WHOLE>::GROUP_BYTES).step_by(PAIRS * 64) {
                    V::prefetch(at.wrapping_add(line + AHEAD));
                }
                let pair = Stored::<WHOLE>::pair::<V>(at, codes, I, exponents);
                let lows = Stored::<WHOLE>::lows::<V>(at, I);
                for word in 0..A::WORDS {
                    let weights = A::weights(pair, lows, word);
                    for (m, sum) in sums.iter_mut().enumerate() {
                        let x = x.add(m * self.x.words + I * A::WORDS + word).read_unaligned();
                        *sum = A::Float::add_products(*sum, weights, x);
                    }
                    for sum in &mut *sums {
                        *sum = sum.pin();
                    }
                }
            }, 0 1 2 3);
        }
    }
}

impl<V: Decode, A: Arithmetic<V>, const WHOLE: bool> Parts<V> for PairTile<A, WHOLE> {
    unsafe fn part(self, block: usize, blocks: usize) -> Self {
        // SAFETY: the caller's promise.
        unsafe {
            let stored = Stored { index: self.stored.index.add(block), ..self.stored };
            let y = Rows { at: self.y.at.add(block * LANES), ..self.y };
            Self { stored, y, blocks, ..self }
        }
    }

    unsafe fn rows_from(self, first: usize) -> Self {
        // SAFETY: the caller's promise.
        unsafe {
            let x = Rows { at: self.x.row(first), ..self.x };
            Self { x, y: Rows { at: self.y.row(first), ..self.y }, ..self }
        }
    }
}

impl<V: Decode, A: Arithmetic<V>, const WHOLE: bool> Tile<V> for PairTile<A, WHOLE> {
    fn blocks(&self) -> usize {
        self.blocks
    }

    /// Blocks take turns, group by group: registers are scarce where they are decoded.
    #[inline(always)]
    unsafe fn multiply<const R: usize, const M: usize>(&self, block: usize, step: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            let mut sums = [[V::splat(0.0); M]; R];
            let blocks: [_; R] = std::array::from_fn(|r| self.stored.open::<V>(block + r * step));
            for group in 0..self.groups {
                let x = self.x.at.add(group * PAIRS * A::WORDS);
                // A loop would be one at run time too, with the sums in memory.
                const { assert!(R <= 4) };
                unroll!(BLOCK, {
                    if BLOCK < R {
                        let (groups, exponents) = blocks[BLOCK];
                        let at = groups.add(group * Stored::<WHOLE>::GROUP_BYTES);
                        self.group::<V, M>(at, exponents, x, &mut sums[BLOCK]);
                    }
                }, 0 1 2 3);
            }
            for (r, sums) in sums.into_iter().enumerate() {
                let block = block + r * step;
                let y = Rows { at: self.y.at.add(block * LANES), ..self.y };
                for (m, sum) in sums.into_iter().enumerate() {
                    sum.store(y.row(m).cast());
                }
                self.stored.finish::<V, A>(block, M, self.x, y);
            }
        }
    }
}
