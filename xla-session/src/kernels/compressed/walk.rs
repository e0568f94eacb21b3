//! Which rows meet which blocks: a few meet them as they are stored, many meet what was decoded.

use super::super::floats::{F32, FloatTile};
use super::super::scratch::with_scratch;
use super::super::tile::Job;
use super::super::walk::{self, clear_padding, meet};
use super::super::{LANES, Product};
use super::block::{Block, GROUP, Kind};
use super::decode::{Arithmetic, Decode, Wide};
use super::tile::{AHEAD, Decoded, PAIRS, PairTile, Source, Stored};

/// Blocks that are decoded before many rows meet them: in 16 bits they stay in the L2 cache.
const TOGETHER: usize = 2;

/// The kernel of one vector and arithmetic, for weights that were f32 or bfloat16.
///
/// # Safety
///
/// As for [`Kernel`](super::Kernel).
pub(super) unsafe fn compressed<V: Decode, A: Arithmetic<V>, const SINGLE: bool>(p: &Product) {
    // SAFETY: the caller's promise.
    unsafe {
        clear_padding(p);
        with_scratch(decoded_words::<V, SINGLE>(p), |scratch| multiply::<V, A, SINGLE>(p, scratch));
    }
}

/// The kernel of one vector for bfloat16 weights and activations, which it widens.
///
/// # Safety
///
/// As for [`Kernel`](super::Kernel).
pub(super) unsafe fn widened<V: Decode>(p: &Product) {
    // SAFETY: the caller's promise.
    unsafe {
        walk::widened::<V>(p, decoded_words::<V, false>(p), |part, scratch| {
            multiply::<V, Wide, false>(part, scratch);
        });
    }
}

/// Words of scratch for what is decoded.
fn decoded_words<V: Decode, const SINGLE: bool>(p: &Product) -> usize {
    let words = TOGETHER * p.columns * LANES;
    match p.used > V::ROWS {
        true if SINGLE => words,
        true => words / 2,
        false => 0,
    }
}

/// The rows in use. The scratch is aligned as vectors are.
unsafe fn multiply<V: Decode, A: Arithmetic<V>, const SINGLE: bool>(
    p: &Product,
    scratch: *mut f32,
) {
    let many = p.used > V::ROWS;
    // SAFETY: the caller's promise, and of each block what its kind says.
    unsafe {
        let block = |i: usize| Block::new(p.weights.add(p.index.add(i).read_unaligned() as usize));
        let mut first = 0;
        while first < p.blocks {
            let kind = block(first).kind();
            let most = match kind {
                Kind::Plain => 1,
                _ if many => TOGETHER,
                _ => p.blocks,
            };
            let alike = (first..p.blocks).take(most).take_while(|&i| block(i).kind() == kind);
            let part = Product {
                index: p.index.add(first),
                y: p.y.add(first * LANES),
                blocks: alike.count(),
                ..*p
            };
            match kind {
                Kind::Plain => {
                    let part = Product { weights: block(first).body(), ..part };
                    if SINGLE {
                        meet::<V, _>(p.used, &FloatTile::<V, F32>::new(&part));
                    } else {
                        meet::<V, _>(p.used, &FloatTile::<V, A::Float>::new(&part));
                    }
                }
                Kind::Upper if many => meet_decoded::<V, A>(&part, scratch),
                Kind::Whole if many => meet_widened::<V>(&part, scratch),
                Kind::Upper => meet_stored::<V, A, false>(&part),
                Kind::Whole => meet_stored::<V, A, true>(&part),
            }
            first += part.blocks;
        }
    }
}

unsafe fn meet_stored<V: Decode, A: Arithmetic<V>, const WHOLE: bool>(p: &Product) {
    let stored = Stored::<WHOLE> { matrix: p.weights, index: p.index, columns: p.columns };
    // SAFETY: the caller's promise.
    unsafe { meet::<V, _>(p.used, &PairTile::<A, _>::new(p, stored, A::WORDS)) };
}

unsafe fn meet_decoded<V: Decode, A: Arithmetic<V>>(p: &Product, scratch: *mut f32) {
    let to = scratch.cast::<u8>();
    // SAFETY: the caller's promise.
    unsafe {
        V::enter(&Decode16 { p, to });
        let decoded = Decoded { weights: to, block_bytes: p.columns * LANES * 2 };
        meet::<V, _>(p.used, &PairTile::<A, _>::new(p, decoded, A::WORDS));
    }
}

unsafe fn meet_widened<V: Decode>(p: &Product, scratch: *mut f32) {
    // SAFETY: the caller's promise.
    unsafe {
        V::enter(&Decode32 { p, to: scratch });
        let part = Product { weights: scratch.cast(), ..*p };
        meet::<V, _>(p.used, &FloatTile::<V, F32>::new(&part));
    }
}

/// Decodes blocks without low halves to pairs of bfloat16.
struct Decode16<'a> {
    p: &'a Product,
    to: *mut u8,
}

impl<V: Decode> Job<V> for Decode16<'_> {
    #[inline(always)]
    unsafe fn run(&self) {
        // SAFETY: the caller's promise.
        unsafe {
            decode::<V, false>(
                self.p,
                #[inline(always)]
                |block, pair, words, _| {
                    let to = self.to.add((block * self.p.columns / 2 + pair) * LANES * 4);
                    V::store_words(words, to);
                },
                |block, escape| {
                    let column = block * self.p.columns + escape.column();
                    let word = (column / 2 * LANES + escape.lane()) * 2 + column % 2;
                    *self.to.cast::<u16>().add(word) = (escape.bits() >> 16) as u16;
                },
            );
        }
    }
}

/// Decodes blocks with low halves to columns of f32.
struct Decode32<'a> {
    p: &'a Product,
    to: *mut f32,
}

impl<V: Decode> Job<V> for Decode32<'_> {
    #[inline(always)]
    unsafe fn run(&self) {
        // SAFETY: the caller's promise.
        unsafe {
            decode::<V, true>(
                self.p,
                #[inline(always)]
                |block, pair, words, lows| {
                    let to = self.to.add((block * self.p.columns + pair * 2) * LANES);
                    V::column(words, lows, 0).store(to);
                    V::column(words, lows, 1).store(to.add(LANES));
                },
                |block, escape| {
                    let column = block * self.p.columns + escape.column();
                    *self.to.add(column * LANES + escape.lane()) = f32::from_bits(escape.bits());
                },
            );
        }
    }
}

/// Calls `pair` with each pair of columns of each block, then `patch` with what they do not hold.
///
/// # Safety
///
/// As for [`Decode`], the blocks having low halves as `WHOLE` says.
#[inline(always)]
unsafe fn decode<V: Decode, const WHOLE: bool>(
    p: &Product,
    pair: impl Fn(usize, usize, V::Integers, Option<V::Integers>),
    patch: impl Fn(usize, super::block::Escape),
) {
    let stored = Stored::<WHOLE> { matrix: p.weights, index: p.index, columns: p.columns };
    // SAFETY: the caller's promise; a prefetch never faults.
    unsafe {
        for block in 0..p.blocks {
            let (groups, table) = Source::<V>::open(&stored, block);
            for group in 0..p.columns / GROUP {
                let bytes = <Stored<WHOLE> as Source<V>>::GROUP_BYTES;
                let at = groups.add(group * bytes);
                for line in (0..bytes).step_by(64) {
                    V::prefetch(at.wrapping_add(line + AHEAD));
                }
                let codes = <Stored<WHOLE> as Source<V>>::codes(at);
                unroll!(I, {
                    let words = <Stored<WHOLE> as Source<V>>::pair(at, codes, I, table);
                    let lows = <Stored<WHOLE> as Source<V>>::lows(at, I);
                    pair(block, group * PAIRS + I, words, lows);
                }, 0 1 2 3);
            }
            stored.block(block).escapes(p.columns).for_each(|escape| patch(block, escape));
        }
    }
}
