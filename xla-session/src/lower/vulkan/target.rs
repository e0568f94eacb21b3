//! What graphs know of the device that they are for.

use checkpoint::config::ModelConfig;
use kernels::KV_BLOCK;

/// A device of Vulkan, as far as graphs differ by it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct VulkanTarget {
    /// The compiler's name for it, `#hal.device.target<"vulkan", …>`; `None` leaves the choice to the
    /// compiler's flags.
    pub(super) attribute: Option<String>,
    /// Most threads of a dispatch.
    pub(super) most_threads: usize,
    /// Most bytes of a buffer.
    pub(super) buffer_bytes: usize,
}

impl VulkanTarget {
    /// A device that the compiler knows as `attribute`, takes so many workgroups of at least `subgroup`
    /// threads along the first dimension, and buffers of so many bytes.
    pub fn new(attribute: String, workgroups: usize, subgroup: usize, buffer_bytes: usize) -> Self {
        let most_threads = workgroups.saturating_mul(subgroup.max(1));
        Self { attribute: Some(attribute), most_threads, buffer_bytes }
    }

    /// The same graphs for any compiler back end: what they compute can be checked on any device.
    pub fn portable() -> Self {
        let most = i32::MAX as usize;
        Self { attribute: None, most_threads: most, buffer_bytes: most }
    }

    /// Most bytes of a weight, or of the pages of a layer.
    pub fn most_bytes(&self) -> usize {
        self.buffer_bytes.min(i32::MAX as usize)
    }

    /// Most pages of a model's KV cache.
    pub fn most_pages_of(&self, config: &ModelConfig) -> usize {
        let widths = config.architecture.layers.iter().map(|layer| layer.mixer.key_width());
        let row = 2 * widths.max().unwrap_or(1) * size_of::<f32>();
        self.most_bytes() / (row * KV_BLOCK)
    }

    /// How many of `count` things a dispatch takes at once, each of so many threads: one at least.
    pub(super) fn at_once(&self, count: usize, threads: usize) -> usize {
        (self.most_threads / threads.max(1)).clamp(1, count)
    }
}
