//! A line as what a model is asked: its own settings, and those of the command line for the rest.

use anyhow::{Context, Result, bail, ensure};
use iree_llm::Ask;
use serde::Deserialize;
use serde_json::{Map, Value};
use text::StopStrings;
use xla_session::sample::SamplerOptions;

use crate::answer::{Asked, message};
use crate::lines::Line;
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
#[derive(Debug)]
pub struct Defaults {
    /// Whether a prompt is a user's message.
    pub chat: bool,
    /// The system message before such a prompt.
    pub system: Option<String>,
    /// How long an answer may be, what ends it, and its form.
    pub ask: Ask,
    /// How tokens are chosen.
    pub sampling: SamplingArgs,
    /// The model's, where these say nothing.
    pub own: SamplerOptions,
}

/// The id of `line`, its number if it names none, and what it asks for and how, or what is wrong with it.
pub fn read(line: &Line, defaults: &Defaults) -> (Value, Result<(Asked, Ask)>) {
    let number = || Value::from(line.number);
    match serde_json::from_slice(&line.text) {
        Ok(Value::Object(mut object)) => {
            let id = object.remove("id").unwrap_or_else(number);
            let fields = Fields::deserialize(Value::Object(object)).map_err(Into::into);
            let ask = |fields: Fields| Ok((fields.asked(defaults)?, fields.ask(defaults)?));
            (id, fields.and_then(ask))
        }
        Ok(_) => {
            let what = "not a JSON object: give {\"prompt\": \"…\"} or {\"messages\": […]}";
            (number(), Err(anyhow::anyhow!(what)))
        }
        Err(error) => (number(), Err(error).context("not JSON")),
    }
}

impl Fields {
    fn ask(self, defaults: &Defaults) -> Result<Ask> {
        let sampling = defaults.sampling.with(self.temperature, self.top_p, self.top_k, self.seed);
        let mut ask = Ask { sampling: sampling.options(&defaults.own)?, ..defaults.ask.clone() };
        ask.max_tokens = self.max_tokens.or(ask.max_tokens);
        match self.stop {
            None => {}
            Some(Stop::One(stop)) => ask.stop = vec![stop],
            Some(Stop::Several(stops)) => ask.stop = stops,
        }
        StopStrings::new(&ask.stop).context("stop")?;
        Ok(ask)
    }

    fn asked(&self, defaults: &Defaults) -> Result<Asked> {
        let Self { prompt, suffix, messages, .. } = self;
        if let Some(suffix) = suffix.clone() {
            let prefix = prompt.clone().context("\"suffix\" goes with \"prompt\"")?;
            ensure!(messages.is_none(), "\"prompt\" and \"messages\": give one of them");
            ensure!(defaults.system.is_none(), "\"suffix\" and --system: it is of no conversation");
            return Ok(Asked::Between { prefix, suffix });
        }
        let messages = match (prompt, messages) {
            (Some(prompt), None) if !defaults.chat => return Ok(Asked::Text(prompt.clone())),
            (Some(prompt), None) => {
                let system = defaults.system.iter().map(|text| message("system", text));
                system.chain([message("user", prompt)]).collect()
            }
            (None, Some(messages)) => messages.clone(),
            (None, None) => bail!("there is no \"prompt\", and no \"messages\""),
            (Some(_), Some(_)) => bail!("\"prompt\" and \"messages\": give one of them"),
        };
        ensure!(!messages.is_empty(), "\"messages\" is empty: give at least one");
        Ok(Asked::Chat(messages))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What `lines` ask for.
    fn read_all(
        lines: &[&str],
        change: impl Fn(&mut Defaults),
    ) -> Vec<(Value, Result<(Asked, Ask)>)> {
        let ask = Ask { max_tokens: Some(50), ..Ask::default() };
        let (sampling, own) = (SamplingArgs::default(), SamplerOptions::default());
        let mut defaults = Defaults { chat: false, system: None, ask, sampling, own };
        change(&mut defaults);
        let read = |(at, text): (usize, &&str)| {
            let line = Line { number: at + 1, text: text.as_bytes().to_vec() };
            read(&line, &defaults)
        };
        lines.iter().enumerate().map(read).collect()
    }

    fn request(line: &str) -> (Asked, Ask) {
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
        let (asked, plain) = request(r#"{"prompt":"the fox"}"#);
        assert_eq!(asked, Asked::Text("the fox".into()));
        assert_eq!((plain.max_tokens, plain.sampling), (Some(50), None));
        let (_, own) = request(
            r#"{"prompt":"a","max_tokens":7,"temperature":0.5,"top_p":0.75,"top_k":9,"seed":3,"stop":"x"}"#,
        );
        let sampling = own.sampling.unwrap();
        assert_eq!((own.max_tokens, sampling.temperature, sampling.top_p), (Some(7), 0.5, 0.75));
        assert_eq!((sampling.top_k, sampling.seed, own.stop), (9, 3, vec!["x".to_owned()]));
        let (asked, _) = request(r#"{"prompt":"a","suffix":"b"}"#);
        assert_eq!(asked, Asked::Between { prefix: "a".into(), suffix: "b".into() });
    }

    #[test]
    fn messages_and_prompts_of_a_chat_go_through_the_template() {
        let messages = r#"{"messages":[{"role":"system","content":"Be kind."},
                           {"role":"user","content":"Who?"}]}"#;
        let prompt = r#"{"prompt":"Who?"}"#;
        let chat = |defaults: &mut Defaults| {
            defaults.chat = true;
            defaults.system = Some("Be kind.".into());
        };
        let asked = request(messages).0;
        let wrapped = read_all(&[prompt], chat).pop().unwrap().1.unwrap().0;
        assert_eq!(wrapped, asked);
        assert_ne!(request(prompt).0, asked);
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
            (r#"{"id":7,"prompt":"a","suffix":"b","messages":[]}"#, "give one of them"),
        ];
        for (line, message) in cases {
            let (id, found) = read_all(&[line], |_| ()).pop().unwrap();
            let error = format!("{:#}", found.unwrap_err());
            assert!(error.contains(message), "{line}: {error}");
            assert_eq!(id, if line.contains("id") { 7 } else { 1 }, "{line}");
        }
    }
}
