//! Float weights in fewer bits, every one of which comes back: the exponents of a block take hardly
//! more than fifteen values, so that four bits name them (`block.rs`).

mod block;
mod rows;

#[cfg(test)]
mod tests;

pub use block::{compress, decompress, most_bytes};
pub use rows::{Rows, compressed_row};

use super::{Format, Isa, Kernel, LANES, Product};

/// The fastest kernel for weights of `format` that [`compress`] wrote, on this CPU.
pub fn compressed_product(format: Format) -> Kernel {
    compressed_product_for(format, Isa::detect())
}

/// The same in the instructions of `isa`, whether or not this CPU has them.
pub fn compressed_product_for(format: Format, _isa: Isa) -> Kernel {
    match format {
        Format::F32 => slow::<0>,
        Format::Bf16 => slow::<1>,
        Format::Bf16Rounded => slow::<2>,
        other => panic!("{other:?} is not compressed"),
    }
}

unsafe fn slow<const FORMAT: usize>(p: &Product) {
    let format = [Format::F32, Format::Bf16, Format::Bf16Rounded][FORMAT];
    let mut plain = vec![0; format.block_bytes(p.columns)];
    let product = super::product(format);
    for block in 0..p.blocks {
        // SAFETY: the caller's promise.
        unsafe {
            let at = p.weights.add(*p.index.add(block) as usize);
            let stored = std::slice::from_raw_parts(at, most_bytes(format, p.columns));
            decompress(format, stored, p.columns, &mut plain);
            let y = p.y.add(block * LANES);
            product(&Product { weights: plain.as_ptr(), y, blocks: 1, ..*p });
        }
    }
}
