//! The types of tensors, by the number that a file has for them.

use crate::Dtype;

/// A type.
pub(super) struct Type {
    number: u32,
    pub name: &'static str,
    /// Elements and bytes of a block.
    pub block: (u64, u64),
    /// `None` where weights may not have it.
    pub dtype: Option<Dtype>,
}

const fn of(number: u32, name: &'static str, block: (u64, u64), dtype: Option<Dtype>) -> Type {
    Type { number, name, block, dtype }
}

static TYPES: [Type; 34] = [
    of(0, "F32", (1, 4), Some(Dtype::F32)),
    of(1, "F16", (1, 2), Some(Dtype::F16)),
    of(30, "BF16", (1, 2), Some(Dtype::BF16)),
    of(2, "Q4_0", (32, 18), Some(Dtype::Q4_0)),
    of(3, "Q4_1", (32, 20), Some(Dtype::Q4_1)),
    of(6, "Q5_0", (32, 22), Some(Dtype::Q5_0)),
    of(7, "Q5_1", (32, 24), Some(Dtype::Q5_1)),
    of(8, "Q8_0", (32, 34), Some(Dtype::Q8_0)),
    of(10, "Q2_K", (256, 84), Some(Dtype::Q2K)),
    of(11, "Q3_K", (256, 110), Some(Dtype::Q3K)),
    of(12, "Q4_K", (256, 144), Some(Dtype::Q4K)),
    of(13, "Q5_K", (256, 176), Some(Dtype::Q5K)),
    of(14, "Q6_K", (256, 210), Some(Dtype::Q6K)),
    of(20, "IQ4_NL", (32, 18), Some(Dtype::Iq4Nl)),
    of(23, "IQ4_XS", (256, 136), Some(Dtype::Iq4Xs)),
    of(39, "MXFP4", (32, 17), Some(Dtype::Mxfp4)),
    of(9, "Q8_1", (32, 40), None),
    of(15, "Q8_K", (256, 292), None),
    of(16, "IQ2_XXS", (256, 66), None),
    of(17, "IQ2_XS", (256, 74), None),
    of(18, "IQ3_XXS", (256, 98), None),
    of(19, "IQ1_S", (256, 50), None),
    of(21, "IQ3_S", (256, 110), None),
    of(22, "IQ2_S", (256, 82), None),
    of(24, "I8", (1, 1), None),
    of(25, "I16", (1, 2), None),
    of(26, "I32", (1, 4), None),
    of(27, "I64", (1, 8), None),
    of(28, "F64", (1, 8), None),
    of(29, "IQ1_M", (256, 56), None),
    of(34, "TQ1_0", (256, 54), None),
    of(35, "TQ2_0", (256, 66), None),
    of(40, "NVFP4", (64, 36), None),
    of(41, "Q1_0", (128, 18), None),
];

/// The type with this number.
pub(super) fn find(number: u32) -> Option<&'static Type> {
    TYPES.iter().find(|it| it.number == number)
}

/// The types that weights may have, for messages.
pub(crate) fn supported() -> String {
    let names: Vec<_> = TYPES.iter().filter(|it| it.dtype.is_some()).map(|it| it.name).collect();
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_those_of_the_types_they_become() {
        let known = TYPES.iter().filter_map(|it| Some((it.dtype?, it.block, it.name)));
        for (dtype, (elements, bytes), name) in known.clone() {
            assert_eq!(dtype.block(), (elements as usize, bytes as usize));
            assert_eq!(dtype.as_str(), name.to_lowercase());
        }
        assert_eq!(known.count(), Dtype::ALL.len());
    }
}
