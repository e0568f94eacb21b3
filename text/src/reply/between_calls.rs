//! What stands where calls have been opened: between marks, before a call and behind one.

use super::call::Call;
use super::literal_call::LiteralCall;
use super::parameters::Parameters;
use super::{AnswerStyle, CallMarks, Calls, Part, Reply, State, words};

impl Reply {
    /// A call at byte `at` of what is held that nothing opens but its own `mark`, if it is of a tool that there is. Words
    /// otherwise. Whether there is more to do.
    pub(super) fn bare_call(&mut self, at: usize, mark: &str, parts: &mut Vec<Part>) -> bool {
        let Some(AnswerStyle::OneByOne(_, marks)) = self.style else { return false };
        let is_tool = |name: &str| self.names.iter().any(|all| all.iter().any(|it| it == name));
        let words_end = match named(&self.held[at..], marks.name) {
            Name::Perhaps => return false,
            Name::Is(name, _) if is_tool(name) => {
                words(Part::Content, self.held[..at].trim_end(), parts);
                self.held.drain(..at);
                self.opened = "";
                self.state = State::Calls;
                return true;
            }
            _ => at + mark.len(),
        };
        words(Part::Content, &self.held[..words_end], parts);
        self.held.drain(..words_end);
        self.state = State::Words { after: false };
        true
    }

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
            (_, AnswerStyle::OneByOne(around, marks)) => match named(text, marks.name) {
                Name::Is(name, rest) => {
                    self.state = State::Parameters(Parameters::new(
                        (around, marks),
                        name,
                        self.schemas.as_ref(),
                    ));
                    parts.push(Part::Call(name.to_owned()));
                    self.held = rest.to_owned();
                }
                Name::Perhaps => return false,
                Name::No => self.no_call(parts),
            },
            ('{', AnswerStyle::Json(..) | AnswerStyle::MistralArgs | AnswerStyle::Llama3) => {
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
                AnswerStyle::Json(..)
                | AnswerStyle::Python(_)
                | AnswerStyle::Named(CallMarks { calls: Calls::List, .. }, _)
                | AnswerStyle::MistralArgs,
            )
            | (',' | ';', AnswerStyle::Llama3) => {
                self.held.drain(..=skipped);
            }
            (_, AnswerStyle::Named(_, marks)) => {
                let end = marks.end.trim_start();
                if let Some(behind) = text.strip_prefix(end) {
                    self.held = behind.to_owned();
                    return true;
                }
                match named(text, marks.name) {
                    _ if end.starts_with(text) => return false,
                    Name::Perhaps => return false,
                    Name::Is(_, rest) if rest.trim_start().is_empty() => return false,
                    Name::Is(name, rest) if rest.trim_start().starts_with('{') => {
                        let number = name.rsplit_once(':').filter(|_| marks.numbered);
                        let name = number.map_or(name, |it| it.0).to_owned();
                        self.held = rest.trim_start().to_owned();
                        self.state = State::Call(Call::named(name));
                    }
                    _ => self.no_call(parts),
                }
            }
            (_, AnswerStyle::Python(_)) => match named(text, ["", "("]) {
                Name::Is(name, rest) => {
                    let call = LiteralCall::python().of_tool(name, self.schemas.as_ref());
                    parts.push(Part::Call(name.to_owned()));
                    self.held = rest.to_owned();
                    self.state = State::Literals(call);
                }
                Name::Perhaps => return false,
                Name::No => self.no_call(parts),
            },
            (_, AnswerStyle::Gemma(_)) => match named(text, ["call:", "{"]) {
                Name::Is(name, rest) => {
                    let call = LiteralCall::gemma().of_tool(name, self.schemas.as_ref());
                    parts.push(Part::Call(name.to_owned()));
                    self.held = rest.to_owned();
                    self.state = State::Literals(call);
                }
                Name::Perhaps => return false,
                Name::No => self.no_call(parts),
            },
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

/// What may stand where a call is expected.
enum Name<'a> {
    /// A tool's name, and what stands behind it and its marks.
    Is(&'a str, &'a str),
    /// The beginning of one.
    Perhaps,
    /// Something else.
    No,
}

/// The name that `text` begins with, between `open` and `close`; one that nothing closes is a word.
fn named<'a>(text: &'a str, [open, close]: [&str; 2]) -> Name<'a> {
    let Some(behind) = text.strip_prefix(open) else {
        return if open.starts_with(text) { Name::Perhaps } else { Name::No };
    };
    let close = close.trim();
    let Some(end) = behind.find(|c: char| !is_name(c) && c != ':') else { return Name::Perhaps };
    let (name, rest) = (&behind[..end], behind[end..].trim_start());
    match rest.strip_prefix(close) {
        _ if name.is_empty() => Name::No,
        Some(rest) if !close.is_empty() => Name::Is(name, rest),
        Some(_) if behind[end..].starts_with(|c: char| c.is_whitespace() || c == '<') => {
            Name::Is(name, &behind[end..])
        }
        None if close.starts_with(rest) => Name::Perhaps,
        _ => Name::No,
    }
}

fn is_name(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '_' | '-' | '.')
}
