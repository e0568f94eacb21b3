//! This crate's kernels as the runtime takes them.

use iree_rt::{Kernel, KernelArguments, Kernels};

use super::attention;
use crate::emit::Format;
use crate::kernels::{self, Product};

/// What graphs with [`CpuTiles::kernels`](crate::emit::CpuTiles::kernels) call.
pub(super) fn kernels() -> Kernels {
    let kernels = Kernels::new().with("attention", attention::kernel());
    Format::ALL.into_iter().fold(kernels, |kernels, format| {
        kernels.with(format!("product_{}", format.as_str()), kernel(format))
    })
}

fn kernel(format: Format) -> Kernel {
    let product = kernels::product(format);
    let quantised = format.is_quantised();
    let tensors = if quantised { 4 } else { 3 };
    Kernel::new(tensors, 6, move |arguments| {
        let product_of = operands(arguments, format, quantised);
        // SAFETY: the emitter passes a matrix of this format, its scales, rows of as many columns
        // and a result for them, and no two work items the same blocks; `product` is for this CPU.
        unsafe { product(&product_of) };
        Ok(())
    })
}

/// What one work item multiplies: weights, scales, `x`, result; then its number, the blocks of a
/// run, all blocks, rows, rows in use, columns.
fn operands(arguments: &KernelArguments<'_>, format: Format, quantised: bool) -> Product {
    let [item, run, all, rows, used, columns] = [0, 1, 2, 3, 4, 5].map(|i| arguments.index(i));
    let first = item * run;
    let (x, y) = if quantised { (2, 3) } else { (1, 2) };
    let scales = if quantised {
        arguments.pointer::<u16>(1).wrapping_add(first * format.groups(columns) * kernels::LANES)
    } else {
        std::ptr::null_mut()
    };
    Product {
        weights: weights(arguments, format).wrapping_add(first * format.block_bytes(columns)),
        scales,
        x: activations(arguments, x, format),
        y: arguments.pointer::<f32>(y).wrapping_add(first * kernels::LANES),
        rows,
        used,
        columns,
        blocks: run.min(all - first),
        stride: all * kernels::LANES,
    }
}

/// Offsets are in elements of the tensor, whose size depends on the format; so in [`weights`].
fn activations(arguments: &KernelArguments<'_>, at: usize, format: Format) -> *const u8 {
    match format {
        Format::Bf16Rounded => arguments.pointer::<u16>(at).cast(),
        _ => arguments.pointer::<f32>(at).cast(),
    }
}

fn weights(arguments: &KernelArguments<'_>, format: Format) -> *const u8 {
    match format {
        Format::F32 | Format::Int6 | Format::Int4 => arguments.pointer::<u32>(0).cast(),
        Format::F16 | Format::Bf16 | Format::Bf16Rounded => arguments.pointer::<u16>(0).cast(),
        Format::Int8 => arguments.pointer(0),
    }
}
