//! Tensors in NumPy's `.npy` files.
//!
//! The format is a line of text before the bytes that a [`Literal`] has already. The crates that
//! read it bring a parser generator, or arrays of their own, and make elements of the bytes one by
//! one.

use std::fs::File;
use std::io::{BufReader, Read, Write};
use std::path::Path;

use super::Literal;
use crate::base::error::{Error, Result};
use crate::hal::memory::element::ElementType;

/// How a file begins; the version of the format follows.
const MAGIC: &[u8] = b"\x93NUMPY";

/// Longest header that is read, bytes: NumPy's own limit.
const MAX_HEADER: usize = 10_000;

impl Literal {
    /// The array in the `.npy` file at `path`, which NumPy's `save` wrote.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use iree_rt::Literal;
    ///
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("x.npy");
    /// let literal: Literal = "2x3xf32=1".parse()?;
    /// literal.save_npy(&path)?;
    /// assert_eq!(Literal::load_npy(&path)?, literal);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// Those of the file and of [`read_npy`](Self::read_npy), with its path.
    pub fn load_npy(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let read = || Self::read_npy(&mut BufReader::new(File::open(path)?), None);
        read().map_err(|e| e.context(format!("reading {}", path.display())))
    }

    /// Writes a `.npy` file to `path`, over what may be there.
    ///
    /// # Errors
    /// Those of the file and of [`write_npy`](Self::write_npy), with its path.
    pub fn save_npy(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let write = || self.write_npy(&mut File::create(path)?);
        write().map_err(|e| e.context(format!("writing {}", path.display())))
    }

    /// The next array of `file`, which may hold several `.npy` files one after the other. `complex64`
    /// and `complex128` are [`CF64`](ElementType::CF64) and [`CF128`](ElementType::CF128). NumPy has
    /// no name for bf16 and 8-bit floats: its raw data of their size are `declared`, if that is
    /// one of them.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::Code::InvalidArgument) for what is no `.npy` or is truncated, and
    /// for an array that is in Fortran's order, big-endian, or of a type that tensors have not;
    /// those of reading.
    pub fn read_npy(file: &mut impl Read, declared: Option<ElementType>) -> Result<Self> {
        let header = Header::read(file)?;
        ensure(
            !header.fortran_order || header.shape.len() < 2,
            "the array is in Fortran's order: save it as numpy.ascontiguousarray(a)",
        )?;
        ensure(
            !header.descr.starts_with('>'),
            "the array is big-endian: save it as a.astype(a.dtype.newbyteorder('<'))",
        )?;
        let kind = header.descr.trim_start_matches(['<', '|', '=']);
        let (kind, bytes) = kind.split_at_checked(1).unwrap_or_default();
        let bits = bytes.parse().ok().and_then(|bytes: usize| bytes.checked_mul(8));
        let element_type = match (kind, bits) {
            ("b", Some(8)) => Some(ElementType::BOOL),
            // Compiled modules declare integers without a sign.
            ("i" | "u", Some(bits @ 8..)) => ElementType::parse(&format!("i{bits}")),
            ("f", Some(bits)) => ElementType::parse(&format!("f{bits}")),
            ("c", Some(bits)) => ElementType::parse(&format!("cf{bits}")),
            ("V", Some(bits)) => declared.filter(|ty| ty.bits() == bits),
            _ => None,
        };
        let element_type = element_type.ok_or_else(|| {
            Error::invalid(format!(
                "an array of `{}` is no tensor: save it as float32, int32 or another plain type",
                header.descr
            ))
        })?;
        let bytes = header
            .shape
            .iter()
            .try_fold(element_type.size(), |bytes, &dim| bytes.checked_mul(dim))
            .ok_or_else(|| {
                Error::invalid(format!("shape {:?} has too many elements", header.shape))
            })?;
        let bytes = take(file, bytes).map_err(|e| e.context("the array is truncated"))?;
        Self::new(header.shape, element_type, bytes)
    }

    /// Writes an array with the bytes that NumPy would write; types that NumPy has no name for as
    /// raw data.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::Code::InvalidArgument) for elements that share bytes; those of
    /// writing.
    pub fn write_npy(&self, file: &mut impl Write) -> Result<()> {
        let element_type = self.element_type();
        ensure(
            element_type.bits().is_multiple_of(8),
            &format!("elements of {element_type} share bytes, which .npy has no type for"),
        )?;
        let kind = match element_type {
            ElementType::BOOL => 'b',
            ElementType::F16 | ElementType::F32 | ElementType::F64 => 'f',
            ty if ty.is_complex() => 'c',
            ElementType::UI8 | ElementType::UI16 | ElementType::UI32 | ElementType::UI64 => 'u',
            ty if ty.to_string().trim_start_matches('s').starts_with('i') => 'i',
            _ => 'V',
        };
        let size = element_type.size();
        let order = if size == 1 || kind == 'V' { '|' } else { '<' };
        let dims: Vec<_> = self.shape().iter().map(ToString::to_string).collect();
        let shape = match &dims[..] {
            [dim] => format!("{dim},"),
            dims => dims.join(", "),
        };
        let mut text = format!(
            "{{'descr': '{order}{kind}{size}', 'fortran_order': False, 'shape': ({shape}), }}"
        );
        // A newline ends the header, and the data begin at a multiple of 64 bytes.
        let before = MAGIC.len() + 4;
        let end = (before + text.len() + 1).next_multiple_of(64);
        text.extend(std::iter::repeat_n(' ', end - before - text.len() - 1));
        text.push('\n');
        let length = u16::try_from(text.len())
            .map_err(|_| Error::invalid("too many dimensions for .npy"))?;
        file.write_all(&[MAGIC, b"\x01\x00", &length.to_le_bytes(), text.as_bytes()].concat())?;
        Ok(file.write_all(self.bytes())?)
    }
}

fn ensure(holds: bool, otherwise: &str) -> Result<()> {
    if holds { Ok(()) } else { Err(Error::invalid(otherwise)) }
}

/// The next `length` bytes.
fn take(file: &mut impl Read, length: usize) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    // Grown as they come: a damaged header may ask for any number.
    file.take(length as u64).read_to_end(&mut bytes)?;
    let left = bytes.len();
    ensure(left == length, &format!("{length} bytes wanted, and only {left} are left"))?;
    Ok(bytes)
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
        ensure(whole && start.starts_with(MAGIC), "not an .npy file")?;
        let mut length = [0; 4];
        let width = if start[6] == 1 { 2 } else { 4 };
        file.read_exact(&mut length[..width])
            .map_err(|_| Error::invalid("truncated .npy header"))?;
        let length = u32::from_le_bytes(length) as usize;
        ensure(
            length <= MAX_HEADER,
            &format!("an .npy header of {length} bytes: no array needs that"),
        )?;
        let text = take(file, length).map_err(|e| e.context("truncated .npy header"))?;
        Self::parse(&text).map_err(|e| e.context("damaged .npy header"))
    }

    /// `{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }`, a Python dictionary.
    fn parse(text: &[u8]) -> Result<Self> {
        let mut text = Text(std::str::from_utf8(text).map_err(|_| Error::invalid("no UTF-8"))?);
        let (mut descr, mut fortran_order, mut shape) = (None, None, None);
        text.expect("{")?;
        while !text.eat("}") {
            let key = text.string()?;
            text.expect(":")?;
            match key {
                "descr" if text.eat("[") => {
                    return Err(Error::invalid(
                        "an array of records is no tensor: save one field of it",
                    ));
                }
                "descr" => descr = Some(text.string()?.to_owned()),
                "fortran_order" => {
                    fortran_order = Some(text.eat("True"));
                    ensure(fortran_order == Some(true) || text.eat("False"), "no truth value")?;
                }
                "shape" => shape = Some(text.tuple()?),
                other => return Err(Error::invalid(format!("unknown key {other}"))),
            }
            if !text.eat(",") {
                text.expect("}")?;
                break;
            }
        }
        ensure(text.0.trim_ascii().is_empty(), "something follows the dictionary")?;
        Ok(Self {
            descr: descr.ok_or_else(|| Error::invalid("no descr"))?,
            fortran_order: fortran_order.ok_or_else(|| Error::invalid("no fortran_order"))?,
            shape: shape.ok_or_else(|| Error::invalid("no shape"))?,
        })
    }
}

/// What is left of a header.
struct Text<'a>(&'a str);

impl<'a> Text<'a> {
    fn eat(&mut self, token: &str) -> bool {
        self.0 = self.0.trim_ascii_start();
        let rest = self.0.strip_prefix(token);
        self.0 = rest.unwrap_or(self.0);
        rest.is_some()
    }

    fn expect(&mut self, token: &str) -> Result<()> {
        ensure(self.eat(token), &format!("no `{token}` where one belongs"))
    }

    fn string(&mut self) -> Result<&'a str> {
        let quote = if self.eat("'") { '\'' } else { self.expect("\"").map(|()| '"')? };
        let (text, rest) =
            self.0.split_once(quote).ok_or_else(|| Error::invalid("a string without an end"))?;
        self.0 = rest;
        Ok(text)
    }

    fn tuple(&mut self) -> Result<Vec<usize>> {
        let mut dims = Vec::new();
        self.expect("(")?;
        while !self.eat(")") {
            let end = self.0.find(|c: char| !c.is_ascii_digit()).unwrap_or(self.0.len());
            let (dim, rest) = self.0.split_at(end);
            dims.push(dim.parse().map_err(|_| Error::invalid("a dimension is no size"))?);
            self.0 = rest;
            if !self.eat(",") {
                self.expect(")")?;
                break;
            }
        }
        Ok(dims)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(text: &str) -> Vec<u8> {
        let mut file = Vec::new();
        text.parse::<Literal>().unwrap().write_npy(&mut file).unwrap();
        file
    }

    fn file(header: &str, data: &[u8]) -> Vec<u8> {
        let length = (header.len() as u16).to_le_bytes();
        [b"\x93NUMPY\x01\x00", &length[..], header.as_bytes(), data].concat()
    }

    fn error(bytes: &[u8]) -> String {
        Literal::read_npy(&mut &bytes[..], None).unwrap_err().message().to_owned()
    }

    #[test]
    fn what_was_written_is_read() {
        for text in ["2x3xf32=1.5", "f64=-1", "0x4xi8=", "3xi1=1 0 1", "2xi64=-1 5", "f16=2"] {
            let literal: Literal = text.parse().unwrap();
            assert_eq!(Literal::read_npy(&mut &written(text)[..], None).unwrap(), literal);
        }
        let unsigned = Literal::read_npy(&mut &written("2xui16=1 65535")[..], None).unwrap();
        assert_eq!(unsigned, "2xi16=1 -1".parse().unwrap());
        let raw = written("2xbf16=1 2");
        assert_eq!(
            Literal::read_npy(&mut &raw[..], Some(ElementType::BF16)).unwrap(),
            "2xbf16=1 2".parse().unwrap()
        );
        assert!(error(&raw).contains("`|V2` is no tensor"), "{}", error(&raw));
    }

    #[test]
    fn complex_numbers_are_those_of_numpy() {
        let pairs = [[1f32, -2.], [0.5, 4.]];
        // What NumPy writes for `numpy.array([1-2j, 0.5+4j], numpy.complex64)`.
        let text = "{'descr': '<c8', 'fortran_order': False, 'shape': (2,), }";
        let text = format!("{text:117}\n");
        let numpy = file(&text, bytemuck::cast_slice(&pairs));
        let literal = Literal::read_npy(&mut &numpy[..], None).unwrap();
        assert_eq!(literal, Literal::from_elements(&[2], &pairs).unwrap());
        let mut back = Vec::new();
        literal.write_npy(&mut back).unwrap();
        assert_eq!(back, numpy);

        let wide = Literal::from_elements(&[], &[[1f64, 2.]]).unwrap();
        let mut bytes = Vec::new();
        wide.write_npy(&mut bytes).unwrap();
        assert!(String::from_utf8_lossy(&bytes).contains("'<c16'"));
        assert_eq!(Literal::read_npy(&mut &bytes[..], None).unwrap(), wide);
        let half = file("{'descr': '<c4', 'fortran_order': False, 'shape': (1,), }", &[0; 4]);
        assert!(error(&half).contains("`<c4` is no tensor"), "{}", error(&half));
    }

    #[test]
    fn several_arrays_in_one_file() {
        let bytes = [written("2xi8=1 2"), written("f32=3")].concat();
        let mut file = &bytes[..];
        assert_eq!(Literal::read_npy(&mut file, None).unwrap().to_string(), "2xi8=1 2");
        assert_eq!(Literal::read_npy(&mut file, None).unwrap().to_string(), "f32=3");
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
        assert_eq!(
            Literal::read_npy(&mut &plain("<f4", "False", "(2, 2)")[..], None).unwrap().len(),
            4
        );
        assert!(error(b"PK\x03\x04 and more").contains("not an .npy file"));
        assert!(error(&plain("<f4", "False", "(2, 3)")).contains("24 bytes wanted, and only 16"));
        assert!(error(&plain("<f4", "True", "(2, 2)")).contains("ascontiguousarray"));
        assert!(error(&plain(">f4", "False", "(4,)")).contains("newbyteorder"));
        assert!(error(&plain("<M8", "False", "(2,)")).contains("no tensor"));
        assert!(error(&plain("<f4", "False", "(4294967296, 4294967296)")).contains("too many"));
        assert!(error(&plain("<f4", "False", "(1000000000000,)")).contains("truncated"));
        for header in
            ["", "(", "{'descr': '<f4'", "{'a': 1}", "{'shape': (-1,)}", "{'shape': (1 2)}", "{} x"]
        {
            assert!(error(&file(header, &[])).contains("damaged .npy header"), "{header}");
        }
        let record = "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,)}";
        assert!(error(&file(record, &[])).contains("one field of it"));
        assert!(error(&file(&" ".repeat(20_000), &[])).contains("no array needs"));
        assert!(error(&written("4xf32")[..70]).contains("truncated"));
    }
}
