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
    /// Cosines of the row's position, `[width / 2]`.
    pub cos: *const f32,
    /// Sines of the row's position, `[width / 2]`.
    pub sin: *const f32,
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
                self.rotate(row.add(head * width));
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
    unsafe fn rotate(&self, head: *mut f32) {
        let half = self.width / 2;
        // SAFETY: a head of the row, and an angle for each pair of it.
        unsafe {
            for i in 0..half {
                let (cos, sin) = (*self.cos.add(i), *self.sin.add(i));
                let (a, b) = (*head.add(i), *head.add(half + i));
                *head.add(i) = a * cos - b * sin;
                *head.add(half + i) = b * cos + a * sin;
            }
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Against the definition, in f64; the other slots of the page stay as they were.
    #[test]
    fn a_row_is_rotated_and_goes_to_its_slot() {
        const OTHER: f32 = 7.0;
        for (heads, kv_heads, width, slot) in [(4, 2, 16, 0), (3, 1, 6, 63), (2, 2, 50, 17)] {
            let len = (heads + 2 * kv_heads) * width;
            let row: Vec<f32> = (0..len).map(|i| (i as f32 * 0.37).sin()).collect();
            let angles: Vec<f64> = (0..width / 2).map(|i| 3.0 / (1.0 + i as f64)).collect();
            let [cos, sin] = [f64::cos, f64::sin]
                .map(|f| angles.iter().map(|&a| f(a) as f32).collect::<Vec<f32>>());
            for isa in Isa::all_here() {
                let mut rotated = row.clone();
                let mut keys = vec![OTHER; kv_heads * width * KV_BLOCK];
                let mut values = keys.clone();
                let of = RotateAppend {
                    row: rotated.as_mut_ptr(),
                    cos: cos.as_ptr(),
                    sin: sin.as_ptr(),
                    heads,
                    kv_heads,
                    width,
                    keys: keys.as_mut_ptr().cast(),
                    values: values.as_mut_ptr().cast(),
                    slot,
                    format: KvFormat::F32,
                };
                // SAFETY: this CPU has the instructions, and all are as long as stated.
                unsafe { rotate_append(isa, &of) };
                let half = width / 2;
                for head in 0..heads + kv_heads {
                    for (i, angle) in angles.iter().enumerate() {
                        let [a, b] = [i, half + i].map(|i| f64::from(row[head * width + i]));
                        let (sin, cos) = angle.sin_cos();
                        let expected = [a * cos - b * sin, b * cos + a * sin];
                        let found = [i, half + i].map(|i| f64::from(rotated[head * width + i]));
                        for (found, expected) in found.into_iter().zip(expected) {
                            assert!((found - expected).abs() < 1e-6, "{isa:?}: {found} {expected}");
                        }
                    }
                }
                for (page, transposed) in [(&keys, true), (&values, false)] {
                    let first = if transposed { heads } else { heads + kv_heads } * width;
                    for (at, &stored) in page.iter().enumerate() {
                        let (head, at) = (at / (width * KV_BLOCK), at % (width * KV_BLOCK));
                        let (i, in_slot) = match transposed {
                            true => (at / KV_BLOCK, at % KV_BLOCK),
                            false => (at % width, at / width),
                        };
                        let expected = match in_slot == slot {
                            true => rotated[first + head * width + i],
                            false => OTHER,
                        };
                        assert_eq!(stored, expected, "{isa:?} head {head} slot {in_slot}");
                    }
                }
            }
        }
    }
}
