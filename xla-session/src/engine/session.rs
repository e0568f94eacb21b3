//! An engine with one sequence, as the contract that all engines share.

use kernels::KV_BLOCK;

use super::{Engine, EngineOptions, Model, Output, Run, Sequence, Want};
use crate::pages;
use crate::{Capabilities, Error, InferenceSession, Profile, Result, Step};

/// One conversation with a model.
#[derive(Debug)]
pub struct EngineSession {
    engine: Engine,
    sequence: Sequence,
    capabilities: Capabilities,
    /// The row of the last step that has the last token; `None` where it is in none: before there is
    /// one, and after a step that failed or tokens that were forgotten.
    last: Option<usize>,
}

/// Rows whose logits are in memory at a time: 33 MB of a vocabulary of 128k tokens.
const LOGITS_PIECE: usize = 64;

impl EngineSession {
    /// A session of at most `context` tokens; `None` is as many as the model was opened for.
    ///
    /// # Errors
    ///
    /// As [`Engine::new`].
    pub fn new(model: &Model, context: Option<usize>) -> Result<Self> {
        // Where layers keep states, the cache knows those that a sequence can be cut at.
        let prefix_cache = model.state_bytes() > 0;
        let options = EngineOptions { context, prefix_cache, ..EngineOptions::default() };
        let engine = Engine::new(model, &options)?;
        let config = model.config();
        let (vocab_size, max) = (config.vocab_size, config.longest_context);
        let capabilities = Capabilities {
            suppressed: config.suppress_tokens.as_slice().into(),
            ..Capabilities::new("iree", model.device(), vocab_size, engine.context(), max)
        };
        let sequence = engine.sequence();
        Ok(Self { engine, sequence, capabilities, last: None })
    }

    /// Appends `tokens`, in steps of as many rows as the engine takes, and hands over what came of each.
    /// Where only the last row is wanted, it is that of the last step.
    fn append(&mut self, tokens: &[u32], want: Want, on_output: impl FnMut(Output)) -> Result<()> {
        self.append_by(self.engine.rows(), tokens, want, on_output)
    }

    /// As [`append`](Self::append), in steps of `most` rows at most.
    fn append_by(
        &mut self,
        most: usize,
        tokens: &[u32],
        want: Want,
        mut on_output: impl FnMut(Output),
    ) -> Result<()> {
        let held = self.sequence.len();
        // Before the first piece is run.
        self.capabilities.check(held, tokens)?;
        let before = self.before(tokens.len(), most);
        let of_each_row = want == Want::AllLogits;
        let mut left = tokens;
        while !left.is_empty() {
            let rows = match self.engine.has_states() {
                true => pages::piece(self.sequence.len(), most, left.len()),
                false => most.min(left.len()),
            };
            let piece;
            (piece, left) = left.split_at(rows);
            let want = if of_each_row || left.is_empty() { want } else { Want::Nothing };
            let run = Run { sequence: &mut self.sequence, tokens: piece, want };
            match self.engine.step(&mut [run]) {
                Ok(outputs) => {
                    self.last = Some(piece.len() - 1);
                    outputs.into_iter().for_each(&mut on_output);
                }
                Err(error) => {
                    self.go_back(before, held);
                    return Err(error);
                }
            }
        }
        Ok(())
    }
}

impl EngineSession {
    /// What can be gone back to when one of several steps fails, of `rows` rows at most for `tokens` tokens, where
    /// tokens at the end cannot be forgotten one by one.
    fn before(&self, tokens: usize, rows: usize) -> Option<Sequence> {
        let several = pages::piece(self.sequence.len(), rows, tokens) < tokens;
        (several && self.engine.has_states()).then(|| self.sequence.fork())
    }

    /// The session is as it was, of `held` tokens, but for the rows of its last step.
    fn go_back(&mut self, before: Option<Sequence>, held: usize) {
        match before {
            Some(before) => self.sequence = before,
            None => self.sequence.truncate(held),
        }
        self.last = None;
    }
}

impl InferenceSession for EngineSession {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn prefill(&mut self, tokens: &[u32]) -> Result<Step> {
        let mut step = Step::new(0);
        self.append(tokens, Want::Token, |output| {
            if let Output::Token(token) = output {
                step = Step::new(token);
            }
        })?;
        Ok(step)
    }

    fn decode_step(&mut self, token: u32) -> Result<Step> {
        self.prefill(&[token])
    }

    fn logits(&mut self, tokens: &[u32], logits: &mut Vec<f32>) -> Result<()> {
        self.append(tokens, Want::Logits, |output| {
            if let Output::Logits(made) = output {
                *logits = made;
            }
        })
    }

    fn all_logits(&mut self, tokens: &[u32], see: &mut dyn FnMut(&[f32])) -> Result<()> {
        let vocab_size = self.capabilities.vocab_size;
        let most = LOGITS_PIECE.min(self.engine.rows());
        self.append_by(most, tokens, Want::AllLogits, |output| {
            if let Output::AllLogits(logits) = output {
                logits.chunks_exact(vocab_size).for_each(&mut *see);
            }
        })
    }

    fn read_logits(&mut self, logits: &mut Vec<f32>) -> Result<()> {
        if let Some(row) = self.last {
            return self.engine.logits_of(row, logits);
        }
        let Some((&token, before)) = self.sequence.tokens().split_last() else {
            let message = "there are no logits before the first token has been run";
            return Err(Error::Unsupported(message.into()));
        };
        // The last token once more, in a copy of the sequence, which stays as it is, whatever happens.
        let mut copy = self.sequence.fork();
        copy.truncate(before.len());
        // With those before it that were forgotten too.
        let again = &self.sequence.tokens()[copy.len()..];
        debug_assert_eq!(again.last(), Some(&token));
        // A page at a time, whose place its equal takes: there may be no more.
        let rows = KV_BLOCK.min(self.engine.rows());
        let mut pieces = again.chunks(rows).peekable();
        while let Some(piece) = pieces.next() {
            let want = if pieces.peek().is_none() { Want::Logits } else { Want::Nothing };
            let run = Run { sequence: &mut copy, tokens: piece, want };
            if let Some(Output::Logits(made)) = self.engine.step(&mut [run])?.pop() {
                *logits = made;
            }
        }
        self.last = Some((again.len() - 1) % rows);
        Ok(())
    }

    fn position(&self) -> usize {
        self.sequence.len()
    }

    fn truncate(&mut self, tokens: usize) -> usize {
        let held = self.sequence.len();
        self.sequence.truncate(tokens);
        // Rows of the last step that stay can still be looked at.
        let dropped = held - self.sequence.len();
        self.last = self.last.and_then(|row| row.checked_sub(dropped));
        self.sequence.len()
    }

    fn reset(&mut self) {
        self.truncate(0);
    }

    fn take_profile(&mut self) -> Result<Profile> {
        self.engine.take_profile()
    }
}
