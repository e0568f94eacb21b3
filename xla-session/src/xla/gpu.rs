//! Steps on GPUs: graphs over pages, whoever wrote them.

use std::ops::Range;

use checkpoint::config::ModelConfig;
use iree_rt::{
    Buffer, BufferView, Call, Code, Device, ElementType, Memory, Module, NativeModule, Pending,
    Session,
};
use kernels::{KV_BLOCK, KvFormat};

use super::calls::{APART, MOST_ROWS, calls};
use super::pages::Pages;
use super::rope::Angles;
use super::weights::Weights;
use super::{RUNNING, element_type, iree, tokens_of};
use crate::cache::Key;
use crate::engine::{Batch, Entry, Executor, Loaded};
use crate::lower::paged::{Argument, Graph, HIDDEN_ROWS, Inputs, Source};
use crate::pages::PageCopy;
use crate::{Error, Profile, Result};

/// A model on a GPU.
pub(super) struct GpuModel {
    pub device: Device,
    pub config: ModelConfig,
    /// Steps of rising numbers of rows, each with its module; then those of prompts, likewise.
    pub steps: Vec<(Graph, Module)>,
    /// Heads, likewise.
    pub heads: Vec<(Graph, Module)>,
    /// Most pages that a graph counts with.
    pub most_pages: usize,
    pub weights: Weights,
    pub page_identity: Option<Key>,
}

impl GpuModel {
    /// A model with its graphs, each with its module: steps are told from heads by what they take.
    pub fn new(
        device: Device,
        config: ModelConfig,
        graphs: Vec<(Graph, Module)>,
        weights: Weights,
        page_identity: Option<Key>,
        most_pages: usize,
    ) -> Self {
        let is_head = |graph: &Graph| graph.arguments.iter().any(|it| it.source == Source::Wanted);
        let (heads, steps) = graphs.into_iter().partition(|(graph, _)| is_head(graph));
        Self { device, config, steps, heads, most_pages, weights, page_identity }
    }

    /// Bytes of what dispatches leave to later ones, in the graph that leaves most.
    fn kept_bytes(&self) -> usize {
        let graphs = self.steps.iter().chain(&self.heads);
        let arguments = graphs.flat_map(|(graph, _)| &graph.arguments);
        let kept = arguments.filter(|it| it.source == Source::Kept).map(|it| it.ty.bytes());
        kept.max().unwrap_or(1)
    }

    /// Of each layer, bytes of a page.
    fn layer_pages(&self) -> impl Iterator<Item = usize> {
        let layers = self.config.architecture.layers.iter();
        layers.map(|layer| 2 * layer.mixer.key_width() * KV_BLOCK * size_of::<f32>())
    }
}

impl Loaded for GpuModel {
    fn config(&self) -> &ModelConfig {
        &self.config
    }

    fn device(&self) -> String {
        self.device.uri().to_owned()
    }

    fn most_rows(&self) -> usize {
        let prompts = self.steps.iter().filter(|(graph, _)| graph.of_prompt);
        prompts.map(|(graph, _)| graph.rows).fold(MOST_ROWS, usize::max)
    }

    fn has_hidden(&self) -> bool {
        false
    }

    fn page_bytes(&self) -> usize {
        self.layer_pages().sum()
    }

    fn state_bytes(&self) -> usize {
        0
    }

    fn page_identity(&self) -> Option<Key> {
        self.page_identity.clone()
    }

    fn executor(&self, pages: usize, _: usize) -> Result<Box<dyn Executor>> {
        let context = format!(
            "making room for {pages} pages of the KV cache (a smaller context takes fewer)"
        );
        // One more, which belongs to nobody: rows that are padding are written there.
        let all = pages + 1;
        if all > self.most_pages {
            return Err(Error::Unsupported(format!(
                "{pages} pages of 64 tokens: {} takes {} at most, as a layer's pages are one buffer; ask \
                 for less context, or less memory of the KV cache",
                self.device.uri(),
                self.most_pages - 1
            )));
        }
        // What dispatches leave to later ones is some hundred MB of a mixture.
        let bytes = (all * self.page_bytes() + self.kept_bytes()) as u64;
        self.device.check_fits(bytes).map_err(iree(context.as_str()))?;
        let layer = |bytes| Pages::allocate(&self.device, all, bytes);
        let cache = self.layer_pages().map(layer).collect::<iree_rt::Result<_>>();
        let cache = cache.map_err(iree(context.as_str()))?;
        let executor = GpuExecutor::new(self, cache, pages);
        Ok(Box::new(executor.map_err(iree("loading the compiled graphs"))?))
    }
}

/// Loaded graphs, their memory and their pages.
struct GpuExecutor {
    device: Device,
    config: ModelConfig,
    /// By rising numbers of rows; then those of prompts, likewise.
    steps: Vec<Step>,
    /// By rising numbers of rows.
    heads: Vec<Program>,
    /// Inputs of a step, in the device's memory.
    inputs: Buffer,
    staged: Vec<u8>,
    /// `[HIDDEN_ROWS, hidden_size]`
    hidden: BufferView,
    /// `[rows]` of the largest head, in memory of the host that the device sees.
    wanted: Buffer,
    picked: Buffer,
    /// `[rows, vocab_size]` of the largest head.
    logits: Buffer,
    cache: Vec<Pages>,
    /// The page of padding.
    nobodys: usize,
    angles: Angles,
    /// Where in `hidden` each row of the last step is.
    places: Vec<usize>,
    /// The last call of the step in flight.
    pending: Option<Pending>,
}

/// A graph with its weights and memory in place.
struct Program {
    rows: usize,
    session: Session,
    call: Call,
}

/// The graph of a step.
struct Step {
    program: Program,
    inputs: Inputs,
    of_prompt: bool,
    /// Where it takes the memory for the rows that it makes.
    hidden: usize,
    /// Where it takes the number of pages in use, if that is not in memory.
    used: Option<usize>,
}

/// What all calls share.
struct Shared<'a> {
    model: &'a GpuModel,
    cache: &'a [Pages],
    /// How many there are.
    pages: usize,
    /// What lies between: one call runs at a time.
    kept: Buffer,
    inputs: &'a Buffer,
    hidden: &'a BufferView,
    wanted: &'a Buffer,
    picked: &'a Buffer,
    logits: &'a Buffer,
}

impl Shared<'_> {
    fn load(
        &self,
        graph: &Graph,
        module: &Module,
        inputs: Option<&Inputs>,
    ) -> iree_rt::Result<Program> {
        let pages = self.pages as i64;
        let engine = NativeModule::new("engine").function("pages", move |()| Ok(pages));
        let session =
            Session::builder(&self.model.device).native(engine).module(module.clone()).build()?;
        let mut call = session.prepare(&session.function(&format!("model.{}", graph.name))?)?;
        for (at, argument) in graph.arguments.iter().enumerate() {
            let (source, ty) = (&argument.source, &argument.ty);
            let view = |buffer: &Buffer, start: usize| {
                let part = buffer.subspan(start..start + ty.bytes())?;
                part.view(&ty.dims, element_type(ty.element))
            };
            if ty.dims.is_empty() {
                // A number, which is set before each call.
                continue;
            }
            let value = match source {
                Source::Weight(spec, plane) => self.model.weights.plane(spec, *plane).clone(),
                Source::Cache(layer) => {
                    let pages = &self.cache[*layer].buffer;
                    pages.view(&[pages.byte_len()], ElementType::I8)?
                }
                Source::Kept => view(&self.kept, 0)?,
                Source::Wanted => view(self.wanted, 0)?,
                Source::Picked => view(self.picked, 0)?,
                Source::Logits => view(self.logits, 0)?,
                // Of a step it is set before each call.
                Source::Hidden => self.hidden.clone(),
                input => {
                    let places = inputs.map_or(&[][..], |inputs| &inputs.places);
                    let place = places.iter().find(|(it, ..)| it == input).ok_or_else(|| {
                        let message = format!("{} takes {input:?}", graph.name);
                        iree_rt::Error::new(iree_rt::Code::Internal, message)
                    })?;
                    view(self.inputs, place.2)?
                }
            };
            call.set(at, value)?;
        }
        Ok(Program { rows: graph.rows, session, call })
    }
}

impl GpuExecutor {
    fn new(model: &GpuModel, cache: Vec<Pages>, pages: usize) -> iree_rt::Result<Self> {
        let (device, config) = (&model.device, &model.config);
        let (steps, heads) = (&model.steps, &model.heads);
        let layout = |(graph, _): &(Graph, Module)| {
            let sequences = if graph.of_prompt { 1 } else { graph.rows };
            Inputs::new(config, graph.rows, sequences)
        };
        let layouts: Vec<_> = steps.iter().map(layout).collect();
        let most = layouts.iter().map(|inputs| inputs.bytes).max().unwrap_or(0);
        let inputs = Buffer::allocate(device, most)?;
        let shape = [HIDDEN_ROWS, config.hidden_size];
        let hidden = Buffer::allocate(device, HIDDEN_ROWS * config.hidden_size * size_of::<f32>())?
            .view(&shape, ElementType::F32)?;
        let rows = heads.last().map_or(1, |(graph, _)| graph.rows);
        let numbers = || Buffer::allocate_in(device, rows * size_of::<i32>(), Memory::Host);
        let (wanted, picked) = (numbers()?, numbers()?);
        let logits = Buffer::allocate(device, rows * config.vocab_size * size_of::<f32>())?;
        let shared = Shared {
            model,
            cache: &cache,
            pages: pages + 1,
            kept: Buffer::allocate(device, model.kept_bytes())?,
            inputs: &inputs,
            hidden: &hidden,
            wanted: &wanted,
            picked: &picked,
            logits: &logits,
        };
        let step = |((graph, module), inputs): (&(Graph, Module), Inputs)| {
            let program = shared.load(graph, module, Some(&inputs))?;
            let of_hidden = |it: &Argument| it.source == Source::Hidden;
            let hidden = graph.arguments.iter().position(of_hidden).expect("what a step makes");
            let of_used = |it: &Argument| it.source == Source::Used && it.ty.dims.is_empty();
            let used = graph.arguments.iter().position(of_used);
            Ok(Step { program, inputs, of_prompt: graph.of_prompt, hidden, used })
        };
        let steps = steps.iter().zip(layouts).map(step).collect::<iree_rt::Result<_>>()?;
        let head = |(graph, module): &(Graph, Module)| shared.load(graph, module, None);
        let heads = heads.iter().map(head).collect::<iree_rt::Result<_>>()?;
        Ok(Self {
            device: device.clone(),
            config: config.clone(),
            steps,
            heads,
            inputs,
            staged: Vec::new(),
            hidden,
            wanted,
            picked,
            logits,
            cache,
            nobodys: pages,
            angles: Angles::new(&model.config),
            places: Vec::new(),
            pending: None,
        })
    }

    /// Starts a call of step `which` for `rows` of `batch`, which it leaves at `place` of the hidden rows.
    fn start(
        &mut self,
        batch: &Batch,
        rows: Range<usize>,
        which: usize,
        place: usize,
    ) -> iree_rt::Result<Pending> {
        let pages = self.stage(batch, rows, which);
        // SAFETY: no call is in flight that was given this memory: `run` waits for each before the next.
        unsafe { self.inputs.write_unchecked(0, &self.staged)? };
        let width = self.config.hidden_size;
        let row = width * size_of::<f32>();
        let Step { program: Program { rows, session, call }, hidden, used, .. } =
            &mut self.steps[which];
        let end = place + *rows;
        let memory = self.hidden.buffer().subspan(place * row..end * row)?;
        call.set(*hidden, memory.view(&[*rows, width], ElementType::F32)?)?;
        if let Some(used) = used {
            call.set(*used, pages)?;
        }
        call.invoke_async(session, None)
    }

    /// Collects the inputs of such a call; returns how many pages its longest sequence has in use.
    fn stage(&mut self, batch: &Batch, rows: Range<usize>, which: usize) -> i32 {
        let most = self.steps[which].program.rows;
        let padded = |values: &mut dyn Iterator<Item = usize>, padding: usize| -> Vec<i32> {
            let mut all: Vec<_> = values.map(|value| value as i32).collect();
            all.resize(most, padding as i32);
            all
        };
        let tokens = batch.tokens[rows.clone()].iter().map(|&token| token as usize);
        let tokens = padded(&mut { tokens }, 0);
        let mut at = batch.positions[rows.clone()].to_vec();
        let used = at.iter().max().map_or(1, |last| last / KV_BLOCK + 1) as i32;
        // Rows of a prompt see what its last one does, and no more.
        let padding = if self.steps[which].of_prompt { at.last().copied() } else { None };
        at.resize(most, padding.unwrap_or(0));
        let positions = padded(&mut at.iter().copied(), 0);
        let slots = padded(&mut batch.slots[rows.clone()].iter().copied(), self.nobodys * KV_BLOCK);
        let (mut tables, mut pages) = (Vec::new(), Vec::new());
        for &Entry { row, rows: of, start, table, .. } in &batch.entries {
            let these = row.max(rows.start)..(row + of).min(rows.end);
            if let Some(last) = these.clone().next_back() {
                tables.extend(these.map(|_| pages.len()));
                let needed = (start + last - row) / KV_BLOCK + 1;
                pages.extend(batch.tables[table..table + needed].iter().map(|&page| page as i32));
            }
        }
        let tables = padded(&mut tables.into_iter(), 0);
        let angles = self.angles.of(&at);
        self.staged.clear();
        for (source, _, at) in &self.steps[which].inputs.places {
            let bytes: &[u8] = match source {
                Source::Tokens => bytemuck::cast_slice(&tokens),
                Source::Positions => bytemuck::cast_slice(&positions),
                Source::Slots => bytemuck::cast_slice(&slots),
                Source::Tables => bytemuck::cast_slice(&tables),
                Source::Used => bytemuck::bytes_of(&used),
                Source::Cos(rope) => bytemuck::cast_slice(&angles[*rope][0]),
                Source::Sin(rope) => bytemuck::cast_slice(&angles[*rope][1]),
                _ => bytemuck::cast_slice(&pages),
            };
            self.staged.resize(*at, 0);
            self.staged.extend(bytes);
        }
        used
    }

    /// Most rows of a head.
    fn most_wanted(&self) -> usize {
        self.heads.last().map_or(1, |head| head.rows)
    }

    /// Runs a head for rows of the last step, as many as it takes at most; returns their most likely
    /// tokens.
    fn head(&mut self, rows: &[usize]) -> Result<Vec<u32>> {
        let which = self.heads.iter().position(|head| head.rows >= rows.len()).unwrap_or(0);
        let mut wanted: Vec<_> = rows.iter().map(|&row| self.places[row] as i32).collect();
        wanted.resize(self.heads[which].rows, wanted[0]);
        // SAFETY: the only calls that read this are heads, and each is waited for below.
        let written = unsafe { self.wanted.write_unchecked(0, &wanted) };
        let after = self.pending.as_ref().map(Pending::fence);
        let Program { session, call, .. } = &mut self.heads[which];
        let started = written.and_then(|()| call.invoke_async(session, after));
        let done = started.and_then(|mut head| head.wait(None));
        // The step is done too, or has failed before the head did.
        let step = self.finish();
        step.and(done.map(drop).map_err(running))?;
        let mut picked = vec![0i32; rows.len()];
        let read = self.picked.read_into(0, bytemuck::cast_slice_mut(&mut picked));
        read.map_err(iree("reading tokens"))?;
        tokens_of(&picked, rows, &self.config, KvFormat::F32)
    }
}

/// What happened to a step, in one sentence where it may happen to any: IREE's code for a device that is
/// lost is that of data.
fn running(error: iree_rt::Error) -> Error {
    let message = match error.code() {
        Code::DataLoss => {
            "the device was lost: its driver was reset, or it was taken away; open the model again"
        }
        Code::ResourceExhausted => {
            "the device has no memory left for a step: ask for less context, fewer rows of a step, or \
             a smaller model"
        }
        _ => return iree(RUNNING)(error),
    };
    Error::Engine { engine: "iree", message: message.into() }
}

impl Executor for GpuExecutor {
    fn copy(&mut self, copy: PageCopy) -> Result<()> {
        Pages::copy(&self.cache, copy)
    }

    fn read_page(&mut self, page: u32, data: &mut [u8]) -> Result<()> {
        self.finish()?;
        Pages::read(&self.cache, page, data)
    }

    fn write_page(&mut self, page: u32, data: &[u8]) -> Result<()> {
        self.finish()?;
        Pages::write(&self.cache, page, data)
    }

    fn run(&mut self, batch: &Batch) -> Result<()> {
        self.places.clear();
        let mut place = 0;
        let all: Vec<_> = self.steps.iter().map(|step| step.program.rows).collect();
        let (steps, prompts) = all.split_at(self.steps.partition_point(|step| !step.of_prompt));
        let runs: Vec<_> = batch.entries.iter().map(|entry| entry.rows).collect();
        for (which, rows) in calls(&runs, steps, prompts) {
            self.finish()?;
            let used = rows.len();
            self.places.extend((place..).take(used));
            self.pending = Some(self.start(batch, rows, which, place).map_err(running)?);
            // The next call writes over this one's padding.
            place = (place + used).next_multiple_of(APART);
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        match self.pending.take() {
            Some(mut step) => step.wait(None).map(drop).map_err(running),
            None => Ok(()),
        }
    }

    fn tokens(&mut self, rows: &[usize], tokens: &mut Vec<u32>) -> Result<()> {
        for rows in rows.chunks(self.most_wanted()) {
            tokens.extend(self.head(rows)?);
        }
        Ok(())
    }

    fn logits(&mut self, rows: &[usize], logits: &mut Vec<f32>) -> Result<()> {
        for rows in rows.chunks(self.most_wanted()) {
            self.head(rows)?;
            let at = logits.len();
            logits.resize(at + rows.len() * self.config.vocab_size, 0.0);
            let read = self.logits.read_into(0, bytemuck::cast_slice_mut(&mut logits[at..]));
            read.map_err(iree("reading logits"))?;
        }
        Ok(())
    }

    fn hidden(&mut self, _: &[usize], _: &mut Vec<f32>) -> Result<()> {
        unreachable!("the engine refuses what `has_hidden` says there is not")
    }

    fn take_profile(&mut self) -> Result<Profile> {
        self.device.take_profile().map(Profile::from).map_err(iree("reading the profile"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_happen_to_any_step_is_one_sentence() {
        let says = |code| running(iree_rt::Error::new(code, "VK_ERROR; a.c:1; while")).to_string();
        for (code, word) in [(Code::DataLoss, "lost"), (Code::ResourceExhausted, "memory left")] {
            assert!(says(code).contains(word) && !says(code).contains(".c:"), "{}", says(code));
        }
        assert!(says(Code::Internal).contains("VK_ERROR"), "{}", says(Code::Internal));
    }
}
