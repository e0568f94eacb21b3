//! Thoughts before an answer, where it has a form.

use text::THINK;

use crate::constraint::{Form, PART, Special};

/// Whether an answer begins with thoughts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Thinks {
    Never,
    /// It may.
    Perhaps,
    /// The prompt has begun them.
    Already,
}

impl Thinks {
    /// The form of an answer whose text has the form `text`: behind thoughts, if those have begun.
    pub fn before(self, special: Special<'_>, text: Form) -> Form {
        match self {
            Self::Already => {
                let (first, rules) = (self.first(" SPACE"), self.rules(special, ""));
                let field = text.field();
                text.within(field, format!("start: {first} {PART}\nSPACE: /\\n*/\n{rules}"))
            }
            // A model that may think or not is asked for the form alone.
            Self::Never | Self::Perhaps => text,
        }
    }

    /// What an answer begins with, `behind` it what follows thoughts.
    pub fn first(self, behind: &str) -> String {
        match self {
            Self::Never => String::new(),
            Self::Perhaps => format!("(thoughts{behind})?"),
            Self::Already => format!("thoughts{behind}"),
        }
    }

    /// The rules of `thoughts`, if there may be any, behind the expression `spaces`.
    pub fn rules(self, special: Special<'_>, spaces: &str) -> String {
        let [open, close] = THINK;
        match (self, special(open), special(close)) {
            (Self::Never, ..) => String::new(),
            // No text has a special token in it.
            (Self::Perhaps, Some(open), Some(close)) => {
                format!("thoughts: <[{open}]> THOUGHTS <[{close}]>\nTHOUGHTS: /(.|\\n)*/\n")
            }
            (Self::Already, _, Some(close)) => {
                format!("thoughts: THOUGHTS <[{close}]>\nTHOUGHTS: /(.|\\n)*/\n")
            }
            (Self::Perhaps, ..) => {
                format!("thoughts[lazy]: /{spaces}{open}(.|\\n)*<\\/think>/\n")
            }
            (Self::Already, ..) => "thoughts[lazy]: /(.|\\n)*<\\/think>/\n".into(),
        }
    }
}
