//! `POST /infill`, in the form of llama-server's, which its plugins for editors speak (llama.vim, llama.vscode).

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::{Request, State};
use axum::response::Response;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Map, Value, json};
use text::Place;
use xla_session::FinishReason;

use crate::answer::{About, Answer, Answers, End, Shape, Token, Usage};
use crate::fields::Fields;
use crate::lines::Lines;
use crate::sampling::Settings;
use crate::server::{Shared, blocking};
use crate::{Model, Problem, trace};

/// Tokens of an answer where the request does not say; as a line is that is typed on.
const MAX_TOKENS: usize = 128;

/// A part of another file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Extra {
    filename: Option<String>,
    text: String,
    /// When it was seen, which changes nothing.
    #[serde(rename = "time")]
    _time: Option<IgnoredAny>,
}

pub(crate) async fn answer(
    State(shared): State<Arc<Shared>>,
    request: Request,
) -> Result<Response, Problem> {
    let mut fields = shared.fields(request).await?;
    let model = shared.model_of_llama(&mut fields)?;
    let mut text = |name| Ok::<_, Problem>(fields.take::<String>(name)?.unwrap_or_default());
    // What is typed in the line of the place stands behind all that was there before.
    let prefix = text("input_prefix")? + &text("prompt")?;
    let suffix = text("input_suffix")?;
    let extra = fields.take::<Vec<Extra>>("input_extra")?.unwrap_or_default();
    let files = extra
        .into_iter()
        .map(|Extra { filename, text, .. }| (filename.unwrap_or_else(|| "file".into()), text));
    let files: Vec<_> = files.collect();
    let settings = settings(&mut fields, &model)?;
    let most = fields.take::<i64>("n_predict")?.unwrap_or(MAX_TOKENS as i64);
    if most < -1 {
        return Err(Problem::field("n_predict", format!("is {most}: it must be at least -1")));
    }
    let response_fields = fields.take::<Vec<String>>("response_fields")?;
    let response_fields = response_fields.filter(|it| !it.is_empty());
    // What llama-server's slots and its cache are told, which are not ours, and what its clients always say.
    fields.take::<i64>("id_slot")?;
    fields.take::<bool>("cache_prompt")?;
    fields.take::<f64>("t_max_prompt_ms")?;
    fields.finish()?;

    trace::works("text_completion", model.name());
    shared.check_open()?;
    let (places, arrived) = (model.places(settings.n)?, Instant::now());
    let read = move |model: &Model| {
        let infill = model
            .llm
            .infill()
            .map_err(|why| Problem::request(why.to_string()).with_code("unsupported_parameter"))?;
        // As in llama-server, -1 is as many as there is room for.
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        // What is run ahead of a request is to be what that has.
        let answer = if most == 0 { MAX_TOKENS } else { most };
        let place = Place { prefix: &prefix, suffix: &suffix, name: None, files: &files };
        let tokens = infill.tokens(&place, model.llm.context(), answer);
        let (tokens, cut) = tokens.map_err(|error| Problem::request(error.to_string()))?;
        Ok((tokens, cut, most, infill.ends().to_vec()))
    };
    let (prompt, cut, most, ends) = blocking(&model, read).await?;
    let mut settings = settings;
    settings.end_with(&ends);
    let (settings, form) = settings.with_form(&model, None, None).await?;
    // With none its prompt is to be found by the next one.
    let max_tokens = most.clamp(1, model.room(&prompt)?);
    let requests = settings.requests(&prompt, max_tokens, None, form.as_ref())?;
    let events = model.submit(requests, places, arrived).await?;
    let context = model.llm.context();
    let answers = Answers::new(model, vec![prompt], settings.n, events);
    let silent = most == 0;
    let shape = Filled { arrived, context, cut, silent, response_fields, ends: Vec::new() };
    if settings.stream { Ok(answers.streamed(shape)) } else { answers.whole(shape).await }
}

/// How it is to be filled in: what llama-server calls otherwise, and lines.
fn settings(fields: &mut Fields, model: &Model) -> Result<Settings, Problem> {
    fields.rename("n_cmpl", "n")?;
    let temperature = fields.take::<Value>("temperature")?;
    let several = fields.take::<Value>("n")?;
    // Its sampler `infill` takes what is likely alone; several answers are to differ.
    let alone = several.as_ref().is_none_or(|n| *n == json!(1));
    fields.insert("temperature", temperature.unwrap_or(json!(if alone { 0 } else { 1 })))?;
    fields.insert("n", several.unwrap_or(json!(1)))?;
    fields.take::<Vec<String>>("samplers")?;
    let indent = fields.take::<usize>("n_indent")?.unwrap_or(0);
    let time = fields.number("t_max_predict_ms", -1.0, 1e9)?.filter(|it| *it > 0.0);
    let time = time.map(|it| Duration::from_secs_f32(it / 1000.0));
    let mut settings = Settings::take(fields, model)?;
    settings.lines = (indent > 0 || time.is_some()).then(|| Lines::new(indent, time));
    Ok(settings)
}

/// Answers in llama-server's own form.
struct Filled {
    arrived: Instant,
    /// Most tokens of a prompt and its answer.
    context: usize,
    /// Whether not all of what is around the place was in the prompt.
    cut: bool,
    /// Whether nothing was asked for but that the prompt is known.
    silent: bool,
    /// What is said of an answer, where not all.
    response_fields: Option<Vec<String>>,
    /// The answers of a stream so far.
    ends: Vec<Streamed>,
}

/// An answer of a stream so far.
#[derive(Clone, Default)]
struct Streamed {
    tokens: usize,
    has_new_line: bool,
    end: Option<End>,
}

impl Filled {
    /// What is said of the answer `index`, which has so many tokens.
    fn value(
        &self,
        about: &About,
        usage: &Usage,
        (index, text): (usize, &str),
        (tokens, has_new_line, end): (usize, bool, &End),
    ) -> Value {
        let (prompt, cached) = (usage.prompt_tokens(), usage.cached_tokens());
        let text = if self.silent { "" } else { text };
        let tokens = if self.silent { 0 } else { tokens };
        let stop_type = match (end.reason, &end.stop) {
            (_, Some(_)) => "word",
            (FinishReason::Eos | FinishReason::Stop, None) => "eos",
            _ => "limit",
        };
        let whole = json!({
            "index": index, "content": text, "stop": true, "model": about.model,
            "generation_settings": {"n_ctx": self.context},
            "tokens_predicted": tokens, "tokens_evaluated": prompt, "tokens_cached": prompt + tokens,
            "truncated": self.cut, "has_new_line": has_new_line,
            "stop_type": stop_type, "stopping_word": end.stop.as_deref().unwrap_or_default(),
            "timings": self.timings(usage, (prompt, cached, tokens)),
        });
        let Some(fields) = &self.response_fields else { return whole };
        let named = |path: &String| {
            let value = whole.pointer(&format!("/{path}"))?;
            Some((path.clone(), value.clone()))
        };
        Value::Object(fields.iter().filter_map(named).collect::<Map<_, _>>())
    }

    /// How long what took.
    fn timings(&self, usage: &Usage, (prompt, cached, tokens): (usize, usize, usize)) -> Value {
        let all = self.arrived.elapsed();
        let first = usage.first_token.unwrap_or(all);
        let prompt_ms = milliseconds(first.saturating_sub(usage.waited.unwrap_or_default()));
        let predicted_ms = milliseconds(all.saturating_sub(first));
        let run = prompt.saturating_sub(cached);
        let each = |ms: f64, tokens: usize| if tokens == 0 { 0.0 } else { ms / tokens as f64 };
        let rate = |ms: f64, tokens: usize| if ms == 0.0 { 0.0 } else { tokens as f64 / ms * 1e3 };
        json!({
            "cache_n": cached,
            "prompt_n": run, "prompt_ms": prompt_ms,
            "prompt_per_token_ms": each(prompt_ms, run), "prompt_per_second": rate(prompt_ms, run),
            "predicted_n": tokens, "predicted_ms": predicted_ms,
            "predicted_per_token_ms": each(predicted_ms, tokens),
            "predicted_per_second": rate(predicted_ms, tokens),
        })
    }
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn line(value: &Value) -> String {
    format!("data: {value}\n\n")
}

impl Shape for Filled {
    fn begin(&mut self, about: &About) -> Vec<String> {
        self.ends = vec![Streamed::default(); about.count];
        Vec::new()
    }

    fn resume(&mut self, _: usize, _: &str, _: &[Token]) {}

    fn piece(&mut self, _: &About, index: usize, text: &str, tokens: &[Token]) -> Vec<String> {
        self.ends[index].tokens += tokens.len();
        self.ends[index].has_new_line |= text.contains('\n');
        if text.is_empty() || self.silent {
            return Vec::new();
        }
        vec![line(&json!({"index": index, "content": text, "stop": false}))]
    }

    fn end(&mut self, _: &About, index: usize, end: &End) -> Vec<String> {
        self.ends[index].end = Some(end.clone());
        Vec::new()
    }

    fn finish(&mut self, about: &About, usage: &Usage) -> Vec<String> {
        let ends = self.ends.iter().enumerate();
        let ended = ends.filter_map(|(index, Streamed { tokens, has_new_line, end })| {
            let end = (*tokens, *has_new_line, end.as_ref()?);
            Some(line(&self.value(about, usage, (index, ""), end)))
        });
        ended.collect()
    }

    fn fail(&mut self, _: &About, problem: &Problem) -> Vec<String> {
        vec![line(&problem.json())]
    }

    fn still_there(&mut self, _: &About) -> String {
        ": still there\n\n".into()
    }

    fn whole(&mut self, about: &About, answers: Vec<Answer>, usage: &Usage) -> Value {
        let each = answers.iter().enumerate().map(|(index, Answer { text, tokens, end, .. })| {
            self.value(about, usage, (index, text), (tokens.len(), text.contains('\n'), end))
        });
        let mut each: Vec<_> = each.collect();
        // One is no list of one, as in llama-server.
        if each.len() == 1 { each.remove(0) } else { Value::Array(each) }
    }
}
