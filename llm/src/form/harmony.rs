//! Harmony, the format of gpt-oss ([`AnswerStyle::Harmony`](text::AnswerStyle)): answers as a grammar has them, in
//! Lark's language.

use super::grammar::{Special, mark, quoted};
use super::{Form, PART};

/// A text without marks, to its end.
pub const TEXT: &str = "TEXT";

/// The form of an answer that says what has the form `text`, behind thoughts.
pub fn with_form(special: Special<'_>, text: Form) -> Form {
    let said = said(special, PART);
    text.within(answer(special, false, &said))
}

/// An answer whose last message is `last`, behind thoughts, and behind `words` too if there may be some. The prompt
/// has the beginning of the first message.
pub fn answer(special: Special<'_>, words: bool, last: &str) -> String {
    let [start, channel, message] =
        ["<|start|>", "<|channel|>", "<|message|>"].map(|it| mark(special, it));
    let channels = if words { "(\"analysis\" | \"commentary\")" } else { "\"analysis\"" };
    let text = match special("<|end|>") {
        // No text has a special token in it.
        Some(end) => format!("text: {TEXT} <[{end}]>"),
        None => "text[lazy]: /(.|\\n)*<\\|end\\|>/".into(),
    };
    format!(
        "start: before* ({last})\nbefore: {channel} {channels} {message} text {start} \"assistant\"\n\
         {text}\n{TEXT}: /(.|\\n)*/\ntype: \" \"? {constrain} \"json\" | \" json\"\n",
        constrain = mark(special, "<|constrain|>"),
    )
}

/// A message of an [`answer`] that says what has the form `text`.
pub fn said(special: Special<'_>, text: &str) -> String {
    let [channel, message] = ["<|channel|>", "<|message|>"].map(|it| mark(special, it));
    format!("{channel} \"final\" type? {message} {text}")
}

/// What stands before the arguments in a message of an [`answer`] that calls `name`: to whom it is, before the channel
/// or behind it.
pub fn call(special: Special<'_>, name: &str) -> String {
    let [channel, message] = ["<|channel|>", "<|message|>"].map(|it| mark(special, it));
    let (channel, to) =
        (format!("{channel} \"commentary\""), quoted(&format!(" to=functions.{name}")));
    format!("({channel} {to} | {to} {channel}) type? {message}")
}
