//! Answers, as one JSON object or piece by piece (server-sent events).

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use futures_util::stream;
use serde_json::{Value, json};
use tokio::sync::mpsc::UnboundedReceiver;
use xla_session::FinishReason;
use xla_session::batching::{Ended, Likelihood};

use crate::worker::Event;
use crate::{Model, Problem, body};

/// A stream says that it lives when nothing has come for so long, as while a long prompt runs.
const SILENCE: Duration = Duration::from_secs(15);

/// How the answers of an endpoint look.
pub(crate) trait Shape: Send + 'static {
    /// What a whole answer is called.
    const WHOLE: &'static str;
    /// What a piece is called.
    const PIECE: &'static str;
    /// What ids begin with.
    const ID: &'static str;

    /// The choice with which a stream begins; `None` where it begins with its text.
    fn begin(&self, index: usize) -> Option<Value>;
    /// The choices of a piece of a stream: often one, and none where it shows nothing.
    fn piece(&mut self, index: usize, text: &str, tokens: &[TokenLikelihood]) -> Vec<Value>;
    /// The choices that end a stream.
    fn end(&mut self, index: usize, reason: &str) -> Vec<Value>;
    /// The choice of a whole answer.
    fn whole(&mut self, index: usize, text: &str, tokens: &[TokenLikelihood], why: &str) -> Value;
}

/// A token of an answer and how likely it was, with its text.
#[derive(Debug)]
pub(crate) struct TokenLikelihood {
    pub text: String,
    pub logprob: f32,
    pub top: Vec<(String, f32)>,
}

/// The answers to one request, while they come.
pub(crate) struct Answers {
    model: Arc<Model>,
    events: UnboundedReceiver<(usize, Event)>,
    choices: Vec<Choice>,
    usage: Usage,
    id: String,
    created: u64,
}

struct Choice {
    /// Tokens before the next one, as many as its text depends on.
    before: Vec<u32>,
    /// Which prompt it answers.
    prompt: usize,
    reason: Option<&'static str>,
}

#[derive(Default)]
struct Usage {
    /// Of each prompt, once it is known.
    prompts: Vec<Option<(usize, usize)>>,
    tokens: usize,
}

impl Usage {
    fn ended(&mut self, prompt: usize, ended: &Ended) {
        let timings = ended.timings;
        // Of several answers to a prompt, the first to run found what others had left.
        let known = self.prompts[prompt].get_or_insert((timings.prompt_tokens, usize::MAX));
        known.1 = known.1.min(timings.cached_tokens);
        self.tokens += timings.tokens;
    }

    fn json(&self) -> Value {
        let prompt: usize = self.prompts.iter().flatten().map(|it| it.0).sum();
        let cached: usize = self.prompts.iter().flatten().map(|it| it.1).sum();
        json!({
            "prompt_tokens": prompt, "completion_tokens": self.tokens,
            "total_tokens": prompt + self.tokens,
            "prompt_tokens_details": {"cached_tokens": cached},
        })
    }
}

impl Answers {
    /// `n` answers to each of `prompts`, of which `events` tells.
    pub fn new(
        model: Arc<Model>,
        prompts: &[Vec<u32>],
        n: usize,
        events: UnboundedReceiver<(usize, Event)>,
    ) -> Self {
        let choice =
            |at: usize| Choice { before: prompts[at / n].clone(), prompt: at / n, reason: None };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self {
            model,
            events,
            choices: (0..prompts.len() * n).map(choice).collect(),
            usage: Usage { prompts: vec![None; prompts.len()], tokens: 0 },
            id: crate::server::unique_id(),
            created: now.as_secs(),
        }
    }

    /// All of it, when all of it is there; each text follows the `heads` of its prompt.
    ///
    /// # Errors
    ///
    /// An answer has failed.
    pub async fn whole<S: Shape>(
        mut self,
        mut shape: S,
        heads: &[String],
    ) -> Result<Response, Problem> {
        let mut texts: Vec<_> = self.choices.iter().map(|it| heads[it.prompt].clone()).collect();
        let mut tokens: Vec<Vec<_>> = self.choices.iter().map(|_| Vec::new()).collect();
        while !self.is_whole() {
            let (index, text, likelihood) = self.next().await?;
            texts[index] += &text;
            tokens[index].extend(likelihood);
        }
        let choices = self.choices.iter().enumerate().map(|(index, choice)| {
            let reason = choice.reason.unwrap_or_default();
            shape.whole(index, &texts[index], &tokens[index], reason)
        });
        let choices: Vec<_> = choices.collect();
        let mut answer = self.envelope::<S>(S::WHOLE, choices);
        answer["usage"] = self.usage.json();
        Ok(body::json(StatusCode::OK, &answer))
    }

    /// Piece by piece.
    pub fn streamed<S: Shape>(self, shape: S, heads: &[String], include_usage: bool) -> Response {
        let mut lines = VecDeque::new();
        let mut stream = Stream { answers: self, shape, include_usage, done: false };
        for index in 0..stream.answers.choices.len() {
            if let Some(choice) = stream.shape.begin(index) {
                lines.push_back(stream.line(choice));
            }
            let head = &heads[stream.answers.choices[index].prompt];
            if !head.is_empty() {
                let choices = stream.shape.piece(index, head, &[]);
                lines.extend(choices.into_iter().map(|choice| stream.line(choice)));
            }
        }
        let pieces = stream::unfold((stream, lines), |(mut stream, mut lines)| async move {
            if lines.is_empty() && !stream.done {
                stream.next(&mut lines).await;
            }
            // What is there already goes out together.
            let text: String = lines.drain(..).collect();
            (!text.is_empty()).then_some((Ok::<_, Infallible>(text), (stream, lines)))
        });
        let body = Body::from_stream(pieces);
        let mut response = body::with_type(StatusCode::OK, "text/event-stream", body);
        let headers = response.headers_mut();
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        // nginx would keep the pieces until there are some kilobytes.
        headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
        response
    }

    fn is_whole(&self) -> bool {
        self.choices.iter().all(|choice| choice.reason.is_some())
    }

    fn envelope<S: Shape>(&self, object: &str, choices: Vec<Value>) -> Value {
        let (id, model) = (format!("{}-{}", S::ID, self.id), self.model.name());
        let created = self.created;
        json!({"id": id, "object": object, "created": created, "model": model, "choices": choices})
    }

    /// What comes next: of which choice, the text that is certain, and its token.
    async fn next(&mut self) -> Result<(usize, String, Option<TokenLikelihood>), Problem> {
        let event = self.events.recv().await;
        let (index, event) =
            event.ok_or_else(|| Problem::internal("the model has stopped in an answer"))?;
        let choice = &mut self.choices[index];
        match event {
            Event::Token { id, text, likelihood } => {
                let likelihood = likelihood
                    .map(|it| TokenLikelihood::new(&self.model, &choice.before, id, &it))
                    .transpose()?;
                let kept = choice.before.len().saturating_sub(8);
                choice.before.drain(..kept);
                choice.before.push(id);
                Ok((index, text, likelihood))
            }
            Event::Ended { text, ended } => {
                choice.reason = Some(match ended.reason {
                    FinishReason::Eos | FinishReason::Stop => "stop",
                    FinishReason::Length | FinishReason::Context => "length",
                });
                self.usage.ended(choice.prompt, &ended);
                Ok((index, text, None))
            }
            Event::Failed(problem) => Err(problem),
        }
    }
}

struct Stream<S> {
    answers: Answers,
    shape: S,
    include_usage: bool,
    done: bool,
}

impl<S: Shape> Stream<S> {
    fn line(&self, choice: Value) -> String {
        let mut piece = self.answers.envelope::<S>(S::PIECE, vec![choice]);
        if self.include_usage {
            piece["usage"] = Value::Null;
        }
        line(&piece)
    }

    /// Adds what comes next to `lines`, at least one.
    async fn next(&mut self, lines: &mut VecDeque<String>) {
        while lines.is_empty() {
            let next = tokio::time::timeout(SILENCE, self.answers.next()).await;
            match next {
                Err(_) => lines.push_back(": still there\n\n".into()),
                Ok(Ok((index, text, token))) => {
                    if !text.is_empty() || token.is_some() {
                        let choices = self.shape.piece(index, &text, token.as_slice());
                        lines.extend(choices.into_iter().map(|choice| self.line(choice)));
                    }
                    if let Some(reason) = self.answers.choices[index].reason {
                        let choices = self.shape.end(index, reason);
                        lines.extend(choices.into_iter().map(|choice| self.line(choice)));
                    }
                    if self.answers.is_whole() {
                        if self.include_usage {
                            let mut piece = self.answers.envelope::<S>(S::PIECE, Vec::new());
                            piece["usage"] = self.answers.usage.json();
                            lines.push_back(line(&piece));
                        }
                        self.finish(lines);
                    }
                }
                Ok(Err(problem)) => {
                    if problem.is_internal() {
                        tracing::error!("{}", problem.json());
                    }
                    lines.push_back(line(&problem.json()));
                    self.finish(lines);
                }
            }
        }
    }

    fn finish(&mut self, lines: &mut VecDeque<String>) {
        lines.push_back("data: [DONE]\n\n".into());
        self.done = true;
    }
}

fn line(value: &Value) -> String {
    format!("data: {value}\n\n")
}

impl TokenLikelihood {
    fn new(
        model: &Model,
        before: &[u32],
        id: u32,
        likelihood: &Likelihood,
    ) -> Result<Self, Problem> {
        let text = |id: u32| {
            let mut detokenizer = model.tokenizer.detokenizer(before);
            let text = detokenizer.push(id)?;
            if text.is_empty() { detokenizer.finish() } else { Ok(text) }
        };
        let text = |id| text(id).map_err(|e: text::Error| Problem::internal(e.to_string()));
        let top = likelihood.top.iter().map(|&(id, logprob)| Ok((text(id)?, logprob)));
        Ok(Self {
            text: text(id)?,
            logprob: likelihood.logprob,
            top: top.collect::<Result<_, _>>()?,
        })
    }
}
