//! Weights that are floats: multiplied and added in f32.

use std::marker::PhantomData;

use super::tile::{Parts, STEP};
use super::vector::{Job, Tile, Vector};
use super::{LANES, Product};

/// Bytes between the weights being read and those being prefetched, of all blocks that are read at a time.
/// Measured (AVX2, one thread): beside a quarter of it four and six rows of bf16 1.28 times as fast.
const AHEAD: usize = 4096;

/// A stored format as types see it; [`Format`](super::Format) is its value.
///
/// Activations are read a word of 32 bits at a time: an f32, or as many narrower columns.
pub(super) trait Float<V: Vector>: Copy + 'static {
    /// Columns of a word of activations.
    const COLUMNS: usize;
    /// Bytes of a lane's weights that meet a word.
    const BYTES: usize;
    /// Sixteen lanes of them.
    type Weights: Copy;

    /// # Safety
    ///
    /// As for [`Vector`].
    unsafe fn load(at: *const u8) -> Self::Weights;

    /// Adds to each sum its products with `word`.
    ///
    /// # Safety
    ///
    /// As for [`Vector`].
    unsafe fn add_products(sums: V, weights: Self::Weights, word: u32) -> V;

    /// Adds to the sums of `M` rows and `R` blocks their products with a word; that of the first row is at `x`,
    /// so many words before the next.
    ///
    /// # Safety
    ///
    /// As for [`Vector`].
    #[inline(always)]
    unsafe fn add_word<const R: usize, const M: usize>(
        sums: &mut [[V; M]; R],
        weights: [Self::Weights; R],
        x: *const u32,
        stride: usize,
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            each!(m in M, {
                let word = x.add(m * stride).read_unaligned();
                each!(r in R, { sums[r][m] = Self::add_products(sums[r][m], weights[r], word) });
            });
            each!(r in R, { each!(m in M, { sums[r][m] = sums[r][m].pin() }) });
        }
    }

    /// Most rows that meet compressed blocks as they are stored, and those of a tile where more do.
    const ROWS: usize = V::ROWS;

    /// Half `i` of the weights that meet two words, `i` being a constant after inlining: those that meet one
    /// of them, unless instructions take both words and half of the lanes.
    ///
    /// # Safety
    ///
    /// As for [`Vector`].
    #[inline(always)]
    unsafe fn half(words: [Self::Weights; 2], i: usize) -> Self::Weights {
        words[i]
    }

    /// As [`add_word`](Float::add_word), half `i` of two words, of which those of the first row are at `x`: both
    /// halves add to a sum what one word makes and then the other. Sums are [turned](Float::turn).
    ///
    /// # Safety
    ///
    /// As for [`Vector`].
    #[inline(always)]
    unsafe fn add_half<const R: usize, const M: usize>(
        sums: &mut [[V; M]; R],
        weights: [Self::Weights; R],
        i: usize,
        x: *const u32,
        stride: usize,
    ) {
        // SAFETY: the caller's promise.
        unsafe { Self::add_word(sums, weights, x.add(i), stride) }
    }

    /// Turns the sums of rows into what [`add_half`](Float::add_half) adds to, or back.
    ///
    /// # Safety
    ///
    /// As for [`Vector`].
    #[inline(always)]
    unsafe fn turn<const M: usize>(_: &mut [V; M]) {}
}

#[derive(Clone, Copy)]
pub(super) struct F32;
#[derive(Clone, Copy)]
pub(super) struct Bf16;
#[derive(Clone, Copy)]
pub(super) struct F16;

/// Weights that `$load` widens to f32.
macro_rules! widened {
    ($format:ident, $bytes:literal, $load:expr) => {
        impl<V: Vector> Float<V> for $format {
            const COLUMNS: usize = 1;
            const BYTES: usize = $bytes;
            type Weights = V;

            #[inline(always)]
            unsafe fn load(at: *const u8) -> V {
                // SAFETY: as the caller promises.
                unsafe { $load(at.cast()) }
            }

            #[inline(always)]
            unsafe fn add_products(sums: V, weights: V, word: u32) -> V {
                // SAFETY: as the caller promises.
                unsafe { weights.mul_add(V::splat(f32::from_bits(word)), sums) }
            }
        }
    };
}

widened!(F32, 4, V::load);
widened!(Bf16, 2, V::load_bf16);
widened!(F16, 2, V::load_f16);

/// Widens `len` bf16 at `from`.
pub(super) struct Widen {
    pub from: *const u16,
    pub len: usize,
    pub to: *mut f32,
}

impl<V: Vector> Job<V> for Widen {
    #[inline(always)]
    unsafe fn run(&self) {
        // SAFETY: the caller's promise covers both.
        unsafe {
            let from = std::slice::from_raw_parts(self.from, self.len);
            let to = std::slice::from_raw_parts_mut(self.to, self.len);
            for (to, from) in to.iter_mut().zip(from) {
                *to = f32::from_bits(u32::from(*from) << 16);
            }
        }
    }
}

/// Rows of `x` times a run of blocks.
pub(super) struct FloatTile<V, F> {
    weights: *const u8,
    block_bytes: usize,
    /// The rows' first words, `words` apart.
    x: *const u32,
    words: usize,
    y: *mut f32,
    y_stride: usize,
    blocks: usize,
    kind: PhantomData<(V, F)>,
}

impl<V: Copy, F> Clone for FloatTile<V, F> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<V: Copy, F> Copy for FloatTile<V, F> {}

impl<V: Vector, F: Float<V>> FloatTile<V, F> {
    /// The whole product; its columns fill words.
    pub fn new(p: &Product) -> Self {
        let words = p.columns / F::COLUMNS;
        Self {
            weights: p.weights,
            block_bytes: words * LANES * F::BYTES,
            x: p.x.cast(),
            words,
            y: p.y,
            y_stride: p.stride,
            blocks: p.blocks,
            kind: PhantomData,
        }
    }

    /// Adds what word `i` behind `weights`, in blocks so many bytes apart, and `x` meets to `sums`.
    #[inline(always)]
    unsafe fn word<const R: usize, const M: usize>(
        &self,
        weights: *const u8,
        apart: usize,
        x: *const u32,
        i: usize,
        sums: &mut [[V; M]; R],
    ) {
        // SAFETY: as for `multiply`.
        unsafe {
            each!(r in R, {
                let weights = F::load(weights.add(r * apart + i * LANES * F::BYTES));
                // Not by `add_word`, beside which one row took a quarter more instructions with BFDOT.
                each!(m in M, {
                    let word = x.add(m * self.words + i).read_unaligned();
                    sums[r][m] = F::add_products(sums[r][m], weights, word);
                });
                each!(m in M, { sums[r][m] = sums[r][m].pin() });
            });
        }
    }
}

impl<V: Vector, F: Float<V>> Parts<V> for FloatTile<V, F> {
    unsafe fn part(self, block: usize, blocks: usize) -> Self {
        // SAFETY: the caller's promise.
        unsafe {
            Self {
                weights: self.weights.add(block * self.block_bytes),
                y: self.y.add(block * LANES),
                blocks,
                ..self
            }
        }
    }

    unsafe fn rows_from(self, first: usize) -> Self {
        // SAFETY: the caller's promise.
        unsafe {
            Self { x: self.x.add(first * self.words), y: self.y.add(first * self.y_stride), ..self }
        }
    }
}

impl<V: Vector, F: Float<V>> Tile<V> for FloatTile<V, F> {
    fn blocks(&self) -> usize {
        self.blocks
    }

    #[inline(always)]
    unsafe fn multiply<const R: usize, const M: usize>(&self, block: usize, step: usize) {
        // SAFETY: the caller's promise; a prefetch never faults.
        unsafe {
            let mut sums = [[V::splat(0.0); M]; R];
            let weights = self.weights.add(block * self.block_bytes);
            let apart = step * self.block_bytes;
            let whole = self.words - self.words % STEP;
            for word in (0..whole).step_by(STEP) {
                let weights = weights.add(word * LANES * F::BYTES);
                let x = self.x.add(word);
                unroll!(I, {
                    if const { (I * LANES * F::BYTES).is_multiple_of(64) } {
                        each!(r in R, {
                            let here = weights.wrapping_add(r * apart);
                            let ahead = here.wrapping_add(I * LANES * F::BYTES + AHEAD / R);
                            V::prefetch_weights(ahead, 8 * F::BYTES / F::COLUMNS, M);
                        });
                    }
                    self.word::<R, M>(weights, apart, x, I, &mut sums);
                });
            }
            for word in whole..self.words {
                self.word::<R, M>(weights, apart, self.x, word, &mut sums);
            }
            each!(r in R, {
                each!(m in M, {
                    sums[r][m].store(self.y.add(m * self.y_stride + (block + r * step) * LANES));
                });
            });
        }
    }
}
