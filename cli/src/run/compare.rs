//! Results against what was expected of them.

use iree_rt::{ElementType, Literal, bf16, f16};

use super::value::{HostValue, spell};

/// How far floats may be from what was expected: `|actual - expected|` at most
/// `absolute + relative * |expected|`. NaN equals NaN; other types are equal or not.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tolerance {
    /// `None`: 0.001 for f16, 0.01 for bf16, 0.0001 for f32 and f64.
    pub absolute: Option<f64>,
    /// A part of the expected value.
    pub relative: f64,
}

impl Tolerance {
    fn allows(&self, element_type: ElementType, actual: f64, expected: f64) -> bool {
        let absolute = self.absolute.unwrap_or(match element_type {
            ElementType::F16 => 1e-3,
            ElementType::BF16 => 1e-2,
            _ => 1e-4,
        });
        actual == expected
            || actual.is_nan() && expected.is_nan()
            || expected.is_finite()
                && (actual - expected).abs() <= absolute + self.relative * expected.abs()
    }
}

/// What is different of result `index`, in the words of `iree-run-module`; `None` when nothing is. Without a
/// `tolerance` bits are compared.
pub fn difference(
    index: usize,
    expected: &HostValue,
    actual: &HostValue,
    tolerance: Option<&Tolerance>,
    max: usize,
) -> Option<String> {
    use HostValue::{Buffer, Ignored, Null, Scalar, Tensor};
    let what = match (expected, actual) {
        (Ignored, _) | (Null, Null) => return None,
        (Tensor(wanted), Tensor(got))
        | (Scalar(wanted), Scalar(got))
        | (Buffer(wanted), Buffer(got)) => {
            if (wanted.shape(), wanted.element_type()) != (got.shape(), got.element_type()) {
                format!("it is {}, and {} was expected", spell(got), spell(wanted))
            } else if let Some(at) = first_difference(wanted, got, tolerance) {
                match (got.element(at), wanted.element(at)) {
                    (Ok(got), Ok(wanted)) => {
                        format!(
                            "element at index {at} ({got}) does not match the expected ({wanted})"
                        )
                    }
                    // Elements that share bytes have no text.
                    _ => format!("byte {at} does not match the expected"),
                }
            } else {
                return None;
            }
        }
        _ => "it is of another kind than was expected".to_owned(),
    };
    let text = |value: &HostValue| value.text(max).unwrap_or_else(|error| error.to_string());
    let (expected, actual) = (text(expected), text(actual));
    let [expected, actual] =
        [&expected, &actual].map(|text| text.strip_prefix("hal.buffer_view\n").unwrap_or(text));
    Some(format!(
        "[FAILED] result[{index}]: {what}\n  expected:\n{expected}\n  actual:\n{actual}\n"
    ))
}

fn first_difference(
    expected: &Literal,
    actual: &Literal,
    tolerance: Option<&Tolerance>,
) -> Option<usize> {
    let ty = expected.element_type();
    let size = ty.size().max(1);
    let mut pairs = expected.bytes().chunks(size).zip(actual.bytes().chunks(size));
    pairs.position(|(expected, actual)| {
        expected != actual
            && match (tolerance, number(ty, expected), number(ty, actual)) {
                (Some(it), Some(expected), Some(actual)) => !it.allows(ty, actual, expected),
                _ => true,
            }
    })
}

/// The value of a float.
fn number(ty: ElementType, bytes: &[u8]) -> Option<f64> {
    Some(match ty {
        ElementType::F16 => f16::from_ne_bytes(bytes.try_into().ok()?).into(),
        ElementType::BF16 => bf16::from_ne_bytes(bytes.try_into().ok()?).into(),
        ElementType::F32 => f32::from_ne_bytes(bytes.try_into().ok()?).into(),
        ElementType::F64 => f64::from_ne_bytes(bytes.try_into().ok()?),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEFAULT: Option<&Tolerance> = Some(&Tolerance { absolute: None, relative: 1e-5 });

    fn found(expected: &str, actual: &str, tolerance: Option<&Tolerance>) -> Option<String> {
        let tensor = |text: &str| HostValue::Tensor(text.parse().unwrap());
        difference(3, &tensor(expected), &tensor(actual), tolerance, 9)
    }

    /// A mismatch among those that share bytes is one like any other.
    #[test]
    fn elements_without_text_are_compared_too() {
        let nibbles = |byte| {
            let i4 = ElementType::parse("i4").unwrap();
            HostValue::Tensor(Literal::new(vec![2], i4, vec![byte]).unwrap())
        };
        assert_eq!(difference(0, &nibbles(1), &nibbles(1), DEFAULT, 9), None);
        let found = difference(0, &nibbles(1), &nibbles(2), DEFAULT, 9).unwrap();
        assert!(found.starts_with("[FAILED] result[0]: byte 0 does not match"), "{found}");
    }

    #[test]
    fn floats_may_be_a_little_off() {
        for (expected, actual) in [
            ("2xf32=1 2", "2xf32=1.00005 2"),
            ("f32=100000", "f32=100000.5"),
            ("f64=0", "f64=0.00009"),
            ("f16=1", "f16=1.0009765625"),
            ("bf16=1", "bf16=1.0078125"),
            ("2xf32=nan inf", "2xf32=nan inf"),
            ("2xi32=1 2", "2xi32=1 2"),
        ] {
            assert_eq!(found(expected, actual, DEFAULT), None, "{expected} {actual}");
        }
        for (expected, actual) in [
            ("f32=1", "f32=1.001"),
            ("f32=inf", "f32=3e38"),
            ("f32=inf", "f32=-inf"),
            ("f32=1", "f32=nan"),
            ("i32=1", "i32=2"),
            ("f16=1", "f16=1.01"),
        ] {
            assert!(found(expected, actual, DEFAULT).is_some(), "{expected} {actual}");
        }
        let wide = Tolerance { absolute: Some(1.0), relative: 0.0 };
        assert!(found("f32=1", "f32=2", Some(&wide)).is_none());
    }

    #[test]
    fn without_a_tolerance_bits_are_the_same() {
        assert!(found("3xf32=1 nan -0", "3xf32=1 nan -0", None).is_none());
        assert!(found("f32=1", "f32=1.00005", None).is_some());
        assert!(found("f32=0", "f32=-0", None).is_some());
        let nan = |bits: u32| {
            let bytes = bits.to_ne_bytes().to_vec();
            HostValue::Tensor(Literal::new(Vec::new(), ElementType::F32, bytes).unwrap())
        };
        let (one, other) = (nan(0x7fc0_0000), nan(0x7fc0_0001));
        assert!(difference(0, &one, &other, None, 9).is_some());
        assert!(difference(0, &one, &other, DEFAULT, 9).is_none());
    }

    #[test]
    fn the_first_difference_is_shown() {
        assert_eq!(
            found("2x2xi8=1 2 3 4", "2x2xi8=1 2 0 0", DEFAULT).unwrap(),
            "[FAILED] result[3]: element at index 2 (0) does not match the expected (3)\n  \
             expected:\n2x2xi8=[1 2][3 4]\n  actual:\n2x2xi8=[1 2][0 0]\n"
        );
        let shape = found("2xi8=1", "3xi8=1", DEFAULT).unwrap();
        assert!(shape.contains("it is 3xi8, and 2xi8 was expected"), "{shape}");
        let kind = difference(0, &HostValue::Null, &HostValue::Opaque, DEFAULT, 9);
        assert!(kind.unwrap().contains("another kind"));
        let any = difference(0, &HostValue::Ignored, &HostValue::Opaque, DEFAULT, 9);
        assert_eq!(any, None);
    }
}
