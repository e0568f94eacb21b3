//! Rows of an embedding table.

use half::{bf16, f16};
use kernels::{Format, LANES, packed_row, stored_row};

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
