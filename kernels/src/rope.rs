//! Rotary position embeddings (Su et al., RoFormer) in Hugging Face's half-split form, and the KV
//! cache's new rows: what attention reads of a token is made in one pass over what its projections
//! gave.

use crate::dispatch::enter;

use crate::vector::{Job, Vector};
use crate::{Isa, KV_BLOCK, KvFormat};

/// One row of queries, keys and values, and where its keys and values go.
#[derive(Clone, Copy, Debug)]
pub struct RotateAppend {
    /// `[heads + 2 * kv_heads, width]`: queries, keys, values. Queries and keys are rotated in place.
    pub row: *mut f32,
    /// Cosines of the row's position, for queries and for keys, `[rotated / 2]` each.
    pub cos: [*const f32; 2],
    /// Sines of the row's position, for queries and for keys, `[rotated / 2]` each.
    pub sin: [*const f32; 2],
    /// How many elements of a head are rotated, its first ones; even, or 0.
    pub rotated: usize,
    /// Whether a pair is two neighbours, and not one of the first half of these and one of the second.
    pub interleaved: bool,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Elements of a head; even.
    pub width: usize,
    /// The row's page of the keys, `[kv_heads, width, 64]` in `format`.
    pub keys: *mut u8,
    /// The row's page of the values, `[kv_heads, 64, width]` in `format`.
    pub values: *mut u8,
    /// The row's place in its page, below 64.
    pub slot: usize,
    /// How the pages store numbers.
    pub format: KvFormat,
}

/// Rotates a row's queries and keys, and writes its keys and values to the cache.
///
/// # Safety
///
/// The CPU has `isa`, every pointer is valid for what its field states, and nothing else accesses the
/// row or its slot during the call.
pub unsafe fn rotate_append(isa: Isa, of: &RotateAppend) {
    // SAFETY: the caller's promise.
    unsafe { enter(isa, of) }
}

impl<V: Vector> Job<V> for RotateAppend {
    #[inline(always)]
    unsafe fn run(&self) {
        let Self { row, heads, kv_heads, width, .. } = *self;
        // SAFETY: the caller's promise.
        unsafe {
            for head in 0..heads + kv_heads {
                self.rotate(row.add(head * width), usize::from(head >= heads));
            }
            match self.format {
                KvFormat::F32 => self.append::<f32>(|x| x),
                KvFormat::F16 => self.append::<half::f16>(half::f16::from_f32),
            }
        }
    }
}

impl RotateAppend {
    #[inline(always)]
    unsafe fn rotate(&self, head: *mut f32, which: usize) {
        let (half, cos, sin) = (self.rotated / 2, self.cos[which], self.sin[which]);
        let turn = |i: usize, first: usize, second: usize| {
            // SAFETY: two elements of a head of the row, and the angle of their pair.
            unsafe {
                let (cos, sin) = (*cos.add(i), *sin.add(i));
                let (a, b) = (*head.add(first), *head.add(second));
                *head.add(first) = a * cos - b * sin;
                *head.add(second) = b * cos + a * sin;
            }
        };
        if self.interleaved {
            (0..half).for_each(|i| turn(i, 2 * i, 2 * i + 1));
        } else {
            (0..half).for_each(|i| turn(i, i, half + i));
        }
    }

    #[inline(always)]
    unsafe fn append<T>(&self, store: impl Fn(f32) -> T) {
        let Self { heads, kv_heads, width, slot, .. } = *self;
        let (keys, values) = (self.keys.cast::<T>(), self.values.cast::<T>());
        // SAFETY: the row's heads, and its slot in both pages.
        unsafe {
            let from = self.row.add(heads * width);
            for i in 0..kv_heads * width {
                keys.add(i * KV_BLOCK + slot).write_unaligned(store(*from.add(i)));
            }
            let from = from.add(kv_heads * width);
            for head in 0..kv_heads {
                let to = values.add((head * KV_BLOCK + slot) * width);
                for i in 0..width {
                    to.add(i).write_unaligned(store(*from.add(head * width + i)));
                }
            }
        }
    }
}
