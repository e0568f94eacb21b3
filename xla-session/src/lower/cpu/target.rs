//! What kind of CPU, and what lies in its memory how.

use kernels::{Format, Isa, KvFormat};

/// What a model's steps are written for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CpuTarget {
    /// The instructions of kernels; the graph is the same for all.
    pub isa: Isa,
    /// Work items that a matrix product is cut into, at most.
    work_items: usize,
    /// Whether floats are compressed.
    compress: bool,
    /// Weights of an output projection from which on there is a sketch beside it.
    sketch_from: usize,
    /// How the KV cache stores keys and values.
    kv: KvFormat,
}

impl CpuTarget {
    /// For a CPU with the instructions of `isa`, and this many threads.
    pub fn new(isa: Isa, threads: usize) -> Self {
        // Several for each thread, so that all end at about the same time.
        let work_items = (4 * threads).next_power_of_two().max(8);
        // Reasoned, of one token: what is not read of as many, 22 MB of compressed f32, takes half a millisecond, and
        // what is done in its place 20 microseconds for its own sake.
        let sketch_from = 8 << 20;
        Self { isa, work_items, compress: true, sketch_from, kv: KvFormat::F32 }
    }

    /// The same with floats that are [compressed](crate::emit::Layout::Compressed), or are not.
    pub fn with_compression(self, compress: bool) -> Self {
        Self { compress, ..self }
    }

    /// The same with a [sketch](crate::emit::Layout::Sketch) beside an output projection from so many
    /// weights on.
    pub fn with_sketch_from(self, weights: usize) -> Self {
        Self { sketch_from: weights, ..self }
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
    pub fn compresses(&self) -> bool {
        self.compress
    }

    /// Whether there is a sketch beside an output projection of `weights` weights of `format`.
    pub fn sketches(&self, format: Format, weights: usize) -> bool {
        !format.is_quantised() && weights >= self.sketch_from
    }

    /// Blocks of a matrix that one work item multiplies, of `blocks`: a multiple of four, which
    /// kernels read at a time, where there are as many.
    pub fn run(&self, blocks: usize) -> usize {
        blocks.div_ceil(self.work_items).next_multiple_of(4).min(blocks)
    }
}
