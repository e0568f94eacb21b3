//! Calls in each style, as a grammar has them, in Lark's language.

use std::fmt::Write;

use text::{AnswerStyle, CallMarks, Calls};

use super::{Tool, one_by_one, python};
use crate::constraint::{Special, mark, quoted};
use crate::harmony;

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
        let mut written = match style {
            AnswerStyle::Json(marks) | AnswerStyle::Python(marks) => Self::between(marks, special),
            AnswerStyle::QwenCoder => {
                let (opening, closing) = (style.opening(), style.closing());
                Self::between(CallMarks { opening, closing, calls: Calls::One }, special)
            }
            AnswerStyle::Llama3 => Self { between: quoted("; "), ..Self::default() },
            AnswerStyle::MistralArgs => {
                let opening = mark(special, style.opening());
                Self { between: opening.clone(), opening, ..Self::default() }
            }
            // A call is a message, and ends the answer.
            AnswerStyle::Harmony => Self::default(),
        };
        let _ = writeln!(written.rules, "call: {}", names.join(" | "));
        match style {
            AnswerStyle::QwenCoder => written.rules += one_by_one::RULES,
            AnswerStyle::Python(_) => written.rules += python::RULES,
            _ => {}
        }
        for (at, tool) in tools.iter().enumerate() {
            let Tool { name, parameters, .. } = tool;
            // What stands before the arguments, which are an object of JSON, and behind them.
            let (before, after) = match style {
                AnswerStyle::Json(_) => {
                    (quoted(&format!("{{\"name\": \"{name}\", \"arguments\": ")), quoted("}"))
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
                AnswerStyle::QwenCoder => {
                    written.rules += &one_by_one::rule(tool, at);
                    continue;
                }
                AnswerStyle::Python(_) => {
                    written.rules += &python::rule(tool, at);
                    continue;
                }
            };
            let _ = writeln!(written.rules, "call{at}: {before} %json {parameters} {after}");
        }
        written
    }

    /// Calls between `marks`.
    fn between(marks: CallMarks, special: Special<'_>) -> Self {
        let opening = mark(special, marks.opening);
        let closing = match marks.closing {
            "" => String::new(),
            closing => mark(special, closing),
        };
        let line = "\"\\n\"".to_owned();
        let (begin, between, end) = match marks.calls {
            Calls::One => {
                let end = format!("{line} {closing}");
                (line.clone(), format!("{end} {line} {opening} {line}"), end)
            }
            Calls::Lines => (format!("{line}?"), line.clone(), format!("{line}? {closing}")),
            Calls::List => ("\" \"? \"[\"".into(), quoted(", "), format!("\"]\" {closing}")),
        };
        Self { opening, begin, between, end, rules: String::new() }
    }
}
