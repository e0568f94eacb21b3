//! Loop tiles for NVIDIA GPUs: which dispatch is told what, as one table.
//!
//! Chosen by reading the code that the compiler makes of them (no spills, no shared memory where shuffles
//! do), and those of products by timing two hundred of them on an H100 (docs/cuda.md). A shape that no
//! entry divides is left to the compiler's own choice.

use kernels::{Format, GROUP};

/// Threads of a warp.
pub(super) const WARP: usize = 32;

/// Columns that a thread takes at once: 16 bytes of bf16, 8 of int8. More of integers would be as many
/// loads of activations that are far from those of the next thread.
const COLUMNS: usize = 8;

/// Rows of activations that a thread meets with each weight.
const ROWS: usize = 8;

/// Columns beyond which four warps divide a row.
const LONG: usize = 2048;

/// Workgroups of which a GPU takes more: fewer have four warps each, of long rows.
const MANY: usize = 1024;

/// How dispatches are cut on an NVIDIA GPU.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CudaTiles {
    /// Whether dispatches say their tiles; without them any compiler back end takes the graphs.
    pub(super) tiled: bool,
    /// Whether tensor cores multiply bf16.
    pub(super) tensor_cores: bool,
}

/// One loop of a nest in IREE's pipeline `VectorDistribute`.
#[derive(Clone, Copy)]
struct Loop {
    /// Steps of one workgroup; 0 for a reduction.
    workgroup: usize,
    /// Steps of a reduction that a workgroup takes at a time; 0 for a parallel loop.
    reduction: usize,
    /// Steps of one thread; 0 leaves a parallel loop whole.
    thread: usize,
    /// How many threads of a warp divide the loop.
    lanes: usize,
    /// How many warps of a workgroup do.
    warps: usize,
}

impl Loop {
    /// A parallel loop of which a workgroup takes `steps`, in pieces of `thread` of each thread.
    fn parallel(steps: usize, thread: usize) -> Self {
        Self { workgroup: steps, reduction: 0, thread, lanes: 1, warps: 1 }
    }

    /// A reduction of which `lanes` threads of a warp take `thread` steps each.
    fn reduction(lanes: usize, thread: usize) -> Self {
        Self { workgroup: 0, reduction: lanes * thread, thread, lanes, warps: 1 }
    }
}

/// A product of `rows` rows of activations with `outputs` rows of weights.
pub(super) struct Product {
    pub format: Format,
    /// How many of these there are, each with a matrix and maybe rows of its own; `None` of one by itself.
    pub pairs: Option<usize>,
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
    /// For GPUs whose tensor cores multiply bf16: of compute capability 8.0 and newer.
    pub fn new() -> Self {
        Self { tiled: true, tensor_cores: true }
    }

    /// The same for GPUs that have such tensor cores or not.
    #[must_use]
    pub fn with_tensor_cores(self, tensor_cores: bool) -> Self {
        Self { tensor_cores, ..self }
    }

    /// The same graphs without tiles: what they compute can be checked on any device.
    pub fn portable() -> Self {
        Self { tiled: false, tensor_cores: true }
    }

    /// For loops (n, k), or (n, G, k) over groups of quantised columns, with the rows of activations
    /// outermost where there are several.
    pub(super) fn product_tiles(&self, product: &Product) -> Option<String> {
        let Product { format, pairs, rows, outputs, columns, sums } = *product;
        let (mut along, steps) = self.along(format, columns)?;
        let grouped = format.is_quantised();
        let mut loops = Vec::new();
        let mut workgroups = pairs.unwrap_or(1);
        if pairs.is_some() {
            loops.push(Loop::parallel(1, usize::from(rows > 1)));
        }
        // Each activation that a thread loads meets so many weights.
        let most = match rows {
            1 => 1,
            // Blocks of experts are many, and each reads its rows again for every so many weights.
            _ if pairs.is_some() && (rows < ROWS || !grouped) => 8,
            ..=ROWS => 4,
            _ if grouped => 4,
            _ => 8,
        };
        if rows > 1 {
            let at_once = [ROWS, rows].into_iter().find(|n| *n <= ROWS && divides(*n, rows))?;
            loops.push(Loop::parallel(at_once, 1));
            workgroups *= rows / at_once;
        }
        let fits = |n: &usize| *n <= most && divides(*n, outputs);
        let at_once = [8, 4, 2].into_iter().find(fits).unwrap_or(1);
        loops.push(Loop::parallel(at_once, usize::from(rows > 1)));
        workgroups *= outputs / at_once;
        // Long rows take four warps: of one row of floats always, unless several sums need the registers;
        // else where there are few workgroups.
        let is_long = columns > LONG && sums == 1;
        let warps = if rows == 1 { !grouped } else { workgroups < MANY };
        if is_long && warps && divides(4 * along[0].reduction, steps) {
            along[0].warps = 4;
            along[0].reduction *= 4;
        }
        loops.append(&mut along);
        Some(compilation_info(&loops))
    }

    /// For loops (n, p, k), or (n, p, G, k): a row that is the sum of `pairs` products.
    pub(super) fn sum_of_products_tiles(
        &self,
        format: Format,
        pairs: usize,
        columns: usize,
    ) -> Option<String> {
        /// Warps of a workgroup, where columns and pairs have so many.
        const WARPS: usize = 8;
        let (mut along, steps) = self.along(format, columns)?;
        let warps = [WARPS, WARPS / 2, WARPS / 4].into_iter().find(|n| divides(*n, pairs));
        let warps = warps.unwrap_or(1);
        if WARPS / warps > 1 && divides(WARPS / warps * along[0].reduction, steps) {
            along[0].warps = WARPS / warps;
            along[0].reduction *= WARPS / warps;
        }
        let of_pairs = Loop { workgroup: 0, reduction: warps, thread: 1, lanes: 1, warps };
        let mut loops = vec![Loop::parallel(1, 0), of_pairs];
        loops.append(&mut along);
        Some(compilation_info(&loops))
    }

    /// Along columns, what a warp takes at a time, and how many steps the outer loop has.
    fn along(&self, format: Format, columns: usize) -> Option<(Vec<Loop>, usize)> {
        if !self.tiled {
            return None;
        }
        if format.is_quantised() {
            let groups = columns.div_ceil(GROUP);
            let all = WARP * COLUMNS / GROUP;
            // Fewer groups: smaller vectors, so that all threads have some.
            let at_once = [all, all / 2, all / 4].into_iter().find(|n| divides(*n, groups))?;
            let vector = GROUP * at_once / WARP;
            let loops = [Loop::reduction(at_once, 1), Loop::reduction(GROUP / vector, vector)];
            return Some((loops.into(), groups));
        }
        // 16 bytes, or what divides the columns.
        let widest = if format == Format::F32 { COLUMNS / 2 } else { COLUMNS };
        let vectors = (0..4).map(|i| widest >> i).filter(|vector| *vector > 0);
        let vector = vectors.into_iter().find(|vector| divides(WARP * vector, columns))?;
        Some((vec![Loop::reduction(WARP, vector)], columns))
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
        /// Rows that are few enough for several workgroups of each.
        const FEW: usize = 8;
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

pub(super) fn divides(n: usize, of: usize) -> bool {
    of.is_multiple_of(n)
}

fn compilation_info(loops: &[Loop]) -> String {
    let of = |what: fn(&Loop) -> usize| loops.iter().map(what).collect::<Vec<_>>();
    let numbers: Vec<_> = (0..loops.len()).collect();
    let warps = of(|it| it.warps);
    format!(
        "#iree_codegen.compilation_info<lowering_config = #iree_gpu.lowering_config<{{\
         workgroup = {:?}, partial_reduction = {:?}, thread = {:?}, \
         lane_basis = [{:?}, {numbers:?}], subgroup_basis = [{warps:?}, {numbers:?}]}}>, \
         translation_info = {}>",
        of(|it| it.workgroup),
        of(|it| it.reduction),
        of(|it| it.thread),
        of(|it| it.lanes),
        translation(WARP * warps.iter().product::<usize>())
    )
}

pub(super) fn translation(threads: usize) -> String {
    format!(
        "<pipeline = #iree_gpu.pipeline<VectorDistribute> workgroup_size = [{threads}, 1, 1] \
         subgroup_size = {WARP}>"
    )
}
