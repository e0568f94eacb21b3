//! Convolutions over rows that lie in pages.

use half::f16;
use kernels::{Convolve, Isa, KV_BLOCK, KeepProduct, KvFormat, convolve, keep_product};

/// Rows from one page into the next, in pages that lie in another order; the first ones see nothing before them.
#[test]
fn a_row_is_the_sum_of_the_latest_ones() {
    let rows = KV_BLOCK + 5;
    let pages = [2, 0];
    for (width, seen) in [(2, 1), (38, 3), (64, 4)] {
        let bcx: Vec<f32> = (0..rows * 3 * width).map(|i| (i as f32 * 0.37).sin()).collect();
        let taps: Vec<f32> = (0..width * seen).map(|i| (i as f32 * 0.71).cos()).collect();
        let formats = KvFormat::ALL.map(|(_, format)| format);
        for (isa, format) in Isa::all_here().into_iter().flat_map(|isa| formats.map(|it| (isa, it)))
        {
            let half_page = KV_BLOCK * width / 2 * format.bytes();
            // NaN in all numbers that nobody writes.
            let [mut keys, mut values] = [0, 1].map(|_| vec![0xffu8; 3 * half_page]);
            for at in 0..rows {
                let page = pages[at / KV_BLOCK] as usize * half_page;
                let of = KeepProduct {
                    row: bcx[at * 3 * width..].as_ptr(),
                    width,
                    keys: keys[page..].as_mut_ptr(),
                    values: values[page..].as_mut_ptr(),
                    slot: at % KV_BLOCK,
                    format,
                };
                // SAFETY: the row is there, its page too, and `isa` is this CPU's.
                unsafe { keep_product(isa, &of) };
            }
            let kept = |at: usize, i: usize| {
                let [b, x] = [0, 2].map(|part| bcx[(at * 3 + part) * width + i]);
                match format {
                    KvFormat::F32 => b * x,
                    KvFormat::F16 => f16::from_f32(b * x).to_f32(),
                }
            };
            let mut output = vec![f32::NAN; width];
            for at in 0..rows {
                let of = Convolve {
                    row: bcx[at * 3 * width..].as_ptr(),
                    width,
                    taps: taps.as_ptr(),
                    seen,
                    keys: keys.as_ptr(),
                    values: values.as_ptr(),
                    pages: pages.as_ptr(),
                    position: at,
                    output: output.as_mut_ptr(),
                    format,
                };
                // SAFETY: all rows up to this one have been kept, and `isa` is this CPU's.
                unsafe { convolve(isa, &of) };
                for (i, output) in output.iter().enumerate() {
                    let first = (at + 1).saturating_sub(seen);
                    let terms = (first..=at)
                        .map(|row| taps[i * seen + seen - 1 - (at - row)] * kept(row, i));
                    let expected =
                        terms.fold(0.0, |sum, term| sum + term) * bcx[(at * 3 + 1) * width + i];
                    assert_eq!(*output, expected, "{isa:?} {format:?} row {at} column {i}");
                }
            }
        }
    }
}
