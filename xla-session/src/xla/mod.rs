//! The IREE engine: emit, compile (or find compiled), load weights, run.

mod ahead;
mod calls;
mod compile;
mod cpu;
mod gpu;
mod pages;
mod rope;
mod self_check;
mod target;
mod weights;

use std::path::Path;
use std::time::{Duration, Instant};

use checkpoint::Checkpoint;
use checkpoint::config::ModelConfig;
use iree_rt::{Device, DeviceOptions, Instance, Kernels, Module};
use kernels::KvFormat;

pub use self::ahead::compile_ahead;
use self::compile::Graph;
use self::target::{Machine, Target};
use self::weights::Weights;
use crate::cache::{Key, Label};
use crate::emit::builder::TensorType;
use crate::emit::{ElementType, WeightFormats, WeightSpec};
use crate::engine::Model;
use crate::lower;
use crate::opening::SessionOptions;
use crate::{Error, Result};

/// Opens the model in `folder`; see [`Model::open`].
pub(crate) fn open_model(folder: &Path, options: &SessionOptions) -> Result<Model> {
    let found = Found::new(folder, options)?;
    match &found.machine.target {
        Target::Cpu(target) => {
            let (config, formats) = (&found.config, &found.formats);
            let rows = lower::cpu::most_rows(config);
            lower::cpu::supports(config, rows, HEAD_ROWS).map_err(Error::Unsupported)?;
            let program = lower::cpu::program(config, formats, target, rows, HEAD_ROWS);
            let kv = target.kv_cache();
            let graph = Graph { name: "model", text: &program.text };
            let specs = program.weights();
            let page_identity = pages::identity(&found, &specs, &(target.isa, kv));
            let parts = Parts::new(&found, &[graph], &specs, options)?;
            let Parts { modules, weights, load, compile } = parts;
            let module = modules.into_iter().next().expect("one for each graph");
            let (bytes, Found { device, config, .. }) = (weights.bytes, found);
            let model =
                cpu::CpuModel { device, config, program, module, weights, kv, page_identity };
            Ok(Model::new(model, bytes, load, compile))
        }
        Target::Cuda(tiles) => {
            lower::paged::supports(&found.config).map_err(Error::Unsupported)?;
            let (config, formats) = (&found.config, &found.formats);
            let graphs = match options.tuning.gpu_rows {
                None => lower::cuda::graphs(config, formats, tiles),
                Some(rows) => {
                    let prompts = &lower::cuda::PROMPT_ROWS[..1];
                    lower::cuda::some_graphs(config, formats, tiles, &[rows], prompts, &[rows])
                }
            };
            open_on_gpu(found, options, graphs, |found, specs| {
                let Target::Cuda(tiles) = &found.machine.target else { return None };
                pages::identity(found, specs, tiles)
            })
        }
        Target::Vulkan(target) => {
            lower::paged::supports(&found.config).map_err(Error::Unsupported)?;
            let (config, formats) = (&found.config, &found.formats);
            let graphs = match options.tuning.gpu_rows {
                None => lower::vulkan::graphs(config, formats, target),
                Some(rows) => lower::vulkan::some_graphs(config, formats, target, &[rows], &[rows]),
            };
            let largest = lower::paged::weights(&graphs);
            let largest = largest.iter().max_by_key(|spec| spec.ty().bytes());
            if let Some(spec) = largest.filter(|spec| spec.ty().bytes() > target.most_bytes()) {
                return Err(Error::Unsupported(format!(
                    "{} has {} bytes, and {} takes {} in a buffer at most: take a precision of fewer \
                     bits, or another device",
                    spec.parts[0].0,
                    spec.ty().bytes(),
                    found.device.uri(),
                    target.most_bytes(),
                )));
            }
            self_check::run(&found, options)?;
            open_on_gpu(found, options, graphs, |found, specs| {
                let Target::Vulkan(target) = &found.machine.target else { return None };
                pages::identity(found, specs, target)
            })
        }
    }
}

/// Opens a model whose graphs are over pages.
fn open_on_gpu(
    found: Found,
    options: &SessionOptions,
    graphs: Vec<lower::paged::Graph>,
    identity: impl Fn(&Found, &[WeightSpec]) -> Option<Key>,
) -> Result<Model> {
    let texts: Vec<_> = graphs.iter().map(|it| Graph { name: &it.name, text: &it.text }).collect();
    let specs = lower::paged::weights(&graphs);
    let page_identity = identity(&found, &specs);
    let parts = Parts::new(&found, &texts, &specs, options)?;
    let Parts { modules, weights, load, compile } = parts;
    let graphs = graphs.into_iter().zip(modules).collect();
    let most_pages = found.machine.target.most_pages(&found.config);
    let (bytes, Found { device, config, .. }) = (weights.bytes, found);
    let model = gpu::GpuModel::new(device, config, graphs, weights, page_identity, most_pages);
    Ok(Model::new(model, bytes, load, compile))
}

/// Most rows of a call of the head on CPUs.
const HEAD_ROWS: usize = 64;

/// What fails when a call does.
const RUNNING: &str = "running the model";

/// What a model is made of, and how long that took.
struct Parts {
    /// One for each graph.
    modules: Vec<Module>,
    weights: Weights,
    load: Duration,
    compile: Duration,
}

impl Parts {
    fn new(
        found: &Found,
        graphs: &[Graph<'_>],
        specs: &[WeightSpec],
        options: &SessionOptions,
    ) -> Result<Self> {
        let Found { device, checkpoint, machine, label, .. } = found;
        let start = Instant::now();
        let bytes: usize = specs.iter().map(bytes_of).sum();
        device.check_fits(bytes as u64).map_err(iree("making room for the model"))?;
        let modules = compile::modules(graphs, machine, label, options)?;
        let compile = start.elapsed();
        let start = Instant::now();
        let weights = weights::load(device, checkpoint, specs, label, options)?;
        Ok(Self { modules, weights, load: start.elapsed(), compile })
    }
}

/// A model that was found, and the device that it is for.
struct Found {
    config: ModelConfig,
    checkpoint: Checkpoint,
    device: Device,
    machine: Machine,
    formats: WeightFormats,
    /// What the cache says of the model.
    label: String,
}

impl Found {
    fn new(folder: &Path, options: &SessionOptions) -> Result<Self> {
        let (checkpoint, config) = Checkpoint::open_with_config(folder, options.load_mode)?;
        let config = config.with_context(options.context);
        options.context_of(&config)?;
        let uri = options.device.as_deref().unwrap_or("local-task");
        let instance = Instance::get().map_err(iree("starting the IREE runtime"))?;
        let kernels = match uri.starts_with("local-") {
            true => lower::cpu::kernels(options.tuning.isa_here()?),
            false => Kernels::default(),
        };
        let how = DeviceOptions::default()
            .threads(options.threads)
            .kernels(kernels)
            .profile(options.profile.clone());
        let device = instance.device_with(uri, &how).map_err(iree("opening the device"))?;
        let machine = Machine::of(&device, options)?;
        let formats = WeightFormats::new(options.precision, &config, &checkpoint);
        let label = Label::model_of(folder);
        Ok(Self { config, checkpoint, device, machine, formats, label })
    }
}

/// The tokens that a head picked after `rows` of the last step, as numbers of the vocabulary; `kv` is what the KV cache
/// holds.
fn tokens_of(
    picked: &[i32],
    rows: &[usize],
    config: &ModelConfig,
    kv: KvFormat,
) -> Result<Vec<u32>> {
    let token = |(&token, &row): (&i32, &usize)| {
        let token = u32::try_from(token).ok().filter(|&it| (it as usize) < config.vocab_size);
        token.ok_or_else(|| not_numbers(row, kv))
    };
    picked.iter().zip(rows).map(token).collect()
}

/// That what comes of `row` is not numbers; `kv` is what the KV cache holds.
fn not_numbers(row: usize, kv: KvFormat) -> Error {
    let advice = match kv {
        KvFormat::F32 => "",
        KvFormat::F16 => ", or keys or values are too large for a KV cache in f16 (f32 holds them)",
    };
    Error::NotNumbers { row, advice }
}

/// Bytes of all planes of a weight, at most.
fn bytes_of(spec: &WeightSpec) -> usize {
    let beside = spec.planes().split_off(1);
    spec.most_bytes() + beside.iter().map(TensorType::bytes).sum::<usize>()
}

/// The runtime's name of an element type.
fn element_type(element: ElementType) -> iree_rt::ElementType {
    match element {
        ElementType::F32 => iree_rt::ElementType::F32,
        ElementType::F16 => iree_rt::ElementType::F16,
        ElementType::Bf16 => iree_rt::ElementType::BF16,
        ElementType::I32 => iree_rt::ElementType::I32,
        ElementType::I64 => iree_rt::ElementType::I64,
        ElementType::I8 => iree_rt::ElementType::I8,
        ElementType::I1 => iree_rt::ElementType::BOOL,
        ElementType::I16 | ElementType::I4 => unreachable!("only inside a graph"),
    }
}

/// Says what was being done when IREE failed.
fn iree(context: impl Into<String>) -> impl FnOnce(iree_rt::Error) -> Error {
    let context = context.into();
    move |source| Error::Iree { context, source }
}
