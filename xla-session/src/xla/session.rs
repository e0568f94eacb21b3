//! A session: graphs with their arguments in place, one KV cache, the tokens so far.

use std::collections::HashMap;

use iree_rt::{BufferView, Call, Device, Session};

use super::iree;
use super::kv_cache::{KvCache, Views};
use super::plan::{self, Chunk};
use super::weights::Weights;
use crate::config::ModelConfig;
use crate::emit::{Argument, Graph, Source};
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
        let device = device.clone();
        let tokens = Vec::new();
        Self { device, capabilities, config, programs, cache, tokens, cached: 0, logits: None }
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

    /// Appends `new` tokens to the context; a failure leaves it as it was.
    fn append(&mut self, new: &[u32]) -> Result<Step> {
        self.check(new)?;
        let held = self.tokens.len();
        let logits = self.logits.clone();
        let mut context = std::mem::take(&mut self.tokens);
        context.extend_from_slice(new);
        let result = self.advance(&context);
        if result.is_ok() {
            self.cached = context.len();
        } else {
            // What the call wrote may be NaN, which masking does not keep out of the arithmetic.
            self.cache.clear();
            self.cached = 0;
            self.logits = logits;
            context.truncate(held);
        }
        self.tokens = context;
        result
    }

    /// Runs what the cache lacks of `context`.
    fn advance(&mut self, context: &[u32]) -> Result<Step> {
        if self.cached + 1 == context.len() {
            return self.run(Chunk { start: self.cached, rows: 1 }, context);
        }
        // Chunks start at aligned positions: the few tokens since the last one run again.
        let mut step = Err(Error::EmptyPrompt);
        let chunks = plan::chunks(self.cached / plan::ALIGN * plan::ALIGN, context.len());
        // At once: growing with the chunks would copy the cache several times.
        if let Some(last) = chunks.last() {
            self.reserve(last.start + last.rows)?;
        }
        for chunk in chunks {
            step = Ok(self.run(chunk, context)?);
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
    /// one whose next token comes back.
    fn run(&mut self, chunk: Chunk, tokens: &[u32]) -> Result<Step> {
        let end = chunk.start + chunk.rows;
        self.reserve(end)?;
        let views = self.cache.views(end)?;
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
        self.append(tokens)
    }

    fn decode_step(&mut self, token: u32) -> Result<Step> {
        self.append(&[token])
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
        self.cached = 0;
        self.logits = None;
    }

    fn take_profile(&mut self) -> Result<Profile> {
        self.device.take_profile().map(Profile::from).map_err(iree("reading the profile"))
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
    /// Which arguments the position and the wanted row are.
    start: usize,
    last: usize,
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
                Source::Weight(spec) => call.set(i, weights.values(spec))?,
                Source::Scales(spec) => call.set(i, weights.scales(spec))?,
                Source::Tokens => call.set(i, &tokens)?,
                _ => {}
            }
        }
        let position = |source| {
            let at = graph.arguments.iter().position(|argument| argument.source == source);
            at.ok_or_else(|| {
                let code = iree_rt::Code::Internal;
                iree_rt::Error::new(code, format!("the graph {} lacks {source:?}", graph.name))
            })
        };
        Ok(Self {
            start: position(Source::Start)?,
            last: position(Source::Last)?,
            session,
            call,
            tokens,
            ids: Vec::with_capacity(graph.rows),
            arguments: graph.arguments,
            generation: 0,
        })
    }

    /// Runs `rows` at `start`; returns the token and the logits `[vocab_size]` of the last row.
    fn run(&mut self, views: &Views, start: usize, rows: &[u32]) -> Result<(i32, BufferView)> {
        self.ids.clear();
        self.ids.extend(rows.iter().map(|&token| token as i32));
        // Padding is masked, but it enters the arithmetic: a token that does so anyway.
        let padding = self.ids[rows.len() - 1];
        self.ids.resize(self.tokens.len(), padding);
        self.invoke(views, start, rows.len() - 1).map_err(iree("running the model"))
    }

    /// Puts the cache and the rope tables in place, where they are not.
    fn bind(&mut self, views: &Views) -> iree_rt::Result<()> {
        if self.generation == views.generation {
            return Ok(());
        }
        for (i, argument) in self.arguments.iter().enumerate() {
            match (&argument.source, &views.rope) {
                (Source::Keys(layer), _) => self.call.set(i, &views.layers[*layer][0])?,
                (Source::Values(layer), _) => self.call.set(i, &views.layers[*layer][1])?,
                (Source::RopeCos, Some([cos, _])) => self.call.set(i, cos)?,
                (Source::RopeSin, Some([_, sin])) => self.call.set(i, sin)?,
                _ => {}
            }
        }
        self.generation = views.generation;
        Ok(())
    }

    fn invoke(
        &mut self,
        views: &Views,
        start: usize,
        last: usize,
    ) -> iree_rt::Result<(i32, BufferView)> {
        self.tokens.write(0, &self.ids)?;
        self.bind(views)?;
        self.call.set(self.start, start as i32)?;
        self.call.set(self.last, last as i32)?;
        self.call.invoke(&mut self.session)?;
        let mut token = [0];
        self.call.output_view(0)?.read_into(&mut token)?;
        let logits = self.call.output_view(1)?;
        self.call.clear_outputs()?;
        Ok((token[0], logits))
    }
}
