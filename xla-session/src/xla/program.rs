//! Programs: loaded graphs with their arguments in place, and the memory that their calls share.

use iree_rt::{
    Buffer, BufferView, Call, Device, ElementType, Fence, Memory, Pending, Session, Value,
};

use super::kv_cache::Views;
use super::weights::Weights;
use crate::emit::{Argument, Graph, Source};

/// A loaded graph whose weights are in place for every call.
pub(super) struct Program {
    session: Session,
    /// One for each of `capacities`, or one for all caches.
    functions: Vec<Function>,
    /// The one that takes the cache that is bound.
    current: usize,
    /// [`Graph::capacities`].
    capacities: Vec<usize>,
    arguments: Vec<Argument>,
    /// `[rows]` of i32: the tokens of calls that the host gives them; written before each.
    tokens: BufferView,
    ids: Vec<i32>,
    places: Places,
    /// [`Views::generation`] of the views that are set.
    generation: u64,
    /// Bytes of scratch memory that calls with these views need.
    scratch_bytes: usize,
}

/// A function of a graph.
struct Function {
    call: Call,
    /// Says how much scratch memory a call needs; `None` when the graph allocates for itself, or
    /// nothing.
    sizing: Option<Call>,
}

/// Which arguments differ from call to call.
struct Places {
    tokens: usize,
    position: Position,
    /// Of graphs that write their results where they are told: of the token and the logits.
    given: Option<[usize; 2]>,
    /// Of graphs that do so with what lies between.
    scratch: Option<usize>,
}

/// How a graph is told where a call starts.
enum Position {
    /// Two scalars, with the last row that is no padding.
    Scalars { start: usize, last: usize },
    /// In memory.
    Memory(usize),
}

/// What a call leaves.
pub(super) struct Answer {
    /// `[1]` of i32.
    pub token: BufferView,
    /// `[vocab_size]`
    pub logits: BufferView,
}

/// Where a call puts what it leaves.
#[derive(Clone, Copy)]
pub(super) struct At {
    /// The position of its first token.
    pub start: usize,
    /// Its last row that is no padding.
    pub last: usize,
    /// Which of [`Workspace`]'s answers it writes.
    pub slot: usize,
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
        let name = format!("model.{}", graph.name);
        let tokens = Buffer::allocate_in(device, graph.rows * size_of::<i32>(), Memory::Host)?
            .view(&[graph.rows], ElementType::I32)?;
        let place = |source| graph.arguments.iter().position(|argument| argument.source == source);
        let required = |source| {
            place(source).ok_or_else(|| {
                let code = iree_rt::Code::Internal;
                iree_rt::Error::new(code, format!("the graph {name} lacks an argument"))
            })
        };
        let places = Places {
            tokens: required(Source::Tokens)?,
            position: match place(Source::Position) {
                Some(position) => Position::Memory(position),
                None => Position::Scalars {
                    start: required(Source::Start)?,
                    last: required(Source::Last)?,
                },
            },
            given: place(Source::Result(0)).zip(place(Source::Result(1))).map(Into::into),
            scratch: place(Source::Scratch),
        };
        // What dispatches leave to each other is nobody else's, in whichever function.
        let kept = match place(Source::Kept).map(|i| graph.arguments[i].ty.bytes()) {
            Some(bytes) => Buffer::allocate(device, bytes)?.view(&[bytes], ElementType::I8)?.into(),
            None => Value::Null,
        };
        let load = |name: &str| -> iree_rt::Result<Function> {
            let mut call = session.prepare(&session.function(name)?)?;
            for (i, argument) in graph.arguments.iter().enumerate() {
                match &argument.source {
                    Source::Weight(spec) => call.set(i, weights.plane(spec, 0))?,
                    Source::Beside(spec, plane) => call.set(i, weights.plane(spec, *plane))?,
                    Source::Kept => call.set(i, kept.clone())?,
                    _ => {}
                }
            }
            // A function that needs no scratch memory has no such companion.
            let sizing = session.function(&format!("{name}_transients_size")).ok();
            let sizing = match sizing.filter(|_| places.scratch.is_some()) {
                Some(function) => {
                    let mut sizing = session.prepare(&function)?;
                    for i in 0..function.arguments().len() {
                        let argument = graph.arguments.get(i);
                        match argument.is_some_and(|argument| argument.source.is_scalar()) {
                            true => sizing.set(i, 0)?,
                            false => sizing.set(i, Value::Null)?,
                        }
                    }
                    Some(sizing)
                }
                None => None,
            };
            Ok(Function { call, sizing })
        };
        let functions = match &graph.capacities[..] {
            [] => vec![load(&name)?],
            capacities => capacities
                .iter()
                .map(|blocks| load(&format!("{name}_{blocks}")))
                .collect::<iree_rt::Result<_>>()?,
        };
        Ok(Self {
            session,
            functions,
            current: 0,
            capacities: graph.capacities,
            arguments: graph.arguments,
            tokens,
            ids: Vec::with_capacity(graph.rows),
            places,
            generation: 0,
            scratch_bytes: 0,
        })
    }

    /// The numbers of blocks of caches that it takes, fewest first; none when it takes any.
    pub fn capacities(&self) -> &[usize] {
        &self.capacities
    }

    /// Runs `rows`, of which there is at least one; those behind the last of them are padding.
    ///
    /// # Errors
    ///
    /// The device's.
    pub fn run(
        &mut self,
        memory: &mut Workspace,
        views: &Views,
        at: At,
        rows: &[u32],
    ) -> iree_rt::Result<Answer> {
        self.ids.clear();
        self.ids.extend(rows.iter().map(|&token| token as i32));
        // Padding is masked, but it enters the arithmetic: a token that does so anyway.
        let padding = self.ids[rows.len() - 1];
        self.ids.resize(self.tokens.len(), padding);
        // SAFETY: calls that are given this memory are those of this function, which waits for them.
        unsafe { self.tokens.buffer().write_unchecked(0, &self.ids)? };
        let tokens = self.tokens.clone();
        self.prepare(memory, views, at, &tokens)?;
        self.functions[self.current].call.invoke(&mut self.session)?;
        self.answer(memory, at)
    }

    /// Starts a call whose tokens are on the device: those that an earlier call will have left
    /// when `after` is reached. Graphs that allocate for themselves are done when it returns.
    ///
    /// # Errors
    ///
    /// The device's.
    pub fn start(
        &mut self,
        memory: &mut Workspace,
        views: &Views,
        at: At,
        tokens: &BufferView,
        after: Option<&Fence>,
    ) -> iree_rt::Result<(Answer, Option<Pending>)> {
        self.prepare(memory, views, at, tokens)?;
        let call = &mut self.functions[self.current].call;
        if self.places.given.is_none() {
            call.invoke(&mut self.session)?;
            return Ok((self.answer(memory, at)?, None));
        }
        let pending = call.invoke_async(&mut self.session, after)?;
        Ok((memory.answer(at.slot), Some(pending)))
    }

    fn answer(&mut self, memory: &Workspace, at: At) -> iree_rt::Result<Answer> {
        let call = &mut self.functions[self.current].call;
        let answer = match self.places.given {
            Some(_) => memory.answer(at.slot),
            None => {
                let [token, logits] = [call.outputs().view(0)?, call.outputs().view(1)?];
                Answer { token, logits }
            }
        };
        call.clear_outputs()?;
        Ok(answer)
    }

    fn prepare(
        &mut self,
        memory: &mut Workspace,
        views: &Views,
        at: At,
        tokens: &BufferView,
    ) -> iree_rt::Result<()> {
        self.bind(views)?;
        let call = &mut self.functions[self.current].call;
        call.set(self.places.tokens, tokens)?;
        match self.places.position {
            Position::Scalars { start, last } => {
                call.set(start, at.start as i32)?;
                call.set(last, at.last as i32)?;
            }
            Position::Memory(place) => call.set(place, views.position(at.start)?)?,
        }
        if let Some([token, logits]) = self.places.given {
            let answer = memory.answer(at.slot);
            call.set(token, answer.token)?;
            call.set(logits, answer.logits)?;
        }
        if let Some(scratch) = self.places.scratch {
            call.set(scratch, memory.scratch(self.scratch_bytes)?)?;
        }
        Ok(())
    }

    /// Lets go of the cache that was bound.
    fn unbind(&mut self) -> iree_rt::Result<()> {
        let Function { call, sizing } = &mut self.functions[self.current];
        for (i, argument) in self.arguments.iter().enumerate() {
            if let Source::Keys(_)
            | Source::Values(_)
            | Source::RopeCos
            | Source::RopeSin
            | Source::Position = argument.source
            {
                call.set(i, Value::Null)?;
                if let Some(sizing) = sizing {
                    sizing.set(i, Value::Null)?;
                }
            }
        }
        Ok(())
    }

    /// Puts the cache and the rope tables in place, where they are not.
    ///
    /// # Errors
    ///
    /// The device's.
    pub fn bind(&mut self, views: &Views) -> iree_rt::Result<()> {
        if self.generation == views.generation {
            return Ok(());
        }
        let fixed = !self.capacities.is_empty();
        if fixed {
            let current = self.capacities.iter().position(|&blocks| blocks == views.capacity);
            let current = current.ok_or_else(|| {
                let message = format!("no graph takes a KV cache of {} blocks", views.capacity);
                iree_rt::Error::new(iree_rt::Code::Internal, message)
            })?;
            if current != self.current {
                self.unbind()?;
                self.current = current;
            }
        }
        let layers = if fixed { &views.whole } else { &views.layers };
        let Function { call, sizing } = &mut self.functions[self.current];
        for (i, argument) in self.arguments.iter().enumerate() {
            let view = match (&argument.source, &views.rope) {
                (Source::Keys(layer), _) => &layers[*layer][0],
                (Source::Values(layer), _) => &layers[*layer][1],
                (Source::RopeCos, Some([cos, _])) => cos,
                (Source::RopeSin, Some([_, sin])) => sin,
                _ => continue,
            };
            call.set(i, view)?;
            if let Some(sizing) = sizing {
                sizing.set(i, view)?;
            }
        }
        if let Some(sizing) = sizing {
            sizing.invoke(&mut self.session)?;
            if let Value::I64(bytes) = sizing.outputs().get(0)? {
                self.scratch_bytes = usize::try_from(bytes).unwrap_or(0);
            }
        }
        self.generation = views.generation;
        Ok(())
    }
}

/// Memory that the calls of a session write, one after the other: what each step leaves, by turns,
/// and what lies between.
pub(super) struct Workspace {
    device: Device,
    /// Tokens and logits.
    answers: Vec<[BufferView; 2]>,
    /// `[bytes]` of i8; grows.
    scratch: Option<BufferView>,
}

impl Workspace {
    /// Room for `slots` answers at once.
    ///
    /// # Errors
    ///
    /// No memory.
    pub fn new(device: &Device, vocab_size: usize, slots: usize) -> iree_rt::Result<Self> {
        let answer = || -> iree_rt::Result<[BufferView; 2]> {
            // The host reads a token without asking the device, which may be at later steps.
            let token = Buffer::allocate_in(device, size_of::<i32>(), Memory::Host)?;
            let logits = Buffer::allocate(device, vocab_size * size_of::<f32>())?;
            Ok([token.view(&[1], ElementType::I32)?, logits.view(&[vocab_size], ElementType::F32)?])
        };
        let answers = (0..slots).map(|_| answer()).collect::<iree_rt::Result<_>>()?;
        Ok(Self { device: device.clone(), answers, scratch: None })
    }

    /// How many answers there is room for.
    pub fn slots(&self) -> usize {
        self.answers.len()
    }

    /// The answer in `slot`: the same memory each time.
    fn answer(&self, slot: usize) -> Answer {
        let [token, logits] = self.answers[slot].clone();
        Answer { token, logits }
    }

    fn scratch(&mut self, bytes: usize) -> iree_rt::Result<&BufferView> {
        let small = |scratch: &BufferView| scratch.len() < bytes;
        if self.scratch.as_ref().is_none_or(small) {
            // Calls in flight keep what they were given; nobody else needs it.
            self.scratch = None;
            let bytes = bytes.max(iree_rt::buffer::ALIGNMENT);
            let buffer = Buffer::allocate(&self.device, bytes)?;
            self.scratch = Some(buffer.view(&[bytes], ElementType::I8)?);
        }
        Ok(self.scratch.as_ref().expect("made just now"))
    }
}
