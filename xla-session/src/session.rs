//! The contract between an engine and whoever drives it: token ids in, token ids out.

use std::sync::Arc;

use crate::sample::suppress;
use crate::{Error, Profile, Result};

/// The answer to one forward pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Step {
    /// The most likely next token: argmax of the logits, the lowest id on ties, but none that is
    /// [suppressed](Capabilities::suppressed).
    pub token: u32,
}

impl Step {
    /// A step whose most likely next token is `token`.
    pub fn new(token: u32) -> Self {
        Self { token }
    }
}

/// What a session can do and how large it is.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Capabilities {
    /// The engine: "iree".
    pub engine: &'static str,
    /// Where it runs, as the engine names it: "local-task", "cuda://0", "cpu".
    pub device: String,
    /// Number of token ids; every token must be below it.
    pub vocab_size: usize,
    /// Most tokens that the session holds, prompt and answer together.
    pub context: usize,
    /// Tokens that the model can be opened for: the most that `context` could be.
    pub max_context: usize,
    /// Tokens that the model must not generate: whoever chooses of logits leaves them out.
    pub suppressed: Arc<[u32]>,
}

impl Capabilities {
    /// The capabilities of a session that suppresses no token.
    pub fn new(
        engine: &'static str,
        device: impl Into<String>,
        vocab_size: usize,
        context: usize,
        max_context: usize,
    ) -> Self {
        let device = device.into();
        let suppressed = Arc::default();
        Self { engine, device, vocab_size, context, max_context, suppressed }
    }

    /// Makes the logits of tokens that must not come minus infinity.
    pub(crate) fn suppress(&self, logits: &mut [f32]) {
        suppress(logits, &self.suppressed);
    }

    /// Whether `tokens` can follow `held` others.
    pub(crate) fn check(&self, held: usize, tokens: &[u32]) -> Result<()> {
        let Self { vocab_size, context, max_context: max, .. } = *self;
        let needed = held + tokens.len();
        if tokens.is_empty() {
            return Err(Error::EmptyPrompt);
        }
        if let Some(&token) = tokens.iter().find(|&&token| token as usize >= vocab_size) {
            return Err(Error::TokenOutOfRange { token, vocab_size });
        }
        if needed > context {
            return Err(Error::ContextFull { needed, context, max });
        }
        Ok(())
    }
}

/// One conversation with a model: it owns the KV cache, the caller owns the text.
///
/// A failed call leaves the session as it was before the call, so that it can be driven on.
pub trait InferenceSession: Send {
    /// What this session can do.
    fn capabilities(&self) -> &Capabilities;

    /// Appends `tokens` to the context and returns the token that follows the last of them.
    ///
    /// # Errors
    ///
    /// [`EmptyPrompt`](crate::Error::EmptyPrompt), [`TokenOutOfRange`](crate::Error::TokenOutOfRange),
    /// [`ContextFull`](crate::Error::ContextFull), or the engine's own failure.
    fn prefill(&mut self, tokens: &[u32]) -> Result<Step>;

    /// Appends one token to the context and returns the token that follows it.
    ///
    /// # Errors
    ///
    /// As [`prefill`](Self::prefill).
    fn decode_step(&mut self, token: u32) -> Result<Step>;

    /// Appends `tokens` to the context and copies the logits after the last of them, `[vocab_size]`,
    /// into `logits`: what a sampler needs, in one pass.
    ///
    /// # Errors
    ///
    /// As [`prefill`](Self::prefill), and [`read_logits`](Self::read_logits).
    fn logits(&mut self, tokens: &[u32], logits: &mut Vec<f32>) -> Result<()> {
        self.prefill(tokens)?;
        self.read_logits(logits)
    }

    /// Appends `tokens` to the context, and gives the logits after each of them, `[vocab_size]`, to
    /// `see` in turn: a text's perplexity, or how likely each token of a prompt was.
    ///
    /// # Errors
    ///
    /// As [`logits`](Self::logits); `see` may have seen some by then.
    fn all_logits(&mut self, tokens: &[u32], see: &mut dyn FnMut(&[f32])) -> Result<()> {
        let held = self.position();
        self.capabilities().check(held, tokens)?;
        let mut logits = Vec::new();
        for &token in tokens {
            match self.logits(&[token], &mut logits) {
                Ok(()) => see(&logits),
                Err(error) => {
                    self.truncate(held);
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Copies the logits after the last token of the context, `[vocab_size]`, into `logits` (cleared first). Where the last
    /// step no longer has them, as after a [`truncate`](Self::truncate), the engine may run that token again; the context
    /// stays as it is.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](crate::Error::Unsupported) when there is no token, or from an engine that runs none again; else the engine's own failure.
    fn read_logits(&mut self, logits: &mut Vec<f32>) -> Result<()>;

    /// Number of tokens in the context.
    fn position(&self) -> usize;

    /// Forgets all but the first `tokens` tokens of the context, if the engine can; else more, or everything.
    /// Returns how many it has then.
    fn truncate(&mut self, tokens: usize) -> usize {
        if tokens < self.position() {
            self.reset();
        }
        self.position()
    }

    /// Forgets the context; weights and compiled graphs stay.
    fn reset(&mut self);

    /// What has been run since the last look, or since the session was opened with
    /// [`SessionOptions::profile`](crate::SessionOptions::profile).
    ///
    /// # Errors
    ///
    /// [`Unsupported`](crate::Error::Unsupported) when it was opened without, or the engine's own
    /// failure.
    fn take_profile(&mut self) -> Result<Profile> {
        Err(Error::Unsupported("this session records no profile".into()))
    }
}
