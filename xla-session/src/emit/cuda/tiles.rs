//! Loop tiles for NVIDIA GPUs: which dispatch is told what, as one table.
//!
//! Chosen by reading the code that the compiler makes of them (16-byte loads, no spills, no shared
//! memory where shuffles do); none has been timed. A shape that no entry divides is left to the
//! compiler's own choice.

use crate::kernels::Format;
use crate::quantise::GROUP;

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
    pub(super) fn product(
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
                workgroup: &[rows, 1, 0, 0],
                reduction: &[0, 0, at_once, GROUP],
                thread: &[1, 1, 1, vector],
                lanes: &[1, 1, at_once, per_group],
                warps: &[1, 1, 1, 1],
            }),
        })
    }

    /// Attributes of the attention of `rows` queries for each key head, of `width` columns: loops
    /// (head, row, column of the result, block, token, column of the queries).
    ///
    /// A block of the cache at a time: the compiler's own choice takes two, and would read half of
    /// them behind the last block.
    pub(super) fn attention(&self, rows: usize, width: usize, block: usize) -> String {
        /// Threads along the tokens of a block, and columns of a thread.
        const TOKENS: usize = 16;
        const COLUMNS: usize = 4;
        let across = WARP / TOKENS;
        if !self.tiled || !divides(across * COLUMNS, width) || !divides(TOKENS * COLUMNS, block) {
            return String::new();
        }
        let warps = block / TOKENS;
        // Few rows: many workgroups, each of them a part of the columns. Many: keys and values are
        // read by fewer.
        let (rows, columns) = match rows {
            ..=16 => (1, if divides(16, width) { 16 } else { width }),
            _ => (if divides(4, rows) { 4 } else { 1 }, width),
        };
        let part = |name: &str, map: &str| {
            format!(
                "{name}_attrs = {{attention_{name}_matmul, lowering_config = \
                 #iree_gpu.lowering_config<{{lane_basis = [[1, 1, 1, {across}, 1, {TOKENS}], \
                 [1, 0, 3, 4, 5]], subgroup_basis = [[1, 1, 1, 1, 1, {warps}], {map}], \
                 thread = [0, 0, {COLUMNS}, 0, 0]}}>}}"
            )
        };
        format!(
            "compilation_info = #iree_codegen.compilation_info<lowering_config = \
             #iree_gpu.lowering_config<{{partial_reduction = [0, 0, 0, 0, 1, {block}], \
             workgroup = [1, {rows}, {columns}, 0, 0, 0]}}>, translation_info = {}>, \
             decomposition_config = {{{}, {}}}",
            translation(WARP * warps),
            part("pv", "[0, 1, 3, 4, 5]"),
            part("qk", "[0, 1, 2, 4, 5]"),
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
