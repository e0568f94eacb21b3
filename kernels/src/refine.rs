//! Which rows of [split](crate::quantise::split_block) weights may have the largest product, and
//! what their fine part adds to it.
//!
//! A row has at most what its coarse part gives and, by Cauchy and Schwarz, the norm of its fine
//! part times that of the activations. Where that is less than the whole of a row which is known,
//! the fine part is not read. It is read in chunks of columns, and a row that cannot win any more
//! is left behind each of them.

use std::marker::PhantomData;

use super::fine::{Chunk, Fine, Round};
use super::integers::Integer;
use super::scratch::with_scratch;
use super::tile::{AHEAD, Job};
use super::vector::Vector;
use super::{Format, Isa, portable::Portable};
#[cfg(target_arch = "x86_64")]
use super::{avx2::Avx2, avx512::Avx512};
use crate::format::{CHUNK, SCALES};

/// The operands of one call: a run of consecutive rows of one matrix.
///
/// Every row that is refined gets the same value whether others are or not, and all rows of the
/// largest value are refined. Values that are not a number are not dropped.
#[derive(Clone, Copy, Debug)]
pub struct Refine {
    /// The fine row of the run's first row, the others behind it.
    pub fine: *const u8,
    /// `[rows]`, as [`split_block`](crate::quantise::split_block) has them.
    pub norms: *const f32,
    /// `[rows]`: the products with the coarse part.
    pub coarse: *const f32,
    /// `[columns]`: the activations that gave them.
    pub x: *const f32,
    /// The fine row of one row of the matrix: the larger its product, the fewer are refined. That
    /// with the largest coarse product is a good one.
    pub best_fine: *const u8,
    /// The coarse product of that row.
    pub best_coarse: f32,
    /// Whether all rows are refined; `best_fine` and `best_coarse` are not read then.
    pub all: bool,
    /// `[rows]`: the products, or negative infinity for rows that have not the largest.
    pub y: *mut f32,
    /// Rows of the run.
    pub rows: usize,
    /// Columns of `x`, unpadded.
    pub columns: usize,
}

/// A kernel for one format and instruction set.
///
/// # Safety
///
/// The CPU has the instruction set, every pointer of the [`Refine`] is valid for what its field
/// states in the kernel's format, and nothing else accesses the `[rows]` elements of `y` during the
/// call.
pub type RefineKernel = unsafe fn(&Refine);

/// The fastest kernel for the fine part of `format` on this CPU.
///
/// # Panics
///
/// When the format is not [splittable](Format::is_splittable).
pub fn refine(format: Format) -> RefineKernel {
    refine_for(format, Isa::detect())
}

/// The kernel for the fine part of `format` in the instructions of `isa`, whether or not this CPU
/// has them.
///
/// # Panics
///
/// As [`refine`].
pub fn refine_for(format: Format, isa: Isa) -> RefineKernel {
    match isa {
        Isa::Portable => kernel_of::<Portable>(format),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => kernel_of::<Avx2>(format),
        #[cfg(target_arch = "x86_64")]
        Isa::AvxVnni => kernel_of::<Avx2<true>>(format),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => kernel_of::<Avx512<false>>(format),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512Vnni | Isa::Avx512Bf16 => kernel_of::<Avx512<true>>(format),
    }
}

fn kernel_of<V: Vector>(format: Format) -> RefineKernel {
    match format {
        Format::Int8 => kernel::<V, Fine<4>>,
        Format::Int6 => kernel::<V, Fine<2>>,
        _ => panic!("{format:?} weights can't be split"),
    }
}

/// # Safety
///
/// As for [`RefineKernel`].
unsafe fn kernel<V: Vector, F: Integer>(of: &Refine) {
    let chunks = of.columns.div_ceil(CHUNK);
    let words = chunks * size_of::<Chunk>() / size_of::<f32>() + (chunks + 1) + 2 * PIECE;
    with_scratch(words, |scratch| {
        // SAFETY: the caller's promise; the parts are as long as `words` counts them, which are
        // initialised, and may be any of these types.
        unsafe {
            let behind = scratch.cast::<Chunk>().add(chunks);
            let x = std::slice::from_raw_parts_mut(scratch.cast::<Chunk>(), chunks);
            let norms = std::slice::from_raw_parts_mut(behind.cast::<f32>(), chunks + 1);
            let rows = behind.cast::<u32>().add(chunks + 1);
            V::enter(&Round::<F> {
                x: of.x,
                columns: of.columns,
                to: x.as_mut_ptr(),
                norms: norms.as_mut_ptr(),
                format: PhantomData,
            });
            let sums = rows.add(PIECE).cast();
            V::enter(&Search::<F> { of, x, norms, rows, sums, format: PhantomData });
        }
    });
}

/// Rows that are looked at together: many more than [`ROWS_AHEAD`] of them go on to each chunk, and
/// their sums stay in the caches.
const PIECE: usize = 4096;

/// Rows between the one whose chunk is being read and the one whose is being prefetched.
const ROWS_AHEAD: usize = 16;

/// Refines the rows of a run.
struct Search<'a, F> {
    of: &'a Refine,
    x: &'a [Chunk],
    /// As [`Round`] has them.
    norms: &'a [f32],
    /// `[PIECE]`: rows that may win, counted from the first of the piece.
    rows: *mut u32,
    /// `[PIECE]`: what the chunks so far have added to them.
    sums: *mut f32,
    format: PhantomData<F>,
}

impl<F: Integer> Search<'_, F> {
    const CHUNK_BYTES: usize = F::GROUP_BYTES + SCALES;

    /// What chunk `number` of the row `fine` adds.
    #[inline(always)]
    unsafe fn of_chunk<V: Vector>(&self, fine: *const u8, number: usize) -> f32 {
        let x = &self.x[number];
        // SAFETY: the caller's promise.
        unsafe {
            let fine = fine.add(number * Self::CHUNK_BYTES);
            // Two sums, as each product waits for the one before.
            let mut sums = [V::bits(x.starts.as_ptr().cast(), 0, -1), V::splat_i32(0)];
            unroll!(I, {
                let x = V::bits(x.pairs[I].as_ptr().cast(), 0, -1);
                sums[I % 2] = V::add_products(sums[I % 2], F::pairs::<V>(fine, I), x);
            }, 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15);
            // Both are below 2^24, and so is what they add up to: f32 holds them.
            let sum = V::from_i32(sums[0]).add(V::from_i32(sums[1]));
            let scales = V::load_f16(fine.add(F::GROUP_BYTES));
            sum.mul(scales).mul(V::load(x.scales.as_ptr())).sum()
        }
    }

    /// The whole product of a row.
    #[inline(always)]
    unsafe fn of_row<V: Vector>(&self, fine: *const u8, coarse: f32) -> f32 {
        let mut sum = 0.0;
        for number in 0..self.x.len() {
            // SAFETY: the caller's promise; a prefetch never faults.
            unsafe {
                Self::prefetch::<V>(fine.wrapping_add(number * Self::CHUNK_BYTES + AHEAD));
                sum += self.of_chunk::<V>(fine, number);
            }
        }
        coarse + sum
    }

    /// All lines of the chunk at `at`.
    #[inline(always)]
    unsafe fn prefetch<V: Vector>(at: *const u8) {
        // SAFETY: the caller's promise; a prefetch never faults.
        unsafe {
            for line in (0..Self::CHUNK_BYTES).step_by(64) {
                V::prefetch(at.wrapping_add(line));
            }
            V::prefetch(at.wrapping_add(Self::CHUNK_BYTES - 1));
        }
    }

    /// Whether a row may have a product of `least` or more: one with a coarse product and a `norm`,
    /// to which the chunks before `number` have added `sum`.
    ///
    /// The chunks left add at most the norm of the row's fine part times that of the activations
    /// left, as Cauchy and Schwarz say, but for these:
    ///
    /// - A group's middle is a whole number: its sum is up to `2^s` steps, at most 16, larger than
    ///   with the real middle. No weight is at the middle, so that the group's part of the norm is
    ///   half a step or more, and its largest activation is 32639 steps of activations: this is
    ///   less than 16 / (0.5 * 32639) < 0.00099 of the two norms' product.
    /// - The activations' norm is that of before they were rounded by half a step each: the 32 of a
    ///   group by less than 0.0001 of its norm.
    /// - A chunk's sum is rounded seven times by 2^-24 of what its lanes have.
    ///
    /// [`MORE`](super::fine::MORE) covers all of that. The sum of chunks is rounded once for each of
    /// them, the product once, and `most` below thrice, each time by 2^-24 of at most the magnitudes
    /// of `coarse`, `sum` and what is left: `slack` is twice as much for the first two, and `MORE`
    /// covers the third. Numbers near 1e-38 may be flushed to zero; 1e-30 is more than all of them.
    ///
    /// `least` is a product as it is computed, not a bound: a row of the same product is kept. So is
    /// one with a value that is not a number, as nothing is less than that.
    #[inline(always)]
    fn may_win(&self, coarse: f32, sum: f32, norm: f32, number: usize, least: f32) -> bool {
        let roundings = (self.x.len() + 4) as f32;
        let slack = (coarse.abs() + sum.abs()) * (roundings * f32::EPSILON) + 1e-30;
        let most = coarse + sum + norm * self.norms[number] + slack;
        let loses = most < least;
        !loses
    }

    /// Refines those rows that may win of at most [`PIECE`], given by what they have; raises
    /// `least` to the largest product.
    ///
    /// Chunk by chunk and without branches: which rows go on is not to be foretold.
    #[inline(always)]
    unsafe fn piece<V: Vector>(
        &self,
        fine: *const u8,
        coarse: &[f32],
        norms: &[f32],
        y: &mut [f32],
        least: &mut f32,
    ) {
        let Self { rows, sums, .. } = *self;
        let row_bytes = self.x.len() * Self::CHUNK_BYTES;
        y.fill(f32::NEG_INFINITY);
        // SAFETY: the caller's promise: there are as many rows as are named here, and never more
        // kept than were looked at; a prefetch never faults.
        unsafe {
            let mut kept = 0;
            for (row, (&coarse, &norm)) in coarse.iter().zip(norms).enumerate() {
                rows.add(kept).write(row as u32);
                sums.add(kept).write(0.0);
                kept += usize::from(self.may_win(coarse, 0.0, norm, 0, *least));
            }
            for number in 0..self.x.len() {
                let looked_at = std::mem::take(&mut kept);
                for place in 0..looked_at {
                    let ahead = *rows.add((place + ROWS_AHEAD).min(looked_at - 1)) as usize;
                    let at = ahead * row_bytes + number * Self::CHUNK_BYTES;
                    Self::prefetch::<V>(fine.wrapping_add(at));
                    let row = *rows.add(place) as usize;
                    let sum =
                        *sums.add(place) + self.of_chunk::<V>(fine.add(row * row_bytes), number);
                    rows.add(kept).write(row as u32);
                    sums.add(kept).write(sum);
                    let (coarse, norm) = (*coarse.get_unchecked(row), *norms.get_unchecked(row));
                    kept += usize::from(self.may_win(coarse, sum, norm, number + 1, *least));
                }
            }
            for place in 0..kept {
                let row = *rows.add(place) as usize;
                let product = coarse[row] + *sums.add(place);
                y[row] = product;
                *least = least.max(product);
            }
        }
    }
}

impl<V: Vector, F: Integer> Job<V> for Search<'_, F> {
    #[inline(always)]
    unsafe fn run(&self) {
        let Refine { fine, rows, .. } = *self.of;
        let row_bytes = self.x.len() * Self::CHUNK_BYTES;
        // SAFETY: the caller's promise covers all rows of the run and that of `best_fine`.
        unsafe {
            let coarse = std::slice::from_raw_parts(self.of.coarse, rows);
            let y = std::slice::from_raw_parts_mut(self.of.y, rows);
            if self.of.all {
                for (row, (y, &coarse)) in y.iter_mut().zip(coarse).enumerate() {
                    *y = self.of_row::<V>(fine.add(row * row_bytes), coarse);
                }
                return;
            }
            let norms = std::slice::from_raw_parts(self.of.norms, rows);
            let mut least = self.of_row::<V>(self.of.best_fine, self.of.best_coarse);
            for first in (0..rows).step_by(PIECE) {
                let of = first..rows.min(first + PIECE);
                let fine = fine.add(first * row_bytes);
                self.piece::<V>(
                    fine,
                    &coarse[of.clone()],
                    &norms[of.clone()],
                    &mut y[of],
                    &mut least,
                );
            }
        }
    }
}
