//! The kernel of attention as the runtime takes it.

use iree_rt::{Kernel, KernelArguments};

use crate::kernels::{self, Attention, KV_BLOCK};

/// The attention that graphs with [`CpuTiles::kernels`](crate::emit::CpuTiles::kernels) call.
pub(super) fn kernel() -> Kernel {
    let attention = kernels::attention();
    Kernel::new(4, 10, move |arguments| {
        // SAFETY: the emitter passes queries, keys and values of these shapes and a result for
        // them, and no two work items the same queries; `attention` is for this CPU.
        unsafe { attention(&operands(arguments)) };
        Ok(())
    })
}

/// What one work item attends: queries, keys, values, result; then its number, the position of the
/// first row, rows in use, heads, key heads, width, rows, rows of a run, queries of a row that are
/// taken together, window. Behind the queries of a row lie its keys.
fn operands(arguments: &KernelArguments<'_>) -> Attention {
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
    Attention {
        queries: arguments.pointer::<f32>(0).wrapping_add(first * query_stride + query),
        query_stride,
        keys: arguments.pointer::<f32>(1).wrapping_add(head),
        values: arguments.pointer::<f32>(2).wrapping_add(head),
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
