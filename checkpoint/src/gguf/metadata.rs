//! What a file says of its model: keys and values.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

use super::reader::Reader;
use super::set::Set;
use crate::{Error, Result};

/// Most elements of an array.
const MAX_ELEMENTS: u64 = 1 << 25;

/// Every key of a GGUF file, with its value: the model's sizes, its tokenizer, its chat template.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Metadata {
    values: BTreeMap<String, Value>,
    /// Where arrays of numbers in single precision begin in the file, bytes.
    singles: BTreeMap<String, u64>,
}

/// The value of a key.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// An integer, of any width.
    Integer(i128),
    /// A number in single or double precision.
    Float(f64),
    /// True or false.
    Boolean(bool),
    /// A string.
    Text(String),
    /// An array of integers.
    Integers(Vec<i64>),
    /// An array of numbers.
    Floats(Vec<f64>),
    /// An array of true and false.
    Booleans(Vec<bool>),
    /// An array of strings.
    Texts(Strings),
}

/// Many strings in one piece of memory.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Strings {
    text: String,
    /// Where each ends.
    ends: Vec<usize>,
}

impl Metadata {
    /// What the GGUF file of a model says: a file, one part of several, or a folder with one of them
    /// and no safetensors. `None` where `model` is a folder in Hugging Face layout.
    ///
    /// # Errors
    ///
    /// As [`Checkpoint::open`](crate::Checkpoint::open).
    pub fn of_model(model: &Path) -> Result<Option<Self>> {
        Ok(Set::find(model)?.map(|set| set.metadata))
    }

    /// The value of `key`.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.values.get(key)
    }

    /// Every key and its value, by key.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Value)> {
        self.values.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// The string under `key`; `None` where there is none.
    pub fn text(&self, key: &str) -> Option<&str> {
        match self.get(key)? {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The integer under `key`, if it is none below 0.
    pub fn unsigned(&self, key: &str) -> Option<u64> {
        match self.get(key)? {
            Value::Integer(value) => u64::try_from(*value).ok(),
            _ => None,
        }
    }

    /// The same of a key of layers: they may have one number each, which is the same then.
    pub(crate) fn unsigned_of_layers(&self, key: &str) -> Option<u64> {
        let Value::Integers(all) = self.get(key)? else { return self.unsigned(key) };
        let (first, others) = all.split_first()?;
        others.iter().all(|it| it == first).then(|| u64::try_from(*first).ok())?
    }

    /// The strings under `key`.
    pub fn texts(&self, key: &str) -> Option<&Strings> {
        match self.get(key)? {
            Value::Texts(texts) => Some(texts),
            _ => None,
        }
    }

    /// Where the numbers under `key` lie in the file, and how many there are; `None` where they are no array in
    /// single precision.
    pub(super) fn singles(&self, key: &str) -> Option<(u64, usize)> {
        let Value::Floats(values) = self.get(key)? else { return None };
        Some((*self.singles.get(key)?, values.len()))
    }

    /// Reads `count` keys.
    pub(super) fn read(from: &mut Reader<impl Read>, count: u64) -> Result<Self> {
        // A key has a length, a type and at least a byte of each, name and value.
        from.expect(count, 14, &format!("a list of {count} keys"))?;
        let (mut values, mut singles) = (BTreeMap::new(), BTreeMap::new());
        for number in 0..count {
            let key = from.name(&format!("the name of key {number}"))?;
            let what = format!("`{key}`");
            let kind = from.u32(&what)?;
            let value = match kind {
                ARRAY => {
                    let (value, start) = array(from, &what)?;
                    singles.extend(start.map(|start| (key.clone(), start)));
                    value
                }
                kind => scalar(from, kind, &what)?,
            };
            if values.insert(key, value).is_some() {
                return Err(from.wrong(format!("{what} is there twice: the file is damaged")));
            }
        }
        Ok(Self { values, singles })
    }
}

impl Strings {
    /// How many.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// String number `index`.
    pub fn get(&self, index: usize) -> Option<&str> {
        let end = *self.ends.get(index)?;
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        Some(&self.text[start..end])
    }

    /// Each of them.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        (0..self.len()).filter_map(|index| self.get(index))
    }
}

/// The numbers of types.
const STRING: u32 = 8;
const ARRAY: u32 = 9;
const SINGLE: u32 = 6;

/// Bytes of a value of type `kind`, at least.
fn size(kind: u32) -> Option<u64> {
    match kind {
        0 | 1 | 7 => Some(1),
        2 | 3 => Some(2),
        4..=6 => Some(4),
        STRING | 10..=12 => Some(8),
        _ => None,
    }
}

fn unknown(from: &Reader<impl Read>, kind: u32, what: &str) -> Error {
    from.wrong(format!("{what} has the unknown type {kind}: the file is damaged, or too new"))
}

fn scalar(from: &mut Reader<impl Read>, kind: u32, what: &str) -> Result<Value> {
    let Some(size) = size(kind) else { return Err(unknown(from, kind, what)) };
    if kind == STRING {
        return from.string(what).map(Value::Text);
    }
    let bytes = from.bytes(size, what)?;
    match one(kind, &bytes) {
        Some(value) => Ok(value),
        None => Err(from.wrong(format!("{what} is neither true nor false: the file is damaged"))),
    }
}

/// A value of a type that is no string, of its bytes; `None` where a boolean is none.
fn one(kind: u32, bytes: &[u8]) -> Option<Value> {
    let mut wide = [0; 8];
    wide[..bytes.len()].copy_from_slice(bytes);
    let bits = u64::from_le_bytes(wide);
    Some(match kind {
        0 | 2 | 4 | 10 => Value::Integer(bits.into()),
        1 => Value::Integer((bits as i8).into()),
        3 => Value::Integer((bits as i16).into()),
        5 => Value::Integer((bits as i32).into()),
        11 => Value::Integer((bits as i64).into()),
        6 => Value::Float(f32::from_bits(bits as u32).into()),
        12 => Value::Float(f64::from_bits(bits)),
        7 if bits < 2 => Value::Boolean(bits == 1),
        _ => return None,
    })
}

/// An array, and where its numbers begin if they are in single precision.
fn array(from: &mut Reader<impl Read>, what: &str) -> Result<(Value, Option<u64>)> {
    let kind = from.u32(what)?;
    if kind == ARRAY {
        return Err(from.wrong(format!("{what} is an array of arrays, which is not supported")));
    }
    let Some(size) = size(kind) else { return Err(unknown(from, kind, what)) };
    let count = from.u64(what)?;
    if count > MAX_ELEMENTS {
        return Err(from.wrong(format!(
            "{what} claims {count} elements, more than {MAX_ELEMENTS}: the file is damaged"
        )));
    }
    from.expect(count, size, what)?;
    if kind == STRING {
        let mut strings = Strings { text: String::new(), ends: Vec::with_capacity(count as usize) };
        for _ in 0..count {
            strings.text += &from.string(what)?;
            strings.ends.push(strings.text.len());
        }
        return Ok((Value::Texts(strings), None));
    }
    let start = (kind == SINGLE).then_some(from.at);
    let bytes = from.bytes(count * size, what)?;
    let values = bytes.chunks_exact(size as usize).map(|bytes| one(kind, bytes));
    let wrong = || from.wrong(format!("{what} has an element out of range: the file is damaged"));
    let all: Option<Value> = match kind {
        6 | 12 => values
            .map(|value| if let Some(Value::Float(value)) = value { Some(value) } else { None })
            .collect::<Option<_>>()
            .map(Value::Floats),
        7 => values
            .map(|value| if let Some(Value::Boolean(value)) = value { Some(value) } else { None })
            .collect::<Option<_>>()
            .map(Value::Booleans),
        _ => values
            .map(
                |value| {
                    if let Some(Value::Integer(it)) = value { it.try_into().ok() } else { None }
                },
            )
            .collect::<Option<_>>()
            .map(Value::Integers),
    };
    Ok((all.ok_or_else(wrong)?, start))
}
