//! A call, while it comes: a JSON object with a name and arguments.

use std::ops::Range;
use std::sync::Arc;

use super::Part;

/// What calls have: names and arguments, each by two names, what they are, and what they are known by.
const KEYS: [&str; 8] =
    ["name", "arguments", "tool_name", "parameters", "type", "function", "id", "tool_call_id"];

/// `{"name": …, "arguments": …}`, or arguments alone where the name is known.
#[derive(Debug, Default)]
pub(super) struct Call {
    text: String,
    depth: usize,
    /// In a string, and whether behind a backslash in it.
    string: Option<bool>,
    /// The key that the next value has.
    key: Option<String>,
    /// Where the key or value began that has not ended.
    began: Option<usize>,
    name: Option<String>,
    /// Names that it may have, where it could be any object.
    names: Option<Arc<[String]>>,
    refused: bool,
    /// The arguments as far as they are known, and whether that is all of them.
    arguments: Option<(Range<usize>, bool)>,
    /// Whether the arguments are all that there is.
    alone: bool,
    told: bool,
    given: usize,
    whole: bool,
}

impl Call {
    /// One whose name has come before its arguments.
    pub fn named(name: String) -> Self {
        Self { name: Some(name), alone: true, ..Self::default() }
    }

    /// An object that is a call if it has one of `names`; any if there are none.
    pub fn of(names: Option<Arc<[String]>>) -> Self {
        Self { names, ..Self::default() }
    }

    /// Whether it has turned out to be none.
    pub fn is_refused(&self) -> bool {
        self.refused
    }

    /// Whether all of it is there.
    pub fn is_whole(&self) -> bool {
        self.whole
    }

    /// Whether it has a name, and so is a call.
    pub fn is_call(&self) -> bool {
        self.name.is_some()
    }

    /// Takes what belongs to it from the front of `text`: so many bytes.
    pub fn push(&mut self, text: &str, parts: &mut Vec<Part>) -> usize {
        let mut used = 0;
        for c in text.chars() {
            used += c.len_utf8();
            self.take(c);
            if self.whole || self.refused {
                break;
            }
        }
        self.tell(parts);
        used
    }

    /// No more of it comes, or it is no call: it is words then, behind those that `opened` it.
    pub fn give_up(self, opened: &str, parts: &mut Vec<Part>) {
        if !self.told {
            parts.push(Part::Content(opened.to_owned() + &self.text));
        }
    }

    fn take(&mut self, c: char) {
        let at = self.text.len();
        self.text.push(c);
        if let Some(escaped) = &mut self.string {
            match c {
                _ if *escaped => *escaped = false,
                '\\' => *escaped = true,
                '"' => {
                    self.string = None;
                    self.ended(at + 1);
                }
                _ => {}
            }
            return;
        }
        match c {
            '"' => {
                self.begins(at);
                self.string = Some(false);
            }
            '{' | '[' => {
                self.begins(at);
                self.depth += 1;
                if self.depth == 1 && self.alone {
                    self.arguments = Some((at..self.text.len(), false));
                }
            }
            '}' | ']' => {
                // Of a number or word in front of it.
                self.ended(at);
                self.depth = self.depth.saturating_sub(1);
                self.ended(at + 1);
                self.whole = self.depth == 0;
                if self.whole && self.alone {
                    self.arguments = Some((0..at + 1, true));
                }
            }
            ',' => self.ended(at),
            ':' | ' ' | '\n' | '\r' | '\t' => {}
            _ => self.begins(at),
        }
    }

    /// A key or value of the object begins, unless one has begun.
    fn begins(&mut self, at: usize) {
        if self.depth != 1 || self.alone || self.began.is_some() {
            return;
        }
        self.began = Some(at);
        if self.is_arguments() && self.arguments.is_none() {
            self.arguments = Some((at..at, false));
        }
    }

    /// The key or value of the object that has begun ends, if any has.
    fn ended(&mut self, end: usize) {
        if self.depth != 1 || self.alone {
            return;
        }
        let Some(start) = self.began.take() else { return };
        let text = self.text[start..end].trim_end();
        let range = start..start + text.len();
        if self.key.is_none() {
            self.key = serde_json::from_str(text).ok();
            let known = self.key.as_deref().is_some_and(|key| KEYS.contains(&key));
            self.refused |= self.names.is_some() && self.name.is_none() && !known;
            return;
        }
        if self.is_arguments() {
            // Only the first: what has been given cannot be taken back.
            if !matches!(self.arguments, Some((_, true))) {
                self.arguments = Some((range, true));
            }
        } else if matches!(self.key.as_deref(), Some("name" | "tool_name")) && self.name.is_none() {
            self.name = serde_json::from_str(text).ok();
            if let Some(names) = &self.names {
                self.name = self.name.take().filter(|name| names.contains(name));
                self.refused = self.name.is_none();
            }
        }
        self.key = None;
    }

    fn is_arguments(&self) -> bool {
        matches!(self.key.as_deref(), Some("arguments" | "parameters"))
    }

    fn tell(&mut self, parts: &mut Vec<Part>) {
        let Some(name) = &self.name else { return };
        if !self.told {
            self.told = true;
            parts.push(Part::Call(name.clone()));
        }
        let mut argue = |text: &str| {
            if !text.is_empty() {
                parts.push(Part::Arguments(text.to_owned()));
            }
        };
        match &self.arguments {
            Some((range, whole)) => {
                let end = if *whole { range.end } else { self.text.len() };
                let text = &self.text[range.start..end];
                if text.starts_with('{') {
                    argue(&text[self.given..]);
                    self.given = text.len();
                } else if *whole && self.given == 0 {
                    // Some write an object's text as a string, and null or nothing for none.
                    let written = serde_json::from_str::<Option<String>>(text);
                    let written = written.map(|it| it.filter(|it| !it.trim().is_empty()));
                    argue(
                        &written.map_or_else(|_| text.to_owned(), |it| it.unwrap_or("{}".into())),
                    );
                    self.given = text.len();
                }
            }
            None if self.whole => argue("{}"),
            None => {}
        }
    }
}
