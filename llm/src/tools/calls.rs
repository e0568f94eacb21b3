//! Calls in each style, as a grammar has them, in Lark's language.

use std::fmt::Write;

use text::{AnswerStyle, CallMarks, Calls, Keys, NameMarks};

use super::{Tool, literals, one_by_one};
use crate::form::grammar::{Special, mark, quoted};
use crate::form::harmony;

/// How calls stand in an answer: expressions of a grammar, and the rules of `call`.
#[derive(Default)]
pub(super) struct Written {
    /// The mark that opens them, if one does.
    pub opening: String,
    /// What stands before the first call, between two, and behind the last one.
    pub begin: String,
    pub between: String,
    pub end: String,
    pub rules: String,
}

impl Written {
    /// Calls of `tools` in `style`, for a tokenizer with `special` tokens.
    pub fn new(style: AnswerStyle, special: Special<'_>, tools: &[Tool]) -> Self {
        let names: Vec<_> = (0..tools.len()).map(|at| format!("call{at}")).collect();
        let mut written = match (style.marks(), style) {
            (Some(marks), _) => Self::between(marks, special),
            (None, AnswerStyle::Llama3) => Self { between: quoted("; "), ..Self::default() },
            (None, AnswerStyle::MistralArgs) => {
                let opening = mark(special, style.opening());
                Self { between: opening.clone(), opening, ..Self::default() }
            }
            // A call is a message, and ends the answer.
            _ => Self::default(),
        };
        let _ = writeln!(written.rules, "call: {}", names.join(" | "));
        written.rules += &match style {
            AnswerStyle::OneByOne(_, marks) => one_by_one::rules(marks, special),
            AnswerStyle::Python(_) | AnswerStyle::Gemma(_) => literals::rules(style, special),
            _ => String::new(),
        };
        for (at, tool) in tools.iter().enumerate() {
            let Tool { name, parameters, .. } = tool;
            // What stands before the arguments, which are an object of JSON, and behind them.
            let (before, after) = match style {
                AnswerStyle::Json(_, Keys { id, name: key, arguments }) => {
                    let id = id.map_or_else(
                        || quoted("{"),
                        |id| {
                            format!(
                                "{} /[0-9]+/ {}",
                                quoted(&format!("{{\"{id}\": \"")),
                                quoted("\", ")
                            )
                        },
                    );
                    let name = quoted(&format!("\"{key}\": \"{name}\", \"{arguments}\": "));
                    (format!("{id} {name}"), quoted("}"))
                }
                AnswerStyle::Named(_, NameMarks { name: [before, behind], numbered, end }) => {
                    let [before, behind, end] = [before, behind, end].map(|it| mark(special, it));
                    let number = if numbered { "/:[0-9]+/" } else { "" };
                    (format!("{before} {} {number} {behind}", quoted(name)), end)
                }
                AnswerStyle::Llama3 => {
                    // In the pieces of other JSON: a text that has a form may begin in the same way.
                    let name = quoted(name);
                    let pieces = ["{", "\"name\"", ": ", &name, ", ", "\"parameters\"", ": "];
                    (pieces.map(quoted).join(" "), quoted("}"))
                }
                AnswerStyle::MistralArgs => {
                    (format!("{} {}", quoted(name), mark(special, "[ARGS]")), String::new())
                }
                AnswerStyle::Harmony => (harmony::call(special, name), String::new()),
                AnswerStyle::OneByOne(_, marks) => {
                    written.rules += &one_by_one::rule(marks, special, tool, at);
                    continue;
                }
                AnswerStyle::Python(_) | AnswerStyle::Gemma(_) => {
                    written.rules += &literals::rule(style, special, tool, at);
                    continue;
                }
            };
            let _ = writeln!(written.rules, "call{at}: {before} %json {parameters} {after}");
        }
        written
    }

    /// Calls between `marks`.
    fn between(marks: CallMarks, special: Special<'_>) -> Self {
        let [opening, closing] = [marks.opening, marks.closing].map(|it| mark(special, it));
        let line = "\"\\n\"".to_owned();
        let (begin, between, end) = match marks.calls {
            Calls::One => {
                let end = format!("{line} {closing}");
                (line.clone(), format!("{end} {line} {opening} {line}"), end)
            }
            Calls::Bare => (String::new(), format!("{closing} {line}? {opening}"), closing),
            Calls::Lines => (format!("{line}?"), line.clone(), format!("{line}? {closing}")),
            Calls::Stack => (String::new(), line, closing),
            Calls::Row => (String::new(), String::new(), closing),
            Calls::List => ("\" \"? \"[\"".into(), quoted(", "), format!("\"]\" {closing}")),
            Calls::Column => {
                (quoted("[\n    "), quoted(",\n    "), format!("{} {closing}", quoted("\n]")))
            }
        };
        Self { opening, begin, between, end, rules: String::new() }
    }
}
