//! A session: graphs with their arguments in place, one KV cache, the tokens so far.

use std::collections::{HashMap, VecDeque};
use std::ops::ControlFlow;

use checkpoint::config::ModelConfig;
use iree_rt::{Device, Pending};

use super::iree;
use super::kv_cache::{KvCache, Views};
use super::plan::{self, Chunk};
use super::program::{Answer, At, Program, Workspace};
use crate::emit::builder::TensorType;
use crate::{Capabilities, Error, InferenceSession, Profile, Result, Step};

/// A model on an IREE device; opened by [`Backend::Iree`](crate::Backend::Iree).
pub struct XlaInferenceSession {
    device: Device,
    capabilities: Capabilities,
    config: ModelConfig,
    /// By rows; 1 is the decode step.
    programs: HashMap<usize, Program>,
    cache: KvCache,
    /// The context.
    tokens: Vec<u32>,
    /// Tokens of it that the cache holds: all of them, but after a failed call.
    cached: usize,
    memory: Workspace,
    /// What the last step left, and where in `memory`.
    latest: Option<Answer>,
    slot: usize,
    /// Steps behind it that are in flight, as long as it decodes by itself; and after the caller has
    /// ended that, until the next call.
    flight: VecDeque<Started>,
    /// How many there are at most; with one, each step is waited for.
    ahead: usize,
}

impl XlaInferenceSession {
    /// `layer` are the keys and the values of a layer; the first extents are the numbers of blocks.
    pub(super) fn new(
        capabilities: Capabilities,
        config: ModelConfig,
        programs: HashMap<usize, Program>,
        layer: [TensorType; 2],
        device: &Device,
        ahead: usize,
    ) -> Result<Self> {
        let padding = programs.keys().copied().max().unwrap_or(1);
        let capacities = programs.values().map(Program::capacities).find(|it| !it.is_empty());
        let capacities = capacities.unwrap_or_default();
        let cache = KvCache::new(device, layer, capabilities.context, padding, capacities);
        // One answer stays beside those that are being written.
        let memory = Workspace::new(device, capabilities.vocab_size, ahead + 1)
            .map_err(iree("allocating memory for answers"))?;
        Ok(Self {
            device: device.clone(),
            capabilities,
            config,
            programs,
            cache,
            tokens: Vec::new(),
            cached: 0,
            memory,
            latest: None,
            slot: 0,
            flight: VecDeque::with_capacity(ahead),
            ahead,
        })
    }

    fn check(&self, tokens: &[u32]) -> Result<()> {
        let vocab_size = self.capabilities.vocab_size;
        if tokens.is_empty() {
            return Err(Error::EmptyPrompt);
        }
        if let Some(&token) = tokens.iter().find(|&&token| token as usize >= vocab_size) {
            return Err(Error::TokenOutOfRange { token, vocab_size });
        }
        self.check_room(tokens.len())
    }

    fn check_room(&self, more: usize) -> Result<()> {
        let Capabilities { context, max_context: max, .. } = self.capabilities;
        let needed = self.tokens.len() + more;
        if needed > context {
            return Err(Error::ContextFull { needed, context, max });
        }
        Ok(())
    }

    /// Appends `new` tokens to the context; a failure leaves it as it was.
    fn append(&mut self, new: &[u32]) -> Result<Step> {
        self.settle();
        self.check(new)?;
        let held = self.tokens.len();
        let mut context = std::mem::take(&mut self.tokens);
        context.extend_from_slice(new);
        let result = self.complete(&context);
        if result.is_err() {
            context.truncate(held);
        }
        self.tokens = context;
        result
    }

    /// Runs what the cache lacks of `context`; what that leaves is the last answer.
    fn complete(&mut self, context: &[u32]) -> Result<Step> {
        // Beside the last answer, which stays if this fails.
        let slot = self.next_slot();
        match self.advance(context, slot) {
            Ok((step, answer)) => {
                self.cached = context.len();
                (self.slot, self.latest) = (slot, Some(answer));
                Ok(step)
            }
            Err(error) => {
                self.forget_cache();
                Err(error)
            }
        }
    }

    /// What a call wrote may be NaN, which masking does not keep out of the arithmetic: the next
    /// one runs the whole context again.
    fn forget_cache(&mut self) {
        self.cache.clear();
        self.cached = 0;
    }

    /// The slot behind those of the last step and of the steps in flight.
    fn next_slot(&self) -> usize {
        (self.slot + 1 + self.flight.len()) % self.memory.slots()
    }

    /// Runs what the cache lacks of `context`.
    fn advance(&mut self, context: &[u32], slot: usize) -> Result<(Step, Answer)> {
        if self.cached + 1 == context.len() {
            return self.run(Chunk { start: self.cached, rows: 1 }, context, slot);
        }
        // Chunks start at aligned positions: the few tokens since the last one run again.
        let mut step = Err(Error::EmptyPrompt);
        let start = self.cached / plan::ALIGN * plan::ALIGN;
        let chunks = plan::chunks(start, context.len());
        // At once: growing with the chunks would copy the cache several times.
        if let Some(last) = chunks.last() {
            self.reserve(last.start + last.rows)?;
        }
        for chunk in chunks {
            step = Ok(self.run(chunk, context, slot)?);
        }
        step
    }

    /// Makes room for `tokens` tokens.
    fn reserve(&mut self, tokens: usize) -> Result<()> {
        if self.cache.reserve(&self.config, tokens)? {
            // Views of the memory that was outgrown would keep it.
            let views = self.cache.views(tokens)?;
            for program in self.programs.values_mut() {
                program.bind(views).map_err(iree("binding the KV cache"))?;
            }
            self.cache.take_over()?;
        }
        Ok(())
    }

    /// Runs the rows `chunk` of `tokens` (the whole context); the last row that is a token is the
    /// one whose next token comes back, with what the call left.
    fn run(&mut self, chunk: Chunk, tokens: &[u32], slot: usize) -> Result<(Step, Answer)> {
        let rows = &tokens[chunk.start..tokens.len().min(chunk.start + chunk.rows)];
        let (start, last) = (chunk.start, rows.len() - 1);
        let at = At { start, last, slot };
        let (program, memory, views) = self.program(chunk)?;
        let answer = program.run(memory, views, at, rows).map_err(iree(RUNNING))?;
        Ok((self.step(&answer, tokens.len() - 1)?, answer))
    }

    /// The program for `chunk`, and what it is given; makes room for what it appends.
    fn program(&mut self, chunk: Chunk) -> Result<(&mut Program, &mut Workspace, &Views)> {
        let end = chunk.start + chunk.rows;
        self.reserve(end)?;
        let views = self.cache.views(end)?;
        let program = self.programs.get_mut(&chunk.rows).ok_or_else(|| {
            Error::Unsupported(format!("no graph for {} tokens was compiled", chunk.rows))
        })?;
        Ok((program, &mut self.memory, views))
    }

    /// What a call that is done says comes after `position`.
    fn step(&self, answer: &Answer, position: usize) -> Result<Step> {
        let mut token = [0i32];
        answer.token.read_into(&mut token).map_err(iree("reading a token"))?;
        let vocab_size = self.capabilities.vocab_size;
        let token = u32::try_from(token[0]).ok().filter(|&token| (token as usize) < vocab_size);
        token.map(Step::new).ok_or_else(|| Error::Engine {
            engine: "iree",
            message: format!(
                "the logits at position {position} are not numbers: the weights hold NaN or \
                 infinities{}",
                if self.cache.rounds() {
                    ", or keys or values are too large for a KV cache in f16 (f32 holds them)"
                } else {
                    ""
                }
            ),
        })
    }

    /// Starts the step behind the last one in flight, on the token that it will leave.
    fn start(&mut self) -> Result<()> {
        let start = self.cached + self.flight.len();
        let at = At { start, last: 0, slot: self.next_slot() };
        let mut flight = std::mem::take(&mut self.flight);
        let (before, after) = match (flight.back(), &self.latest) {
            (Some(before), _) => (&before.answer, before.pending.as_ref().map(Pending::fence)),
            (None, Some(latest)) => (latest, None),
            (None, None) => unreachable!("decoding goes on after a step"),
        };
        let tokens = before.token.clone();
        let started =
            self.program(Chunk { start, rows: 1 }).and_then(|(program, memory, views)| {
                program.start(memory, views, at, &tokens, after).map_err(iree(RUNNING))
            });
        let started = started
            .map(|(answer, pending)| flight.push_back(Started { answer, pending, slot: at.slot }));
        self.flight = flight;
        started
    }

    /// Waits for a step that was started; it follows `position`.
    fn finish(&self, started: &mut Started, position: usize) -> Result<Step> {
        if let Some(pending) = &mut started.pending {
            pending.wait(None).map_err(iree(RUNNING))?;
        }
        self.step(&started.answer, position)
    }

    /// Decodes `most` steps from `token` on, which the last step left, several in flight.
    fn run_ahead(
        &mut self,
        mut token: u32,
        most: usize,
        on_step: &mut dyn FnMut(Step) -> ControlFlow<()>,
    ) -> Result<()> {
        for left in (1..=most).rev() {
            // Growing copies the cache: what is in flight comes first.
            let within = |it: &Self| it.cache.holds(it.cached + it.flight.len() + 1);
            while self.flight.len() < self.ahead.min(left)
                && (self.flight.is_empty() || within(self))
            {
                self.start()?;
            }
            let Some(mut started) = self.flight.pop_front() else { break };
            let step = self.finish(&mut started, self.tokens.len())?;
            self.tokens.push(token);
            self.cached = self.tokens.len();
            (self.slot, self.latest) = (started.slot, Some(started.answer));
            token = step.token;
            if on_step(step).is_break() {
                break;
            }
        }
        Ok(())
    }

    /// Waits for steps in flight that nobody will see: before the next call, or whoever ended an
    /// answer would wait. What they wrote to the cache is masked and written over, unless it is not
    /// a number.
    fn settle(&mut self) {
        while let Some(mut started) = self.flight.pop_front() {
            if self.finish(&mut started, self.tokens.len()).is_err() {
                self.forget_cache();
            }
        }
    }
}

/// What fails when a call does.
const RUNNING: &str = "running the model";

/// A step in flight.
struct Started {
    answer: Answer,
    /// `None` when it is done.
    pending: Option<Pending>,
    slot: usize,
}

impl InferenceSession for XlaInferenceSession {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn prefill(&mut self, tokens: &[u32]) -> Result<Step> {
        self.append(tokens)
    }

    fn decode_step(&mut self, token: u32) -> Result<Step> {
        self.append(&[token])
    }

    fn decode_greedy(
        &mut self,
        token: u32,
        most: usize,
        on_step: &mut dyn FnMut(Step) -> ControlFlow<()>,
    ) -> Result<()> {
        self.check_room(most)?;
        let mut token = token;
        for left in (0..most).rev() {
            token = self.append(&[token])?.token;
            if on_step(Step::new(token)).is_break() {
                break;
            }
            if self.ahead > 1 {
                let result = self.run_ahead(token, left, on_step);
                if result.is_err() {
                    self.settle();
                    self.forget_cache();
                }
                return result;
            }
        }
        Ok(())
    }

    fn read_logits(&mut self, logits: &mut Vec<f32>) -> Result<()> {
        let answer = self.latest.as_ref().ok_or_else(|| {
            Error::Unsupported("there are no logits before the first token has been run".into())
        })?;
        logits.clear();
        logits.resize(answer.logits.len(), 0.0);
        answer.logits.read_into(logits).map_err(iree("reading logits"))
    }

    fn position(&self) -> usize {
        self.tokens.len()
    }

    fn reset(&mut self) {
        self.settle();
        self.tokens.clear();
        self.cached = 0;
        self.latest = None;
    }

    fn take_profile(&mut self) -> Result<Profile> {
        self.settle();
        self.device.take_profile().map(Profile::from).map_err(iree("reading the profile"))
    }
}
