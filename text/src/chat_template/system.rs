//! What the system says, where a template does not take it.

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::ChatTemplate;

/// What is given to a template that the system says.
const SYSTEM: &str = "said_by_the_system";

impl ChatTemplate {
    /// `messages` with what the template would refuse or leave out of what the system says before what the user says
    /// next. Some take none of it, as Gemma 2's and Mistral's first, others what it says first. It is rendered with
    /// `tools` or without.
    pub(super) fn say_as_user<M: Serialize>(
        &self,
        messages: &[M],
        tools: bool,
    ) -> Vec<Map<String, Value>> {
        let messages = messages.iter().filter_map(|it| serde_json::to_value(it).ok());
        let messages = messages.filter_map(|it| match it {
            Value::Object(it) => Some(it),
            _ => None,
        });
        let messages: Vec<_> = messages.collect();
        let is_system = |it: &Map<String, Value>| says(it) == "system";
        if !messages.iter().any(is_system) {
            return messages;
        }
        let it = self.of_messages(&minijinja::Value::from_serialize(&messages), tools);
        let [first, later] = it.takes_system();
        let leading = messages.iter().take_while(|it| is_system(it)).count();
        // One behind another becomes the first where that is not taken.
        let is_taken = |at: usize| match at < leading {
            true => first && (later || at == 0),
            false => later,
        };
        // From the last one to the first: where what the user says next is, and what comes before that.
        let (mut said, mut next, mut words) = (Vec::new(), None, Vec::new());
        for (at, mut message) in messages.into_iter().enumerate().rev() {
            if is_system(&message) && !is_taken(at) {
                match message.get("content").and_then(Value::as_str).filter(|_| next.is_some()) {
                    Some(text) => {
                        words.push(text.to_owned());
                        continue;
                    }
                    None => message.insert("role".into(), "user".into()),
                };
            }
            if says(&message) == "user" {
                say_before(next.map(|at| &mut said[at]), &mut words);
                next = Some(said.len());
            }
            said.push(message);
        }
        say_before(next.map(|at| &mut said[at]), &mut words);
        said.reverse();
        said
    }

    /// Whether it shows what the system says first, and what it says later. Those of Gemma 2 and Mistral's first models
    /// fail, others leave it out.
    pub fn takes_system(&self) -> [bool; 2] {
        *self.takes_system.get_or_init(|| {
            let [system, user, assistant] = [("system", SYSTEM), ("user", "a"), ("assistant", "b")]
                .map(|(role, text)| json!({"role": role, "content": text}));
            let talks = [(Vec::new(), system.clone()), (vec![user, assistant], system)];
            talks.map(|(before, system)| {
                self.shows(&[&before[..], &[system]].concat(), Vec::new(), SYSTEM)
                    || !self.shows(&before, Vec::new(), "")
            })
        })
    }
}

/// Puts `words`, the last of which are the first, before what `message` says.
fn say_before(message: Option<&mut Map<String, Value>>, words: &mut Vec<String>) {
    let Some(message) = message.filter(|_| !words.is_empty()) else { return };
    let words = words.drain(..).rev();
    match message.entry("content").or_insert(Value::Null) {
        Value::Array(parts) => {
            let all = words.map(|text| json!({"type": "text", "text": text}));
            parts.splice(0..0, all);
        }
        content => {
            let user = content.as_str().unwrap_or_default().to_owned();
            *content = words.chain([user]).collect::<Vec<_>>().join("\n\n").into();
        }
    }
}

/// Who says `message`.
fn says(message: &Map<String, Value>) -> &str {
    message.get("role").and_then(Value::as_str).unwrap_or_default()
}
