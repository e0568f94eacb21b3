//! The IREE engine: emit, compile (or find compiled), load weights, run.

mod attention;
mod compile;
mod host;
mod kv_cache;
mod plan;
mod products;
mod session;
mod weights;

use std::collections::HashMap;
use std::path::Path;
use std::time::Instant;

use iree_rt::{DeviceOptions, Instance};

use self::session::Program;
pub use self::session::XlaInferenceSession;
use crate::backend::{Opened, SessionOptions};
use crate::checkpoint::Checkpoint;
use crate::config::ModelConfig;
use crate::emit::{self, CpuTiles, ElementType, Graph, Source, Target, WeightFormats, WeightSpec};
use crate::kernels::Isa;
use crate::{Capabilities, Error, Result};

/// Opens the model in `folder`; see [`Backend::open`](crate::Backend::open).
pub(crate) fn open(folder: &Path, options: &SessionOptions) -> Result<Opened> {
    let mut config = ModelConfig::from_dir(folder)?;
    let checkpoint = Checkpoint::open(folder, options.load_mode)?;
    config.tie_word_embeddings = checkpoint.is_tied(&config)?;
    checkpoint.check(&config)?;
    let context = options.context_of(&config)?;
    let uri = options.device.as_deref().unwrap_or("local-task");
    let instance = Instance::get().map_err(iree("starting the IREE runtime"))?;
    let device = instance
        .device_with(
            uri,
            &DeviceOptions {
                threads: options.threads,
                kernels: products::kernels(),
                profile: options.profile.clone(),
                ..DeviceOptions::default()
            },
        )
        .map_err(iree("opening the device"))?;
    if !device.is_local() {
        return Err(Error::Unsupported(format!(
            "models run on the CPU (local-task, local-sync) so far, not on `{uri}`"
        )));
    }

    let start = Instant::now();
    let formats = WeightFormats::new(options.precision, &config, &checkpoint);
    let isa = Isa::detect();
    let kernels = options.kernels.unwrap_or(isa != Isa::Portable);
    let tiles = CpuTiles::new(isa, device.threads().unwrap_or(1)).with_kernels(kernels);
    let graphs = graphs(&config, &formats, &Target::Cpu(tiles));
    let label = folder.file_name().unwrap_or(folder.as_os_str()).to_string_lossy();
    let modules = compile::modules(&graphs, &label, options)?;
    let compile = start.elapsed();

    let start = Instant::now();
    let specs = weights_of(&graphs);
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
    let session = XlaInferenceSession::new(capabilities, config, programs, &device);
    let (session, precision) = (Box::new(session), options.precision);
    Ok(Opened { session, precision, weights: weights.bytes, load, compile })
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

/// The runtime's name of an element type.
fn element_type(element: ElementType) -> iree_rt::ElementType {
    match element {
        ElementType::F32 => iree_rt::ElementType::F32,
        ElementType::F16 => iree_rt::ElementType::F16,
        ElementType::Bf16 => iree_rt::ElementType::BF16,
        ElementType::I32 => iree_rt::ElementType::I32,
        ElementType::I8 => iree_rt::ElementType::I8,
        ElementType::I1 => iree_rt::ElementType::BOOL,
    }
}

/// Says what was being done when IREE failed.
fn iree(context: impl Into<String>) -> impl FnOnce(iree_rt::Error) -> Error {
    let context = context.into();
    move |source| Error::Iree { context, source }
}
