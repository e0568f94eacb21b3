//! An engine with one sequence, as the contract that all engines share.

use super::{Engine, EngineOptions, Model, Output, Run, Sequence, Want};
use crate::{Capabilities, Error, InferenceSession, Profile, Result, Step};

/// One conversation with a model.
pub struct EngineSession {
    engine: Engine,
    sequence: Sequence,
    capabilities: Capabilities,
    /// The row of the last step that has the last token; `None` before there is one.
    last: Option<usize>,
}

/// Rows whose logits are in memory at a time: 33 MB of a vocabulary of 128k tokens.
const LOGITS_PIECE: usize = 64;

impl EngineSession {
    /// A session of at most `context` tokens; `None` is the model's `max_position_embeddings`.
    ///
    /// # Errors
    ///
    /// As [`Engine::new`].
    pub fn new(model: &Model, context: Option<usize>) -> Result<Self> {
        let options = EngineOptions { context, prefix_cache: false, ..EngineOptions::default() };
        let engine = Engine::new(model, &options)?;
        let config = model.config();
        let (vocab_size, max) = (config.vocab_size, config.max_position_embeddings);
        let capabilities =
            Capabilities::new("iree", model.device(), vocab_size, engine.context(), max);
        let sequence = engine.sequence();
        Ok(Self { engine, sequence, capabilities, last: None })
    }

    /// Appends `tokens`, in steps of as many rows as the engine takes.
    fn append(&mut self, tokens: &[u32], want: Want) -> Result<Output> {
        let held = self.sequence.len();
        // Before the first piece is run.
        self.capabilities.check(held, tokens)?;
        let mut rest = tokens;
        loop {
            let (piece, later) = rest.split_at(rest.len().min(self.engine.rows()));
            let want = if later.is_empty() { want } else { Want::Nothing };
            let run = Run { sequence: &mut self.sequence, tokens: piece, want };
            match self.engine.step(&mut [run]) {
                Ok(mut outputs) if later.is_empty() => {
                    self.last = Some(piece.len() - 1);
                    return Ok(outputs.pop().unwrap_or(Output::Nothing));
                }
                Ok(_) => rest = later,
                Err(error) => {
                    if self.sequence.len() > held {
                        self.sequence.truncate(held);
                        self.last = None;
                    }
                    return Err(error);
                }
            }
        }
    }
}

impl InferenceSession for EngineSession {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn prefill(&mut self, tokens: &[u32]) -> Result<Step> {
        match self.append(tokens, Want::Token)? {
            Output::Token(token) => Ok(Step::new(token)),
            _ => unreachable!("a token was wanted"),
        }
    }

    fn decode_step(&mut self, token: u32) -> Result<Step> {
        self.prefill(&[token])
    }

    fn logits(&mut self, tokens: &[u32], logits: &mut Vec<f32>) -> Result<()> {
        match self.append(tokens, Want::Logits)? {
            Output::Logits(made) => *logits = made,
            _ => unreachable!("logits were wanted"),
        }
        Ok(())
    }

    fn all_logits(&mut self, tokens: &[u32], see: &mut dyn FnMut(&[f32])) -> Result<()> {
        let held = self.sequence.len();
        self.capabilities.check(held, tokens)?;
        let vocab_size = self.capabilities.vocab_size;
        for piece in tokens.chunks(LOGITS_PIECE.min(self.engine.rows())) {
            match self.append(piece, Want::AllLogits) {
                Ok(Output::AllLogits(logits)) => {
                    logits.chunks_exact(vocab_size).for_each(&mut *see)
                }
                Ok(_) => unreachable!("all logits were wanted"),
                Err(error) => {
                    self.truncate(held);
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    fn read_logits(&mut self, logits: &mut Vec<f32>) -> Result<()> {
        let row = self.last.ok_or_else(|| {
            Error::Unsupported("there are no logits before the first token has been run".into())
        })?;
        self.engine.logits_of(row, logits)
    }

    fn position(&self) -> usize {
        self.sequence.len()
    }

    fn truncate(&mut self, tokens: usize) -> usize {
        if tokens < self.sequence.len() {
            self.sequence.truncate(tokens);
            self.last = None;
        }
        self.sequence.len()
    }

    fn reset(&mut self) {
        self.truncate(0);
    }

    fn take_profile(&mut self) -> Result<Profile> {
        self.engine.take_profile()
    }
}
