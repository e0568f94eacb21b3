//! JSON as Python's `json.dumps` writes it, for templates' filter `tojson`.

use std::io::{self, Write};

use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Error, ErrorKind};
use serde::Serialize;
use serde_json::Serializer;
use serde_json::ser::Formatter;

use super::python;

/// The filter, with the options that transformers gives it.
pub fn tojson(value: Value, options: Kwargs) -> Result<Value, Error> {
    let python = Python::from_options(&options)?;
    let sort_keys = options.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    options.assert_all_used()?;
    let failed = |e: serde_json::Error| Error::new(ErrorKind::BadSerialization, e.to_string());
    let mut json = Vec::new();
    let mut serializer = Serializer::with_formatter(&mut json, python);
    if sort_keys {
        let mut value = serde_json::to_value(value).map_err(failed)?;
        value.sort_all_objects();
        value.serialize(&mut serializer).map_err(failed)?;
    } else {
        value.serialize(&mut serializer).map_err(failed)?;
    }
    Ok(Value::from_safe_string(String::from_utf8_lossy(&json).into_owned()))
}

/// `value` as the filter writes it without options.
pub fn dumps(value: &serde_json::Value) -> String {
    let separators = (", ".to_owned(), ": ".to_owned());
    let python = Python { indent: None, separators, ensure_ascii: false, level: 0, filled: false };
    let mut json = Vec::new();
    let mut serializer = Serializer::with_formatter(&mut json, python);
    // Values of JSON can be written, and memory takes all of it.
    value
        .serialize(&mut serializer)
        .map_or_else(|_| value.to_string(), |()| String::from_utf8_lossy(&json).into_owned())
}

/// `json.dumps`: no HTML escapes, a space after commas and colons.
struct Python {
    /// What a level is indented by; `None` is one line.
    indent: Option<String>,
    /// Between values, between a key and its value.
    separators: (String, String),
    ensure_ascii: bool,
    level: usize,
    /// Whether the innermost array or object has a value.
    filled: bool,
}

impl Python {
    fn from_options(options: &Kwargs) -> Result<Self, Error> {
        let indent = match options.get::<Option<Value>>("indent")? {
            None => None,
            Some(indent) if indent.kind() == ValueKind::String => Some(indent.to_string()),
            Some(width) => Some(" ".repeat(usize::try_from(width)?)),
        };
        let comma = if indent.is_some() { "," } else { ", " };
        let separators = match options.get::<Option<Vec<String>>>("separators")? {
            None => (comma.to_owned(), ": ".to_owned()),
            Some(given) => given
                .try_into()
                .map(|[comma, colon]: [String; 2]| (comma, colon))
                .map_err(|_| {
                    Error::new(ErrorKind::InvalidOperation, "tojson: separators are two strings")
                })?,
        };
        let ensure_ascii = options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false);
        Ok(Self { indent, separators, ensure_ascii, level: 0, filled: false })
    }

    fn line<W: ?Sized + Write>(&self, writer: &mut W) -> io::Result<()> {
        let Some(indent) = &self.indent else { return Ok(()) };
        writer.write_all(b"\n")?;
        (0..self.level).try_for_each(|_| writer.write_all(indent.as_bytes()))
    }

    fn open<W: ?Sized + Write>(&mut self, writer: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.level += 1;
        self.filled = false;
        writer.write_all(bracket)
    }

    fn close<W: ?Sized + Write>(&mut self, writer: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.level -= 1;
        if self.filled {
            self.line(writer)?;
        }
        self.filled = true;
        writer.write_all(bracket)
    }

    fn begin<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if !first {
            writer.write_all(self.separators.0.as_bytes())?;
        }
        self.line(writer)
    }
}

impl Formatter for Python {
    fn begin_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.open(writer, b"[")
    }

    fn end_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.close(writer, b"]")
    }

    fn begin_array_value<W: ?Sized + Write>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> io::Result<()> {
        self.begin(writer, first)
    }

    fn end_array_value<W: ?Sized + Write>(&mut self, _: &mut W) -> io::Result<()> {
        self.filled = true;
        Ok(())
    }

    fn begin_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.open(writer, b"{")
    }

    fn end_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.close(writer, b"}")
    }

    fn begin_object_key<W: ?Sized + Write>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> io::Result<()> {
        self.begin(writer, first)
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(self.separators.1.as_bytes())
    }

    fn end_object_value<W: ?Sized + Write>(&mut self, _: &mut W) -> io::Result<()> {
        self.filled = true;
        Ok(())
    }

    fn write_string_fragment<W: ?Sized + Write>(
        &mut self,
        writer: &mut W,
        fragment: &str,
    ) -> io::Result<()> {
        if !self.ensure_ascii {
            return writer.write_all(fragment.as_bytes());
        }
        for unit in fragment.encode_utf16() {
            match u8::try_from(unit) {
                Ok(byte) if byte.is_ascii() && byte != 0x7f => writer.write_all(&[byte])?,
                _ => write!(writer, "\\u{unit:04x}")?,
            }
        }
        Ok(())
    }

    fn write_f64<W: ?Sized + Write>(&mut self, writer: &mut W, value: f64) -> io::Result<()> {
        let mut digits = String::new();
        python::float(&mut digits, value).map_err(io::Error::other)?;
        writer.write_all(digits.as_bytes())
    }
}
