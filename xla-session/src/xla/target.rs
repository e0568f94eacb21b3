//! What graphs are made for: which lowerings, which flags of the compiler, which machine code.

use iree_rt::cuda::Gpu;
use iree_rt::{CompileOptions, Device};

use super::{host, iree};
use crate::backend::{GraphsFor, SessionOptions};
use crate::emit::{CpuTiles, CudaTiles, Target};
use crate::kernels::Isa;
use crate::{Error, Result};

/// What a session's graphs are made for.
pub(super) struct Machine {
    /// How they are written.
    pub target: Target,
    /// How they are compiled.
    pub flags: CompileOptions,
    /// Which machine code runs: a CPU's features, or a GPU's architecture.
    pub code: String,
}

impl Machine {
    /// For `device`, which is this machine's.
    ///
    /// # Errors
    ///
    /// A device that no graphs are written for, or that the compiler has no target for.
    pub fn of(device: &Device, options: &SessionOptions) -> Result<Self> {
        let machine = if device.is_local() {
            Self::cpu(device, options)
        } else {
            let gpu = Gpu::of(device).map_err(iree("asking the GPU what it is"))?;
            let gpu = gpu.ok_or_else(|| {
                Error::Unsupported(format!(
                    "models run on CPUs (local-task, local-sync) and NVIDIA GPUs (cuda), not on \
                     `{}`",
                    device.uri()
                ))
            })?;
            Self::cuda(gpu.target().map_err(iree("choosing what to compile for"))?.name())
        };
        let target = match (options.graphs, &machine.target) {
            (Some(GraphsFor::Cuda), Target::Cpu(_)) => Target::Cuda(CudaTiles::portable()),
            (Some(GraphsFor::Cpu), Target::Cuda(_)) => {
                return Err(Error::Unsupported("the graphs for CPUs call code of a CPU".into()));
            }
            _ => machine.target,
        };
        Ok(Self { target, ..machine })
    }

    fn cpu(device: &Device, options: &SessionOptions) -> Self {
        let isa = Isa::detect();
        let kernels = options.kernels.unwrap_or(isa != Isa::Portable);
        let tiles = CpuTiles::new(isa, device.threads().unwrap_or(1))
            .with_kernels(kernels)
            .with_compression(options.compress);
        Self {
            target: Target::Cpu(tiles),
            flags: common(CompileOptions::default()),
            code: host::features(),
        }
    }

    /// For NVIDIA GPUs that run the code of `architecture` ("sm_80"), here or elsewhere.
    pub fn cuda(architecture: &str) -> Self {
        let flags =
            CompileOptions::for_device("cuda").flag(format!("--iree-cuda-target={architecture}"));
        Self {
            target: Target::Cuda(CudaTiles::new()),
            flags: common(flags),
            code: architecture.into(),
        }
    }
}

/// The tiles that matter are said in the graphs; the level is for what lies between them.
fn common(flags: CompileOptions) -> CompileOptions {
    flags.flag("--iree-input-type=stablehlo").flag("--iree-opt-level=O3")
}
