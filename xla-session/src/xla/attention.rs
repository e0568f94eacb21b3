//! The kernels of attention as the runtime takes them.

use iree_rt::{Kernel, KernelArguments};

use kernels::{Attention, KV_BLOCK, KvFormat};

/// The attention that graphs with [`CpuTiles::kernels`](crate::emit::CpuTiles::kernels) call, over a
/// cache of `format`.
pub(super) fn kernel(format: KvFormat) -> Kernel {
    let attention = kernels::attention(format);
    let run = move |arguments: &KernelArguments<'_>| {
        // SAFETY: the emitter passes queries, keys and values of these shapes and this format and a
        // result for them, and no two work items the same queries; `attention` is for this CPU.
        unsafe { attention(&operands(arguments, format)) };
        Ok(())
    };
    // SAFETY: graphs of the emitter call it with these tensors and scalars; no others are loaded.
    unsafe { Kernel::new(4, 10, run) }
}

/// What one work item attends: queries, keys, values, result; then its number, the position of the
/// first row, rows in use, heads, key heads, width, rows, rows of a run, queries of a row that are
/// taken together, window. Behind the queries of a row lie its keys.
fn operands(arguments: &KernelArguments<'_>, format: KvFormat) -> Attention {
    let [item, start, used, heads, kv_heads, width, rows, run, share, window] =
        [0, 1, 2, 3, 4, 5, 6, 7, 8, 9].map(|i| arguments.index(i));
    let group = heads / kv_heads;
    let (runs, shares) = (rows.div_ceil(run), group.div_ceil(share));
    // Consecutive items share keys and values.
    let (first, item) = (item % runs * run, item / runs);
    let (member, kv_head) = (item % shares * share, item / shares);
    let query = (kv_head * group + member) * width;
    let (query_stride, output_stride) = ((heads + kv_heads) * width, heads * width);
    let head = kv_head * width * KV_BLOCK;
    // Offsets are in elements of the tensor.
    let cache = |at| -> *const u8 {
        match format {
            KvFormat::F32 => arguments.pointer::<f32>(at).wrapping_add(head).cast(),
            KvFormat::F16 => arguments.pointer::<u16>(at).wrapping_add(head).cast(),
        }
    };
    Attention {
        queries: arguments.pointer::<f32>(0).wrapping_add(first * query_stride + query),
        query_stride,
        keys: cache(1),
        values: cache(2),
        block_stride: kv_heads * width * KV_BLOCK,
        output: arguments.pointer::<f32>(3).wrapping_add(first * output_stride + query),
        output_stride,
        rows: run.min(rows - first),
        used: used.saturating_sub(first).min(run),
        start: start + first,
        window,
        group: share.min(group - member),
        width,
    }
}
