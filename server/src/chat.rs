//! `POST /v1/chat/completions`

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use serde_json::{Map, Value, json};
use text::RenderOptions;

use crate::answer::{Answers, Shape, TokenLikelihood};
use crate::fields::Fields;
use crate::sampling::Settings;
use crate::server::Shared;
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
    let conversation = Conversation::take(&mut fields)?;
    let settings = Settings::take(&mut fields, &model)?;
    let max_tokens = max_tokens(&mut fields)?;
    let logprobs = logprobs(&mut fields)?;
    fields.only("modalities", &json!(["text"]));
    fields.only("tools", &json!([]));
    fields.only("tool_choice", &json!("none"));
    fields.finish()?;

    shared.check_open()?;
    let places = model.places(settings.n)?;
    let prompt = tokens(&model, conversation).await?;
    let (settings, form) = settings.with_form(&model).await?;
    let room = (model.context + 1).saturating_sub(prompt.len());
    let max_tokens = max_tokens.unwrap_or(room);
    let requests = settings.requests(&prompt, max_tokens, logprobs, form.as_ref())?;
    let events = model.submit(requests, places).await?;
    let answers = Answers::new(model, &[prompt], settings.n, events);
    let heads = [String::new()];
    let shape = Chat { logprobs: logprobs.is_some() };
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
                    "system" | "user" | "assistant" => &role,
                    _ => {
                        let message = format!(
                            "is {role:?}; there are: system, developer, user, assistant (tools are \
                             not supported)"
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
            // Some templates say who speaks.
            ("name", Value::String(text)) => {
                known.insert(name, text.into());
            }
            ("role" | "content" | "name", value) => {
                return Err(Problem::field(field(&name), format!("is {value}: give a string")));
            }
            _ => {
                let message = "is not supported here; there are: role, content, name";
                return Err(Problem::field(field(&name), message));
            }
        }
    }
    for name in ["role", "content"] {
        if !known.contains_key(name) {
            return Err(Problem::field(field(name), "is missing"));
        }
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
    crate::server::blocking(model, move |model| {
        let Some(template) = &model.template else {
            let message =
                format!("the model {:?} has no chat template: use /v1/completions", model.name());
            return Err(Problem::request(message));
        };
        let Conversation { messages, options } = conversation;
        let rendered = template.render(&messages, &options);
        let rendered = rendered.map_err(|e| Problem::field("messages", e.to_string()))?;
        let tokens = model.tokenizer.encode(&rendered, false);
        tokens.map_err(|error| Problem::field("messages", error.to_string()))
    })
    .await
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
}

impl Chat {
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

    fn piece(&mut self, index: usize, text: &str, tokens: &[TokenLikelihood]) -> Value {
        json!({
            "index": index, "delta": {"content": text}, "logprobs": self.logprobs(tokens),
            "finish_reason": null,
        })
    }

    fn end(&self, index: usize, reason: &str) -> Value {
        json!({"index": index, "delta": {}, "logprobs": null, "finish_reason": reason})
    }

    fn whole(&mut self, index: usize, text: &str, tokens: &[TokenLikelihood], why: &str) -> Value {
        json!({
            "index": index,
            "message": {"role": "assistant", "content": text, "refusal": null},
            "logprobs": self.logprobs(tokens),
            "finish_reason": why,
        })
    }
}
