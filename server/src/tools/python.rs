//! Calls as Python has them: `name(key="value", …)`.

use std::fmt::Write;

use serde_json::json;

use super::Tool;
use super::argument::{Argument, alone, argument, arguments};
use crate::constraint::{Form, quoted};

/// A text between quotes of either kind.
pub(super) const RULES: &str =
    "TEXT: /\"([^\"\\\\\\n]|\\\\[^\\n])*\"|'([^'\\\\\\n]|\\\\[^\\n])*'/\n";

/// The rule of call number `at`, of `tool`, and of its arguments, in the order of the schema. Texts that are held to
/// nothing, truths and none are as in Python, or as in JSON, as OLMo 3 writes them; all else is JSON, which is read as well.
pub(super) fn rule(tool: &Tool, at: usize) -> String {
    let Tool { name, parameters, .. } = tool;
    let (begin, mut rules) = (quoted(&format!("{name}(")), String::new());
    let arguments = arguments(parameters);
    if arguments.is_empty() && parameters["additionalProperties"] != false {
        let any = Form::written(json!({}));
        let one = format!("/[a-zA-Z_][a-zA-Z0-9_]*/ \"=\" argument{at}");
        return format!(
            "call{at}: {begin} ({one} (\", \" {one})*)? \")\"\nargument{at}: TEXT | %json {any}\n"
        );
    }
    // Which may be the first one: up to one that has to be there.
    let mut first = Vec::new();
    let mut is_open = true;
    for (number, (key, property, needed)) in arguments.iter().enumerate() {
        let value = match argument(property, parameters) {
            Argument::Listed(values) => {
                let of = |quote: char| {
                    move |value: &String| {
                        let json = quoted(value);
                        let inner = &json[1..json.len() - 1];
                        match quote {
                            '"' => quoted(&json),
                            _ => quoted(&format!(
                                "'{}'",
                                inner.replace("\\\"", "\"").replace('\'', "\\'")
                            )),
                        }
                    }
                };
                let both = values.iter().map(of('"')).chain(values.iter().map(of('\'')));
                both.collect::<Vec<_>>().join(" | ")
            }
            Argument::Plain(kind) => match kind.as_str() {
                "string" => "TEXT".to_owned(),
                "null" => "\"None\" | \"null\"".into(),
                _ => "\"True\" | \"False\" | \"true\" | \"false\"".into(),
            },
            Argument::Json => format!("%json {}", alone(property, parameters)),
        };
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
