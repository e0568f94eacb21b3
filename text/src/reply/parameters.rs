//! A call, while it comes, whose arguments are written one by one between marks.

use std::mem::discriminant;
use std::sync::Arc;

use serde::de::IgnoredAny;
use serde_json::{Value, json};

use super::Part;
use super::call_marks::{ArgumentMarks, CallMarks};
use super::literal_call::literal;
use crate::stop_strings::overlap;

/// The schemas of the arguments of tools, by their names.
pub(super) type Schemas = Arc<[(String, Value)]>;

/// `<parameter=KEY>`, a value, `</parameter>`, so often; and `</function>`, or what else its marks are.
#[derive(Debug)]
pub(super) struct Parameters {
    marks: ArgumentMarks,
    /// What stands behind the last argument, and whether that is part of the call.
    end: (&'static str, bool),
    schema: Value,
    place: Place,
    /// Arguments that have begun.
    begun: usize,
    /// What the last of them is called.
    argument: String,
    whole: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Before an argument, or behind the last one.
    Between,
    /// In one that is text, of which some has come or none.
    Text { some: bool },
    /// In one that is JSON, or may be.
    Json,
}

impl Parameters {
    /// Those of a call of the tool `name`, between `marks`.
    pub fn new(
        (around, marks): (CallMarks, ArgumentMarks),
        name: &str,
        schemas: Option<&Schemas>,
    ) -> Self {
        let found = schemas.and_then(|all| all.iter().find(|it| it.0 == name));
        let schema = found.map_or(Value::Null, |it| it.1.clone());
        let end = match marks.end {
            "" => (around.closing, false),
            end => (end, true),
        };
        let (place, argument) = (Place::Between, String::new());
        Self { marks, end, schema, place, begun: 0, argument, whole: false }
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
            Place::Json => {
                let close = self.marks.value[1].trim();
                let end = self.json_end(rest, close)?;
                let line = self.line();
                let value = rest[..end].strip_prefix(line).unwrap_or(&rest[..end]);
                *arguments += &self.json(value.strip_suffix(line).unwrap_or(value));
                self.place = Place::Between;
                Some(end + close.len())
            }
        }
    }

    fn between(&mut self, rest: &str, arguments: &mut String) -> Option<usize> {
        let text = rest.trim_start();
        let skipped = rest.len() - text.len();
        let ArgumentMarks { key: [open, close], value: [begin, _], .. } = self.marks;
        if let Some(behind) = text.strip_prefix(open) {
            let end = behind.find(close.trim_end())?;
            let key = behind[..end].trim();
            let value = end + close.trim_end().len();
            // Nothing but white space stands between.
            let value = value + behind[value..].find(begin)? + begin.len();
            *arguments += if self.begun == 0 { "{" } else { ", " };
            *arguments += &format!("{}: ", Value::from(key));
            self.begun += 1;
            self.argument = key.to_owned();
            let others = [json!(null), json!(true), json!(0), json!([]), json!({})];
            if others.iter().any(|it| allows(&self.schema, key, it)) {
                self.place = Place::Json;
            } else {
                arguments.push('"');
                self.place = Place::Text { some: false };
            }
            return Some(skipped + open.len() + value);
        }
        let (end, is_own) = self.end;
        if text.starts_with(end) {
            *arguments += if self.begun == 0 { "{}" } else { "}" };
            self.whole = true;
            return Some(skipped + if is_own { end.len() } else { 0 });
        }
        // What else stands there means nothing.
        match [open, end].into_iter().any(|mark| mark.starts_with(text)) {
            true => None,
            false => Some(skipped + text.chars().next()?.len_utf8()),
        }
    }

    /// The line break that stands on both sides of a value, where the marks have one.
    fn line(&self) -> &'static str {
        if self.marks.value[1].starts_with('\n') { "\n" } else { "" }
    }

    /// Where a value ends that is JSON, or may be: at the first `close`, but for one in a string of what is no text
    /// otherwise.
    fn json_end(&self, rest: &str, close: &str) -> Option<usize> {
        let first = rest.find(close)?;
        if takes_text(&self.schema, &self.argument) || rest[..first].trim().is_empty() {
            return Some(first);
        }
        for (end, _) in rest.match_indices(close) {
            match serde_json::from_str::<IgnoredAny>(&rest[..end]) {
                Ok(_) => return Some(end),
                Err(error) if error.is_eof() => {}
                Err(_) => return Some(first),
            }
        }
        // The rest of the string is to come, if the call has not ended or gone on without it.
        let behind = rest[first + close.len()..].trim_start();
        [self.end.0, self.marks.key[0]].iter().any(|it| behind.starts_with(it)).then_some(first)
    }

    /// `value` as it is if it is JSON, of a type that the argument may have if it may be text; as a string else. Some
    /// write Python's words and lists.
    fn json(&self, value: &str) -> String {
        let allows = |value: &Value| allows(&self.schema, &self.argument, value);
        let text = match value.trim() {
            "True" if allows(&json!(true)) => "true",
            "False" if allows(&json!(false)) => "false",
            "None" if allows(&Value::Null) => "null",
            text => text,
        };
        let may_be_text = allows(&json!(""));
        match serde_json::from_str::<Value>(text) {
            Ok(value) if !may_be_text || !value.is_string() && allows(&value) => text.to_owned(),
            Err(_) if !may_be_text && text.starts_with(['[', '{']) => {
                literal(text).unwrap_or_else(|| Value::from(text).to_string())
            }
            // With the spaces that are part of a text.
            _ => Value::from(if may_be_text { value } else { text }).to_string(),
        }
    }

    fn text(&mut self, some: bool, rest: &str, arguments: &mut String) -> Option<usize> {
        let close = self.marks.value[1].trim();
        let line = self.line();
        let first = if !some && rest.starts_with(line) { line.len() } else { 0 };
        let value = &rest[first..];
        if let Some(end) = value.find(close) {
            let last = value[..end].strip_suffix(line).unwrap_or(&value[..end]);
            *arguments += escaped(last).as_str();
            arguments.push('"');
            self.place = Place::Between;
            return Some(first + end + close.len());
        }
        let sure = &value[..value.len() - overlap(value, close)];
        let sure = sure.strip_suffix(line).unwrap_or(sure);
        *arguments += escaped(sure).as_str();
        let used = first + sure.len();
        self.place = Place::Text { some: some || used > 0 };
        (used > 0).then_some(used)
    }
}

/// Whether `argument`, of a tool whose arguments have the schema `parameters`, may be text where it is written
/// by itself, as of [`AnswerStyle::OneByOne`](super::AnswerStyle): JSON of another type alone otherwise.
pub fn takes_text(parameters: &Value, argument: &str) -> bool {
    allows(parameters, argument, &json!(""))
}

/// Whether `argument` may be of the type of `value`; text alone where nothing is said.
fn allows(parameters: &Value, argument: &str, value: &Value) -> bool {
    let schema = parameters["properties"].get(argument);
    let schema = schema.unwrap_or(&parameters["additionalProperties"]);
    allows_type(schema, parameters, value, &mut 256)
}

/// The same of `schema`, which is a part of `root`; so many more schemas are looked at.
fn allows_type(schema: &Value, root: &Value, value: &Value, more: &mut usize) -> bool {
    let is_type = |name: &Value| match name.as_str() {
        Some("null") => value.is_null(),
        Some("boolean") => value.is_boolean(),
        Some("integer") => value.is_i64() || value.is_u64(),
        Some("number") => value.is_number(),
        Some("array") => value.is_array(),
        Some("object") => value.is_object(),
        Some("string") => value.is_string(),
        _ => false,
    };
    let is_alike = |other: &Value| discriminant(value) == discriminant(other);
    // A schema that goes round says nothing.
    if *more == 0 {
        return value.is_string();
    }
    *more -= 1;
    let within = |schema: &Value| allows_type(schema, root, value, more);
    if let Some(to) = schema["$ref"].as_str().and_then(|it| it.strip_prefix('#')) {
        return root.pointer(to).map_or(value.is_string(), within);
    }
    match (&schema["type"], &schema["enum"], &schema["const"]) {
        (Value::Array(types), ..) => types.iter().any(is_type),
        (name @ Value::String(_), ..) => is_type(name),
        (_, Value::Array(values), _) => values.iter().any(is_alike),
        (_, _, only) if !only.is_null() => is_alike(only),
        _ => {
            let several = ["anyOf", "oneOf", "allOf"].into_iter();
            let mut several = several.filter_map(|key| schema[key].as_array());
            several.next().map_or(value.is_string(), |all| all.iter().any(within))
        }
    }
}

/// `text` as it stands in a string of JSON.
pub(super) fn escaped(text: &str) -> String {
    let quoted = Value::from(text).to_string();
    quoted[1..quoted.len() - 1].to_owned()
}
