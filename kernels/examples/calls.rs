//! Calls one product so many times, for an emulator that counts instructions: what one call more takes is
//! what the product takes. `cargo xtask cross aarch64 --count` makes a table of it.

use std::env;

use kernels::{
    Format, Isa, LANES, Product, compress, compressed_product_for, product_for, round_row,
    rounded_bytes,
};

/// Outputs and columns of the matrix.
const BLOCKS: usize = 8;
const COLUMNS: usize = 256;

fn main() {
    let given: Vec<String> = env::args().skip(1).collect();
    let [isa, format, rows, calls] = &given[..] else {
        println!("{} {}", BLOCKS * LANES, COLUMNS);
        return;
    };
    let (format, compressed) = match format.strip_suffix("-compressed") {
        Some(format) => (format, true),
        None => (format.as_str(), false),
    };
    let isa =
        Isa::all_here().into_iter().find(|it| it.as_str() == isa).expect("an isa of this CPU");
    let format = Format::ALL.into_iter().find(|it| it.as_str() == format).expect("a format");
    let [rows, calls] = [rows, calls].map(|it| it.parse::<usize>().expect("a number"));

    // Exponents of few values, as weights have them, in whatever bytes of a format become numbers.
    let block: Vec<u8> =
        (0..format.block_bytes(COLUMNS)).map(|i| 0x38 ^ (i as u8 & 0x87)).collect();
    let (mut weights, mut index) = (Vec::new(), Vec::new());
    for _ in 0..BLOCKS {
        index.push(weights.len() as u64);
        match compressed {
            true => compress(format, &block, COLUMNS, &mut weights),
            false => weights.extend_from_slice(&block),
        }
    }
    let words = if format.is_quantised() { rounded_bytes(COLUMNS) / 4 } else { COLUMNS };
    let mut x = vec![0x3f80_3f80_u32; rows * words];
    if format.is_quantised() {
        let ones = [1f32; COLUMNS];
        for row in x.chunks_mut(words) {
            // SAFETY: this CPU has the instructions, and a row is as long as it has to be.
            unsafe {
                round_row(isa, format, rows, ones.as_ptr(), COLUMNS, row.as_mut_ptr().cast());
            }
        }
    }
    let mut y = vec![0f32; rows * BLOCKS * LANES];
    let product = Product {
        weights: weights.as_ptr(),
        index: if compressed { index.as_ptr() } else { std::ptr::null() },
        x: x.as_ptr().cast(),
        y: y.as_mut_ptr(),
        rows,
        used: rows,
        columns: COLUMNS,
        blocks: BLOCKS,
        stride: BLOCKS * LANES,
    };
    let kernel = match compressed {
        true => compressed_product_for(format, isa),
        false => product_for(format, isa),
    };
    for _ in 0..calls {
        // SAFETY: this CPU has the instructions, and the buffers have the shapes stated.
        unsafe { kernel(&product) };
    }
}
