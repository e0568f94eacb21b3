//! Answers that are calls or text, as a grammar has them, in Lark's language.

use std::fmt::Write;

use crate::form::grammar::{Special, pattern};
use crate::form::{Form, PART, Thinks, harmony};
use text::{AnswerStyle, Thoughts};

use super::calls::Written;
use super::{NAME, Tool, Tools};

/// White space, as a grammar has it.
const SPACES: &str = "[ \\n\\r\\t]*";

/// The arguments of `tool` as `style` has them: all of a call where it has no JSON of all of them.
pub(super) fn of_arguments(tool: &Tool, style: AnswerStyle) -> Form {
    match style {
        AnswerStyle::OneByOne(..) | AnswerStyle::Python(_) | AnswerStyle::Gemma(_) => {
            let written = Written::new(style, &|_| None, std::slice::from_ref(tool));
            Form::lark(format!("start: call\n{}", written.rules))
        }
        _ => Form::json_schema(tool.parameters.clone()),
    }
}

impl Tools {
    /// The form of an answer that is written in `style` for a tokenizer with `special` tokens, which `thinks` first, and is calls or text, which may be in a
    /// `response`: that of the form `text`, if there is one. `None` where any text will do: calls of Llama 3 begin as JSON does.
    pub(crate) fn form(
        &self,
        special: Special<'_>,
        style: AnswerStyle,
        before: (Thinks, Option<Thoughts>),
        text: Option<Form>,
    ) -> Option<Form> {
        let text = text.filter(|_| !self.must);
        let lark = self.grammar(special, style, before, text.is_some())?;
        Some(match text {
            Some(text) => text.within(lark).called(NAME),
            None => Form::lark(lark).called(NAME),
        })
    }

    /// As [`form`](Self::form), in Lark's language, for a tokenizer with `special` tokens; the text may be in a
    /// `response`, and has a form of its `own` or none.
    pub(super) fn grammar(
        &self,
        special: Special<'_>,
        style: AnswerStyle,
        (thinks, response): (Thinks, Option<Thoughts>),
        own: bool,
    ) -> Option<String> {
        if !self.must && !own && style == AnswerStyle::Llama3 {
            return None;
        }
        let written = Written::new(style, special, self.callable());
        let more = match self.is_single() {
            true => String::new(),
            false => format!("({} call)*", written.between),
        };
        let calls = format!("{} call {more} {}", written.begin, written.end);
        let mut lark = String::new();
        if style != AnswerStyle::Harmony {
            lark += &thinks.rules(special, if self.must || own { "" } else { SPACES });
        }
        // What thoughts begin with are no words: a call in them is none.
        let no_thoughts = match thinks {
            Thinks::Perhaps([open, _]) => format!(" & ~/{SPACES}{}(.|\\n)*/", pattern(open)),
            Thinks::Never | Thinks::Already(_) => String::new(),
        };
        let words = format!("/(.|\\n)*/{no_thoughts}");
        // Apertus calls from within its thoughts, too, which lie between special tokens.
        let within = match thinks {
            Thinks::Perhaps([open, _]) if style == AnswerStyle::APERTUS => special(open),
            _ => None,
        };
        let within =
            within.map(|open| format!(" | <[{open}]> THOUGHTS {} {calls}", written.opening));
        let within = within.unwrap_or_default();
        match (self.must || own, special(style.opening()).is_some()) {
            (strict, _) if style == AnswerStyle::Harmony => {
                let text = harmony::said(special, if own { PART } else { harmony::TEXT });
                let last = if self.must { "call".into() } else { format!("call | {text}") };
                lark += &harmony::answer(special, !strict, &last);
            }
            (true, _) => {
                let (first, opening) = (thinks.first(" SPACE"), written.opening);
                let text = if own { thinks.said(special, response, PART) } else { String::new() };
                let text = if own { format!("| {text}") } else { text };
                let _ = writeln!(
                    lark,
                    "start: {first} ({opening} {calls} {text}){within}\nSPACE: /\\n*/"
                );
            }
            (false, true) => {
                // No words have a special token in them.
                let (first, opening) = (thinks.first(""), written.opening);
                // Marks that are text are words, too.
                let response = response.filter(|[open, _]| special(open).is_some());
                let text = thinks.said(special, response, "WORDS");
                let calls = format!("({opening} {calls})?{within}");
                let _ = writeln!(lark, "start: {first} {text} {calls}\nWORDS: {words}");
            }
            (false, false) => {
                let first = thinks.first("");
                let until = pattern(style.opening());
                let _ = writeln!(
                    lark,
                    "start: {first} (words | until {calls})\nuntil[lazy]: UNTIL\n\
                     UNTIL: /(.|\\n)*{until}/{no_thoughts}\n\
                     words: WORDS\nWORDS: {words} & ~/(.|\\n)*{until}(.|\\n)*/"
                );
            }
        }
        Some(lark + &written.rules)
    }
}
