//! The fields of a request: each is understood, or named in an error.

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::Problem;

/// Fields that clients send for the service of others, and that change no answer.
pub(crate) const HARMLESS: [&str; 9] = [
    "client_metadata",
    "metadata",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "safety_identifier",
    "service_tier",
    "store",
    "user",
];

/// What is not there yet, or never will be, and why.
const REFUSED: [(&str, &str); 11] = [
    ("audio", "models here know text only"),
    ("best_of", "ask for `n` answers and choose among them"),
    ("function_call", "give `tool_choice`"),
    ("functions", "give `tools`"),
    ("grammar", "give `response_format`, or Lark's language as `guided_grammar`"),
    ("json_schema", "give it as `response_format`"),
    ("modalities", "models here know text only"),
    ("prediction", "predicted outputs are not supported"),
    ("reasoning_effort", "it is for chats, whose template knows what to make of it"),
    ("suffix", "it is for completions of text, which are filled in"),
    ("web_search_options", "nothing is fetched from outside"),
];

/// What routers add to every request that they pass on (vllm-router all of them, smg the last), and the only
/// value that it may have: the one that says what is done here anyway.
const ADDED: [(&str, &str); 7] = [
    ("continue_final_message", "false"),
    ("include_reasoning", "true"),
    ("no_stop_trim", "false"),
    ("return_hidden_states", "false"),
    ("separate_reasoning", "true"),
    ("skip_special_tokens", "true"),
    ("stream_reasoning", "true"),
];

/// The fields of a request that nobody has asked for yet.
pub(crate) struct Fields {
    rest: Map<String, Value>,
    known: Vec<&'static str>,
    /// The only value that some may have.
    only: Vec<(&'static str, Value)>,
}

impl Fields {
    /// All of them.
    pub fn new(fields: Map<String, Value>) -> Self {
        Self { rest: fields, known: Vec::new(), only: Vec::new() }
    }

    /// The field `name`; `None` when it is absent or null.
    ///
    /// # Errors
    ///
    /// It is of another type.
    pub fn take<T: DeserializeOwned>(&mut self, name: &'static str) -> Result<Option<T>, Problem> {
        self.known.push(name);
        let value = self.rest.remove(name).filter(|value| !value.is_null());
        let parsed = value.map(serde_json::from_value).transpose();
        parsed.map_err(|error| Problem::field(name, error.to_string()))
    }

    /// A number that is at least `least` and at most `most`.
    ///
    /// # Errors
    ///
    /// It is something else.
    pub fn number(
        &mut self,
        name: &'static str,
        least: f64,
        most: f64,
    ) -> Result<Option<f32>, Problem> {
        let Some(number) = self.take::<f64>(name)? else { return Ok(None) };
        let good = (least..=most).contains(&number);
        let wrong = || format!("is {number}: it must be between {least} and {most}");
        if good { Ok(Some(number as f32)) } else { Err(Problem::field(name, wrong())) }
    }

    /// Takes what is called `name` for what others call `known`.
    ///
    /// # Errors
    ///
    /// Both are there.
    pub fn rename(&mut self, name: &'static str, known: &str) -> Result<(), Problem> {
        match self.take(name)? {
            Some(value) => self.insert(known, value),
            None => Ok(()),
        }
    }

    /// Says in other words what has been taken.
    ///
    /// # Errors
    ///
    /// It has been said already.
    pub fn insert(&mut self, name: &str, value: Value) -> Result<(), Problem> {
        match self.rest.insert(name.into(), value) {
            None | Some(Value::Null) => Ok(()),
            Some(_) => Err(Problem::field(name, "is given twice, in two forms: give one of them")),
        }
    }

    /// Takes the field `name` if it has the value `only`; with another one [`finish`](Self::finish) says
    /// why not.
    pub fn only(&mut self, name: &'static str, only: &Value) {
        self.known.push(name);
        if self.rest.get(name) == Some(only) {
            self.rest.remove(name);
        } else {
            self.only.push((name, only.clone()));
        }
    }

    /// Nothing else may be there.
    ///
    /// # Errors
    ///
    /// A field is not supported, or unknown.
    pub fn finish(mut self) -> Result<(), Problem> {
        self.rest.retain(|name, value| !value.is_null() && !HARMLESS.contains(&name.as_str()));
        self.rest.retain(|name, value| !ADDED.contains(&(name.as_str(), &value.to_string())));
        let Some(name) = self.rest.keys().next() else { return Ok(()) };
        if let Some((_, why)) = REFUSED.iter().find(|(refused, _)| refused == name) {
            let problem = Problem::field(name, format!("is not supported here: {why}"));
            return Err(problem.with_code("unsupported_parameter"));
        }
        if let Some((_, only)) = self.only.iter().find(|(known, _)| known == name) {
            let problem = Problem::field(name, format!("is not supported here but as {only}"));
            return Err(problem.with_code("unsupported_parameter"));
        }
        if let Some((_, only)) = ADDED.iter().find(|(added, _)| added == name) {
            let problem = Problem::field(name, format!("is not supported here but as {only}"));
            return Err(problem.with_code("unsupported_parameter"));
        }
        self.known.sort_unstable();
        self.known.dedup();
        let message = format!("is no field of this request; there are: {}", self.known.join(", "));
        Err(Problem::field(name, message).with_code("unknown_parameter"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn fields(value: Value) -> Fields {
        let Value::Object(fields) = value else { panic!("no object: {value}") };
        Fields::new(fields)
    }

    fn message(problem: &Problem) -> String {
        problem.json()["error"]["message"].as_str().unwrap().to_owned()
    }

    #[test]
    fn what_nobody_takes_is_named() {
        let mut some = fields(json!({"n": 2, "user": "me", "tools": null, "max_token": 5}));
        assert_eq!(some.take::<usize>("n").unwrap(), Some(2));
        assert_eq!(some.take::<usize>("max_tokens").unwrap(), None);
        let problem = some.finish().unwrap_err();
        assert_eq!(problem.json()["error"]["param"], "max_token");
        assert!(message(&problem).contains("there are: max_tokens, n"), "{}", message(&problem));
        let problem = fields(json!({"functions": [{}]})).finish().unwrap_err();
        assert_eq!(problem.json()["error"]["code"], "unsupported_parameter");
        fields(json!({"user": "me", "store": true})).finish().unwrap();
    }

    #[test]
    fn types_and_ranges_are_checked() {
        let mut some = fields(json!({"n": "x", "p": 1.5, "q": 0.5, "r": -0.1, "s": 1e300}));
        assert_eq!(some.take::<usize>("n").unwrap_err().json()["error"]["param"], "n");
        assert!(message(&some.number("p", 0.0, 1.0).unwrap_err()).contains("is 1.5"));
        assert_eq!(some.number("q", 0.0, 1.0).unwrap(), Some(0.5));
        assert!(some.number("r", 0.0, 1.0).is_err());
        assert!(some.number("s", 0.0, f32::MAX.into()).is_err());
        some.finish().unwrap();
    }

    #[test]
    fn only_one_value_of_some_is_passable() {
        let text = json!(["text"]);
        let mut good = fields(json!({"modalities": ["text"]}));
        good.only("modalities", &text);
        good.finish().unwrap();
        let mut bad = fields(json!({"modalities": ["text", "audio"]}));
        bad.only("modalities", &text);
        assert!(message(&bad.finish().unwrap_err()).contains("text only"));
        let mut other = fields(json!({"background": true}));
        other.only("background", &json!(false));
        assert!(message(&other.finish().unwrap_err()).contains("but as false"));
    }

    #[test]
    fn what_routers_add_passes_where_it_says_nothing() {
        let added =
            json!({"skip_special_tokens": true, "no_stop_trim": false, "include_reasoning": true});
        fields(added).finish().unwrap();
        let other = fields(json!({"skip_special_tokens": false})).finish().unwrap_err();
        assert!(message(&other).contains("but as true"), "{}", message(&other));
    }

    #[test]
    fn two_names_of_one_field_are_one_too_many() {
        for (given, good) in [
            (json!({"stop_sequences": "a"}), true),
            (json!({"stop": "a", "stop_sequences": null}), true),
            (json!({"stop": null, "stop_sequences": "a"}), true),
            (json!({"stop": "a", "stop_sequences": "b"}), false),
        ] {
            let mut some = fields(given.clone());
            assert_eq!(some.rename("stop_sequences", "stop").is_ok(), good, "{given}");
            if good {
                assert_eq!(some.take::<String>("stop").unwrap().as_deref(), Some("a"), "{given}");
            }
        }
    }
}
