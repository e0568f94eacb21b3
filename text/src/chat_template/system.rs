//! What the system says, where a template does not take it.

use serde::Serialize;
use serde_json::{Map, Value};

use super::ChatTemplate;

impl ChatTemplate {
    /// `messages` with what the template would refuse or leave out of what the system says before what the user says
    /// next. Some take none of it, as Gemma 2's and Mistral's first, others what it says first.
    pub fn say_as_user<M: Serialize>(&self, messages: &[M]) -> Vec<Map<String, Value>> {
        let messages = messages.iter().filter_map(|it| serde_json::to_value(it).ok());
        let messages = messages.filter_map(|it| match it {
            Value::Object(it) => Some(it),
            _ => None,
        });
        let mut messages: Vec<_> = messages.collect();
        let is_system = |it: &Map<String, Value>| says(it) == "system";
        if !messages.iter().any(is_system) {
            return messages;
        }
        let [first, later] = self.takes_system();
        // One behind another becomes the first where that is not taken.
        let is_taken = |before: &[Map<String, Value>]| match before.iter().all(is_system) {
            true => first && (later || before.is_empty()),
            false => later,
        };
        while let Some(at) =
            (0..messages.len()).rfind(|&at| is_system(&messages[at]) && !is_taken(&messages[..at]))
        {
            let next = messages[at..].iter().position(|it| says(it) == "user");
            let words = messages[at].get("content").and_then(Value::as_str).map(str::to_owned);
            match (next, words) {
                (Some(next), Some(words)) => {
                    let content = messages[at + next].entry("content").or_insert(Value::Null);
                    match content {
                        Value::Array(parts) => {
                            parts.insert(0, serde_json::json!({"type": "text", "text": words}));
                        }
                        content => {
                            let user = content.as_str().unwrap_or_default();
                            *content = format!("{words}\n\n{user}").into();
                        }
                    }
                    messages.remove(at);
                }
                _ => {
                    messages[at].insert("role".into(), "user".into());
                }
            }
        }
        messages
    }
}

/// Who says `message`.
fn says(message: &Map<String, Value>) -> &str {
    message.get("role").and_then(Value::as_str).unwrap_or_default()
}
