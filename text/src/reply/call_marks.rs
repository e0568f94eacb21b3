//! What calls stand between, model by model: the styles that are entries of a table.

use super::AnswerStyle;

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
    /// One, right between its marks.
    Bare,
    /// Each in a line of its own, all between the same marks.
    Lines,
    /// One after the other, right between the same marks.
    Row,
    /// The same, each but the first in a new line.
    Stack,
    /// All in brackets, commas between them.
    List,
    /// The same, each in a line of its own.
    Column,
}

/// What members of a call are called that is an object of JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keys {
    /// That of its number, which comes first and is text, if it has one.
    pub id: Option<&'static str>,
    /// That of its name.
    pub name: &'static str,
    /// That of its arguments.
    pub arguments: &'static str,
}

/// What a call's name and its arguments stand between that are JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NameMarks {
    /// What stands before the name and behind it.
    pub name: [&'static str; 2],
    /// Whether the name has the number of the call with it: `name:0`.
    pub numbered: bool,
    /// What stands behind the arguments.
    pub end: &'static str,
}

/// What a call's name and each of its arguments stand between.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ArgumentMarks {
    /// What stands before the name and behind it; where that is white space, the name is one word.
    pub name: [&'static str; 2],
    /// What stands before an argument's name and behind it.
    pub key: [&'static str; 2],
    /// What stands before its value and behind it; if that is on a line of its own, so is the value.
    pub value: [&'static str; 2],
    /// What stands behind the last argument, if that is not what closes the call.
    pub end: &'static str,
}

const fn marks(opening: &'static str, closing: &'static str, calls: Calls) -> CallMarks {
    CallMarks { opening, closing, calls }
}

/// What most models call the members.
const PLAIN: Keys = Keys { id: None, name: "name", arguments: "arguments" };

const fn json(opening: &'static str, closing: &'static str, calls: Calls) -> AnswerStyle {
    AnswerStyle::Json(marks(opening, closing, calls), PLAIN)
}

/// GLM's marks, where so much stands behind a name, a key and a value.
const fn glm(name: &'static str, key: &'static str, value: &'static str) -> AnswerStyle {
    let arguments = ArgumentMarks {
        name: ["", name],
        key: ["<arg_key>", key],
        value: ["<arg_value>", value],
        end: "",
    };
    AnswerStyle::OneByOne(marks("<tool_call>", "</tool_call>", Calls::Bare), arguments)
}

impl AnswerStyle {
    /// Hermes, Qwen, SmolLM, Granite 4.
    pub const HERMES: Self = json("<tool_call>", "</tool_call>", Calls::One);
    /// Mistral's older models.
    pub const MISTRAL: Self = json("[TOOL_CALLS]", "", Calls::List);
    /// Granite 3.0, 3.2 and 3.3.
    pub const GRANITE: Self = json("<|tool_call|>", "", Calls::List);
    /// Granite 3.1.
    pub const GRANITE_31: Self = json("<tool_call>", "", Calls::List);
    /// Phi-4-mini.
    pub const PHI4: Self = json("<|tool_call|>", "<|/tool_call|>", Calls::List);
    /// Nemotron Nano, Llama-Nemotron.
    pub const NEMOTRON: Self = json("<TOOLCALL>", "</TOOLCALL>", Calls::List);
    /// Apriel.
    pub const APRIEL: Self = json("<tool_calls>", "</tool_calls>", Calls::List);
    /// MiniMax-M1.
    pub const MINIMAX: Self = json("<tool_calls>", "</tool_calls>", Calls::Lines);
    /// Command R7B and A.
    pub const COHERE: Self = Self::Json(
        marks("<|START_ACTION|>", "<|END_ACTION|>", Calls::Column),
        Keys { id: Some("tool_call_id"), name: "tool_name", arguments: "parameters" },
    );
    /// LFM2.
    pub const LFM2: Self =
        Self::Python(marks("<|tool_call_start|>", "<|tool_call_end|>", Calls::List));
    /// OLMo 3.
    pub const OLMO3: Self =
        Self::Python(marks("<function_calls>", "</function_calls>", Calls::Lines));
    /// Gemma 4.
    pub const GEMMA: Self = Self::Gemma(marks("<|tool_call>", "<tool_call|>", Calls::Bare));
    /// DeepSeek V3 and R1.
    pub const DEEPSEEK: Self = Self::Named(
        marks("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", Calls::Stack),
        NameMarks {
            name: ["<｜tool▁call▁begin｜>function<｜tool▁sep｜>", "\n```json\n"],
            numbered: false,
            end: "\n```<｜tool▁call▁end｜>",
        },
    );
    /// DeepSeek V3.1.
    pub const DEEPSEEK_31: Self = Self::Named(
        marks("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", Calls::Row),
        NameMarks {
            name: ["<｜tool▁call▁begin｜>", "<｜tool▁sep｜>"],
            numbered: false,
            end: "<｜tool▁call▁end｜>",
        },
    );
    /// Kimi K2.
    pub const KIMI: Self = Self::Named(
        marks("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", Calls::Row),
        NameMarks {
            name: ["<|tool_call_begin|>functions.", "<|tool_call_argument_begin|>"],
            numbered: true,
            end: "<|tool_call_end|>",
        },
    );
    /// Apertus.
    pub const APERTUS: Self = Self::Named(
        marks("<|tools_prefix|>", "<|tools_suffix|>", Calls::List),
        NameMarks { name: ["{\"", "\": "], numbered: false, end: "}" },
    );
    /// Qwen3-Coder, Qwen3.5.
    pub const QWEN_CODER: Self = Self::OneByOne(
        marks("<tool_call>", "</tool_call>", Calls::One),
        ArgumentMarks {
            name: ["<function=", ">\n"],
            key: ["<parameter=", ">\n"],
            value: ["", "\n</parameter>\n"],
            end: "</function>",
        },
    );
    /// Seed-OSS.
    pub const SEED: Self = Self::OneByOne(
        marks("<seed:tool_call>", "</seed:tool_call>", Calls::One),
        ArgumentMarks {
            name: ["<function=", ">\n"],
            key: ["<parameter=", ">"],
            value: ["", "</parameter>\n"],
            end: "</function>",
        },
    );
    /// MiniMax-M2.
    pub const MINIMAX_2: Self = Self::OneByOne(
        marks("<minimax:tool_call>", "</minimax:tool_call>", Calls::Lines),
        ArgumentMarks {
            name: ["<invoke name=\"", "\">\n"],
            key: ["<parameter name=\"", "\">"],
            value: ["", "</parameter>\n"],
            end: "</invoke>",
        },
    );
    /// GLM-4.5 and 4.6.
    pub const GLM: Self = glm("\n", "</arg_key>\n", "</arg_value>\n");
    /// GLM-4.7, Laguna.
    pub const GLM_47: Self = glm("", "</arg_key>", "</arg_value>");

    /// The styles of calls that are JSON: those that a template may be taken for first.
    pub const JSON: [Self; 9] = [
        Self::APRIEL,
        Self::HERMES,
        Self::MISTRAL,
        Self::PHI4,
        Self::GRANITE,
        Self::GRANITE_31,
        Self::NEMOTRON,
        Self::MINIMAX,
        Self::COHERE,
    ];

    /// The styles of calls that are Python.
    pub const PYTHON: [Self; 2] = [Self::LFM2, Self::OLMO3];

    /// The styles of calls with a name and JSON.
    pub const NAMED: [Self; 4] = [Self::DEEPSEEK, Self::DEEPSEEK_31, Self::KIMI, Self::APERTUS];

    /// The styles of calls whose arguments stand one by one.
    pub const ONE_BY_ONE: [Self; 5] =
        [Self::QWEN_CODER, Self::SEED, Self::MINIMAX_2, Self::GLM, Self::GLM_47];
}
