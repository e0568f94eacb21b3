//! A session: graphs with their arguments in place, one KV cache, the tokens so far.

use std::collections::HashMap;

use iree_rt::{BufferView, Call, Device, Session};

use super::iree;
use super::kv_cache::{KvCache, Views};
use super::plan::{self, Chunk};
use super::weights::Weights;
use crate::config::ModelConfig;
use crate::emit::{Argument, Graph, Source};
use crate::{Capabilities, Error, InferenceSession, Result, Step};

/// A model on an IREE device; opened by [`Backend::Iree`](crate::Backend::Iree).
pub struct XlaInferenceSession {
    capabilities: Capabilities,
    config: ModelConfig,
    /// By rows; 1 is the decode step.
    programs: HashMap<usize, Program>,
    cache: KvCache,
    /// The context.
    tokens: Vec<u32>,
    /// Logits of the last step, `[vocab_size]`.
    logits: Option<BufferView>,
}

impl XlaInferenceSession {
    pub(super) fn new(
        capabilities: Capabilities,
        config: ModelConfig,
        programs: HashMap<usize, Program>,
        device: &Device,
    ) -> Self {
        let padding = programs.keys().copied().max().unwrap_or(1);
        let cache = KvCache::new(device, &config, capabilities.context, padding);
        Self { capabilities, config, programs, cache, tokens: Vec::new(), logits: None }
    }

    fn check(&self, tokens: &[u32]) -> Result<()> {
        let Capabilities { vocab_size, context, max_context, .. } = self.capabilities;
        if tokens.is_empty() {
            return Err(Error::EmptyPrompt);
        }
        if let Some(&token) = tokens.iter().find(|&&token| token as usize >= vocab_size) {
            return Err(Error::TokenOutOfRange { token, vocab_size });
        }
        let needed = self.tokens.len() + tokens.len();
        if needed > context {
            return Err(Error::ContextFull { needed, context, max: max_context });
        }
        Ok(())
    }

    /// Runs the rows `chunk` of `tokens` (the whole context); the last row that is a token is the
    /// one whose next token comes back.
    fn run(&mut self, chunk: Chunk, tokens: &[u32]) -> Result<Step> {
        let end = chunk.start + chunk.rows;
        let views = self.cache.views(&self.config, end)?;
        let program = self.programs.get_mut(&chunk.rows).ok_or_else(|| {
            Error::Unsupported(format!("no graph for {} tokens was compiled", chunk.rows))
        })?;
        let rows = &tokens[chunk.start..tokens.len().min(end)];
        let (token, logits) = program.run(views, chunk.start, rows)?;
        let vocab_size = self.capabilities.vocab_size;
        let token = u32::try_from(token).ok().filter(|&token| (token as usize) < vocab_size);
        let token = token.ok_or_else(|| Error::Engine {
            engine: "iree",
            message: format!(
                "the logits at position {} are not numbers: the weights hold NaN or infinities",
                tokens.len() - 1
            ),
        })?;
        self.logits = Some(logits);
        Ok(Step::new(token))
    }
}

impl InferenceSession for XlaInferenceSession {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn prefill(&mut self, tokens: &[u32]) -> Result<Step> {
        self.check(tokens)?;
        if let [token] = *tokens {
            return self.decode_step(token);
        }
        let held = self.tokens.len();
        let mut context = std::mem::take(&mut self.tokens);
        context.extend_from_slice(tokens);
        // Chunks start at aligned positions: the few tokens since the last one run again.
        let mut step = Err(Error::EmptyPrompt);
        for chunk in plan::chunks(held / plan::ALIGN * plan::ALIGN, context.len()) {
            step = self.run(chunk, &context);
            if step.is_err() {
                context.truncate(held);
                break;
            }
        }
        self.tokens = context;
        step
    }

    fn decode_step(&mut self, token: u32) -> Result<Step> {
        self.check(&[token])?;
        let mut context = std::mem::take(&mut self.tokens);
        context.push(token);
        let step = self.run(Chunk { start: context.len() - 1, rows: 1 }, &context);
        if step.is_err() {
            context.pop();
        }
        self.tokens = context;
        step
    }

    fn read_logits(&mut self, logits: &mut Vec<f32>) -> Result<()> {
        let view = self.logits.as_ref().ok_or_else(|| {
            Error::Unsupported("there are no logits before the first token has been run".into())
        })?;
        logits.clear();
        logits.resize(view.len(), 0.0);
        view.read_into(logits).map_err(iree("reading logits"))
    }

    fn position(&self) -> usize {
        self.tokens.len()
    }

    fn reset(&mut self) {
        self.tokens.clear();
        self.logits = None;
    }
}

/// A loaded graph whose weights are in place for every call.
pub(super) struct Program {
    session: Session,
    call: Call,
    arguments: Vec<Argument>,
    /// `[rows]` of i32; written before each call.
    tokens: BufferView,
    ids: Vec<i32>,
    /// [`Views::generation`] of the views that are set.
    generation: u64,
}

impl Program {
    /// Loads `graph` from its compiled module.
    pub fn new(
        device: &Device,
        graph: Graph,
        module: iree_rt::Module,
        weights: &Weights,
    ) -> iree_rt::Result<Self> {
        let session = Session::builder(device).module(module).build()?;
        let function = session.function(&format!("model.{}", graph.name))?;
        let mut call = session.prepare(&function)?;
        let tokens = BufferView::new(device, &[graph.rows], &vec![0i32; graph.rows])?;
        for (i, argument) in graph.arguments.iter().enumerate() {
            match &argument.source {
                Source::Weight(spec) => call.set(i, &weights[spec])?,
                Source::Tokens => call.set(i, &tokens)?,
                _ => {}
            }
        }
        let ids = Vec::with_capacity(graph.rows);
        Ok(Self { session, call, arguments: graph.arguments, tokens, ids, generation: 0 })
    }

    /// Runs `rows` at `start`; returns the token and the logits `[vocab_size]` of the last row.
    fn run(&mut self, views: &Views, start: usize, rows: &[u32]) -> Result<(i32, BufferView)> {
        self.ids.clear();
        self.ids.extend(rows.iter().map(|&token| token as i32));
        self.ids.resize(self.tokens.len(), 0);
        self.invoke(views, start, rows.len() - 1).map_err(iree("running the model"))
    }

    fn invoke(
        &mut self,
        views: &Views,
        start: usize,
        last: usize,
    ) -> iree_rt::Result<(i32, BufferView)> {
        self.tokens.write(0, &self.ids)?;
        let moved = self.generation != views.generation;
        for (i, argument) in self.arguments.iter().enumerate() {
            match (&argument.source, &views.rope) {
                (Source::Start, _) => self.call.set(i, start as i32)?,
                (Source::Last, _) => self.call.set(i, last as i32)?,
                (Source::Keys(layer), _) if moved => self.call.set(i, &views.layers[*layer][0])?,
                (Source::Values(layer), _) if moved => {
                    self.call.set(i, &views.layers[*layer][1])?;
                }
                (Source::RopeCos, Some([cos, _])) if moved => self.call.set(i, cos)?,
                (Source::RopeSin, Some([_, sin])) if moved => self.call.set(i, sin)?,
                _ => {}
            }
        }
        self.generation = views.generation;
        self.call.invoke(&mut self.session)?;
        let mut token = [0];
        self.call.output_view(0)?.read_into(&mut token)?;
        let logits = self.call.output_view(1)?;
        self.call.clear_outputs()?;
        Ok((token[0], logits))
    }
}
