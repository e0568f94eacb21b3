//! Tensors in NumPy's `.npy` files.

use std::io::{Read, Write};

use anyhow::{Context, Result, bail, ensure};
use iree_rt::{ElementType, Literal};
use py_literal::Value;

use super::files::Files;

/// How a file begins; the version of the format follows.
const MAGIC: &[u8] = b"\x93NUMPY";

/// Longest header that is read, bytes: NumPy's own limit.
const MAX_HEADER: usize = 10_000;

/// Deepest brackets of a header; a plain array has two. The parser recurses.
const MAX_DEPTH: usize = 32;

/// The next array of `file`, which may hold several. NumPy has no name for bf16 and 8-bit floats:
/// its raw data of their size are `declared`, if that is one of them.
///
/// # Errors
///
/// No `.npy`, or truncated; an array that is in Fortran's order, big-endian, or of a type that
/// tensors have not.
pub fn read(file: &mut impl Read, declared: Option<ElementType>) -> Result<Literal> {
    let header = Header::read(file)?;
    ensure!(
        !header.fortran_order || header.shape.len() < 2,
        "the array is in Fortran's order: save it as numpy.ascontiguousarray(a)"
    );
    ensure!(
        !header.descr.starts_with('>'),
        "the array is big-endian: save it as a.astype(a.dtype.newbyteorder('<'))"
    );
    let kind = header.descr.trim_start_matches(['<', '|', '=']);
    let (kind, bytes) = kind.split_at_checked(1).unwrap_or_default();
    let bits = bytes.parse().ok().and_then(|bytes: usize| bytes.checked_mul(8));
    let element_type = match (kind, bits) {
        ("b", Some(8)) => Some(ElementType::BOOL),
        // Compiled modules declare integers without a sign.
        ("i" | "u", Some(bits @ 8..)) => ElementType::parse(&format!("i{bits}")),
        ("f", Some(bits)) => ElementType::parse(&format!("f{bits}")),
        ("V", Some(bits)) => declared.filter(|ty| ty.bits() == bits),
        _ => None,
    };
    let Some(element_type) = element_type else {
        let descr = &header.descr;
        bail!("an array of `{descr}` is no tensor: save it as float32, int32 or another plain type")
    };
    let bytes = header
        .shape
        .iter()
        .try_fold(element_type.size(), |bytes, &dim| bytes.checked_mul(dim))
        .with_context(|| format!("shape {:?} has too many elements", header.shape))?;
    let bytes = Files::read(file, bytes).context("the array is truncated")?;
    Ok(Literal::new(header.shape, element_type, bytes)?)
}

/// What the dictionary before the data says.
struct Header {
    descr: String,
    fortran_order: bool,
    shape: Vec<usize>,
}

impl Header {
    fn read(file: &mut impl Read) -> Result<Self> {
        let mut start = [0; 8];
        let whole = file.read_exact(&mut start).is_ok();
        ensure!(whole && start.starts_with(MAGIC), "not an .npy file");
        let mut length = [0; 4];
        let width = if start[6] == 1 { 2 } else { 4 };
        file.read_exact(&mut length[..width]).context("truncated .npy header")?;
        let length = u32::from_le_bytes(length) as usize;
        ensure!(length <= MAX_HEADER, "an .npy header of {length} bytes: no array needs that");
        let text = Files::read(file, length).context("truncated .npy header")?;
        Self::parse(&text).context("damaged .npy header")
    }

    fn parse(text: &[u8]) -> Result<Self> {
        let deepest = text.iter().scan(0usize, |depth, byte| {
            match byte {
                b'(' | b'[' | b'{' => *depth += 1,
                b')' | b']' | b'}' => *depth = depth.saturating_sub(1),
                _ => {}
            }
            Some(*depth)
        });
        ensure!(deepest.max().unwrap_or(0) <= MAX_DEPTH, "too many brackets");
        let value: Value = std::str::from_utf8(text)?.trim_ascii().parse()?;
        let entries = value.as_dict().context("it is no dictionary")?;
        let entry = |name: &str| {
            let found =
                entries.iter().find(|(key, _)| key.as_string().is_some_and(|it| it == name));
            found.map(|(_, value)| value).with_context(|| format!("it has no {name}"))
        };
        let shape = entry("shape")?.as_tuple().context("shape is no tuple")?;
        let descr = entry("descr")?.as_string();
        Ok(Self {
            descr: descr.context("an array of records is no tensor: save one field of it")?.clone(),
            fortran_order: entry("fortran_order")?.as_boolean().context("no fortran_order")?,
            shape: shape
                .iter()
                .map(|dim| dim.as_integer().and_then(|it| it.try_into().ok()))
                .collect::<Option<_>>()
                .context("a dimension is no size")?,
        })
    }
}

/// Writes `literal` as an array, with the bytes that NumPy would write; types that NumPy has no
/// name for as raw data.
///
/// # Errors
///
/// The file's.
pub fn write(file: &mut impl Write, literal: &Literal) -> Result<()> {
    let element_type = literal.element_type();
    ensure!(element_type.bits().is_multiple_of(8), "elements of {element_type} share bytes");
    let kind = match element_type {
        ElementType::BOOL => 'b',
        ElementType::F16 | ElementType::F32 | ElementType::F64 => 'f',
        ElementType::UI8 | ElementType::UI16 | ElementType::UI32 | ElementType::UI64 => 'u',
        ty if ty.to_string().trim_start_matches('s').starts_with('i') => 'i',
        _ => 'V',
    };
    let size = element_type.size();
    let order = if size == 1 || kind == 'V' { '|' } else { '<' };
    let dims: Vec<_> = literal.shape().iter().map(ToString::to_string).collect();
    let shape = match &dims[..] {
        [dim] => format!("{dim},"),
        dims => dims.join(", "),
    };
    let mut text =
        format!("{{'descr': '{order}{kind}{size}', 'fortran_order': False, 'shape': ({shape}), }}");
    // A newline ends the header, and the data begin at a multiple of 64 bytes.
    let before = MAGIC.len() + 4;
    let end = (before + text.len() + 1).next_multiple_of(64);
    text.extend(std::iter::repeat_n(' ', end - before - text.len() - 1));
    text.push('\n');
    let length = u16::try_from(text.len()).context("too many dimensions for .npy")?;
    file.write_all(&[MAGIC, b"\x01\x00", &length.to_le_bytes(), text.as_bytes()].concat())?;
    Ok(file.write_all(literal.bytes())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(text: &str) -> Vec<u8> {
        let mut file = Vec::new();
        write(&mut file, &text.parse().unwrap()).unwrap();
        file
    }

    fn file(header: &str, data: &[u8]) -> Vec<u8> {
        let length = (header.len() as u16).to_le_bytes();
        [b"\x93NUMPY\x01\x00", &length[..], header.as_bytes(), data].concat()
    }

    fn error(bytes: &[u8]) -> String {
        format!("{:#}", read(&mut &bytes[..], None).unwrap_err())
    }

    #[test]
    fn what_was_written_is_read() {
        for text in ["2x3xf32=1.5", "f64=-1", "0x4xi8=", "3xi1=1 0 1", "2xi64=-1 5", "f16=2"] {
            let literal: Literal = text.parse().unwrap();
            assert_eq!(read(&mut &written(text)[..], None).unwrap(), literal);
        }
        let unsigned = read(&mut &written("2xui16=1 65535")[..], None).unwrap();
        assert_eq!(unsigned, "2xi16=1 -1".parse().unwrap());
        let raw = written("2xbf16=1 2");
        assert_eq!(
            read(&mut &raw[..], Some(ElementType::BF16)).unwrap(),
            "2xbf16=1 2".parse().unwrap()
        );
        assert!(error(&raw).contains("`|V2` is no tensor"), "{}", error(&raw));
    }

    #[test]
    fn several_arrays_in_one_file() {
        let bytes = [written("2xi8=1 2"), written("f32=3")].concat();
        let mut file = &bytes[..];
        assert_eq!(read(&mut file, None).unwrap().to_string(), "2xi8=1 2");
        assert_eq!(read(&mut file, None).unwrap().to_string(), "f32=3");
        assert!(file.is_empty());
    }

    #[test]
    fn what_cannot_be_read_says_why() {
        let plain = |descr: &str, order: &str, shape: &str| {
            file(
                &format!("{{'descr': '{descr}', 'fortran_order': {order}, 'shape': {shape}, }}"),
                &[0; 16],
            )
        };
        assert_eq!(read(&mut &plain("<f4", "False", "(2, 2)")[..], None).unwrap().len(), 4);
        assert!(error(b"PK\x03\x04 and more").contains("not an .npy file"));
        assert!(error(&plain("<f4", "False", "(2, 3)")).contains("24 bytes wanted, and only 16"));
        assert!(error(&plain("<f4", "True", "(2, 2)")).contains("ascontiguousarray"));
        assert!(error(&plain(">f4", "False", "(4,)")).contains("newbyteorder"));
        assert!(error(&plain("<c8", "False", "(2,)")).contains("no tensor"));
        assert!(error(&plain("<f4", "False", "(4294967296, 4294967296)")).contains("too many"));
        assert!(error(&plain("<f4", "False", "(1000000000000,)")).contains("truncated"));
        assert!(error(&file("{'descr': '<f4'", &[])).contains("header"));
        assert!(error(&file(&"(".repeat(9000), &[])).contains("too many brackets"));
        assert!(error(&file(&" ".repeat(20_000), &[])).contains("no array needs"));
        assert!(error(&written("4xf32")[..70]).contains("truncated"));
    }
}
