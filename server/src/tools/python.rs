//! Calls as Python has them: `name(key="value", …)`.

use std::fmt::Write;

use serde_json::Value;

use super::Tool;
use super::argument::{Room, arguments, json_of, resolved, says_only, values};
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
    let mut room = Room::new(arguments.len());
    if arguments.is_empty() && parameters["additionalProperties"] != false {
        let one = "/[a-zA-Z_][a-zA-Z0-9_]*/ \"=\" any";
        return format!("call{at}: {begin} ({one} (\", \" {one})*)? \")\"\n");
    }
    for (number, (key, property, _)) in arguments.iter().enumerate() {
        let value = value(property, parameters, DEEPEST, &mut room);
        let _ = writeln!(rules, "argument{at}_{number}: {} ({value})", quoted(&format!("{key}=")));
    }
    let needed: Vec<_> = arguments.iter().map(|(.., needed)| *needed).collect();
    let some = match needed.is_empty() {
        true => String::new(),
        false => some(at, 0, &needed, &mut rules),
    };
    let mark = if needed.contains(&true) || needed.is_empty() { "" } else { "?" };
    room.rules(at, format!("call{at}: {begin} {some}{mark} \")\"\n{rules}"))
}

/// The name of the rule of one or more arguments from number `first` on, of which each is `needed` or not, in their
/// order and with commas between them. It and those that it is made of are added to `rules`, halves of halves: a
/// chain of as many as there are arguments is more than the stack of who reads it may hold.
fn some(at: usize, first: usize, needed: &[bool], rules: &mut String) -> String {
    if needed.len() == 1 {
        return format!("argument{at}_{first}");
    }
    let halves = needed.split_at(needed.len() / 2);
    let left = some(at, first, halves.0, rules);
    let right = some(at, first + halves.0.len(), halves.1, rules);
    let name = format!("some{at}_{first}_{}", needed.len());
    let [is_needed, then] = [halves.0, halves.1].map(|half| half.contains(&true));
    let _ = match (is_needed, then) {
        (true, true) => writeln!(rules, "{name}: {left} \", \" {right}"),
        (true, false) => writeln!(rules, "{name}: {left} (\", \" {right})?"),
        (false, true) => writeln!(rules, "{name}: ({left} \", \")? {right}"),
        (false, false) => writeln!(rules, "{name}: {left} (\", \" {right})? | {right}"),
    };
    name
}

/// What may stand for a value of `schema`, a part of that of all `parameters`; it takes its part of the `room`.
fn value(schema: &Value, parameters: &Value, depth: usize, room: &mut Room) -> String {
    if !room.take_one() {
        return String::new();
    }
    let meant = resolved(schema, parameters);
    let says = |kept: &[&str]| says_only(meant, kept);
    let json = |room: &mut Room| json_of(schema, parameters, room);
    let listed = values(meant);
    if depth == 0 || listed.iter().any(|it| it.is_object() || it.is_array()) {
        return json(room);
    }
    let either = |all: &[Value], room: &mut Room| {
        let all = all.iter().map(|it| value(it, parameters, depth - 1, room));
        format!("({})", all.collect::<Vec<_>>().join(" | "))
    };
    if !listed.is_empty() {
        return listed.iter().map(literal).collect::<Vec<_>>().join(" | ");
    }
    for key in ["anyOf", "oneOf"] {
        if let (Some(all), true) = (meant[key].as_array().filter(|it| !it.is_empty()), says(&[key]))
        {
            return either(all, room);
        }
    }
    // There are seven.
    if let Some(kinds) = meant["type"].as_array().filter(|it| (1..8).contains(&it.len())) {
        let of = |kind: &Value| {
            let mut one = meant.clone();
            one["type"] = kind.clone();
            one
        };
        return either(&kinds.iter().map(of).collect::<Vec<_>>(), room);
    }
    match meant["type"].as_str() {
        Some("null") => "NONE".into(),
        Some("boolean") => "TRUTH".into(),
        Some("string") if says(&["type"]) => "TEXT".into(),
        Some("string") if says(&["type", "minLength", "maxLength"]) => {
            let least = meant["minLength"].as_u64().unwrap_or(0);
            let most = meant["maxLength"].as_u64().map(|it| it.to_string()).unwrap_or_default();
            format!(r"/'([^'\\]|\\[^0-9xuUN\n]){{{least},{most}}}'/ | {}", json(room))
        }
        Some("array") if says(&["type", "items"]) => {
            let item = match meant.get("items") {
                Some(items) => format!("({})", value(items, parameters, depth - 1, room)),
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
        _ => json(room),
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
