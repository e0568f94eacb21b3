//! `POST /v1/messages` and `/v1/messages/count_tokens`: Anthropic's API.

mod talk;

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use text::{Part, Prompt, Reply};
use xla_session::FinishReason;

use self::talk::Talk;
use crate::answer::{About, Answer, End, Shape, Token, Usage};
use crate::conversation::{Asked, tokens};
use crate::openai::UsageIn;
use crate::sampling::Settings;
use crate::server::Shared;
use crate::tools::call_id;
use crate::{Problem, body};

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
        StatusCode::FORBIDDEN => "permission_error",
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
    if let Some((needed, context)) = problem.too_long() {
        // In Anthropic's words: clients shorten the conversation then.
        error["message"] =
            format!("prompt is too long: {needed} tokens > {context} maximum").into();
    }
    json!({"type": "error", "error": error})
}

async fn try_answer(
    State(shared): State<Arc<Shared>>,
    request: Request,
) -> Result<Response, Problem> {
    let mut fields = shared.fields(request).await?;
    let Talk { model, conversation, tools, form } = Talk::take(&shared, &mut fields)?;
    fields.rename("stop_sequences", "stop")?;
    let mut settings = Settings::take(&mut fields, &model)?;
    if let Some(form) = form {
        settings.keep_to(form)?;
    }
    let max_tokens = fields.take::<usize>("max_tokens")?;
    let max_tokens = max_tokens.ok_or_else(|| Problem::field("max_tokens", "is missing"))?;
    fields.finish()?;
    if settings.n != 1 {
        return Err(Problem::field("n", "must be 1: a message has one answer"));
    }
    if settings.usage != UsageIn::None {
        return Err(Problem::field("stream_options", "is not for messages: they say it always"));
    }
    let stream = settings.stream;
    let max_tokens = Some(max_tokens);
    let asked = Asked { conversation, settings, tools, max_tokens, logprobs: None };
    let (answers, prompt) = asked.submit(&shared, model).await?;
    let shape = Message::new(prompt);
    if stream { Ok(answers.streamed(shape)) } else { answers.whole(shape).await }
}

async fn try_count(
    State(shared): State<Arc<Shared>>,
    request: Request,
) -> Result<Response, Problem> {
    let mut fields = shared.fields(request).await?;
    // The form of the answer is not told to the model.
    let Talk { model, mut conversation, tools, .. } = Talk::take(&shared, &mut fields)?;
    fields.finish()?;
    conversation.show(tools.as_ref());
    let tokens = tokens(&model, conversation).await?;
    Ok(body::json(StatusCode::OK, &json!({"input_tokens": tokens.len()})))
}

/// An answer, whose parts are blocks.
struct Message {
    prompt: Prompt,
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
    fn new(prompt: Prompt) -> Self {
        let reply = Some(prompt.reply());
        let (blocks, arguments) = (Vec::new(), String::new());
        Self { prompt, reply, blocks, is_open: false, arguments, ended: None }
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

    /// Ends a block, and returns whether it is whole: what has been cut off, or is no JSON, is no object.
    fn close(&mut self, events: &mut Vec<String>) -> bool {
        if !std::mem::take(&mut self.is_open) {
            return true;
        }
        let index = self.blocks.len() - 1;
        let arguments = std::mem::take(&mut self.arguments);
        let is_call = self.blocks[index]["type"] == "tool_use";
        let whole = match serde_json::from_str(&arguments) {
            Ok(input @ Value::Object(_)) => {
                self.blocks[index]["input"] = input;
                true
            }
            _ => !is_call,
        };
        events.push(event(&json!({"type": "content_block_stop", "index": index})));
        whole
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
                    let id = call_id(self.prompt.style());
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

    fn resume(&mut self, _: usize, text: &str, _: &[Token]) {
        self.reply.as_mut().map(|reply| reply.push(text));
    }

    fn piece(&mut self, _: &About, _: usize, text: &str, _: &[Token]) -> Vec<String> {
        let parts = self.reply.as_mut().map(|reply| reply.push(text)).unwrap_or_default();
        self.tell(parts)
    }

    fn end(&mut self, _: &About, _: usize, end: &End) -> Vec<String> {
        let cut = end.cuts_call(self.reply.as_ref());
        let parts = self.reply.take().map(Reply::finish).unwrap_or_default();
        let mut events = self.tell(parts);
        let whole = self.close(&mut events);
        let full = matches!(end.reason, FinishReason::Length | FinishReason::Context);
        let cut = cut || !whole && !full;
        if cut {
            // Nobody is to make it.
            self.blocks.pop();
        }
        let reason = match &end.stop {
            Some(_) if cut => "stop_sequence",
            _ => self.reason(end),
        };
        self.ended = Some((reason, end.stop.clone()));
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

    fn fail(&mut self, _: &About, problem: &Problem) -> Vec<String> {
        vec![event(&json_of(problem))]
    }

    fn still_there(&mut self, _: &About) -> String {
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
