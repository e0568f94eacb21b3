//! Answers of the past, as a template takes them that does not know all that they have.

use serde_json::{Map, Value, json};
use text::{AnswerStyle, ChatTemplate};

use crate::harmony;

/// Changes `messages` and `tools` to what `template` takes: where it leaves out calls they are among the words, as the
/// model has written them, and where thoughts are parts of what is said they are such.
pub(crate) fn take_back(
    template: &ChatTemplate,
    messages: &mut [Map<String, Value>],
    tools: &mut [Value],
) {
    if template.answer_style() == Some(AnswerStyle::Harmony) {
        return harmony::take_back(messages, tools);
    }
    let style = template.tool_style().filter(|_| template.leaves_out_calls());
    for message in messages {
        if let (Some(style), Some(calls)) = (style, message.get("tool_calls"))
            && let Some(written) = written(style, calls)
        {
            let words = message["content"].as_str().filter(|it| !it.is_empty());
            let words = words.map_or(written.clone(), |words| format!("{words}\n{written}"));
            message.insert("content".into(), words.into());
            message.remove("tool_calls");
        }
        let thoughts = message.get("reasoning_content").and_then(Value::as_str);
        if let Some(thoughts) = thoughts.filter(|it| !it.is_empty())
            && template.takes_thought_parts()
        {
            let mut parts = vec![json!({"type": "thinking", "thinking": thoughts})];
            if let Some(words) = message["content"].as_str().filter(|it| !it.is_empty()) {
                parts.push(json!({"type": "text", "text": words}));
            }
            message.insert("content".into(), parts.into());
            message.remove("reasoning_content");
        }
    }
}

/// The `calls` of a message, in the form that templates know, as `style` has them.
fn written(style: AnswerStyle, calls: &Value) -> Option<String> {
    let calls = calls.as_array()?.iter().map(|call| &call["function"]);
    let calls = calls.map(|it| Some((it["name"].as_str()?, &it["arguments"])));
    style.written(&calls.collect::<Option<Vec<_>>>()?)
}

#[cfg(test)]
mod tests {
    use text::{RenderOptions, Vocabulary};

    use super::*;

    /// What a template of these lines makes of an answer with words, thoughts and a call.
    fn rendered(source: &str) -> String {
        let of_file = Vocabulary { chat_template: Some(source.into()), ..Vocabulary::default() };
        let template = ChatTemplate::from_vocabulary(&of_file, "here".as_ref()).unwrap().unwrap();
        let call = json!({"function": {"name": "f", "arguments": {"x": [1, "a"]}}});
        let answer = json!([{"role": "assistant", "content": "b", "reasoning_content": "c", "tool_calls": [call]}]);
        let mut messages: Vec<Map<String, Value>> = serde_json::from_value(answer).unwrap();
        take_back(&template, &mut messages, &mut []);
        template.render(&messages, &RenderOptions::default()).unwrap()
    }

    #[test]
    fn what_a_template_leaves_out_is_said() {
        let said = "{% for m in messages %}{{ m.content }}{% endfor %}";
        let granite = format!("{said}{{# tools <|tool_call|> #}}");
        let call = "<|tool_call|>[{\"name\": \"f\", \"arguments\": {\"x\": [1, \"a\"]}}]";
        assert_eq!(rendered(&granite), format!("b\n{call}"));
        let lfm2 = format!("{said}{{# tools List of tools: #}}");
        let call = "<|tool_call_start|>[f(x=[1, \"a\"])]<|tool_call_end|>";
        assert_eq!(rendered(&lfm2), format!("b\n{call}"));
        assert_eq!(rendered(said), "b");
        let parts = "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}\
                     {% for p in m.content %}{{ '[THINK]' + p.thinking + '[/THINK]' if p.thinking else p.text }}\
                     {% endfor %}{% endif %}{% for c in m.tool_calls %}{{ c.function.name }}{% endfor %}{% endfor %}";
        assert_eq!(rendered(parts), "[THINK]c[/THINK]bf");
    }
}
