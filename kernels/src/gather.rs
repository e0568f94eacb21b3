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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_come_back_from_either_layout() {
        let (rows, columns) = (35_usize, 5);
        let values: Vec<f32> = (0..rows * columns).map(|i| i as f32 - 80.0).collect();
        let blocks = rows.div_ceil(LANES);
        let mut packed = vec![0f32; blocks * columns * LANES];
        for (i, &value) in values.iter().enumerate() {
            let (row, column) = (i / columns, i % columns);
            packed[(row / LANES * columns + column) * LANES + row % LANES] = value;
        }
        for format in [Format::F32, Format::F16, Format::Bf16] {
            let stored = |values: &[f32]| -> Vec<u8> {
                let bytes = |&value: &f32| match format {
                    Format::F32 => value.to_le_bytes().to_vec(),
                    Format::F16 => f16::from_f32(value).to_le_bytes().to_vec(),
                    _ => bf16::from_f32(value).to_le_bytes().to_vec(),
                };
                values.iter().flat_map(bytes).collect()
            };
            let (by_rows, by_blocks) = (stored(&values), stored(&packed));
            for row in 0..rows {
                let mut found = [[0f32; 5]; 2];
                // SAFETY: rows of both, and as many columns.
                unsafe {
                    stored_row(format, by_rows.as_ptr(), row, columns, found[0].as_mut_ptr());
                    packed_row(format, by_blocks.as_ptr(), row, columns, found[1].as_mut_ptr());
                }
                for found in found {
                    assert_eq!(found, values[row * columns..][..5], "{format:?} row {row}");
                }
            }
        }
    }
}
