//! The IREE engine: emit, compile (or find compiled), load weights, run.

mod ahead;
mod attention;
mod compile;
mod host;
mod kv_cache;
mod plan;
mod products;
mod program;
mod session;
mod target;
mod weights;

use std::collections::HashMap;
use std::path::Path;
use std::time::{Duration, Instant};

use checkpoint::Checkpoint;
use checkpoint::config::ModelConfig;
use iree_rt::{DeviceOptions, Instance, Kernels};

pub use self::ahead::compile_ahead;
use self::plan::MostScores;
use self::program::Program;
pub use self::session::XlaInferenceSession;
use self::target::Machine;
use crate::emit::builder::TensorType;
use crate::emit::{self, ElementType, Graph, KV_BLOCK, Source, Target, WeightFormats, WeightSpec};
use crate::opening::{Opened, SessionOptions};
use crate::{Capabilities, Error, Result};

/// Opens the model in `folder`; see [`Backend::open`](crate::Backend::open).
pub(crate) fn open(folder: &Path, options: &SessionOptions) -> Result<Opened> {
    let Loaded { session, weights, load, compile } = Loaded::new(folder, options)?;
    let (session, precision) = (Box::new(session), options.precision);
    Ok(Opened { session, precision, weights, load, compile })
}

/// A session, and what [`Opened`] says of it.
struct Loaded {
    session: XlaInferenceSession,
    weights: u64,
    load: Duration,
    compile: Duration,
}

impl Loaded {
    fn new(folder: &Path, options: &SessionOptions) -> Result<Self> {
        let mut config = ModelConfig::from_dir(folder)?;
        let checkpoint = Checkpoint::open(folder, options.load_mode)?;
        config.tie_word_embeddings = checkpoint.is_tied(&config)?;
        checkpoint.check(&config)?;
        let context = options.context_of(&config)?;
        let uri = options.device.as_deref().unwrap_or("local-task");
        let instance = Instance::get().map_err(iree("starting the IREE runtime"))?;
        let kernels = match uri.starts_with("local-") {
            true => products::kernels(),
            false => Kernels::default(),
        };
        let how = DeviceOptions::default()
            .threads(options.threads)
            .kernels(kernels)
            .profile(options.profile.clone());
        let device = instance.device_with(uri, &how).map_err(iree("opening the device"))?;
        let machine = Machine::of(&device, options)?;

        let start = Instant::now();
        let formats = WeightFormats::new(options.precision, &config, &checkpoint);
        let graphs = graphs(&config, &formats, &machine.target);
        let label = folder.file_name().unwrap_or(folder.as_os_str()).to_string_lossy();
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
        let ahead = options.ahead.unwrap_or(if by_itself { 2 } else { 1 }).max(1);
        let scores = match &machine.target {
            Target::Cpu(tiles) if tiles.kernels => MostScores::PASSING,
            _ => MostScores::HELD,
        };
        let session = XlaInferenceSession::new(
            capabilities,
            config,
            programs,
            layer,
            &device,
            ahead,
            scores,
        )?;
        Ok(Self { session, weights: weights.bytes, load, compile })
    }
}

/// The graphs of a session: the decode step and every prefill chunk.
fn graphs(config: &ModelConfig, formats: &WeightFormats, target: &Target) -> Vec<Graph> {
    std::iter::once(1)
        .chain(plan::ROWS)
        .map(|rows| emit::emit(config, formats, target, rows))
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
    let weights: usize = weights_of(graphs)
        .iter()
        .map(|spec| {
            let beside = spec.planes().split_off(1);
            spec.most_bytes() + beside.iter().map(|ty| ty.bytes()).sum::<usize>()
        })
        .sum();
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
