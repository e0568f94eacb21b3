//! What graphs are made for: which lowerings, which flags of the compiler, which machines.

use checkpoint::config::ModelConfig;
use iree_rt::cuda::{self, Gpu};
use iree_rt::{CompileOptions, Device, InputType, OptLevel, vulkan};
use kernels::Isa;

use super::iree;
use crate::lower::cpu::CpuTarget;
use crate::lower::cuda::CudaTiles;
use crate::lower::vulkan::VulkanTarget;
use crate::opening::SessionOptions;
use crate::{Error, Result};

/// Whose lowering a model takes.
#[derive(Clone)]
pub(super) enum Target {
    Cpu(CpuTarget),
    Cuda(CudaTiles),
    Vulkan(VulkanTarget),
}

impl Target {
    fn cpu(threads: usize, options: &SessionOptions) -> Self {
        let tuning = &options.tuning;
        let isa = tuning.isa.unwrap_or_else(Isa::detect);
        let target = CpuTarget::new(isa, threads)
            .with_compression(tuning.compress)
            .with_kv_cache(options.kv_cache.unwrap_or(options.precision.kv_cache()));
        Self::Cpu(match tuning.sketch {
            None => target,
            Some(true) => target.with_sketch_from(0),
            Some(false) => target.with_sketch_from(usize::MAX),
        })
    }

    /// Most pages of a KV cache, that of padding among them.
    pub fn most_pages(&self, config: &ModelConfig) -> usize {
        match self {
            Self::Vulkan(target) => target.most_pages_of(config),
            Self::Cpu(_) | Self::Cuda(_) => usize::MAX,
        }
    }

    /// The compiler's flags for its graphs, added to those that choose the machine code.
    ///
    /// Those of CPUs are calls of kernels, written as the compiler's first phases would leave them, which are left out.
    /// In others the tiles that matter are said, and the level is for what lies between them. The compiler reads what
    /// we emit, and checks it then; that its own passes are right is for its own tests, and would take a fifth to a
    /// third of the time.
    fn with_flags(&self, machine_code: CompileOptions) -> CompileOptions {
        let flags = match self {
            Self::Cpu(_) => machine_code.input_type(InputType::None).flag("--compile-from=flow"),
            Self::Cuda(_) | Self::Vulkan(_) => {
                machine_code.input_type(InputType::StableHlo).opt_level(OptLevel::O3)
            }
        };
        flags.verify(false)
    }
}

/// For a GPU that runs the code of `targets`.
fn cuda_tiles(targets: &[cuda::Target]) -> CudaTiles {
    CudaTiles::new().with_tensor_cores(targets.iter().any(|it| *it >= cuda::Target::SM_80))
}

/// What a model's graphs are made for.
pub(super) struct Machine {
    /// How they are written.
    pub target: Target,
    /// What runs there, the best first: that is what they are compiled to. Where there is no
    /// compiler, what is there of the others does.
    pub codes: Vec<Code>,
}

/// What graphs that only call kernels are compiled to, and asked for by.
pub(super) const ANY_CPU: &str = "cpu";

/// What graphs are compiled for.
pub(super) struct Code {
    /// How graphs are compiled to it.
    pub flags: CompileOptions,
    /// A GPU's architecture, [`ANY_CPU`], or a CPU's architecture.
    pub name: String,
}

impl Machine {
    /// For `device`, which is this machine's.
    ///
    /// # Errors
    ///
    /// A device that no graphs are written for, or that the compiler has no target for.
    pub fn of(device: &Device, options: &SessionOptions) -> Result<Self> {
        let tuning = &options.tuning;
        let (target, codes) = if device.is_local() && tuning.cuda_graphs {
            (Target::Cuda(CudaTiles::portable()), vec![Code::this_architecture()])
        } else if device.is_local() && tuning.vulkan_graphs {
            (Target::Vulkan(VulkanTarget::portable()), vec![Code::this_architecture()])
        } else if device.is_local() {
            (Target::cpu(device.threads().unwrap_or(1), options), vec![Code::any_cpu()])
        } else if let Some(gpu) =
            vulkan::Gpu::of(device).map_err(iree("asking the device what it is"))?
        {
            Self::vulkan(&gpu)?
        } else {
            let gpu = Gpu::of(device).map_err(iree("asking the GPU what it is"))?;
            let gpu = gpu.ok_or_else(|| {
                Error::Unsupported(format!(
                    "models run on CPUs (local-task, local-sync), NVIDIA GPUs (cuda) and devices of \
                     Vulkan (vulkan), not on `{}`",
                    device.uri()
                ))
            })?;
            let targets = gpu.targets().map_err(iree("choosing what to compile for"))?;
            let codes = targets.iter().copied().map(Code::cuda).collect();
            (Target::Cuda(cuda_tiles(&targets)), codes)
        };
        if let Target::Cuda(_) | Target::Vulkan(_) = target {
            options.require_f32_cache("a GPU")?;
        }
        Ok(Self::new(target, codes))
    }

    /// Of codes whose flags say no more than which machine code.
    fn new(target: Target, codes: Vec<Code>) -> Self {
        let flags = |code: Code| Code { flags: target.with_flags(code.flags), ..code };
        let codes = codes.into_iter().map(flags).collect();
        Self { target, codes }
    }

    /// For any CPU that runs models on so many threads, here or elsewhere.
    pub fn cpu(threads: usize, options: &SessionOptions) -> Self {
        Self::new(Target::cpu(threads, options), vec![Code::any_cpu()])
    }

    /// For an NVIDIA GPU that runs the code of `targets`, here or elsewhere.
    pub fn cuda(targets: &[cuda::Target]) -> Self {
        let codes = targets.iter().copied().map(Code::cuda).collect();
        Self::new(Target::Cuda(cuda_tiles(targets)), codes)
    }

    /// For a device of Vulkan, as it describes itself. Its graphs say what they are for.
    ///
    /// # Errors
    ///
    /// It has no memory of 8 or 16 bits.
    fn vulkan(gpu: &vulkan::Gpu) -> Result<(Target, Vec<Code>)> {
        let vulkan::Features { storage8, storage16, int8, int16, .. } = gpu.features;
        if !(storage8 && storage16 && int8 && int16) {
            return Err(Error::Unsupported(format!(
                "{}: weights and pages need memory and integers of 8 and 16 bits, which it lacks",
                gpu.name
            )));
        }
        let attribute = gpu.target().to_string();
        let target = VulkanTarget::new(
            attribute,
            gpu.workgroup_count[0] as usize,
            gpu.subgroup_sizes.1 as usize,
            gpu.buffer_bytes as usize,
        );
        let code = Code { flags: CompileOptions::empty(), name: "vulkan-spirv".into() };
        Ok((Target::Vulkan(target), vec![code]))
    }
}

impl Code {
    /// The graphs say what they are for.
    fn any_cpu() -> Self {
        Self { flags: CompileOptions::empty(), name: ANY_CPU.into() }
    }

    /// What all CPUs of this architecture run, for graphs of GPUs. Tests do, each for a moment: so the compiler leaves
    /// out what takes it longer than it spares them.
    fn this_architecture() -> Self {
        let flags = CompileOptions::default()
            .target_cpu("generic")
            .flag("--iree-opt-const-eval=false")
            .flag("--iree-llvmcpu-debug-symbols=false")
            .flag("--iree-llvmcpu-loop-vectorization=false");
        Self { flags, name: std::env::consts::ARCH.into() }
    }

    fn cuda(target: cuda::Target) -> Self {
        let flags = target.flags().fold(CompileOptions::for_device("cuda"), CompileOptions::flag);
        Self { flags, name: target.name().into() }
    }
}
