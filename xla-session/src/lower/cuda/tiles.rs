//! Loop tiles for NVIDIA GPUs: which dispatch is told what, as one table.
//!
//! Chosen by reading the code that the compiler makes of them (16-byte loads, no spills, no shared
//! memory where shuffles do); none has been timed. A shape that no entry divides is left to the
//! compiler's own choice.

use kernels::{Format, GROUP};

/// Threads of a warp.
const WARP: usize = 32;

/// Rows that a matrix-vector loop nest takes at most; more are a matrix product.
pub(super) const FEW: usize = 8;

/// How dispatches are cut on an NVIDIA GPU.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CudaTiles {
    /// Whether dispatches say their tiles; without them any compiler back end takes the graphs.
    tiled: bool,
}

/// The tiles of one loop nest in IREE's pipeline `VectorDistribute`, one number for each loop; 0
/// leaves a parallel loop whole and a reduction to the next column.
struct Distribution<'a> {
    /// Of one workgroup.
    workgroup: &'a [usize],
    /// Reduced by a workgroup at a time.
    reduction: &'a [usize],
    /// Of one thread: a load of 16 bytes, where there are as many.
    thread: &'a [usize],
    /// How the threads of a warp divide the loops.
    lanes: &'a [usize],
    /// How the warps of a workgroup do.
    warps: &'a [usize],
}

/// The extents of an attention.
pub(super) struct AttentionShape {
    pub rows: usize,
    pub kv_heads: usize,
    /// Queries that share a head of keys.
    pub group: usize,
    /// Columns of a head.
    pub width: usize,
    /// Tokens of a block of the cache.
    pub block: usize,
}

impl CudaTiles {
    /// For every GPU that the compiler has a target for.
    pub fn new() -> Self {
        Self { tiled: true }
    }

    /// The same graphs without tiles: what they compute can be checked on any device.
    pub fn portable() -> Self {
        Self { tiled: false }
    }

    /// For loops (n, k), or (n, G, k) over groups of quantised columns, with `rows` rows of
    /// activations outermost where there are several.
    pub(super) fn product_tiles(
        &self,
        format: Format,
        rows: usize,
        columns: usize,
        sums: usize,
    ) -> Option<String> {
        if !self.tiled {
            return None;
        }
        if format.is_quantised() {
            return self.grouped(format, rows, columns);
        }
        // 16 bytes for each thread, or what divides the columns.
        let widest = if format == Format::F32 { 4 } else { 8 };
        let vector = (0..4).map(|i| widest >> i).find(|v| *v > 0 && divides(WARP * v, columns))?;
        // A row that is long takes four warps, unless several sums need the registers.
        let long = columns > 2048 && sums == 1 && rows == 1 && divides(4 * WARP * vector, columns);
        let warps = if long { 4 } else { 1 };
        let step = warps * WARP * vector;
        Some(match rows {
            1 => compilation_info(&Distribution {
                workgroup: &[1, 0],
                reduction: &[0, step],
                thread: &[0, vector],
                lanes: &[1, WARP],
                warps: &[1, warps],
            }),
            _ => compilation_info(&Distribution {
                workgroup: &[rows, 1, 0],
                reduction: &[0, 0, step],
                thread: &[1, 1, vector],
                lanes: &[1, 1, WARP],
                warps: &[1, 1, warps],
            }),
        })
    }

    /// Of the argmax of `rows` rows of `n` logits: the width of the parts that the first stage takes,
    /// and what the second takes a multiple of. Of one row they are whole warps: other numbers of
    /// partial results the compiler gives to a single thread. Of several rows each has a thread, as
    /// padding them would be copies.
    pub(super) fn argmax_parts(&self, rows: usize, n: usize) -> (usize, usize) {
        const WIDEST: usize = 256;
        match rows {
            1 => {
                let widths = [WIDEST, 128, 64];
                (widths.into_iter().find(|width| divides(*width, n)).unwrap_or(WIDEST), 128)
            }
            _ => ((1..=WIDEST).rev().find(|width| divides(*width, n)).unwrap_or(1), 1),
        }
    }

    fn grouped(&self, format: Format, rows: usize, columns: usize) -> Option<String> {
        // int8: half a group is 16 bytes. int4: a whole one is.
        let vector = if format == Format::Int8 { GROUP / 2 } else { GROUP };
        let per_group = GROUP / vector;
        let groups = columns.div_ceil(GROUP);
        let at_once = [WARP, 16, 8, 4]
            .into_iter()
            .find(|n| n * per_group <= WARP && groups.is_multiple_of(*n))?;
        // Fewer groups than threads: smaller vectors, so that all threads have some.
        let vector = GROUP * at_once / WARP;
        let per_group = GROUP / vector;
        Some(match rows {
            1 => compilation_info(&Distribution {
                workgroup: &[1, 0, 0],
                reduction: &[0, at_once, GROUP],
                thread: &[0, 1, vector],
                lanes: &[1, at_once, per_group],
                warps: &[1, 1, 1],
            }),
            _ => compilation_info(&Distribution {
                // Several rows at once the compiler cannot distribute: each reads the weights.
                workgroup: &[1, 1, 0, 0],
                reduction: &[0, 0, at_once, GROUP],
                thread: &[1, 1, 1, vector],
                lanes: &[1, 1, at_once, per_group],
                warps: &[1, 1, 1, 1],
            }),
        })
    }

    /// For loops (m, n, G, k) of `rows` rows, and of weights that the dispatch widens itself: a
    /// thread has 4 times 4 results, so that each weight that it widens meets 4 rows.
    pub(super) fn grouped_product_tiles(&self, rows: usize, outputs: usize) -> Option<String> {
        const RESULTS: usize = 4;
        const WORKGROUP: usize = 32;
        let threads = (WORKGROUP / RESULTS).pow(2);
        let fits = self.tiled && divides(WORKGROUP, rows) && divides(WORKGROUP, outputs);
        fits.then(|| {
            format!(
                "#iree_codegen.compilation_info<lowering_config = #iree_gpu.lowering_config<{{\
                 workgroup = {:?}, thread = {:?}, reduction = {:?}}}>, translation_info = \
                 <pipeline = #iree_gpu.pipeline<TileAndFuse> workgroup_size = [{threads}, 1, 1] \
                 subgroup_size = {WARP}, {{gpu_pipeline_options = #iree_gpu.pipeline_options<\
                 no_reduce_shared_memory_bank_conflicts = true, \
                 use_igemm_convolution = false>}}>>",
                [WORKGROUP, WORKGROUP, 0, 0],
                [RESULTS, RESULTS, 0, 0],
                // Half a group at a time: a whole one takes more registers than a thread has.
                [0, 0, 1, GROUP / 2],
            )
        })
    }

    /// Attributes of the attention of `rows` rows of queries: loops (head of keys, row, query of
    /// the group, column of the result, column of the queries, block, token).
    ///
    /// A block of the cache at a time: the compiler's own choice takes two, and would read half of
    /// them behind the last block.
    pub(super) fn attention_tiles(&self, shape: &AttentionShape) -> String {
        /// Threads of a warp along the tokens of a block; the others are along the columns.
        const TOKENS: usize = 16;
        let AttentionShape { rows, kv_heads, group, width, block } = *shape;
        let across = WARP / TOKENS;
        // Of one thread: 16 bytes, or what divides a head, whose width is even.
        let columns = [4, 2, 1].into_iter().find(|n| divides(across * n, width));
        let Some(columns) = columns.filter(|_| self.tiled && divides(TOKENS, block)) else {
            return String::new();
        };
        let warps = block / TOKENS;
        // One row: many workgroups, each of them some columns of one query. Some rows: all queries that
        // share a key read it at once. Many rows: there are enough.
        let part = if divides(16, width) { 16 } else { width };
        let (queries, results) = match rows {
            1 => (1, part),
            2..=FEW => (group, part),
            _ => (group, width),
        };
        // The compiler drops loops of one step before it looks at the tiles.
        let mut workgroup: Vec<_> = [(kv_heads, 1), (rows, 1), (group, queries)]
            .into_iter()
            .filter_map(|(steps, tile)| (steps > 1).then_some(tile))
            .collect();
        workgroup.push(results);
        let n = workgroup.len();
        let outer = || 0..n - 1;
        let after =
            |filler: usize, count: usize, last: &[usize]| [&vec![filler; count], last].concat();
        // Of the two products, which columns each has; the numbers are those of all loops.
        let part = |name: &str, product: usize| {
            let lanes_of: Vec<_> = outer().chain([n, n + 1, n + 2]).collect();
            let warps_of: Vec<_> = outer().chain([product, n + 1, n + 2]).collect();
            format!(
                "{name}_attrs = {{attention_{name}_matmul, lowering_config = \
                 #iree_gpu.lowering_config<{{lane_basis = [{:?}, {lanes_of:?}], \
                 subgroup_basis = [{:?}, {warps_of:?}], thread = {:?}}}>}}",
                after(1, n, &[across, 1, TOKENS]),
                after(1, n, &[1, 1, warps]),
                after(0, n - 1, &[columns, 0, 0]),
            )
        };
        format!(
            "compilation_info = #iree_codegen.compilation_info<lowering_config = \
             #iree_gpu.lowering_config<{{partial_reduction = {:?}, workgroup = {:?}}}>, \
             translation_info = {}>, decomposition_config = {{{}, {}}}",
            after(0, n, &[0, 1, block]),
            [&workgroup[..], &[0, 0, 0]].concat(),
            translation(WARP * warps),
            part("pv", n),
            part("qk", n - 1),
        )
    }
}

impl Default for CudaTiles {
    fn default() -> Self {
        Self::new()
    }
}

fn divides(n: usize, of: usize) -> bool {
    of.is_multiple_of(n)
}

fn compilation_info(tiles: &Distribution<'_>) -> String {
    let Distribution { workgroup, reduction, thread, lanes, warps } = tiles;
    let loops: Vec<_> = (0..lanes.len()).collect();
    let threads = WARP * warps.iter().product::<usize>();
    format!(
        "#iree_codegen.compilation_info<lowering_config = #iree_gpu.lowering_config<{{\
         workgroup = {workgroup:?}, partial_reduction = {reduction:?}, thread = {thread:?}, \
         lane_basis = [{lanes:?}, {loops:?}], subgroup_basis = [{warps:?}, {loops:?}]}}>, \
         translation_info = {}>",
        translation(threads)
    )
}

fn translation(threads: usize) -> String {
    format!(
        "<pipeline = #iree_gpu.pipeline<VectorDistribute> workgroup_size = [{threads}, 1, 1] \
         subgroup_size = {WARP}>"
    )
}
