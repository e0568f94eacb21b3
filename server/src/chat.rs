//! `POST /v1/chat/completions`

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use serde_json::{Value, json};
use text::{AnswerStyle, Part, Reply};

use crate::answer::{Answer, End, Token};
use crate::conversation::{Asked, Conversation};
use crate::fields::Fields;
use crate::openai::{Choices, OpenAi, reason};
use crate::sampling::Settings;
use crate::server::Shared;
use crate::tools::call_id;
use crate::{Problem, tools};

/// Most alternatives that may be asked for at each token.
pub(crate) const MOST_LOGPROBS: usize = 20;

pub(crate) async fn answer(
    State(shared): State<Arc<Shared>>,
    request: Request,
) -> Result<Response, Problem> {
    let mut fields = shared.fields(request).await?;
    let model = shared.model(&mut fields)?;
    let conversation = Conversation::take(&mut fields)?;
    let mut settings = Settings::take(&mut fields, &model)?;
    let token_ids = settings.resume(&mut fields, &model)?;
    let tools = tools::take(&mut fields)?;
    let max_tokens = max_tokens(&mut fields)?;
    let logprobs = logprobs(&mut fields)?;
    fields.only("modalities", &json!(["text"]));
    fields.finish()?;

    let (n, stream, usage) = (settings.n, settings.stream, settings.usage);
    let asked = Asked { conversation, settings, tools, max_tokens, logprobs };
    let (answers, prompt) = asked.submit(&shared, model).await?;
    let choices = Chat {
        logprobs: logprobs.is_some(),
        choices: (0..n)
            .map(|_| Choice {
                reply: Some(prompt.reply().joined()),
                calls: 0,
                cut: false,
                thoughts: 0,
            })
            .collect(),
        style: prompt.style(),
    };
    let counts = vec![[answers.prompt_tokens(), 0]; n];
    let shape = OpenAi { choices, heads: Vec::new(), token_ids, usage, counts };
    if stream { Ok(answers.streamed(shape)) } else { answers.whole(shape).await }
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
    style: Option<AnswerStyle>,
}

/// An answer so far.
struct Choice {
    /// What tells its parts apart; `None` behind its end.
    reply: Option<Reply>,
    calls: usize,
    /// Whether the last of them is none that could be made.
    cut: bool,
    /// Tokens of thoughts.
    thoughts: usize,
}

impl Choice {
    fn push(&mut self, text: &str, tokens: &[Token]) -> Vec<Part> {
        let Some(reply) = &mut self.reply else { return Vec::new() };
        let parts = reply.push(text);
        self.thoughts += if reply.is_thinking() { tokens.len() } else { 0 };
        parts
    }

    fn finish(&mut self, end: &End) -> Vec<Part> {
        self.cut = end.cuts_call(self.reply.as_ref());
        self.reply.take().map(Reply::finish).unwrap_or_default()
    }

    /// Why it has ended.
    fn reason(&self, end: &End) -> &'static str {
        match reason(end) {
            "stop" if self.calls > 0 && !self.cut => "tool_calls",
            other => other,
        }
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

    fn logprobs(&self, tokens: &[Token]) -> Value {
        if !self.logprobs {
            return Value::Null;
        }
        let one = |text: &str, logprob: Option<f32>| {
            // A token that is a part of a character is no text, and what its bytes are is lost.
            let bytes = (!text.contains('\u{fffd}')).then_some(text.as_bytes());
            json!({"token": text, "logprob": logprob, "bytes": bytes})
        };
        let tokens = tokens.iter().filter_map(|token| token.likelihood.as_ref());
        let tokens = tokens.map(|token| {
            let mut value = one(&token.text, token.logprob);
            let top = token.top.iter().map(|(text, logprob)| one(text, Some(*logprob)));
            value["top_logprobs"] = top.collect();
            value
        });
        json!({"content": tokens.collect::<Vec<_>>(), "refusal": null})
    }
}

impl Choices for Chat {
    const WHOLE: &'static str = "chat.completion";
    const PIECE: &'static str = "chat.completion.chunk";
    const ID: &'static str = "chatcmpl";

    fn begin(&self, index: usize) -> Option<Value> {
        let delta = json!({"role": "assistant", "content": ""});
        Some(json!({"index": index, "delta": delta, "logprobs": null, "finish_reason": null}))
    }

    fn resume(&mut self, index: usize, text: &str, tokens: &[Token]) {
        let parts = self.choices[index].push(text, tokens);
        // Its calls have been counted.
        drop(self.deltas(index, parts));
    }

    fn piece(&mut self, index: usize, text: &str, tokens: &[Token]) -> Vec<Value> {
        let parts = self.choices[index].push(text, tokens);
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

    fn nothing(&self, index: usize) -> Value {
        json!({"index": index, "delta": {}, "logprobs": null, "finish_reason": null})
    }

    fn end(&mut self, index: usize, end: &End) -> Vec<Value> {
        let parts = self.choices[index].finish(end);
        let piece = |delta| json!({"index": index, "delta": delta, "logprobs": null, "finish_reason": null});
        let mut pieces: Vec<_> = self.deltas(index, parts).into_iter().map(piece).collect();
        let reason = self.choices[index].reason(end);
        let end = json!({"index": index, "delta": {}, "logprobs": null, "finish_reason": reason});
        pieces.push(end);
        pieces
    }

    fn thoughts(&self) -> Option<usize> {
        Some(self.choices.iter().map(|it| it.thoughts).sum())
    }

    fn whole(&mut self, index: usize, answer: &Answer) -> Value {
        let choice = &mut self.choices[index];
        let mut parts = Vec::new();
        for (text, token) in answer.pieces() {
            parts.extend(choice.push(text, token));
        }
        parts.extend(choice.finish(&answer.end));
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
        if choice.cut {
            calls.pop();
        }
        choice.calls = calls.len();
        let why = choice.reason(&answer.end);
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
            "logprobs": self.logprobs(&answer.tokens),
            "finish_reason": why,
        })
    }
}
