//! The frame of the innermost loops: some rows of `x` against some blocks of weights.

use super::vector::Vector;

/// What is compiled for each instruction set.
pub(super) trait Job<V: Vector> {
    /// # Safety
    ///
    /// As for [`Vector`].
    unsafe fn run(&self);
}

/// Rows of `x` times a run of blocks.
pub(super) trait Tile<V: Vector>: Copy {
    /// Blocks of the run.
    fn blocks(&self) -> usize;

    /// The same for `blocks` blocks from `block` on.
    ///
    /// # Safety
    ///
    /// There are such blocks.
    unsafe fn part(self, block: usize, blocks: usize) -> Self;

    /// The same from row `first` on.
    ///
    /// # Safety
    ///
    /// There is such a row.
    unsafe fn rows_from(self, first: usize) -> Self;

    /// Multiplies `M` rows with `R` blocks from `block` on.
    ///
    /// # Safety
    ///
    /// As for [`Vector`], every pointer being valid for the shapes stated.
    unsafe fn multiply<const R: usize, const M: usize>(&self, block: usize);
}

/// A tile with `M` rows, `R` blocks at a time; the last `blocks % R` one at a time.
pub(super) struct Cut<'a, T, const R: usize, const M: usize>(pub &'a T);

impl<V: Vector, T: Tile<V>, const R: usize, const M: usize> Job<V> for Cut<'_, T, R, M> {
    #[inline(always)]
    unsafe fn run(&self) {
        let whole = self.0.blocks() - self.0.blocks() % R;
        // SAFETY: the blocks are those of the run.
        unsafe {
            for block in (0..whole).step_by(R) {
                self.0.multiply::<R, M>(block);
            }
            for block in whole..self.0.blocks() {
                self.0.multiply::<1, M>(block);
            }
        }
    }
}

/// Columns that are unrolled together.
pub(super) const STEP: usize = 8;

/// Bytes between the weights being read and those being prefetched.
pub(super) const AHEAD: usize = 1024;
