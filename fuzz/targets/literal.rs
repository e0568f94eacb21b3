//! The text of tensors: whatever is read is written as text that is read as the same.
#![no_main]

use iree_rt::{ElementType, Literal};
use libfuzzer_sys::fuzz_target;

/// Elements that one text may ask to be filled: more would only be slow.
const MAX: usize = 1 << 12;

fuzz_target!(|text: &str| {
    let ty = text.split_once('=').map_or(text, |(ty, _)| ty);
    let Ok((shape, _)) = Literal::parse_type(ty) else {
        assert!(text.parse::<Literal>().is_err());
        return;
    };
    if shape.iter().product::<usize>() > MAX || shape.len() > 8 || shape.contains(&0) {
        return;
    }
    let Ok(literal) = text.parse::<Literal>() else { return };
    let shown = literal.to_string();
    // Decimal digits that C leaves out, and no sign of NaN.
    let exact = !matches!(
        literal.element_type(),
        ElementType::F32
            | ElementType::F64
            | ElementType::F16
            | ElementType::BF16
            | ElementType::F8E4M3FN
            | ElementType::F8E5M2
    );
    let again: Literal = shown.parse().unwrap();
    assert_eq!((again.shape(), again.element_type()), (literal.shape(), literal.element_type()));
    assert!(!exact || again == literal, "{text} {shown}");
    literal.format(3).unwrap();
});
