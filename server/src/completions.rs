//! `POST /v1/completions`

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Instant;

use axum::extract::{Request, State};
use axum::response::Response;
use iree_llm::Vectors;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use text::Place;

use crate::answer::{Answer, Answers, End, Token};
use crate::chat::MOST_LOGPROBS;
use crate::fields::Fields;
use crate::openai::{Choices, OpenAi, reason};
use crate::sampling::Settings;
use crate::server::{Shared, blocking};
use crate::{Model, Problem, trace};

/// Tokens of an answer where the request does not say, as OpenAI has it.
const MAX_TOKENS: usize = 16;

/// Most prompts of a request, as OpenAI has it.
const MOST_PROMPTS: usize = 2048;

/// Texts, or their tokens, and the field that holds them.
pub(crate) struct Prompts {
    field: &'static str,
    given: Given,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Given {
    Text(String),
    Texts(Vec<String>),
    Tokens(Vec<u32>),
    ManyTokens(Vec<Vec<u32>>),
}

/// Prompts, what stands before their answers, and what ends these.
type Around = (Vec<Vec<u32>>, Vec<String>, Vec<u32>);

pub(crate) async fn answer(
    State(shared): State<Arc<Shared>>,
    request: Request,
) -> Result<Response, Problem> {
    let mut fields = shared.fields(request).await?;
    let model = shared.model(&mut fields)?;
    let prompts = Prompts::take(&mut fields, "prompt")?;
    // Some clients always say that there is none.
    let suffix = fields.take::<String>("suffix")?.filter(|it| !it.is_empty());
    let mut settings = Settings::take(&mut fields, &model)?;
    let token_ids = settings.resume(&mut fields, &model)?;
    let max_tokens = fields.take::<usize>("max_tokens")?.unwrap_or(MAX_TOKENS);
    let echo = fields.take::<bool>("echo")?.unwrap_or(false);
    let logprobs = fields.take::<usize>("logprobs")?;
    if logprobs.is_some_and(|top| top > MOST_LOGPROBS) {
        return Err(Problem::field("logprobs", format!("must be at most {MOST_LOGPROBS}")));
    }
    if echo && logprobs.is_some() && settings.stream {
        let message = "with `logprobs` is not supported in streams: ask for the whole answer";
        return Err(Problem::field("echo", message).with_code("unsupported_parameter"));
    }
    fields.only("best_of", &json!(1));
    fields.finish()?;
    if !settings.answer.is_empty() && (prompts.count() > 1 || echo) {
        let message = "is of one answer, and of one prompt, which is not repeated";
        return Err(Problem::field("answer_token_ids", message));
    }
    if suffix.is_some() && echo {
        let message = "is not supported with `suffix`: what is filled in comes alone";
        return Err(Problem::field("echo", message).with_code("unsupported_parameter"));
    }

    trace::works("text_completion", model.name());
    shared.check_open()?;
    let (places, arrived) = (model.places(prompts.count() * settings.n)?, Instant::now());
    let tokens = move |model: &Model| match suffix {
        Some(suffix) => prompts.around(model, &suffix),
        None => {
            prompts.tokens(model, echo, None).map(|(prompts, heads)| (prompts, heads, Vec::new()))
        }
    };
    let (mut prompts, heads, ends) = blocking(&model, tokens).await?;
    settings.end_with(&ends);
    let (settings, form) = settings.with_form(&model, None, None).await?;
    let mut requests = Vec::new();
    for prompt in &prompts {
        let max_tokens = max_tokens.min(model.room(prompt)?);
        requests.extend(settings.requests(prompt, max_tokens, logprobs, form.as_ref())?);
    }
    // All answers to a prompt have it in common.
    for asked in requests.iter_mut().step_by(settings.n) {
        asked.request.prompt_likelihood = logprobs.filter(|_| echo);
    }
    let events = model.submit(requests, places, arrived).await?;
    prompts[0].extend(&settings.answer);
    let count = prompts.len() * settings.n;
    let choices = Completion { logprobs, written: vec![0; count] };
    let counts = prompts.iter().flat_map(|it| std::iter::repeat_n([it.len(), 0], settings.n));
    let counts = counts.collect();
    let answers = Answers::new(model, prompts, settings.n, events);
    let heads = heads.into_iter().flat_map(|head| std::iter::repeat_n(head, settings.n)).collect();
    let shape = OpenAi { choices, heads, token_ids, usage: settings.usage, counts };
    if settings.stream { Ok(answers.streamed(shape)) } else { answers.whole(shape).await }
}

impl Prompts {
    /// What the field `name` holds.
    ///
    /// # Errors
    ///
    /// It is absent, of another type, or holds too many, or none.
    pub fn take(fields: &mut Fields, name: &'static str) -> Result<Self, Problem> {
        let given = fields.take::<Value>(name)?;
        let given = given.ok_or_else(|| Problem::field(name, "is missing"))?;
        let given = serde_json::from_value(given).map_err(|_| {
            let message =
                "must be a string, a list of strings, a list of token ids, or a list of those";
            Problem::field(name, message)
        })?;
        let prompts = Self { field: name, given };
        let count = prompts.count();
        if !(1..=MOST_PROMPTS).contains(&count) {
            let message = format!("holds {count} prompts: give 1 to {MOST_PROMPTS}");
            return Err(Problem::field(name, message));
        }
        Ok(prompts)
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        match &self.given {
            Given::Texts(texts) => texts.len(),
            Given::ManyTokens(many) => many.len(),
            Given::Text(_) | Given::Tokens(_) => 1,
        }
    }

    /// Whether one of them is a text of nothing.
    pub fn has_empty_text(&self) -> bool {
        match &self.given {
            Given::Text(text) => text.is_empty(),
            Given::Texts(texts) => texts.iter().any(String::is_empty),
            Given::Tokens(_) | Given::ManyTokens(_) => false,
        }
    }

    /// The tokens of each, and what stands before its answers; as vectors of texts are made of them, what is beyond so many
    /// left out, if that is what they are for.
    ///
    /// # Errors
    ///
    /// One without tokens, as an empty text is where the tokenizer puts none in front, or a token out of range.
    pub fn tokens(
        self,
        model: &Model,
        echo: bool,
        vectors: Option<(&Vectors, Option<usize>)>,
    ) -> Result<(Vec<Vec<u32>>, Vec<String>), Problem> {
        let Self { field, given } = self;
        let failed = |error: text::Error| Problem::field(field, error.to_string());
        let tokenizer = model.llm.tokenizer();
        let most = vectors.and_then(|(_, most)| most);
        let encode = |text: &String| {
            let text = match vectors {
                None => Cow::Borrowed(text),
                Some((vectors, _)) => Cow::Owned(vectors.text(text)),
            };
            let tokens = match most {
                None => tokenizer.encode(&text, true),
                Some(most) => tokenizer.encode_within(&text, most),
            };
            match tokens.map_err(failed)? {
                tokens if tokens.is_empty() => {
                    Err(Problem::field(field, "is empty: give at least one character"))
                }
                tokens => Ok(tokens),
            }
        };
        let head = |text: String| if echo { text } else { String::new() };
        let of_texts = |texts: Vec<String>| {
            let tokens = texts.iter().map(encode).collect::<Result<Vec<_>, _>>()?;
            Ok((tokens, texts.into_iter().map(head).collect()))
        };
        let of_tokens = |mut many: Vec<Vec<u32>>| {
            if let Some(most) = most {
                many.iter_mut().for_each(|tokens| tokens.truncate(most));
            }
            let head = |tokens: &Vec<u32>| {
                check(model, field, tokens)?;
                if tokens.is_empty() {
                    return Err(Problem::field(
                        field,
                        "has an empty list: give at least one token",
                    ));
                }
                let text = echo.then(|| model.llm.tokenizer().decode(tokens).map_err(failed));
                text.transpose().map(Option::unwrap_or_default)
            };
            let heads = many.iter().map(head).collect::<Result<_, _>>()?;
            Ok((many, heads))
        };
        match given {
            Given::Text(text) => of_texts(vec![text]),
            Given::Texts(texts) => of_texts(texts),
            Given::Tokens(tokens) => of_tokens(vec![tokens]),
            Given::ManyTokens(many) => of_tokens(many),
        }
    }

    /// The tokens of prompts for what stands between each text and `suffix`, nothing before their answers, and what
    /// ends these.
    fn around(self, model: &Model, suffix: &str) -> Result<Around, Problem> {
        let refused =
            |message: String| Problem::field("suffix", message).with_code("unsupported_parameter");
        let infill = model.llm.infill().map_err(|why| refused(why.to_string()))?;
        let texts = match self.given {
            Given::Text(text) => vec![text],
            Given::Texts(texts) => texts,
            Given::Tokens(_) | Given::ManyTokens(_) => {
                return Err(refused(
                    "goes with texts: token ids may have the model's marks".into(),
                ));
            }
        };
        let prompt = |prefix: &String| {
            let place = Place { prefix, suffix, ..Place::default() };
            let tokens = infill.tokens(&place, usize::MAX, 0);
            let tokens = tokens.map_err(|error| Problem::field(self.field, error.to_string()))?.0;
            // Before there are many.
            model.room(&tokens)?;
            Ok(tokens)
        };
        let prompts = texts.iter().map(prompt).collect::<Result<Vec<_>, Problem>>()?;
        let heads = vec![String::new(); prompts.len()];
        Ok((prompts, heads, infill.ends().to_vec()))
    }
}

/// Whether the model knows all of `tokens`, which the field `field` holds.
pub(crate) fn check(model: &Model, field: &str, tokens: &[u32]) -> Result<(), Problem> {
    match tokens.iter().find(|&&id| id as usize >= model.llm.config().vocab_size) {
        Some(&token) => {
            let vocab_size = model.llm.config().vocab_size;
            let error = xla_session::Error::TokenOutOfRange { token, vocab_size };
            Err(Problem::field(field, error.to_string()))
        }
        None => Ok(()),
    }
}

struct Completion {
    logprobs: Option<usize>,
    /// Characters of the tokens of each choice so far.
    written: Vec<usize>,
}

impl Completion {
    /// What is said of `tokens`; `text` is the whole text, where there is one that may have special tokens in it.
    fn logprobs<'a>(
        &mut self,
        index: usize,
        text: &str,
        tokens: impl Iterator<Item = &'a Token>,
    ) -> Value {
        let Some(most) = self.logprobs else { return Value::Null };
        let mut offsets = Vec::new();
        let mut tops = Vec::new();
        let tokens: Vec<_> = tokens.filter_map(|it| it.likelihood.as_ref()).collect();
        let mut behind = text.chars();
        for token in &tokens {
            offsets.push(self.written[index]);
            if !token.is_special || behind.as_str().starts_with(&token.text) {
                // A character in several tokens comes with the last of them.
                let count =
                    token.text.trim_end_matches(char::REPLACEMENT_CHARACTER).chars().count();
                self.written[index] += count;
                behind.by_ref().take(count).for_each(drop);
            }
            let mut top: Map<_, _> =
                token.top.iter().map(|(text, logprob)| (text.clone(), json!(logprob))).collect();
            // As OpenAI has it: the token itself is there too, but where there is none before that it could follow.
            tops.push(token.logprob.map(|logprob| {
                top.entry(token.text.clone()).or_insert_with(|| json!(logprob));
                top
            }));
        }
        json!({
            "tokens": tokens.iter().map(|it| &it.text).collect::<Vec<_>>(),
            "token_logprobs": tokens.iter().map(|it| it.logprob).collect::<Vec<_>>(),
            "top_logprobs": (most > 0).then_some(tops),
            "text_offset": offsets,
        })
    }
}

impl Choices for Completion {
    const WHOLE: &'static str = "text_completion";
    const PIECE: &'static str = "text_completion";
    const ID: &'static str = "cmpl";

    fn begin(&self, _: usize) -> Option<Value> {
        None
    }

    fn resume(&mut self, index: usize, _: &str, tokens: &[Token]) {
        // Offsets go on behind them.
        self.logprobs(index, "", tokens.iter());
    }

    fn piece(&mut self, index: usize, text: &str, tokens: &[Token]) -> Vec<Value> {
        if text.is_empty() && self.logprobs.is_none() {
            return Vec::new();
        }
        let logprobs = self.logprobs(index, "", tokens.iter());
        vec![json!({"index": index, "text": text, "logprobs": logprobs, "finish_reason": null})]
    }

    fn nothing(&self, index: usize) -> Value {
        json!({"index": index, "text": "", "logprobs": null, "finish_reason": null})
    }

    fn end(&mut self, index: usize, end: &End) -> Vec<Value> {
        vec![json!({"index": index, "text": "", "logprobs": null, "finish_reason": reason(end)})]
    }

    fn whole(&mut self, index: usize, answer: &Answer) -> Value {
        let Answer { text, prompt, tokens, end } = answer;
        let logprobs = self.logprobs(index, text, prompt.iter().chain(tokens));
        json!({"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason(end)})
    }
}
