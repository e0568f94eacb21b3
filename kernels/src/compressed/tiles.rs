//! Compressed blocks for products by tiles: decoded whole, those weights that stand by themselves too.

use super::super::amx::ROW;
use super::super::amx_activations::{Activations, DEPTH};
use super::super::amx_floats::{self, Blocks, Columns};
use super::super::avx512::Avx512;
use super::super::vector::Vector;
use super::super::{Kernel, Product};
use super::block::{Escapes, GROUP, Kind};
use super::decode::Decode;
use super::tile::{AHEAD, PAIRS, Stored};

/// Where a block is read.
#[derive(Clone, Copy)]
pub(in super::super) enum Reader {
    /// A plain one.
    Plain(Columns),
    Upper {
        /// The next group.
        group: *const u8,
        uppers: <Avx512<true> as Decode>::Uppers,
        /// The next column.
        column: usize,
        /// From there on.
        escapes: Escapes,
    },
}

impl Blocks for Stored<false> {
    type Reader = Reader;

    #[inline(always)]
    unsafe fn open(&self, block: usize, column: usize) -> Reader {
        // SAFETY: the caller's promise.
        unsafe {
            let of = self.block(block);
            if of.kind() == Kind::Plain {
                return Reader::Plain(Columns::new(of.body(), column));
            }
            let (groups, uppers) = Stored::open::<Avx512<true>>(self, block);
            let group = groups.add(column / GROUP * Self::GROUP_BYTES);
            let escapes = of.escapes(self.columns).from(column);
            Reader::Upper { group, uppers, column, escapes }
        }
    }

    #[inline(always)]
    unsafe fn decode(reader: &mut Reader, to: *mut u8) {
        // SAFETY: the caller's promise; a prefetch never faults. Escapes are of these columns.
        unsafe {
            let (group, uppers, column, escapes) = match reader {
                Reader::Plain(columns) => return columns.decode(to),
                Reader::Upper { group, uppers, column, escapes } => {
                    (group, *uppers, column, escapes)
                }
            };
            for i in 0..DEPTH / GROUP {
                let to = to.add(i * PAIRS * ROW);
                unroll!(HALF, {
                    let pairs = <Avx512<true>>::pairs(*group, HALF, uppers);
                    unroll!(OF_HALF, {
                        let pair = const { HALF * 2 + OF_HALF };
                        if pair * 64 < Self::GROUP_BYTES {
                            <Avx512<true>>::prefetch(group.wrapping_add(pair * 64 + AHEAD));
                        }
                        <Avx512<true>>::store_i32(pairs[OF_HALF], to.add(pair * ROW));
                    }, 0 1);
                }, 0 1);
                *group = group.add(Self::GROUP_BYTES);
            }
            let end = *column + DEPTH;
            for escape in escapes.before(end) {
                // A damaged one may be of a column that was there before.
                let of = escape.column().saturating_sub(*column);
                let word = of / 2 * ROW + escape.lane() * size_of::<u32>();
                to.add(word).cast::<u16>().add(of % 2).write((escape.bits() >> 16) as u16);
            }
            *column = end;
        }
    }
}

/// The kernel for blocks that were bfloat16; that for matrices of other numbers of columns is `otherwise`.
///
/// # Safety
///
/// As for [`Kernel`], with activations as `X` says.
pub(super) unsafe fn compressed<X: Activations>(p: &Product, otherwise: Kernel) {
    let stored = Stored { matrix: p.weights, index: p.index, columns: p.columns };
    // SAFETY: the caller's promise.
    unsafe {
        match amx_floats::fits(p.columns) {
            true => amx_floats::multiply::<X>(p, &stored),
            false => otherwise(p),
        }
    }
}
