//! The innermost loops: a few rows of `x` against blocks that are decoded on the way.

use super::super::vector::Tile;
use std::array::from_mut;
use std::marker::PhantomData;

use super::super::floats::Float;
use super::super::tile::Parts;
use super::super::{LANES, Product};
use super::block::{Block, CODES, Escapes, GROUP, Kind, LOWERS};
use super::decode::{Arithmetic, Decode};

/// Bytes between the groups being read and those being prefetched. Measured: 1024 is up to a tenth slower on
/// one thread.
pub(super) const AHEAD: usize = 2048;

/// Pairs of columns of a group.
pub(super) const PAIRS: usize = GROUP / 2;

/// Bytes of a vector of weights that is kept.
pub(super) const VECTOR: usize = LANES * 4;

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
    pub unsafe fn open<V: Decode>(&self, block: usize) -> (*const u8, V::Uppers) {
        // SAFETY: the caller's promise.
        unsafe {
            let block = self.block(block);
            (block.body(), V::uppers(block.uppers()))
        }
    }

    /// # Safety
    ///
    /// As above.
    #[inline(always)]
    pub unsafe fn lows<V: Decode>(group: *const u8, i: usize) -> Option<V::Integers> {
        // SAFETY: the caller's promise.
        WHOLE.then(|| unsafe { V::load_i32(group.add(LOWERS + CODES + i * LANES * 4)) })
    }

    /// Adds to each sum what a group of its block, which is decoded on the way, and the words of its
    /// row make; the first row's are at `x`, so many words apart. If `KEEP`, vectors of weights are
    /// [halves](Float::half) and go to `keep` too, and sums are [turned](Float::turn).
    ///
    /// # Safety
    ///
    /// As above, and `keep` is valid for as many vectors of each block.
    #[inline(always)]
    pub unsafe fn group<V: Decode, A, const R: usize, const M: usize, const KEEP: bool>(
        groups: [*const u8; R],
        uppers: [V::Uppers; R],
        x: Rows,
        sums: &mut [[V; M]; R],
        keep: [*mut u8; R],
    ) where
        A: Arithmetic<V>,
    {
        // SAFETY: the caller's promise; a prefetch never faults.
        unsafe {
            unroll!(HALF, {
                let mut halves = [V::pairs(groups[0], HALF, uppers[0]); R];
                each!(r in R, { halves[r] = V::pairs(groups[r], HALF, uppers[r]) });
                unroll!(OF_HALF, {
                    let pair = const { HALF * 2 + OF_HALF };
                    let mut lows = [Self::lows::<V>(groups[0], pair); R];
                    each!(r in R, {
                        each!(line in Self::GROUP_BYTES / 64, {
                            if line % PAIRS == pair {
                                let ahead = groups[r].wrapping_add(line * 64 + AHEAD);
                                // Upper halves that are widened take longer than they are waited for.
                                if WHOLE || A::WORDS == 1 {
                                    V::prefetch_weights(ahead, Self::GROUP_BYTES / LANES, M);
                                } else {
                                    V::prefetch(ahead);
                                }
                            }
                        });
                        lows[r] = Self::lows::<V>(groups[r], pair);
                    });
                    each!(word in A::WORDS, {
                        let i = pair * A::WORDS + word;
                        let of = |r: usize, of_half: usize, word| {
                            A::weights(halves[r][of_half], lows[r], word)
                        };
                        let mut weights = [of(0, OF_HALF, word); R];
                        each!(r in R, { weights[r] = of(r, OF_HALF, word) });
                        if !KEEP {
                            A::Float::add_word(sums, weights, x.at.add(i), x.words);
                        } else {
                            each!(r in R, {
                                // What the half does not want of the other word is not decoded.
                                let other = if A::WORDS == 1 { OF_HALF ^ 1 } else { OF_HALF };
                                let other = of(r, other, A::WORDS - 1 - word);
                                let both = [weights[r], other];
                                let both =
                                    if i.is_multiple_of(2) { both } else { [both[1], both[0]] };
                                weights[r] = A::Float::half(both, i % 2);
                                A::store(weights[r], keep[r].add(i * VECTOR));
                            });
                            A::Float::add_half(sums, weights, i % 2, x.at.add(i / 2 * 2), x.words);
                            // Not all halves are added with pins, and here registers are scarce.
                            each!(r in R, { each!(m in M, { sums[r][m] = sums[r][m].pin() }) });
                        }
                    });
                }, 0 1);
            }, 0 1);
        }
    }
}

/// As [`Stored::group`]: blocks side by side, so that an activation is read once for all of them, or one after the
/// other, where registers are scarce.
///
/// # Safety
///
/// As there.
#[inline(always)]
pub(super) unsafe fn add_group<
    V: Decode,
    A: Arithmetic<V>,
    const R: usize,
    const M: usize,
    const WHOLE: bool,
    const KEEP: bool,
>(
    groups: [*const u8; R],
    uppers: [V::Uppers; R],
    x: Rows,
    sums: &mut [[V; M]; R],
    keep: [*mut u8; R],
) {
    // SAFETY: the caller's promise.
    unsafe {
        if const { A::WORDS == 1 && M >= V::SIDE_BY_SIDE } {
            return Stored::<WHOLE>::group::<V, A, R, M, KEEP>(groups, uppers, x, sums, keep);
        }
        // A loop would be one at run time too, with the sums in memory.
        const { assert!(R <= 4) };
        unroll!(BLOCK, {
            if const { BLOCK < R } {
                let (group, uppers) = ([groups[BLOCK]], [uppers[BLOCK]]);
                let (sums, keep) = (from_mut(&mut sums[BLOCK]), [keep[BLOCK]]);
                Stored::<WHOLE>::group::<V, A, 1, M, KEEP>(group, uppers, x, sums, keep);
            }
        }, 0 1 2 3);
    }
}

/// Adds to each of `rows` sums, of sixteen lanes, what some escapes of a block make of a row of `x`.
///
/// The sums of escapes are by themselves, in the order of columns, and join the others at the end, of
/// few rows and of many: so a row has the same bits among any others.
///
/// # Safety
///
/// There are as many rows of both, and `x` has the columns.
#[inline(always)]
pub(super) unsafe fn add_escapes<V: Decode, A: Arithmetic<V>>(
    escapes: Escapes,
    rows: usize,
    x: Rows,
    sums: Rows,
) {
    for escape in escapes {
        let weight = f32::from_bits(escape.bits());
        for row in 0..rows {
            // SAFETY: the caller's promise.
            unsafe {
                let x = A::activation(x.row(row), escape.column());
                *sums.row(row).cast::<f32>().add(escape.lane()) += x * weight;
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

    #[inline(always)]
    unsafe fn multiply<const R: usize, const M: usize>(&self, block: usize, step: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            let mut sums = [[V::splat(0.0); M]; R];
            let blocks: [_; R] = std::array::from_fn(|r| self.stored.open::<V>(block + r * step));
            for group in 0..self.groups {
                let x = Rows { at: self.x.at.add(group * PAIRS * A::WORDS), ..self.x };
                let at = |r: usize| blocks[r].0.add(group * Stored::<WHOLE>::GROUP_BYTES);
                add_group::<V, A, R, M, WHOLE, false>(
                    std::array::from_fn(at),
                    blocks.map(|(_, uppers)| uppers),
                    x,
                    &mut sums,
                    [std::ptr::null_mut(); R],
                );
            }
            for (r, sums) in sums.into_iter().enumerate() {
                let block = block + r * step;
                let mut escaped = [[0_f32; LANES]; M];
                let of_rows = Rows { at: escaped.as_mut_ptr().cast(), words: LANES };
                let escapes = self.stored.block(block).escapes(self.stored.columns);
                add_escapes::<V, A>(escapes, M, self.x, of_rows);
                for (m, sum) in sums.into_iter().enumerate() {
                    let sum = sum.add(V::load(escaped[m].as_ptr()));
                    sum.store(self.y.row(m).add(block * LANES).cast());
                }
            }
        }
    }
}
