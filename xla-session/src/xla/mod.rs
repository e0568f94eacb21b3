//! The IREE engine: emit, compile (or find compiled), load weights, run.

mod ahead;
mod compile;
mod cpu;
mod host;
mod kv_cache;
mod plan;
mod program;
mod session;
mod target;
mod weights;

use std::collections::HashMap;
use std::path::Path;
use std::time::{Duration, Instant};

use checkpoint::Checkpoint;
use checkpoint::config::ModelConfig;
use iree_rt::{Device, DeviceOptions, Instance, Kernels};
use kernels::Isa;

pub use self::ahead::compile_ahead;
use self::program::Program;
pub use self::session::XlaInferenceSession;
use self::target::{Machine, Target};
use crate::emit::builder::TensorType;
use crate::emit::{
    self, CudaTiles, ElementType, Graph, KV_BLOCK, Source, WeightFormats, WeightSpec,
};
use crate::engine::{EngineSession, Model};
use crate::lower;
use crate::opening::{Opened, SessionOptions};
use crate::{Capabilities, Error, Result};

/// Opens the model in `folder`; see [`Backend::open`](crate::Backend::open).
pub(crate) fn open(folder: &Path, options: &SessionOptions) -> Result<Opened> {
    let found = Found::new(folder, options)?;
    if let Target::Cpu(_) = found.machine.target {
        let model = of_cpu(found, options)?;
        let (weights, precision) = (model.weights(), options.precision);
        let (load, compile) = (model.load_time(), model.compile_time());
        let session = Box::new(EngineSession::new(&model, options.context)?);
        let model = Some(model);
        return Ok(Opened { session, model, precision, weights, load, compile });
    }
    let Loaded { session, weights, load, compile } = Loaded::new(found, options)?;
    let (session, precision) = (Box::new(session), options.precision);
    Ok(Opened { session, model: None, precision, weights, load, compile })
}

/// Opens the model in `folder` for engines; see [`Model::open`].
pub(crate) fn open_model(folder: &Path, options: &SessionOptions) -> Result<Model> {
    of_cpu(Found::new(folder, options)?, options)
}

fn of_cpu(found: Found, options: &SessionOptions) -> Result<Model> {
    let Target::Cpu(target) = &found.machine.target else {
        return Err(Error::Unsupported(format!(
            "many sequences on `{}`: engines run on CPUs so far",
            found.device.uri()
        )));
    };
    let start = Instant::now();
    let Found { config, formats, .. } = &found;
    let program = lower::cpu::program(config, formats, target, MOST_ROWS, HEAD_ROWS);
    let specs = program.weights();
    let weights: usize = specs.iter().map(bytes_of).sum();
    found.device.check_fits(weights as u64).map_err(iree("making room for the model"))?;
    let graph = Graph {
        name: "model".into(),
        text: program.text.clone(),
        rows: MOST_ROWS,
        capacities: Vec::new(),
        arguments: Vec::new(),
        results: Vec::new(),
    };
    let modules = compile::modules(&[graph], &found.machine, &found.label, options)?;
    let compile = start.elapsed();

    let start = Instant::now();
    let weights = weights::load(&found.device, &found.checkpoint, &specs, &found.label, options)?;
    let module = modules.into_iter().next().expect("one for each graph");
    let (bytes, kv) = (weights.bytes, target.kv_cache());
    let Found { device, config, .. } = found;
    let loaded = cpu::CpuModel { device, config, program, module, weights, kv };
    Ok(Model::new(loaded, bytes, start.elapsed(), compile))
}

/// Most rows of a step, and of a call of the head.
const MOST_ROWS: usize = 256;
const HEAD_ROWS: usize = 64;

/// A session, and what [`Opened`] says of it.
struct Loaded {
    session: XlaInferenceSession,
    weights: u64,
    load: Duration,
    compile: Duration,
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
        let mut config = ModelConfig::from_dir(folder)?;
        let checkpoint = Checkpoint::open(folder, options.load_mode)?;
        config.tie_word_embeddings = checkpoint.is_tied(&config)?;
        checkpoint.check(&config)?;
        options.context_of(&config)?;
        let uri = options.device.as_deref().unwrap_or("local-task");
        let instance = Instance::get().map_err(iree("starting the IREE runtime"))?;
        let kernels = match uri.starts_with("local-") {
            true => lower::cpu::kernels(options.tuning.isa.unwrap_or_else(Isa::detect)),
            false => Kernels::default(),
        };
        let how = DeviceOptions::default()
            .threads(options.threads)
            .kernels(kernels)
            .profile(options.profile.clone());
        let device = instance.device_with(uri, &how).map_err(iree("opening the device"))?;
        let machine = Machine::of(&device, options)?;
        let formats = WeightFormats::new(options.precision, &config, &checkpoint);
        let label = folder.file_name().unwrap_or(folder.as_os_str()).to_string_lossy().into();
        Ok(Self { config, checkpoint, device, machine, formats, label })
    }
}

impl Loaded {
    fn new(found: Found, options: &SessionOptions) -> Result<Self> {
        let Found { config, checkpoint, device, machine, formats, label } = found;
        let context = options.context_of(&config)?;
        let start = Instant::now();
        let Target::Cuda(tiles) = &machine.target else { unreachable!("CPUs have engines") };
        let graphs = graphs(&config, &formats, tiles);
        device
            .check_fits(bytes_needed(&graphs, &config, options))
            .map_err(iree("making room for the model"))?;
        let modules = compile::modules(&graphs, &machine, &label, options)?;
        let compile = start.elapsed();

        let start = Instant::now();
        let specs = weights_of(&graphs);
        let layer = cache_of(&graphs[0]);
        let weights = weights::load(&device, &checkpoint, &specs, &label, options)?;
        let mut programs = HashMap::new();
        for (graph, module) in graphs.into_iter().zip(modules) {
            let (rows, name) = (graph.rows, graph.name.clone());
            let program = Program::new(&device, graph, module, &weights);
            programs.insert(rows, program.map_err(iree(format!("loading the graph {name}")))?);
        }
        let load = start.elapsed();

        let max = config.max_position_embeddings;
        let capabilities = Capabilities::new("iree", device.uri(), config.vocab_size, context, max);
        // `local-sync` works on the calling thread, which cannot be ahead of itself.
        let by_itself = !device.is_local() || device.threads().is_some();
        let ahead = if by_itself { 2 } else { 1 };
        let session =
            XlaInferenceSession::new(capabilities, config, programs, layer, &device, ahead)?;
        Ok(Self { session, weights: weights.bytes, load, compile })
    }
}

/// The graphs of a session: the decode step and every prefill chunk.
fn graphs(config: &ModelConfig, formats: &WeightFormats, tiles: &CudaTiles) -> Vec<Graph> {
    let target = emit::Target::Cuda(tiles.clone());
    std::iter::once(1)
        .chain(plan::ROWS)
        .map(|rows| emit::emit(config, formats, &target, rows))
        .collect()
}

/// Every weight that some of the graphs take, once.
fn weights_of(graphs: &[Graph]) -> Vec<WeightSpec> {
    let mut specs = Vec::new();
    for argument in graphs.iter().flat_map(|graph| &graph.arguments) {
        if let Source::Weight(spec) = &argument.source
            && !specs.contains(spec)
        {
            specs.push(spec.clone());
        }
    }
    specs
}

/// The keys and the values of a layer, as every graph takes them; the first extent is the number of
/// blocks.
fn cache_of(graph: &Graph) -> [TensorType; 2] {
    [Source::Keys(0), Source::Values(0)].map(|source| {
        let argument = graph.arguments.iter().find(|argument| argument.source == source);
        argument.expect("a model has a layer").ty.clone()
    })
}

/// Bytes of device memory for weights, and for the keys and values of the context that was asked
/// for, or of one prefill chunk.
fn bytes_needed(graphs: &[Graph], config: &ModelConfig, options: &SessionOptions) -> u64 {
    let weights: usize = weights_of(graphs).iter().map(bytes_of).sum();
    let chunk = graphs.iter().map(|graph| graph.rows).max().unwrap_or(1);
    let tokens = options.context.map_or(chunk, |context| context + chunk);
    let blocks = tokens.div_ceil(KV_BLOCK);
    let capacities = graphs.iter().flat_map(|graph| &graph.capacities);
    let blocks = capacities.copied().find(|&capacity| capacity >= blocks).unwrap_or(blocks);
    let tokens = blocks * KV_BLOCK;
    let [keys, _] = cache_of(&graphs[0]);
    let token = 2 * config.num_key_value_heads * config.head_dim * keys.element.bytes();
    (weights + tokens * token * config.num_hidden_layers) as u64
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
        ElementType::I4 => unreachable!("only inside a graph"),
    }
}

/// Says what was being done when IREE failed.
fn iree(context: impl Into<String>) -> impl FnOnce(iree_rt::Error) -> Error {
    let context = context.into();
    move |source| Error::Iree { context, source }
}
