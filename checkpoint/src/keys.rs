//! Reading a JSON object key by key, with errors that name the file, the key and the value.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::{Error, Result};

/// The object in the JSON file at `path`; `None` when there is no such file.
pub(crate) fn read_object(path: &Path) -> Result<Option<Map<String, Value>>> {
    let bytes = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(e)
            if matches!(
                e.kind(),
                std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory
            ) =>
        {
            return Ok(None);
        }
        Err(e) => return Err(Error::io(path)(e)),
    };
    let malformed = |message: String| Error::Config { path: path.into(), message };
    match serde_json::from_slice(&bytes) {
        Ok(Value::Object(map)) => Ok(Some(map)),
        Ok(other) => Err(malformed(format!("expected a JSON object, found {}", shown(&other)))),
        Err(e) => Err(malformed(format!("not valid JSON: {e}; download or export the file again"))),
    }
}

/// Typed access to the keys of one JSON object; `null` counts as absent.
pub(crate) struct Keys<'a> {
    pub path: &'a Path,
    /// The object's own place in the file: "" or "rope_scaling.".
    pub prefix: &'a str,
    pub map: &'a Map<String, Value>,
    /// What the file calls keys, by their full names, where it is not as they are called here.
    pub names: Option<&'a BTreeMap<String, String>>,
}

impl<'a> Keys<'a> {
    pub fn value(&self, key: &str) -> Option<&'a Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }

    /// "`key` is value: must", as an error about this file.
    pub fn refuse(&self, key: &str, must: impl std::fmt::Display) -> Error {
        let value = self.map.get(key).map_or_else(|| "absent".into(), shown);
        let ours = format!("{}{key}", self.prefix);
        let key = self.names.and_then(|names| names.get(&ours)).unwrap_or(&ours);
        self.error(format!("`{key}` is {value}: {must}"))
    }

    pub fn error(&self, message: String) -> Error {
        Error::Config { path: PathBuf::from(self.path), message }
    }

    fn typed<T>(
        &self,
        key: &str,
        what: &str,
        read: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>> {
        let Some(value) = self.value(key) else { return Ok(None) };
        read(value).map(Some).ok_or_else(|| self.refuse(key, format_args!("expected {what}")))
    }

    pub fn boolean(&self, key: &str) -> Result<Option<bool>> {
        self.typed(key, "true or false", Value::as_bool)
    }

    pub fn string(&self, key: &str) -> Result<Option<&'a str>> {
        self.typed(key, "a string", Value::as_str)
    }

    pub fn object(&self, key: &str) -> Result<Option<&'a Map<String, Value>>> {
        self.typed(key, "an object", Value::as_object)
    }

    pub fn strings(&self, key: &str) -> Result<Option<Vec<&'a str>>> {
        self.typed(key, "a list of strings", |value| {
            value.as_array()?.iter().map(Value::as_str).collect()
        })
    }

    /// A positive, finite number.
    pub fn positive(&self, key: &str) -> Result<Option<f64>> {
        self.typed(key, "a positive number", |value| {
            value.as_f64().filter(|x| x.is_finite() && *x > 0.0)
        })
    }

    /// A list of positive, finite numbers.
    pub fn positives(&self, key: &str) -> Result<Option<Vec<f64>>> {
        self.typed(key, "a list of positive numbers", |value| {
            let number = |value: &Value| value.as_f64().filter(|x| x.is_finite() && *x > 0.0);
            value.as_array()?.iter().map(number).collect()
        })
    }

    /// A list of integers that are not negative.
    pub fn numbers(&self, key: &str) -> Result<Option<Vec<usize>>> {
        self.typed(key, "a list of integers", |value| {
            let number = |value: &Value| usize::try_from(value.as_u64()?).ok();
            value.as_array()?.iter().map(number).collect()
        })
    }

    /// A list of which each entry is 0 or 1.
    pub fn flags(&self, key: &str) -> Result<Option<Vec<bool>>> {
        self.typed(key, "a list of 0 and 1", |value| {
            let flag = |value: &Value| match value.as_u64()? {
                0 => Some(false),
                1 => Some(true),
                _ => None,
            };
            value.as_array()?.iter().map(flag).collect()
        })
    }

    /// An integer between 1 and `max`.
    pub fn size(&self, key: &str, max: usize) -> Result<Option<usize>> {
        self.typed(key, &format!("an integer between 1 and {max}"), |value| {
            usize::try_from(value.as_u64()?).ok().filter(|n| (1..=max).contains(n))
        })
    }

    /// An integer between 0 and `max`.
    pub fn count(&self, key: &str, max: usize) -> Result<Option<usize>> {
        self.typed(key, &format!("an integer between 0 and {max}"), |value| {
            usize::try_from(value.as_u64()?).ok().filter(|n| *n <= max)
        })
    }

    /// One token id, a list of them, or `None` where the key is absent. What is below 0, which no token is, becomes
    /// the largest number.
    pub fn token_ids(&self, key: &str) -> Result<Option<Vec<u32>>> {
        let id = |value: &Value| match value.as_i64()? {
            ..0 => Some(u32::MAX),
            id => u32::try_from(id).ok(),
        };
        self.typed(key, "a token id or a list of token ids", |value| match value {
            Value::Array(ids) => ids.iter().map(id).collect(),
            one => Some(vec![id(one)?]),
        })
    }
}

/// A value for an error message, cut to a readable length.
pub(crate) fn shown(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(80) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}
