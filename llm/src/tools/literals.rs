//! Calls whose arguments stand by their names and are literals: Python's `name(key="value", …)`, and Gemma's
//! `call:name{key:<|"|>value<|"|>,…}`.

use std::fmt::Write;

use serde_json::Value;
use text::{AnswerStyle, GEMMA_TEXT};

use super::Tool;
use super::argument::{Room, arguments, impossible, json_of, resolved, says_only, values};
use crate::form::grammar::{Special, mark, pattern, quoted};

/// A text between quotes of either kind, a truth, none, and whatever there is.
const PYTHON: &str = r#"
text: /"([^"\\]|\\(.|\n))*"|'([^'\\]|\\(.|\n))*'/
TRUTH: "True" | "False" | "true" | "false"
NONE: "None" | "null"
any: text | TRUTH | NONE | %json {"type": "number"} | list | dict
list: "[" (any (", " any)*)? "]"
dict: "{" (text ": " any (", " text ": " any)*)? "}"
"#;

/// The same of Gemma's, but for what texts are.
const GEMMA: &str = r#"
TRUTH: "true" | "false"
NONE: "null" | "None"
any: text | TRUTH | NONE | %json {"type": "number"} | list | dict
list: "[" (any ("," any)*)? "]"
dict: "{" (KEY ":" any ("," KEY ":" any)*)? "}"
KEY: /[a-zA-Z_][^:,{}<>"\n]*/
"#;

/// How deep schemas may lie in each other for what they allow to be written as literals; they may have no end.
const DEEPEST: usize = 4;

/// What stands between items.
fn comma(style: AnswerStyle) -> String {
    quoted(if style == AnswerStyle::GEMMA { "," } else { ", " })
}

/// What calls of `style` are made of.
pub(super) fn rules(style: AnswerStyle, special: Special<'_>) -> String {
    if style != AnswerStyle::GEMMA {
        return PYTHON.into();
    }
    let text = match special(GEMMA_TEXT) {
        // No text has a special token in it.
        Some(id) => format!("text: <[{id}]> WORDS_OF <[{id}]>\nWORDS_OF: /(.|\\n)*/"),
        None => format!("text[lazy]: /{0}(.|\\n)*{0}/", pattern(GEMMA_TEXT)),
    };
    format!("{text}{GEMMA}")
}

/// The rule of call number `at`, of `tool`, and of its arguments, in the order of the schema, or Gemma's. Values are as
/// in Python, or as in JSON, as OLMo 3 writes them; only as in JSON, which is read as well, where the schema holds them
/// to more than lists and types.
pub(super) fn rule(style: AnswerStyle, special: Special<'_>, tool: &Tool, at: usize) -> String {
    let Tool { name, parameters, .. } = tool;
    let [begin, end] = match style == AnswerStyle::GEMMA {
        true => [&format!("call:{name}{{"), "}"],
        false => [&format!("{name}("), ")"],
    };
    let [begin, end] = [begin, end].map(quoted);
    if let Some(rule) = impossible(parameters, at).filter(|_| tool.strict) {
        return rule;
    }
    let count = arguments(parameters).len();
    if count == 0 && tool.strict && parameters["additionalProperties"].is_object() {
        return format!("call{at}: unsupported_keyword_additionalProperties\n");
    }
    if count == 0 && parameters["additionalProperties"] != false {
        let one = match style == AnswerStyle::GEMMA {
            true => "KEY \":\" any",
            false => "/[a-zA-Z_][a-zA-Z0-9_]*/ \"=\" any",
        };
        return format!("call{at}: {begin} ({one} ({} {one})*)? {end}\n", comma(style));
    }
    let mut values = Values {
        style,
        special,
        parameters,
        room: Room::new(count),
        rules: String::new(),
        objects: 0,
        call: at,
    };
    let members = values.members(parameters, DEEPEST);
    let Values { room, rules, .. } = values;
    room.rules(at, format!("call{at}: {begin} {members} {end}\n{rules}"))
}

/// What may stand for the values of a call.
struct Values<'a> {
    style: AnswerStyle,
    special: Special<'a>,
    /// The schema of all arguments.
    parameters: &'a Value,
    /// Of which each schema takes its part.
    room: Room,
    /// What has been made so far.
    rules: String,
    /// The call's number, and that of the next object in it.
    call: usize,
    objects: usize,
}

impl Values<'_> {
    fn is_gemma(&self) -> bool {
        self.style == AnswerStyle::GEMMA
    }

    /// The members that `schema` names, those that have to be there and others, in their order.
    fn members(&mut self, schema: &Value, depth: usize) -> String {
        let mut members = arguments(schema);
        if self.is_gemma() {
            // As its template has them.
            members.sort_by_key(|it| it.0.to_lowercase());
        }
        let of = format!("{}_{}", self.call, self.objects);
        self.objects += 1;
        let sign = if self.is_gemma() { ":" } else { "=" };
        for (number, (key, property, _)) in members.iter().enumerate() {
            let value = self.value(property, depth);
            let key = quoted(&format!("{key}{sign}"));
            let _ = writeln!(self.rules, "argument{of}_{number}: {key} ({value})");
        }
        let needed: Vec<_> = members.iter().map(|(.., needed)| *needed).collect();
        if needed.is_empty() {
            return String::new();
        }
        let some = some(&of, &comma(self.style), 0, &needed, &mut self.rules);
        some + if needed.contains(&true) { "" } else { "?" }
    }

    /// What may stand for a value of `schema`.
    fn value(&mut self, schema: &Value, depth: usize) -> String {
        if !self.room.take_one() {
            return String::new();
        }
        let meant = resolved(schema, self.parameters);
        let says = |kept: &[&str]| says_only(meant, kept);
        let listed = values(meant);
        if depth == 0 || listed.iter().any(|it| it.is_object() || it.is_array()) {
            return self.json(schema);
        }
        if !listed.is_empty() {
            return listed.iter().map(|it| self.literal(it)).collect::<Vec<_>>().join(" | ");
        }
        for key in ["anyOf", "oneOf"] {
            if let (Some(all), true) =
                (meant[key].as_array().filter(|it| !it.is_empty()), says(&[key]))
            {
                return self.either(all, depth - 1);
            }
        }
        // There are seven.
        if let Some(kinds) = meant["type"].as_array().filter(|it| (1..8).contains(&it.len())) {
            let of = |kind: &Value| {
                let mut one = meant.clone();
                one["type"] = kind.clone();
                one
            };
            return self.either(&kinds.iter().map(of).collect::<Vec<_>>(), depth - 1);
        }
        let may_have_more =
            [None, Some(&Value::Bool(true))].contains(&meant.get("additionalProperties"));
        match meant["type"].as_str() {
            Some("null") => "NONE".into(),
            Some("boolean") => "TRUTH".into(),
            Some("string") if says(&["type"]) => "text".into(),
            Some("string") if says(&["type", "minLength", "maxLength"]) => {
                let least = meant["minLength"].as_u64().unwrap_or(0);
                let most = meant["maxLength"].as_u64().map(|it| it.to_string()).unwrap_or_default();
                if self.is_gemma() {
                    let quote = mark(self.special, GEMMA_TEXT);
                    return format!("{quote} /[^<]{{{least},{most}}}/ {quote}");
                }
                let json = self.json(schema);
                format!(r"/'([^'\\]|\\[^0-9xuUN\n]){{{least},{most}}}'/ | {json}")
            }
            Some("array") if says(&["type", "items"]) => {
                let item = match meant.get("items") {
                    Some(items) => format!("({})", self.value(items, depth - 1)),
                    None => "any".into(),
                };
                format!("\"[\" ({item} ({} {item})*)? \"]\"", comma(self.style))
            }
            Some("object") if says(&["type", "additionalProperties"]) && may_have_more => {
                "dict".into()
            }
            // Python's have other keys than calls, and some names are read in JSON alone.
            Some("object")
                if self.is_gemma()
                    && says(&["type", "properties", "required", "additionalProperties"])
                    && !arguments(meant).is_empty()
                    && arguments(meant).iter().all(|it| is_plain(it.0)) =>
            {
                format!("\"{{\" {} \"}}\"", self.members(meant, depth - 1))
            }
            None if says(&[]) && (meant.is_object() || *meant == true) => "any".into(),
            _ => self.json(schema),
        }
    }

    /// The same of one of `all` schemas.
    fn either(&mut self, all: &[Value], depth: usize) -> String {
        let all: Vec<_> = all.iter().map(|it| self.value(it, depth)).collect();
        format!("({})", all.join(" | "))
    }

    fn json(&mut self, schema: &Value) -> String {
        json_of(schema, self.parameters, &mut self.room)
    }

    /// What may stand for `value`, which is no list and has no keys.
    fn literal(&self, value: &Value) -> String {
        match value {
            Value::Null => "NONE".into(),
            Value::Bool(true) => "\"True\" | \"true\"".into(),
            Value::Bool(false) => "\"False\" | \"false\"".into(),
            Value::String(it) if self.is_gemma() => {
                let quote = mark(self.special, GEMMA_TEXT);
                format!("{quote} {} {quote}", quoted(it))
            }
            Value::String(it) => {
                let json = quoted(it);
                let inner = json[1..json.len() - 1].replace("\\\"", "\"").replace('\'', "\\'");
                format!("{} | {}", quoted(&json), quoted(&format!("'{inner}'")))
            }
            other => quoted(&other.to_string()),
        }
    }
}

/// Whether `key` is told from what stands around it wherever it stands.
fn is_plain(key: &str) -> bool {
    let odd = |c| "\"'()<>[]{}:,".contains(c);
    !key.is_empty() && key.trim() == key && !key.contains(odd)
}

/// The name of the rule of one or more arguments from number `first` on, of which each is `needed` or not, in their
/// order and with `comma` between them. It and those that it is made of are added to `rules`, halves of halves: a
/// chain of as many as there are arguments is more than the stack of who reads it may hold.
fn some(of: &str, comma: &str, first: usize, needed: &[bool], rules: &mut String) -> String {
    if needed.len() == 1 {
        return format!("argument{of}_{first}");
    }
    let halves = needed.split_at(needed.len() / 2);
    let left = some(of, comma, first, halves.0, rules);
    let right = some(of, comma, first + halves.0.len(), halves.1, rules);
    let name = format!("some{of}_{first}_{}", needed.len());
    let [is_needed, then] = [halves.0, halves.1].map(|half| half.contains(&true));
    let _ = match (is_needed, then) {
        (true, true) => writeln!(rules, "{name}: {left} {comma} {right}"),
        (true, false) => writeln!(rules, "{name}: {left} ({comma} {right})?"),
        (false, true) => writeln!(rules, "{name}: ({left} {comma})? {right}"),
        (false, false) => writeln!(rules, "{name}: {left} ({comma} {right})? | {right}"),
    };
    name
}
