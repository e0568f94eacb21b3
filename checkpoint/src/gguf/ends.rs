//! Tokens that end an answer. A file's keys often name the end of a text alone, while the model ends its
//! turns with another token, which is known by its text.

use serde_json::{Value as Json, json};

use super::keys::json_of;
use super::metadata::{Metadata, Value};

/// The keys of ids that end all of a text, an answer, a message to a tool.
const NAMED: [&str; 3] = ["eos", "eot", "eom"];

/// Texts of tokens that end an answer, whatever else a file says of them: those of llama.cpp that end
/// nothing else in any vocabulary, and DeepSeek's.
const KNOWN: [&str; 16] = [
    "<|eot_id|>",
    "<|im_end|>",
    PART,
    RETURN,
    CALL,
    "<end_of_turn>",
    "<turn|>",
    "<|tool_response>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "<eos>",
    "<end_of_utterance>",
    "<｜end▁of▁sentence｜>",
];

/// Ends an answer of Phi, but a part of one where answers end with the other two, as gpt-oss's.
const PART: &str = "<|end|>";
const RETURN: &str = "<|return|>";
const CALL: &str = "<|call|>";

/// Types of tokens that are no text: control, and user-defined, which Phi's `<|end|>` is in some files.
const MARKS: [i64; 2] = [3, 4];

/// The ids that end an answer: those that keys name first, then those that are known by their text.
pub(super) fn end_ids(metadata: &Metadata) -> Vec<Json> {
    let known = known(metadata);
    let id = |text: &str| known.iter().find(|(_, it)| *it == text).map(|(id, _)| json!(id));
    let part = id(PART).filter(|_| id(RETURN).is_some() && id(CALL).is_some());
    let named = NAMED
        .iter()
        .filter_map(|name| metadata.get(&format!("tokenizer.ggml.{name}_token_id")).map(json_of));
    let mut ids = Vec::new();
    for id in named.chain(known.iter().map(|(id, _)| json!(id))) {
        if Some(&id) != part.as_ref() && !ids.contains(&id) {
            ids.push(id);
        }
    }
    ids
}

/// The marks whose texts are [`KNOWN`], with their ids.
fn known(metadata: &Metadata) -> Vec<(usize, &str)> {
    let Some(texts) = metadata.texts("tokenizer.ggml.tokens") else { return Vec::new() };
    let Some(Value::Integers(types)) = metadata.get("tokenizer.ggml.token_type") else {
        return Vec::new();
    };
    let tokens = texts.iter().zip(types).enumerate();
    tokens
        .filter(|(_, (text, kind))| MARKS.contains(kind) && KNOWN.contains(text))
        .map(|(id, (text, _))| (id, text))
        .collect()
}
