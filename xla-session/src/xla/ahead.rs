//! Graphs compiled ahead of time, for machines that have no compiler.

use checkpoint::config::ModelConfig;

use super::target::{Machine, Target};
use super::{compile, iree};
use crate::emit::WeightFormats;
use crate::lower;
use crate::opening::SessionOptions;
use crate::{Error, Result};

/// Compiles every graph that a model takes on NVIDIA GPUs that run the code of
/// `architecture` ("sm_80", "sm_89"), into the cache in `options.cache_dir`; needs no GPU, and of
/// the model neither tokenizer nor weights. Returns the number of graphs.
///
/// A model that is opened with that folder, or a copy of it elsewhere, for the same `config` and
/// `formats`, then needs no compiler: without one it takes the newest of these architectures that
/// its GPU runs. `model` is the name under which the cache lists them.
///
/// # Errors
///
/// No `cache_dir`, no compiler, or an architecture that it does not know.
pub fn compile_ahead(
    config: &ModelConfig,
    formats: &WeightFormats,
    architecture: &str,
    model: &str,
    options: &SessionOptions,
) -> Result<usize> {
    if options.cache_dir.is_none() {
        return Err(Error::Unsupported(
            "graphs compiled ahead of time go to a cache folder".into(),
        ));
    }
    let target = architecture.parse().map_err(iree("choosing what to compile for"))?;
    let machine = Machine::cuda(&[target]);
    let Target::Cuda(tiles) = &machine.target else { unreachable!("made for a GPU") };
    lower::cuda::supports(config).map_err(Error::Unsupported)?;
    let graphs = lower::cuda::graphs(config, formats, tiles);
    let graphs: Vec<_> =
        graphs.iter().map(|it| compile::Graph { name: &it.name, text: &it.text }).collect();
    compile::keep(&graphs, &machine, model, options)
}
