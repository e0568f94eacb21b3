//! Tiles of what is multiplied on tensor cores: products and attention of prompts, where activations may be rounded.

use super::CudaTiles;
use super::tiles::{AttentionShape, WARP, divides, translation};

/// Rows, columns and depth of what a warp multiplies at once.
const AT_ONCE: [usize; 3] = [16, 8, 16];

/// How a workgroup of four warps, two by two, cuts a product.
struct Tile {
    rows: usize,
    outputs: usize,
    columns: usize,
    /// Fewer workgroups leave too much of a GPU idle; the last tile has no other choice.
    workgroups: usize,
}

/// The first that fits is taken (docs/cuda.md has what others take).
const TILES: [Tile; 3] = [
    Tile { rows: 128, outputs: 128, columns: 64, workgroups: 128 },
    Tile { rows: 64, outputs: 64, columns: 128, workgroups: 192 },
    Tile { rows: 64, outputs: 32, columns: 128, workgroups: 0 },
];

impl CudaTiles {
    /// For loops (m, n, k) of a product in bf16; `None` leaves it to the compiler.
    pub(super) fn bf16_product_tiles(
        &self,
        rows: usize,
        outputs: usize,
        columns: usize,
    ) -> Option<String> {
        const WARPS: usize = 4;
        let fits = |it: &&Tile| {
            divides(it.rows, rows)
                && divides(it.outputs, outputs)
                && divides(it.columns, columns)
                && rows / it.rows * (outputs / it.outputs) >= it.workgroups
        };
        let Tile { rows, outputs, columns, .. } =
            TILES.iter().filter(|_| self.tiled && self.tensor_cores).find(fits)?;
        let [m, n, k] = AT_ONCE;
        Some(format!(
            "#iree_codegen.compilation_info<lowering_config = #iree_gpu.lowering_config<{{convert_acc_gemm, \
             mma_kind = #iree_gpu.mma_layout<NV_MMA_SYNC_F32_16x8x16_BF16>, promote_operands = [0, 1], \
             reduction = [0, 0, {}], subgroup = [{}, {}, 0], workgroup = [{rows}, {outputs}, 0]}}>, \
             translation_info = <pipeline = #iree_gpu.pipeline<TileAndFuse> workgroup_size = [{}, 1, 1] \
             subgroup_size = {WARP}, {{gpu_pipeline_options = #iree_gpu.pipeline_options<\
             prefetch_num_stages = 2, no_reduce_shared_memory_bank_conflicts = false, \
             use_igemm_convolution = false>}}>>",
            columns / k,
            rows / 2 / m,
            outputs / 2 / n,
            WARP * WARPS,
        ))
    }

    /// Whether prompts with heads of so many columns have graphs of their own. Wider ones leave registers for half a block
    /// at a time, which the compiler (3.13.0) refuses where keys behind the last row are made zero.
    pub(super) fn has_prompts_of(width: usize) -> bool {
        width.is_power_of_two() && (16..=64).contains(&width)
    }

    /// Attributes of the attention of a prompt: loops (head of keys, query of the group, row, column of the result,
    /// column of the queries, block, token). Eight warps have 16 rows each, and a block at a time.
    pub(super) fn prompt_attention_tiles(&self, shape: &AttentionShape) -> String {
        const WARPS: usize = 8;
        const ROWS: usize = WARPS * AT_ONCE[0];
        let AttentionShape { rows, kv_heads, group, width, block } = *shape;
        if !self.tiled || !divides(ROWS, rows) {
            return String::new();
        }
        // The compiler drops loops of one step before it looks at the tiles.
        let mut workgroup: Vec<_> =
            [kv_heads, group].into_iter().filter(|steps| *steps > 1).map(|_| 1).collect();
        workgroup.extend([ROWS, width]);
        let n = workgroup.len();
        let after =
            |filler: usize, count: usize, last: &[usize]| [&vec![filler; count], last].concat();
        let operands = |numbers: &[usize]| {
            let types = vec!["#iree_gpu.derived_thread_config"; numbers.len()].join(", ");
            format!("promote_operands = {numbers:?}, promotion_types = [{types}]")
        };
        // Of the two products, which columns each has; the numbers are those of all loops.
        let part = |name: &str, product: usize, promoted: &[usize]| {
            let warps_of: Vec<_> = (0..n - 1).chain([product, n + 1, n + 2]).collect();
            format!(
                "{name}_attrs = {{attention_{name}_matmul, lowering_config = #iree_gpu.lowering_config<{{\
                 mma_kind = #iree_gpu.mma_layout<NV_MMA_SYNC_F32_16x8x16_BF16>, {}, \
                 subgroup_basis = [{:?}, {warps_of:?}]}}>}}",
                operands(promoted),
                after(1, n - 2, &[WARPS, 1, 1, 1, 1]),
            )
        };
        format!(
            "compilation_info = #iree_codegen.compilation_info<lowering_config = \
             #iree_gpu.lowering_config<{{{}, reduction = {:?}, workgroup = {:?}}}>, \
             translation_info = {}>, decomposition_config = {{{}, {}}}",
            operands(&[0, 1, 2]),
            after(0, n + 1, &[1, block]),
            [&workgroup[..], &[0, 0, 0]].concat(),
            translation(WARP * WARPS),
            part("pv", n - 1, &[1]),
            part("qk", n, &[0, 1]),
        )
    }
}
