//! From the text of elements and dimensions to their bytes.

use half::{bf16, f16};
use iree_sys as sys;

use super::{shorten, spell};
use crate::base::error::{Code, Error, Result};
use crate::base::status::check;
use crate::hal::memory::element::{ElementType, byte_len, element_count};

/// One dimension of a shape: digits.
pub(super) fn dim(text: &str) -> Result<usize> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| digits).ok_or_else(|| {
        Error::invalid(format!(
            "`{}` is no dimension: a tensor is written as 2x3xf32=1 2 3 4 5 6",
            shorten(text)
        ))
    })
}

/// The bytes of a tensor whose elements `text` writes.
pub(super) fn elements(shape: &[usize], element_type: ElementType, text: &str) -> Result<Vec<u8>> {
    let expected = element_count(shape).unwrap_or(0);
    let separator = |c: char| c.is_ascii_whitespace() || matches!(c, ',' | '[' | ']');
    let mut bytes = Vec::new();
    let mut count = 0;
    for token in text.split(separator).filter(|token| !token.is_empty()) {
        if element_type.bits() < 8 || element_type.is_complex() {
            let what = format!("elements of {element_type} have no text here: give bytes");
            return Err(Error::new(Code::Unimplemented, what));
        }
        // Counted on, for the message, but not kept.
        if count < expected {
            append_element(&mut bytes, element_type, token).ok_or_else(|| {
                Error::invalid(format!(
                    "element {count}, `{}`, is no {element_type}",
                    shorten(token)
                ))
            })?;
        }
        count += 1;
    }
    let total = byte_len(shape, element_type)?;
    if count == expected {
        return Ok(bytes);
    }
    if count > 1 || expected == 0 {
        return Err(Error::invalid(format!(
            "{count} elements where {} has {expected} (or give one for all)",
            spell(shape, element_type)
        )));
    }
    let mut filled = Vec::new();
    if filled.try_reserve_exact(total).is_err() {
        return Err(Error::new(Code::ResourceExhausted, format!("no memory for {total} bytes")));
    }
    match count {
        0 => filled.resize(total, 0),
        _ => filled.extend(bytes.iter().cycle().take(total)),
    }
    Ok(filled)
}

/// The nearest f32 whose last bit tells of what is lost, for it to be rounded once more as if it had not been rounded
/// here: `half` rounds f64 by way of f32, too.
fn to_odd(value: f64) -> f32 {
    let nearest = value as f32;
    if f64::from(nearest) == value || value.is_nan() {
        return nearest;
    }
    let is_above = f64::from(nearest).abs() > value.abs();
    f32::from_bits((nearest.to_bits() - u32::from(is_above)) | 1)
}

/// Appends the bytes of the element that `token` writes; `None` when it writes none of this type.
fn append_element(out: &mut Vec<u8>, element_type: ElementType, token: &str) -> Option<()> {
    let float = || token.parse::<f32>().ok();
    let double = || token.parse::<f64>().ok();
    let narrow = || double().map(to_odd);
    match element_type {
        ElementType::F32 => out.extend(float()?.to_ne_bytes()),
        ElementType::F64 => out.extend(double()?.to_ne_bytes()),
        ElementType::F16 => out.extend(f16::from_f32(narrow()?).to_ne_bytes()),
        ElementType::BF16 => out.extend(bf16::from_f32(narrow()?).to_ne_bytes()),
        ElementType::BOOL => match token {
            "0" | "00" | "false" => out.push(0),
            "1" | "01" | "true" => out.push(1),
            _ => return None,
        },
        ElementType::F8E4M3FN
        | ElementType::F8E5M2
        | ElementType::F8E4M3FNUZ
        | ElementType::F8E5M2FNUZ
        | ElementType::F8E8M0FNU => {
            float()?;
            let mut byte = [0];
            let span = sys::iree_byte_span_t { data: byte.as_mut_ptr(), data_length: 1 };
            // SAFETY: IREE reads the token and writes one element of this type, which is a byte.
            check(unsafe {
                let token = sys::iree_make_string_view(token);
                sys::iree_hal_parse_element(token, element_type.0, span)
            })
            .ok()?;
            out.extend(byte);
        }
        integer => {
            let value = parse_integer(token)?;
            let bits = integer.bits();
            let signed = -(1i128 << (bits - 1))..1 << (bits - 1);
            let unsigned = 0..1i128 << bits;
            let fits = match integer {
                ElementType::SI8 | ElementType::SI16 | ElementType::SI32 | ElementType::SI64 => {
                    signed.contains(&value)
                }
                ElementType::UI8 | ElementType::UI16 | ElementType::UI32 | ElementType::UI64 => {
                    unsigned.contains(&value)
                }
                _ => signed.contains(&value) || unsigned.contains(&value),
            };
            if !fits {
                return None;
            }
            // Truncation keeps two's complement.
            match bits {
                8 => out.extend((value as u8).to_ne_bytes()),
                16 => out.extend((value as u16).to_ne_bytes()),
                32 => out.extend((value as u32).to_ne_bytes()),
                _ => out.extend((value as u64).to_ne_bytes()),
            }
        }
    }
    Some(())
}

/// A decimal number, or a hexadecimal one after `0x`; IREE would read a leading zero as octal,
/// hence none is taken.
fn parse_integer(token: &str) -> Option<i128> {
    let (sign, digits) = match token.strip_prefix('-') {
        Some(digits) => (-1, digits),
        None => (1, token.strip_prefix('+').unwrap_or(token)),
    };
    let (radix, digits) = match digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
        Some(digits) => (16, digits),
        None if digits.len() > 1 && digits.starts_with('0') => return None,
        None => (10, digits),
    };
    // `from_str_radix` would take a second sign.
    if !digits.starts_with(|c: char| c.is_digit(radix)) {
        return None;
    }
    Some(sign * i128::from_str_radix(digits, radix).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exchange::literal::Literal;

    fn bytes(text: &str) -> Vec<u8> {
        text.parse::<Literal>().unwrap().bytes().to_vec()
    }

    fn error(text: &str) -> String {
        text.parse::<Literal>().unwrap_err().to_string()
    }

    #[test]
    fn elements_of_every_type() {
        let floats = [1.5f32, -2., f32::INFINITY].map(f32::to_ne_bytes).concat();
        assert_eq!(bytes("3xf32=1.5,-2 inf"), floats);
        assert_eq!(bytes("f64=1e300"), 1e300f64.to_ne_bytes());
        assert_eq!(
            bytes("2xf16=[1][-0.5]"),
            [f16::ONE, f16::from_f32(-0.5)].map(f16::to_ne_bytes).concat()
        );
        assert_eq!(bytes("bf16=3"), bf16::from_f32(3.).to_ne_bytes());
        assert_eq!(bytes("3xi1=true 0 01"), [1, 0, 1]);
        assert_eq!(bytes("4xi8=-128 127 255 0x7f"), [128, 127, 255, 127]);
        assert_eq!(bytes("i16=0xFFFF"), [255, 255]);
        assert_eq!(bytes("ui32=4294967295"), [255; 4]);
        assert_eq!(bytes("si64=-9223372036854775808"), i64::MIN.to_ne_bytes());
        assert_eq!(bytes("i64=18446744073709551615"), [255; 8]);
    }

    #[test]
    fn one_element_fills_and_none_is_zero() {
        assert_eq!(bytes("2x2xi8=7"), [7; 4]);
        assert_eq!(bytes("2x2xi8"), [0; 4]);
        assert_eq!(bytes("2x2xi8="), [0; 4]);
        assert!(bytes("0x3xf32=").is_empty());
        assert_eq!(bytes(" 2xi16 = 1 , 1 "), bytes("2xi16=1"));
    }

    #[test]
    fn what_is_wrong_is_said() {
        assert!(error("4xf32=1,2,3").contains("3 elements where 4xf32 has 4"));
        assert!(error("2xf32=1,2,3").contains("3 elements where 2xf32 has 2"));
        assert!(error("2xi32=1,x").contains("element 1, `x`, is no i32"));
        for wrong in ["1.5", "3abc", "010", "--1", "0x", "+-1", "1e3", "4294967296", "-2147483649"]
        {
            let text = format!("2xi32=0 {wrong}");
            assert!(text.parse::<Literal>().is_err(), "{text}");
        }
        for wrong in ["si8=128", "si8=-129", "ui8=-1", "ui8=256", "i8=256", "i1=2", "f32=1.5.2"] {
            assert!(error(wrong).contains("is no"), "{wrong}");
        }
        for (no_text, bytes) in [("3xi4", 2), ("5xi2", 2), ("2xcf64", 16)] {
            assert!(error(&format!("{no_text}=1")).contains("have no text"), "{no_text}");
            assert_eq!(self::bytes(no_text), vec![0; bytes]);
        }
        assert!(error("4xf31=1").contains("`f31` is no element type: give f32, f64"));
        assert!(error("-4xf32=1").contains("`-4` is no dimension"));
        assert!(error("4x?xf32=1").contains("`?` is no dimension"));
        assert!(error("").contains("no element type"));
        assert!(error("0xf32=1").contains("1 elements where 0xf32 has 0"));
        let huge = "4611686018427387904x4xf32=";
        assert!(error(huge).contains("too many elements"), "{}", error(huge));
        assert!(error("9223372036854775808xi8").contains("too many elements"));
        assert!(error("1000000000000000000xi8").contains("no memory"));
        // Long texts are cut; the rest of the message lists the types.
        let long = error(&"9".repeat(500));
        assert!(!long.contains(&"9".repeat(61)) && long.len() < 400, "{long}");
    }
}
