//! `POST /v1/messages` and `/v1/messages/count_tokens`: Anthropic's API.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};
use text::{Part, Reply};
use xla_session::FinishReason;

use crate::answer::{About, Answer, End, Shape, Token, Usage};
use crate::conversation::{Asked, Conversation, Effort, Manner, THINKING, tokens};
use crate::fields::Fields;
use crate::sampling::Settings;
use crate::server::Shared;
use crate::tools::{Tools, call_id};
use crate::{Model, Problem, body};

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

/// What Anthropic's API calls a request that it can answer only without keeping the conversation.
const NO_THREADS: &str = "thread_unsupported_request";

/// Where it is.
pub(crate) const PATHS: [&str; 2] = ["/v1/messages", "/v1/messages/count_tokens"];

pub(crate) async fn answer(state: State<Arc<Shared>>, request: Request) -> Response {
    try_answer(state, request).await.unwrap_or_else(|problem| in_our_form(&problem))
}

pub(crate) async fn count(state: State<Arc<Shared>>, request: Request) -> Response {
    try_count(state, request).await.unwrap_or_else(|problem| in_our_form(&problem))
}

/// As Anthropic's clients read it.
pub(crate) fn in_our_form(problem: &Problem) -> Response {
    let response = problem.clone().into_response();
    let (parts, _) = response.into_parts();
    let mut response = body::json(parts.status, &json_of(problem));
    for (name, value) in &parts.headers {
        if !response.headers().contains_key(name) {
            response.headers_mut().insert(name.clone(), value.clone());
        }
    }
    response
}

fn json_of(problem: &Problem) -> Value {
    let kind = match problem.status() {
        StatusCode::UNAUTHORIZED => "authentication_error",
        StatusCode::NOT_FOUND => "not_found_error",
        StatusCode::PAYLOAD_TOO_LARGE => "request_too_large",
        StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
        StatusCode::SERVICE_UNAVAILABLE => "overloaded_error",
        StatusCode::GATEWAY_TIMEOUT => "timeout_error",
        status if status.is_server_error() => "api_error",
        _ => "invalid_request_error",
    };
    let said = &problem.json()["error"];
    let mut error = json!({"type": kind, "message": said["message"]});
    if said["code"] == NO_THREADS {
        // Anthropic's clients ask again without one then.
        error["details"] = json!({"error_code": NO_THREADS, "unsupported": ["thread"]});
    }
    json!({"type": "error", "error": error})
}

async fn try_answer(
    State(shared): State<Arc<Shared>>,
    request: Request,
) -> Result<Response, Problem> {
    let fields = body::read(request, shared.options.most_bytes).await?;
    let mut fields = Fields::new(fields);
    let Talk { model, conversation, tools, form } = Talk::take(&shared, &mut fields)?;
    if let Some(form) = form {
        fields.insert("response_format", form)?;
    }
    fields.rename("stop_sequences", "stop")?;
    let settings = Settings::take(&mut fields, &model)?;
    let max_tokens = fields.take::<usize>("max_tokens")?;
    let max_tokens = max_tokens.ok_or_else(|| Problem::field("max_tokens", "is missing"))?;
    fields.finish()?;
    if settings.n != 1 {
        return Err(Problem::field("n", "must be 1: a message has one answer"));
    }
    if settings.include_usage {
        return Err(Problem::field("stream_options", "is not for messages: they say it always"));
    }
    let stream = settings.stream;
    let max_tokens = Some(max_tokens);
    let asked = Asked { conversation, settings, tools, max_tokens, logprobs: None };
    let (answers, manner) = asked.submit(&shared, model).await?;
    let shape = Message::new(manner);
    if stream { Ok(answers.streamed(shape)) } else { answers.whole(shape).await }
}

async fn try_count(
    State(shared): State<Arc<Shared>>,
    request: Request,
) -> Result<Response, Problem> {
    let fields = body::read(request, shared.options.most_bytes).await?;
    let mut fields = Fields::new(fields);
    // The form of the answer is not told to the model.
    let Talk { model, mut conversation, tools, .. } = Talk::take(&shared, &mut fields)?;
    fields.finish()?;
    conversation.show(tools.as_ref());
    let tokens = tokens(&model, conversation).await?;
    Ok(body::json(StatusCode::OK, &json!({"input_tokens": tokens.len()})))
}

/// What requests for an answer and for its prompt's length share.
struct Talk {
    model: Arc<Model>,
    conversation: Conversation,
    tools: Option<Tools>,
    /// That of the answer, as OpenAI's API has it.
    form: Option<Value>,
}

impl Talk {
    fn take(shared: &Shared, fields: &mut Fields) -> Result<Self, Problem> {
        let model = shared.model(fields)?;
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
        let Some(last) = given.last() else {
            return Err(Problem::field("messages", "is empty: give at least one"));
        };
        let mut conversation = Conversation::of(messages);
        if last["role"] == "assistant" {
            conversation.go_on()?;
        }
        if let Some(thinking) = fields.take::<Map<String, Value>>("thinking")? {
            match thinking.get("type").and_then(Value::as_str) {
                Some("enabled" | "adaptive") => conversation.say(THINKING, true.into()),
                Some("disabled") => conversation.think("thinking", Some(Effort::None)),
                _ => {
                    let message = "must have the type \"enabled\" or \"disabled\"";
                    return Err(Problem::field("thinking", message));
                }
            }
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
        let tools = tools(fields)?;
        Ok(Self { model, conversation, tools, form })
    }
}

/// How much to think, where the template knows how, and the form of the answer, as OpenAI's API has it.
fn take_output(
    fields: &mut Fields,
    conversation: &mut Conversation,
) -> Result<Option<Value>, Problem> {
    // What it was called before.
    let mut format = fields.take::<Map<String, Value>>("output_format")?;
    if let Some(output) = fields.take::<Map<String, Value>>("output_config")? {
        let mut output = Fields::new(output);
        if let Some(effort) = output.take("effort")? {
            conversation.hint(effort);
        }
        format = output.take("format")?.or(format);
        output.finish()?;
    }
    let Some(format) = format else { return Ok(None) };
    let mut format = Fields::new(format);
    let kind = format.take::<String>("type")?.unwrap_or_default();
    let schema = format.take::<Value>("schema")?;
    format.finish()?;
    let Some(schema) = schema.filter(|_| kind == "json_schema") else {
        let message = "must be {\"type\": \"json_schema\", \"schema\": {…}}";
        return Err(Problem::field("output_config.format", message));
    };
    Ok(Some(json!({"type": "json_schema", "json_schema": {"schema": schema}})))
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
fn tools(fields: &mut Fields) -> Result<Option<Tools>, Problem> {
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
    Tools::take(&mut Fields::new(same))
}

fn said(role: &str, content: String) -> Map<String, Value> {
    Map::from_iter([("role".into(), role.into()), ("content".into(), content.into())])
}

/// A string, or blocks of text, which are lines of their own.
fn words(at: &str, content: &Value) -> Result<String, Problem> {
    Ok(blocks(at, content)?.join("\n"))
}

/// What a model is told of itself. A prompt that changes with every request would be found in no cache.
fn system_prompt(content: &Value) -> Result<String, Problem> {
    let mut blocks = blocks("system", content)?;
    blocks.retain(|block| !block.starts_with(BILLING));
    Ok(blocks.concat())
}

fn blocks<'a>(at: &str, content: &'a Value) -> Result<Vec<&'a str>, Problem> {
    match content {
        Value::String(text) => Ok(vec![text]),
        Value::Array(blocks) => {
            let text = blocks.iter().enumerate().map(|(n, block)| {
                let text = (block["type"] == "text").then(|| block["text"].as_str()).flatten();
                text.ok_or_else(|| {
                    let message = "is no block of text, and models here know text only";
                    Problem::field(format!("{at}[{n}]"), message)
                })
            });
            text.collect()
        }
        other => Err(Problem::field(at, format!("is {other}: give a string or blocks of text"))),
    }
}

/// Adds a message, or what it says to the one before it, if that is of the same user.
fn push(message: Map<String, Value>, messages: &mut Vec<Map<String, Value>>) {
    match messages.last_mut().filter(|last| last["role"] == "user" && message["role"] == "user") {
        Some(last) => {
            let both =
                [&last["content"], &message["content"]].map(|it| it.as_str().unwrap_or_default());
            let both = both.join("\n");
            last.insert("content".into(), both.into());
        }
        None => messages.push(message),
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
        match messages.last_mut() {
            None => messages.push(said(role, text)),
            Some(last) if last["role"] == "system" => {
                let before = last["content"].as_str().unwrap_or_default();
                let both = format!("{before}\n{text}");
                last.insert("content".into(), both.into());
            }
            // Most templates take one only at the beginning, and one that came there would change the prompt from
            // there on.
            Some(_) => {
                let text = format!("<system-reminder>\n{text}\n</system-reminder>");
                push(said("user", text), messages);
            }
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
                    content => words(&format!("{at}.content"), content)?,
                };
                let failed = block["is_error"].as_bool().unwrap_or(false);
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

/// An answer, whose parts are blocks.
struct Message {
    manner: Manner,
    /// What tells the parts apart; `None` behind the end.
    reply: Option<Reply>,
    blocks: Vec<Value>,
    /// Whether the last of them goes on.
    is_open: bool,
    /// Arguments of the call that goes on.
    arguments: String,
    /// Why it has ended, and the stop string that did it.
    ended: Option<(&'static str, Option<String>)>,
}

fn event(value: &Value) -> String {
    format!("event: {}\ndata: {value}\n\n", value["type"].as_str().unwrap_or_default())
}

fn usage_of(usage: &Usage) -> Value {
    let cached = usage.cached_tokens();
    json!({
        "input_tokens": usage.prompt_tokens() - cached, "output_tokens": usage.tokens,
        "cache_read_input_tokens": cached, "cache_creation_input_tokens": 0,
    })
}

impl Message {
    fn new(manner: Manner) -> Self {
        let reply = Some(manner.reply());
        let (blocks, arguments) = (Vec::new(), String::new());
        Self { manner, reply, blocks, is_open: false, arguments, ended: None }
    }

    fn head(&self, about: &About, usage: &Usage) -> Value {
        let (reason, stop) = self.ended.clone().unzip();
        json!({
            "id": format!("msg_{}", about.id), "type": "message", "role": "assistant",
            "model": about.model, "content": self.blocks, "stop_reason": reason,
            "stop_sequence": stop.flatten(), "usage": usage_of(usage),
        })
    }

    fn reason(&self, end: &End) -> &'static str {
        match end.reason {
            FinishReason::Length | FinishReason::Context => "max_tokens",
            _ if self.blocks.iter().any(|block| block["type"] == "tool_use") => "tool_use",
            FinishReason::Stop if end.stop.is_some() => "stop_sequence",
            FinishReason::Eos | FinishReason::Stop => "end_turn",
        }
    }

    fn close(&mut self, events: &mut Vec<String>) {
        if !std::mem::take(&mut self.is_open) {
            return;
        }
        let index = self.blocks.len() - 1;
        let arguments = std::mem::take(&mut self.arguments);
        // What has been cut off is no object.
        if let Ok(input @ Value::Object(_)) = serde_json::from_str(&arguments) {
            self.blocks[index]["input"] = input;
        }
        events.push(event(&json!({"type": "content_block_stop", "index": index})));
    }

    fn open(&mut self, block: Value, events: &mut Vec<String>) {
        self.close(events);
        self.is_open = true;
        let index = self.blocks.len();
        let start = json!({"type": "content_block_start", "index": index, "content_block": block});
        events.push(event(&start));
        self.blocks.push(block);
    }

    /// More of the words or thoughts that `kind` names, in a block that goes on or a new one.
    fn add(&mut self, kind: &str, more: &str, events: &mut Vec<String>) {
        let last = self.blocks.last().filter(|_| self.is_open);
        if last.is_none_or(|last| last["type"] != kind) {
            let mut block = json!({"type": kind, kind: ""});
            if kind == "thinking" {
                // Others prove with it that the thoughts are theirs.
                block["signature"] = "".into();
            }
            self.open(block, events);
        }
        if let Some(Value::String(text)) = self.blocks.last_mut().map(|block| &mut block[kind]) {
            *text += more;
        }
        events.push(self.delta(json!({"type": format!("{kind}_delta"), kind: more})));
    }

    fn delta(&self, delta: Value) -> String {
        let index = self.blocks.len().saturating_sub(1);
        event(&json!({"type": "content_block_delta", "index": index, "delta": delta}))
    }

    fn tell(&mut self, parts: Vec<Part>) -> Vec<String> {
        let mut events = Vec::new();
        for part in parts {
            match part {
                Part::Content(text) => self.add("text", &text, &mut events),
                Part::Reasoning(text) => self.add("thinking", &text, &mut events),
                Part::Call(name) => {
                    let id = call_id(self.manner.style);
                    let block = json!({"type": "tool_use", "id": id, "name": name, "input": {}});
                    self.open(block, &mut events);
                }
                Part::Arguments(text) => {
                    self.arguments += &text;
                    let delta = json!({"type": "input_json_delta", "partial_json": text});
                    events.push(self.delta(delta));
                }
            }
        }
        events
    }
}

impl Shape for Message {
    fn begin(&mut self, about: &About) -> Vec<String> {
        let mut message = self.head(about, &Usage::default());
        // Which of them are in the cache is known at the end.
        message["usage"]["input_tokens"] = about.prompt_tokens.into();
        vec![event(&json!({"type": "message_start", "message": message}))]
    }

    fn resume(&mut self, _: usize, text: &str) {
        self.reply.as_mut().map(|reply| reply.push(text));
    }

    fn piece(&mut self, _: &About, _: usize, text: &str, _: &[Token]) -> Vec<String> {
        let parts = self.reply.as_mut().map(|reply| reply.push(text)).unwrap_or_default();
        self.tell(parts)
    }

    fn end(&mut self, _: &About, _: usize, end: &End) -> Vec<String> {
        let parts = self.reply.take().map(Reply::finish).unwrap_or_default();
        let mut events = self.tell(parts);
        self.close(&mut events);
        self.ended = Some((self.reason(end), end.stop.clone()));
        events
    }

    fn finish(&mut self, _: &About, usage: &Usage) -> Vec<String> {
        let (reason, stop) = self.ended.take().unzip();
        let delta = json!({"stop_reason": reason, "stop_sequence": stop.flatten()});
        vec![
            event(&json!({"type": "message_delta", "delta": delta, "usage": usage_of(usage)})),
            event(&json!({"type": "message_stop"})),
        ]
    }

    fn fail(&mut self, problem: &Problem) -> Vec<String> {
        vec![event(&json_of(problem))]
    }

    fn still_there(&self) -> String {
        event(&json!({"type": "ping"}))
    }

    fn whole(&mut self, about: &About, answers: Vec<Answer>, usage: &Usage) -> Value {
        for Answer { text, end, .. } in answers {
            self.piece(about, 0, &text, &[]);
            self.end(about, 0, &end);
        }
        self.head(about, usage)
    }
}
