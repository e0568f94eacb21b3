//! Harmony, the format of gpt-oss ([`AnswerStyle::Harmony`](text::AnswerStyle)): conversations as its template takes
//! them, and answers as a grammar has them, in Lark's language.

use serde_json::{Map, Value};

use crate::form::{Form, PART, Special, mark, quoted};

/// A text without marks, to its end.
pub(crate) const TEXT: &str = "TEXT";

/// Changes what is said in a conversation to what the template of gpt-oss takes (`chat_template.jinja` of
/// openai/gpt-oss-120b): it calls thoughts `thinking`, refuses them with words beside calls, where it takes words for
/// thoughts anyway, and has all tools described.
pub(crate) fn take_back(messages: &mut [Map<String, Value>], tools: &mut [Value]) {
    for message in messages {
        let thoughts = message.remove("reasoning_content").unwrap_or_default();
        let Some(thoughts) = thoughts.as_str().filter(|it| !it.is_empty()) else { continue };
        let mut thoughts = thoughts.to_owned();
        if message.contains_key("tool_calls") {
            let words = message.insert("content".into(), "".into()).unwrap_or_default();
            if let Some(words) = words.as_str().filter(|it| !it.is_empty()) {
                thoughts += &format!("\n\n{words}");
            }
        }
        message.insert("thinking".into(), thoughts.into());
    }
    for tool in tools {
        let function = tool["function"].as_object_mut();
        function.map(|it| it.entry("description").or_insert_with(|| "".into()));
    }
}

/// The form of an answer that says what has the form `text`, behind thoughts.
pub(crate) fn with_form(special: Special<'_>, text: Form) -> Form {
    let field = text.field();
    text.within(field, answer(special, false, &said(special, PART)))
}

/// An answer whose last message is `last`, behind thoughts, and behind `words` too if there may be some. The prompt
/// has the beginning of the first message.
pub(crate) fn answer(special: Special<'_>, words: bool, last: &str) -> String {
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
pub(crate) fn said(special: Special<'_>, text: &str) -> String {
    let [channel, message] = ["<|channel|>", "<|message|>"].map(|it| mark(special, it));
    format!("{channel} \"final\" type? {message} {text}")
}

/// What stands before the arguments in a message of an [`answer`] that calls `name`: to whom it is, before the channel
/// or behind it.
pub(crate) fn call(special: Special<'_>, name: &str) -> String {
    let [channel, message] = ["<|channel|>", "<|message|>"].map(|it| mark(special, it));
    let (channel, to) =
        (format!("{channel} \"commentary\""), quoted(&format!(" to=functions.{name}")));
    format!("({channel} {to} | {to} {channel}) type? {message}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_said_is_as_the_template_takes_it() {
        let calls = json!([{"type": "function", "function": {"name": "f", "arguments": {}}}]);
        let given = json!([
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "b", "reasoning_content": "c"},
            {"role": "assistant", "content": "", "reasoning_content": "d", "tool_calls": calls},
            {"role": "assistant", "content": "e", "reasoning_content": "f", "tool_calls": calls},
            {"role": "assistant", "content": "g", "reasoning_content": "", "tool_calls": calls},
            {"role": "assistant", "content": "h", "tool_calls": calls},
        ]);
        let mut messages: Vec<Map<String, Value>> = serde_json::from_value(given).unwrap();
        let mut tools =
            ["f", "g"].map(|name| json!({"type": "function", "function": {"name": name}}));
        tools[1]["function"]["description"] = "Does.".into();
        take_back(&mut messages, &mut tools);
        let said = |at: usize| (messages[at]["content"].as_str(), messages[at].get("thinking"));
        assert_eq!(said(0), (Some("a"), None));
        assert_eq!(said(1), (Some("b"), Some(&"c".into())));
        assert_eq!(said(2), (Some(""), Some(&"d".into())));
        assert_eq!(said(3), (Some(""), Some(&"f\n\ne".into())));
        assert_eq!(said(4), (Some("g"), None));
        assert_eq!(said(5), (Some("h"), None));
        assert!(messages.iter().all(|it| !it.contains_key("reasoning_content")));
        assert_eq!(tools[0]["function"]["description"], "");
        assert_eq!(tools[1]["function"]["description"], "Does.");
    }
}
