//! What some templates demand of a conversation that others do not: that user and assistant speak by turns, and that ids of
//! calls are nine letters and digits.

use std::hash::{DefaultHasher, Hash, Hasher};

use serde_json::{Map, Value};

use super::ChatTemplate;
use super::past::role;

/// As many letters and digits an id has, where a template demands that.
const SHORT: usize = 9;

impl ChatTemplate {
    /// Joins what the user says behind words of the user, or behind what has come of calls, with these, where the template
    /// refuses it, as those of Mistral and of Gemma do; and words of the assistant with those before them. It is rendered
    /// with `tools` or without.
    pub(super) fn take_turns(&self, messages: &mut Vec<Map<String, Value>>, tools: bool) {
        let it = self.of_messages(&minijinja::Value::from_serialize(&*messages), tools);
        let [behind_user, behind_result] = it.takes_user_behind();
        let mut all: Vec<Map<String, Value>> = Vec::with_capacity(messages.len());
        for message in std::mem::take(messages) {
            let joins = |last: &Map<String, Value>| match (role(last), role(&message)) {
                ("user", "user") => !behind_user,
                ("tool", "user") => !behind_result,
                // Calls are no turn where turns are counted.
                ("assistant", "assistant") => {
                    let calls = [last, &message].iter().any(|it| it.contains_key("tool_calls"));
                    !behind_user && !calls
                }
                _ => false,
            };
            if let Some(last) = all.last_mut().filter(|last| joins(last))
                && [&*last, &message]
                    .iter()
                    .all(|it| it.get("content").is_some_and(Value::is_string))
            {
                for (name, more) in message.into_iter().filter(|(name, _)| name != "role") {
                    match (last.get_mut(&name), more) {
                        (Some(Value::String(all)), Value::String(more)) => {
                            if !all.is_empty() && !more.is_empty() {
                                all.push_str("\n\n");
                            }
                            all.push_str(&more);
                        }
                        (None, more) => drop(last.insert(name, more)),
                        // What cannot be joined is the first one's.
                        (Some(_), _) => {}
                    }
                }
            } else {
                all.push(message);
            }
        }
        *messages = all;
    }

    /// Gives calls, and what has come of them, ids as the template demands them, as those of Mistral do: the same for the
    /// same, and by their order where there are none.
    pub(super) fn shorten_ids(&self, messages: &mut [Map<String, Value>]) {
        if !self.wants_short_ids() {
            return;
        }
        let (mut calls, mut results) = (0, 0);
        let shorten = |id: Option<&mut Value>, count: &mut usize| {
            *count += 1;
            short(id.and_then(|id| id.as_str()).unwrap_or(&count.to_string()))
        };
        for message in messages {
            if role(message) == "tool" {
                let id = shorten(message.get_mut("tool_call_id"), &mut results);
                message.insert("tool_call_id".into(), id.into());
            }
            let of_message = message.get_mut("tool_calls").and_then(Value::as_array_mut);
            for call in of_message.into_iter().flatten().filter_map(Value::as_object_mut) {
                let id = shorten(call.get_mut("id"), &mut calls);
                call.insert("id".into(), id.into());
            }
        }
    }
}

/// `id`, or what stands for it.
fn short(id: &str) -> String {
    if id.len() == SHORT && id.bytes().all(|it| it.is_ascii_alphanumeric()) {
        return id.to_owned();
    }
    let mut hasher = DefaultHasher::new();
    id.hash(&mut hasher);
    format!("{:016x}", hasher.finish())[..SHORT].to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::RenderOptions;

    const MISTRAL: &str = include_str!("../../tests/chat_templates/mistral-v0.3.jinja");
    const QWEN: &str = include_str!("../../tests/chat_templates/qwen3.jinja");

    fn template(source: &str) -> ChatTemplate {
        let tokens = [("bos_token", "<s>"), ("eos_token", "</s>")];
        let tokens = tokens.map(|(name, text)| (name.to_owned(), text.to_owned())).into();
        ChatTemplate::of_two(source.into(), None, tokens, "here".into()).unwrap()
    }

    /// `messages` as the template takes them, which it renders then.
    fn taken(template: &ChatTemplate, messages: &Value) -> Vec<Map<String, Value>> {
        let mut messages: Vec<Map<String, Value>> =
            serde_json::from_value(messages.clone()).unwrap();
        template.adapt(&mut messages, false, &mut Vec::new());
        template.render(&messages, &RenderOptions::prompt()).unwrap();
        messages
    }

    fn said(role: &str, content: &str) -> Value {
        json!({"role": role, "content": content})
    }

    #[test]
    fn the_user_speaks_once_where_a_template_wants_turns() {
        let [mistral, qwen] = [MISTRAL, QWEN].map(template);
        let asked = json!([
            said("user", "a"),
            said("user", "b"),
            said("assistant", "c"),
            said("user", "d")
        ]);
        let contents = |messages: Vec<Map<String, Value>>| -> Vec<_> {
            messages.iter().map(|it| it["content"].as_str().unwrap().to_owned()).collect()
        };
        assert_eq!(contents(taken(&mistral, &asked)), ["a\n\nb", "c", "d"]);
        assert_eq!(contents(taken(&qwen, &asked)), ["a", "b", "c", "d"]);
        let asked = json!([
            said("user", "a"),
            said("assistant", "b"),
            said("assistant", "c"),
            said("user", "d")
        ]);
        assert_eq!(contents(taken(&mistral, &asked)), ["a", "b\n\nc", "d"]);
        // Calls are no turn: words behind them are one.
        let call = json!({"id": "abcdefghi", "type": "function", "function": {"name": "f", "arguments": {}}});
        let calls = json!({"role": "assistant", "content": "", "tool_calls": [call]});
        let asked = json!([said("user", "a"), calls, said("assistant", "b"), said("user", "c")]);
        assert_eq!(contents(taken(&mistral, &asked)), ["a", "", "b", "c"]);
        // Of two templates the one that is rendered says it.
        let tokens = vec![("bos_token".to_owned(), "<s>".to_owned())];
        let two = ChatTemplate::of_two(MISTRAL.into(), Some(QWEN.into()), tokens, "here".into());
        let asked = json!([said("user", "a"), said("user", "b")]);
        assert_eq!(contents(taken(&two.unwrap(), &asked)), ["a\n\nb"]);
        // What it says that is the system's is the user's, and joined, too.
        let gemma = "{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}{% for m in messages %}\
                     {% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('turns') }}{% endif %}\
                     {{ m.content }}{% endfor %}";
        let told = json!([said("system", "s"), said("user", "a"), said("user", "b")]);
        assert_eq!(contents(taken(&template(gemma), &told)), ["s\n\na\n\nb"]);
    }

    #[test]
    fn ids_are_short_where_a_template_wants_that() {
        let [mistral, qwen] = [MISTRAL, QWEN].map(template);
        let call = |id: &str| json!({"id": id, "type": "function", "function": {"name": "f", "arguments": {}}});
        let talk = |first: &str, second: &str| {
            json!([
                said("user", "a"),
                {"role": "assistant", "content": "", "tool_calls": [call(first), call(second)]},
                {"role": "tool", "content": "1", "tool_call_id": first},
                {"role": "tool", "content": "2", "tool_call_id": second},
                said("user", "b"),
            ])
        };
        let messages = taken(&mistral, &talk("toolu_01AbCdEfGhIjKl", "abcdefghi"));
        let ids = [0, 1].map(|at| messages[1]["tool_calls"][at]["id"].as_str().unwrap());
        assert!(ids[0].len() == 9 && ids[0] != ids[1], "{ids:?}");
        assert_eq!(ids[1], "abcdefghi");
        assert_eq!([2, 3].map(|at| messages[at]["tool_call_id"].as_str().unwrap()), ids);
        // What the user says behind them is said with the last of them.
        assert_eq!((messages.len(), &messages[3]["content"]), (4, &json!("2\n\nb")));
        let messages = taken(&qwen, &talk("toolu_01AbCdEfGhIjKl", "abcdefghi"));
        assert_eq!(messages[1]["tool_calls"][0]["id"], "toolu_01AbCdEfGhIjKl");
        assert_eq!((messages.len(), &messages[4]["content"]), (5, &json!("b")));
        // Without ids their order tells them apart.
        let mut bare = talk("", "");
        for at in [0, 1] {
            bare[1]["tool_calls"][at].as_object_mut().unwrap().remove("id");
            bare[2 + at].as_object_mut().unwrap().remove("tool_call_id");
        }
        let messages = taken(&mistral, &bare);
        for at in [0, 1] {
            assert_eq!(messages[1]["tool_calls"][at]["id"], messages[2 + at]["tool_call_id"]);
        }
        assert_ne!(messages[2]["tool_call_id"], messages[3]["tool_call_id"]);
    }
}
