//! Graphs compiled ahead of time, for machines that have no compiler.

use checkpoint::config::ModelConfig;
use iree_rt::cuda;

use super::level::{self, Level};
use super::target::{Machine, Target};
use super::{HEAD_ROWS, MOST_ROWS, compile};
use crate::emit::WeightFormats;
use crate::lower;
use crate::opening::SessionOptions;
use crate::{Error, Result};

/// Most threads of a CPU that graphs are compiled for.
const MOST_THREADS: usize = 128;

/// Compiles every graph that a model takes on machines of the kind `target`, into the cache in
/// `options.cache_dir`; needs no such machine, and of the model neither tokenizer nor weights.
/// Returns the number of graphs. A target is
///
/// * a level of CPUs: "x86-64-v2", "x86-64-v3", "x86-64-v4", "x86-64" (any), "aarch64" (any). The
///   models that run there have the precision, context and KV cache of `options`, up to 128 threads,
///   and the kernels that fit that machine, whatever the level: graphs only call them;
/// * an architecture of NVIDIA's GPUs: "sm_80", "sm_89".
///
/// A model that is opened with that folder, or a copy of it elsewhere, for the same `config` and
/// `formats`, then needs no compiler: without one it takes the best of these targets that
/// its machine runs. `model` is the name under which the cache lists them.
///
/// # Errors
///
/// No `cache_dir`, no compiler, or a target that it does not know.
pub fn compile_ahead(
    config: &ModelConfig,
    formats: &WeightFormats,
    target: &str,
    model: &str,
    options: &SessionOptions,
) -> Result<usize> {
    if options.cache_dir.is_none() {
        return Err(Error::Unsupported(
            "graphs compiled ahead of time go to a cache folder".into(),
        ));
    }
    if let Some(level) = Level::by_name(target) {
        return for_cpus(config, formats, level, model, options);
    }
    let architecture = target.parse().map_err(|source| Error::Iree {
        context: format!(
            "choosing what to compile for, a CPU ({}) or a GPU",
            level::ALL.map(|level| level.name).join(", ")
        ),
        source,
    })?;
    for_gpus(config, formats, architecture, model, options)
}

fn for_cpus(
    config: &ModelConfig,
    formats: &WeightFormats,
    level: Level,
    model: &str,
    options: &SessionOptions,
) -> Result<usize> {
    // Machines with other numbers of threads cut products into other pieces.
    let threads = (1..).map(|power| 1 << power).take_while(|&it| it <= MOST_THREADS);
    let mut texts = Vec::new();
    for threads in threads {
        let machine = Machine::cpu_elsewhere(level, threads, options);
        let Target::Cpu(target) = &machine.target else { unreachable!("made for a CPU") };
        texts.push(lower::cpu::program(config, formats, target, MOST_ROWS, HEAD_ROWS).text);
    }
    texts.sort();
    texts.dedup();
    let graphs: Vec<_> = texts.iter().map(|text| compile::Graph { name: "model", text }).collect();
    compile::keep(&graphs, &Machine::cpu_elsewhere(level, 1, options), model, options)
}

fn for_gpus(
    config: &ModelConfig,
    formats: &WeightFormats,
    architecture: cuda::Target,
    model: &str,
    options: &SessionOptions,
) -> Result<usize> {
    let machine = Machine::cuda(&[architecture]);
    let Target::Cuda(tiles) = &machine.target else { unreachable!("made for a GPU") };
    lower::cuda::supports(config).map_err(Error::Unsupported)?;
    let graphs = lower::cuda::graphs(config, formats, tiles);
    let graphs: Vec<_> =
        graphs.iter().map(|it| compile::Graph { name: &it.name, text: &it.text }).collect();
    compile::keep(&graphs, &machine, model, options)
}
