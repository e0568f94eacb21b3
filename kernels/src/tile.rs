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
/// read from its beginning to its end. The last `blocks % R` are the [rest](Tile::rest).
pub(super) struct Cut<'a, T, const R: usize, const M: usize>(pub &'a T);

impl<V: Vector, T: Tile<V>, const R: usize, const M: usize> Job<V> for Cut<'_, T, R, M> {
    #[inline(always)]
    unsafe fn run(&self) {
        // SAFETY: the blocks are those of the run.
        unsafe {
            // Of fewer than four all would be the rest.
            if const { R == 4 && T::BLOCKS < 4 } {
                return Cut::<_, 2, M>(self.0).run();
            }
            let part = self.0.blocks() / R;
            for block in 0..part {
                self.0.multiply::<R, M>(block, part);
            }
            if const { R > 1 } {
                self.0.rest::<M>(part * R);
            }
        }
    }
}

/// Columns that are unrolled together.
pub(super) const STEP: usize = 8;

/// Bytes between the weights being read and those being prefetched.
pub(super) const AHEAD: usize = 1024;
