//! How an answer is made: the fields that chats and completions share.

use std::collections::BTreeMap;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;
use std::time::Duration;

use iree_llm::form::{Form, Start};
use iree_llm::tools::Tools;
use serde::Deserialize;
use serde_json::{Map, Number, Value, json};
use text::{Prompt, StopStrings};
use xla_session::batching::Request;
use xla_session::sample::{Sampler, SamplerOptions};

use crate::error::TOO_LONG;
use crate::fields::Fields;
use crate::form;
use crate::lines::Lines;
use crate::openai::UsageIn;
use crate::requests::Asked;
use crate::server::blocking;
use crate::{Model, Problem, completions};

/// Most answers to one prompt.
const MOST_ANSWERS: usize = 64;
/// Most strings of `stop`.
const MOST_STOPS: usize = 64;
/// Most characters of each of them, for which every answer looks with every token.
const LONGEST_STOP: usize = 1024;

/// One or several of something.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum OneOrMany<T> {
    One(T),
    Many(Vec<T>),
}

impl<T> OneOrMany<T> {
    pub fn into_vec(self) -> Vec<T> {
        match self {
            Self::One(one) => vec![one],
            Self::Many(many) => many,
        }
    }
}

/// How answers are made, and how they are given.
pub(crate) struct Settings {
    options: SamplerOptions,
    /// Whether the seed is the request's.
    seeded: bool,
    stops: StopStrings,
    /// Tokens that the answer begins with.
    pub answer: Vec<u32>,
    eos: Vec<u32>,
    priority: i32,
    timeout: Option<Duration>,
    /// Answers to each prompt.
    pub n: usize,
    /// What every answer is kept to.
    form: Option<Form>,
    /// Special tokens that its text has.
    shown: Vec<u32>,
    /// Which lines it may have, where not all.
    pub lines: Option<Lines>,
    ignore_eos: bool,
    /// Whether the answer comes in pieces.
    pub stream: bool,
    /// Which pieces have the usage.
    pub usage: UsageIn,
}

impl Settings {
    /// What `fields` say, for `model`.
    ///
    /// # Errors
    ///
    /// A value is out of range, or of another type.
    pub fn take(fields: &mut Fields, model: &Model) -> Result<Self, Problem> {
        let own = &model.sampling;
        let top_k = fields.take::<i64>("top_k")?;
        // As llama.cpp and vLLM have it, -1 is off too.
        let top_k = top_k.map(|it| usize::try_from(it.max(0)).unwrap_or(usize::MAX));
        let repeat_last_n = fields.take::<i64>("repeat_last_n")?;
        let seed = seed(fields)?;
        // As llama.cpp has it, -1 is all.
        let repeat_last_n = repeat_last_n.map(|n| usize::try_from(n).unwrap_or(usize::MAX));
        let (repeat_penalty, most_recent) = repeat_penalty(fields, own)?;
        let mut penalty = |name| fields.number(name, -2.0, 2.0);
        let (presence, frequency) = (penalty("presence_penalty")?, penalty("frequency_penalty")?);
        let options = SamplerOptions {
            temperature: fields.number("temperature", 0.0, 100.0)?.unwrap_or(own.temperature),
            top_k: top_k.unwrap_or(own.top_k),
            // 0 keeps the most likely token, as any number does that it alone reaches.
            top_p: fields.number("top_p", 0.0, 1.0)?.unwrap_or(own.top_p).max(f32::MIN_POSITIVE),
            min_p: fields.number("min_p", 0.0, 1.0)?.unwrap_or(own.min_p),
            repeat_penalty,
            repeat_last_n: repeat_last_n.unwrap_or(most_recent),
            presence_penalty: presence.unwrap_or(own.presence_penalty),
            frequency_penalty: frequency.unwrap_or(own.frequency_penalty),
            logit_bias: logit_bias(fields, model)?,
            seed: seed.unwrap_or_else(|| RandomState::new().build_hasher().finish()),
        };
        let stops = fields.take::<OneOrMany<String>>("stop")?;
        let stops = stops.map(OneOrMany::into_vec).unwrap_or_default();
        if stops.len() > MOST_STOPS {
            let message = format!("has {} strings: give {MOST_STOPS} at most", stops.len());
            return Err(Problem::field("stop", message));
        }
        let lengths = stops.iter().map(|it| it.chars().count());
        if let Some(length) = lengths.max().filter(|&it| it > LONGEST_STOP) {
            let message =
                format!("has a string of {length} characters: give {LONGEST_STOP} at most");
            return Err(Problem::field("stop", message));
        }
        let stops = StopStrings::new(&stops);
        let n = fields.take::<usize>("n")?.unwrap_or(1);
        if !(1..=MOST_ANSWERS).contains(&n) {
            let message = format!("is {n}: it must be between 1 and {MOST_ANSWERS}");
            return Err(Problem::field("n", message));
        }
        let ignore_eos = fields.take::<bool>("ignore_eos")?.unwrap_or(false);
        let form = form::take(fields)?;
        let priority = fields.take::<i32>("priority")?.unwrap_or(0);
        if !(-1000..=1000).contains(&priority) {
            let message = format!("is {priority}: it must be between -1000 and 1000");
            return Err(Problem::field("priority", message));
        }
        let timeout = fields.number("timeout", 0.001, 1e6)?.map(Duration::from_secs_f32);
        let stream = fields.take::<bool>("stream")?.unwrap_or(false);
        let mut settings = Self {
            options,
            seeded: seed.is_some(),
            answer: Vec::new(),
            stops: stops.map_err(|error| Problem::field("stop", error.to_string()))?,
            eos: if ignore_eos { Vec::new() } else { model.llm.config().eos_token_ids.clone() },
            // As vLLM has it, lower goes first.
            priority: -priority,
            timeout,
            n,
            form: None,
            shown: Vec::new(),
            lines: None,
            ignore_eos,
            stream,
            usage: usage(fields, stream)?,
        };
        if let Some(form) = form {
            settings.keep_to(form)?;
        }
        Ok(settings)
    }

    /// Keeps answers to `form`.
    ///
    /// # Errors
    ///
    /// They are kept to another one, or are to have no end.
    pub fn keep_to(&mut self, form: Form) -> Result<(), Problem> {
        if self.ignore_eos {
            let message = "and a form of the answer contradict each other: forms have an end";
            return Err(Problem::field("ignore_eos", message));
        }
        if let Some(first) = self.form.replace(form) {
            let message = "is given beside another form of the answer: give one of them";
            return Err(Problem::field(first.name(), message));
        }
        Ok(())
    }

    /// Has `tokens` end answers too, if something does but a form, which says for itself where it ends.
    pub fn end_with(&mut self, tokens: &[u32]) {
        if !self.ignore_eos && self.form.is_none() {
            self.eos.extend(tokens);
        }
    }

    /// Goes on with the answer that `fields` hold the beginning of, as it was given elsewhere. Returns whether
    /// answers come with the ids of their tokens.
    ///
    /// # Errors
    ///
    /// It could not go on as it would have.
    pub fn resume(&mut self, fields: &mut Fields, model: &Model) -> Result<bool, Problem> {
        const FIELD: &str = "answer_token_ids";
        let ids = fields.take::<bool>("return_token_ids")?.unwrap_or(false);
        self.answer = fields.take(FIELD)?.unwrap_or_default();
        if self.answer.is_empty() {
            return Ok(ids);
        }
        completions::check(model, FIELD, &self.answer)?;
        let (has, context) = (self.answer.len(), model.llm.context());
        if has > context {
            let message = format!("has {has} tokens, which do not fit the context of {context}");
            return Err(Problem::field(FIELD, message).with_code(TOO_LONG));
        }
        let message = match () {
            () if self.n != 1 => "is of one answer: `n` must be 1",
            () if !self.stream => "goes with `stream`: true alone: what there is is not said again",
            () if self.options.temperature != 0.0 && !self.seeded => {
                "goes with the `seed` that the answer was begun with"
            }
            () => return Ok(ids),
        };
        Err(Problem::field(FIELD, message))
    }

    /// Itself, and the start of the form that answers of `model`, to `prompt` of a chat, are kept to, made beside the thread that
    /// serves: calls of `tools` in their style, behind what the model thinks, or text of the form that is asked for.
    ///
    /// # Errors
    ///
    /// The form is none that can be kept to, or they are to have no end.
    pub async fn with_form(
        mut self,
        model: &Arc<Model>,
        tools: Option<Tools>,
        prompt: Option<&Prompt>,
    ) -> Result<(Self, Option<Start>), Problem> {
        let shown = prompt.map(|it| it.special_ids(model.llm.tokenizer()));
        self.shown = shown.unwrap_or_default();
        if self.form.is_none() && tools.is_none() {
            return Ok((self, None));
        }
        let prompt = prompt.cloned();
        blocking(model, move |model| {
            let (forms, text) = (model.llm.forms(), self.form.take());
            let start = match &prompt {
                Some(prompt) => forms.start_answer(prompt, text, tools),
                None => text.map(|form| forms.start(&form)).transpose(),
            };
            let start = start.map_err(form::problem)?;
            if start.is_some() && self.ignore_eos {
                let message = "and `tools` contradict each other: calls have an end";
                return Err(Problem::field("ignore_eos", message));
            }
            Ok((self, start))
        })
        .await
    }

    /// The requests of all answers to `prompt`; those after the first have the seeds that follow.
    ///
    /// # Errors
    ///
    /// An option is out of range.
    pub fn requests(
        &self,
        prompt: &[u32],
        max_tokens: usize,
        likelihood: Option<usize>,
        form: Option<&Start>,
    ) -> Result<Vec<Asked>, Problem> {
        let request = |at: usize| {
            let seed = self.options.seed.wrapping_add(at as u64);
            let sampler = if self.options.is_greedy() {
                None
            } else {
                let options = SamplerOptions { seed, ..self.options.clone() };
                Some(Sampler::new(options).map_err(|error| Problem::engine(&error))?)
            };
            let (constraint, failure) = form.map(Start::constraint).unzip();
            let constraint = constraint.map(|it| Box::new(it) as _);
            let (prompt, eos) = (prompt.to_vec(), self.eos.clone());
            let priority = self.priority;
            let request = Request {
                prompt,
                answer: self.answer.clone(),
                max_tokens,
                eos,
                sampler,
                likelihood,
                constraint,
                priority,
                ..Request::default()
            };
            Ok(Asked {
                request,
                stops: self.stops.clone(),
                shown: self.shown.clone(),
                lines: self.lines.clone(),
                failure: failure.unwrap_or_default(),
                timeout: self.timeout,
            })
        };
        (0..self.n).map(request).collect()
    }
}

/// By llama.cpp's name, of the latest tokens, or by that of transformers and vLLM, of all, or the model's `own`; and
/// of how many it is where nothing else is said.
fn repeat_penalty(fields: &mut Fields, own: &SamplerOptions) -> Result<(f32, usize), Problem> {
    let mut penalty = |name| fields.number(name, 0.01, 100.0);
    match (penalty("repeat_penalty")?, penalty("repetition_penalty")?) {
        (Some(_), Some(_)) => {
            let message = "and `repeat_penalty` are the same: give one of them";
            Err(Problem::field("repetition_penalty", message))
        }
        (None, Some(penalty)) => Ok((penalty, usize::MAX)),
        (Some(penalty), None) => Ok((penalty, SamplerOptions::default().repeat_last_n)),
        (None, None) => Ok((own.repeat_penalty, own.repeat_last_n)),
    }
}

fn logit_bias(fields: &mut Fields, model: &Model) -> Result<Vec<(u32, f32)>, Problem> {
    let biases = fields.take::<BTreeMap<String, f32>>("logit_bias")?.unwrap_or_default();
    let bias = |(token, bias): (String, f32)| {
        let id = token.parse().ok().filter(|id| (*id as usize) < model.llm.config().vocab_size);
        let id = id.ok_or_else(|| {
            let last = model.llm.config().vocab_size - 1;
            let message = format!("has the key {token:?}: keys are token ids, \"0\" to \"{last}\"");
            Problem::field("logit_bias", message)
        })?;
        if !(-100.0..=100.0).contains(&bias) {
            let message = format!("has {bias} for {token:?}: it must be between -100 and 100");
            return Err(Problem::field("logit_bias", message));
        }
        Ok((id, bias))
    };
    biases.into_iter().map(bias).collect()
}

/// Any integer.
fn seed(fields: &mut Fields) -> Result<Option<u64>, Problem> {
    let Some(number) = fields.take::<Number>("seed")? else { return Ok(None) };
    let seed = number.as_u64().or_else(|| number.as_i64().map(i64::cast_unsigned));
    let wrong = || Problem::field("seed", format!("is {number}: it must be an integer"));
    seed.map(Some).ok_or_else(wrong)
}

fn usage(fields: &mut Fields, stream: bool) -> Result<UsageIn, Problem> {
    let Some(options) = fields.take::<Map<String, Value>>("stream_options")? else {
        return Ok(UsageIn::None);
    };
    if !stream {
        return Err(Problem::field("stream_options", "goes with `stream`: true alone"));
    }
    let mut options = Fields::new(options);
    let [last, each] = ["include_usage", "continuous_usage_stats"]
        .map(|name| Ok::<_, Problem>(options.take::<bool>(name)?.unwrap_or(false)));
    options.only("include_obfuscation", &json!(false));
    options.finish()?;
    Ok(match (last?, each?) {
        (false, _) => UsageIn::None,
        (true, false) => UsageIn::Last,
        (true, true) => UsageIn::Each,
    })
}
