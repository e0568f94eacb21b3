//! Rows of an embedding table, widened.

use half::{bf16, f16};

use crate::{Format, LANES};

/// Widens row `row` of a matrix of floats that lies row by row, `[rows, columns]`.
///
/// # Safety
///
/// The matrix, of a `format` of floats, has the row, and `to` takes `columns` numbers.
pub unsafe fn stored_row(
    format: Format,
    matrix: *const u8,
    row: usize,
    columns: usize,
    to: *mut f32,
) {
    // SAFETY: the caller's promise.
    unsafe { widen(format, matrix.add(row * columns * format_bytes(format)), 1, columns, to) }
}

/// Widens row `row` of a matrix of floats in blocks, `[blocks, columns, 16]`.
///
/// # Safety
///
/// As for [`stored_row`].
pub unsafe fn packed_row(
    format: Format,
    matrix: *const u8,
    row: usize,
    columns: usize,
    to: *mut f32,
) {
    let first = row / LANES * LANES * columns + row % LANES;
    // SAFETY: the caller's promise.
    unsafe { widen(format, matrix.add(first * format_bytes(format)), LANES, columns, to) }
}

fn format_bytes(format: Format) -> usize {
    if format == Format::F32 { 4 } else { 2 }
}

/// Elements `step` apart.
unsafe fn widen(format: Format, from: *const u8, step: usize, columns: usize, to: *mut f32) {
    for i in 0..columns {
        // SAFETY: the caller's promise.
        unsafe {
            let half = || from.cast::<u16>().add(i * step).read_unaligned();
            *to.add(i) = match format {
                Format::F16 => f16::from_bits(half()).to_f32(),
                Format::Bf16 | Format::Bf16Rounded => bf16::from_bits(half()).to_f32(),
                _ => from.cast::<f32>().add(i * step).read_unaligned(),
            };
        }
    }
}
