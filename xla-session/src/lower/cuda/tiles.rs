//! Loop tiles for NVIDIA GPUs: which dispatch is told what, as one table.
//!
//! Chosen by reading the code that the compiler makes of them (no spills, no shared memory where shuffles
//! do), and those of products by timing two hundred of them on an H100 (docs/cuda.md). A shape that no
//! entry divides is left to the compiler's own choice.

use kernels::{Format, GROUP};

/// Threads of a warp.
const WARP: usize = 32;

/// Columns that a thread takes at once: 16 bytes of bf16, 8 of int8. More of integers would be as many
/// loads of activations that are far from those of the next thread.
const COLUMNS: usize = 8;

/// Rows of activations that a thread meets with each weight.
const ROWS: usize = 8;

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

/// A product of `rows` rows of activations with `outputs` rows of weights.
pub(super) struct Product {
    pub format: Format,
    pub rows: usize,
    pub outputs: usize,
    pub columns: usize,
    /// Sums of one loop nest: products that share the activations, and that of their squares.
    pub sums: usize,
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
    /// activations outermost where there are several; `sums` are those of one loop nest.
    pub(super) fn product_tiles(&self, product: &Product) -> Option<String> {
        let Product { format, rows, outputs, columns, sums } = *product;
        if !self.tiled {
            return None;
        }
        // Of a warp: loops along the columns, outermost first, as (how many, of one thread, lanes).
        let along: Vec<(usize, usize, usize)> = if format.is_quantised() {
            let groups = columns.div_ceil(GROUP);
            let at_once = WARP * COLUMNS / GROUP;
            // Fewer groups: smaller vectors, so that all threads have some.
            let at_once = [at_once, at_once / 2].into_iter().find(|n| divides(*n, groups))?;
            let vector = GROUP * at_once / WARP;
            vec![(at_once, 1, at_once), (GROUP, vector, GROUP / vector)]
        } else {
            // 16 bytes, or what divides the columns.
            let widest = if format == Format::F32 { COLUMNS / 2 } else { COLUMNS };
            let vector =
                (0..4).map(|i| widest >> i).find(|v| *v > 0 && divides(WARP * v, columns))?;
            vec![(WARP * vector, vector, WARP)]
        };
        // Each activation that a thread loads meets so many weights.
        let most = if rows > ROWS && !format.is_quantised() { 8 } else { 4 };
        let at_once = if rows == 1 { 1 } else { most };
        let at_once =
            [at_once, 4, 2, 1].into_iter().find(|n| *n <= at_once && divides(*n, outputs))?;
        let rows_at_once = [ROWS, rows].into_iter().find(|n| divides(*n, rows))?;
        // Long rows take four warps, where there are few workgroups or much of one, unless several sums
        // need the registers.
        let workgroups = rows / rows_at_once * (outputs / at_once);
        let is_long = columns > 2048 && sums == 1 && (rows > 1 || !format.is_quantised());
        let steps = if format.is_quantised() { columns.div_ceil(GROUP) } else { columns };
        let four = is_long && (rows == 1 || workgroups < 1024) && divides(4 * along[0].0, steps);
        let warps = if four { 4 } else { 1 };

        let outer = if rows == 1 { 1 } else { 2 };
        let with = |of_rows: usize, of_outputs: usize, rest: Vec<usize>| -> Vec<usize> {
            let first = if rows == 1 { vec![of_outputs] } else { vec![of_rows, of_outputs] };
            [first, rest].concat()
        };
        let none = vec![0; along.len()];
        let mut reduced: Vec<_> = along.iter().map(|(many, ..)| *many).collect();
        reduced[0] *= warps;
        let mut by_warps = vec![1; along.len()];
        by_warps[0] = warps;
        Some(compilation_info(&Distribution {
            workgroup: &with(rows_at_once, at_once, none),
            reduction: &[vec![0; outer], reduced].concat(),
            thread: &with(1, usize::from(rows > 1), along.iter().map(|(_, own, _)| *own).collect()),
            lanes: &with(1, 1, along.iter().map(|(.., lanes)| *lanes).collect()),
            warps: &with(1, 1, by_warps),
        }))
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
            2..=ROWS => (group, part),
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
