//! Thoughts before an answer, where it has a form.

use text::Thoughts;

use crate::constraint::{Form, PART, Special, pattern};

/// Whether an answer begins with thoughts, and what these stand between.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Thinks {
    Never,
    /// It may.
    Perhaps(Thoughts),
    /// The prompt has begun them.
    Already(Thoughts),
}

impl Thinks {
    /// The marks that an answer may have.
    pub fn marks(self) -> Option<Thoughts> {
        match self {
            Self::Never => None,
            Self::Perhaps(marks) | Self::Already(marks) => Some(marks),
        }
    }

    /// The form of an answer whose text has the form `text`: behind thoughts, if those have begun.
    pub fn before(self, special: Special<'_>, text: Form) -> Form {
        match self {
            Self::Already(_) => {
                let (first, rules) = (self.first(" SPACE"), self.rules(special, ""));
                let field = text.field();
                text.within(field, format!("start: {first} {PART}\nSPACE: /\\n*/\n{rules}"))
            }
            // A model that may think or not is asked for the form alone.
            Self::Never | Self::Perhaps(_) => text,
        }
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
        match (special(open), special(close)) {
            // No text has a special token in it.
            (_, Some(close)) if is_begun => {
                format!("thoughts: THOUGHTS <[{close}]>\nTHOUGHTS: /(.|\\n)*/\n")
            }
            (Some(open), Some(close)) => {
                format!("thoughts: <[{open}]> THOUGHTS <[{close}]>\nTHOUGHTS: /(.|\\n)*/\n")
            }
            _ => {
                let [open, close] = [open, close].map(pattern);
                let open = if is_begun { String::new() } else { format!("{spaces}{open}") };
                format!("thoughts[lazy]: /{open}(.|\\n)*{close}/\n")
            }
        }
    }
}
