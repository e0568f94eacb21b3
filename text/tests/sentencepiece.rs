//! Ids that SentencePiece itself gives, with small models of each of its kinds.
//!
//! `tests/sentencepiece/make_expected.py` trains the models and records the ids.

use std::path::Path;

use serde::Deserialize;
use text::{TokenType, Tokenizer, Vocabulary};

#[derive(Deserialize)]
struct Model {
    model: String,
    tokens: Vec<String>,
    scores: Vec<f32>,
    types: Vec<i64>,
    bos: u32,
    eos: u32,
    unknown: u32,
    add_space_prefix: bool,
    remove_extra_whitespaces: bool,
    precompiled_charsmap: Vec<u8>,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    text: String,
    ids: Vec<u32>,
}

#[test]
fn the_ids_are_those_of_sentencepiece() {
    let models: Vec<Model> =
        serde_json::from_str(include_str!("sentencepiece/expected.json")).unwrap();
    assert_eq!(models.len(), 4);
    for (at, model) in models.into_iter().enumerate() {
        let types = model.types.iter().map(|&it| TokenType::from_number(it).unwrap());
        let vocabulary = Vocabulary {
            model: model.model,
            types: types.collect(),
            tokens: model.tokens,
            scores: model.scores,
            bos: Some(model.bos),
            eos: Some(model.eos),
            unknown: Some(model.unknown),
            add_space_prefix: Some(model.add_space_prefix),
            remove_extra_whitespaces: model.remove_extra_whitespaces,
            precompiled_charsmap: model.precompiled_charsmap,
            ..Vocabulary::default()
        };
        let tokenizer = Tokenizer::from_vocabulary(&vocabulary, Path::new("model.gguf")).unwrap();
        assert!(model.cases.len() > 30);
        for Case { text, ids } in model.cases {
            assert_eq!(tokenizer.encode(&text, false).unwrap(), ids, "model {at}: {text:?}");
        }
    }
}
