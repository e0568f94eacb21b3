//! Integers with scales by tiles, for many rows; not those that are multiplied with
//! [integers](super::scales::Scales::INTEGERS) first, which bytes do not hold.
//!
//! Activations are two planes of bytes, or one where they have eight bits, whose products with the bytes of weights
//! are as many tiles of exact sums for each group: the same integers as without tiles, and scaled in the same order.
//! So a row has the bits here that it has without tiles, among fewer.

use std::arch::x86_64::*;
use std::marker::PhantomData;

use super::amx::{self, ROW, ROWS, TILE};
use super::avx512::Avx512;
use super::integer_tile::block_bytes;
use super::integers::{Bits, Grouped, Integer, LINE, Levels, PAIRS, Rounding, Table};
use super::quads::{Quad, Quads};
use super::rounded::Rounded;
use super::scales::Scales;
use super::scratch::with_scratch;
use super::vector::Vector;
use super::walk::clear_padding;
use super::{LANES, Product};
use crate::format::{Format, GROUP};

type V = Avx512<true>;

/// Rows from which on tiles are the faster way for `format`: what they multiply goes through memory to be scaled.
/// Measured, two threads of an Emerald Rapids: with 9 to 31 rows 1.1 to 1.4 times the speed, with 8 0.8; where both halves
/// of a group are scaled with 9 to 20 0.8 to 1.0, with 32 1.4.
pub(super) fn from_rows(format: Format) -> usize {
    if format == Format::Q2K { 2 * ROWS } else { 9 }
}

/// `$body` for each of the `$rows` rows of a tile, and for up to three more; its number `$i` is a constant: a loop would
/// have the sums in memory.
macro_rules! each_row {
    ($i:ident in $rows:expr, $body:block) => {
        unroll!(FOUR, {
            if 4 * FOUR < $rows {
                unroll!(OF_FOUR, {
                    const $i: usize = 4 * FOUR + OF_FOUR;
                    $body
                }, 0 1 2 3);
            }
        }, 0 1 2 3);
    };
}

/// Groups that are decoded together, of two blocks: 20 KB, which rows meet from the L1 cache.
const PIECE: usize = 16;

/// How many steps later than they are multiplied products are scaled, for until they have reached the cache they
/// cannot be read; and how many are kept.
const LATER: usize = 2;
const RING: usize = LATER + 1;

/// Bytes of the integers of a group.
const INTEGERS: usize = GROUP * LANES;

/// Words of a plane of a group.
const PLANE_WORDS: usize = GROUP / size_of::<u32>();

/// Integers as bytes, four columns of each lane together.
pub(super) trait Bytes: Integer {
    /// Whether they lie so, with their signs: then nobody asks for [`bytes`](Self::bytes).
    const STORED: bool = false;

    /// Four columns of a group, as [`PairPlanes`] or [`QuadPlanes`] of activations have them, with what stands for
    /// zero in them; `i` is a constant after inlining.
    ///
    /// # Safety
    ///
    /// As for [`Integer::pairs`].
    #[inline(always)]
    unsafe fn bytes(group: *const u8, i: usize) -> __m512i {
        // SAFETY: the caller's promise. Of two pairs first the first columns of both.
        unsafe {
            let [first, second] =
                [Self::pairs::<V>(group, 2 * i), Self::pairs::<V>(group, 2 * i + 1)];
            _mm512_or_si512(first, _mm512_slli_epi16::<8>(second))
        }
    }
}

impl Bytes for Bits<6> {}
impl Bytes for Bits<5> {}
impl Bytes for Bits<2> {}

impl Bytes for Bits<8> {
    const STORED: bool = true;
}

impl Bytes for Bits<4> {
    #[inline(always)]
    unsafe fn bytes(group: *const u8, i: usize) -> __m512i {
        // SAFETY: the caller's promise.
        unsafe { Self::quad::<V>(group, i) }
    }
}

impl<T: Table> Bytes for Levels<T> {
    #[inline(always)]
    unsafe fn bytes(group: *const u8, i: usize) -> __m512i {
        // SAFETY: the caller's promise; the table is as long as the read.
        unsafe {
            let levels = _mm512_broadcast_i32x4(_mm_loadu_si128(T::LEVELS.as_ptr().cast()));
            _mm512_shuffle_epi8(levels, Bits::<4>::quad::<V>(group, i))
        }
    }
}

/// Activations of a group in two planes of bytes, the high ones and then the low ones, which count with their
/// sign: for integers that are taken out of their words as pairs.
pub(super) struct PairPlanes<I>(PhantomData<I>);

impl<I: Rounding> Rounding for PairPlanes<I> {
    #[inline(always)]
    unsafe fn arranged(integers: &[u32; GROUP]) -> [u32; PAIRS] {
        const SIGNS: u32 = 0x8000_8000;
        const EVEN: u32 = 0x00ff_00ff;
        // SAFETY: the caller's promise.
        let pairs = unsafe { I::arranged(integers) };
        let mut planes = [0; PAIRS];
        for (i, [first, second]) in pairs.as_chunks::<2>().0.iter().enumerate() {
            // A low byte counts as negative from 128 on: then the high byte is one more. Each half by itself.
            let up = |pair: &u32| ((pair & !SIGNS) + 0x0080_0080) ^ (pair & SIGNS);
            planes[i] = up(first) >> 8 & EVEN | up(second) & !EVEN;
            planes[PLANE_WORDS + i] = first & EVEN | second << 8 & !EVEN;
        }
        planes
    }
}

/// The same for [`Quad`]s; or in one plane, where activations have eight bits.
pub(super) struct QuadPlanes<const PLANES: usize>;

impl<const PLANES: usize> Rounding for QuadPlanes<PLANES> {
    const WORDS: usize = PLANES * PLANE_WORDS;

    #[inline(always)]
    unsafe fn arranged(integers: &[u32; GROUP]) -> [u32; PAIRS] {
        // SAFETY: the caller's promise.
        let quads = unsafe { Quads::<PLANES>::arranged(integers) };
        let mut planes = [0; PAIRS];
        for i in 0..PLANE_WORDS {
            for plane in 0..PLANES {
                planes[plane * PLANE_WORDS + i] = quads[i / 2 * 2 * PLANES + 2 * plane + i % 2];
            }
        }
        planes
    }
}

/// Bytes of a group that is decoded: its integers, if they do not lie as tiles take them, and for each part of it
/// scales and minima.
const fn decoded_bytes<I: Bytes, S: Scales>() -> usize {
    scales_at::<I>() + S::PARTS * 2 * ROW
}

/// Where its scales begin.
const fn scales_at<I: Bytes>() -> usize {
    if I::STORED { 0 } else { INTEGERS }
}

/// Decodes a group.
///
/// # Safety
///
/// As for [`Integer`] and [`Scales`]; there are [`decoded_bytes`] at `to`.
#[inline(always)]
unsafe fn decode<I: Bytes, S: Scales>(head: *const u8, group: *const u8, to: *mut u8) {
    // SAFETY: the caller's promise; a prefetch never faults.
    unsafe {
        if !I::STORED {
            unroll!(QUAD, {
                let mut bytes = I::bytes(group, QUAD);
                if !S::MINIMA && I::MIDDLE != 0 {
                    bytes = _mm512_sub_epi8(bytes, _mm512_set1_epi8(I::MIDDLE as u8 as i8));
                }
                _mm512_storeu_si512(to.add(QUAD * ROW).cast(), bytes);
            });
        }
        let beside = group.add(I::GROUP_BYTES);
        let scales = to.add(scales_at::<I>()).cast::<f32>();
        for part in 0..S::PARTS {
            S::scale::<V>(head, beside, part).store(scales.add(2 * part * LANES));
            S::minimum::<V>(head, beside, part).store(scales.add((2 * part + 1) * LANES));
        }
    }
}

/// How the rows of a product are cut.
struct Plan<'a> {
    p: &'a Product,
    x: Rounded,
    /// Tiles of rows, and the rows of each.
    tiles: usize,
    rows: usize,
}

impl<'a> Plan<'a> {
    fn new(p: &'a Product) -> Self {
        let x = Rounded::new(p.x.cast_mut(), p.columns);
        let tiles = p.used.div_ceil(ROWS);
        Self { p, x, tiles, rows: p.used.div_ceil(tiles) }
    }

    /// The first row of a tile; the last tile ends with the last row, and may have some of the one before.
    fn first(&self, tile: usize) -> usize {
        (tile * self.rows).min(self.p.used - self.rows)
    }

    /// Bytes of a group's numbers of a tile of rows: its scales, and the sums of each part.
    fn numbers<S: Scales>() -> usize {
        (1 + S::PARTS) * ROW
    }

    /// Bytes of scratch.
    fn bytes<I: Bytes, S: Scales, const PLANES: usize>(&self) -> usize {
        let numbers = self.tiles * self.x.groups() * Self::numbers::<S>();
        RING * PLANES * TILE + 2 * PIECE * decoded_bytes::<I, S>() + 2 * self.tiles * TILE + numbers
    }
}

/// The kernel for integers with scales, for at least [`from_rows`].
///
/// # Safety
///
/// As for [`Kernel`](super::Kernel), with tiles; as many rows are used, and activations are [`PairPlanes`] or so many
/// [`QuadPlanes`].
pub(super) unsafe fn many<I: Bytes, S: Scales, const PLANES: usize>(p: &Product) {
    const { assert!(!S::INTEGERS && matches!(PLANES, 1 | 2)) };
    let plan = Plan::new(p);
    // SAFETY: the caller's promise; there is as much scratch.
    unsafe {
        clear_padding(p);
        with_scratch(plan.bytes::<I, S, PLANES>() / size_of::<f32>(), |scratch| {
            amx::with_tiles(plan.rows, GROUP / S::PARTS, || match plan.rows {
                ROWS => run::<I, S, PLANES, true>(&plan, scratch.cast()),
                _ => run::<I, S, PLANES, false>(&plan, scratch.cast()),
            });
        });
    }
}

/// The loops: all rows meet a piece of two blocks after the other.
///
/// # Safety
///
/// As for [`many`]; in [`amx::with_tiles`], and the scratch has [`Plan::bytes`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn run<I: Bytes, S: Scales, const PLANES: usize, const FULL: bool>(
    plan: &Plan<'_>,
    scratch: *mut u8,
) {
    let Plan { p, x, tiles, rows } = *plan;
    let groups = x.groups();
    let group_bytes = I::GROUP_BYTES + S::BYTES;
    let together_bytes = S::HEAD + S::TOGETHER * group_bytes;
    // The head and the integers of a group.
    let stored = |block: usize, group: usize| {
        let block = p.weights.wrapping_add(block * block_bytes::<V, Grouped<I, S>>(groups));
        let head = block.wrapping_add(group / S::TOGETHER * together_bytes);
        (head, head.wrapping_add(S::HEAD + group % S::TOGETHER * group_bytes))
    };
    // SAFETY: the caller's promise: the scratch has all of these.
    unsafe {
        let products = scratch;
        let decoded = products.add(RING * PLANES * TILE);
        let sums = decoded.add(2 * PIECE * decoded_bytes::<I, S>());
        let numbers = sums.add(2 * tiles * TILE);
        for tile in 0..tiles {
            gather::<S>(plan, tile, numbers);
        }
        for pair in (0..p.blocks).step_by(2) {
            let blocks = 2.min(p.blocks - pair);
            for first in (0..groups).step_by(PIECE) {
                let end = groups.min(first + PIECE);
                for i in 0..blocks {
                    for group in first..end {
                        let (head, at) = stored(pair + i, group);
                        let to = i * PIECE + group - first;
                        decode::<I, S>(head, at, decoded.add(to * decoded_bytes::<I, S>()));
                    }
                }
                for tile in 0..tiles {
                    let (pairs, ..) = x.rows_from(plan.first(tile)).parts();
                    let of_tile = tile * groups + first;
                    for i in 0..blocks {
                        let decoded = decoded.add(i * PIECE * decoded_bytes::<I, S>());
                        let meet = Meet::<I, S, PLANES, FULL> {
                            rows,
                            // Those that lie as tiles take them have no heads among them.
                            integers: if I::STORED { stored(pair + i, first).1 } else { decoded },
                            scales: decoded.add(scales_at::<I>()).cast(),
                            ahead: (tile == 0).then(|| match end < groups {
                                true => stored(pair + i, end).1,
                                false => stored(pair + 2 + i, 0).1,
                            }),
                            x: pairs.cast::<u8>().add(first * PLANES * GROUP),
                            x_stride: x.stride() * size_of::<u32>(),
                            numbers: numbers.add(of_tile * Plan::numbers::<S>()).cast(),
                            products,
                            sums: sums.add((i * tiles + tile) * TILE).cast(),
                            format: PhantomData,
                        };
                        meet.piece(end - first, first == 0);
                        if end == groups {
                            for row in 0..meet.rows() {
                                let y = p.y.add((plan.first(tile) + row) * p.stride);
                                let sum = V::load(meet.sums.add(row * LANES));
                                sum.store(y.add((pair + i) * LANES));
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Writes what the groups of a tile of rows are scaled with: of each group the scales of the rows, then, as
/// f32, the sums of the rows in each part of it.
///
/// # Safety
///
/// As for [`run`].
#[inline(always)]
unsafe fn gather<S: Scales>(plan: &Plan<'_>, tile: usize, numbers: *mut u8) {
    let x = plan.x;
    // SAFETY: the caller's promise.
    unsafe {
        let first = x.rows_from(plan.first(tile));
        for group in 0..x.groups() {
            let at = (tile * x.groups() + group) * Plan::numbers::<S>();
            let numbers = numbers.add(at).cast::<f32>();
            for row in 0..plan.rows {
                let (_, scales, sums) = first.rows_from(row).parts();
                *numbers.add(row) = *scales.add(group);
                let sums = *sums.add(group);
                if S::PARTS == 1 {
                    *numbers.add(LANES + row) = sums[0].wrapping_add(sums[1]) as f32;
                } else {
                    *numbers.add(LANES + row) = sums[0] as f32;
                    *numbers.add(2 * LANES + row) = sums[1] as f32;
                }
            }
        }
    }
}

/// A tile of rows and a piece of a block.
struct Meet<I, S, const PLANES: usize, const FULL: bool> {
    rows: usize,
    /// Of its groups the integers, where they lie or decoded, and the scales and minima.
    integers: *const u8,
    scales: *const f32,
    /// What is read after it from memory, if this is the first tile of rows.
    ahead: Option<*const u8>,
    /// The planes of the groups, rows so many bytes apart.
    x: *const u8,
    x_stride: usize,
    /// What [`gather`] wrote of them.
    numbers: *const f32,
    /// `[RING, PLANES]` tiles: the products of some parts of groups, of high bytes and of low ones.
    products: *mut u8,
    /// `[ROWS, 16]`
    sums: *mut f32,
    format: PhantomData<(I, S)>,
}

impl<I: Bytes, S: Scales, const PLANES: usize, const FULL: bool> Meet<I, S, PLANES, FULL> {
    /// The rows of the tile, a constant where it is `FULL`.
    #[inline(always)]
    fn rows(&self) -> usize {
        if FULL { ROWS } else { self.rows }
    }

    /// Adds the products of the piece to the sums, or sets these to them.
    ///
    /// # Safety
    ///
    /// As for [`run`].
    // Products are written when older ones were read: a CPU takes reads for those of what is being written where the
    // low twelve bits of their addresses are the same.
    #[inline(always)]
    unsafe fn piece(&self, groups: usize, first: bool) {
        let steps = groups * S::PARTS;
        // SAFETY: the caller's promise; a prefetch never faults. Rows that a tile lacks of four have places too, for each
        // has those of sixteen, and whatever is in them no other row sees.
        unsafe {
            let mut sums = [V::splat(0.0); ROWS];
            if !first {
                each_row!(M in self.rows(), { sums[M] = V::load(self.sums.add(M * LANES)) });
            }
            for step in 0..steps + LATER {
                if step < steps {
                    if let Some(ahead) = self.ahead {
                        let bytes = I::GROUP_BYTES + S::BYTES;
                        for line in (0..bytes / S::PARTS).step_by(LINE) {
                            V::prefetch(ahead.wrapping_add(step * bytes / S::PARTS + line));
                        }
                    }
                    match step % 2 {
                        0 => self.multiply::<0, 1>(step),
                        _ => self.multiply::<2, 3>(step),
                    }
                }
                if step >= LATER {
                    self.scale(step - LATER, &mut sums);
                }
                if step < steps {
                    match step % 2 {
                        0 => self.keep::<0, 1>(step),
                        _ => self.keep::<2, 3>(step),
                    }
                }
            }
            each_row!(M in self.rows(), { sums[M].store(self.sums.add(M * LANES)) });
        }
    }

    /// Where the products of a part of a group are kept.
    fn products(&self, step: usize) -> *mut u8 {
        self.products.wrapping_add(step % RING * PLANES * TILE)
    }

    /// Multiplies a part of a group, by tiles `HIGH` and `LOW`.
    ///
    /// # Safety
    ///
    /// As for [`run`].
    #[inline(always)]
    unsafe fn multiply<const HIGH: usize, const LOW: usize>(&self, step: usize) {
        let (group, part) = (step / S::PARTS, step % S::PARTS);
        let plane = GROUP / S::PARTS;
        // SAFETY: the caller's promise.
        unsafe {
            let group_bytes =
                if I::STORED { I::GROUP_BYTES + S::BYTES } else { decoded_bytes::<I, S>() };
            let integers = self.integers.add(group * group_bytes + part * INTEGERS / S::PARTS);
            let x = self.x.add(group * PLANES * GROUP + part * plane);
            amx::load::<6>(integers, ROW);
            if PLANES == 2 {
                amx::load::<4>(x, self.x_stride);
                amx::load_at::<5, GROUP>(x, self.x_stride);
                amx::zero::<HIGH>();
                amx::add_i8::<HIGH, 4, 6>();
            } else {
                amx::load::<5>(x, self.x_stride);
            }
            amx::zero::<LOW>();
            amx::add_i8::<LOW, 5, 6>();
        }
    }

    /// Writes the products of a part of a group that [`multiply`](Self::multiply) has left in tiles.
    ///
    /// # Safety
    ///
    /// As for [`run`].
    #[inline(always)]
    unsafe fn keep<const HIGH: usize, const LOW: usize>(&self, step: usize) {
        let products = self.products(step);
        // SAFETY: the caller's promise.
        unsafe {
            match PLANES {
                2 => {
                    amx::store::<HIGH>(products, ROW);
                    amx::store_at::<LOW, TILE>(products, ROW);
                }
                _ => amx::store::<LOW>(products, ROW),
            }
        }
    }

    /// Adds the products of a part of a group to the sums.
    ///
    /// # Safety
    ///
    /// As for [`run`].
    #[inline(always)]
    unsafe fn scale(&self, step: usize, sums: &mut [V; ROWS]) {
        let (group, part) = (step / S::PARTS, step % S::PARTS);
        // SAFETY: the caller's promise.
        unsafe {
            let scales = self.scales.byte_add(group * decoded_bytes::<I, S>());
            let scale = V::load(scales.add(2 * part * LANES));
            let minimum = V::load(scales.add((2 * part + 1) * LANES));
            let numbers = self.numbers.add(group * Plan::numbers::<S>() / size_of::<f32>());
            let products = self.products(step);
            each_row!(M in self.rows(), {
                let row = products.add(M * ROW);
                let mut product = _mm512_loadu_si512(row.add((PLANES - 1) * TILE).cast());
                if PLANES == 2 {
                    let high = _mm512_slli_epi32::<8>(_mm512_loadu_si512(row.cast()));
                    product = _mm512_add_epi32(high, product);
                }
                let mut of_group = V::from_i32(product).mul(scale);
                if S::MINIMA {
                    let x_sum = V::splat(*numbers.add((1 + part) * LANES + M));
                    of_group = minimum.mul_add(x_sum, of_group);
                }
                sums[M] = of_group.mul_add(V::splat(*numbers.add(M)), sums[M]);
            });
        }
    }
}
