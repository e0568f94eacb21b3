//! Which lines an answer may have: what llama.cpp's clients that fill in ask for.

use std::time::{Duration, Instant};

/// Lets the text of an answer through, line by line, up to its end: as llama.cpp does.
#[derive(Debug, Clone)]
pub(crate) struct Lines {
    /// Blanks and tabs that a line begins with at least, behind the first.
    indent: usize,
    /// How long after its first token it may go on behind the end of a line.
    time: Option<Duration>,
    first: Option<Instant>,
    /// What the line begins with, until something else follows; `None` within a line.
    held: Option<String>,
    over: bool,
}

impl Lines {
    /// Lines behind the first begin with `indent` blanks or tabs, and the answer ends with the first one that ends
    /// later than `time` after its first token.
    pub fn new(indent: usize, time: Option<Duration>) -> Self {
        Self { indent, time, first: None, held: None, over: false }
    }

    /// What is certain of the answer with `text`, and whether it is over.
    pub fn push(&mut self, text: &str) -> (String, bool) {
        let first = *self.first.get_or_insert_with(Instant::now);
        let mut shown = String::new();
        for character in text.chars() {
            if self.over {
                break;
            }
            if let Some(held) = &mut self.held {
                if matches!(character, ' ' | '\t') {
                    held.push(character);
                    continue;
                }
                if held.len() < self.indent {
                    self.over = true;
                    break;
                }
                shown += held;
                self.held = None;
            }
            shown.push(character);
            if character == '\n' {
                self.held = (self.indent > 0).then(String::new);
            }
        }
        let late = self.time.is_some_and(|time| first.elapsed() > time);
        self.over |= late && shown.contains('\n');
        (shown, self.over)
    }

    /// Whether it has ended the answer.
    pub fn is_over(&self) -> bool {
        self.over
    }

    /// What was held back of an answer that goes no further.
    pub fn finish(self) -> String {
        if self.over { String::new() } else { self.held.unwrap_or_default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is shown of an answer that comes in `pieces`, and the piece with which it was over.
    fn shown(mut lines: Lines, pieces: &[&str]) -> (String, Option<usize>) {
        let mut all = String::new();
        for (at, piece) in pieces.iter().enumerate() {
            let (text, over) = lines.push(piece);
            all += &text;
            if over {
                assert_eq!(lines.push("more"), (String::new(), true));
                return (all, Some(at));
            }
        }
        (all + &lines.finish(), None)
    }

    #[test]
    fn a_line_of_less_indentation_ends_it_wherever_pieces_are_cut() {
        let text = "x;\n    y;\n\tz;\n  }\nfn";
        for (indent, expected) in [
            (0, text),
            (1, "x;\n    y;\n\tz;\n  }\n"),
            (2, "x;\n    y;\n"),
            (4, "x;\n    y;\n"),
            (5, "x;\n"),
        ] {
            let whole = shown(Lines::new(indent, None), &[text]);
            assert_eq!(whole.0, expected, "{indent}");
            assert_eq!(whole.1.is_some(), indent > 0, "{indent}");
            let letters: Vec<_> = text.split_inclusive(|_: char| true).collect();
            assert_eq!(shown(Lines::new(indent, None), &letters).0, expected, "{indent}");
        }
    }

    #[test]
    fn an_empty_line_has_none() {
        assert_eq!(shown(Lines::new(2, None), &["a\n", "\n  b"]), ("a\n".into(), Some(1)));
    }

    #[test]
    fn what_a_line_begins_with_comes_at_the_end_too() {
        assert_eq!(shown(Lines::new(4, None), &["a\n", "  "]), ("a\n  ".into(), None));
    }

    #[test]
    fn behind_its_time_it_ends_with_a_line() {
        let late = Lines { first: Some(Instant::now()), ..Lines::new(0, Some(Duration::ZERO)) };
        assert_eq!(shown(late, &["a", "b\n", "c"]), ("ab\n".into(), Some(1)));
        let hour = Lines::new(0, Some(Duration::from_secs(3600)));
        assert_eq!(shown(hour, &["a", "b\n", "c"]), ("ab\nc".into(), None));
    }
}
