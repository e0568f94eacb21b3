//! `POST /v1/chat/completions`

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use serde_json::{Map, Value, json};
use text::{ChatTemplate, Part, RenderOptions, Reply, ToolStyle};

use crate::answer::{Answers, Shape, TokenLikelihood};
use crate::fields::Fields;
use crate::sampling::Settings;
use crate::server::Shared;
use crate::tools::{Thinks, Tools};
use crate::{Model, Problem, body};

/// Most alternatives that may be asked for at each token.
pub(crate) const MOST_LOGPROBS: usize = 20;

/// What a template is given by us.
const RESERVED: [&str; 5] =
    ["messages", "tools", "documents", "add_generation_prompt", "bos_token"];

pub(crate) async fn answer(
    State(shared): State<Arc<Shared>>,
    request: Request,
) -> Result<Response, Problem> {
    let fields = body::read(request, shared.options.most_bytes).await?;
    let mut fields = Fields::new(fields);
    let model = shared.model(&mut fields)?;
    let mut conversation = Conversation::take(&mut fields)?;
    let mut settings = Settings::take(&mut fields, &model)?;
    let tools = Tools::take(&mut fields)?;
    let max_tokens = max_tokens(&mut fields)?;
    let logprobs = logprobs(&mut fields)?;
    fields.only("modalities", &json!(["text"]));
    fields.finish()?;

    shared.check_open()?;
    let places = model.places(settings.n)?;
    let template = template(&model)?;
    let style = tools.as_ref().map(|_| {
        template.tool_style().ok_or_else(|| {
            let message = format!(
                "the template of the model {:?} knows no tools, or writes their calls in a way that is not \
                 understood here (there are Hermes', Llama 3's and Mistral's): take another model, or \
                 describe them in a message and ask for a `response_format`",
                model.name()
            );
            Problem::field("tools", message)
        })
    });
    let style = style.transpose()?;
    let thoughts = template.has_thoughts();
    conversation.show(tools.as_ref());
    let (prompt, thinking) = rendered(&model, conversation).await?;
    if let (Some(tools), Some(style)) = (&tools, style) {
        let thinks = match (thinking, thoughts) {
            (true, _) => Thinks::Already,
            (false, true) => Thinks::Perhaps,
            (false, false) => Thinks::Never,
        };
        settings.call(&model, tools, style, thinks)?;
    }
    let (settings, form) = settings.with_form(&model).await?;
    let room = (model.context + 1).saturating_sub(prompt.len());
    let max_tokens = max_tokens.unwrap_or(room);
    let requests = settings.requests(&prompt, max_tokens, logprobs, form.as_ref())?;
    let events = model.submit(requests, places).await?;
    let answers = Answers::new(model, &[prompt], settings.n, events);
    let heads = [String::new()];
    let shape = Chat {
        logprobs: logprobs.is_some(),
        choices: (0..settings.n).map(|_| Choice::new(style, thoughts, thinking)).collect(),
        style,
    };
    if settings.stream {
        Ok(answers.streamed(shape, &heads, settings.include_usage))
    } else {
        answers.whole(shape, &heads).await
    }
}

/// What has been said, and what else the template is told.
pub(crate) struct Conversation {
    messages: Vec<Map<String, Value>>,
    options: RenderOptions,
}

impl Conversation {
    /// What `fields` say.
    ///
    /// # Errors
    ///
    /// A message is in a form that is not supported.
    pub fn take(fields: &mut Fields) -> Result<Self, Problem> {
        let messages = fields.take::<Vec<Map<String, Value>>>("messages")?;
        let messages = messages.ok_or_else(|| Problem::field("messages", "is missing"))?;
        if messages.is_empty() {
            return Err(Problem::field("messages", "is empty: give at least one"));
        }
        let messages = messages.into_iter().enumerate();
        let messages = messages.map(|(at, it)| message(&format!("messages[{at}]"), it));
        let mut options = RenderOptions::prompt();
        let variables = fields.take::<Map<String, Value>>("chat_template_kwargs")?;
        for (name, value) in variables.unwrap_or_default() {
            if RESERVED.contains(&name.as_str()) || name.ends_with("_token") {
                let message = format!("has {name:?}, which is not the request's to say");
                return Err(Problem::field("chat_template_kwargs", message));
            }
            options.variables.insert(name, value);
        }
        Ok(Self { messages: messages.collect::<Result<_, _>>()?, options })
    }

    /// Tells the template of `tools`.
    pub fn show(&mut self, tools: Option<&Tools>) {
        self.options.tools = tools.map(Tools::values).unwrap_or_default();
    }
}

/// A message in the form that templates know.
fn message(at: &str, message: Map<String, Value>) -> Result<Map<String, Value>, Problem> {
    let field = |name: &str| format!("{at}.{name}");
    let mut known = Map::new();
    for (name, value) in message {
        match (name.as_str(), value) {
            (_, Value::Null) => {}
            ("role", Value::String(role)) => {
                let role = match role.as_str() {
                    // What newer models of OpenAI's call it.
                    "developer" => "system",
                    "system" | "user" | "assistant" | "tool" => &role,
                    _ => {
                        let message = format!(
                            "is {role:?}; there are: system, developer, user, assistant, tool"
                        );
                        return Err(Problem::field(field("role"), message));
                    }
                };
                known.insert(name, role.into());
            }
            ("content", Value::String(text)) => {
                known.insert(name, text.into());
            }
            ("content", Value::Array(parts)) => {
                let text = parts.iter().enumerate().map(|(n, part)| {
                    let text = (part["type"] == "text").then(|| part["text"].as_str()).flatten();
                    text.ok_or_else(|| {
                        let message = "is no part in words ({\"type\": \"text\", \"text\": \"…\"}), \
                                       and models here know text only";
                        Problem::field(field(&format!("content[{n}]")), message)
                    })
                });
                known.insert(name, text.collect::<Result<String, _>>()?.into());
            }
            ("tool_calls", Value::Array(calls)) => {
                let calls = calls.into_iter().enumerate();
                let calls = calls.map(|(n, it)| call(&field(&format!("tool_calls[{n}]")), it));
                let calls = calls.collect::<Result<Vec<_>, _>>()?;
                if !calls.is_empty() {
                    known.insert(name, calls.into());
                }
            }
            // Some templates say who speaks, what a result belongs to, or what was thought.
            ("name" | "tool_call_id" | "reasoning_content", Value::String(text)) => {
                known.insert(name, text.into());
            }
            ("role" | "content" | "name" | "tool_call_id" | "reasoning_content", value) => {
                return Err(Problem::field(field(&name), format!("is {value}: give a string")));
            }
            ("tool_calls", value) => {
                return Err(Problem::field(field(&name), format!("is {value}: give a list")));
            }
            // What clients send back as it came.
            ("refusal" | "annotations" | "audio" | "function_call", _)
                if known.get("role").is_none_or(|role| role == "assistant") => {}
            _ => {
                let message = "is not supported here; there are: role, content, name, tool_calls, \
                               tool_call_id, reasoning_content";
                return Err(Problem::field(field(&name), message));
            }
        }
    }
    if known.contains_key("tool_calls") {
        // What comes with calls alone; templates take words for granted.
        known.entry("content").or_insert_with(|| "".into());
    }
    for name in ["role", "content"] {
        if !known.contains_key(name) {
            return Err(Problem::field(field(name), "is missing"));
        }
    }
    for (name, role) in [("tool_calls", "assistant"), ("tool_call_id", "tool")] {
        if known.contains_key(name) && known["role"] != role {
            let message = format!("is for messages of the role {role:?}");
            return Err(Problem::field(field(name), message));
        }
    }
    Ok(known)
}

/// A call in the form that templates know: with arguments as an object.
fn call(at: &str, call: Value) -> Result<Value, Problem> {
    let wrong = |name: &str, message: &str| Problem::field(format!("{at}.{name}"), message);
    let function = &call["function"];
    let name = function["name"].as_str();
    let name = name.ok_or_else(|| wrong("function.name", "is missing: give a string"))?;
    let arguments = match &function["arguments"] {
        Value::Null => json!({}),
        Value::String(text) if text.trim().is_empty() => json!({}),
        Value::String(text) => serde_json::from_str(text)
            .map_err(|error| wrong("function.arguments", &format!("is no JSON: {error}")))?,
        given => given.clone(),
    };
    if !arguments.is_object() {
        return Err(wrong("function.arguments", "is no object of JSON"));
    }
    let mut known = json!({"type": "function", "function": {"name": name, "arguments": arguments}});
    match &call["id"] {
        Value::Null => {}
        Value::String(id) => known["id"] = id.as_str().into(),
        other => return Err(wrong("id", &format!("is {other}: give a string"))),
    }
    Ok(known)
}

/// The tokens of `conversation`, up to where the answer begins.
///
/// # Errors
///
/// The model has no template, or it refuses the conversation.
pub(crate) async fn tokens(
    model: &Arc<Model>,
    conversation: Conversation,
) -> Result<Vec<u32>, Problem> {
    Ok(rendered(model, conversation).await?.0)
}

/// As [`tokens`], and whether they end where thoughts have begun.
async fn rendered(
    model: &Arc<Model>,
    conversation: Conversation,
) -> Result<(Vec<u32>, bool), Problem> {
    crate::server::blocking(model, move |model| {
        let Conversation { messages, options } = conversation;
        let rendered = template(model)?.render(&messages, &options);
        let rendered = rendered.map_err(|e| Problem::field("messages", e.to_string()))?;
        let tokens = model.tokenizer.encode(&rendered, false);
        let tokens = tokens.map_err(|error| Problem::field("messages", error.to_string()))?;
        Ok((tokens, rendered.trim_end().ends_with("<think>")))
    })
    .await
}

fn template(model: &Model) -> Result<&ChatTemplate, Problem> {
    model.template.as_ref().ok_or_else(|| {
        let name = model.name();
        Problem::request(format!("the model {name:?} has no chat template: use /v1/completions"))
    })
}

fn max_tokens(fields: &mut Fields) -> Result<Option<usize>, Problem> {
    let old = fields.take::<usize>("max_tokens")?;
    let new = fields.take::<usize>("max_completion_tokens")?;
    if old.is_some() && new.is_some() && old != new {
        let message = "and `max_tokens` differ: give one of them";
        return Err(Problem::field("max_completion_tokens", message));
    }
    Ok(new.or(old))
}

fn logprobs(fields: &mut Fields) -> Result<Option<usize>, Problem> {
    let wanted = fields.take::<bool>("logprobs")?.unwrap_or(false);
    let top = fields.take::<usize>("top_logprobs")?;
    if top.is_some() && !wanted {
        return Err(Problem::field("top_logprobs", "goes with `logprobs`: true alone"));
    }
    let top = top.unwrap_or(0);
    if top > MOST_LOGPROBS {
        let message = format!("is {top}: it must be at most {MOST_LOGPROBS}");
        return Err(Problem::field("top_logprobs", message));
    }
    Ok(wanted.then_some(top))
}

struct Chat {
    logprobs: bool,
    choices: Vec<Choice>,
    style: Option<ToolStyle>,
}

/// An answer so far.
struct Choice {
    /// What tells its parts apart; `None` behind its end.
    reply: Option<Reply>,
    calls: usize,
}

impl Choice {
    fn new(style: Option<ToolStyle>, thoughts: bool, thinking: bool) -> Self {
        let reply = if thinking { Reply::thinking(style) } else { Reply::new(style, thoughts) };
        Self { reply: Some(reply), calls: 0 }
    }

    fn push(&mut self, text: &str) -> Vec<Part> {
        self.reply.as_mut().map(|reply| reply.push(text)).unwrap_or_default()
    }

    fn finish(&mut self) -> Vec<Part> {
        self.reply.take().map(Reply::finish).unwrap_or_default()
    }

    /// Why it has ended.
    fn reason<'a>(&self, reason: &'a str) -> &'a str {
        if self.calls > 0 && reason == "stop" { "tool_calls" } else { reason }
    }
}

/// What a call is known by. Templates of Mistral's take nine letters and digits.
fn call_id(style: Option<ToolStyle>) -> String {
    let id = crate::server::unique_id();
    match style {
        Some(ToolStyle::Mistral | ToolStyle::MistralArgs) => id.chars().rev().take(9).collect(),
        _ => format!("call_{id}"),
    }
}

impl Chat {
    /// What a stream says of `parts`.
    fn deltas(&mut self, index: usize, parts: Vec<Part>) -> Vec<Value> {
        let choice = &mut self.choices[index];
        let delta = |part| match part {
            Part::Content(text) => json!({"content": text}),
            Part::Reasoning(text) => json!({"reasoning_content": text}),
            Part::Call(name) => {
                choice.calls += 1;
                let function = json!({"name": name, "arguments": ""});
                let (at, id) = (choice.calls - 1, call_id(self.style));
                let call = json!({"index": at, "id": id, "type": "function", "function": function});
                json!({"tool_calls": [call]})
            }
            Part::Arguments(text) => {
                let at = choice.calls.saturating_sub(1);
                json!({"tool_calls": [{"index": at, "function": {"arguments": text}}]})
            }
        };
        parts.into_iter().map(delta).collect()
    }

    fn logprobs(&self, tokens: &[TokenLikelihood]) -> Value {
        if !self.logprobs {
            return Value::Null;
        }
        let one = |text: &str, logprob: f32| {
            // A token that is a part of a character is no text, and what its bytes are is lost.
            let bytes = (!text.contains('\u{fffd}')).then_some(text.as_bytes());
            json!({"token": text, "logprob": logprob, "bytes": bytes})
        };
        let tokens = tokens.iter().map(|token| {
            let mut value = one(&token.text, token.logprob);
            let top = token.top.iter().map(|(text, logprob)| one(text, *logprob));
            value["top_logprobs"] = top.collect();
            value
        });
        json!({"content": tokens.collect::<Vec<_>>(), "refusal": null})
    }
}

impl Shape for Chat {
    const WHOLE: &'static str = "chat.completion";
    const PIECE: &'static str = "chat.completion.chunk";
    const ID: &'static str = "chatcmpl";

    fn begin(&self, index: usize) -> Option<Value> {
        let delta = json!({"role": "assistant", "content": ""});
        Some(json!({"index": index, "delta": delta, "logprobs": null, "finish_reason": null}))
    }

    fn piece(&mut self, index: usize, text: &str, tokens: &[TokenLikelihood]) -> Vec<Value> {
        let parts = self.choices[index].push(text);
        let mut deltas = self.deltas(index, parts);
        if deltas.is_empty() && self.logprobs && !tokens.is_empty() {
            // Its text is not certain yet.
            deltas.push(json!({}));
        }
        // All that is known of the tokens comes with the first one.
        let mut tokens = Some(self.logprobs(tokens));
        let piece = |delta| {
            json!({
                "index": index, "delta": delta, "logprobs": tokens.take(), "finish_reason": null,
            })
        };
        deltas.into_iter().map(piece).collect()
    }

    fn end(&mut self, index: usize, reason: &str) -> Vec<Value> {
        let parts = self.choices[index].finish();
        let piece = |delta| json!({"index": index, "delta": delta, "logprobs": null, "finish_reason": null});
        let mut pieces: Vec<_> = self.deltas(index, parts).into_iter().map(piece).collect();
        let reason = self.choices[index].reason(reason);
        let end = json!({"index": index, "delta": {}, "logprobs": null, "finish_reason": reason});
        pieces.push(end);
        pieces
    }

    fn whole(&mut self, index: usize, text: &str, tokens: &[TokenLikelihood], why: &str) -> Value {
        let choice = &mut self.choices[index];
        let parts = [choice.push(text), choice.finish()].concat();
        let (mut content, mut reasoning) = (String::new(), String::new());
        let mut calls: Vec<(String, String)> = Vec::new();
        for part in parts {
            match part {
                Part::Content(text) => content += &text,
                Part::Reasoning(text) => reasoning += &text,
                Part::Call(name) => calls.push((name, String::new())),
                Part::Arguments(text) => {
                    if let Some((_, arguments)) = calls.last_mut() {
                        *arguments += &text;
                    }
                }
            }
        }
        choice.calls = calls.len();
        let why = choice.reason(why);
        let mut message = json!({"role": "assistant", "content": content, "refusal": null});
        if !reasoning.is_empty() {
            message["reasoning_content"] = reasoning.into();
        }
        if !calls.is_empty() {
            if content.is_empty() {
                message["content"] = Value::Null;
            }
            let call = |(name, arguments)| {
                let function = json!({"name": name, "arguments": arguments});
                json!({"id": call_id(self.style), "type": "function", "function": function})
            };
            message["tool_calls"] = calls.into_iter().map(call).collect();
        }
        json!({
            "index": index,
            "message": message,
            "logprobs": self.logprobs(tokens),
            "finish_reason": why,
        })
    }
}
