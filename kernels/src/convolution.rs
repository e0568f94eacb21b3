//! A gated convolution over the latest rows of a sequence, column by column. What rows keep for those behind
//! them lies in the pages of the KV cache, half of it where keys of attention lie and half where values do.

use crate::dispatch::enter;

use crate::vector::{Job, Vector};
use crate::{Isa, KV_BLOCK, KvFormat};

/// One row, and where what it keeps goes.
#[derive(Clone, Copy, Debug)]
pub struct KeepProduct {
    /// `[3, width]`: `b`, `c` and `x`.
    pub row: *const f32,
    /// Elements of each; even.
    pub width: usize,
    /// The row's page where keys would lie, `[64, width / 2]` in `format`.
    pub keys: *mut u8,
    /// The row's page where values would lie, likewise.
    pub values: *mut u8,
    /// The row's place in its page, below 64.
    pub slot: usize,
    /// How the pages store numbers.
    pub format: KvFormat,
}

/// One row, and what the rows before it have kept.
#[derive(Clone, Copy, Debug)]
pub struct Convolve {
    /// `[3, width]`: `b`, `c` and `x`.
    pub row: *const f32,
    /// Elements of each; even.
    pub width: usize,
    /// `[width, seen]`: of each column a factor of each row that is seen, the last one of the row itself.
    pub taps: *const f32,
    /// Rows that are seen; at least 1.
    pub seen: usize,
    /// Of all pages, where keys would lie, `[64, width / 2]` in `format` each.
    pub keys: *const u8,
    /// Of all pages, where values would lie, likewise.
    pub values: *const u8,
    /// The numbers of the sequence's pages, of all up to the row's.
    pub pages: *const i32,
    /// The row's position in its sequence.
    pub position: usize,
    /// `[width]`
    pub output: *mut f32,
    /// How the pages store numbers.
    pub format: KvFormat,
}

/// Writes a row's `b * x` to the cache.
///
/// # Safety
///
/// The CPU has `isa`, every pointer is valid for what its field states, and nothing else accesses the slot
/// during the call.
pub unsafe fn keep_product(isa: Isa, of: &KeepProduct) {
    // SAFETY: the caller's promise.
    unsafe { enter(isa, of) }
}

/// Writes `c` times the sum of what the rows that are seen have kept, each times its tap, the earliest first.
/// There is nothing before the sequence's first row.
///
/// # Safety
///
/// The CPU has `isa`, every pointer is valid for what its field states, the row and those before it that are
/// seen have been [kept](keep_product), and nothing else accesses `output` during the call.
pub unsafe fn convolve(isa: Isa, of: &Convolve) {
    // SAFETY: the caller's promise.
    unsafe { enter(isa, of) }
}

impl<V: Vector> Job<V> for KeepProduct {
    #[inline(always)]
    unsafe fn run(&self) {
        // SAFETY: the caller's promise.
        unsafe {
            match self.format {
                KvFormat::F32 => self.keep::<f32>(|x| x),
                KvFormat::F16 => self.keep::<half::f16>(half::f16::from_f32),
            }
        }
    }
}

impl KeepProduct {
    #[inline(always)]
    unsafe fn keep<T>(&self, store: impl Fn(f32) -> T) {
        let Self { row, width, keys, values, slot, .. } = *self;
        let half = width / 2;
        for (first, page) in [(0, keys), (half, values)] {
            // SAFETY: half of the row, and its slot in the page.
            unsafe {
                let (b, x) = (row.add(first), row.add(2 * width + first));
                let to = page.cast::<T>().add(slot * half);
                for i in 0..half {
                    to.add(i).write_unaligned(store(*b.add(i) * *x.add(i)));
                }
            }
        }
    }
}

impl<V: Vector> Job<V> for Convolve {
    #[inline(always)]
    unsafe fn run(&self) {
        // SAFETY: the caller's promise.
        unsafe {
            match self.format {
                KvFormat::F32 => self.sum::<f32>(|x| x),
                KvFormat::F16 => self.sum::<half::f16>(half::f16::to_f32),
            }
        }
    }
}

impl Convolve {
    #[inline(always)]
    unsafe fn sum<T>(&self, load: impl Fn(T) -> f32) {
        let Self { row, width, taps, seen, keys, values, pages, position, output, .. } = *self;
        let half = width / 2;
        for (first, memory) in [(0, keys), (half, values)] {
            // SAFETY: half of the row, and of each row before it that is seen and there, in pages that the
            // table names.
            unsafe {
                let output = output.add(first);
                for i in 0..half {
                    *output.add(i) = 0.0;
                }
                for tap in seen.saturating_sub(position + 1)..seen {
                    let at = position + 1 + tap - seen;
                    let page = *pages.add(at / KV_BLOCK) as usize;
                    let kept = memory.cast::<T>().add((page * KV_BLOCK + at % KV_BLOCK) * half);
                    let taps = taps.add(first * seen + tap);
                    for i in 0..half {
                        let kept = load(kept.add(i).read_unaligned());
                        *output.add(i) += *taps.add(i * seen) * kept;
                    }
                }
                let c = row.add(width + first);
                for i in 0..half {
                    *output.add(i) *= *c.add(i);
                }
            }
        }
    }
}
