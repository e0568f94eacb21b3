//! Loop tiles for the CPU: what a fast matrix product needs to be told.
//!
//! IREE's default tiles run a packed matrix-vector product at a third of the memory bandwidth;
//! with the tiles said explicitly (`#iree_codegen.compilation_info`) it runs at 85 to 100%.

use kernels::{Format, Isa, KvFormat, LANES};

use super::builder::ElementType;

/// How matrix products are cut on one kind of CPU, and what lies in its memory how.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CpuTiles {
    /// Threads that work items are for.
    pub threads: usize,
    /// Work items that a matrix product is cut into, at most.
    pub work_items: usize,
    /// Matrix products call [`kernels`], which the device must have
    /// been given; else IREE generates them, with the tiles below.
    pub kernels: bool,
    /// Where kernels are called, floats are compressed.
    compress: bool,
    /// Weights of an output projection from which on it is sketched, where kernels are
    /// called.
    split_from: usize,
    /// How the KV cache stores keys and values.
    kv: KvFormat,
    /// Blocks of one row at a time: as many sums of one vector each.
    one_row: usize,
    /// Rows and blocks at a time, of a few rows.
    few_rows: [usize; 2],
    /// Rows and blocks at a time, of many rows.
    many_rows: [usize; 2],
}

impl CpuTiles {
    /// For a CPU whose vectors are those of `isa`, and this many threads.
    pub fn new(isa: Isa, threads: usize) -> Self {
        // A block is 16 f32: one register with AVX-512, two with AVX2, four with NEON. Sums and
        // one block of weights stay in registers: 32 of them, 16 with AVX2.
        let (one_row, few_rows, many_rows) = match isa {
            // Measured: three blocks of eight rows are a fifth faster than two or four.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Avx512Vnni | Isa::Avx512Bf16 => (4, [8, 3], [8, 2]),
            // Reasoned: 8 registers of sums; only where kernels are not wanted.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 | Isa::AvxVnni => (4, [4, 1], [4, 1]),
            // Reasoned for NEON: 16 registers of sums.
            _ => (4, [4, 1], [4, 1]),
        };
        // Several for each thread, so that all end at about the same time.
        let work_items = (4 * threads).next_power_of_two().max(8);
        let (kernels, compress, kv) = (false, true, KvFormat::F32);
        // Reasoned: what is not read of as many, 2.5 MB (int8) or more (22 MB of compressed f32),
        // takes 50 microseconds, and what is done in its place 20 for its own sake.
        let split_from = 8 << 20;
        Self {
            threads,
            work_items,
            kernels,
            compress,
            split_from,
            kv,
            one_row,
            few_rows,
            many_rows,
        }
    }

    /// The same with matrix products that call kernels, or do not.
    pub fn with_kernels(self, kernels: bool) -> Self {
        Self { kernels, ..self }
    }

    /// The same with floats that are [compressed](super::Layout::Compressed) where kernels read
    /// them, or are not.
    pub fn with_compression(self, compress: bool) -> Self {
        Self { compress, ..self }
    }

    /// The same with an output projection of floats that is
    /// [sketched](super::Layout::Sketch), if it can be, from so many weights on.
    pub fn with_split_from(self, weights: usize) -> Self {
        Self { split_from: weights, ..self }
    }

    /// The same with a KV cache of `format`.
    pub fn with_kv_cache(self, format: KvFormat) -> Self {
        Self { kv: format, ..self }
    }

    /// How the KV cache stores keys and values.
    pub fn kv_cache(&self) -> KvFormat {
        self.kv
    }

    /// Whether floats are compressed.
    pub fn compressed(&self) -> bool {
        self.kernels && self.compress
    }

    /// Whether there is a sketch beside an output projection of `weights` weights of `format`.
    pub fn sketches(&self, format: Format, weights: usize) -> bool {
        self.kernels && !format.is_quantised() && weights >= self.split_from
    }

    /// Blocks of a matrix that one work item multiplies, of `blocks`: a multiple of four, which
    /// kernels read at a time, where there are as many.
    pub fn run(&self, blocks: usize) -> usize {
        blocks.div_ceil(self.work_items).next_multiple_of(4).min(blocks)
    }

    /// For loops (n, b, k): one row of activations.
    pub(super) fn one_row(&self, blocks: usize, columns: usize, element: ElementType) -> String {
        let n = self.one_row.min(blocks);
        let unroll = divisor(columns, if element == ElementType::F32 { 4 } else { 8 });
        config(&[self.share(blocks, n), LANES, 0], &[n, LANES, 0], &[0, 0, unroll])
    }

    /// For loops (m, n, b, k): a few rows, at most `FEW`.
    pub(super) fn few_rows(
        &self,
        rows: usize,
        blocks: usize,
        columns: usize,
        element: ElementType,
    ) -> String {
        let [m, n] = self.few_rows;
        let (m, n) = (m.min(rows), n.min(blocks));
        let unroll = divisor(columns, if element == ElementType::F32 { 1 } else { 4 });
        config(&[rows, self.share(blocks, n), LANES, 0], &[m, n, LANES, 0], &[0, 0, 0, unroll])
    }

    /// For loops (m, i, n, b, k): many rows, packed by `FEW`.
    pub(super) fn many_rows(
        &self,
        rows: usize,
        blocks: usize,
        columns: usize,
        element: ElementType,
    ) -> String {
        let [m, n] = self.many_rows;
        let wide = element == ElementType::F32 || columns <= 2048;
        let share = if wide { 4 } else { 2 }.min(blocks);
        config(
            &[rows / FEW, FEW, share, LANES, 0],
            &[1, m, n.min(blocks), LANES, 0],
            &[0, 0, 0, 0, 1],
        )
    }

    /// Columns of a weight matrix that stay in the cache while many rows pass over them.
    pub fn split_columns(&self, element: ElementType) -> usize {
        if element == ElementType::F32 { 2048 } else { usize::MAX }
    }

    fn share(&self, blocks: usize, at_least: usize) -> usize {
        (blocks / self.work_items).max(at_least)
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
