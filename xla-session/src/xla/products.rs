//! This crate's kernels as the runtime takes them.

use iree_rt::{Kernel, KernelArguments, Kernels};
use kernels::quantise;
use kernels::{Candidates, KvFormat, Product, Rows};

use super::attention;
use crate::emit::Format;

/// What graphs with [`CpuTiles::kernels`](crate::emit::CpuTiles::kernels) call.
pub(super) fn kernels() -> Kernels {
    let mut kernels = Kernels::new()
        .with("attention", attention::kernel(KvFormat::F32))
        .with("attention_f16", attention::kernel(KvFormat::F16));
    for format in Format::ALL {
        let name = format.as_str();
        kernels = kernels.with(format!("product_{name}"), product(format, false));
        if format.is_quantised() {
            kernels = kernels.with(format!("rows_{name}"), quantised_rows(format));
        } else {
            kernels = kernels.with(format!("candidates_{name}"), candidates(format, false));
        }
        if format.is_compressible(8) {
            kernels = kernels
                .with(format!("product_{name}_compressed"), product(format, true))
                .with(format!("candidates_{name}_compressed"), candidates(format, true))
                .with(format!("rows_{name}_compressed"), compressed_rows(format));
        }
    }
    kernels
}

fn fastest(format: Format, compressed: bool) -> kernels::Kernel {
    match compressed {
        true => kernels::compressed_product(format),
        false => kernels::product(format),
    }
}

fn product(format: Format, compressed: bool) -> Kernel {
    let product = fastest(format, compressed);
    let run = move |arguments: &KernelArguments<'_>| {
        let product_of = operands(arguments, format, compressed);
        // SAFETY: the emitter passes a matrix of this format, where its blocks begin if it is
        // compressed, rows of as many columns and a result for them, and no two work items the same
        // blocks; `product` is for this CPU.
        unsafe { product(&product_of) };
        Ok(())
    };
    // SAFETY: graphs of the emitter call it with these tensors and scalars; no others are loaded.
    unsafe { Kernel::new(3 + usize::from(compressed), 6, run) }
}

/// What one work item multiplies: weights, where their blocks begin if they are compressed, `x`,
/// result; then its number, the blocks of a run, all blocks, rows, rows in use, columns.
fn operands(arguments: &KernelArguments<'_>, format: Format, compressed: bool) -> Product {
    let [item, run, all, rows, used, columns] = [0, 1, 2, 3, 4, 5].map(|i| arguments.index(i));
    let (x, first) = (1 + usize::from(compressed), item * run);
    let (weights, index) = match compressed {
        true => {
            let index = arguments.pointer::<u64>(1).wrapping_add(first);
            (arguments.pointer::<u8>(0).cast_const(), index.cast_const())
        }
        false => {
            let weights = weights(arguments, format);
            (weights.wrapping_add(first * format.block_bytes(columns)), std::ptr::null())
        }
    };
    Product {
        weights,
        index,
        x: activations(arguments, x, format),
        y: arguments.pointer::<f32>(x + 1).wrapping_add(first * kernels::LANES),
        rows,
        used,
        columns,
        blocks: run.min(all - first),
        stride: all * kernels::LANES,
    }
}

/// The row that argument `at` says, of `rows`. It says none where a result is not a number: then none
/// is left out.
///
/// # Safety
///
/// The argument is one number.
unsafe fn best_row(arguments: &KernelArguments<'_>, at: usize, rows: usize) -> Option<usize> {
    // SAFETY: the caller's promise.
    let best = unsafe { *arguments.pointer::<i32>(at) };
    usize::try_from(best).ok().filter(|&best| best < rows)
}

/// Results that may be the largest, of a run of blocks: weights, where their blocks begin if they are
/// compressed, `x`, results with the sketch, errors, the row whose result with the sketch is the
/// largest of all; result; then the item's number, the blocks of a run, all rows, columns, whether
/// all are wanted.
fn candidates(format: Format, compressed: bool) -> Kernel {
    let product = fastest(format, compressed);
    let x = 1 + usize::from(compressed);
    let run = move |arguments: &KernelArguments<'_>| {
        let [item, run, rows, columns, all] = [0, 1, 2, 3, 4].map(|i| arguments.index(i));
        let blocks = rows.div_ceil(kernels::LANES);
        // SAFETY: the emitter passes one number there.
        let best = unsafe { best_row(arguments, x + 3, rows) };
        let (weights, index) = match compressed {
            true => (arguments.pointer::<u8>(0).cast_const(), arguments.pointer::<u64>(1)),
            false => (weights(arguments, format), std::ptr::null_mut()),
        };
        let of = Candidates {
            product: Product {
                weights,
                index: index.cast_const(),
                x: activations(arguments, x, format),
                y: arguments.pointer(x + 4),
                rows: 1,
                used: 1,
                columns,
                blocks,
                stride: blocks * kernels::LANES,
            },
            run: item * run..blocks.min((item + 1) * run),
            sketched: arguments.pointer(x + 1),
            errors: arguments.pointer(x + 2),
            best: best.filter(|_| all == 0),
        };
        // SAFETY: the emitter passes a matrix of this format, where its blocks begin if it is
        // compressed, a row of as many columns, a result with its sketch and an error for each row
        // of whole blocks and a result for it, and no two work items the same blocks; `best` is one
        // of its rows, and `product` is for this CPU.
        unsafe { kernels::candidates(product, format, &of) };
        Ok(())
    };
    // SAFETY: graphs of the emitter call it with these tensors and scalars; no others are loaded.
    unsafe { Kernel::new(x + 5, 5, run) }
}

/// One row for each work item: weights, which rows, result; then the item's number, the rows that
/// there are, columns.
fn quantised_rows(format: Format) -> Kernel {
    let run = move |arguments: &KernelArguments<'_>| {
        let (row, columns, to) = row_of_item(arguments, 1);
        let block_bytes = format.block_bytes(columns);
        // SAFETY: the emitter passes a matrix of this format that has the row.
        let block = unsafe {
            let block = weights(arguments, format).add(row / kernels::LANES * block_bytes);
            std::slice::from_raw_parts(block, block_bytes)
        };
        // SAFETY: the emitter passes a result for each item.
        let to = unsafe { std::slice::from_raw_parts_mut(to, columns) };
        quantise::unpack_row(format, block, row % kernels::LANES, to);
        Ok(())
    };
    // SAFETY: graphs of the emitter call it with these tensors and scalars; no others are loaded.
    unsafe { Kernel::new(3, 3, run) }
}

/// As [`quantised_rows`], with where the blocks begin behind the weights.
fn compressed_rows(format: Format) -> Kernel {
    let run = move |arguments: &KernelArguments<'_>| {
        let (row, columns, to) = row_of_item(arguments, 2);
        let (weights, index) = (arguments.pointer::<u8>(0), arguments.pointer::<u64>(1));
        // SAFETY: the emitter passes a compressed matrix of this format that has the row, where its
        // blocks begin, and a result for each item.
        unsafe { kernels::compressed_row(format, &Rows { weights, index, columns }, row, to) };
        Ok(())
    };
    // SAFETY: graphs of the emitter call it with these tensors and scalars; no others are loaded.
    unsafe { Kernel::new(4, 3, run) }
}

/// The row that an item looks up, by the argument `indices`; its columns; where it goes, by the
/// argument behind. Indices beyond the last row take the last.
fn row_of_item(arguments: &KernelArguments<'_>, indices: usize) -> (usize, usize, *mut f32) {
    let [item, rows, columns] = [0, 1, 2].map(|i| arguments.index(i));
    // SAFETY: the emitter passes an index for each item.
    let row = unsafe { *arguments.pointer::<i32>(indices).add(item) };
    let row = usize::try_from(row).unwrap_or(0).min(rows - 1);
    (row, columns, arguments.pointer::<f32>(indices + 1).wrapping_add(item * columns))
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
        Format::F32 => arguments.pointer::<f32>(0).cast(),
        Format::F16 | Format::Bf16 | Format::Bf16Rounded => arguments.pointer::<u16>(0).cast(),
        Format::Int8 | Format::Int6 | Format::Int4 => arguments.pointer(0),
    }
}
