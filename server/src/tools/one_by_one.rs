//! Calls as Qwen3-Coder writes them: each argument in lines of its own.

use std::fmt::Write;

use text::takes_text;

use super::Tool;
use super::argument::{Room, arguments, json_of, listed};
use crate::constraint::quoted;

/// An argument that is any text.
pub(super) const RULES: &str = "argument[lazy]: /(.|\\n)*<\\/parameter>/\n";

/// The rule of call number `at`, of `tool`, and of its arguments, in the order of the schema. What is text is held to
/// a list of values at most.
pub(super) fn rule(tool: &Tool, at: usize) -> String {
    let Tool { name, parameters, .. } = tool;
    let (mut call, mut rules) = (quoted(&format!("<function={name}>\n")), String::new());
    let arguments = arguments(parameters);
    let mut room = Room::new(arguments.len());
    if arguments.is_empty() && parameters["additionalProperties"] != false {
        call += " (\"<parameter=\" /[^<>\\n]+/ \">\\n\" argument \"\\n\")*";
    }
    for (number, (key, property, needed)) in arguments.into_iter().enumerate() {
        let _ = write!(call, " argument{at}_{number}{}", if needed { "" } else { "?" });
        let begin = quoted(&format!("<parameter={key}>\n"));
        let value = match listed(property, parameters) {
            Some(values) => {
                let values: Vec<_> = values.iter().map(|it| quoted(it)).collect();
                format!("({}) \"\\n</parameter>\"", values.join(" | "))
            }
            _ if takes_text(parameters, key) => "argument".into(),
            _ => json_of(property, parameters, &mut room) + " \"\\n</parameter>\"",
        };
        let _ = writeln!(rules, "argument{at}_{number}: {begin} {value} \"\\n\"");
    }
    room.rules(at, format!("call{at}: {call} \"</function>\"\n{rules}"))
}
