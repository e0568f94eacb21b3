//! Calls as a model would write them: for templates that leave calls out.

use serde_json::Value;

use super::literal_call::GEMMA_TEXT;
use super::{AnswerStyle, ArgumentMarks, CallMarks, Calls, Keys, NameMarks};
use crate::chat_template::dumps;

impl AnswerStyle {
    /// A `call` of each tool by its name and arguments, as the model would write them. `None` where no template leaves
    /// calls out.
    pub fn written(self, calls: &[(&str, &Value)]) -> Option<String> {
        let CallMarks { opening, closing, calls: way } = self.marks()?;
        let calls = calls.iter().enumerate().map(|(at, (name, arguments))| match self {
            Self::Json(_, keys) => json(keys, at, name, arguments),
            Self::Named(_, marks) => named(marks, at, name, arguments),
            Self::OneByOne(_, marks) => one_by_one(marks, name, arguments),
            Self::Gemma(_) => format!("call:{name}{}", gemma(arguments)),
            _ => python(name, arguments),
        });
        let calls: Vec<_> = calls.collect();
        let each = |call: String| match way {
            Calls::Bare => format!("{opening}{call}{closing}"),
            _ => format!("{opening}\n{call}\n{closing}"),
        };
        Some(match way {
            Calls::One | Calls::Bare => calls.into_iter().map(each).collect::<Vec<_>>().join("\n"),
            Calls::Lines => format!("{opening}\n{}\n{closing}", calls.join("\n")),
            Calls::Stack => format!("{opening}{}{closing}", calls.join("\n")),
            Calls::Row => format!("{opening}{}{closing}", calls.concat()),
            Calls::List => format!("{opening}[{}]{closing}", calls.join(", ")),
            Calls::Column => format!("{opening}[\n    {}\n]{closing}", calls.join(",\n    ")),
        })
    }
}

fn json(keys: Keys, at: usize, name: &str, arguments: &Value) -> String {
    let id = keys.id.map(|id| format!("\"{id}\": \"{at}\", ")).unwrap_or_default();
    let [name, arguments] = [&Value::from(name), arguments].map(dumps);
    format!("{{{id}\"{}\": {name}, \"{}\": {arguments}}}", keys.name, keys.arguments)
}

fn named(marks: NameMarks, at: usize, name: &str, arguments: &Value) -> String {
    let NameMarks { name: [before, behind], numbered, end } = marks;
    let number = if numbered { format!(":{at}") } else { String::new() };
    format!("{before}{name}{number}{behind}{}{end}", dumps(arguments))
}

fn one_by_one(marks: ArgumentMarks, name: &str, arguments: &Value) -> String {
    let ArgumentMarks { name: around, key, value, end } = marks;
    let one = |(of, it): (&String, &Value)| {
        let it = it.as_str().map_or_else(|| dumps(it), str::to_owned);
        [key[0], of, key[1], value[0], &it, value[1]].concat()
    };
    let arguments: String = arguments.as_object().into_iter().flatten().map(one).collect();
    [around[0], name, around[1], &arguments, end].concat()
}

/// As Gemma 4's template writes it, its keys in order.
fn gemma(value: &Value) -> String {
    match value {
        Value::String(text) => [GEMMA_TEXT, text, GEMMA_TEXT].concat(),
        Value::Array(all) => format!("[{}]", all.iter().map(gemma).collect::<Vec<_>>().join(",")),
        Value::Object(all) => {
            let mut all: Vec<_> = all.iter().collect();
            all.sort_by_key(|(key, _)| key.to_lowercase());
            let all = all.into_iter().map(|(key, value)| format!("{key}:{}", gemma(value)));
            format!("{{{}}}", all.collect::<Vec<_>>().join(","))
        }
        other => dumps(other),
    }
}

fn python(name: &str, arguments: &Value) -> String {
    let literal = |value: &Value| match value {
        Value::Null => "None".to_owned(),
        Value::Bool(true) => "True".into(),
        Value::Bool(false) => "False".into(),
        other => dumps(other),
    };
    let one = |(key, value)| format!("{key}={}", literal(value));
    let arguments = arguments.as_object().into_iter().flatten().map(one).collect::<Vec<_>>();
    format!("{name}({})", arguments.join(", "))
}
