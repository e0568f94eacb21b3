//! How models write answers, by their chat templates.

use serde_json::Value;

use super::call_marks::{ArgumentMarks, CallMarks, Calls, Keys, NameMarks};
use super::harmony::MARKS;
use super::literal_call::GEMMA_TEXT;
use super::{Part, Reply};
use crate::{Tokenizer, tokens_in};

/// How a model writes what is more than text: calls of tools, and all of an answer in [`Harmony`](Self::Harmony).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnswerStyle {
    /// `{"name": …, "arguments": …}` between marks: one of the [`JSON`](Self::JSON) styles.
    Json(CallMarks, Keys),
    /// `name(key="value", …)` as in Python between marks: one of the [`PYTHON`](Self::PYTHON) styles.
    Python(CallMarks),
    /// `call:name{key:<|"|>value<|"|>,…}` between marks: [`GEMMA`](Self::GEMMA).
    Gemma(CallMarks),
    /// A name between marks of its own, and arguments that are JSON: one of the [`NAMED`](Self::NAMED) styles.
    Named(CallMarks, NameMarks),
    /// A name, and each argument by itself between marks: one of the [`ONE_BY_ONE`](Self::ONE_BY_ONE) styles.
    OneByOne(CallMarks, ArgumentMarks),
    /// `{"name": …, "parameters": …}` from the first character on, or behind `<|python_tag|>`: Llama 3.
    Llama3,
    /// `[TOOL_CALLS]`, a name, `[ARGS]` and the arguments: Mistral's newer models.
    MistralArgs,
    /// `<|channel|>commentary to=functions.NAME<|message|>` and the arguments: gpt-oss, which writes whole answers
    /// as such messages.
    Harmony,
}

impl AnswerStyle {
    fn all() -> impl Iterator<Item = Self> {
        [Self::MistralArgs, Self::Llama3].into_iter().chain(Self::marked())
    }

    /// The styles of calls between marks: those that a template may be taken for first.
    pub fn marked() -> impl Iterator<Item = Self> {
        let json = Self::JSON.into_iter().chain(Self::PYTHON).chain([Self::GEMMA]);
        Self::ONE_BY_ONE.into_iter().chain(Self::NAMED).chain(json)
    }

    /// What calls stand between, if there are such marks.
    pub fn marks(self) -> Option<CallMarks> {
        match self {
            Self::Json(marks, _)
            | Self::Python(marks)
            | Self::Gemma(marks)
            | Self::Named(marks, _)
            | Self::OneByOne(marks, _) => Some(marks),
            Self::Llama3 | Self::MistralArgs | Self::Harmony => None,
        }
    }

    /// What stands before a call.
    pub fn opening(self) -> &'static str {
        match self {
            Self::Llama3 => "<|python_tag|>",
            Self::MistralArgs => "[TOOL_CALLS]",
            Self::Harmony => "<|channel|>",
            _ => self.marks().map_or("", |it| it.opening),
        }
    }

    /// What a call begins with that a model has not opened, as Qwen3-Coder sometimes does not.
    pub(crate) fn bare_opening(self) -> Option<&'static str> {
        match self {
            Self::OneByOne(_, marks) => Some(marks.name[0]).filter(|it| !it.is_empty()),
            _ => None,
        }
    }

    /// What stands behind the call or calls that an opening has; nothing where that is the end of the answer.
    pub fn closing(self) -> &'static str {
        self.marks().map_or("", |it| it.closing)
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
            _ => {
                let within = match self {
                    Self::Gemma(_) => vec![GEMMA_TEXT],
                    Self::Named(_, marks) => [&marks.name[..], &[marks.end]].concat(),
                    Self::OneByOne(_, marks) => {
                        [marks.name, marks.key, marks.value, [marks.end; 2]].concat()
                    }
                    _ => Vec::new(),
                };
                let all = [self.opening(), self.closing()].into_iter().chain(within);
                let mut tokens: Vec<_> = all.flat_map(tokens_in).collect();
                tokens.sort_unstable();
                tokens.dedup();
                tokens
            }
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
            if let Self::Json(CallMarks { opening, calls, .. }, _) = style {
                let behind = answer.split_once(opening).map_or("", |it| it.1.trim_start());
                if behind.starts_with('[') != matches!(calls, Calls::List | Calls::Column) {
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
    fn signs(self) -> Vec<String> {
        let own = match self {
            Self::Json(_, keys) => vec![format!("\"{}\"", keys.name)],
            Self::Python(_) => Vec::new(),
            Self::Gemma(_) => vec![GEMMA_TEXT.to_owned()],
            Self::Named(_, marks) => {
                [marks.name[0], marks.name[1], marks.end].map(Into::into).into()
            }
            Self::OneByOne(_, marks) => {
                let value = [marks.key[1], marks.value[0]].concat();
                vec![marks.name[0].into(), marks.key[0].into(), value]
            }
            Self::Llama3 => vec!["\"parameters\": ".into()],
            Self::MistralArgs => vec!["[TOOL_CALLS]".into(), "[ARGS]".into()],
            Self::Harmony => MARKS.map(Into::into).into(),
        };
        let marks = self.marks().into_iter().flat_map(|it| [it.opening, it.closing]);
        own.into_iter().chain(marks.map(Into::into)).collect()
    }

    /// That of which the template `source` tells the model, which writes no calls itself; `None` where it knows no
    /// tools, or another style.
    pub(crate) fn of_words(source: &str) -> Option<Self> {
        let has = |part: &str| source.contains(part);
        let has_all = |parts: &[&str]| parts.iter().all(|part| has(part));
        match () {
            // DeepSeek's leave it to whoever asks to tell of tools.
            () if has(Self::DEEPSEEK.opening()) => Some(Self::DEEPSEEK),
            () if !has("tools") => None,
            // LFM2's and Phi-4-mini's templates leave it to the model.
            () if has("List of tools: ") => Some(Self::LFM2),
            () if has("<|/tool|>") => Some(Self::PHI4),
            () if has_all(&["<tool_call>", "<function=", "<parameter="]) => Some(Self::QWEN_CODER),
            () if has_all(&["[TOOL_CALLS]", "[ARGS]"]) => Some(Self::MistralArgs),
            () => {
                // Others put XML between the same marks.
                let is_xml = ["<function=", "<arg_key>"].into_iter().any(has);
                let styles = Self::JSON.into_iter().filter(|_| !is_xml).chain(Self::PYTHON);
                let mut styles = styles.filter(|it| has(it.opening()) && has(it.closing()));
                styles.next()
            }
        }
    }
}
