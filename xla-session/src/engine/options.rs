//! How an engine is made: its memory, and how long what is in it may be.

use kernels::KV_BLOCK;

use super::Model;
use crate::kv_share::KvShare;

/// How an [`Engine`](super::Engine) is made.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct EngineOptions {
    /// Bytes of the KV cache, states among them; `None` is room for one sequence of `context` tokens. On
    /// CPUs that is address space: memory is taken as pages are first used.
    pub kv_bytes: Option<u64>,
    /// Where layers keep [states](Model::state_bytes): how many. Each sequence has one, a step leaves one more of each
    /// that it runs, and those that are left over are kept of the ends of pages, where other sequences go on from.
    /// `None` is some for one sequence, or what a quarter of `kv_bytes` holds.
    pub states: Option<usize>,
    /// Most rows of a step, all runs together; `None` is as many as the model was opened for.
    pub rows: Option<usize>,
    /// Most tokens of a sequence; `None` is as many as the model was opened for.
    pub context: Option<usize>,
    /// Whether pages are found again by [`Engine::resume`](super::Engine::resume).
    pub prefix_cache: bool,
    /// Where full pages are kept for other processes; `None` is nowhere.
    pub share: Option<KvShare>,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            kv_bytes: None,
            states: None,
            rows: None,
            context: None,
            prefix_cache: true,
            share: None,
        }
    }
}

impl EngineOptions {
    /// With room for `sequences` sequences of `model`, of `tokens` tokens each, and for some states of others.
    #[must_use]
    pub fn with_room(mut self, model: &Model, sequences: usize, tokens: usize) -> Self {
        let pages = sequences * tokens.div_ceil(KV_BLOCK);
        let states = 3 * sequences;
        self.kv_bytes = Some((pages * model.page_bytes() + states * model.state_bytes()) as u64);
        self.states = Some(states);
        self
    }

    /// With room for 16 sequences of `model` of the whole context, but for no more than 2 GiB, where
    /// [`kv_bytes`](Self::kv_bytes) does not say another size.
    #[must_use]
    pub fn with_usual_room(self, model: &Model) -> Self {
        if self.kv_bytes.is_some() {
            return self;
        }
        let context = self.context.unwrap_or(model.config().max_position_embeddings);
        let room = self.clone().with_room(model, 16, context);
        if room.kv_bytes <= Some(USUAL_KV_BYTES) {
            return room;
        }
        Self { kv_bytes: Some(USUAL_KV_BYTES), ..self }
    }

    /// States of so many bytes.
    pub(super) fn count_of_states(&self, bytes: usize) -> usize {
        match (self.states, self.kv_bytes) {
            _ if bytes == 0 => 0,
            (Some(states), _) => states.max(LEAST_STATES),
            (None, None) => STATES,
            (None, Some(all)) => {
                let count = usize::try_from(all / 4 / bytes as u64).unwrap_or(usize::MAX);
                count.clamp(LEAST_STATES, MOST_STATES)
            }
        }
    }
}

/// Most that many sequences take for their keys and values where nobody says a size.
const USUAL_KV_BYTES: u64 = 2 << 30;

/// States of an engine for one sequence: its own, the one that a step leaves, and those of the ends of pages.
const STATES: usize = 8;

/// With fewer nothing runs.
const LEAST_STATES: usize = 2;

/// Most states where nobody says how many.
const MOST_STATES: usize = 256;
