//! A call, while it comes, whose arguments are written one by one between marks; Qwen3-Coder's.

use std::sync::Arc;

use serde_json::Value;

use super::Part;
use crate::stop_strings::overlap;

pub(super) const FUNCTION: [&str; 2] = ["<function=", "</function>"];
const PARAMETER: [&str; 2] = ["<parameter=", "</parameter>"];

/// The schemas of the arguments of tools, by their names.
pub(super) type Schemas = Arc<[(String, Value)]>;

/// `<parameter=KEY>`, a value in lines of its own, `</parameter>`, so often; and `</function>`.
#[derive(Debug)]
pub(super) struct Parameters {
    schema: Value,
    place: Place,
    /// Arguments that have begun.
    begun: usize,
    whole: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Before an argument, or behind the last one.
    Between,
    /// In one that is text, of which some has come or none.
    Text { some: bool },
    /// In one that is JSON, or may be.
    Json { or_text: bool },
}

impl Parameters {
    /// Those of a call of the tool `name`.
    pub fn new(name: &str, schemas: Option<&Schemas>) -> Self {
        let found = schemas.and_then(|all| all.iter().find(|it| it.0 == name));
        let schema = found.map_or(Value::Null, |it| it.1.clone());
        Self { schema, place: Place::Between, begun: 0, whole: false }
    }

    /// Whether all of it is there.
    pub fn is_whole(&self) -> bool {
        self.whole
    }

    /// Takes what is certain from the front of `text`: so many bytes.
    pub fn push(&mut self, text: &str, parts: &mut Vec<Part>) -> usize {
        let mut arguments = String::new();
        let mut rest = text;
        while !self.whole
            && let Some(used) = self.advance(rest, &mut arguments)
        {
            rest = &rest[used..];
        }
        if !arguments.is_empty() {
            parts.push(Part::Arguments(arguments));
        }
        text.len() - rest.len()
    }

    /// How much of `rest` is used for something; `None` while that is not certain.
    fn advance(&mut self, rest: &str, arguments: &mut String) -> Option<usize> {
        match self.place {
            Place::Between => self.between(rest, arguments),
            Place::Text { some } => self.text(some, rest, arguments),
            Place::Json { or_text } => {
                let end = rest.find(PARAMETER[1])?;
                *arguments += &json(rest[..end].trim(), or_text);
                self.place = Place::Between;
                Some(end + PARAMETER[1].len())
            }
        }
    }

    fn between(&mut self, rest: &str, arguments: &mut String) -> Option<usize> {
        let text = rest.trim_start();
        let skipped = rest.len() - text.len();
        if let Some(behind) = text.strip_prefix(PARAMETER[0]) {
            let end = behind.find('>')?;
            let key = behind[..end].trim();
            *arguments += if self.begun == 0 { "{" } else { ", " };
            *arguments += &format!("{}: ", Value::from(key));
            self.begun += 1;
            self.place = match kinds(&self.schema["properties"][key], &self.schema, 0) {
                Kinds { other: true, text } => Place::Json { or_text: text },
                Kinds { other: false, .. } => {
                    arguments.push('"');
                    Place::Text { some: false }
                }
            };
            return Some(skipped + PARAMETER[0].len() + end + 1);
        }
        if text.starts_with(FUNCTION[1]) {
            *arguments += if self.begun == 0 { "{}" } else { "}" };
            self.whole = true;
            return Some(skipped + FUNCTION[1].len());
        }
        // What else stands there means nothing.
        match [PARAMETER[0], FUNCTION[1]].into_iter().any(|mark| mark.starts_with(text)) {
            true => None,
            false => Some(skipped + text.chars().next()?.len_utf8()),
        }
    }

    fn text(&mut self, some: bool, rest: &str, arguments: &mut String) -> Option<usize> {
        // The value has lines of its own.
        let first = usize::from(!some && rest.starts_with('\n'));
        let value = &rest[first..];
        if let Some(end) = value.find(PARAMETER[1]) {
            let last = value[..end].strip_suffix('\n').unwrap_or(&value[..end]);
            *arguments += escaped(last).as_str();
            arguments.push('"');
            self.place = Place::Between;
            return Some(first + end + PARAMETER[1].len());
        }
        let held = overlap(value, PARAMETER[1]);
        let sure =
            value[..value.len() - held].strip_suffix('\n').unwrap_or(&value[..value.len() - held]);
        *arguments += escaped(sure).as_str();
        let used = first + sure.len();
        self.place = Place::Text { some: some || used > 0 };
        (used > 0).then_some(used)
    }
}

/// Whether `argument`, of a tool whose arguments have the schema `parameters`, may be text where it is written
/// by itself, as of [`AnswerStyle::QwenCoder`](super::AnswerStyle): JSON of another type alone otherwise.
pub fn takes_text(parameters: &Value, argument: &str) -> bool {
    kinds(&parameters["properties"][argument], parameters, 0).text
}

/// What an argument may be.
#[derive(Clone, Copy, Default)]
struct Kinds {
    text: bool,
    other: bool,
}

/// Those that `schema` allows, which is a part of `root`; text where nothing is said.
fn kinds(schema: &Value, root: &Value, depth: usize) -> Kinds {
    const TEXT: Kinds = Kinds { text: true, other: false };
    let of_types = |types: &mut dyn Iterator<Item = bool>| {
        types.fold(Kinds::default(), |all, text| Kinds {
            text: all.text || text,
            other: all.other || !text,
        })
    };
    match schema {
        // A schema that goes round says nothing.
        _ if depth > 16 => TEXT,
        Value::Object(keys) => {
            if let Some(to) = keys.get("$ref").and_then(Value::as_str) {
                let found = to.strip_prefix('#').and_then(|to| root.pointer(to));
                return found.map_or(TEXT, |schema| kinds(schema, root, depth + 1));
            }
            if let Some(kind) = keys.get("type") {
                return match kind {
                    Value::Array(all) => of_types(&mut all.iter().map(|it| it == "string")),
                    kind => of_types(&mut [kind == "string"].into_iter()),
                };
            }
            if let Some(Value::Array(all)) = keys.get("enum") {
                return of_types(&mut all.iter().map(Value::is_string));
            }
            if let Some(value) = keys.get("const") {
                return of_types(&mut [value.is_string()].into_iter());
            }
            let several =
                ["anyOf", "oneOf", "allOf"].into_iter().find_map(|key| keys.get(key)?.as_array());
            let Some(several) = several else { return TEXT };
            several.iter().map(|it| kinds(it, root, depth + 1)).fold(Kinds::default(), |all, it| {
                Kinds { text: all.text || it.text, other: all.other || it.other }
            })
        }
        _ => TEXT,
    }
}

/// `text` as it is if it is JSON and no string that may be text, else as a string; some write Python's words.
fn json(text: &str, or_text: bool) -> String {
    let text = match text {
        "True" if !or_text => "true",
        "False" if !or_text => "false",
        "None" => "null",
        text => text,
    };
    match serde_json::from_str::<Value>(text) {
        Ok(value) if !(or_text && value.is_string()) => text.to_owned(),
        _ => Value::from(text).to_string(),
    }
}

/// `text` as it stands in a string of JSON.
fn escaped(text: &str) -> String {
    let quoted = Value::from(text).to_string();
    quoted[1..quoted.len() - 1].to_owned()
}
