//! Loop tiles for the CPU: what a fast matrix product needs to be told.
//!
//! IREE's default tiles run a packed matrix-vector product at a third of the memory bandwidth;
//! with the tiles said explicitly (`#iree_codegen.compilation_info`) it runs at 85 to 100%.

use super::builder::ElementType;

/// How loops are tiled on one kind of CPU.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CpuTiles {
    /// Rows of a weight matrix that are interleaved; see
    /// [`Layout::Packed`](super::graph::Layout::Packed).
    pub lanes: usize,
    /// Blocks of `lanes` outputs that one thread accumulates at a time in a matrix-vector product.
    pub blocks: usize,
    /// Work items a matrix product is cut into.
    pub workgroups: usize,
    /// Matrix products call this crate's [`kernels`](crate::kernels), which the device must have
    /// been given; else IREE generates them.
    pub kernels: bool,
}

impl Default for CpuTiles {
    /// Measured with AVX-512: 16 lanes are one register of f32, four of them in flight hide the
    /// latency of the fused multiply-add; 64 lanes run at half the bandwidth. With AVX2 and NEON
    /// the same block is two and four registers: 8 and 16 accumulators, of 16 and 32 registers.
    fn default() -> Self {
        Self { lanes: 16, blocks: 4, workgroups: 8, kernels: false }
    }
}

impl CpuTiles {
    /// Blocks of a matrix that one work item multiplies, of `blocks`: a multiple of
    /// [`blocks`](Self::blocks), where there are as many.
    pub fn run(&self, blocks: usize) -> usize {
        blocks.div_ceil(self.workgroups).next_multiple_of(self.blocks).min(blocks)
    }

    /// For loops (n, b, k): one row of activations.
    pub fn one_row(&self, blocks: usize, columns: usize, element: ElementType) -> String {
        let n = self.blocks.min(blocks);
        let unroll = divisor(columns, if element == ElementType::F32 { 4 } else { 8 });
        config(&[self.share(blocks, n), self.lanes, 0], &[n, self.lanes, 0], &[0, 0, unroll])
    }

    /// For loops (m, n, b, k): a few rows, at most `FEW`. Three blocks are three streams of weights
    /// and, with eight rows, 24 accumulators: a fifth faster than two or four.
    pub fn few_rows(
        &self,
        rows: usize,
        blocks: usize,
        columns: usize,
        element: ElementType,
    ) -> String {
        let n = if rows > 4 { 3 } else { self.blocks }.min(blocks);
        let unroll = divisor(columns, if element == ElementType::F32 { 1 } else { 4 });
        config(
            &[rows, self.share(blocks, n), self.lanes, 0],
            &[rows, n, self.lanes, 0],
            &[0, 0, 0, unroll],
        )
    }

    /// For loops (m, i, n, b, k): many rows, packed by `FEW`.
    pub fn many_rows(
        &self,
        rows: usize,
        blocks: usize,
        columns: usize,
        element: ElementType,
    ) -> String {
        let wide = element == ElementType::F32 || columns <= 2048;
        let n = if wide { 4 } else { 2 }.min(blocks);
        config(
            &[rows / FEW, FEW, n, self.lanes, 0],
            &[1, FEW, 2.min(blocks), self.lanes, 0],
            &[0, 0, 0, 0, 1],
        )
    }

    /// Columns of a weight matrix that stay in the cache while many rows pass over them.
    pub fn split_columns(&self, element: ElementType) -> usize {
        if element == ElementType::F32 { 2048 } else { usize::MAX }
    }

    fn share(&self, blocks: usize, at_least: usize) -> usize {
        (blocks / self.workgroups).max(at_least)
    }
}

/// Rows that are multiplied at once against one pass over the weights.
pub const FEW: usize = 8;

/// A `compilation_info` for IREE's CPU pipeline; one tile size for each loop, 0 leaves it whole.
pub fn config(distribution: &[usize], parallel: &[usize], reduction: &[usize]) -> String {
    format!(
        "#iree_codegen.compilation_info<lowering_config = #iree_cpu.lowering_config<distribution = \
         {distribution:?}, vector_common_parallel = {parallel:?}, vector_reduction = {reduction:?}>, \
         translation_info = <pipeline = #iree_cpu.pipeline<DoubleTilingExpert>>>"
    )
}

/// The largest power of two up to `most` that divides `n`.
pub fn divisor(n: usize, most: usize) -> usize {
    let mut d = most;
    while !n.is_multiple_of(d) {
        d /= 2;
    }
    d
}
