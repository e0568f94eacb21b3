//! Thoughts before an answer, where it has a form.

use text::{Prompt, Thoughts};

use super::grammar::{Special, mark, pattern};
use super::{Form, PART};

/// Whether an answer begins with thoughts, and what these stand between.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Thinks {
    /// It does not.
    Never,
    /// It may.
    Perhaps(Thoughts),
    /// The prompt has begun them.
    Already(Thoughts),
}

impl Thinks {
    /// Of the answers to `prompt`.
    pub fn of(prompt: &Prompt) -> Self {
        match prompt.thoughts() {
            Some(marks) if prompt.is_thinking() => Self::Already(marks),
            Some(marks) if prompt.begun().is_empty() => Self::Perhaps(marks),
            _ => Self::Never,
        }
    }

    /// The marks that an answer may have.
    pub fn marks(self) -> Option<Thoughts> {
        match self {
            Self::Never => None,
            Self::Perhaps(marks) | Self::Already(marks) => Some(marks),
        }
    }

    /// What an answer says, `text` of a grammar, which may be between the marks of a `response`, if there is such. Marks
    /// that are text are no words only where there are thoughts before.
    pub fn said(self, special: Special<'_>, response: Option<Thoughts>, text: &str) -> String {
        let is_behind = matches!(self, Self::Already(_));
        let response = response.filter(|[open, _]| is_behind || special(open).is_some());
        let Some(marks) = response else { return text.to_owned() };
        let [open, close] = marks.map(|it| mark(special, it));
        format!("({open} \"\\n\"? {text} \"\\n\"? {close} | {text})")
    }

    /// The form of an answer whose text has the form `text`, and may be in a `response`: behind thoughts, if those have
    /// begun.
    pub fn before(self, special: Special<'_>, response: Option<Thoughts>, text: Form) -> Form {
        let said = self.said(special, response, PART);
        let grammar = match self {
            Self::Already(_) => {
                let (first, rules) = (self.first(" SPACE"), self.rules(special, ""));
                format!("start: {first} {said}\nSPACE: /\\n*/\n{rules}")
            }
            // A model that may think or not is asked for the form alone.
            Self::Never | Self::Perhaps(_) if said == PART => return text,
            Self::Never | Self::Perhaps(_) => format!("start: {said}\n"),
        };
        text.within(grammar)
    }

    /// What an answer begins with, `behind` it what follows thoughts.
    pub fn first(self, behind: &str) -> String {
        match self {
            Self::Never => String::new(),
            Self::Perhaps(_) => format!("(thoughts{behind})?"),
            Self::Already(_) => format!("thoughts{behind}"),
        }
    }

    /// The rules of `thoughts`, if there may be any, behind the expression `spaces`.
    pub fn rules(self, special: Special<'_>, spaces: &str) -> String {
        let Some([open, close]) = self.marks() else { return String::new() };
        let is_begun = matches!(self, Self::Already(_));
        let has_special = |text: &str| text::tokens_in(text).any(|it| special(it).is_some());
        match special(close) {
            // No text has a special token in it.
            Some(close) if is_begun || has_special(open) => {
                let open = if is_begun { String::new() } else { mark(special, open) };
                format!("thoughts: {open} THOUGHTS <[{close}]>\nTHOUGHTS: /(.|\\n)*/\n")
            }
            _ => {
                let [open, close] = [open, close].map(pattern);
                let open = if is_begun { String::new() } else { format!("{spaces}{open}") };
                format!("thoughts[lazy]: /{open}(.|\\n)*{close}/\n")
            }
        }
    }
}
