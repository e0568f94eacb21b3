//! WordPiece, of BERT and the embedding models after it.

use std::borrow::Cow;

use serde_json::{Value, json};
use tokenizers::ModelWrapper;
use tokenizers::models::bpe::Vocab;
use tokenizers::models::wordpiece::WordPiece;

use super::{Special, Vocabulary, sentencepiece};

/// Before pieces that go on with a word.
pub(super) const PREFIX: &str = "##";

/// GGUF marks pieces that begin a word, and Hugging Face those that go on with one.
pub(super) fn text(text: &str) -> Cow<'_, str> {
    if text.starts_with('[') && text.ends_with(']') && text.len() > 2 {
        return text.into();
    }
    match text.strip_prefix(sentencepiece::SPACE) {
        Some(begin) if !begin.is_empty() => begin.into(),
        _ => format!("{PREFIX}{text}").into(),
    }
}

pub(super) fn normalizer(vocabulary: &Vocabulary) -> Value {
    json!({
        "type": "BertNormalizer",
        "clean_text": true,
        "handle_chinese_chars": true,
        "strip_accents": vocabulary.strip_accents,
        "lowercase": vocabulary.lowercase.unwrap_or(true),
    })
}

pub(super) fn model(
    vocabulary: &Vocabulary,
    texts: &[Cow<'_, str>],
    vocab: Vocab,
) -> Result<ModelWrapper, String> {
    let first = vocabulary.id(Special::Cls).and_then(|id| texts.get(id as usize));
    if let Some(first) = first.filter(|it| !it.starts_with('[')) {
        return Err(format!(
            "tokenizer.ggml.model is bert, and texts begin with {first:?}: another tokenizer was converted as BERT's; take \
             the model's own folder"
        ));
    }
    let unknown = vocabulary.id(Special::Unknown);
    let unknown = unknown.ok_or("the key tokenizer.ggml.unknown_token_id is missing")?;
    let model = WordPiece::builder()
        .vocab(vocab)
        .unk_token(texts[unknown as usize].to_string())
        .continuing_subword_prefix(PREFIX.into())
        // As every BERT has it; a longer word is unknown.
        .max_input_chars_per_word(100)
        .build();
    model.map(Into::into).map_err(|error| error.to_string())
}
