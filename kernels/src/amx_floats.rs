//! bfloat16 weights by tiles, whatever the number of rows.
//!
//! Activations are one bfloat16 each or three (`amx_activations.rs`), which is both arithmetics in one kernel.
//!
//! Sums are added up in the order of pieces of 32 columns, by the same instructions for one row and for
//! many: a row has the same bits among any others.

use std::arch::x86_64::*;
use std::ops::Range;

use super::amx::{self, ROW, ROWS, TILE};
use super::amx_activations::{Activations, DEPTH};
use super::avx512::pairs;
use super::scratch::with_scratch;
use super::tile::AHEAD;
use super::walk::clear_padding;
use super::{Kernel, LANES, Product};

/// Columns that many rows meet together, of two blocks: 32 KB, which they meet from the L1 cache.
const PIECE: usize = 512;

/// Tiles of rows that are few: they meet blocks from their beginning to their end, as these are read.
const FEW: usize = 2;

/// How many tiles later than it is written a tile of a block is met by few rows, and how many are kept.
const LATER: usize = 1;
const RING: usize = LATER + 1;

/// Blocks that meet a piece of the activations of many rows before the next one is arranged, and rows that
/// are arranged together: 0.8 MB of f32 activations beside 0.5 MB of sums, for caches of 2 MB.
const BLOCKS: usize = 32;
const MANY: usize = 256;

/// Packed blocks of bfloat16.
pub(super) trait Blocks {
    /// A block that is being decoded.
    type Reader: Copy;

    /// A reader of block `block` from a column on, a multiple of [`DEPTH`].
    ///
    /// # Safety
    ///
    /// The CPU has AVX-512 VNNI; there is such a block for as long as it is read.
    unsafe fn open(&self, block: usize, column: usize) -> Self::Reader;

    /// Writes the next [`DEPTH`] columns as vectors of pairs: of sixteen lanes two columns each.
    ///
    /// # Safety
    ///
    /// As for [`open`](Self::open); there are as many columns, and room for a tile.
    unsafe fn decode(reader: &mut Self::Reader, to: *mut u8);
}

/// Whether the kernel is for matrices of so many columns.
pub(super) fn fits(columns: usize) -> bool {
    columns > 0 && columns.is_multiple_of(DEPTH)
}

/// The product with `blocks`; its columns [fit](fits).
///
/// # Safety
///
/// As for [`Kernel`], with blocks of bfloat16 and activations as `X` says.
pub(super) unsafe fn multiply<X: Activations>(p: &Product, blocks: &impl Blocks) {
    // SAFETY: the caller's promise; each part is some of its rows.
    unsafe {
        clear_padding(p);
        for first in (0..p.used).step_by(MANY) {
            let rows = MANY.min(p.used - first);
            let x = p.x.add(first * p.columns * X::BYTES);
            let y = p.y.add(first * p.stride);
            let part = Product { x, y, rows, used: rows, ..*p };
            let plan = Plan::new(&part);
            with_scratch(plan.words::<X>(), |scratch| {
                amx::with_tiles(plan.rows, ROW, || run::<X, _>(&plan, blocks, scratch.cast()));
            });
        }
    }
}

/// How rows and columns are cut.
struct Plan<'a> {
    p: &'a Product,
    /// Rows of a tile, and tiles of rows. Those behind the last row are whatever was there.
    rows: usize,
    tiles: usize,
    /// Columns of the activations that are arranged together: all, where rows are few.
    piece: usize,
}

impl<'a> Plan<'a> {
    fn new(p: &'a Product) -> Self {
        let (rows, tiles) = (p.used.min(ROWS), p.used.div_ceil(ROWS));
        let piece = if tiles <= FEW { p.columns } else { PIECE.min(p.columns) };
        Self { p, rows, tiles, piece }
    }

    fn is_of_few(&self) -> bool {
        self.tiles <= FEW
    }

    /// Bytes of a tile of rows.
    fn tile(&self) -> usize {
        self.rows * ROW
    }

    /// Bytes of arranged activations: `[PARTS, tiles, piece / DEPTH]` tiles.
    fn arranged<X: Activations>(&self) -> usize {
        X::PARTS * self.tiles * (self.piece / DEPTH) * self.tile()
    }

    /// Bytes of two blocks decoded: `[piece / DEPTH, 2]` tiles, or some that are written again and again.
    fn decoded(&self) -> usize {
        2 * TILE * if self.is_of_few() { RING } else { self.piece / DEPTH }
    }

    /// Words of scratch: what is decoded, the activations, and sums, `[blocks, tiles]` tiles.
    fn words<X: Activations>(&self) -> usize {
        let blocks = if self.is_of_few() { 2 } else { BLOCKS };
        let sums = blocks * self.tiles * self.tile();
        (self.decoded() + self.arranged::<X>() + sums) / size_of::<f32>()
    }

    /// Writes the activations of some columns.
    ///
    /// # Safety
    ///
    /// As for [`multiply`]; there are [`arranged`](Self::arranged) bytes at `to`.
    #[inline(always)]
    unsafe fn arrange<X: Activations>(&self, columns: Range<usize>, to: *mut u8) {
        let of_tile = self.piece / DEPTH * self.tile();
        for row in 0..self.p.used {
            let of_row = (row * self.p.columns + columns.start) * X::BYTES;
            let at = row / self.rows * of_tile + row % self.rows * ROW;
            for depth in 0..columns.len() / DEPTH {
                // SAFETY: the caller's promise.
                unsafe {
                    let from = self.p.x.add(of_row + depth * DEPTH * X::BYTES);
                    X::split(from, to.add(at + depth * self.tile()), self.tiles * of_tile);
                }
            }
        }
    }
}

/// # Safety
///
/// As for [`multiply`]; in [`amx::with_tiles`], and the scratch has [`Plan::words`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn run<X: Activations, B: Blocks>(plan: &Plan<'_>, blocks: &B, scratch: *mut u8) {
    let decoded = scratch;
    // SAFETY: the caller's promise: the scratch has all of these.
    unsafe {
        let x = decoded.add(plan.decoded());
        let sums = x.add(plan.arranged::<X>());
        match plan.is_of_few() {
            true => few::<X, B>(plan, blocks, decoded, x, sums),
            false => many::<X, B>(plan, blocks, decoded, x, sums),
        }
    }
}

/// Few rows meet two blocks at a time, each from its beginning to its end: one of the first half of the run and
/// one of the second, so that memory is read in two places, each in order.
///
/// # Safety
///
/// As for [`run`].
#[inline(always)]
unsafe fn few<X: Activations, B: Blocks>(
    plan: &Plan<'_>,
    blocks: &B,
    decoded: *mut u8,
    x: *mut u8,
    sums: *mut u8,
) {
    let p = plan.p;
    // SAFETY: the caller's promise.
    unsafe {
        plan.arrange::<X>(0..p.columns, x);
        let half = p.blocks / 2;
        for block in 0..half {
            let meet = Meet { plan, block, apart: half, tile: 0, x, sums };
            match plan.tiles {
                1 => meet.stream::<X, B, 1, 2>(blocks, decoded),
                _ => meet.stream::<X, B, 2, 2>(blocks, decoded),
            }
        }
        if p.blocks % 2 == 1 {
            let meet = Meet { plan, block: 2 * half, apart: 0, tile: 0, x, sums };
            match plan.tiles {
                1 => meet.stream::<X, B, 1, 1>(blocks, decoded),
                _ => meet.stream::<X, B, 2, 1>(blocks, decoded),
            }
        }
    }
}

/// Many rows meet a piece of some blocks after the other, which all meet while it is in the L1 cache.
///
/// # Safety
///
/// As for [`run`].
#[inline(always)]
unsafe fn many<X: Activations, B: Blocks>(
    plan: &Plan<'_>,
    blocks: &B,
    decoded: *mut u8,
    x: *mut u8,
    sums: *mut u8,
) {
    let p = plan.p;
    // SAFETY: the caller's promise.
    unsafe {
        for group in (0..p.blocks).step_by(BLOCKS) {
            for first in (0..p.columns).step_by(plan.piece) {
                let columns = first..p.columns.min(first + plan.piece);
                plan.arrange::<X>(columns.clone(), x);
                for block in (group..p.blocks.min(group + BLOCKS)).step_by(2) {
                    let both = p.blocks - block > 1;
                    for i in 0..=usize::from(both) {
                        let mut reader = blocks.open(block + i, first);
                        for depth in 0..columns.len() / DEPTH {
                            B::decode(&mut reader, decoded.add((2 * depth + i) * TILE));
                        }
                    }
                    for tile in (0..plan.tiles).step_by(2) {
                        let sums = sums.add(((block - group) * plan.tiles + tile) * plan.tile());
                        let meet = Meet { plan, block, apart: 1, tile, x, sums };
                        match (plan.tiles - tile > 1, both) {
                            (true, true) => meet.piece::<X, 2, 2>(columns.clone(), decoded),
                            (true, false) => meet.piece::<X, 2, 1>(columns.clone(), decoded),
                            (false, true) => meet.piece::<X, 1, 2>(columns.clone(), decoded),
                            (false, false) => meet.piece::<X, 1, 1>(columns.clone(), decoded),
                        }
                    }
                }
            }
        }
    }
}

/// One or two tiles of rows and one or two blocks.
struct Meet<'a> {
    plan: &'a Plan<'a>,
    /// The first of the blocks, and how far behind it the second one is.
    block: usize,
    apart: usize,
    /// The first of the tiles.
    tile: usize,
    /// The arranged activations, of all rows.
    x: *const u8,
    /// Sums of the blocks, `[BLOCKS, tiles]` tiles, from those of the first block and of the first of the
    /// tiles on.
    sums: *mut u8,
}

/// `amx::$call` with each tile of sums and its place: tiles 0 and 1 are those of the first tile of rows, 2 and
/// 3 those of the second.
macro_rules! each_sum {
    ($self:ident, $call:ident $(, $place:ident, $stride:expr)?) => {
        unroll!(SUM, {
            if SUM / 2 < ROWS && SUM % 2 < BLOCKS {
                $(
                    let tile = SUM % 2 * $self.plan.tiles + SUM / 2;
                    let $place = $self.sums.add(tile * $self.plan.tile());
                )?
                amx::$call::<SUM>($($place, $stride)?);
            }
        }, 0 1 2 3)
    };
}

impl Meet<'_> {
    /// All columns, which are decoded on the way.
    ///
    /// # Safety
    ///
    /// As for [`run`], with `ROWS` tiles of rows and `BLOCKS` blocks.
    #[inline(always)]
    unsafe fn stream<X: Activations, B: Blocks, const ROWS: usize, const BLOCKS: usize>(
        &self,
        blocks: &B,
        decoded: *mut u8,
    ) {
        let depths = self.plan.p.columns / DEPTH;
        let place = |depth: usize| decoded.wrapping_add(depth % RING * 2 * TILE);
        // SAFETY: the caller's promise.
        unsafe {
            // Not in a closure: it would be compiled without the instructions.
            let reader = blocks.open(self.block, 0);
            let mut readers = [reader; BLOCKS];
            for (i, reader) in readers.iter_mut().enumerate().skip(1) {
                *reader = blocks.open(self.block + i * self.apart, 0);
            }
            each_sum!(self, zero);
            // A tile that is met has been written a while ago, or it would wait for what is on its way to
            // the cache.
            for depth in 0..depths + LATER {
                if depth < depths {
                    for (i, reader) in readers.iter_mut().enumerate() {
                        B::decode(reader, place(depth).add(i * TILE));
                    }
                }
                if depth >= LATER {
                    self.depth::<X, ROWS, BLOCKS>(place(depth - LATER), depth - LATER);
                }
            }
            each_sum!(self, store, place, ROW);
            self.finish(ROWS, BLOCKS);
        }
    }

    /// A piece of the columns, which are decoded.
    ///
    /// # Safety
    ///
    /// As for [`run`], with `ROWS` tiles of rows and `BLOCKS` blocks.
    #[inline(always)]
    unsafe fn piece<X: Activations, const ROWS: usize, const BLOCKS: usize>(
        &self,
        columns: Range<usize>,
        decoded: *const u8,
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            if columns.start == 0 {
                each_sum!(self, zero);
            } else {
                each_sum!(self, load, place, ROW);
            }
            for depth in 0..columns.len() / DEPTH {
                self.depth::<X, ROWS, BLOCKS>(decoded.add(depth * 2 * TILE), depth);
            }
            each_sum!(self, store, place, ROW);
            if columns.end == self.plan.p.columns {
                self.finish(ROWS, BLOCKS);
            }
        }
    }

    /// Adds the products of [`DEPTH`] columns, those that lie at `depth` of the arranged ones.
    ///
    /// # Safety
    ///
    /// As for [`run`].
    #[inline(always)]
    unsafe fn depth<X: Activations, const ROWS: usize, const BLOCKS: usize>(
        &self,
        decoded: *const u8,
        depth: usize,
    ) {
        let plan = self.plan;
        let (tile, depths) = (plan.tile(), plan.piece / DEPTH);
        let x = |part: usize| {
            self.x.wrapping_add(((part * plan.tiles + self.tile) * depths + depth) * tile)
        };
        // SAFETY: the caller's promise.
        unsafe {
            amx::load::<6>(decoded, ROW);
            if BLOCKS == 2 {
                amx::load::<7>(decoded.add(TILE), ROW);
            }
            for part in 0..X::PARTS {
                amx::load::<4>(x(part), ROW);
                amx::add_bf16::<0, 4, 6>();
                if BLOCKS == 2 {
                    amx::add_bf16::<1, 4, 7>();
                }
                if ROWS == 2 {
                    amx::load::<5>(x(part).add(depths * tile), ROW);
                    amx::add_bf16::<2, 5, 6>();
                    if BLOCKS == 2 {
                        amx::add_bf16::<3, 5, 7>();
                    }
                }
            }
        }
    }

    /// Copies the sums of rows that there are to the result.
    ///
    /// # Safety
    ///
    /// As for [`run`].
    #[inline(always)]
    unsafe fn finish(&self, rows: usize, blocks: usize) {
        let Plan { p, tiles, rows: of_tile, .. } = *self.plan;
        let first = self.tile * of_tile;
        for block in 0..blocks {
            for row in 0..(p.used - first).min(rows * of_tile) {
                // SAFETY: the caller's promise.
                unsafe {
                    let from = self.sums.add((block * tiles * of_tile + row) * ROW);
                    let to = p
                        .y
                        .add((first + row) * p.stride + (self.block + block * self.apart) * LANES);
                    _mm512_storeu_ps(to, _mm512_loadu_ps(from.cast()));
                }
            }
        }
    }
}

/// Blocks as [`Format::Bf16`](super::Format::Bf16) has them.
struct Packed {
    weights: *const u8,
    columns: usize,
}

/// Bytes of a column of a block.
const COLUMN: usize = LANES * size_of::<u16>();

impl Blocks for Packed {
    type Reader = Columns;

    #[inline(always)]
    unsafe fn open(&self, block: usize, column: usize) -> Columns {
        // SAFETY: the caller's promise.
        unsafe { Columns::new(self.weights.add(block * self.columns * COLUMN), column) }
    }

    #[inline(always)]
    unsafe fn decode(reader: &mut Columns, to: *mut u8) {
        // SAFETY: the caller's promise.
        unsafe { reader.decode(to) }
    }
}

/// Columns of a block that lie one after the other.
#[derive(Clone, Copy)]
pub(super) struct Columns(*const u8);

impl Columns {
    /// Those of the block at `block`, from `column` on.
    ///
    /// # Safety
    ///
    /// There is one.
    pub unsafe fn new(block: *const u8, column: usize) -> Self {
        // SAFETY: the caller's promise.
        Self(unsafe { block.add(column * COLUMN) })
    }

    /// As [`Blocks::decode`].
    ///
    /// # Safety
    ///
    /// As there.
    #[inline(always)]
    pub unsafe fn decode(&mut self, to: *mut u8) {
        // SAFETY: the caller's promise; a prefetch never faults.
        unsafe {
            for at in (0..TILE).step_by(ROW) {
                _mm_prefetch::<_MM_HINT_T0>(self.0.wrapping_add(at + AHEAD).cast());
                let pair = pairs(_mm512_loadu_si512(self.0.add(at).cast()));
                _mm512_storeu_si512(to.add(at).cast(), pair);
            }
            self.0 = self.0.add(TILE);
        }
    }
}

/// The kernel for packed blocks; that for matrices of other numbers of columns is `otherwise`.
///
/// # Safety
///
/// As for [`Kernel`], with bfloat16 weights and activations as `X` says.
pub(super) unsafe fn packed<X: Activations>(p: &Product, otherwise: Kernel) {
    // SAFETY: the caller's promise.
    unsafe {
        match fits(p.columns) {
            true => multiply::<X>(p, &Packed { weights: p.weights, columns: p.columns }),
            false => otherwise(p),
        }
    }
}
