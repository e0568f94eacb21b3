//! Float weights in fewer bits, every one of which comes back: their upper bytes take hardly more than
//! fifteen values in a block, so that four bits name them (`block.rs`).

mod block;
mod decode;
mod panel;
mod rows;
mod tile;
mod walk;

mod portable;

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod tiles;

#[cfg(target_arch = "aarch64")]
mod neon;

pub use block::{compress, decompress, most_bytes};
pub use rows::{Rows, compressed_row};

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use decode::Pairs;
use decode::{Decode, Wide};

#[cfg(target_arch = "x86_64")]
use super::amx_activations::{Narrow, Split};
#[cfg(target_arch = "x86_64")]
use super::avx512::Avx512;
#[cfg(target_arch = "x86_64")]
use super::avx512_bf16::Bf16Pairs;
use super::{Format, Isa, Kernel};

/// The fastest kernel for weights of `format` that [`compress`] wrote, on this CPU.
pub fn compressed_product(format: Format) -> Kernel {
    compressed_product_for(format, Isa::detect())
}

/// The same in the instructions of `isa`, whether or not this CPU has them.
#[inline(never)]
pub fn compressed_product_for(format: Format, isa: Isa) -> Kernel {
    match isa {
        Isa::Portable => kernel_of::<super::portable::Portable>(format),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 | Isa::AvxVnni => kernel_of::<super::avx2::Avx2>(format),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512Bf16 if format == Format::Bf16Rounded => {
            walk::compressed::<Avx512<true>, Pairs<Bf16Pairs>, false>
        }
        #[cfg(target_arch = "x86_64")]
        Isa::Amx if format == Format::Bf16 => |p| {
            let otherwise = compressed_product_for(Format::Bf16, Isa::Avx512Bf16);
            // SAFETY: whoever calls a kernel promises what both want.
            unsafe { tiles::compressed::<Split>(p, otherwise) }
        },
        #[cfg(target_arch = "x86_64")]
        Isa::Amx if format == Format::Bf16Rounded => |p| {
            let otherwise = compressed_product_for(Format::Bf16Rounded, Isa::Avx512Bf16);
            // SAFETY: whoever calls a kernel promises what both want.
            unsafe { tiles::compressed::<Narrow>(p, otherwise) }
        },
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 | Isa::Avx512Vnni | Isa::Avx512Bf16 | Isa::Amx => {
            kernel_of::<Avx512<false>>(format)
        }
        #[cfg(target_arch = "aarch64")]
        Isa::NeonBf16 if format == Format::Bf16Rounded => {
            use super::neon::{MATRICES, Neon};
            walk::compressed::<Neon<MATRICES>, Pairs<super::neon_bf16::Bf16Pairs>, false>
        }
        #[cfg(target_arch = "aarch64")]
        Isa::Neon | Isa::NeonDot | Isa::NeonBf16 => kernel_of::<super::neon::Neon>(format),
    }
}

fn kernel_of<V: Decode>(format: Format) -> Kernel {
    match format {
        Format::F32 => walk::compressed::<V, Wide, true>,
        Format::Bf16 => walk::compressed::<V, Wide, false>,
        Format::Bf16Rounded => walk::widened::<V>,
        other => panic!("{other:?} weights are not compressed"),
    }
}
