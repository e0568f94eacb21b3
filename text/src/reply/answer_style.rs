//! How models write answers, by their chat templates.

use serde_json::Value;

use super::harmony::MARKS;
use super::{Part, Reply};
use crate::Tokenizer;

/// How a model writes what is more than text: calls of tools, and all of an answer in [`Harmony`](Self::Harmony).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnswerStyle {
    /// `{"name": …, "arguments": …}` between marks: one of the [`JSON`](Self::JSON) styles.
    Json(CallMarks),
    /// `name(key="value", …)` as in Python between marks: one of the [`PYTHON`](Self::PYTHON) styles.
    Python(CallMarks),
    /// `<tool_call>`, `<function=NAME>`, and each argument in lines of its own behind `<parameter=KEY>`: Qwen3-Coder.
    QwenCoder,
    /// `{"name": …, "parameters": …}` from the first character on, or behind `<|python_tag|>`: Llama 3.
    Llama3,
    /// `[TOOL_CALLS]`, a name, `[ARGS]` and the arguments: Mistral's newer models.
    MistralArgs,
    /// `<|channel|>commentary to=functions.NAME<|message|>` and the arguments: gpt-oss, which writes whole answers
    /// as such messages.
    Harmony,
}

/// What calls stand between.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallMarks {
    /// What stands before each call, or before all of them.
    pub opening: &'static str,
    /// What stands behind it; nothing where the answer ends there.
    pub closing: &'static str,
    /// How calls stand there.
    pub calls: Calls,
}

/// How calls stand between marks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Calls {
    /// One in a line of its own; each has marks.
    One,
    /// Each in a line of its own, all between the same marks.
    Lines,
    /// All in brackets, commas between them.
    List,
}

const fn marks(opening: &'static str, closing: &'static str, calls: Calls) -> CallMarks {
    CallMarks { opening, closing, calls }
}

impl AnswerStyle {
    /// Hermes, Qwen, SmolLM, Granite 4.
    pub const HERMES: Self = Self::Json(marks("<tool_call>", "</tool_call>", Calls::One));
    /// Mistral's older models.
    pub const MISTRAL: Self = Self::Json(marks("[TOOL_CALLS]", "", Calls::List));
    /// Granite 3.0, 3.2 and 3.3.
    pub const GRANITE: Self = Self::Json(marks("<|tool_call|>", "", Calls::List));
    /// Granite 3.1.
    pub const GRANITE_31: Self = Self::Json(marks("<tool_call>", "", Calls::List));
    /// Nemotron Nano, Llama-Nemotron.
    pub const NEMOTRON: Self = Self::Json(marks("<TOOLCALL>", "</TOOLCALL>", Calls::List));
    /// Apriel.
    pub const APRIEL: Self = Self::Json(marks("<tool_calls>", "</tool_calls>", Calls::List));
    /// MiniMax-M1.
    pub const MINIMAX: Self = Self::Json(marks("<tool_calls>", "</tool_calls>", Calls::Lines));
    /// LFM2.
    pub const LFM2: Self =
        Self::Python(marks("<|tool_call_start|>", "<|tool_call_end|>", Calls::List));
    /// OLMo 3.
    pub const OLMO3: Self =
        Self::Python(marks("<function_calls>", "</function_calls>", Calls::Lines));

    /// The styles of calls that are JSON: those that a template may be taken for first.
    pub const JSON: [Self; 7] = [
        Self::APRIEL,
        Self::HERMES,
        Self::MISTRAL,
        Self::GRANITE,
        Self::GRANITE_31,
        Self::NEMOTRON,
        Self::MINIMAX,
    ];

    /// The styles of calls that are Python.
    pub const PYTHON: [Self; 2] = [Self::LFM2, Self::OLMO3];

    fn all() -> impl Iterator<Item = Self> {
        let others = [Self::QwenCoder, Self::MistralArgs, Self::Llama3];
        others.into_iter().chain(Self::JSON).chain(Self::PYTHON)
    }

    /// What stands before a call.
    pub fn opening(self) -> &'static str {
        match self {
            Self::Json(marks) | Self::Python(marks) => marks.opening,
            Self::QwenCoder => "<tool_call>",
            Self::Llama3 => "<|python_tag|>",
            Self::MistralArgs => "[TOOL_CALLS]",
            Self::Harmony => "<|channel|>",
        }
    }

    /// What stands behind the call or calls that an opening has; nothing where that is the end of the answer.
    pub fn closing(self) -> &'static str {
        match self {
            Self::Json(marks) | Self::Python(marks) => marks.closing,
            Self::QwenCoder => "</tool_call>",
            Self::Llama3 | Self::MistralArgs | Self::Harmony => "",
        }
    }

    /// Whether it is one of Mistral's, whose models write either of them.
    pub fn is_mistral(self) -> bool {
        self == Self::MISTRAL || self == Self::MistralArgs
    }

    /// Special tokens that mean something in an answer: its text must have them.
    pub fn special_tokens(self) -> Vec<&'static str> {
        match self {
            Self::Harmony => MARKS.to_vec(),
            _ if self.is_mistral() => vec![self.opening(), "[ARGS]", "[CALL_ID]"],
            _ => [self.opening(), self.closing()].into_iter().filter(|it| !it.is_empty()).collect(),
        }
    }

    /// Those that `tokenizer` has, for [`Detokenizer::showing`](crate::Detokenizer::showing).
    pub fn special_ids(self, tokenizer: &Tokenizer) -> Vec<u32> {
        self.special_tokens().iter().filter_map(|text| tokenizer.special_token(text)).collect()
    }

    /// That of answers without calls of the template `source`; `None` where those are text.
    pub(crate) fn of_answers(source: &str) -> Option<Self> {
        source.contains("<|channel|>").then_some(Self::Harmony)
    }

    /// That in which `answer`, as a template has written it, calls `name` with `arguments`; `None` if in another one.
    pub(crate) fn of_call(answer: &str, name: &str, arguments: &Value) -> Option<Self> {
        Self::all().find(|style| {
            if !style.signs().iter().all(|sign| answer.contains(sign)) {
                return false;
            }
            if let Self::Json(CallMarks { opening, calls, .. }) = style {
                let behind = answer.split_once(opening).map_or("", |it| it.1.trim_start());
                if behind.starts_with('[') != (*calls == Calls::List) {
                    return false;
                }
            }
            let mut reply = Reply::new(Some(*style), None);
            let mut parts = reply.push(answer);
            parts.extend(reply.finish());
            let (mut names, mut written) = (Vec::new(), String::new());
            for part in parts {
                match part {
                    Part::Call(name) => names.push(name),
                    Part::Arguments(text) => written += &text,
                    Part::Content(_) | Part::Reasoning(_) => {}
                }
            }
            names == [name]
                && serde_json::from_str::<Value>(&written).ok().as_ref() == Some(arguments)
        })
    }

    /// What a text has that a template has written in it, and no answer in a style that is read in the same way.
    fn signs(self) -> Vec<&'static str> {
        match self {
            Self::Json(marks) => vec![marks.opening, marks.closing, "\"name\""],
            Self::Python(marks) => vec![marks.opening, marks.closing],
            Self::Llama3 => vec!["\"parameters\": "],
            Self::MistralArgs => vec!["[TOOL_CALLS]", "[ARGS]"],
            Self::QwenCoder => vec!["<tool_call>", "<function=", "<parameter="],
            Self::Harmony => MARKS.to_vec(),
        }
    }

    /// That of which the template `source` tells the model, which writes no calls itself; `None` where it knows no
    /// tools, or another style.
    pub(crate) fn of_words(source: &str) -> Option<Self> {
        let has = |part: &str| source.contains(part);
        match () {
            () if !has("tools") => None,
            // LFM2's templates leave it to the model.
            () if has("List of tools: ") => Some(Self::LFM2),
            () if Self::QwenCoder.signs().into_iter().all(has) => Some(Self::QwenCoder),
            () if Self::MistralArgs.signs().into_iter().all(has) => Some(Self::MistralArgs),
            () => {
                // Others put XML between the same marks.
                let is_xml = ["<function=", "<arg_key>"].into_iter().any(has);
                let styles = Self::JSON.into_iter().filter(|_| !is_xml).chain(Self::PYTHON);
                let mut styles = styles.filter(|it| has(it.opening()) && has(it.closing()));
                styles.next()
            }
        }
    }

    /// A `call` of each tool by its name and arguments, as the model would write them: for templates that leave
    /// calls out. `None` where no template does.
    pub fn written(self, calls: &[(&str, &Value)]) -> Option<String> {
        let (marks, calls): (_, Vec<_>) = match self {
            Self::Json(marks) => (marks, calls.iter().map(json).collect()),
            Self::Python(marks) => (marks, calls.iter().map(python).collect()),
            _ => return None,
        };
        let CallMarks { opening, closing, .. } = marks;
        let one = |call: String| format!("{opening}\n{call}\n{closing}");
        Some(match marks.calls {
            Calls::One => calls.into_iter().map(one).collect::<Vec<_>>().join("\n"),
            Calls::Lines => format!("{opening}\n{}\n{closing}", calls.join("\n")),
            Calls::List => format!("{opening}[{}]{closing}", calls.join(", ")),
        })
    }
}

fn json((name, arguments): &(&str, &Value)) -> String {
    let [name, arguments] = [&Value::from(*name), *arguments].map(crate::chat_template::dumps);
    format!("{{\"name\": {name}, \"arguments\": {arguments}}}")
}

fn python((name, arguments): &(&str, &Value)) -> String {
    let literal = |value: &Value| match value {
        Value::Null => "None".to_owned(),
        Value::Bool(true) => "True".into(),
        Value::Bool(false) => "False".into(),
        other => crate::chat_template::dumps(other),
    };
    let one = |(key, value)| format!("{key}={}", literal(value));
    let arguments = arguments.as_object().into_iter().flatten().map(one).collect::<Vec<_>>();
    format!("{name}({})", arguments.join(", "))
}
