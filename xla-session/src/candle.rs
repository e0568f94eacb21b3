//! The second engine: `candle-transformers` on the CPU, in float32.
//!
//! It shares nothing with the compiled graphs but the contract and the reading of the model's
//! folder, and so doubles as an oracle for them.

mod model;
mod weights;

use std::path::Path;
use std::time::{Duration, Instant};

use candle_core::{Device, Tensor};
use checkpoint::Checkpoint;
use checkpoint::config::ModelConfig;

use crate::{
    Capabilities, Error, InferenceSession, Opened, Precision, Result, SessionOptions, Step,
};
use model::Model;

const ENGINE: &str = "candle";
const DEVICE: &str = "cpu";

/// Most tokens in one forward pass; bounds the score matrices of a long prompt.
const CHUNK: usize = 256;

/// Opens the model in `folder`. Weights are float32 whatever the precision asked for: candle does
/// its arithmetic in the type that it stores.
///
/// # Errors
///
/// [`Error::Unsupported`] for what candle-transformers does not implement, [`Error::Unknown`] for
/// a device other than "cpu", and those of reading the folder.
pub(crate) fn open(folder: &Path, options: &SessionOptions) -> Result<Opened> {
    if let Some(device) = options.device.as_deref().filter(|d| *d != DEVICE) {
        return Err(Error::Unknown { what: "device", value: device.into(), known: DEVICE.into() });
    }
    options.require_f32_cache("candle")?;
    let start = Instant::now();
    let mut config = ModelConfig::from_dir(folder)?;
    let checkpoint = Checkpoint::open(folder, options.load_mode)?;
    config.tie_word_embeddings = checkpoint.is_tied(&config)?;
    let max_context = config.max_position_embeddings;
    let context = options.context_of(&config)?;
    model::check_supported(&config)?;
    let threads = options.threads.map(thread_pool).transpose()?;
    let weights = weights::load(&checkpoint, &config, options)?;
    let weights_bytes = weights::bytes(&config);
    let model = Model::new(&config, context, weights).map_err(failure)?;
    let session = CandleSession {
        capabilities: Capabilities::new(ENGINE, DEVICE, config.vocab_size, context, max_context),
        model,
        threads,
        position: 0,
        logits: Vec::new(),
    };
    Ok(Opened {
        session: Box::new(session),
        model: None,
        precision: Precision::F32,
        weights: weights_bytes,
        load: start.elapsed(),
        compile: Duration::ZERO,
    })
}

fn thread_pool(threads: usize) -> Result<rayon::ThreadPool> {
    rayon::ThreadPoolBuilder::new().num_threads(threads).build().map_err(failure)
}

fn failure(error: impl std::fmt::Display) -> Error {
    Error::Engine { engine: ENGINE, message: error.to_string() }
}

struct CandleSession {
    capabilities: Capabilities,
    model: Model,
    /// Its own threads when a number was asked for, else the process's.
    threads: Option<rayon::ThreadPool>,
    position: usize,
    /// Of the last step, `[vocab_size]`; empty before the first.
    logits: Vec<f32>,
}

impl CandleSession {
    fn check(&self, tokens: &[u32]) -> Result<()> {
        let &Capabilities { vocab_size, context, max_context: max, .. } = &self.capabilities;
        if tokens.is_empty() {
            return Err(Error::EmptyPrompt);
        }
        if let Some(&token) = tokens.iter().find(|t| **t as usize >= vocab_size) {
            return Err(Error::TokenOutOfRange { token, vocab_size });
        }
        let needed = self.position + tokens.len();
        if needed > context {
            return Err(Error::ContextFull { needed, context, max });
        }
        Ok(())
    }

    /// Logits after `tokens`, `[vocab_size]`.
    fn forward(&mut self, tokens: &[u32]) -> candle_core::Result<Vec<f32>> {
        let Self { model, threads, position, .. } = self;
        let mut run = || {
            let mut position = *position;
            let mut logits = None;
            for chunk in tokens.chunks(CHUNK) {
                let input = Tensor::new(chunk, &Device::Cpu)?.unsqueeze(0)?;
                logits = Some(model.forward(&input, position)?);
                position += chunk.len();
            }
            logits.map_or_else(|| Ok(Vec::new()), |l| l.flatten_all()?.to_vec1())
        };
        match threads {
            Some(threads) => threads.install(run),
            None => run(),
        }
    }
}

impl InferenceSession for CandleSession {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn prefill(&mut self, tokens: &[u32]) -> Result<Step> {
        self.check(tokens)?;
        // candle never writes into a cached tensor, so a shallow copy is a snapshot.
        let before = self.model.clone();
        match self.forward(tokens) {
            Ok(logits) => {
                self.logits = logits;
                self.position += tokens.len();
                Ok(Step::new(argmax(&self.logits)))
            }
            Err(error) => {
                self.model = before;
                Err(failure(error))
            }
        }
    }

    fn decode_step(&mut self, token: u32) -> Result<Step> {
        self.prefill(&[token])
    }

    fn read_logits(&mut self, logits: &mut Vec<f32>) -> Result<()> {
        if self.logits.is_empty() {
            return Err(Error::Unsupported(
                "there are no logits before the first step: prefill a prompt first".into(),
            ));
        }
        logits.clear();
        logits.extend_from_slice(&self.logits);
        Ok(())
    }

    fn position(&self) -> usize {
        self.position
    }

    fn reset(&mut self) {
        self.model.clear();
        self.position = 0;
        self.logits.clear();
    }
}

/// Index of the largest value, the lowest on ties.
fn argmax(values: &[f32]) -> u32 {
    let mut best = 0;
    for (index, value) in values.iter().enumerate() {
        if *value > values[best] {
            best = index;
        }
    }
    best as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn argmax_takes_the_lowest_of_equals() {
        assert_eq!(argmax(&[-3.0, 1.0, 0.5, 1.0]), 1);
        assert_eq!(argmax(&[-3.0]), 0);
    }
}
