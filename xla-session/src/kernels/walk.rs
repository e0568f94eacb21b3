//! Which rows meet which weights, in which order.
//!
//! The weights stream through registers, several blocks at a time, and each tile of rows widens
//! them again, all but the first from the caches. Only integers with many rows repay the way of
//! GotoBLAS (Goto and van de Geijn 2008): some columns of a block are widened and scaled once into
//! a panel that stays in the L1 cache, and all tiles of rows, copied densely into the L2 cache,
//! meet it there.

use super::format::{Panel, STEP, StoredFormat, Widen, in_place};
use super::scratch::with_scratch;
use super::tile::Tile;
use super::vector::{Vector, nibble_factor};
use super::{LANES, Product};

/// Rows whose copied columns stay in the L2 cache.
const MANY: usize = 256;

/// The kernel of one vector and format.
///
/// # Safety
///
/// As for [`Kernel`](super::Kernel).
pub(super) unsafe fn product<V: Vector, F: StoredFormat>(p: &Product) {
    // SAFETY: the caller's promise; rows are partitioned into computed and padding ones.
    unsafe {
        for row in p.used..p.rows {
            p.y.add(row * p.stride).write_bytes(0, p.blocks * LANES);
        }
        let mut first = 0;
        while first < p.used {
            let rows = MANY.min(p.used - first);
            let part = Product {
                x: p.x.add(first * p.columns),
                y: p.y.add(first * p.stride),
                rows,
                used: rows,
                ..*p
            };
            if !F::SCALED || rows <= V::FEW {
                streamed::<V, F>(&part)
            } else {
                in_panels::<V, F>(&part)
            }
            first += rows;
        }
    }
}

/// `rows` in tiles of nearly equal size, at most `V::ROWS`: calls `with(first row, rows)`.
#[inline(always)]
fn tiles_of<V: Vector>(rows: usize, mut with: impl FnMut(usize, usize)) {
    let tiles = rows.div_ceil(V::ROWS);
    let (each, more) = (rows / tiles, rows % tiles);
    let mut first = 0;
    for tile in 0..tiles {
        let rows = each + usize::from(tile < more);
        with(first, rows);
        first += rows;
    }
}

/// The whole product as one tile of as many rows as there are.
fn whole<F: StoredFormat>(p: &Product) -> Tile {
    let columns = p.columns.next_multiple_of(F::GROUP);
    let block_bytes = columns * (F::STEP_BYTES / STEP);
    let block_scales = if F::SCALED { columns / F::GROUP * LANES } else { 0 };
    Tile {
        weights: p.weights,
        block_bytes,
        scales: p.scales,
        block_scales,
        x: p.x,
        x_stride: p.columns,
        start: std::ptr::null(),
        start_stride: 0,
        y: p.y,
        y_stride: p.stride,
        columns,
        blocks: p.blocks,
        accumulate: false,
    }
}

unsafe fn streamed<V: Vector, F: StoredFormat>(p: &Product) {
    let tile = whole::<F>(p);
    if !in_place::<V, F>() && tile.columns == p.columns {
        // SAFETY: `x` has every column that the weights have.
        return unsafe { streamed_of::<V, F>(p.used, &tile) };
    }

    let groups = tile.columns / F::GROUP;
    with_scratch((tile.columns + groups) * p.used, |x| {
        // SAFETY: the scratch holds `[used, columns]` activations, then `[used, groups]` sums.
        unsafe {
            let start = x.add(p.used * tile.columns);
            for row in 0..p.used {
                prepare::<V, F>(
                    std::slice::from_raw_parts(p.x.add(row * p.columns), p.columns),
                    std::slice::from_raw_parts_mut(x.add(row * tile.columns), tile.columns),
                    std::slice::from_raw_parts_mut(start.add(row * groups), groups),
                );
            }
            let tile = Tile { x, x_stride: tile.columns, start, start_stride: groups, ..tile };
            streamed_of::<V, F>(p.used, &tile);
        }
    });
}

unsafe fn streamed_of<V: Vector, F: StoredFormat>(rows: usize, tile: &Tile) {
    // Several tiles of rows meet a few blocks before the next ones push these out of the caches.
    let together = if rows > V::ROWS { 2 } else { tile.blocks.max(1) };
    for block in (0..tile.blocks).step_by(together) {
        let blocks = together.min(tile.blocks - block);
        // SAFETY: blocks and rows of the tile.
        unsafe {
            let tile = tile.part(block, blocks);
            tiles_of::<V>(rows, |first, rows| V::run::<F>(rows, &tile.rows_from(first)));
        }
    }
}

/// Pads a row with zeros to whole groups. Nibbles in place want it multiplied with their factors,
/// and each group's sum to start from what the stored `+ 8` adds to it.
fn prepare<V: Vector, F: StoredFormat>(row: &[f32], x: &mut [f32], start: &mut [f32]) {
    x[..row.len()].copy_from_slice(row);
    x[row.len()..].fill(0.0);
    if in_place::<V, F>() {
        const FACTORS: [f32; STEP] = {
            let mut factors = [0.0; STEP];
            let mut i = 0;
            while i < STEP {
                factors[i] = nibble_factor(i);
                i += 1;
            }
            factors
        };
        for (group, start) in x.chunks_exact_mut(F::GROUP).zip(start) {
            let mut sums = [0.0; STEP];
            for step in group.as_chunks_mut::<STEP>().0 {
                for i in 0..STEP {
                    sums[i] += step[i];
                    step[i] *= FACTORS[i];
                }
            }
            *start = -8.0 * sums.iter().sum::<f32>();
        }
    }
}

/// `F` is scaled.
unsafe fn in_panels<V: Vector, F: StoredFormat>(p: &Product) {
    let whole = whole::<F>(p);
    // A line more than the columns, or rows would compete for the same sets of the L1 cache.
    let x_stride = V::PANEL_COLUMNS + LANES;
    let panel_len = V::PANEL_COLUMNS * LANES;
    with_scratch(V::PANEL_BLOCKS * panel_len + p.used * x_stride, |panel| {
        // SAFETY: the scratch holds `[panel blocks, panel columns, 16]` widened weights and
        // `[used, x_stride]` activations; columns and blocks stay within those of the product.
        unsafe {
            let x = panel.add(V::PANEL_BLOCKS * panel_len);
            for column in (0..whole.columns).step_by(V::PANEL_COLUMNS) {
                let columns = V::PANEL_COLUMNS.min(whole.columns - column);
                let given = columns.min(p.columns - column);
                for row in 0..p.used {
                    let (from, to) = (p.x.add(row * p.columns + column), x.add(row * x_stride));
                    to.copy_from_nonoverlapping(from, given);
                    to.add(given).write_bytes(0, columns - given);
                }

                for block in (0..p.blocks).step_by(V::PANEL_BLOCKS) {
                    let blocks = V::PANEL_BLOCKS.min(p.blocks - block);
                    for b in 0..blocks {
                        let block = block + b;
                        let scales = block * whole.block_scales + column / F::GROUP * LANES;
                        let weights = block * whole.block_bytes + column / STEP * F::STEP_BYTES;
                        V::widen::<F>(&Widen {
                            weights: p.weights.add(weights),
                            scales: p.scales.add(scales),
                            groups: columns / F::GROUP,
                            panel: panel.add(b * panel_len),
                        });
                    }
                    let tile = Tile {
                        weights: panel.cast(),
                        block_bytes: panel_len * size_of::<f32>(),
                        x,
                        x_stride,
                        y: p.y.add(block * LANES),
                        columns,
                        blocks,
                        accumulate: column > 0,
                        ..whole
                    };
                    tiles_of::<V>(p.used, |first, rows| {
                        // The next tile's sums, whose rows are pages apart.
                        for row in first + rows..p.used.min(first + 2 * rows) {
                            for block in 0..blocks {
                                let at = tile.y.wrapping_add(row * tile.y_stride + block * LANES);
                                V::prefetch(at.cast());
                            }
                        }
                        V::run::<Panel>(rows, &tile.rows_from(first))
                    });
                }
            }
        }
    });
}

impl Tile {
    /// The same for `blocks` blocks from `block` on.
    ///
    /// # Safety
    ///
    /// There are such blocks.
    unsafe fn part(&self, block: usize, blocks: usize) -> Self {
        // SAFETY: the caller's promise.
        unsafe {
            Self {
                weights: self.weights.add(block * self.block_bytes),
                scales: self.scales.wrapping_add(block * self.block_scales),
                y: self.y.add(block * LANES),
                blocks,
                ..*self
            }
        }
    }

    /// The same from row `first` on.
    ///
    /// # Safety
    ///
    /// There is such a row.
    #[inline(always)]
    unsafe fn rows_from(&self, first: usize) -> Self {
        // SAFETY: the caller's promise.
        unsafe {
            Self {
                x: self.x.add(first * self.x_stride),
                start: self.start.wrapping_add(first * self.start_stride),
                y: self.y.add(first * self.y_stride),
                ..*self
            }
        }
    }
}
