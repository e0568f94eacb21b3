//! How models write answers, by their chat templates.

use super::harmony::MARKS;
use crate::Tokenizer;

/// How a model writes what is more than text: calls of tools, and all of an answer in [`Harmony`](Self::Harmony).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnswerStyle {
    /// `<tool_call>{"name": …, "arguments": …}</tool_call>`, with a list of those in it too: Hermes, Qwen,
    /// SmolLM.
    Hermes,
    /// `<tool_call>`, `<function=NAME>`, and each argument in lines of its own behind `<parameter=KEY>`: Qwen3-Coder.
    QwenCoder,
    /// `{"name": …, "parameters": …}` from the first character on, or behind `<|python_tag|>`: Llama 3.
    Llama3,
    /// `[TOOL_CALLS]` and a list of `{"name": …, "arguments": …}`: Mistral.
    Mistral,
    /// `[TOOL_CALLS]`, a name, `[ARGS]` and the arguments: Mistral's newer models.
    MistralArgs,
    /// `<|channel|>commentary to=functions.NAME<|message|>` and the arguments: gpt-oss, which writes whole answers
    /// as such messages.
    Harmony,
}

impl AnswerStyle {
    /// What stands before a call.
    pub fn opening(self) -> &'static str {
        match self {
            Self::Hermes | Self::QwenCoder => "<tool_call>",
            Self::Llama3 => "<|python_tag|>",
            Self::Mistral | Self::MistralArgs => "[TOOL_CALLS]",
            Self::Harmony => "<|channel|>",
        }
    }

    /// Special tokens that mean something in an answer: its text must have them.
    pub fn special_tokens(self) -> &'static [&'static str] {
        match self {
            Self::Hermes | Self::QwenCoder => &["<tool_call>", "</tool_call>"],
            Self::Llama3 => &["<|python_tag|>"],
            Self::Mistral | Self::MistralArgs => &["[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"],
            Self::Harmony => &MARKS,
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

    /// That of the template `source`; `None` where it knows no tools, or another style.
    pub(crate) fn of_template(source: &str) -> Option<Self> {
        let has = |part: &str| source.contains(part);
        match () {
            () if !has("tools") => None,
            () if Self::of_answers(source).is_some() => Self::of_answers(source),
            () if has("[TOOL_CALLS]") && has("[ARGS]") => Some(Self::MistralArgs),
            () if has("[TOOL_CALLS]") => Some(Self::Mistral),
            () if ["<tool_call>", "<function=", "<parameter="].into_iter().all(has) => {
                Some(Self::QwenCoder)
            }
            // Others put XML between the same marks, or a list between marks of their own.
            () if has("<tool_call>")
                && !["<function=", "<arg_key>", "<tool_calls>"].into_iter().any(has) =>
            {
                Some(Self::Hermes)
            }
            () if has("<|start_header_id|>") && has("\"parameters\": ") => Some(Self::Llama3),
            () => None,
        }
    }
}
