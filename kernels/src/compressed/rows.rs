//! Single rows of a compressed matrix, as an embedding wants them.

use super::super::{Format, LANES};
use super::block::{Block, CODES, GROUP, Kind, LOWERS, Place};

/// A compressed matrix.
#[derive(Clone, Copy, Debug)]
pub struct Rows {
    /// Its first byte.
    pub weights: *const u8,
    /// Where each of its blocks begins, bytes from there.
    pub index: *const u64,
    /// Columns of it.
    pub columns: usize,
}

/// Widens row `row` of `matrix` to f32 at `y`.
///
/// # Safety
///
/// The matrix has such a row and is stored as [`compress`](super::compress) does it for `format`;
/// `y` is valid for `columns` f32.
pub unsafe fn compressed_row(format: Format, matrix: &Rows, row: usize, y: *mut f32) {
    let lane = row % LANES;
    // SAFETY: the caller's promise.
    let (block, y) = unsafe {
        let at = matrix.weights.add(*matrix.index.add(row / LANES) as usize);
        (Block::new(at), std::slice::from_raw_parts_mut(y, matrix.columns))
    };
    let kind = block.kind();
    if kind == Kind::Plain {
        for (column, y) in y.iter_mut().enumerate() {
            let i = column * LANES + lane;
            // SAFETY: weight `i` of a packed block.
            *y = f32::from_bits(unsafe {
                match format {
                    Format::F32 => block.body().cast::<u32>().add(i).read_unaligned(),
                    _ => u32::from(block.body().cast::<u16>().add(i).read_unaligned()) << 16,
                }
            });
        }
        return;
    }
    for (group, y) in y.chunks_mut(GROUP).enumerate() {
        let at = block.body().wrapping_add(group * kind.group_bytes());
        for (column, y) in y.iter_mut().enumerate() {
            let place = Place::of(column * LANES + lane);
            // SAFETY: the group has all of these, the header as many upper bytes as there are codes.
            *y = f32::from_bits(unsafe {
                let code = *at.add(LOWERS + place.code()) >> place.shift() & 0xf;
                let upper = *block.uppers().add(usize::from(code));
                let low = match kind {
                    Kind::Whole => {
                        let lows = at.add(LOWERS + CODES).cast::<[u8; 2]>();
                        *lows.add(place.low())
                    }
                    _ => [0; 2],
                };
                u32::from_le_bytes([low[0], low[1], *at.add(place.lower()), upper])
            });
        }
    }
    for escape in block.escapes(matrix.columns).filter(|escape| escape.lane() == lane) {
        if let Some(y) = y.get_mut(escape.column()) {
            *y = f32::from_bits(escape.bits());
        }
    }
}
