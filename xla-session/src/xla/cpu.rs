//! Steps on CPUs.

use checkpoint::architecture::{Layer, Mixer};
use checkpoint::config::ModelConfig;
use iree_rt::{
    Buffer, BufferView, Call, Device, ElementType, Memory, Module, Pending, Session, Value,
};
use kernels::{KV_BLOCK, KvFormat};

use super::pages::Pages;
use super::rope::Angles;
use super::weights::Weights;
use super::{RUNNING, iree, not_numbers, tokens_of};
use crate::cache::Key;
use crate::engine::{Batch, Entry, Executor, Loaded};
use crate::lower::cpu::{Number, Place, Program, Source};
use crate::pages::PageCopy;
use crate::{Profile, Result};

/// A model on a CPU.
pub(super) struct CpuModel {
    pub device: Device,
    pub config: ModelConfig,
    pub program: Program,
    pub module: Module,
    pub weights: Weights,
    pub kv: KvFormat,
    pub page_identity: Option<Key>,
}

impl CpuModel {
    fn mixers(&self) -> impl Iterator<Item = &Mixer> {
        self.config.architecture.layers.iter().map(|layer| &layer.mixer)
    }

    /// Bytes of a page of a layer's keys, and of its values.
    fn half_page(&self, mixer: &Mixer) -> usize {
        mixer.key_width() * KV_BLOCK * self.kv.bytes()
    }
}

impl Loaded for CpuModel {
    fn config(&self) -> &ModelConfig {
        &self.config
    }

    fn device(&self) -> String {
        self.device.uri().to_owned()
    }

    fn most_rows(&self) -> usize {
        self.program.workspace.rows
    }

    fn has_hidden(&self) -> bool {
        true
    }

    fn page_bytes(&self) -> usize {
        2 * self.mixers().map(|mixer| self.half_page(mixer)).sum::<usize>()
    }

    fn state_bytes(&self) -> usize {
        self.mixers()
            .filter_map(Mixer::state)
            .flatten()
            .map(|numbers| numbers * size_of::<f32>())
            .sum()
    }

    fn page_identity(&self) -> Option<Key> {
        self.page_identity.clone()
    }

    fn executor(&self, pages: usize, states: usize) -> Result<Box<dyn Executor>> {
        let context = format!("making room for {pages} pages of the KV cache");
        let layer = |mixer: &Mixer| {
            let (count, bytes) = match mixer.state() {
                None => (pages, [self.half_page(mixer); 2]),
                Some(numbers) => (states, numbers.map(|numbers| numbers * size_of::<f32>())),
            };
            let [keys, values] = bytes.map(|bytes| Pages::allocate(&self.device, count, bytes));
            Ok(Kept { memory: [keys?, values?], of_tokens: mixer.state().is_none() })
        };
        let cache = self.mixers().map(layer).collect::<iree_rt::Result<Vec<_>>>();
        let cache = cache.map_err(iree(context))?;
        let executor = CpuExecutor::new(self, cache);
        Ok(Box::new(executor.map_err(iree("loading the compiled graph"))?))
    }
}

/// What a layer keeps of sequences.
struct Kept {
    /// Pages of keys and of values; or states, and the latest rows.
    memory: [Pages; 2],
    /// Whether it is pages.
    of_tokens: bool,
}

/// A loaded program, its workspace and its pages.
struct CpuExecutor {
    device: Device,
    session: Session,
    config: ModelConfig,
    /// Those that the model has.
    functions: [Option<Function>; 4],
    places: crate::lower::cpu::Workspace,
    memory: Buffer,
    /// The body of the step in flight, until its head or [`Executor::finish`] waits for it.
    pending: Option<Pending>,
    /// `[entries]` of i32; grows.
    tables: BufferView,
    cache: Vec<Kept>,
    kv: KvFormat,
    angles: Angles,
    threads: usize,
}

/// A function with its weights and memory in place.
struct Function {
    call: Call,
    /// Where it takes what calls differ in.
    rows: usize,
    attention: Option<Attention>,
    runs: Option<usize>,
}

/// Arguments of the function that attends.
struct Attention {
    tables: usize,
    entries: usize,
    /// Numbers of key heads that layers have, and where work items and shares of these are.
    heads: Vec<[usize; 3]>,
}

/// Queries of one work item of attention, about: the keys and values of a block meet them all before the
/// next ones push these out of the L1 cache.
const QUERIES: usize = 64;

/// Most rows whose tokens are found by a sketch, where there is one: of more, rows in bfloat16 are faster with the
/// weights themselves (Zen 4: by a sketch steps of 32 and 64 run at 0.86 to 0.96 of that, of 8 and 16 at 1.11 and 1.05).
const SKETCHED_ROWS: usize = 16;

impl CpuExecutor {
    fn new(model: &CpuModel, cache: Vec<Kept>) -> iree_rt::Result<Self> {
        let device = &model.device;
        let session = Session::builder(device).module(model.module.clone()).build()?;
        let places = model.program.workspace.clone();
        let memory = Buffer::allocate_in(device, places.bytes, Memory::Host)?;
        let bytes = |buffer: &Buffer| buffer.view(&[buffer.byte_len()], ElementType::I8);
        let tables = table(device, 1024)?;
        let load = |function: &crate::lower::cpu::Function| -> iree_rt::Result<Function> {
            let name = format!("model.{}", function.name);
            let mut call = session.prepare(&session.function(&name)?)?;
            for (at, argument) in function.arguments.iter().enumerate() {
                match &argument.source {
                    Source::Workspace => call.set(at, bytes(&memory)?)?,
                    Source::Keys(layer) => call.set(at, bytes(&cache[*layer].memory[0].buffer)?)?,
                    Source::Values(layer) => {
                        call.set(at, bytes(&cache[*layer].memory[1].buffer)?)?
                    }
                    Source::Weight(spec, plane) => {
                        call.set(at, bytes(&model.weights.plane(spec, *plane).buffer())?)?;
                    }
                    Source::Tables | Source::Number(_) => {}
                }
            }
            let place = |source| function.arguments.iter().position(|it| it.source == source);
            let number = |number| place(Source::Number(number));
            let heads = function.arguments.iter().filter_map(|argument| match argument.source {
                Source::Number(Number::Share(heads)) => Some([
                    heads,
                    number(Number::AttentionItems(heads))?,
                    number(Number::Share(heads))?,
                ]),
                _ => None,
            });
            let attention = match (place(Source::Tables), number(Number::Entries)) {
                (Some(tables), Some(entries)) => {
                    Some(Attention { tables, entries, heads: heads.collect() })
                }
                _ => None,
            };
            let rows = number(Number::Rows).ok_or_else(|| {
                let message = format!("the function {name} does not say how many rows it takes");
                iree_rt::Error::new(iree_rt::Code::Internal, message)
            })?;
            Ok(Function { call, rows, attention, runs: number(Number::Runs) })
        };
        let mut functions = [None, None, None, None];
        for (to, function) in functions.iter_mut().zip(&model.program.functions) {
            *to = function.as_ref().map(load).transpose()?;
        }
        Ok(Self {
            device: device.clone(),
            session,
            config: model.config.clone(),
            functions,
            places,
            memory,
            pending: None,
            tables,
            cache,
            kv: model.kv,
            angles: Angles::new(&model.config),
            threads: device.threads().unwrap_or(1),
        })
    }

    fn read<T: bytemuck::AnyBitPattern + bytemuck::NoUninit>(
        &self,
        place: Place,
        first: usize,
        to: &mut [T],
    ) -> iree_rt::Result<()> {
        self.memory.read_into(place.at + first * size_of::<T>(), bytemuck::cast_slice_mut(to))
    }

    /// Starts function `which` for `rows` rows, after what is in flight.
    fn start(&mut self, which: usize, rows: usize) -> iree_rt::Result<Pending> {
        let Some(Function { call, rows: at, .. }) = &mut self.functions[which] else {
            let message = "the graph has no such function: the model makes no logits";
            return Err(iree_rt::Error::new(iree_rt::Code::Unimplemented, message));
        };
        call.set(*at, rows as i32)?;
        let after = self.pending.as_ref().map(Pending::fence);
        call.invoke_async(&mut self.session, after)
    }

    /// Writes what the host knows of a step.
    fn prepare(&mut self, batch: &Batch) -> iree_rt::Result<()> {
        let angles = self.angles.of(&batch.positions);
        let tokens: Vec<_> = batch.tokens.iter().map(|&token| token as i32).collect();
        let slots: Vec<_> = batch.slots.iter().map(|&slot| slot as i32).collect();

        let heads = self.config.num_attention_heads;
        let layers = self.config.architecture.layers.iter().filter_map(Layer::attention);
        let group = layers.map(|attention| heads / attention.kv_heads).max().unwrap_or(1);
        let entries = cut(&batch.entries, (QUERIES / group).max(1));
        let numbers = |it: &Entry| [it.row, it.rows, it.start, it.table, it.end].map(|n| n as i32);
        let written: Vec<_> = entries.iter().flat_map(numbers).collect();
        let places = &self.places;
        let put = |place: Place, data: &[u8]| {
            // SAFETY: no call is in flight.
            unsafe { self.memory.write_unchecked(place.at, data) }
        };
        put(places.tokens, bytemuck::cast_slice(&tokens))?;
        if let Some(of) = &self.config.architecture.positions {
            let rows: Vec<_> = batch.positions.iter().map(|it| (of.first + it) as i32).collect();
            put(places.positions, bytemuck::cast_slice(&rows))?;
        }
        if self.config.architecture.texts.is_some() {
            let texts: Vec<_> = batch.texts.iter().map(|&text| i32::from(text)).collect();
            put(places.texts, bytemuck::cast_slice(&texts))?;
        }
        put(places.slots, bytemuck::cast_slice(&slots))?;
        for (places, angles) in places.angles.iter().zip(&angles) {
            for (place, angles) in places.iter().zip(angles) {
                put(*place, bytemuck::cast_slice(angles))?;
            }
        }
        put(places.entries, bytemuck::cast_slice(&written))?;
        let states = batch.entries.iter().zip(&batch.states).flat_map(|(run, &(from, to))| {
            let from = from.map_or(-1, |from| from as i32);
            [run.row as i32, run.rows as i32, from, to as i32]
        });
        put(places.runs, bytemuck::cast_slice(&states.collect::<Vec<_>>()))?;

        if self.tables.len() < batch.tables.len() {
            self.tables = table(&self.device, batch.tables.len().next_power_of_two())?;
        }
        let pages: Vec<_> = batch.tables.iter().map(|&page| page as i32).collect();
        // SAFETY: no call is in flight.
        unsafe { self.tables.buffer().write_unchecked(0, &pages)? };

        let tables = self.tables.buffer();
        let tables = tables.view(&[tables.byte_len()], ElementType::I8)?;
        let body = self.functions[Program::BODY].as_mut();
        let Function { call, attention, runs, .. } = body.expect("every model has a body");
        if let Some(at) = *runs {
            call.set(at, batch.states.len() as i32)?;
        }
        if let Some(at) = attention {
            call.set(at.tables, Value::from(tables))?;
            call.set(at.entries, entries.len() as i32)?;
            for &[kv_heads, items_at, share_at] in &at.heads {
                // Where there are fewer work items than threads, queries that share a key head are shared
                // out.
                let (group, all) = (heads / kv_heads, entries.len() * kv_heads);
                let share = group.div_ceil(self.threads.div_ceil(all));
                call.set(items_at, (all * group.div_ceil(share)) as i32)?;
                call.set(share_at, share as i32)?;
            }
        }
        Ok(())
    }

    /// Runs function `which` of the head for rows of the last step.
    fn head(&mut self, which: usize, rows: &[usize]) -> Result<()> {
        let wanted: Vec<_> = rows.iter().map(|&row| row as i32).collect();
        // SAFETY: the body, which may be in flight, does not read this place.
        let written = unsafe { self.memory.write_unchecked(self.places.wanted.at, &wanted) };
        let started = written.and_then(|()| self.start(which, rows.len()));
        let done = started.and_then(|mut head| head.wait(None));
        // The body is done too, or has failed before the head did.
        let body = self.finish();
        body.and(done.map(drop).map_err(iree(RUNNING)))
    }

    /// The most likely token after each of `rows`, that the head was run for.
    fn picked(&self, rows: &[usize]) -> Result<Vec<u32>> {
        let mut picked = vec![0i32; rows.len()];
        self.read(self.places.picked, 0, &mut picked).map_err(iree("reading tokens"))?;
        tokens_of(&picked, rows, &self.config, self.kv)
    }
}

/// Room for so many numbers of pages.
fn table(device: &Device, pages: usize) -> iree_rt::Result<BufferView> {
    Buffer::allocate_in(device, pages * size_of::<i32>(), Memory::Host)?
        .view(&[pages], ElementType::I32)
}

/// Runs of at most `most` rows.
fn cut(entries: &[Entry], most: usize) -> Vec<Entry> {
    let parts = entries.iter().flat_map(|&Entry { row, rows, start, table, end }| {
        (0..rows).step_by(most).map(move |at| Entry {
            row: row + at,
            rows: most.min(rows - at),
            start: start + at,
            table,
            end,
        })
    });
    parts.collect()
}

impl CpuExecutor {
    /// The pages of all layers that have some.
    fn pages(&self) -> impl Iterator<Item = &Pages> {
        self.cache.iter().filter(|kept| kept.of_tokens).flat_map(|kept| &kept.memory)
    }
}

impl Executor for CpuExecutor {
    fn copy(&mut self, copy: PageCopy) -> Result<()> {
        Pages::copy(self.pages(), copy)
    }

    fn read_page(&mut self, page: u32, data: &mut [u8]) -> Result<()> {
        self.finish()?;
        Pages::read(self.pages(), page, data)
    }

    fn write_page(&mut self, page: u32, data: &[u8]) -> Result<()> {
        self.finish()?;
        Pages::write(self.pages(), page, data)
    }

    fn run(&mut self, batch: &Batch) -> Result<()> {
        self.finish()?;
        self.prepare(batch).map_err(iree("preparing a step"))?;
        self.pending = Some(self.start(Program::BODY, batch.rows()).map_err(iree(RUNNING))?);
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        match self.pending.take() {
            Some(mut body) => body.wait(None).map(drop).map_err(iree(RUNNING)),
            None => Ok(()),
        }
    }

    fn tokens(&mut self, rows: &[usize], tokens: &mut Vec<u32>) -> Result<()> {
        for rows in rows.chunks(self.places.head_rows) {
            let sketched = rows.len() <= SKETCHED_ROWS;
            self.head(if sketched { Program::GREEDY } else { Program::HEAD }, rows)?;
            tokens.extend(self.picked(rows)?);
        }
        Ok(())
    }

    fn logits(&mut self, rows: &[usize], logits: &mut Vec<f32>) -> Result<()> {
        let vocab_size = self.config.vocab_size;
        for rows in rows.chunks(self.places.head_rows) {
            self.head(Program::HEAD, rows)?;
            self.picked(rows)?;
            for row in 0..rows.len() {
                let at = logits.len();
                logits.resize(at + vocab_size, 0.0);
                let first = row * self.places.logits.stride;
                self.read(self.places.logits, first, &mut logits[at..])
                    .map_err(iree("reading logits"))?;
            }
        }
        Ok(())
    }

    fn hidden(&mut self, rows: &[usize], hidden: &mut Vec<f32>) -> Result<()> {
        for rows in rows.chunks(self.places.head_rows) {
            self.head(Program::HIDDEN, rows)?;
            let at = hidden.len();
            hidden.resize(at + rows.len() * self.config.hidden_size, 0.0);
            self.read(self.places.last[0], 0, &mut hidden[at..])
                .map_err(iree("reading hidden states"))?;
            for (state, &row) in hidden[at..].chunks_exact(self.config.hidden_size).zip(rows) {
                if !state.iter().all(|x| x.is_finite()) {
                    return Err(not_numbers(row, self.kv));
                }
            }
        }
        Ok(())
    }

    fn take_profile(&mut self) -> Result<Profile> {
        self.device.take_profile().map(Profile::from).map_err(iree("reading the profile"))
    }
}
