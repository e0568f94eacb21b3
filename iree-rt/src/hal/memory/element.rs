//! Element types, and the Rust types that stand for them.

use std::fmt;

use bytemuck::{CheckedBitPattern, NoUninit};
use half::{bf16, f16};
use iree_sys as sys;

use crate::base::error::{Error, Result};

/// Far more than a tensor has: each is a level of brackets in its text.
const MOST_DIMENSIONS: usize = 128;

/// The type of a tensor's elements, as IREE's HAL encodes it: all that it has names for. Of floats
/// with fewer than 8 bits it has none.
///
/// Elements of less than a byte are packed: two of [`I4`](Self::I4) share a byte, the first in its
/// lower bits, and only the last byte of a tensor may be part empty. They are written and read as
/// bytes, of a [`Buffer`](crate::Buffer) or a [`Literal`](crate::Literal).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ElementType(pub(crate) sys::iree_hal_element_type_t);

macro_rules! element_types {
    ($($(#[$doc:meta])* $name:ident = $raw:expr, $text:literal;)*) => {
        impl ElementType {
            $($(#[$doc])* pub const $name: Self = Self($raw);)*

            /// Every named element type.
            const ALL: &[(Self, &str)] = &[$((Self::$name, $text)),*];
        }
    };
}

element_types! {
    /// 32-bit IEEE float.
    F32 = sys::IREE_HAL_ELEMENT_TYPE_FLOAT_32, "f32";
    /// 64-bit IEEE float.
    F64 = sys::IREE_HAL_ELEMENT_TYPE_FLOAT_64, "f64";
    /// 16-bit IEEE float.
    F16 = sys::IREE_HAL_ELEMENT_TYPE_FLOAT_16, "f16";
    /// 16-bit brain float.
    BF16 = sys::IREE_HAL_ELEMENT_TYPE_BFLOAT_16, "bf16";
    /// 8-bit integer without a sign of its own: what compiled modules declare.
    I8 = sys::IREE_HAL_ELEMENT_TYPE_INT_8, "i8";
    /// 16-bit integer without a sign of its own.
    I16 = sys::IREE_HAL_ELEMENT_TYPE_INT_16, "i16";
    /// 32-bit integer without a sign of its own.
    I32 = sys::IREE_HAL_ELEMENT_TYPE_INT_32, "i32";
    /// 64-bit integer without a sign of its own.
    I64 = sys::IREE_HAL_ELEMENT_TYPE_INT_64, "i64";
    /// Signed 8-bit integer.
    SI8 = sys::IREE_HAL_ELEMENT_TYPE_SINT_8, "si8";
    /// Signed 16-bit integer.
    SI16 = sys::IREE_HAL_ELEMENT_TYPE_SINT_16, "si16";
    /// Signed 32-bit integer.
    SI32 = sys::IREE_HAL_ELEMENT_TYPE_SINT_32, "si32";
    /// Signed 64-bit integer.
    SI64 = sys::IREE_HAL_ELEMENT_TYPE_SINT_64, "si64";
    /// Unsigned 8-bit integer.
    UI8 = sys::IREE_HAL_ELEMENT_TYPE_UINT_8, "ui8";
    /// Unsigned 16-bit integer.
    UI16 = sys::IREE_HAL_ELEMENT_TYPE_UINT_16, "ui16";
    /// Unsigned 32-bit integer.
    UI32 = sys::IREE_HAL_ELEMENT_TYPE_UINT_32, "ui32";
    /// Unsigned 64-bit integer.
    UI64 = sys::IREE_HAL_ELEMENT_TYPE_UINT_64, "ui64";
    /// 2-bit integer without a sign of its own.
    I2 = integer(sys::IREE_HAL_NUMERICAL_TYPE_INTEGER, 2), "i2";
    /// Signed 2-bit integer.
    SI2 = integer(sys::IREE_HAL_NUMERICAL_TYPE_INTEGER_SIGNED, 2), "si2";
    /// Unsigned 2-bit integer.
    UI2 = integer(sys::IREE_HAL_NUMERICAL_TYPE_INTEGER_UNSIGNED, 2), "ui2";
    /// 4-bit integer without a sign of its own.
    I4 = sys::IREE_HAL_ELEMENT_TYPE_INT_4, "i4";
    /// Signed 4-bit integer.
    SI4 = sys::IREE_HAL_ELEMENT_TYPE_SINT_4, "si4";
    /// Unsigned 4-bit integer.
    UI4 = sys::IREE_HAL_ELEMENT_TYPE_UINT_4, "ui4";
    /// Complex number of two 32-bit floats, the real part first: `complex<f32>` in MLIR.
    CF64 = sys::IREE_HAL_ELEMENT_TYPE_COMPLEX_FLOAT_64, "cf64";
    /// Complex number of two 64-bit floats, the real part first: `complex<f64>` in MLIR.
    CF128 = sys::IREE_HAL_ELEMENT_TYPE_COMPLEX_FLOAT_128, "cf128";
    /// Truth value in a byte.
    BOOL = sys::IREE_HAL_ELEMENT_TYPE_BOOL_8, "i1";
    /// 8-bit float, 4 exponent and 3 mantissa bits, no infinities.
    F8E4M3FN = sys::IREE_HAL_ELEMENT_TYPE_FLOAT_8_E4M3_FN, "f8E4M3FN";
    /// 8-bit float, 5 exponent and 2 mantissa bits.
    F8E5M2 = sys::IREE_HAL_ELEMENT_TYPE_FLOAT_8_E5M2, "f8E5M2";
    /// 8-bit float, 4 exponent and 3 mantissa bits, no infinities and no negative zero.
    F8E4M3FNUZ = sys::IREE_HAL_ELEMENT_TYPE_FLOAT_8_E4M3_FNUZ, "f8E4M3FNUZ";
    /// 8-bit float, 5 exponent and 2 mantissa bits, no infinities and no negative zero.
    F8E5M2FNUZ = sys::IREE_HAL_ELEMENT_TYPE_FLOAT_8_E5M2_FNUZ, "f8E5M2FNUZ";
    /// 8-bit power of two: a scale.
    F8E8M0FNU = sys::IREE_HAL_ELEMENT_TYPE_FLOAT_8_E8M0_FNU, "f8E8M0FNU";
}

/// Types of integers that IREE encodes without a name for them in its header.
const fn integer(kind: u32, bits: u32) -> u32 {
    kind << 24 | bits
}

impl ElementType {
    /// Bytes of one element, rounded up to whole bytes.
    pub fn size(self) -> usize {
        sys::iree_hal_element_dense_byte_count(self.0)
    }

    /// Bits of one element.
    pub fn bits(self) -> usize {
        sys::iree_hal_element_bit_count(self.0)
    }

    /// The type that a name of IREE's or MLIR's (`bf16`, `i1`, `cf64`, `complex<f32>`) stands for.
    pub fn parse(name: &str) -> Option<Self> {
        let name = match name {
            "complex<f32>" => "cf64",
            "complex<f64>" => "cf128",
            name => name,
        };
        Self::ALL.iter().find(|(_, text)| *text == name).map(|(ty, _)| *ty)
    }

    /// IREE's names, which [`parse`](Self::parse) knows.
    pub fn names() -> impl Iterator<Item = &'static str> {
        Self::ALL.iter().map(|(_, text)| *text)
    }

    /// Whether an element is a real and an imaginary part.
    pub fn is_complex(self) -> bool {
        matches!(self, Self::CF64 | Self::CF128)
    }

    /// IREE's own code.
    pub fn raw(self) -> u32 {
        self.0
    }
}

impl fmt::Display for ElementType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Self::ALL.iter().find(|(ty, _)| ty == self) {
            Some((_, name)) => f.write_str(name),
            None => write!(f, "element type {:#010x}", self.0),
        }
    }
}

impl fmt::Debug for ElementType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

mod sealed {
    pub trait Sealed {}
}

/// A Rust type that a buffer view may hold: `f32 f64 f16 bf16 i8..i64 u8..u64 bool`, and `[f32; 2]`
/// and `[f64; 2]`, complex numbers (`bytemuck` casts slices of other crates' types to these).
///
/// Compiled modules declare integers without a sign: buffer views made from Rust integers are
/// signless too, and both `i32` and `u32` read a signless view. A view that does carry a sign is
/// read only by the type of that sign.
pub trait Element: sealed::Sealed + NoUninit + CheckedBitPattern + Send + Sync + 'static {
    /// The type that views made from it get.
    const TYPE: ElementType;
    /// The type with the sign of the Rust type.
    #[doc(hidden)]
    const SIGNED: ElementType;
    /// Whether every bit pattern is a value.
    #[doc(hidden)]
    const ANY_BITS: bool = true;

    /// Whether a view of `ty` may be read as this.
    fn reads(ty: ElementType) -> bool {
        ty == Self::TYPE || ty == Self::SIGNED
    }
}

macro_rules! elements {
    ($($rust:ty: $ty:ident $(signed $signed:ident)? $(checked $checked:literal)?;)*) => {$(
        impl sealed::Sealed for $rust {}
        impl Element for $rust {
            const TYPE: ElementType = ElementType::$ty;
            const SIGNED: ElementType = elements!(@signed $ty $($signed)?);
            $(const ANY_BITS: bool = !$checked;)?
        }
    )*};
    (@signed $ty:ident $signed:ident) => { ElementType::$signed };
    (@signed $ty:ident) => { ElementType::$ty };
}

elements! {
    f32: F32;
    f64: F64;
    f16: F16;
    bf16: BF16;
    i8: I8 signed SI8;
    i16: I16 signed SI16;
    i32: I32 signed SI32;
    i64: I64 signed SI64;
    u8: I8 signed UI8;
    u16: I16 signed UI16;
    u32: I32 signed UI32;
    u64: I64 signed UI64;
    bool: BOOL checked true;
    [f32; 2]: CF64;
    [f64; 2]: CF128;
}

/// Elements of a tensor of `shape`, if a number can say how many.
pub(crate) fn element_count(shape: &[usize]) -> Option<usize> {
    shape.iter().try_fold(1usize, |count, &dim| count.checked_mul(dim))
}

/// Bytes of a tensor of `shape`.
pub(crate) fn byte_len(shape: &[usize], element_type: ElementType) -> Result<usize> {
    if shape.len() > MOST_DIMENSIONS {
        let message = format!("{} dimensions are too many: {MOST_DIMENSIONS} at most", shape.len());
        return Err(Error::invalid(message));
    }
    element_count(shape)
        .and_then(|count| count.checked_mul(element_type.bits()))
        .map(|bits| bits.div_ceil(8))
        .filter(|&bytes| isize::try_from(bytes).is_ok())
        .ok_or_else(|| Error::invalid(format!("shape {shape:?} has too many elements")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_sizes() {
        for &(ty, name) in ElementType::ALL {
            assert_eq!(ElementType::parse(name), Some(ty));
            assert_eq!(ty.to_string(), name);
        }
        let bits = |name| ElementType::parse(name).unwrap().bits();
        assert_eq!(["i2", "ui4", "i1", "bf16", "cf64", "cf128"].map(bits), [2, 4, 8, 16, 64, 128]);
        assert_eq!(ElementType::parse("complex<f64>"), Some(ElementType::CF128));
        assert_eq!(ElementType::BF16.size(), 2);
        assert_eq!(ElementType::parse("f31"), None);
    }

    #[test]
    fn a_sign_is_never_reinterpreted() {
        assert!(u32::reads(ElementType::I32) && i32::reads(ElementType::I32));
        assert!(u32::reads(ElementType::UI32) && !i32::reads(ElementType::UI32));
        assert!(!f32::reads(ElementType::I32) && !bf16::reads(ElementType::F16));
    }
}
