//! Attention over the blocks of a KV cache (Dao et al., FlashAttention): the rows of a call meet
//! the keys of one head a block at a time, and what they mix of its values is scaled down whenever
//! a larger score turns up. Scores of more than one block are nowhere; a block that none of the
//! rows sees is not read.

mod dense;
mod exp;

use dense::DenseTile;
pub(crate) use exp::exp;

use std::marker::PhantomData;
use std::ops::{Range, RangeInclusive};

use super::cap::cap;
use super::floats::Float;
use super::scratch::with_scratch;
use super::vector::{Job, Vector};
use super::{KV_BLOCK, LANES};

/// What a masked score becomes, and the largest score before there is one.
const MASKED: f32 = -1e30;

/// The operands of one call: consecutive rows, and the queries in them that share a key head.
///
/// Keys and values are in the kernel's [`KvFormat`](super::KvFormat). No alignment beyond that of the
/// element types is needed.
#[derive(Clone, Copy, Debug)]
pub struct Attention {
    /// `[rows, query_stride]`, of which `[rows, group * width]` are read.
    pub queries: *const f32,
    /// Elements between rows of `queries`.
    pub query_stride: usize,
    /// `[pages, page_stride]`, of which `[pages, width, 64]` are read: keys lie transposed.
    pub keys: *const u8,
    /// `[pages, page_stride]`, of which `[pages, 64, width]` are read.
    pub values: *const u8,
    /// Elements between pages of `keys` and of `values`.
    pub page_stride: usize,
    /// The page of each block of 64 tokens, up to that of the last key that a row sees.
    pub pages: *const i32,
    /// `[rows, output_stride]`, of which `[rows, group * width]` are written.
    pub output: *mut f32,
    /// Elements between rows of `output`.
    pub output_stride: usize,
    /// Rows of `queries` and `output`.
    pub rows: usize,
    /// Rows that are wanted, at most `rows`; the others become 0.0 in `output`.
    pub used: usize,
    /// The position of the first row: it sees the keys up to this one, itself included, and each
    /// row one more; and some [behind](Self::behind). What lies behind all that rows see is not used.
    pub start: usize,
    /// Latest keys that a row sees at most, itself included; 0 is no bound.
    pub window: usize,
    /// Keys behind itself that a row sees, as far as there are [some](Self::keys_in_all).
    pub behind: usize,
    /// Keys that there are, where rows see some behind them; at least up to the last row's.
    pub keys_in_all: usize,
    /// Queries of a row.
    pub group: usize,
    /// Elements of a query, a key and a value.
    pub width: usize,
    /// What products of queries and keys are multiplied with.
    pub scale: f32,
    /// What these stay below then, on both sides: `cap * tanh(score / cap)`; 0 for no limit.
    pub cap: f32,
    /// `[group, distances_stride]`, each at the distance 0, of which those from the first to the last distance of a block that
    /// is seen are read: what is added to the score of a key so far behind its row; null for nothing.
    pub distances: *const f32,
    /// Elements between those of one query of a row and the next.
    pub distances_stride: usize,
    /// `[group]`: a score beside those of the keys, that of no value; null for none.
    pub sinks: *const f32,
}

/// Attention in the instructions of one instruction set, over a cache of one format.
///
/// # Safety
///
/// The CPU has the instruction set, every pointer of the [`Attention`] is valid for the shape that
/// its field states in the kernel's format, and nothing else accesses the elements of `output` during
/// the call.
pub type AttentionKernel = unsafe fn(&Attention);

impl Attention {
    /// The keys, counted from the start of `block`, that some of `rows` see.
    fn seen(&self, rows: RangeInclusive<usize>, block: usize) -> Range<usize> {
        let within = |key: usize| key.saturating_sub(block * KV_BLOCK).min(KV_BLOCK);
        let end = self.end(*rows.end());
        let oldest = match self.window {
            0 => 0,
            window => (self.start + rows.start() + 1).saturating_sub(window),
        };
        within(oldest)..within(end)
    }

    /// The first key behind those that `row` sees.
    fn end(&self, row: usize) -> usize {
        let own = self.start + row + 1;
        match self.behind {
            0 => own,
            behind => own.saturating_add(behind).min(self.keys_in_all),
        }
    }

    /// Elements of a query's sums: whole vectors.
    fn padded(&self) -> usize {
        self.width.next_multiple_of(LANES)
    }
}

/// # Safety
///
/// As for [`AttentionKernel`].
pub(super) unsafe fn attention<V: Vector, F: Float<V, Weights = V>>(a: &Attention) {
    // SAFETY: rows of the output; and the scratch holds what `State` wants.
    unsafe {
        for row in a.used..a.rows {
            a.output.add(row * a.output_stride).write_bytes(0, a.group * a.width);
        }
        if a.used > 0 {
            with_scratch(State::len(a), |scratch| {
                attend::<V, F>(a, &State::new(a, scratch));
            });
        }
    }
}

/// # Safety
///
/// As for [`AttentionKernel`]; there are rows in use.
unsafe fn attend<V: Vector, F: Float<V, Weights = V>>(a: &Attention, state: &State) {
    const { assert!(V::ROWS <= MOST_ROWS) };
    let queries = a.used * a.group;
    let tiles = queries.div_ceil(V::ROWS);
    let (each, more) = (queries / tiles, queries % tiles);
    let last = (a.end(a.used - 1) - 1) / KV_BLOCK;
    let first = match a.window {
        0 => 0,
        window => (a.start + 1).saturating_sub(window) / KV_BLOCK,
    };
    let stride = a.page_stride * F::BYTES;
    // SAFETY: blocks up to the last row's own, and queries of rows in use.
    unsafe {
        V::enter(&Begin { a, state });
        for block in first..=last {
            let page = |block: usize| *a.pages.add(block) as usize * stride;
            let keys = a.keys.add(page(block));
            let values = a.values.add(page(block));
            let next = a.keys.add(page(last.min(block + 1)));
            let values = state.padded_values(a, values, F::BYTES);
            let mut query = 0;
            for tile in 0..tiles {
                let queries = each + usize::from(tile < more);
                let rows = query / a.group..=(query + queries - 1) / a.group;
                let seen = a.seen(rows, block);
                if !seen.is_empty() {
                    let meet = Meet { a, state, keys, values, next, block, query, queries, seen };
                    meet.run::<V, F>();
                }
                query += queries;
            }
        }
        V::enter(&Finish { a, state });
    }
}

/// What lives across blocks, for each query `[used * group]`, in scratch memory.
struct State {
    /// `[queries, width]`, scaled.
    queries: *mut f32,
    /// `[queries, padded]`: the values mixed so far.
    mixed: *mut f32,
    /// `[queries, 16]`: the sum of the weights so far, in parts.
    sums: *mut f32,
    /// `[queries]`: the largest score so far.
    largest: *mut f32,
    /// `[V::ROWS, 64]`: scores of one tile and block, then weights.
    weights: *mut f32,
    /// `[64, padded]`: a block's values as they are stored, where a width is no whole number of
    /// vectors.
    values: *mut f32,
}

/// Rows of the largest tile of any instruction set.
const MOST_ROWS: usize = 8;

impl State {
    /// Elements of each part, all whole vectors.
    fn parts(a: &Attention) -> [usize; 6] {
        let queries = a.used * a.group;
        let values = if a.width == a.padded() { 0 } else { KV_BLOCK * a.padded() };
        let sizes = [queries * a.width, queries * a.padded(), queries * LANES, queries];
        let [q, mixed, sums, largest] = sizes.map(|size: usize| size.next_multiple_of(LANES));
        [q, mixed, sums, largest, MOST_ROWS * KV_BLOCK, values]
    }

    fn len(a: &Attention) -> usize {
        Self::parts(a).iter().sum()
    }

    /// Cuts up `scratch`, of [`len`](Self::len) elements.
    fn new(a: &Attention, scratch: *mut f32) -> Self {
        let mut at = scratch;
        let [queries, mixed, sums, largest, weights, values] = Self::parts(a).map(|size| {
            let part = at;
            at = at.wrapping_add(size);
            part
        });
        Self { queries, mixed, sums, largest, weights, values }
    }

    /// A block's values, of `bytes` bytes each, with rows of whole vectors.
    unsafe fn padded_values(&self, a: &Attention, values: *const u8, bytes: usize) -> *const u8 {
        if a.width == a.padded() {
            return values;
        }
        for key in 0..KV_BLOCK {
            // SAFETY: a row of the block, and of the scratch, whose padding stays as it is.
            unsafe {
                let row = self.values.cast::<u8>().add(key * a.padded() * bytes);
                row.copy_from_nonoverlapping(values.add(key * a.width * bytes), a.width * bytes);
            }
        }
        self.values.cast()
    }
}

/// Before the first block: queries in place and scaled, sums zero.
struct Begin<'a> {
    a: &'a Attention,
    state: &'a State,
}

impl<V: Vector> Job<V> for Begin<'_> {
    #[inline(always)]
    unsafe fn run(&self) {
        let Self { a, state } = self;
        let row = a.group * a.width;
        // SAFETY: the rows in use, and scratch for their queries.
        unsafe {
            for r in 0..a.used {
                let (from, to) = (a.queries.add(r * a.query_stride), state.queries.add(r * row));
                for i in 0..row {
                    *to.add(i) = *from.add(i) * a.scale;
                }
            }
            for query in 0..a.used * a.group {
                state.mixed.add(query * a.padded()).write_bytes(0, a.padded());
                state.sums.add(query * LANES).write_bytes(0, LANES);
                *state.largest.add(query) = MASKED;
                if !a.sinks.is_null() {
                    // As if its key had come first.
                    *state.largest.add(query) = *a.sinks.add(query % a.group);
                    *state.sums.add(query * LANES) = 1.0;
                }
            }
        }
    }
}

/// After the last block: what was mixed, divided by the sum of the weights.
struct Finish<'a> {
    a: &'a Attention,
    state: &'a State,
}

impl<V: Vector> Job<V> for Finish<'_> {
    #[inline(always)]
    unsafe fn run(&self) {
        let Self { a, state } = self;
        for query in 0..a.used * a.group {
            // SAFETY: a query of a row in use.
            unsafe {
                let mut sum = 0.0;
                for lane in 0..LANES {
                    sum += *state.sums.add(query * LANES + lane);
                }
                let share = 1.0 / sum;
                let mixed = state.mixed.add(query * a.padded());
                let (row, member) = (query / a.group, query % a.group);
                let output = a.output.add(row * a.output_stride + member * a.width);
                for i in 0..a.width {
                    *output.add(i) = *mixed.add(i) * share;
                }
            }
        }
    }
}

/// A tile of queries and a block of keys and values.
struct Meet<'a> {
    a: &'a Attention,
    state: &'a State,
    keys: *const u8,
    values: *const u8,
    /// The next block's keys.
    next: *const u8,
    block: usize,
    /// The first query, and how many: at most [`Vector::ROWS`].
    query: usize,
    queries: usize,
    /// Keys of the block that one of them sees.
    seen: Range<usize>,
}

impl Meet<'_> {
    /// # Safety
    ///
    /// As for [`AttentionKernel`].
    unsafe fn run<V: Vector, F: Float<V, Weights = V>>(&self) {
        let Self { a, state, .. } = self;
        let vectors = self.vectors();
        // SAFETY: all is within the block and the scratch.
        unsafe {
            let scores = DenseTile {
                x: state.queries.add(self.query * a.width),
                x_stride: a.width,
                w: self.keys.add(vectors.start * LANES * F::BYTES),
                w_stride: KV_BLOCK,
                ahead: self.values as isize - self.keys as isize,
                y: state.weights.add(vectors.start * LANES),
                y_stride: KV_BLOCK,
                terms: a.width,
                vectors: vectors.len(),
                add: false,
                format: PhantomData::<F>,
            };
            V::run(self.queries, &scores);
            V::enter(self);
            self.mix::<V, F>();
        }
    }

    /// Adds the values of the keys that each query sees, in their order, and of no others: those may be no numbers,
    /// which a weight of zero does not hide.
    ///
    /// # Safety
    ///
    /// As for [`AttentionKernel`]; there are weights of what is seen.
    unsafe fn mix<V: Vector, F: Float<V, Weights = V>>(&self) {
        let seen = |query: usize| {
            let row = (self.query + query) / self.a.group;
            self.a.seen(row..=row, self.block)
        };
        // Later rows see later keys.
        let (first, last) = (seen(0), seen(self.queries - 1));
        let common = match last.start < first.end {
            true => last.start..first.end,
            false => usize::MAX..usize::MAX,
        };
        let runs = |keys: &dyn Fn(&Range<usize>) -> Range<usize>| {
            let mut query = 0;
            while query < self.queries {
                let these = seen(query);
                let count = (query..self.queries).take_while(|&it| seen(it) == these).count();
                // SAFETY: the caller's promise: these queries see these keys.
                unsafe { self.mix_keys::<V, F>(query, count, keys(&these)) };
                query += count;
            }
        };
        if first.start < common.start {
            runs(&|seen| seen.start..seen.end.min(common.start));
        }
        // SAFETY: the caller's promise: all queries see these keys.
        unsafe { self.mix_keys::<V, F>(0, self.queries, common.clone()) };
        if common.end < last.end {
            runs(&|seen| seen.start.max(common.end)..seen.end);
        }
    }

    /// Adds the values of `keys` to what `count` queries from `query` on have mixed so far.
    ///
    /// # Safety
    ///
    /// As for [`mix`](Self::mix); these are queries of the tile, and keys of the block.
    unsafe fn mix_keys<V: Vector, F: Float<V, Weights = V>>(
        &self,
        query: usize,
        count: usize,
        keys: Range<usize>,
    ) {
        if keys.is_empty() {
            return;
        }
        let Self { a, state, .. } = self;
        // SAFETY: the caller's promise: all is within the block and the scratch.
        unsafe {
            let mixed = DenseTile {
                x: state.weights.add(query * KV_BLOCK + keys.start),
                x_stride: KV_BLOCK,
                w: self.values.add(keys.start * a.padded() * F::BYTES),
                w_stride: a.padded(),
                ahead: self.next as isize - self.values as isize,
                y: state.mixed.add((self.query + query) * a.padded()),
                y_stride: a.padded(),
                terms: keys.len(),
                vectors: a.padded() / LANES,
                add: true,
                format: PhantomData::<F>,
            };
            V::run(count, &mixed);
        }
    }

    /// Those with the keys in them that are seen.
    fn vectors(&self) -> Range<usize> {
        self.seen.start / LANES..self.seen.end.div_ceil(LANES)
    }
}

/// From scores to weights: masked, less the largest score so far, exponentiated and summed.
impl<V: Vector> Job<V> for Meet<'_> {
    #[inline(always)]
    unsafe fn run(&self) {
        let Meet { a, state, .. } = self;
        let vectors = self.vectors();
        let all = vectors.start * LANES..vectors.end * LANES;
        for i in 0..self.queries {
            let query = self.query + i;
            let row = query / a.group;
            let seen = a.seen(row..=row, self.block);
            // SAFETY: all is within the scratch.
            unsafe {
                let weights = state.weights.add(i * KV_BLOCK);
                if seen.is_empty() {
                    continue;
                }
                if a.cap > 0.0 {
                    let scores = std::slice::from_raw_parts_mut(weights, KV_BLOCK);
                    cap::<V>(&mut scores[all.clone()], a.cap);
                }
                if !a.distances.is_null() {
                    let member = a.distances.add(query % a.group * a.distances_stride);
                    let behind = (self.block * KV_BLOCK) as isize - (a.start + row) as isize;
                    for key in all.clone() {
                        *weights.add(key) += *member.offset(behind + key as isize);
                    }
                }
                for key in (all.start..seen.start).chain(seen.end..all.end) {
                    *weights.add(key) = MASKED;
                }
                let mut largest = V::splat(MASKED);
                for vector in vectors.clone() {
                    largest = V::load(weights.add(vector * LANES)).max(largest);
                }
                let (before, largest) = (*state.largest.add(query), largest.largest());
                let sums = state.sums.add(query * LANES);
                if largest > before {
                    *state.largest.add(query) = largest;
                    let less = exp(V::splat(before - largest));
                    V::load(sums).mul(less).store(sums);
                    let mixed = state.mixed.add(query * a.padded());
                    for at in (0..a.padded()).step_by(LANES) {
                        V::load(mixed.add(at)).mul(less).store(mixed.add(at));
                    }
                }
                let less = V::splat(-before.max(largest));
                let mut sum = V::load(sums);
                for vector in vectors.clone() {
                    let at = weights.add(vector * LANES);
                    let weight = exp(V::load(at).add(less));
                    weight.store(at);
                    sum = sum.add(weight);
                }
                sum.store(sums);
            }
        }
    }
}
