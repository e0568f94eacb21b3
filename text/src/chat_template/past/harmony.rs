//! Conversations as the template of gpt-oss takes them ([`AnswerStyle::Harmony`](crate::AnswerStyle)).

use serde_json::{Map, Value};

/// Changes what is said in a conversation to what the template of gpt-oss takes (`chat_template.jinja` of
/// openai/gpt-oss-120b): it calls thoughts `thinking`, refuses them with words beside calls, where it takes words for
/// thoughts anyway, and has all tools described.
pub fn take_back(messages: &mut [Map<String, Value>], tools: &mut [Value]) {
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
        let function = tool.get_mut("function").and_then(Value::as_object_mut);
        function.map(|it| it.entry("description").or_insert_with(|| "".into()));
    }
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
