//! Graphs compiled ahead of time, for machines that have no compiler.

use checkpoint::config::ModelConfig;
use iree_rt::cuda;

use super::target::{ANY_CPU, Machine, Target};
use super::{HEAD_ROWS, compile};
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
/// * "cpu", any: graphs only call the kernels, which the machine that runs them chooses. The models that
///   run there have the precision and KV cache of `options`, up to 128 threads;
/// * an architecture of NVIDIA's GPUs: "sm_80", "sm_89".
///
/// A model that is opened with that folder, or a copy of it elsewhere, for the same `config` and
/// `formats`, then needs no compiler: without one it takes what there is for CPUs, or the
/// best of these architectures that its GPU runs. `model` is the name under which the cache lists them.
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
    if target == ANY_CPU {
        return for_cpus(config, formats, model, options);
    }
    let architecture = target.parse().map_err(|source| Error::Iree {
        context: format!("choosing what to compile for, `{ANY_CPU}` or a GPU"),
        source,
    })?;
    for_gpus(config, formats, architecture, model, options)
}

fn for_cpus(
    config: &ModelConfig,
    formats: &WeightFormats,
    model: &str,
    options: &SessionOptions,
) -> Result<usize> {
    lower::cpu::supports(config, lower::cpu::most_rows(config), HEAD_ROWS)
        .map_err(Error::Unsupported)?;
    let texts = texts(config, formats, options);
    let graphs: Vec<_> = texts.iter().map(|text| compile::Graph { name: "model", text }).collect();
    // For whatever number of threads: that says how they are written, not how they are compiled.
    compile::keep(&graphs, &Machine::cpu(1, options), model, options)
}

/// Every graph that a CPU may take: machines with other numbers of threads cut products into other
/// pieces.
fn texts(config: &ModelConfig, formats: &WeightFormats, options: &SessionOptions) -> Vec<String> {
    let threads = (1..).map(|power| 1 << power).take_while(|&it| it <= MOST_THREADS);
    let text = |threads| {
        let machine = Machine::cpu(threads, options);
        let Target::Cpu(target) = &machine.target else { unreachable!("made for a CPU") };
        lower::cpu::program(config, formats, target, lower::cpu::most_rows(config), HEAD_ROWS).text
    };
    let mut texts: Vec<_> = threads.map(text).collect();
    texts.sort();
    texts.dedup();
    texts
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
    lower::paged::supports(config).map_err(Error::Unsupported)?;
    let graphs = lower::cuda::graphs(config, formats, tiles);
    let graphs: Vec<_> =
        graphs.iter().map(|it| compile::Graph { name: &it.name, text: &it.text }).collect();
    compile::keep(&graphs, &machine, model, options)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::emit::Format;

    #[test]
    fn every_number_of_threads_finds_its_graph() {
        let folder = tempfile::tempdir().unwrap();
        let shape = "../xtask/src/gpu_check/models/Llama-3.2-1B.json";
        let shape = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(shape);
        std::fs::copy(shape, folder.path().join("config.json")).unwrap();
        let config = ModelConfig::from_dir(folder.path()).unwrap();
        let (formats, options) = (WeightFormats::all(Format::Int4), SessionOptions::default());
        let all = texts(&config, &formats, &options);
        assert!(all.len() > 3, "{}", all.len());
        let graph = |threads| {
            let machine = Machine::cpu(threads, &options);
            let Target::Cpu(target) = &machine.target else { unreachable!("made for a CPU") };
            lower::cpu::program(
                &config,
                &formats,
                target,
                lower::cpu::most_rows(&config),
                HEAD_ROWS,
            )
            .text
        };
        for threads in [1, 2, 3, 8, 9, 31, 64, 100, 128] {
            assert!(all.contains(&graph(threads)), "{threads} threads");
        }
    }
}
