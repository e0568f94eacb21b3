//! This crate's kernels as the runtime takes them.

use iree_rt::{Kernel, KernelArguments, Kernels};

use super::attention;
use crate::emit::Format;
use crate::kernels::{self, KvFormat, Product, Rows};

/// What graphs with [`CpuTiles::kernels`](crate::emit::CpuTiles::kernels) call.
pub(super) fn kernels() -> Kernels {
    let mut kernels = Kernels::new()
        .with("attention", attention::kernel(KvFormat::F32))
        .with("attention_f16", attention::kernel(KvFormat::F16));
    for format in Format::ALL {
        let name = format.as_str();
        kernels = kernels.with(format!("product_{name}"), product(format, false));
        if format.is_compressible(8) {
            kernels = kernels
                .with(format!("product_{name}_compressed"), product(format, true))
                .with(format!("rows_{name}_compressed"), rows(format));
        }
    }
    kernels
}

fn product(format: Format, compressed: bool) -> Kernel {
    let product = match compressed {
        true => kernels::compressed_product(format),
        false => kernels::product(format),
    };
    let beside = usize::from(format.is_quantised() || compressed);
    Kernel::new(3 + beside, 6, move |arguments| {
        let product_of = operands(arguments, format, beside, compressed);
        // SAFETY: the emitter passes a matrix of this format, its scales or where its blocks begin,
        // rows of as many columns and a result for them, and no two work items the same blocks;
        // `product` is for this CPU.
        unsafe { product(&product_of) };
        Ok(())
    })
}

/// What one work item multiplies: weights, `beside` tensors that belong to them, `x`, result; then
/// its number, the blocks of a run, all blocks, rows, rows in use, columns.
fn operands(
    arguments: &KernelArguments<'_>,
    format: Format,
    beside: usize,
    compressed: bool,
) -> Product {
    let [item, run, all, rows, used, columns] = [0, 1, 2, 3, 4, 5].map(|i| arguments.index(i));
    let first = item * run;
    let mut product = Product {
        weights: std::ptr::null(),
        scales: std::ptr::null(),
        index: std::ptr::null(),
        x: activations(arguments, 1 + beside, format),
        y: arguments.pointer::<f32>(2 + beside).wrapping_add(first * kernels::LANES),
        rows,
        used,
        columns,
        blocks: run.min(all - first),
        stride: all * kernels::LANES,
    };
    if compressed {
        product.weights = arguments.pointer(0);
        product.index = arguments.pointer::<u64>(1).wrapping_add(first);
    } else {
        product.weights =
            weights(arguments, format).wrapping_add(first * format.block_bytes(columns));
    }
    if format.is_quantised() {
        let scales = first * format.groups(columns) * kernels::LANES;
        product.scales = arguments.pointer::<u16>(1).wrapping_add(scales);
    }
    product
}

/// One row for each work item: weights, where their blocks begin, which rows, result; then the
/// item's number, the rows that there are, columns.
fn rows(format: Format) -> Kernel {
    Kernel::new(4, 3, move |arguments| {
        let [item, rows, columns] = [0, 1, 2].map(|i| arguments.index(i));
        // SAFETY: the emitter passes a compressed matrix of this format, where its blocks begin, a
        // row for each item, and a result for it.
        unsafe {
            let row = *arguments.pointer::<i32>(2).add(item);
            let row = usize::try_from(row).unwrap_or(0).min(rows - 1);
            let weights = arguments.pointer::<u8>(0);
            let index = arguments.pointer::<u64>(1);
            let y = arguments.pointer::<f32>(3).add(item * columns);
            kernels::compressed_row(format, &Rows { weights, index, columns }, row, y);
        }
        Ok(())
    })
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
