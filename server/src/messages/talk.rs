//! What is asked in Anthropic's API: what has been said, what may be called, what the answer is to be.

use std::sync::Arc;

use iree_llm::Form;
use iree_llm::tools::Tools;
use serde_json::{Map, Value, json};

use super::NO_THREADS;
use crate::conversation::{Conversation, Effort, join_system, said, texts, tool_result};
use crate::fields::Fields;
use crate::form;
use crate::server::Shared;
use crate::{Model, Problem, tools};

/// What clients say of tools for the service of others.
const TOOL_HINTS: [&str; 5] = [
    "cache_control",
    "defer_loading",
    "eager_input_streaming",
    "input_examples",
    "allowed_callers",
];
/// How a block of Claude Code's system prompt begins that is another one in every request, and tells a model nothing.
const BILLING: &str = "x-anthropic-billing-header";

/// What requests for an answer and for its prompt's length share.
pub struct Talk {
    pub model: Arc<Model>,
    pub conversation: Conversation,
    pub tools: Option<Tools>,
    /// That of the answer.
    pub form: Option<Form>,
}

impl Talk {
    /// # Errors
    ///
    /// Something of it is wrong, or is not supported.
    pub fn take(shared: &Shared, fields: &mut Fields) -> Result<Self, Problem> {
        let model = shared.model_of_claude(fields)?;
        let mut messages = Vec::new();
        if let Some(system) = fields.take::<Value>("system")? {
            let system = system_prompt(&system)?;
            if !system.is_empty() {
                messages.push(said("system", system));
            }
        }
        let given = fields.take::<Vec<Value>>("messages")?;
        let given = given.ok_or_else(|| Problem::field("messages", "is missing"))?;
        for (n, message) in given.iter().enumerate() {
            turn(&format!("messages[{n}]"), message, &mut messages)?;
        }
        join_system(&mut messages);
        let Some(last) = given.last() else {
            return Err(Problem::field("messages", "is empty: give at least one"));
        };
        let mut conversation = Conversation::of(messages);
        if last["role"] == "assistant" {
            conversation.go_on()?;
        }
        if let Some(thinking) = fields.take::<Map<String, Value>>("thinking")? {
            let mut thinking = Fields::new(thinking);
            let budget = thinking.take::<u64>("budget_tokens")?;
            // Thoughts come as they are.
            thinking.take::<String>("display")?;
            match thinking.take::<String>("type")?.as_deref() {
                Some("enabled" | "adaptive") => conversation.think_first(budget),
                Some("disabled") => conversation.think("thinking", Some(Effort::None)),
                _ => {
                    let message = "must have the type \"enabled\" or \"disabled\"";
                    return Err(Problem::field("thinking", message));
                }
            }
            thinking.finish()?;
        }
        let form = take_output(fields, &mut conversation)?;
        take_context_management(fields)?;
        // Says what to keep of the prompt; all of it is.
        fields.take::<Value>("cache_control")?;
        fields.only("speed", &json!("standard"));
        fields.only("mcp_servers", &json!([]));
        if fields.take::<Value>("thread")?.is_some() {
            let message = "is not supported here: conversations are not kept, send all of it";
            return Err(Problem::field("thread", message).with_code(NO_THREADS));
        }
        let tools = take_tools(fields)?;
        Ok(Self { model, conversation, tools, form })
    }
}

/// How much to think, where the template knows how, and the form of the answer.
fn take_output(
    fields: &mut Fields,
    conversation: &mut Conversation,
) -> Result<Option<Form>, Problem> {
    // What it was called before.
    let mut format = fields.take::<Value>("output_format")?.map(|it| ("output_format", it));
    if let Some(output) = fields.take::<Map<String, Value>>("output_config")? {
        let mut output = Fields::new(output);
        if let Some(effort) = output.take::<Value>("effort")? {
            let effort = serde_json::from_value(effort);
            let wrong = |error: serde_json::Error| {
                Problem::field("output_config.effort", error.to_string())
            };
            conversation.hint(effort.map_err(wrong)?);
        }
        format = output.take("format")?.map(|it| ("output_config.format", it)).or(format);
        output.finish()?;
    }
    let Some((name, format)) = format else { return Ok(None) };
    let keys = format.as_object().map_or(0, Map::len);
    match (&format["type"], &format["schema"]) {
        (kind, schema @ (Value::Object(_) | Value::Bool(_)))
            if kind == "json_schema" && keys == 2 =>
        {
            Ok(Some(form::json(name, schema.clone())))
        }
        _ => {
            let message = "must be {\"type\": \"json_schema\", \"schema\": {…}}";
            Err(Problem::field(name, message))
        }
    }
}

/// Passes where it would let the server leave something out of the prompt: all of that is kept.
fn take_context_management(fields: &mut Fields) -> Result<(), Problem> {
    const FIELD: &str = "context_management";
    let Some(management) = fields.take::<Map<String, Value>>(FIELD)? else { return Ok(()) };
    let mut management = Fields::new(management);
    let edits = management.take::<Vec<Value>>("edits")?.unwrap_or_default();
    management.finish()?;
    for edit in &edits {
        let kind = edit["type"].as_str().unwrap_or_default();
        if !kind.starts_with("clear_thinking_") && !kind.starts_with("clear_tool_uses_") {
            let message = format!(
                "has an edit of the type {kind:?}; there are: clear_thinking_…, clear_tool_uses_…"
            );
            return Err(Problem::field(FIELD, message));
        }
    }
    Ok(())
}

/// In the form of OpenAI's API, which says the same.
fn take_tools(fields: &mut Fields) -> Result<Option<Tools>, Problem> {
    let given = fields.take::<Vec<Map<String, Value>>>("tools")?.unwrap_or_default();
    let mut tools = Vec::new();
    for (n, tool) in given.into_iter().enumerate() {
        let mut tool = Fields::new(tool);
        let kind = tool.take::<String>("type")?;
        if kind.is_some_and(|kind| kind != "custom") {
            let message = "must be \"custom\": none are run by the server";
            return Err(Problem::field(format!("tools[{n}].type"), message));
        }
        let [name, description, schema] =
            [tool.take::<Value>("name")?, tool.take("description")?, tool.take("input_schema")?];
        let strict = tool.take::<Value>("strict")?;
        // Say when a prompt has to have it, who else may call it, and what to keep: a prompt has all tools, and
        // all of it is kept.
        for hint in TOOL_HINTS {
            tool.take::<Value>(hint)?;
        }
        tool.finish()?;
        let function = json!({
            "name": name, "description": description, "parameters": schema, "strict": strict,
        });
        let Value::Object(mut function) = function else { unreachable!("it is an object") };
        function.retain(|_, value| !value.is_null());
        tools.push(json!({"type": "function", "function": function}));
    }
    let mut same = Map::new();
    same.insert("tools".into(), tools.into());
    if let Some(choice) = fields.take::<Map<String, Value>>("tool_choice")? {
        let mut choice = Fields::new(choice);
        let kind = choice.take::<String>("type")?.unwrap_or_default();
        let name = choice.take::<String>("name")?;
        let single = choice.take::<bool>("disable_parallel_tool_use")?.unwrap_or(false);
        choice.finish()?;
        let choice = match (kind.as_str(), name) {
            ("auto" | "none", None) => json!(kind),
            ("any", None) => json!("required"),
            ("tool", Some(name)) => json!({"type": "function", "function": {"name": name}}),
            _ => {
                let message = "must be {\"type\": \"auto\"}, any, none, or {\"type\": \"tool\", \
                               \"name\": \"…\"}";
                return Err(Problem::field("tool_choice", message));
            }
        };
        same.insert("tool_choice".into(), choice);
        same.insert("parallel_tool_calls".into(), (!single).into());
    }
    tools::take(&mut Fields::new(same))
}

/// A string, or blocks of text, which are lines of their own.
fn words(at: &str, content: &Value) -> Result<String, Problem> {
    Ok(texts(at, content, &["text"])?.join("\n"))
}

/// What a model is told of itself. A prompt that changes with every request would be found in no cache.
fn system_prompt(content: &Value) -> Result<String, Problem> {
    let mut texts = texts("system", content, &["text"])?;
    texts.retain(|text| !text.starts_with(BILLING));
    Ok(texts.join("\n"))
}

/// Adds a message of the user's or the assistant's, or what it says to the one before it, if that is of the same: many
/// templates take them by turns alone.
fn push(mut message: Map<String, Value>, messages: &mut Vec<Map<String, Value>>) {
    // Words behind a call are not before it.
    let joins = |last: &&mut Map<String, Value>| {
        last["role"] == message["role"]
            && (message["content"] == "" || !last.contains_key("tool_calls"))
    };
    let Some(last) = messages.last_mut().filter(joins) else {
        messages.push(message);
        return;
    };
    message.shift_remove("role");
    for (name, more) in message {
        match (last.get_mut(&name), more) {
            (Some(Value::String(all)), Value::String(more)) => {
                if !all.is_empty() && !more.is_empty() {
                    all.push('\n');
                }
                *all += &more;
            }
            (Some(Value::Array(all)), Value::Array(more)) => all.extend(more),
            (_, more) => drop(last.insert(name, more)),
        }
    }
}

/// Adds what `message` says to `messages`: results of tools are messages of their own to templates.
fn turn(at: &str, message: &Value, messages: &mut Vec<Map<String, Value>>) -> Result<(), Problem> {
    let role = match message["role"].as_str() {
        Some(role @ ("system" | "user" | "assistant")) => role,
        _ => {
            let message = format!("is {}; there are: system, user, assistant", message["role"]);
            return Err(Problem::field(format!("{at}.role"), message));
        }
    };
    let at = format!("{at}.content");
    if role == "system" {
        let text = words(&at, &message["content"])?;
        if messages.iter().all(|it| it["role"] == "system") {
            messages.push(said(role, text));
        } else {
            // Most templates take one only at the beginning, and one that came there would change the prompt from
            // there on.
            let text = format!("<system-reminder>\n{text}\n</system-reminder>");
            push(said("user", text), messages);
        }
        return Ok(());
    }
    let Value::Array(blocks) = &message["content"] else {
        push(said(role, words(&at, &message["content"])?), messages);
        return Ok(());
    };
    let (mut text, mut thoughts, mut calls, mut results) = (vec![], String::new(), vec![], 0);
    for (n, block) in blocks.iter().enumerate() {
        let at = format!("{at}[{n}]");
        let string = |name: &str| {
            let string = block[name].as_str();
            string
                .ok_or_else(|| Problem::field(format!("{at}.{name}"), "is missing: give a string"))
        };
        match (block["type"].as_str(), role) {
            (Some("text"), _) => text.push(string("text")?),
            (Some("thinking"), "assistant") => thoughts += string("thinking")?,
            // Nobody but whoever wrote them can read them.
            (Some("redacted_thinking"), "assistant") => {}
            (Some("tool_use"), "assistant") => {
                if !block["input"].is_object() {
                    return Err(Problem::field(format!("{at}.input"), "is no object"));
                }
                let function = json!({"name": string("name")?, "arguments": block["input"]});
                let id = string("id")?;
                calls.push(json!({"id": id, "type": "function", "function": function}));
            }
            (Some("tool_result"), "user") => {
                let content = match &block["content"] {
                    Value::Null => String::new(),
                    content => tool_result(&format!("{at}.content"), content, &["text"])?,
                };
                let failed = match &block["is_error"] {
                    Value::Null => false,
                    Value::Bool(failed) => *failed,
                    other => {
                        let message = format!("is {other}: give true or false");
                        return Err(Problem::field(format!("{at}.is_error"), message));
                    }
                };
                // Templates know results alone.
                let content = if failed { format!("Error: {content}") } else { content };
                let mut result = said("tool", content);
                result.insert("tool_call_id".into(), string("tool_use_id")?.into());
                messages.push(result);
                results += 1;
            }
            (kind, _) => {
                let kind = kind.unwrap_or("nothing");
                let message = format!(
                    "has the type {kind:?}; there are: text; of assistants tool_use and thinking, of \
                     users tool_result"
                );
                return Err(Problem::field(at, message));
            }
        }
    }
    if results > 0 && text.is_empty() {
        return Ok(());
    }
    let mut message = said(role, text.join("\n"));
    if !thoughts.is_empty() {
        message.insert("reasoning_content".into(), thoughts.into());
    }
    if !calls.is_empty() {
        message.insert("tool_calls".into(), calls.into());
    }
    push(message, messages);
    Ok(())
}
