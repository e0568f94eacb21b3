//! Calls whose arguments stand between marks, each by itself.

use std::fmt::Write;

use serde_json::Value;
use text::{ArgumentMarks, takes_text};

use super::Tool;
use super::argument::{Room, arguments, impossible, json_of, listed};
use crate::form::grammar::{Special, mark, pattern, quoted};

/// What stands behind a value: white space, the mark, and white space.
fn behind(marks: ArgumentMarks) -> [&'static str; 3] {
    let mark = marks.value[1].trim();
    let (before, after) = marks.value[1].split_once(mark).unwrap_or_default();
    [before, mark, after]
}

/// An argument that is any text, up to the mark behind it.
pub(super) fn rules(marks: ArgumentMarks, special: Special<'_>) -> String {
    let [_, close, _] = behind(marks);
    match special(close) {
        // No text has a special token in it.
        Some(id) => format!("argument: ARGUMENT <[{id}]>\nARGUMENT: /(.|\\n)*/\n"),
        None => format!("argument[lazy]: /(.|\\n)*{}/\n", pattern(close)),
    }
}

/// The rule of call number `at`, of `tool`, and of its arguments, in the order of the schema. What is text is held to
/// a list of values at most.
pub(super) fn rule(marks: ArgumentMarks, special: Special<'_>, tool: &Tool, at: usize) -> String {
    let Tool { name, parameters, .. } = tool;
    let is = |text: &str| mark(special, text);
    let [before, close, after] = behind(marks);
    let (end, after) = (is(&[before, close, after].concat()), is(after));
    let [open, begin] = [marks.key[0], &[marks.key[1], marks.value[0]].concat()].map(is);
    let mut call = is(&[marks.name[0], name, marks.name[1]].concat());
    let mut rules = String::new();
    if let Some(rule) = impossible(parameters, at).filter(|_| tool.strict) {
        return rule;
    }
    let arguments = arguments(parameters);
    let mut room = Room::new(arguments.len());
    let value = |schema: &Value, takes_text: bool, room: &mut Room| match listed(schema, parameters)
    {
        Some(values) => {
            let values: Vec<_> = values.iter().map(|it| quoted(it)).collect();
            format!("({}) {end}", values.join(" | "))
        }
        None if takes_text => format!("argument {after}"),
        None => format!("{} {end}", json_of(schema, parameters, room)),
    };
    let others = &parameters["additionalProperties"];
    if arguments.is_empty() && *others != false {
        let value = value(others, takes_text(parameters, "") || !others.is_object(), &mut room);
        let _ = write!(call, " ({open} /[^<>\"\\n]+/ {begin} {value})*");
    }
    for (number, (key, property, needed)) in arguments.into_iter().enumerate() {
        let _ = write!(call, " argument{at}_{number}{}", if needed { "" } else { "?" });
        let value = value(property, takes_text(parameters, key), &mut room);
        // A name is text, whatever it looks like.
        let key = quoted(key);
        let _ = writeln!(rules, "argument{at}_{number}: {open} {key} {begin} {value}");
    }
    room.rules(at, format!("call{at}: {call} {}\n{rules}", is(marks.end)))
}
