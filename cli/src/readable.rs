//! An answer as it is read here: what was said, and before that what was thought, between marks.

use text::Part;

/// Turns what comes of an answer to what is shown.
#[derive(Debug, Default)]
pub struct Readable {
    /// Whether the last part was thoughts.
    thinks: Option<bool>,
}

impl Readable {
    /// Takes a part and returns what is shown of it.
    pub fn push(&mut self, part: Part) -> String {
        let (thinks, text) = match part {
            Part::Reasoning(text) => (true, text),
            Part::Content(text) => (false, text),
            // There are no tools here.
            Part::Call(_) | Part::Arguments(_) => return String::new(),
        };
        let mark = match (self.thinks.replace(thinks), thinks) {
            (None, true) => "<think>\n",
            (Some(false), true) => "\n\n<think>\n",
            (Some(true), false) => "\n</think>\n\n",
            _ => "",
        };
        mark.to_owned() + &text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thoughts_stand_between_marks() {
        let shown = |parts: &[(bool, &str)]| {
            let mut readable = Readable::default();
            let part = |(thinks, text): &(bool, &str)| match thinks {
                true => Part::Reasoning((*text).into()),
                false => Part::Content((*text).into()),
            };
            parts.iter().map(|it| readable.push(part(it))).collect::<String>()
        };
        let [think, more, yes] = [(true, "Hm"), (true, "."), (false, "Yes – <b>.")];
        assert_eq!(shown(&[yes, yes]), "Yes – <b>.Yes – <b>.");
        assert_eq!(shown(&[think, more, yes]), "<think>\nHm.\n</think>\n\nYes – <b>.");
        assert_eq!(shown(&[think, more]), "<think>\nHm.");
        assert_eq!(
            shown(&[(false, "So:"), think, yes]),
            "So:\n\n<think>\nHm\n</think>\n\nYes – <b>."
        );
    }
}
