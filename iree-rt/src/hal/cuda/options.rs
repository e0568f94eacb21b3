//! How devices of CUDA are opened.

use iree_sys as sys;

/// How a device of CUDA works, as part of [`DeviceOptions`](crate::DeviceOptions); other devices
/// take only the default.
///
/// IREE has no other way to say these: parameters in a device's URI (`cuda://0?name=value`) are
/// read by its CUDA driver and ignored.
///
/// ```
/// use iree_rt::{DeviceOptions, cuda};
///
/// let cuda = cuda::Options::default().pool_bytes(2 << 30);
/// let options = DeviceOptions::default().cuda(cuda);
/// # let _ = options;
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    command_buffers: CommandBuffers,
    async_allocations: bool,
    pool_bytes: u64,
}

/// How a device of CUDA runs command buffers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CommandBuffers {
    /// Command by command in a stream: what IREE's own tools do.
    #[default]
    Stream,
    /// As CUDA graphs, where a command buffer is recorded for one call; those that are used again
    /// with other tensors run in the stream all the same (IREE 3.13.0).
    Graph,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            command_buffers: CommandBuffers::default(),
            async_allocations: true,
            pool_bytes: 512 << 20,
        }
    }
}

impl Options {
    /// How command buffers run.
    pub fn command_buffers(mut self, how: CommandBuffers) -> Self {
        self.command_buffers = how;
        self
    }

    /// Whether calls allocate their results and intermediate tensors from pools, in the order of
    /// the device's stream, where the GPU can (default). Such results cannot be exported: without
    /// pools they can, but each allocation and release stops the GPU.
    pub fn async_allocations(mut self, from_pools: bool) -> Self {
        self.async_allocations = from_pools;
        self
    }

    /// Bytes of freed memory that each pool keeps for the next call instead of giving it back to
    /// the system whenever the device is waited for; default 512 MiB.
    /// [`Device::trim`](crate::Device::trim) gives it back.
    pub fn pool_bytes(mut self, bytes: u64) -> Self {
        self.pool_bytes = bytes;
        self
    }

    /// These in the words of `iree/hal/drivers/cuda/api.h`, whose own default is graphs and pools
    /// that keep nothing.
    #[cfg_attr(not(cuda_driver), expect(dead_code, reason = "the runtime has no CUDA driver"))]
    pub(crate) fn set(&self, params: &mut sys::iree_hal_cuda_device_params_t) {
        params.command_buffer_mode = match self.command_buffers {
            CommandBuffers::Stream => sys::IREE_HAL_CUDA_COMMAND_BUFFER_MODE_STREAM,
            CommandBuffers::Graph => sys::IREE_HAL_CUDA_COMMAND_BUFFER_MODE_GRAPH,
        };
        params.async_allocations = self.async_allocations;
        // It puts events between dispatches, for a profiler that is not built in.
        params.stream_tracing = 0;
        params.memory_pools.device_local.release_threshold = self.pool_bytes;
        params.memory_pools.other.release_threshold = self.pool_bytes;
    }
}
