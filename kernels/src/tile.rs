//! The frame of the innermost loops: some rows of `x` against some blocks of weights.

use super::vector::{Job, Tile, Vector};

/// A tile that can be cut into smaller ones.
pub(super) trait Parts<V: Vector>: Tile<V> {
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
}

/// A tile with `M` rows, `R` blocks at a time: of as many parts of the run, so that each part is
/// read from its beginning to its end. The last `blocks % R` come one at a time.
pub(super) struct Cut<'a, T, const R: usize, const M: usize>(pub &'a T);

impl<V: Vector, T: Tile<V>, const R: usize, const M: usize> Job<V> for Cut<'_, T, R, M> {
    #[inline(always)]
    unsafe fn run(&self) {
        let part = self.0.blocks() / R;
        // SAFETY: the blocks are those of the run.
        unsafe {
            for block in 0..part {
                self.0.multiply::<R, M>(block, part);
            }
            for block in part * R..self.0.blocks() {
                self.0.multiply::<1, M>(block, 1);
            }
        }
    }
}

/// Columns that are unrolled together.
pub(super) const STEP: usize = 8;

/// Bytes between the weights being read and those being prefetched.
pub(super) const AHEAD: usize = 1024;
