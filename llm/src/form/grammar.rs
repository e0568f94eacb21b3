//! What grammars are written with, in Lark's language.

use serde_json::Value;

/// The special token that is written so, if there is one.
pub type Special<'a> = &'a dyn Fn(&str) -> Option<u32>;

/// `text` as a grammar has it, with tokens where it has special ones.
pub fn mark(special: Special<'_>, text: &str) -> String {
    let (mut all, mut rest) = (Vec::new(), text);
    let found = |rest| text::tokens_in(rest).find_map(|token| Some((token, special(token)?)));
    while let Some((token, id)) = found(rest) {
        let (before, behind) = rest.split_once(token).unwrap_or_default();
        all.extend((!before.is_empty()).then(|| quoted(before)));
        all.push(format!("<[{id}]>"));
        rest = behind;
    }
    all.extend((!rest.is_empty()).then(|| quoted(rest)));
    all.join(" ")
}

/// `text` as a part of an expression of a grammar.
pub fn pattern(text: &str) -> String {
    let escape = |c: char| if c.is_ascii_punctuation() && !"<>_\"".contains(c) { "\\" } else { "" };
    text.chars().flat_map(|c| escape(c).chars().chain([c])).collect()
}

/// As a string of a grammar.
pub fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn special_tokens_of_a_text_are_marked_however_many_there_are() {
        let special = |text: &str| match text {
            "<a>" => Some(256),
            "[b]" => Some(257),
            _ => None,
        };
        assert_eq!(mark(&special, "x<c><a>\n[b]y"), "\"x<c>\" <[256]> \"\\n\" <[257]> \"y\"");
        assert_eq!(["", "<a>"].map(|it| mark(&special, it)), ["", "<[256]>"]);
        assert_eq!(mark(&special, &"<a>".repeat(100_000)).len(), 8 * 100_000 - 1);
        for open in ["<", "[<"] {
            let text = open.repeat(1_000_000);
            assert_eq!(mark(&special, &text).len(), text.len() + 2);
        }
    }
}
