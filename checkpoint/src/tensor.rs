//! One tensor's bytes and their conversion to float32.

use std::borrow::Cow;
use std::ops::Range;
use std::path::Path;

use half::slice::HalfFloatSliceExt;
use memmap2::Mmap;

/// The element types that weights may have: whoever packs them answers for each, so that the list is
/// exhaustive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Dtype {
    /// IEEE single precision.
    F32,
    /// IEEE half precision.
    F16,
    /// The upper half of single precision.
    BF16,
}

impl Dtype {
    pub(crate) fn from_safetensors(dtype: safetensors::Dtype) -> Option<Self> {
        match dtype {
            safetensors::Dtype::F32 => Some(Self::F32),
            safetensors::Dtype::F16 => Some(Self::F16),
            safetensors::Dtype::BF16 => Some(Self::BF16),
            _ => None,
        }
    }

    /// Bytes of one element.
    pub fn size(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::BF16 => 2,
        }
    }

    /// The name in MLIR: "bf16".
    pub fn as_str(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::BF16 => "bf16",
        }
    }
}

/// A tensor of a [`Checkpoint`](crate::Checkpoint).
#[derive(Debug)]
pub struct Tensor<'a> {
    pub(crate) dtype: Dtype,
    pub(crate) shape: &'a [usize],
    pub(crate) path: &'a Path,
    pub(crate) bytes: Cow<'a, [u8]>,
    /// The mapping and the offset in it, if the file is mapped.
    pub(crate) map: Option<(&'a Mmap, usize)>,
}

impl Tensor<'_> {
    /// Its element type.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Its shape.
    pub fn shape(&self) -> &[usize] {
        self.shape
    }

    /// The file it is in.
    pub fn path(&self) -> &Path {
        self.path
    }

    /// Its elements, little-endian, row-major; not necessarily aligned to their size.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Number of elements.
    pub fn elements(&self) -> usize {
        self.bytes.len() / self.dtype.size()
    }

    /// Converts the elements `range` (row-major order) to float32; every value is exact.
    ///
    /// # Panics
    ///
    /// When `range` is outside the tensor or not as long as `out`.
    pub fn to_f32_row(&self, range: Range<usize>, out: &mut [f32]) {
        assert_eq!(range.len(), out.len(), "range and output differ in length");
        let size = self.dtype.size();
        let bytes = &self.bytes[range.start * size..range.end * size];
        match self.dtype {
            Dtype::F32 => {
                let (values, _) = bytes.as_chunks();
                for (out, value) in out.iter_mut().zip(values) {
                    *out = f32::from_le_bytes(*value);
                }
            }
            Dtype::BF16 => {
                let (values, _) = bytes.as_chunks();
                for (out, value) in out.iter_mut().zip(values) {
                    *out = f32::from_bits(u32::from(u16::from_le_bytes(*value)) << 16);
                }
            }
            Dtype::F16 => f16_to_f32(bytes, out),
        }
    }

    /// The whole tensor as float32.
    pub fn to_f32(&self) -> Vec<f32> {
        let mut out = vec![0.0; self.elements()];
        self.to_f32_row(0..self.elements(), &mut out);
        out
    }

    /// Asks the system to read the tensor ahead, if its file is mapped.
    pub fn prefetch(&self) {
        #[cfg(unix)]
        if let Some((map, offset)) = self.map {
            // Advice only: without it the pages come when they are touched.
            let _ = map.advise_range(memmap2::Advice::WillNeed, offset, self.bytes.len());
        }
    }

    /// Gives back the memory of these bytes of the tensor once they have been used: their pages
    /// stop counting towards this process, and would be read again if the bytes were.
    ///
    /// # Panics
    ///
    /// When `bytes` is outside the tensor.
    pub fn release(&self, bytes: Range<usize>) {
        let length = self.bytes[bytes.clone()].len();
        #[cfg(target_os = "linux")]
        if let Some((map, offset)) = self.map
            && length > 0
        {
            // SAFETY: the mapping is file-backed, private and never written, so dropped pages come
            // back from the file with the same bytes and references to them stay valid; the range
            // was just checked to be inside the tensor, so no other mapping is touched.
            let _ = unsafe {
                map.unchecked_advise_range(
                    memmap2::UncheckedAdvice::DontNeed,
                    offset + bytes.start,
                    length,
                )
            };
        }
        #[cfg(not(target_os = "linux"))]
        let _ = length;
    }
}

/// By the processor's own conversion where it has one.
fn f16_to_f32(bytes: &[u8], out: &mut [f32]) {
    if cfg!(target_endian = "little")
        && let Ok(values) = bytemuck::try_cast_slice::<u8, half::f16>(bytes)
    {
        values.convert_to_f32_slice(out);
        return;
    }
    const BLOCK: usize = 256;
    let mut aligned = [half::f16::ZERO; BLOCK];
    for (bytes, out) in bytes.chunks(2 * BLOCK).zip(out.chunks_mut(BLOCK)) {
        let aligned = &mut aligned[..out.len()];
        for (to, from) in aligned.iter_mut().zip(bytes.as_chunks().0) {
            *to = half::f16::from_le_bytes(*from);
        }
        aligned.convert_to_f32_slice(out);
    }
}
