//! What stands where calls have been opened: between marks, before a call and behind one.

use super::call::Call;
use super::parameters::{FUNCTION, Parameters};
use super::python_call::PythonCall;
use super::{AnswerStyle, Part, Reply, State, words};

impl Reply {
    /// Whether there is more to do with what is held, which begins there.
    pub(super) fn between_calls(&mut self, parts: &mut Vec<Part>) -> bool {
        let text = self.held.trim_start();
        let skipped = self.held.len() - text.len();
        let (Some(first), Some(style)) = (text.chars().next(), self.style) else { return false };
        let closing = style.closing();
        if !closing.is_empty() && text.starts_with(closing) {
            self.held.drain(..skipped + closing.len());
            self.opened = "";
            self.state = State::Words { after: true };
            return true;
        }
        if closing.starts_with(text) {
            return false;
        }
        match (first, style) {
            ('<', AnswerStyle::QwenCoder) if text.starts_with(FUNCTION[0]) => {
                let Some(end) = text.find('>') else { return false };
                let name = text[FUNCTION[0].len()..end].trim().to_owned();
                self.state = State::Parameters(Parameters::new(&name, self.schemas.as_ref()));
                self.held.drain(..=skipped + end);
                parts.push(Part::Call(name));
            }
            ('<', AnswerStyle::QwenCoder) if FUNCTION[0].starts_with(text) => return false,
            ('{', AnswerStyle::Json(_) | AnswerStyle::MistralArgs | AnswerStyle::Llama3) => {
                self.held.drain(..skipped);
                let bare = style == AnswerStyle::Llama3 && self.opened.is_empty();
                let names = self.names.clone().filter(|_| bare);
                self.state = State::Call(Call::of(names));
            }
            // Another opening, which begins as lists do.
            ('[', _) if style.is_mistral() && text.starts_with(style.opening()) => {
                self.held.drain(..skipped + style.opening().len());
            }
            ('[', _)
                if style.is_mistral()
                    && style.opening().starts_with(text)
                    && (text.len() > 1 || self.opened.is_empty()) =>
            {
                return false;
            }
            // Lists of calls, and what stands between those.
            (
                '[' | ',' | ']',
                AnswerStyle::Json(_) | AnswerStyle::Python(_) | AnswerStyle::MistralArgs,
            )
            | (',' | ';', AnswerStyle::Llama3) => {
                self.held.drain(..=skipped);
            }
            (_, AnswerStyle::Python(_)) if is_name(first) => {
                let Some(end) = text.find(|c| !is_name(c)) else { return false };
                let behind = text[end..].trim_start();
                if let Some(arguments) = behind.strip_prefix('(') {
                    parts.push(Part::Call(text[..end].to_owned()));
                    self.held = arguments.to_owned();
                    self.state = State::Python(PythonCall::default());
                } else if behind.is_empty() {
                    return false;
                } else {
                    self.no_call(parts);
                }
            }
            _ if style.is_mistral() && is_name(first) => {
                let end = text.find(|c| !is_name(c));
                let Some(end) = end else { return false };
                let name = text[..end].to_owned();
                let mut rest = &text[end..];
                for mark in ["[CALL_ID]", "[ARGS]"] {
                    if rest.len() < mark.len() && mark.starts_with(rest) {
                        return false;
                    }
                    if mark == "[CALL_ID]" && rest.starts_with(mark) {
                        let id = &rest[mark.len()..];
                        let Some(end) = id.find(['[', '{']) else { return false };
                        rest = &id[end..];
                    } else {
                        rest = rest.strip_prefix(mark).unwrap_or(rest);
                    }
                }
                if rest.is_empty() {
                    return false;
                }
                if rest.starts_with('{') {
                    self.held = rest.to_owned();
                    self.state = State::Call(Call::named(name));
                } else {
                    self.no_call(parts);
                }
            }
            _ => self.no_call(parts),
        }
        true
    }

    /// What stands in an opened place is no call.
    fn no_call(&mut self, parts: &mut Vec<Part>) {
        words(Part::Content, std::mem::take(&mut self.opened), parts);
        self.state = State::Words { after: false };
    }
}

fn is_name(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '_' | '-' | '.')
}
