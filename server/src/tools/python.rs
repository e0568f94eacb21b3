//! Calls as Python has them: `name(key="value", …)`.

use std::fmt::Write;

use serde_json::Value;

use super::Tool;
use super::argument::{alone, arguments, resolved, says_only, values};
use crate::constraint::quoted;

/// A text between quotes of either kind, a truth, none, and whatever there is.
pub(super) const RULES: &str = r#"
TEXT: /"([^"\\]|\\(.|\n))*"|'([^'\\]|\\(.|\n))*'/
TRUTH: "True" | "False" | "true" | "false"
NONE: "None" | "null"
any: TEXT | TRUTH | NONE | %json {"type": "number"} | list | dict
list: "[" (any (", " any)*)? "]"
dict: "{" (TEXT ": " any (", " TEXT ": " any)*)? "}"
"#;

/// How deep schemas may lie in each other for what they allow to be written as in Python; they may have no end.
const DEEPEST: usize = 4;

/// The rule of call number `at`, of `tool`, and of its arguments, in the order of the schema. Values are as in Python,
/// or as in JSON, as OLMo 3 writes them; only as in JSON, which is read as well, where the schema holds them to more than
/// lists and types.
pub(super) fn rule(tool: &Tool, at: usize) -> String {
    let Tool { name, parameters, .. } = tool;
    let (begin, mut rules) = (quoted(&format!("{name}(")), String::new());
    let arguments = arguments(parameters);
    if arguments.is_empty() && parameters["additionalProperties"] != false {
        let one = "/[a-zA-Z_][a-zA-Z0-9_]*/ \"=\" any";
        return format!("call{at}: {begin} ({one} (\", \" {one})*)? \")\"\n");
    }
    // Which may be the first one: up to one that has to be there.
    let mut first = Vec::new();
    let mut is_open = true;
    for (number, (key, property, needed)) in arguments.iter().enumerate() {
        let value = value(property, parameters, DEEPEST);
        let _ = writeln!(rules, "argument{at}_{number}: {} ({value})", quoted(&format!("{key}=")));
        let mark = if *needed { "" } else { "?" };
        let next = format!("(\", \" argument{at}_{number}){mark} behind{at}_{}", number + 1);
        let _ = writeln!(rules, "behind{at}_{number}: {next}");
        if is_open {
            first.push(format!("argument{at}_{number} behind{at}_{}", number + 1));
        }
        is_open &= !needed;
    }
    if is_open {
        first.push("\"\"".into());
    }
    let _ = writeln!(rules, "behind{at}_{}: \"\"", arguments.len());
    format!("call{at}: {begin} ({}) \")\"\n{rules}", first.join(" | "))
}

/// What may stand for a value of `schema`, a part of that of all `parameters`.
fn value(schema: &Value, parameters: &Value, depth: usize) -> String {
    let meant = resolved(schema, parameters);
    let says = |kept: &[&str]| says_only(meant, kept);
    let json = || format!("%json {}", alone(schema, parameters));
    let listed = values(meant);
    if depth == 0 || listed.iter().any(|it| it.is_object() || it.is_array()) {
        return json();
    }
    let either = |all: &[Value]| {
        let all = all.iter().map(|it| value(it, parameters, depth - 1));
        format!("({})", all.collect::<Vec<_>>().join(" | "))
    };
    if !listed.is_empty() {
        return listed.iter().map(literal).collect::<Vec<_>>().join(" | ");
    }
    for key in ["anyOf", "oneOf"] {
        if let (Some(all), true) = (meant[key].as_array().filter(|it| !it.is_empty()), says(&[key]))
        {
            return either(all);
        }
    }
    if let Some(kinds) = meant["type"].as_array().filter(|it| !it.is_empty()) {
        let of = |kind: &Value| {
            let mut one = meant.clone();
            one["type"] = kind.clone();
            one
        };
        return either(&kinds.iter().map(of).collect::<Vec<_>>());
    }
    match meant["type"].as_str() {
        Some("null") => "NONE".into(),
        Some("boolean") => "TRUTH".into(),
        Some("string") if says(&["type"]) => "TEXT".into(),
        Some("string") if says(&["type", "minLength", "maxLength"]) => {
            let least = meant["minLength"].as_u64().unwrap_or(0);
            let most = meant["maxLength"].as_u64().map(|it| it.to_string()).unwrap_or_default();
            format!(r"/'([^'\\]|\\[^0-9xuUN\n]){{{least},{most}}}'/ | {}", json())
        }
        Some("array") if says(&["type", "items"]) => {
            let item = match meant.get("items") {
                Some(items) => format!("({})", value(items, parameters, depth - 1)),
                None => "any".into(),
            };
            format!("\"[\" ({item} (\", \" {item})*)? \"]\"")
        }
        Some("object")
            if says(&["type", "additionalProperties"])
                && [None, Some(&Value::Bool(true))]
                    .contains(&meant.get("additionalProperties")) =>
        {
            "dict".into()
        }
        None if says(&[]) && (meant.is_object() || *meant == true) => "any".into(),
        _ => json(),
    }
}

/// What may stand for `value`, which is no list and has no keys.
fn literal(value: &Value) -> String {
    match value {
        Value::Null => "NONE".into(),
        Value::Bool(true) => "\"True\" | \"true\"".into(),
        Value::Bool(false) => "\"False\" | \"false\"".into(),
        Value::String(it) => {
            let json = quoted(it);
            let inner = json[1..json.len() - 1].replace("\\\"", "\"").replace('\'', "\\'");
            format!("{} | {}", quoted(&json), quoted(&format!("'{inner}'")))
        }
        other => quoted(&other.to_string()),
    }
}
