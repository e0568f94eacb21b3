//! Which rows meet which blocks: a few meet them as they are stored, many meet what was decoded.

use super::super::floats::{F32, Float, FloatTile};
use super::super::scratch::with_scratch;
use super::super::walk::{self, clear_padding, meet};
use super::super::{LANES, Product};
use super::block::{Block, Kind};
use super::decode::{Arithmetic, Decode, Wide};
use super::panel::{self, TOGETHER};
use super::tile::{PairTile, Stored};

/// The kernel of one vector and arithmetic, for weights that were f32 or bfloat16.
///
/// # Safety
///
/// As for [`Kernel`](super::Kernel).
pub(super) unsafe fn compressed<V: Decode, A: Arithmetic<V>, const SINGLE: bool>(p: &Product) {
    // SAFETY: the caller's promise.
    unsafe {
        clear_padding(p);
        with_scratch(decoded_words::<V, A>(p), |scratch| multiply::<V, A, SINGLE>(p, scratch));
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
        walk::widened::<V>(p, decoded_words::<V, Wide>(p), |part, scratch| {
            multiply::<V, Wide, false>(part, scratch);
        });
    }
}

/// Whether so many rows meet what was decoded.
fn are_many<V: Decode, A: Arithmetic<V>>(rows: usize) -> bool {
    rows > A::Float::ROWS.max(V::STORED)
}

/// Words of scratch for what is decoded.
fn decoded_words<V: Decode, A: Arithmetic<V>>(p: &Product) -> usize {
    if are_many::<V, A>(p.used) { panel::words(p.used) } else { 0 }
}

/// The rows in use. The scratch has [`decoded_words`].
unsafe fn multiply<V: Decode, A: Arithmetic<V>, const SINGLE: bool>(
    p: &Product,
    scratch: *mut f32,
) {
    let many = are_many::<V, A>(p.used);
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
            let more = p.blocks - first - part.blocks;
            match kind {
                Kind::Plain => {
                    let part = Product { weights: block(first).body(), ..part };
                    if SINGLE {
                        meet::<V, _>(p.used, &FloatTile::<V, F32>::new(&part));
                    } else {
                        meet::<V, _>(p.used, &FloatTile::<V, A::Float>::new(&part));
                    }
                }
                Kind::Upper if many => panel::multiply::<V, A, false>(&part, more, scratch),
                Kind::Whole if many => panel::multiply::<V, A, true>(&part, more, scratch),
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
    unsafe { meet::<V, _>(p.used, &PairTile::<A, WHOLE>::new::<V>(p, stored)) };
}
