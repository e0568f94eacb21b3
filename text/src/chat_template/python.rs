//! Values as Python sees them: how it prints one that a template puts into the text, and which have items.

use std::fmt::{self, Write};

use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Error, ErrorKind, Output, State, filters};

/// What `{{ value }}` writes.
pub fn format(out: &mut Output<'_>, _: &State<'_, '_>, value: &Value) -> Result<(), Error> {
    Ok(str(out, value)?)
}

/// The filter `string`.
pub fn string(value: &Value) -> Result<String, Error> {
    let mut text = String::new();
    str(&mut text, value)?;
    Ok(text)
}

/// The tests `iterable` and `sequence`: text and maps are both, and so is what is not there, but none is not.
pub fn has_items(value: &Value) -> bool {
    use ValueKind::{Iterable, Map, Seq, String, Undefined};
    matches!(value.kind(), Iterable | Map | Seq | String | Undefined)
}

/// The filter `trim`.
pub fn trim(value: &Value, chars: Option<&str>) -> Result<String, Error> {
    let text = string(value)?;
    Ok(match chars {
        None => text.trim(),
        Some(chars) => text.trim_matches(|c| chars.contains(c)),
    }
    .to_owned())
}

/// The filter `upper`.
pub fn upper(value: &Value) -> Result<String, Error> {
    Ok(string(value)?.to_uppercase())
}

/// The filter `lower`.
pub fn lower(value: &Value) -> Result<String, Error> {
    Ok(string(value)?.to_lowercase())
}

/// The filter `join`.
pub fn join(values: &Value, between: Option<String>, named: Kwargs) -> Result<String, Error> {
    let between = match between {
        None => named.get::<Option<String>>("d")?,
        given => given,
    };
    named.assert_all_used()?;
    let texts = values.try_iter()?.map(|value| string(&value)).collect::<Result<Vec<_>, _>>()?;
    Ok(texts.join(between.as_deref().unwrap_or_default()))
}

/// The filter `replace`, of the first `count` if that is given.
pub fn replace(
    value: &Value,
    old: &Value,
    new: &Value,
    count: Option<usize>,
) -> Result<String, Error> {
    let (text, old, new) = (string(value)?, string(old)?, string(new)?);
    Ok(text.replacen(&old, &new, count.unwrap_or(usize::MAX)))
}

/// The filter `sum`, of an attribute of each if that is named.
pub fn sum(state: &State<'_, '_>, values: Value, named: Kwargs) -> Result<Value, Error> {
    let attribute = named.get::<Option<String>>("attribute")?;
    named.assert_all_used()?;
    let Some(attribute) = attribute else { return filters::sum(state, values) };
    let of_each = values.try_iter()?.map(|value| value.get_attr(&attribute));
    filters::sum(state, of_each.collect::<Result<Value, _>>()?)
}

/// The test `number`: truth is a number, too.
pub fn is_number(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Number | ValueKind::Bool)
}

/// The filters `length` and `count`: what is not there has no items.
pub fn length(value: &Value) -> Result<usize, Error> {
    if value.is_undefined() {
        return Ok(0);
    }
    let message = || format!("a value of the kind {} has no length", value.kind());
    value.len().ok_or_else(|| Error::new(ErrorKind::InvalidOperation, message()))
}

/// The filter `items`: what is not there has none.
pub fn items(value: &Value) -> Result<Value, Error> {
    match value.is_undefined() {
        true => Ok(Value::from(Vec::<Value>::new())),
        false => filters::items(value),
    }
}

/// Python's `str`.
fn str(out: &mut impl Write, value: &Value) -> fmt::Result {
    match value.kind() {
        ValueKind::Seq | ValueKind::Iterable | ValueKind::Map | ValueKind::Number => {
            repr(out, value)
        }
        _ => write!(out, "{value}"),
    }
}

/// Python's `repr`.
fn repr(out: &mut impl Write, value: &Value) -> fmt::Result {
    match value.kind() {
        ValueKind::String => repr_str(out, value.as_str().unwrap_or_default()),
        ValueKind::Number if !value.is_integer() => match f64::try_from(value.clone()) {
            Ok(value) if value.is_finite() => float(out, value),
            _ => write!(out, "{value}"),
        },
        // Slices and sums of lists are iterables here.
        ValueKind::Seq | ValueKind::Iterable => {
            out.write_char('[')?;
            for (number, item) in value.try_iter().into_iter().flatten().enumerate() {
                out.write_str(if number == 0 { "" } else { ", " })?;
                repr(out, &item)?;
            }
            out.write_char(']')
        }
        ValueKind::Map => {
            out.write_char('{')?;
            for (number, key) in value.try_iter().into_iter().flatten().enumerate() {
                out.write_str(if number == 0 { "" } else { ", " })?;
                repr(out, &key)?;
                out.write_str(": ")?;
                repr(out, &value.get_item(&key).unwrap_or_default())?;
            }
            out.write_char('}')
        }
        _ => write!(out, "{value}"),
    }
}

fn repr_str(out: &mut impl Write, text: &str) -> fmt::Result {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.write_char(quote)?;
    for c in text.chars() {
        match c {
            '\n' => out.write_str("\\n")?,
            '\r' => out.write_str("\\r")?,
            '\t' => out.write_str("\\t")?,
            '\\' => out.write_str("\\\\")?,
            _ if c == quote => write!(out, "\\{c}")?,
            _ if is_printable(c) => out.write_char(c)?,
            '\0'..='\u{ff}' => write!(out, "\\x{:02x}", u32::from(c))?,
            '\u{100}'..='\u{ffff}' => write!(out, "\\u{:04x}", u32::from(c))?,
            _ => write!(out, "\\U{:08x}", u32::from(c))?,
        }
    }
    out.write_char(quote)
}

/// Python's `str.isprintable`. `escape_debug` escapes what is of the same categories of Unicode, and behind a letter
/// no marks that combine with it.
fn is_printable(c: char) -> bool {
    matches!(c, ' '..='~') || !c.is_ascii() && format!("a{c}").escape_debug().nth(2).is_none()
}

/// The shortest digits that read back, with an exponent of at least two digits where it is below
/// -4 or above 15.
pub fn float(out: &mut impl Write, value: f64) -> fmt::Result {
    let scientific = format!("{value:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    match exponent.parse::<i32>().unwrap_or(0) {
        -4..16 => write!(out, "{value:?}"),
        exponent => {
            let sign = if exponent < 0 { '-' } else { '+' };
            write!(out, "{digits}e{sign}{:02}", exponent.unsigned_abs())
        }
    }
}
