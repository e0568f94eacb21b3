//! Answers, as one JSON object or piece by piece (server-sent events).

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use futures_util::stream;
use serde_json::Value;
use text::Reply;
use tokio::time::Instant;
use tracing::Span;
use xla_session::FinishReason;
use xla_session::batching::{Ended, Likelihood};
use xla_session::kernels::KV_BLOCK;

use crate::outcome::Outcome;
use crate::requests::{Event, Events};
use crate::server::blocking;
use crate::{Model, Problem, body, trace};

/// A stream says that it lives when nothing has come for so long, as while a long prompt runs.
const SILENCE: Duration = Duration::from_secs(15);

/// How the answers of an endpoint look. What a stream says is server-sent events, whole ones.
pub(crate) trait Shape: Send + 'static {
    /// How a stream begins.
    fn begin(&mut self, about: &About) -> Vec<String>;
    /// A piece of what answer `index` begins with, which whoever asks has already.
    fn resume(&mut self, index: usize, text: &str, tokens: &[Token]);
    /// A piece of answer `index`: often one event, and none where it shows nothing.
    fn piece(&mut self, about: &About, index: usize, text: &str, tokens: &[Token]) -> Vec<String>;
    /// The end of answer `index`.
    fn end(&mut self, about: &About, index: usize, why: &End) -> Vec<String>;
    /// The end of all of them.
    fn finish(&mut self, about: &About, usage: &Usage) -> Vec<String>;
    /// That there will be no more, and why.
    fn fail(&mut self, about: &About, problem: &Problem) -> Vec<String>;
    /// That there will be more.
    fn still_there(&mut self, about: &About) -> String;
    /// All answers at once.
    fn whole(&mut self, about: &About, answers: Vec<Answer>, usage: &Usage) -> Value;
}

/// What is the same in all pieces of what a request gets.
pub(crate) struct About {
    /// No other request has it.
    pub id: String,
    /// The name of the model.
    pub model: String,
    /// Seconds since 1970.
    pub created: u64,
    /// Answers that there will be.
    pub count: usize,
    /// Tokens of all prompts, with what the answers begin with.
    pub prompt_tokens: usize,
}

/// Why an answer has ended.
#[derive(Debug, Clone)]
pub(crate) struct End {
    pub reason: FinishReason,
    /// The stop string that did it.
    pub stop: Option<String>,
}

impl About {
    /// What is said of `count` answers of the model `name`, which take so many tokens of prompts.
    pub fn new(name: &str, count: usize, prompt_tokens: usize) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let (id, created) = (crate::server::unique_id(), now.as_secs());
        Self { id, model: name.to_owned(), created, count, prompt_tokens }
    }
}

impl End {
    /// Whether it has cut off a call that `reply` has told of, and that nobody is to make: by a stop string, or as the
    /// model did not go on.
    pub fn cuts_call(&self, reply: Option<&Reply>) -> bool {
        reply.is_some_and(|reply| match self.reason {
            _ if self.stop.is_some() => reply.is_in_call(),
            FinishReason::Eos => reply.lacks_end(),
            _ => false,
        })
    }
}

/// An answer that is whole.
pub(crate) struct Answer {
    pub text: String,
    /// Tokens of its prompt, where it is asked how likely they were.
    pub prompt: Arc<[Token]>,
    pub tokens: Vec<Token>,
    pub end: End,
}

impl Answer {
    /// Its text in the pieces that a stream would have, each with the token that made it certain.
    pub fn pieces(&self) -> impl Iterator<Item = (&str, &[Token])> {
        let mut rest = self.text.as_str();
        let tokens = self.tokens.iter().map(std::slice::from_ref).chain([&[][..]]);
        tokens.map(move |token| {
            let end = token.first().map_or(rest.len(), |it| it.shown);
            let piece;
            (piece, rest) = rest.split_at(end);
            (piece, token)
        })
    }
}

/// A token of an answer.
#[derive(Debug)]
pub(crate) struct Token {
    pub id: u32,
    /// Bytes of text that it made certain.
    pub shown: usize,
    /// Where it is asked for.
    pub likelihood: Option<TokenLikelihood>,
}

/// How likely a token was, with its text.
#[derive(Debug)]
pub(crate) struct TokenLikelihood {
    /// A special token's is what it is written as, which the text mostly has not.
    pub text: String,
    pub is_special: bool,
    /// Of the first token of a prompt nobody knows, nor of those that an answer goes on from.
    pub logprob: Option<f32>,
    pub top: Vec<(String, f32)>,
}

/// The answers to one request, while they come.
pub(crate) struct Answers {
    model: Arc<Model>,
    events: Events,
    choices: Vec<Choice>,
    prompts: Vec<Vec<u32>>,
    /// The tokens of each prompt, where it is asked how likely they were.
    prompt_tokens: Vec<Arc<[Token]>>,
    usage: Usage,
    about: About,
    /// Of the request.
    span: Span,
}

struct Choice {
    /// Tokens before the next one, as many as its text depends on.
    before: Vec<u32>,
    /// Which prompt it answers.
    prompt: usize,
    end: Option<End>,
}

/// What prompts and answers have taken.
#[derive(Default)]
pub(crate) struct Usage {
    /// Tokens of each prompt and how many of them were found, once it is known.
    prompts: Vec<Option<(usize, usize)>>,
    /// Tokens of all answers.
    pub tokens: usize,
    /// Until the first of them ran.
    pub waited: Option<Duration>,
    /// Until the first token of any.
    pub first_token: Option<Duration>,
}

impl Usage {
    fn ended(&mut self, prompt: usize, ended: &Ended) {
        let timings = ended.timings;
        // Of several answers to a prompt, the first to run found what others had left.
        let known = self.prompts[prompt].get_or_insert((timings.prompt_tokens, usize::MAX));
        known.1 = known.1.min(timings.cached_tokens);
        // As they are told of.
        self.tokens += timings.tokens + usize::from(ended.eos.is_some());
        self.waited = self.waited.into_iter().chain([timings.waited]).min();
        self.first_token = self.first_token.into_iter().chain(timings.first_token).min();
    }

    /// Tokens of all prompts.
    pub fn prompt_tokens(&self) -> usize {
        self.prompts.iter().flatten().map(|it| it.0).sum()
    }

    /// Those that need not run, as others had begun with them, in whole pages: to the token, whoever guesses a text of another
    /// would be told how far he is.
    pub fn cached_tokens(&self) -> usize {
        self.prompts.iter().flatten().map(|it| it.1 / KV_BLOCK * KV_BLOCK).sum()
    }
}

impl Answers {
    /// `n` answers to each of `prompts` (with what the answers begin with), of which `events` tells.
    pub fn new(model: Arc<Model>, prompts: Vec<Vec<u32>>, n: usize, events: Events) -> Self {
        let choice = |at: usize| {
            let (prompt, before) = (at / n, prompts[at / n].clone());
            Choice { before, prompt, end: None }
        };
        let tokens = prompts.iter().map(Vec::len).sum();
        let about = About::new(model.name(), prompts.len() * n, tokens);
        Self {
            model,
            events,
            choices: (0..about.count).map(choice).collect(),
            usage: Usage { prompts: vec![None; prompts.len()], ..Usage::default() },
            prompt_tokens: prompts.iter().map(|_| Arc::default()).collect(),
            prompts,
            about,
            span: Span::current(),
        }
    }

    /// Tokens of all prompts, with what the answers begin with.
    pub fn prompt_tokens(&self) -> usize {
        self.about.prompt_tokens
    }

    /// All of it, when all of it is there.
    ///
    /// # Errors
    ///
    /// An answer has failed.
    pub async fn whole(mut self, mut shape: impl Shape) -> Result<Response, Problem> {
        let mut texts = vec![String::new(); self.about.count];
        let mut tokens: Vec<Vec<_>> = self.choices.iter().map(|_| Vec::new()).collect();
        while !self.is_whole() {
            match self.next().await? {
                (index, Next::Begun(pieces)) => {
                    for (text, token) in &pieces {
                        shape.resume(index, text, std::slice::from_ref(token));
                    }
                }
                (index, Next::Piece(text, token)) => {
                    texts[index] += &text;
                    tokens[index].extend(token);
                }
            }
        }
        let Self { model, choices, prompt_tokens, about, usage, .. } = self;
        // Beside the thread that serves: prompts and answers may be long.
        let write = move |_: &Model| {
            let answers = texts.into_iter().zip(tokens).zip(choices);
            let answers = answers.filter_map(|((text, tokens), Choice { prompt, end, .. })| {
                Some(Answer { text, prompt: prompt_tokens[prompt].clone(), tokens, end: end? })
            });
            let answer = shape.whole(&about, answers.collect(), &usage);
            Ok(body::json(StatusCode::OK, &answer))
        };
        blocking(&model, write).await
    }

    /// Piece by piece.
    pub fn streamed(self, mut shape: impl Shape) -> Response {
        let lines = VecDeque::from(shape.begin(&self.about));
        let outcome = Outcome::default();
        let stream = Stream { answers: self, shape, done: false, outcome: outcome.clone() };
        let pieces = stream::unfold((stream, lines), |(mut stream, mut lines)| async move {
            if lines.is_empty() && !stream.done {
                stream.next(&mut lines).await;
            }
            // What is there already goes out together.
            let text: String = lines.drain(..).collect();
            (!text.is_empty()).then_some((Ok::<_, Infallible>(text), (stream, lines)))
        });
        events(Body::from_stream(pieces), outcome)
    }

    fn is_whole(&self) -> bool {
        self.choices.iter().all(|choice| choice.end.is_some())
    }

    /// What comes next, and of which choice.
    async fn next(&mut self) -> Result<(usize, Next), Problem> {
        let event = self.events.next().await;
        let (index, event) =
            event.ok_or_else(|| Problem::internal("the model has stopped in an answer"))?;
        let choice = &mut self.choices[index];
        let mut token = |id: u32, text: &str, likelihood: Option<Likelihood>| {
            let likelihood = likelihood
                .map(|it| TokenLikelihood::new(&self.model, &choice.before, id, &it))
                .transpose()?;
            let kept = choice.before.len().saturating_sub(8);
            choice.before.drain(..kept);
            choice.before.push(id);
            Ok::<_, Problem>(Token { id, shown: text.len(), likelihood })
        };
        let next = match event {
            Event::Begun { tokens, likely } => {
                let first = choice.before.len().saturating_sub(tokens.len());
                let pieces = tokens.into_iter().enumerate().map(|(at, (id, text))| {
                    let before = &choice.before[..first + at];
                    let written = || TokenLikelihood::unknown(&self.model, before, id);
                    let likelihood = likely.then(written).transpose()?;
                    let token = Token { id, shown: text.len(), likelihood };
                    Ok::<_, Problem>((text, token))
                });
                Next::Begun(pieces.collect::<Result<_, _>>()?)
            }
            Event::Token { id, text, likelihood } => {
                let token = token(id, &text, likelihood)?;
                Next::Piece(text, Some(token))
            }
            Event::Ended { text, ended, stop } => {
                let eos = ended.eos.clone().map(|eos| token(eos.id, &text, eos.likelihood));
                let eos = eos.transpose()?;
                choice.end = Some(End { reason: ended.reason, stop });
                self.usage.ended(choice.prompt, &ended);
                if let Some(likelihoods) = ended.prompt {
                    // Beside the thread that serves: every candidate of every token is decoded. No stream asks for
                    // it, which would lose the end if it stopped waiting here.
                    let prompt = self.prompts[choice.prompt].clone();
                    let read = move |model: &Model| prompt_tokens(model, &prompt, &likelihoods);
                    self.prompt_tokens[choice.prompt] = blocking(&self.model, read).await?.into();
                }
                if self.is_whole() {
                    trace::answered(&self.span, &self.usage);
                }
                Next::Piece(text, eos)
            }
            Event::Failed(problem) => return Err(problem),
        };
        Ok((index, next))
    }
}

/// A response of events, which comes to `outcome`.
fn events(body: Body, outcome: Outcome) -> Response {
    let mut response = body::with_type(StatusCode::OK, "text/event-stream", body);
    response.extensions_mut().insert(outcome);
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // nginx would keep the pieces until there are some kilobytes.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

/// A stream that begins and fails at once, for clients that read why nowhere else.
pub(crate) fn failed(mut shape: impl Shape, about: &About, problem: &Problem) -> Response {
    let outcome = Outcome::default();
    outcome.set(problem.status());
    let lines = [shape.begin(about), shape.fail(about, problem)].concat();
    events(Body::from(lines.concat()), outcome)
}

/// What comes of a choice.
enum Next {
    /// What it begins with, token by token.
    Begun(Vec<(String, Token)>),
    /// The text that is certain now, and the token that made it so.
    Piece(String, Option<Token>),
}

struct Stream<S> {
    answers: Answers,
    shape: S,
    done: bool,
    outcome: Outcome,
}

impl<S: Shape> Stream<S> {
    /// Adds what comes next to `lines`, at least one.
    async fn next(&mut self, lines: &mut VecDeque<String>) {
        // Also while there are tokens that show nothing.
        let silent = Instant::now() + SILENCE;
        while lines.is_empty() {
            let next = tokio::time::timeout_at(silent, self.answers.next()).await;
            let Self { answers, shape, done, outcome } = self;
            let about = &answers.about;
            match next {
                Err(_) => lines.push_back(shape.still_there(about)),
                Ok(Ok((index, Next::Begun(pieces)))) => {
                    for (text, token) in &pieces {
                        shape.resume(index, text, std::slice::from_ref(token));
                    }
                }
                Ok(Ok((index, Next::Piece(text, token)))) => {
                    if !text.is_empty() || token.is_some() {
                        lines.extend(shape.piece(about, index, &text, token.as_slice()));
                    }
                    if let Some(end) = &answers.choices[index].end {
                        lines.extend(shape.end(about, index, end));
                    }
                    if answers.is_whole() {
                        lines.extend(shape.finish(about, &answers.usage));
                        outcome.set(StatusCode::OK);
                        *done = true;
                    }
                }
                Ok(Err(problem)) => {
                    if problem.is_internal() {
                        tracing::error!("{}", problem.json());
                    }
                    trace::failed(&answers.span, problem.status());
                    outcome.set(problem.status());
                    lines.extend(shape.fail(about, &problem));
                    *done = true;
                }
            }
        }
    }
}

/// The tokens of `prompt`, of which those behind the first have `likelihoods`.
fn prompt_tokens(
    model: &Model,
    prompt: &[u32],
    likelihoods: &[Likelihood],
) -> Result<Vec<Token>, Problem> {
    let likelihood = Some(TokenLikelihood::unknown(model, &[], prompt[0])?);
    let first = Token { id: prompt[0], shown: 0, likelihood };
    let rest = likelihoods.iter().enumerate().map(|(at, it)| {
        let (before, id) = (&prompt[..=at], prompt[at + 1]);
        let likelihood = Some(TokenLikelihood::new(model, before, id, it)?);
        Ok(Token { id, shown: 0, likelihood })
    });
    std::iter::once(Ok(first)).chain(rest).collect()
}

/// The text of the token `id` behind those `before` it, and whether it is a special one, which is written out.
fn text_of(model: &Model, before: &[u32], id: u32) -> Result<(String, bool), Problem> {
    if let Some(text) = model.llm.tokenizer().special_text(id) {
        return Ok((text, true));
    }
    let text = || {
        let mut detokenizer = model.llm.tokenizer().detokenizer(before);
        // One may end a character and begin the next.
        Ok(detokenizer.push(id)? + &detokenizer.finish()?)
    };
    let text = text().map_err(|error: text::Error| Problem::internal(error.to_string()))?;
    Ok((text, false))
}

impl TokenLikelihood {
    /// Nobody knows how likely it was.
    fn unknown(model: &Model, before: &[u32], id: u32) -> Result<Self, Problem> {
        let (text, is_special) = text_of(model, before, id)?;
        Ok(Self { text, is_special, logprob: None, top: Vec::new() })
    }

    fn new(
        model: &Model,
        before: &[u32],
        id: u32,
        likelihood: &Likelihood,
    ) -> Result<Self, Problem> {
        let (text, is_special) = text_of(model, before, id)?;
        let text_of = |id| text_of(model, before, id).map(|it| it.0);
        let top = likelihood.top.iter().map(|&(id, logprob)| Ok((text_of(id)?, logprob)));
        Ok(Self {
            text,
            is_special,
            logprob: Some(likelihood.logprob),
            top: top.collect::<Result<_, _>>()?,
        })
    }
}
