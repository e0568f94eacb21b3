//! What graphs are made for: which lowerings, which flags of the compiler, which machine code.

use iree_rt::cuda::{self, Gpu};
use iree_rt::{CompileOptions, Device};
use kernels::Isa;

use super::{host, iree};
use crate::lower::cpu::CpuTarget;
use crate::lower::cuda::CudaTiles;
use crate::opening::SessionOptions;
use crate::{Error, Result};

/// Whose lowering a model takes.
#[derive(Clone)]
pub(super) enum Target {
    Cpu(CpuTarget),
    Cuda(CudaTiles),
}

/// What a model's graphs are made for.
pub(super) struct Machine {
    /// How they are written.
    pub target: Target,
    /// What runs there, the best first: that is what they are compiled to. Where there is no
    /// compiler, what is there of the others does.
    pub codes: Vec<Code>,
}

/// Machine code.
pub(super) struct Code {
    /// How graphs are compiled to it.
    pub flags: CompileOptions,
    /// A CPU's features, or a GPU's architecture.
    pub name: String,
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
            Self::cuda(&gpu.targets().map_err(iree("choosing what to compile for"))?)
        };
        let target = match machine.target {
            Target::Cpu(_) if options.tuning.cuda_graphs => Target::Cuda(CudaTiles::portable()),
            target => target,
        };
        if let Target::Cuda(_) = target {
            options.require_f32_cache("a GPU")?;
        }
        Ok(Self { target, ..machine })
    }

    fn cpu(device: &Device, options: &SessionOptions) -> Self {
        let tuning = &options.tuning;
        let isa = tuning.isa.unwrap_or_else(Isa::detect);
        let target = CpuTarget::new(isa, device.threads().unwrap_or(1))
            .with_compression(tuning.compress)
            .with_kv_cache(options.kv_cache.unwrap_or(options.precision.kv_cache()));
        let target = match tuning.sketch {
            None => target,
            Some(true) => target.with_sketch_from(0),
            Some(false) => target.with_sketch_from(usize::MAX),
        };
        let code = Code { flags: common(CompileOptions::default()), name: host::features() };
        Self { target: Target::Cpu(target), codes: vec![code] }
    }

    /// For an NVIDIA GPU that runs the code of `targets`, here or elsewhere.
    pub fn cuda(targets: &[cuda::Target]) -> Self {
        let codes = targets.iter().copied().map(Code::cuda).collect();
        Self { target: Target::Cuda(CudaTiles::new()), codes }
    }
}

impl Code {
    fn cuda(target: cuda::Target) -> Self {
        let flags = target.flags().fold(CompileOptions::for_device("cuda"), CompileOptions::flag);
        Self { flags: common(flags), name: target.name().into() }
    }
}

/// The tiles that matter are said in the graphs; the level is for what lies between them.
fn common(flags: CompileOptions) -> CompileOptions {
    flags.flag("--iree-input-type=stablehlo").flag("--iree-opt-level=O3")
}
