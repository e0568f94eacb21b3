//! A line as a request: its own settings, and those of the command line for the rest.

use std::sync::{Arc, OnceLock};

use anyhow::{Context, Result, bail, ensure};
use iree_llm::NO_INFILL;
use serde::Deserialize;
use serde_json::{Map, Value};
use text::{
    ChatTemplate, Infill, Place, Prompt, RenderOptions, StopStrings, TextStream, Tokenizer,
};
use xla_session::batching::Request;
use xla_session::sample::SamplerOptions;

use crate::form::Keeper;
use crate::lines::Line;
use crate::readable::Writing;
use crate::sampling::SamplingArgs;

/// What a line may hold beside its id.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Fields {
    prompt: Option<String>,
    suffix: Option<String>,
    messages: Option<Vec<Map<String, Value>>>,
    max_tokens: Option<usize>,
    temperature: Option<f32>,
    top_p: Option<f32>,
    top_k: Option<usize>,
    seed: Option<u64>,
    stop: Option<Stop>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Stop {
    One(String),
    Several(Vec<String>),
}

/// What holds for lines that say nothing else.
pub struct Defaults<'a> {
    /// Of the model.
    pub tokenizer: &'a Tokenizer,
    /// How the model is asked to fill in, if it has marks for that.
    pub infill: Option<Infill>,
    /// Of the model; an error says why there is none.
    pub template: Result<ChatTemplate>,
    /// Whether a prompt is a user's message.
    pub chat: bool,
    /// The system message before such a prompt.
    pub system: Option<String>,
    /// Most tokens of an answer.
    pub max_tokens: usize,
    /// Strings that end one.
    pub stop: Vec<String>,
    /// Ids that end one.
    pub eos: Vec<u32>,
    /// Unless they are ignored.
    pub ignore_eos: bool,
    /// What keeps them to a form, if something does.
    pub form: Option<Keeper>,
    /// How tokens are chosen.
    pub sampling: SamplingArgs,
    /// The model's, where these say nothing.
    pub own: SamplerOptions,
}

/// What a line asks for.
pub struct Asked {
    /// It.
    pub request: Request,
    /// The text of its answer.
    pub stream: TextStream,
    /// How that is written, where that is more than text.
    pub writing: Writing,
    /// Where a form says why it could not be kept to, if there is one.
    pub failure: Option<Arc<OnceLock<String>>>,
}

/// The id of `line`, its number if it names none, and what it asks for, or what is wrong with it.
pub fn read(line: &Line, defaults: &Defaults<'_>) -> (Value, Result<Asked>) {
    let number = || Value::from(line.number);
    match serde_json::from_slice(&line.text) {
        Ok(Value::Object(mut object)) => {
            let id = object.remove("id").unwrap_or_else(number);
            let fields = Fields::deserialize(Value::Object(object)).map_err(Into::into);
            (id, fields.and_then(|fields| fields.request(defaults)))
        }
        Ok(_) => {
            let what = "not a JSON object: give {\"prompt\": \"…\"} or {\"messages\": […]}";
            (number(), Err(anyhow::anyhow!(what)))
        }
        Err(error) => (number(), Err(error).context("not JSON")),
    }
}

impl Fields {
    fn request(self, defaults: &Defaults<'_>) -> Result<Asked> {
        let ((prompt, writing, chat), ends) = match &self.suffix {
            Some(suffix) => {
                let (prompt, ends) = self.between(suffix, defaults)?;
                ((prompt, Writing::default(), None), ends)
            }
            None => (self.tokens(defaults)?, Vec::new()),
        };
        let eos = [defaults.eos.as_slice(), &ends].concat();
        let kept = defaults.form.as_ref().map(|it| it.keep(chat.as_ref())).transpose()?;
        let (constraint, failure) =
            kept.map(|it| (Box::new(it.constraint) as _, it.failure)).unzip();
        let stops = match self.stop {
            None => defaults.stop.clone(),
            Some(Stop::One(stop)) => vec![stop],
            Some(Stop::Several(stops)) => stops,
        };
        let stops = StopStrings::new(&stops).context("stop")?;
        let marks = writing.special_ids(defaults.tokenizer);
        let stream = TextStream::new(defaults.tokenizer.detokenizer(&prompt).showing(marks), stops);
        let sampling = defaults.sampling.with(self.temperature, self.top_p, self.top_k, self.seed);
        let request = Request {
            prompt,
            max_tokens: self.max_tokens.unwrap_or(defaults.max_tokens),
            eos: if defaults.ignore_eos { Vec::new() } else { eos },
            sampler: sampling.sampler(&defaults.own)?,
            constraint,
            ..Request::default()
        };
        Ok(Asked { request, stream, writing, failure })
    }

    /// The tokens of a prompt for what stands before `suffix`, and those that end it.
    fn between(&self, suffix: &str, defaults: &Defaults<'_>) -> Result<(Vec<u32>, Vec<u32>)> {
        let prefix = self.prompt.as_deref().context("\"suffix\" goes with \"prompt\"")?;
        ensure!(self.messages.is_none(), "\"prompt\" and \"messages\": give one of them");
        ensure!(defaults.system.is_none(), "\"suffix\" and --system: it is of no conversation");
        let infill = defaults.infill.as_ref().context(NO_INFILL)?;
        let place = Place { prefix, suffix, ..Place::default() };
        let (tokens, _) = infill.tokens(&place, usize::MAX, 0)?;
        // A form says for itself where it ends.
        let ends = if defaults.form.is_none() { infill.ends() } else { &[] };
        Ok((tokens, ends.to_vec()))
    }

    /// Those of the prompt, and how what follows them is written.
    fn tokens(&self, defaults: &Defaults<'_>) -> Result<(Vec<u32>, Writing, Option<Prompt>)> {
        let messages = match (&self.prompt, &self.messages) {
            (Some(prompt), None) if !defaults.chat => {
                let tokens = defaults.tokenizer.encode(prompt, true)?;
                return Ok((tokens, Writing::default(), None));
            }
            (Some(prompt), None) => {
                let message = |role: &str, content: &str| {
                    let pairs = [("role", role), ("content", content)];
                    pairs.map(|(name, value)| (name.to_owned(), value.into())).into_iter().collect()
                };
                let system = defaults.system.iter().map(|text| message("system", text));
                system.chain([message("user", prompt)]).collect()
            }
            (None, Some(messages)) => messages.clone(),
            (None, None) => bail!("there is no \"prompt\", and no \"messages\""),
            (Some(_), Some(_)) => bail!("\"prompt\" and \"messages\": give one of them"),
        };
        ensure!(!messages.is_empty(), "\"messages\" is empty: give at least one");
        let template = defaults.template.as_ref().map_err(|error| anyhow::anyhow!("{error}"))?;
        let prompt = template.prompt(&messages, &RenderOptions::prompt())?;
        let tokens = defaults.tokenizer.encode_chat(&prompt.text)?;
        Ok((tokens, Writing::of(template), Some(prompt)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;

    /// Gives `lines` to `see` as requests of the tiny model.
    fn read_all(
        lines: &[&str],
        change: impl Fn(&mut Defaults<'_>),
    ) -> Vec<(Value, Result<Request>)> {
        let folder = tempfile::tempdir().unwrap();
        fixture::write_tokenizer(folder.path());
        let tokenizer = Tokenizer::require(folder.path()).unwrap();
        let mut defaults = Defaults {
            tokenizer: &tokenizer,
            infill: Infill::of(&tokenizer),
            ignore_eos: false,
            template: Ok(ChatTemplate::require(folder.path()).unwrap()),
            chat: false,
            system: None,
            max_tokens: 50,
            stop: Vec::new(),
            eos: vec![fixture::EOS],
            form: None,
            sampling: SamplingArgs::default(),
            own: SamplerOptions::default(),
        };
        change(&mut defaults);
        let read = |(at, text): (usize, &&str)| {
            let line = Line { number: at + 1, text: text.as_bytes().to_vec() };
            let (id, request) = read(&line, &defaults);
            (id, request.map(|asked| asked.request))
        };
        lines.iter().enumerate().map(read).collect()
    }

    fn request(line: &str) -> Request {
        read_all(&[line], |_| ()).pop().unwrap().1.unwrap()
    }

    #[test]
    fn ids_are_any_json_and_else_the_number_of_the_line() {
        let lines = [
            r#"{"prompt":"a"}"#,
            r#"{"prompt":"a","id":{"b":[1]}}"#,
            r#"{"prompt":"a","id":null}"#,
        ];
        let ids: Vec<_> = read_all(&lines, |_| ()).into_iter().map(|it| it.0).collect();
        assert_eq!(ids, [Value::from(1), serde_json::json!({"b": [1]}), Value::Null]);
    }

    #[test]
    fn a_line_says_for_itself_how_it_is_answered() {
        let plain = request(r#"{"prompt":"the fox"}"#);
        assert_eq!((plain.max_tokens, plain.sampler.is_none()), (50, true));
        assert_eq!((plain.prompt[0], plain.eos), (fixture::BOS, vec![fixture::EOS]));
        let own = request(
            r#"{"prompt":"a","max_tokens":7,"temperature":0.5,"top_p":0.75,"top_k":9,"seed":3}"#,
        );
        let sampler = own.sampler.unwrap().options().clone();
        assert_eq!((own.max_tokens, sampler.temperature, sampler.top_p), (7, 0.5, 0.75));
        assert_eq!((sampler.top_k, sampler.seed), (9, 3));
    }

    #[test]
    fn messages_and_prompts_of_a_chat_go_through_the_template() {
        let messages = r#"{"messages":[{"role":"system","content":"Be kind."},
                           {"role":"user","content":"Who?"}]}"#;
        let prompt = r#"{"prompt":"Who?"}"#;
        let chat = |defaults: &mut Defaults<'_>| {
            defaults.chat = true;
            defaults.system = Some("Be kind.".into());
        };
        let rendered = request(messages).prompt;
        let wrapped = read_all(&[prompt], chat).pop().unwrap().1.unwrap().prompt;
        assert_eq!(wrapped, rendered);
        assert_ne!(request(prompt).prompt, rendered);
    }

    #[test]
    fn what_is_wrong_with_a_line_is_said_with_its_id() {
        let cases = [
            ("{", "not JSON"),
            ("[1]", "not a JSON object"),
            (r#"{"id":7}"#, "no \"prompt\""),
            (r#"{"id":7,"prompt":"a","messages":[]}"#, "give one of them"),
            (r#"{"id":7,"messages":[]}"#, "\"messages\" is empty"),
            (r#"{"id":7,"prompt":"a","max_token":5}"#, "unknown field `max_token`"),
            (r#"{"id":7,"prompt":5}"#, "expected a string"),
            (r#"{"id":7,"prompt":"a","temperature":-1}"#, "temperature is -1"),
            (r#"{"id":7,"prompt":"a","top_p":0}"#, "top-p is 0"),
            (r#"{"id":7,"prompt":"a","stop":""}"#, "stop"),
            (r#"{"id":7,"suffix":"a"}"#, "goes with \"prompt\""),
            (r#"{"id":7,"prompt":"a","suffix":"b"}"#, "no marks for filling in"),
        ];
        for (line, message) in cases {
            let (id, found) = read_all(&[line], |_| ()).pop().unwrap();
            let error = format!("{:#}", found.unwrap_err());
            assert!(error.contains(message), "{line}: {error}");
            assert_eq!(id, if line.contains("id") { 7 } else { 1 }, "{line}");
        }
        let no_template = |it: &mut Defaults<'_>| it.template = Err(anyhow::anyhow!("no template"));
        let line = r#"{"messages":[{"role":"user","content":"a"}]}"#;
        let (_, found) = read_all(&[line], no_template).pop().unwrap();
        assert_eq!(found.unwrap_err().to_string(), "no template");
    }
}
