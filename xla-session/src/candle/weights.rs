//! From a model folder to candle's tensors.

use std::collections::HashMap;

use candle_core::{DType, Device, Tensor};
use candle_nn::VarBuilder;
use checkpoint::Checkpoint;
use checkpoint::config::{Family, ModelConfig, TensorSpec};

use super::failure;
use crate::{Event, Result, SessionOptions};

/// Bytes that the model's tensors take in float32.
pub(super) fn bytes(config: &ModelConfig) -> u64 {
    let elements = |spec: TensorSpec| spec.shape.iter().product::<usize>() as u64;
    config.tensors().into_iter().map(elements).sum::<u64>() * size_of::<f32>() as u64
}

/// Reads every tensor of the model, widened to float32.
///
/// All of them are checked here, because candle panics when a tensor of a Llama layer is missing.
pub(super) fn load(
    checkpoint: &Checkpoint,
    config: &ModelConfig,
    options: &SessionOptions,
) -> Result<VarBuilder<'static>> {
    let total = checkpoint.check(config)?;
    let mut bytes = 0;
    let mut tensors = HashMap::new();
    for spec in config.tensors() {
        let stored = checkpoint.get(&spec)?;
        let values = Tensor::from_vec(stored.to_f32(), spec.shape, &Device::Cpu);
        tensors.insert(spec.name, values.map_err(failure)?);
        bytes += stored.bytes().len() as u64;
        options.notify(Event::Loading { bytes, total });
    }
    // candle knows no tied Mistral. The clone shares the matrix.
    if config.family == Family::Mistral && config.tie_word_embeddings {
        let embedding = tensors[&config.embedding().name].clone();
        tensors.insert("lm_head.weight".to_owned(), embedding);
    }
    Ok(VarBuilder::from_tensors(tensors, DType::F32, &Device::Cpu))
}
