//! Which rows meet which weights, in which order: the weights stream through registers, several
//! blocks at a time, and each tile of rows meets them again, all but the first from the caches.

#[cfg(target_arch = "x86_64")]
use super::avx512::Avx512;
use super::decoded;
use super::floats::{Bf16, Float, FloatTile, Widen};
use super::integer_tile::{IntegerTile, SUM_WORDS};
use super::integers::{Group, Grouped, Integer};
#[cfg(target_arch = "x86_64")]
use super::many_rows;
#[cfg(target_arch = "x86_64")]
use super::rounded::Rounded;
use super::scales::Scales;
use super::scratch::with_scratch;
use super::tile::Parts;
use super::vector::Vector;
use super::{LANES, Product};

/// Rows that are widened together: what a worker keeps for them.
const MANY: usize = 256;

/// The kernel of one vector and format of floats.
///
/// # Safety
///
/// As for [`Kernel`](super::Kernel).
pub(super) unsafe fn floats<V: Vector, F: Float<V>>(p: &Product) {
    // SAFETY: the caller's promise.
    unsafe {
        clear_padding(p);
        meet::<V, _>(p.used, &FloatTile::<V, F>::new(p));
    }
}

/// The kernel of one vector for bf16 weights and activations, which it widens.
///
/// # Safety
///
/// As for [`Kernel`](super::Kernel).
pub(super) unsafe fn widened_bf16<V: Vector>(p: &Product) {
    // SAFETY: the caller's promise.
    unsafe {
        widened::<V>(p, 0, |part, _| {
            meet::<V, _>(part.used, &FloatTile::<V, Bf16>::new(part));
        });
    }
}

/// Calls `multiply` with rows of `p`, whose bf16 activations are widened to f32, and with `more`
/// words of scratch.
///
/// # Safety
///
/// As for [`Kernel`](super::Kernel).
pub(super) unsafe fn widened<V: Vector>(
    p: &Product,
    more: usize,
    multiply: impl Fn(&Product, *mut f32),
) {
    // SAFETY: the caller's promise; each part is some of its rows, and the scratch holds what is
    // widened of them.
    unsafe {
        clear_padding(p);
        for first in (0..p.used).step_by(MANY) {
            let rows = MANY.min(p.used - first);
            let from = p.x.cast::<u16>().add(first * p.columns);
            let y = p.y.add(first * p.stride);
            let len = rows * p.columns;
            let behind = len.next_multiple_of(LANES);
            with_scratch(behind + more, |to| {
                V::enter(&Widen { from, len, to });
                multiply(&Product { x: to.cast(), y, rows, used: rows, ..*p }, to.add(behind));
            });
        }
    }
}

/// The kernel for bf16 weights and activations where an instruction takes pairs of them.
///
/// # Safety
///
/// As for [`Kernel`](super::Kernel).
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(super) unsafe fn paired_bf16<V: Vector, Pairs: Float<V>, Wide: Vector>(p: &Product) {
    // SAFETY: the caller's promise.
    unsafe {
        if p.columns.is_multiple_of(2) {
            floats::<V, Pairs>(p);
        } else {
            widened_bf16::<Wide>(p);
        }
    }
}

/// The kernel of one vector and format of integers.
///
/// # Safety
///
/// As for [`Kernel`](super::Kernel).
pub(super) unsafe fn integers<V: Vector, F: Group<V>>(p: &Product) {
    // SAFETY: the caller's promise; there is as much scratch.
    unsafe {
        clear_padding(p);
        with_scratch(SUM_WORDS, |sums| {
            meet::<V, _>(p.used, &IntegerTile::<F>::new::<V>(p, sums));
        });
    }
}

/// The kernel of one vector and format of integers that one row meets in another way than more.
///
/// # Safety
///
/// As for [`Kernel`](super::Kernel).
pub(super) unsafe fn one_row_or_more<V: Vector, One: Group<V>, More: Group<V>>(p: &Product) {
    // SAFETY: the caller's promise.
    unsafe {
        if p.used == 1 {
            one_row::<V, One>(p);
        } else {
            integers::<V, More>(p);
        }
    }
}

/// The kernel of one vector and format of integers that several rows meet decoded.
///
/// # Safety
///
/// As for [`Kernel`](super::Kernel).
pub(super) unsafe fn one_row_or_decoded<V: Vector, I: Integer, S: Scales>(p: &Product) {
    // SAFETY: the caller's promise.
    unsafe {
        if p.used == 1 {
            one_row::<V, Grouped<I, S>>(p);
        } else {
            decoded::several::<V, I, S>(p);
        }
    }
}

/// The kernel of one format of integers with VNNI, which many rows meet [twelve at a time](super::many_rows).
///
/// # Safety
///
/// As for [`Kernel`](super::Kernel).
#[cfg(target_arch = "x86_64")]
pub(super) unsafe fn few_or_many<I: Integer, S: Scales>(p: &Product) {
    let many = match p.used < many_rows::FROM {
        true => 0,
        false => p.used / many_rows::ROWS * many_rows::ROWS,
    };
    // SAFETY: the caller's promise; there are rows behind those, if only some that are not used.
    unsafe {
        if many > 0 {
            many_rows::multiply::<I, S>(&Product { rows: many, used: many, ..*p });
        }
        if many < p.rows {
            let (x, ..) = Rounded::new(p.x.cast_mut(), p.columns).rows_from(many).parts();
            let y = p.y.add(many * p.stride);
            let (rows, used) = (p.rows - many, p.used - many);
            integers::<Avx512<true>, Grouped<I, S>>(&Product { x: x.cast(), y, rows, used, ..*p });
        }
    }
}

/// As [`integers`], of one row.
///
/// # Safety
///
/// As for [`Kernel`](super::Kernel), and one row is used.
unsafe fn one_row<V: Vector, F: Group<V>>(p: &Product) {
    // SAFETY: the caller's promise; there is as much scratch.
    unsafe {
        clear_padding(p);
        with_scratch(SUM_WORDS, |sums| V::run_one(&IntegerTile::<F>::new::<V>(p, sums)));
    }
}

/// Rows that are not in use become zero.
pub(super) unsafe fn clear_padding(p: &Product) {
    for row in p.used..p.rows {
        // SAFETY: a row of the result.
        unsafe { p.y.add(row * p.stride).write_bytes(0, p.blocks * LANES) };
    }
}

/// The first row of each tile, and how many it has: nearly the same number, at most `most`, all of which
/// instructions take together, but for an odd one of the first tile.
pub(super) fn tiles<V: Vector>(rows: usize, most: usize) -> impl Iterator<Item = (usize, usize)> {
    let together = rows.div_ceil(V::TOGETHER);
    let tiles = together.div_ceil(most / V::TOGETHER);
    let lacking = together * V::TOGETHER - rows;
    (0..tiles).map(move |i| {
        let [first, end] =
            [i, i + 1].map(|i| (i * together / tiles * V::TOGETHER).saturating_sub(lacking));
        (first, end - first)
    })
}

/// `rows` rows in tiles of nearly equal size, at most `V::ROWS`.
pub(super) unsafe fn meet<V: Vector, T: Parts<V>>(rows: usize, tile: &T) {
    // Several tiles of rows meet a few blocks before the next ones push these out of the caches, as many as the
    // smallest, which is the first, may take at a time.
    let together = match tiles::<V>(rows, V::ROWS).next() {
        Some((_, first)) if first == rows => tile.blocks().max(1),
        Some((_, 1..=4)) => 4,
        _ => 2,
    };
    for block in (0..tile.blocks()).step_by(together) {
        // SAFETY: blocks and rows of the tile.
        unsafe {
            let tile = tile.part(block, together.min(tile.blocks() - block));
            for (first, rows) in tiles::<V>(rows, V::ROWS) {
                V::run(rows, &tile.rows_from(first));
            }
        }
    }
}
