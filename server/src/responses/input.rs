//! What a request goes on from: its items, as the messages that templates know.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use super::{Messages, Store};
use crate::Problem;
use crate::conversation::{said, texts, tool_result};
use crate::fields::Fields;

/// Adds what `input` says to `messages`, with items that are in `responses`.
pub(super) fn take_input(
    fields: &mut Fields,
    responses: &Store,
    messages: &mut Messages,
) -> Result<(), Problem> {
    match fields.take::<Value>("input")? {
        None => return Err(Problem::field("input", "is missing")),
        Some(Value::String(text)) => messages.push(said("user", text)),
        Some(Value::Array(items)) => {
            let mut kept = KeptItems { responses, items: HashMap::new() };
            for (n, item) in items.iter().enumerate() {
                let at = format!("input[{n}]");
                match item["type"].as_str() {
                    Some("item_reference") => add_item(&at, &kept.take(&at, item)?, messages)?,
                    _ => add_item(&at, item, messages)?,
                }
            }
        }
        Some(_) => return Err(Problem::field("input", "must be a string or a list of items")),
    }
    if messages.is_empty() {
        return Err(Problem::field("input", "is empty: give at least one item"));
    }
    Ok(())
}

/// Items of responses that are kept.
struct KeptItems<'a> {
    responses: &'a Store,
    /// Those of the responses that were read: each response once, and each item once, or a small request could ask for
    /// much. `None` is one that was taken.
    items: HashMap<String, Option<Value>>,
}

impl KeptItems<'_> {
    /// The item that `reference`, which is at `at`, is of.
    fn take(&mut self, at: &str, reference: &Value) -> Result<Value, Problem> {
        let id = &reference["id"];
        let wrong = |message: String| Problem::field(format!("{at}.id"), message);
        let name = id.as_str().ok_or_else(|| wrong("is missing: give a string".into()))?;
        if !self.items.contains_key(name) {
            let beside = self.responses.items_beside(name);
            let named = |item: Value| Some((item["id"].as_str()?.to_owned(), Some(item)));
            self.items.extend(beside.into_iter().filter_map(named));
        }
        match self.items.get_mut(name).map(Option::take) {
            Some(Some(item)) => Ok(item),
            Some(None) => Err(wrong(format!("is {id}, which is there already"))),
            None => Err(wrong(format!(
                "is {id}, which is not here any more, or was made with `store`: false; send the item itself"
            ))),
        }
    }
}

/// Adds an item, which is at `at`, to `messages`.
pub(super) fn add_item(at: &str, item: &Value, messages: &mut Messages) -> Result<(), Problem> {
    let string = |name: &str| {
        let string = item[name].as_str();
        string.ok_or_else(|| Problem::field(format!("{at}.{name}"), "is missing: give a string"))
    };
    // What a model thought or called belongs to the message of its turn.
    let of_assistant =
        |messages: &mut Messages| match messages.pop_if(|it| it["role"] == "assistant") {
            Some(message) => message,
            None => said("assistant", String::new()),
        };
    match item["type"].as_str().or(item["type"].is_null().then_some("message")) {
        Some("message") => {
            let role = match string("role")? {
                "developer" | "system" => "system",
                role @ ("user" | "assistant") => role,
                role => {
                    let message =
                        format!("is {role:?}; there are: system, developer, user, assistant");
                    return Err(Problem::field(format!("{at}.role"), message));
                }
            };
            let text = words(&format!("{at}.content"), &item["content"])?;
            let thoughts = |last: &mut Map<String, Value>| {
                let is_one = role == "assistant" && last["role"] == "assistant";
                // Words behind a call are not before it.
                is_one && last["content"] == "" && !last.contains_key("tool_calls")
            };
            let mut message =
                messages.pop_if(thoughts).unwrap_or_else(|| said(role, String::new()));
            message.insert("content".into(), text.into());
            messages.push(message);
        }
        Some("reasoning") => {
            let parts = item["content"].as_array().into_iter().flatten();
            let text: String = parts.filter_map(|part| part["text"].as_str()).collect();
            let mut message = said("assistant", String::new());
            message.insert("reasoning_content".into(), text.into());
            messages.push(message);
        }
        Some("function_call") => {
            let call = json!({
                "id": string("call_id")?, "type": "function",
                "function": {"name": string("name")?, "arguments": string("arguments")?},
            });
            let call = crate::conversation::call(at, &call)?;
            let mut message = of_assistant(messages);
            match message.entry("tool_calls").or_insert_with(|| json!([])) {
                Value::Array(calls) => calls.push(call),
                other => *other = json!([call]),
            }
            messages.push(message);
        }
        Some("function_call_output") => {
            let mut result =
                said("tool", tool_result(&format!("{at}.output"), &item["output"], &WORDS)?);
            result.insert("tool_call_id".into(), string("call_id")?.into());
            messages.push(result);
        }
        _ => {
            let known = "message, function_call, function_call_output, item_reference, reasoning";
            let message = format!("has the type {}; there are: {known}", item["type"]);
            return Err(Problem::field(at, message));
        }
    }
    Ok(())
}

/// Types of parts that are text.
const WORDS: [&str; 3] = ["input_text", "output_text", "text"];

/// A string, or parts of text, which are lines of their own.
fn words(at: &str, content: &Value) -> Result<String, Problem> {
    Ok(texts(at, content, &WORDS)?.join("\n"))
}
