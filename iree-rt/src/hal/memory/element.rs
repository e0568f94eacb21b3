//! Element types, and the Rust types that stand for them.

use std::fmt;

use bytemuck::{CheckedBitPattern, NoUninit};
use half::{bf16, f16};
use iree_sys as sys;

/// The type of a tensor's elements, as IREE's HAL encodes it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ElementType(pub(crate) sys::iree_hal_element_type_t);

macro_rules! element_types {
    ($($(#[$doc:meta])* $name:ident = $raw:ident, $text:literal;)*) => {
        impl ElementType {
            $($(#[$doc])* pub const $name: Self = Self(sys::$raw);)*

            /// Every named element type.
            const ALL: &[(Self, &str)] = &[$((Self::$name, $text)),*];
        }
    };
}

element_types! {
    /// 32-bit IEEE float.
    F32 = IREE_HAL_ELEMENT_TYPE_FLOAT_32, "f32";
    /// 64-bit IEEE float.
    F64 = IREE_HAL_ELEMENT_TYPE_FLOAT_64, "f64";
    /// 16-bit IEEE float.
    F16 = IREE_HAL_ELEMENT_TYPE_FLOAT_16, "f16";
    /// 16-bit brain float.
    BF16 = IREE_HAL_ELEMENT_TYPE_BFLOAT_16, "bf16";
    /// 8-bit integer without a sign of its own: what compiled modules declare.
    I8 = IREE_HAL_ELEMENT_TYPE_INT_8, "i8";
    /// 16-bit integer without a sign of its own.
    I16 = IREE_HAL_ELEMENT_TYPE_INT_16, "i16";
    /// 32-bit integer without a sign of its own.
    I32 = IREE_HAL_ELEMENT_TYPE_INT_32, "i32";
    /// 64-bit integer without a sign of its own.
    I64 = IREE_HAL_ELEMENT_TYPE_INT_64, "i64";
    /// Signed 8-bit integer.
    SI8 = IREE_HAL_ELEMENT_TYPE_SINT_8, "si8";
    /// Signed 16-bit integer.
    SI16 = IREE_HAL_ELEMENT_TYPE_SINT_16, "si16";
    /// Signed 32-bit integer.
    SI32 = IREE_HAL_ELEMENT_TYPE_SINT_32, "si32";
    /// Signed 64-bit integer.
    SI64 = IREE_HAL_ELEMENT_TYPE_SINT_64, "si64";
    /// Unsigned 8-bit integer.
    UI8 = IREE_HAL_ELEMENT_TYPE_UINT_8, "ui8";
    /// Unsigned 16-bit integer.
    UI16 = IREE_HAL_ELEMENT_TYPE_UINT_16, "ui16";
    /// Unsigned 32-bit integer.
    UI32 = IREE_HAL_ELEMENT_TYPE_UINT_32, "ui32";
    /// Unsigned 64-bit integer.
    UI64 = IREE_HAL_ELEMENT_TYPE_UINT_64, "ui64";
    /// Truth value in a byte.
    BOOL = IREE_HAL_ELEMENT_TYPE_BOOL_8, "i1";
    /// 8-bit float, 4 exponent and 3 mantissa bits, no infinities.
    F8E4M3FN = IREE_HAL_ELEMENT_TYPE_FLOAT_8_E4M3_FN, "f8E4M3FN";
    /// 8-bit float, 5 exponent and 2 mantissa bits.
    F8E5M2 = IREE_HAL_ELEMENT_TYPE_FLOAT_8_E5M2, "f8E5M2";
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

    /// The type that an MLIR type name (`bf16`, `i32`, `i1`) stands for.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(_, text)| *text == name).map(|(ty, _)| *ty)
    }

    /// The names that [`parse`](Self::parse) knows.
    pub fn names() -> impl Iterator<Item = &'static str> {
        Self::ALL.iter().map(|(_, text)| *text)
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

/// A Rust type that a buffer view may hold: `f32 f64 f16 bf16 i8..i64 u8..u64 bool`.
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
