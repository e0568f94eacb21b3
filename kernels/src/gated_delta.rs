//! Linear attention by the gated delta rule (Yang et al.): a convolution over the latest rows, then row by row
//! `S *= decay; S += k * share * (v - S^T k); y = S^T q`, then the norm of what the head gives.
//!
//! What a row gives is known from what it finds in the state before it changes it, `S^T k` and `S^T q`:
//! `y = decay * S^T q + (k . q) * delta`. So one pass over the state changes it by one row and finds what the next one
//! needs, three multiply-adds and a product of each number. Passes go over a few columns, which the nearest cache
//! holds, for all rows that are convolved together. All is computed in one order, wherever runs of rows begin and end.

use crate::dispatch::enter;
use crate::gate::sigmoid;
use crate::norm::dot;
use crate::scratch::with_scratch;
use crate::vector::{Job, Vector};
use crate::{Activation, Gate, Isa, LANES, Norm};

/// One value head of some consecutive rows of one sequence.
///
/// `channels` is `2 * key_heads * key_dim + value_heads * value_dim`.
#[derive(Clone, Copy, Debug)]
pub struct GatedDelta {
    /// `[rows, stride]`: of each row queries and keys, `[key_heads, key_dim]`, values and `z`,
    /// `[value_heads, value_dim]`, `b` and `a`, `[value_heads]`, side by side.
    pub x: *const f32,
    /// Elements between rows of `x`.
    pub stride: usize,
    /// At least 1.
    pub rows: usize,
    /// The value head.
    pub head: usize,
    /// Whose queries and keys it meets.
    pub key_head: usize,
    /// Whether it is the one that meets these which writes them to `latest`.
    pub first: bool,
    /// Heads of queries and keys.
    pub key_heads: usize,
    /// Heads of values.
    pub value_heads: usize,
    /// Elements of a head of queries, and of keys.
    pub key_dim: usize,
    /// Elements of a head of values.
    pub value_dim: usize,
    /// `[channels, seen]`: of each column a factor of each row that is seen, the last one of the row itself.
    pub taps: *const f32,
    /// Rows that the convolution sees; at least 1.
    pub seen: usize,
    /// `[value_heads]`: how fast each state becomes less, as a logarithm.
    pub decay: *const f32,
    /// `[value_heads]`: is added to `a`.
    pub step: *const f32,
    /// `[value_dim]`: weights of the norm of the output.
    pub norm: *const f32,
    /// What keeps the norm's root from zero.
    pub epsilon: f32,
    /// What the rows before these have left; `None` where there are none, as if all of it were zero.
    pub before: Option<DeltaState>,
    /// `[value_heads, key_dim, value_dim]`: what the rows leave; other memory than that of `before`.
    pub state: *mut f32,
    /// `[seen - 1, channels]`, the oldest first: likewise.
    pub latest: *mut f32,
    /// `[rows, output_stride]`, of which the columns of this head, from `head * value_dim` on, are written.
    pub output: *mut f32,
    /// Elements between rows of `output`.
    pub output_stride: usize,
}

/// What rows leave for those behind them.
#[derive(Clone, Copy, Debug)]
pub struct DeltaState {
    /// `[value_heads, key_dim, value_dim]`
    pub state: *const f32,
    /// `[seen - 1, channels]`, the oldest first.
    pub latest: *const f32,
}

/// Computes a head of all rows, and what they leave of it. Heads, and sequences, may be computed at once.
///
/// # Safety
///
/// The CPU has `isa`, every pointer is valid for what its field states, and nothing else accesses the head's columns
/// of `output`, its state, and its columns of `latest` (those of values, and with `first` those of its queries and
/// keys) during the call.
pub unsafe fn gated_delta(isa: Isa, of: &GatedDelta) {
    with_scratch(Scratch::len(of), |scratch| {
        let scratch = Scratch::new(of, scratch);
        // SAFETY: the caller's promise.
        unsafe { enter(isa, &Head { of, scratch }) }
    });
}

/// Rows that are convolved together.
const TOGETHER: usize = 32;
/// Vectors of columns that a pass goes over. Many rows of 128 columns, with AVX2 and AVX-512: one takes 1.4 to 1.5 times
/// as long, as each sum waits for itself; four as long to 1.8 times, eight 1.5 to 2.1 times.
const WIDE: usize = 2;
/// What keeps the length of queries and keys from zero, beneath the root.
const LENGTH_EPSILON: f32 = 1e-6;

struct Head<'a> {
    of: &'a GatedDelta,
    scratch: Scratch,
}

/// Numbers of a row that are the same for all columns of values.
#[derive(Clone, Copy)]
struct Factors {
    /// What the state is multiplied with.
    decay: f32,
    /// How much of what is missing is added.
    share: f32,
    /// Of its key and its query.
    product: f32,
}

#[derive(Clone, Copy)]
struct Scratch {
    /// `[seen, width]`, transposed.
    taps: *mut f32,
    /// `[TOGETHER, width]`: query, key and value of each row, convolved, each padded to whole vectors; what the row
    /// gives takes the place of the value.
    rows: *mut f32,
    /// `[TOGETHER]`
    factors: *mut Factors,
    /// `[key_dim, WIDE * LANES]`: some columns of the state.
    block: *mut f32,
}

impl Scratch {
    /// Elements of each part, all whole vectors.
    fn parts(of: &GatedDelta) -> [usize; 4] {
        let width = of.width();
        let factors = TOGETHER * size_of::<Factors>() / size_of::<f32>();
        [
            of.seen * width,
            TOGETHER * width,
            factors.next_multiple_of(LANES),
            of.key_dim * WIDE * LANES,
        ]
    }

    fn len(of: &GatedDelta) -> usize {
        Self::parts(of).iter().sum()
    }

    /// Cuts up `scratch`, of [`len`](Self::len) elements.
    fn new(of: &GatedDelta, scratch: *mut f32) -> Self {
        let mut at = scratch;
        let [taps, rows, factors, block] = Self::parts(of).map(|size| {
            let part = at;
            at = at.wrapping_add(size);
            part
        });
        Self { taps, rows, factors: factors.cast(), block }
    }
}

/// Consecutive columns: where they are in a row of `x`, how many, and where in a row of the scratch.
#[derive(Clone, Copy)]
struct Segment {
    from: usize,
    len: usize,
    to: usize,
}

impl GatedDelta {
    fn channels(&self) -> usize {
        2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim
    }

    /// Of the query, the key and the value.
    fn segments(&self) -> [Segment; 3] {
        let Self { key_heads, key_dim, value_dim, key_head, head, .. } = *self;
        let padded = key_dim.next_multiple_of(LANES);
        [
            Segment { from: key_head * key_dim, len: key_dim, to: 0 },
            Segment { from: (key_heads + key_head) * key_dim, len: key_dim, to: padded },
            Segment {
                from: 2 * key_heads * key_dim + head * value_dim,
                len: value_dim,
                to: 2 * padded,
            },
        ]
    }

    /// Elements of a row of the scratch.
    fn width(&self) -> usize {
        let [_, _, value] = self.segments();
        value.to + value.len.next_multiple_of(LANES)
    }

    /// The row of `before` or `x` that is `behind` the oldest one that the first row sees.
    ///
    /// # Safety
    ///
    /// There are as many rows.
    #[inline(always)]
    unsafe fn seen_row(&self, behind: usize) -> Option<*const f32> {
        // SAFETY: the caller's promise.
        unsafe {
            match behind.checked_sub(self.seen - 1) {
                Some(row) => Some(self.x.add(row * self.stride)),
                None => self.before.map(|it| it.latest.add(behind * self.channels())),
            }
        }
    }
}

impl<V: Vector> Job<V> for Head<'_> {
    #[inline(always)]
    unsafe fn run(&self) {
        let GatedDelta { rows, head, key_dim, value_dim, .. } = *self.of;
        let of_head = head * key_dim * value_dim;
        // SAFETY: the caller's promise.
        unsafe {
            self.transpose_taps();
            let left = self.of.state.add(of_head);
            let mut state = self.of.before.map(|before| before.state.add(of_head));
            let mut first = 0;
            while first < rows {
                let count = TOGETHER.min(rows - first);
                each!(row in count, { self.convolve::<V>(first, row) });
                let mut column = 0;
                while column < value_dim {
                    let vectors = (value_dim - column) / LANES;
                    if vectors >= WIDE {
                        self.recur::<V, WIDE>(count, column, state, left);
                        column += WIDE * LANES;
                    } else {
                        self.recur::<V, 1>(count, column, state, left);
                        column += LANES;
                    }
                }
                each!(row in count, { self.finish::<V>(first, row) });
                state = Some(left.cast_const());
                first += count;
            }
            self.keep_latest();
        }
    }
}

impl Head<'_> {
    /// A row of the scratch.
    #[inline(always)]
    unsafe fn row(&self, row: usize) -> *mut f32 {
        // SAFETY: there are so many.
        unsafe { self.scratch.rows.add(row * self.of.width()) }
    }

    /// Its query and its key.
    #[inline(always)]
    unsafe fn operands(&self, row: usize) -> [*const f32; 2] {
        let [query, key, _] = self.of.segments();
        // SAFETY: they lie in the row.
        unsafe { [query, key].map(|it| self.row(row).add(it.to).cast_const()) }
    }

    /// So that a vector has a tap of sixteen columns, not all taps of a few.
    #[inline(always)]
    unsafe fn transpose_taps(&self) {
        let seen = self.of.seen;
        let width = self.of.width();
        for Segment { from, len, to } in self.of.segments() {
            // SAFETY: taps of columns that there are, and their room in the scratch.
            unsafe {
                let from = self.of.taps.add(from * seen);
                let to = self.scratch.taps.add(to);
                if seen == 4 {
                    // As all models have it: LLVM takes many columns at once.
                    for i in 0..len {
                        for tap in 0..4 {
                            *to.add(tap * width + i) = *from.add(i * 4 + tap);
                        }
                    }
                } else {
                    for tap in 0..seen {
                        for i in 0..len {
                            *to.add(tap * width + i) = *from.add(i * seen + tap);
                        }
                    }
                }
            }
        }
    }

    /// Query, key and value of the row that is `row` behind `first`, and its factors.
    #[inline(always)]
    unsafe fn convolve<V: Vector>(&self, first: usize, row: usize) {
        let of = self.of;
        let width = of.width();
        let [query, key, _] = of.segments();
        // SAFETY: the caller's promise: rows that there are, and their room in the scratch.
        unsafe {
            let to = self.row(row);
            to.write_bytes(0, width);
            for tap in 0..of.seen {
                let Some(from) = of.seen_row(first + row + tap) else { continue };
                let taps = self.scratch.taps.add(tap * width);
                for segment in of.segments() {
                    let (from, taps) = (from.add(segment.from), taps.add(segment.to));
                    let to = to.add(segment.to);
                    for i in 0..segment.len {
                        *to.add(i) += *taps.add(i) * *from.add(i);
                    }
                }
            }
            let all = std::slice::from_raw_parts_mut(to, width);
            for x in all.as_chunks_mut::<LANES>().0 {
                let shares = sigmoid::<V>(x);
                for (x, share) in x.iter_mut().zip(shares) {
                    *x *= share;
                }
            }
            let (query, key) = (to.add(query.to), to.add(key.to));
            for (x, root) in [(query, (of.key_dim as f32).sqrt()), (key, 1.0)] {
                let length = (dot::<V>(x, x, of.key_dim) + LENGTH_EPSILON).sqrt();
                let factor = 1.0 / (length * root);
                for i in 0..of.key_dim {
                    *x.add(i) *= factor;
                }
            }
            let x = of.x.add((first + row) * of.stride + of.channels());
            let b = x.add(of.value_heads * of.value_dim + of.head);
            let step = *b.add(of.value_heads) + *of.step.add(of.head);
            let softplus = if step > 20.0 { step } else { step.exp().ln_1p() };
            *self.scratch.factors.add(row) = Factors {
                decay: (-(*of.decay.add(of.head)).exp() * softplus).exp(),
                share: 1.0 / (1.0 + (-*b).exp()),
                product: dot::<V>(query, key, of.key_dim),
            };
        }
    }

    /// Takes `rows` rows over `W` vectors of the state's columns, from `column` on, or over one that is not whole.
    #[inline(always)]
    unsafe fn recur<V: Vector, const W: usize>(
        &self,
        rows: usize,
        column: usize,
        state: Option<*const f32>,
        left: *mut f32,
    ) {
        let GatedDelta { key_dim, value_dim, .. } = *self.of;
        let len = (value_dim - column).min(W * LANES);
        let whole = len == W * LANES;
        let [_, key, value] = self.of.segments().map(|it| it.to);
        let block = Columns { at: self.scratch.block, stride: W * LANES };
        // SAFETY: columns of the state, and room for them in the scratch, which has whole vectors.
        unsafe {
            let state =
                state.map(|at| Columns { at: at.add(column).cast_mut(), stride: value_dim });
            let left = Columns { at: left.add(column), stride: value_dim };
            let mut at = match state {
                Some(state) if whole => state,
                Some(state) => {
                    copy(key_dim, len, state, block);
                    block
                }
                None => {
                    block.at.write_bytes(0, key_dim * block.stride);
                    block
                }
            };
            let mut found = pass::<V, W>(key_dim, at, None, Some(self.operands(0)));
            each!(row in rows, {
                let Factors { decay, share, product } = *self.scratch.factors.add(row);
                let decay = V::splat(decay);
                let value = self.row(row).add(value + column);
                let [asked, known] = found;
                let mut delta = [V::splat(0.0); W];
                each!(c in W, {
                    let value = value.add(c * LANES);
                    let known = decay.mul(known[c]).mul(V::splat(-1.0));
                    delta[c] = V::load(value).add(known).mul(V::splat(share));
                    delta[c].mul_add(V::splat(product), decay.mul(asked[c])).store(value);
                });
                let more = row + 1 < rows;
                let to = if more || !whole { block } else { left };
                let change = Some(Change { to, decay, key: self.row(row).add(key), delta });
                if more {
                    found = pass::<V, W>(key_dim, at, change, Some(self.operands(row + 1)));
                    at = block;
                } else {
                    pass::<V, W>(key_dim, at, change, None);
                }
            });
            if !whole {
                copy(key_dim, len, block, left);
            }
        }
    }

    /// The norm of what a row gives, times what its `z` goes through.
    #[inline(always)]
    unsafe fn finish<V: Vector>(&self, first: usize, row: usize) {
        let of = self.of;
        let GatedDelta { head, value_dim, .. } = *of;
        let [_, _, value] = of.segments();
        // SAFETY: rows that there are, and those of the scratch.
        unsafe {
            let y = self.row(row).add(value.to);
            let norm = Norm {
                x: y,
                weight: of.norm,
                bias: std::ptr::null(),
                y,
                columns: value_dim,
                epsilon: of.epsilon,
                offset: 0.0,
                centred: false,
                add: false,
            };
            Job::<V>::run(&norm);
            let z = of.x.add((first + row) * of.stride + of.channels() + head * value_dim);
            let gate = Gate {
                activation: Activation::Silu,
                gate: z,
                up: y,
                y: of.output.add((first + row) * of.output_stride + head * value_dim),
                len: value_dim,
            };
            Job::<V>::run(&gate);
        }
    }

    /// The latest rows of what the convolution reads; those before the first are zero.
    #[inline(always)]
    unsafe fn keep_latest(&self) {
        let of = self.of;
        let [query, key, value] = of.segments();
        let all = [query, key, value];
        let mine = if of.first { &all[..] } else { &all[2..] };
        for row in 0..of.seen - 1 {
            // SAFETY: columns of rows that there are, and of those that are left.
            unsafe {
                let from = of.seen_row(of.rows + row);
                let to = of.latest.add(row * of.channels());
                for segment in mine {
                    let to = to.add(segment.from);
                    match from {
                        Some(from) => {
                            to.copy_from_nonoverlapping(from.add(segment.from), segment.len);
                        }
                        None => to.write_bytes(0, segment.len),
                    }
                }
            }
        }
    }
}

/// Some columns of `[key_dim, stride]`.
#[derive(Clone, Copy)]
struct Columns {
    at: *mut f32,
    stride: usize,
}

/// # Safety
///
/// There are `len` columns of `key_dim` rows in both, and they are different ones.
unsafe fn copy(key_dim: usize, len: usize, from: Columns, to: Columns) {
    for i in 0..key_dim {
        // SAFETY: the caller's promise.
        unsafe {
            let to = to.at.add(i * to.stride);
            to.copy_from_nonoverlapping(from.at.add(i * from.stride), len);
        }
    }
}

/// What a row does to some columns of the state.
#[derive(Clone, Copy)]
struct Change<V, const W: usize> {
    /// Where they are written; may be where they are.
    to: Columns,
    decay: V,
    key: *const f32,
    delta: [V; W],
}

/// Changes `W` vectors of columns, and finds what lies there then at a query and at a key.
///
/// # Safety
///
/// As for [`Vector`]; there are so many columns of `key_dim` rows, and as many elements of queries and keys.
#[inline(always)]
unsafe fn pass<V: Vector, const W: usize>(
    key_dim: usize,
    of: Columns,
    change: Option<Change<V, W>>,
    at: Option<[*const f32; 2]>,
) -> [[V; W]; 2] {
    // SAFETY: the caller's promise.
    unsafe {
        let mut found = [[V::splat(0.0); W]; 2];
        each!(i in key_dim, {
            let mut state = [V::splat(0.0); W];
            each!(c in W, {
                state[c] = V::load(of.at.add(i * of.stride + c * LANES));
            });
            if let Some(Change { to, decay, key, delta }) = change {
                let key = V::splat(*key.add(i));
                each!(c in W, {
                    state[c] = delta[c].mul_add(key, state[c].mul(decay));
                    state[c].store(to.at.add(i * to.stride + c * LANES));
                });
            }
            if let Some(at) = at {
                each!(which in 2, {
                    let factor = V::splat(*at[which].add(i));
                    each!(c in W, {
                        found[which][c] = state[c].mul_add(factor, found[which][c]);
                    });
                });
            }
        });
        found
    }
}
