//! The innermost loops: some rows of `x` against some blocks, decoded on the way or before.

use std::marker::PhantomData;

use super::super::floats::Float;
use super::super::tile::Tile;
use super::super::{LANES, Product};
use super::block::{Block, CODES, GROUP, Kind, MANTISSAS};
use super::decode::{Arithmetic, Decode};

/// Bytes between the groups being read and those being prefetched. Measured: 1024, which is best for
/// plain weights, is up to a tenth slower on one thread.
pub(super) const AHEAD: usize = 2048;

/// Pairs of columns of a group.
pub(super) const PAIRS: usize = GROUP / 2;

/// Blocks whose pairs of columns can be had group by group.
pub(super) trait Source<V: Decode>: Copy {
    const GROUP_BYTES: usize;
    /// Whether blocks take turns, or an activation that was read meets all before the next one:
    /// registers are scarce where blocks are decoded, loads where many rows meet them.
    const ALONE: bool;
    /// What is looked up in a block.
    type Table: Copy;
    type Codes: Copy;

    /// Where the groups of block `block` begin, and its table.
    ///
    /// # Safety
    ///
    /// As for [`Decode`], there being such a block and group; here and below.
    unsafe fn open(&self, block: usize) -> (*const u8, Self::Table);
    unsafe fn codes(group: *const u8) -> Self::Codes;
    unsafe fn pair(
        group: *const u8,
        codes: Self::Codes,
        i: usize,
        table: Self::Table,
    ) -> V::Integers;
    unsafe fn lows(group: *const u8, i: usize) -> Option<V::Integers>;
    /// Adds to the rows at `y`, lane 0 of a block, what its groups do not hold.
    unsafe fn finish<A: Arithmetic<V>, const M: usize>(&self, block: usize, x: Rows, y: Rows);
    /// The same blocks from another one on.
    unsafe fn from(self, block: usize) -> Self;
}

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
    #[inline(always)]
    pub unsafe fn block(&self, block: usize) -> Block {
        // SAFETY: the caller's promise.
        unsafe { Block::new(self.matrix.add(self.index.add(block).read_unaligned() as usize)) }
    }
}

impl<V: Decode, const WHOLE: bool> Source<V> for Stored<WHOLE> {
    const GROUP_BYTES: usize =
        if WHOLE { Kind::Whole.group_bytes() } else { Kind::Upper.group_bytes() };
    const ALONE: bool = true;
    type Table = V::Exponents;
    type Codes = V::Codes;

    #[inline(always)]
    unsafe fn open(&self, block: usize) -> (*const u8, V::Exponents) {
        // SAFETY: the caller's promise.
        unsafe {
            let block = self.block(block);
            (block.body(), V::exponents(block.exponents()))
        }
    }

    #[inline(always)]
    unsafe fn codes(group: *const u8) -> V::Codes {
        // SAFETY: the caller's promise.
        unsafe { V::codes(group.add(MANTISSAS)) }
    }

    #[inline(always)]
    unsafe fn pair(
        group: *const u8,
        codes: V::Codes,
        i: usize,
        exponents: V::Exponents,
    ) -> V::Integers {
        // SAFETY: the caller's promise.
        unsafe { V::pair(group.add(i * MANTISSAS / PAIRS), codes, i, exponents) }
    }

    #[inline(always)]
    unsafe fn lows(group: *const u8, i: usize) -> Option<V::Integers> {
        // SAFETY: the caller's promise.
        WHOLE.then(|| unsafe { V::load_words(group.add(MANTISSAS + CODES + i * LANES * 4)) })
    }

    #[inline(always)]
    unsafe fn finish<A: Arithmetic<V>, const M: usize>(&self, block: usize, x: Rows, y: Rows) {
        // SAFETY: the caller's promise.
        unsafe {
            for escape in self.block(block).escapes(self.columns) {
                let weight = f32::from_bits(escape.bits());
                for m in 0..M {
                    let x = A::activation(x.row(m), escape.column());
                    *y.row(m).cast::<f32>().add(escape.lane()) += x * weight;
                }
            }
        }
    }

    unsafe fn from(self, block: usize) -> Self {
        // SAFETY: the caller's promise.
        Self { index: unsafe { self.index.add(block) }, ..self }
    }
}

/// Blocks that are decoded: pairs of bfloat16, so many bytes to a block.
#[derive(Clone, Copy)]
pub(super) struct Decoded {
    pub weights: *const u8,
    pub block_bytes: usize,
}

impl<V: Decode> Source<V> for Decoded {
    const GROUP_BYTES: usize = GROUP * LANES * 2;
    const ALONE: bool = false;
    type Table = ();
    type Codes = ();

    #[inline(always)]
    unsafe fn open(&self, block: usize) -> (*const u8, ()) {
        // SAFETY: the caller's promise.
        (unsafe { self.weights.add(block * self.block_bytes) }, ())
    }

    #[inline(always)]
    unsafe fn codes(_: *const u8) {}

    #[inline(always)]
    unsafe fn pair(group: *const u8, _: (), i: usize, _: ()) -> V::Integers {
        // SAFETY: the caller's promise.
        unsafe { V::load_words(group.add(i * LANES * 4)) }
    }

    #[inline(always)]
    unsafe fn lows(_: *const u8, _: usize) -> Option<V::Integers> {
        None
    }

    #[inline(always)]
    unsafe fn finish<A: Arithmetic<V>, const M: usize>(&self, _: usize, _: Rows, _: Rows) {}

    unsafe fn from(self, block: usize) -> Self {
        // SAFETY: the caller's promise.
        Self { weights: unsafe { self.weights.add(block * self.block_bytes) }, ..self }
    }
}

/// Rows of `x` times a run of blocks.
pub(super) struct PairTile<A, S> {
    source: S,
    x: Rows,
    y: Rows,
    groups: usize,
    blocks: usize,
    arithmetic: PhantomData<A>,
}

impl<A, S: Copy> Clone for PairTile<A, S> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<A, S: Copy> Copy for PairTile<A, S> {}

impl<A, S> PairTile<A, S> {
    /// The product with the blocks of `source`, `words` of activations meeting a pair of them.
    pub fn new(p: &Product, source: S, words: usize) -> Self {
        Self {
            source,
            x: Rows { at: p.x.cast_mut().cast(), words: p.columns / 2 * words },
            y: Rows { at: p.y.cast(), words: p.stride },
            groups: p.columns / GROUP,
            blocks: p.blocks,
            arithmetic: PhantomData,
        }
    }
}

impl<A, S: Copy> PairTile<A, S> {
    /// Adds to each sum what a group of its block and the words at `x` of its row make.
    #[inline(always)]
    unsafe fn group<V, const R: usize, const M: usize>(
        &self,
        at: [*const u8; R],
        tables: [S::Table; R],
        x: *const u32,
        sums: &mut [[V; M]; R],
    ) where
        V: Decode,
        A: Arithmetic<V>,
        S: Source<V>,
    {
        // SAFETY: as for `multiply`; a prefetch never faults.
        unsafe {
            let codes = at.map(|at| S::codes(at));
            unroll!(I, {
                let mut pairs = [V::splat_i32(0); R];
                let mut lows = [None; R];
                for r in 0..R {
                    for line in (I * 64..S::GROUP_BYTES).step_by(PAIRS * 64) {
                        V::prefetch(at[r].wrapping_add(line + AHEAD));
                    }
                    pairs[r] = S::pair(at[r], codes[r], I, tables[r]);
                    lows[r] = S::lows(at[r], I);
                }
                for word in 0..A::WORDS {
                    let mut weights = [A::weights(pairs[0], lows[0], word); R];
                    for r in 1..R {
                        weights[r] = A::weights(pairs[r], lows[r], word);
                    }
                    for m in 0..M {
                        let x = x.add(m * self.x.words + I * A::WORDS + word).read_unaligned();
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
    }
}

impl<V: Decode, A: Arithmetic<V>, S: Source<V>> Tile<V> for PairTile<A, S> {
    fn blocks(&self) -> usize {
        self.blocks
    }

    unsafe fn part(self, block: usize, blocks: usize) -> Self {
        // SAFETY: the caller's promise.
        unsafe {
            let y = Rows { at: self.y.at.add(block * LANES), ..self.y };
            Self { source: self.source.from(block), y, blocks, ..self }
        }
    }

    unsafe fn rows_from(self, first: usize) -> Self {
        // SAFETY: the caller's promise.
        unsafe {
            let x = Rows { at: self.x.row(first), ..self.x };
            Self { x, y: Rows { at: self.y.row(first), ..self.y }, ..self }
        }
    }

    #[inline(always)]
    unsafe fn multiply<const R: usize, const M: usize>(&self, block: usize, step: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            let mut sums = [[V::splat(0.0); M]; R];
            let blocks: [_; R] = std::array::from_fn(|r| self.source.open(block + r * step));
            for group in 0..self.groups {
                let x = self.x.at.add(group * PAIRS * A::WORDS);
                let at = blocks.map(|(groups, _)| groups.add(group * S::GROUP_BYTES));
                let tables = blocks.map(|(_, table)| table);
                if S::ALONE {
                    // A loop would be one at run time too, with the sums in memory.
                    const { assert!(R <= 4) };
                    unroll!(BLOCK, {
                        if BLOCK < R {
                            let sums = std::array::from_mut(&mut sums[BLOCK]);
                            self.group::<V, 1, M>([at[BLOCK]], [tables[BLOCK]], x, sums);
                        }
                    }, 0 1 2 3);
                } else {
                    self.group::<V, R, M>(at, tables, x, &mut sums);
                }
            }
            for (r, sums) in sums.into_iter().enumerate() {
                let block = block + r * step;
                let y = Rows { at: self.y.at.add(block * LANES), ..self.y };
                for (m, sum) in sums.into_iter().enumerate() {
                    sum.store(y.row(m).cast());
                }
                self.source.finish::<A, M>(block, self.x, y);
            }
        }
    }
}
