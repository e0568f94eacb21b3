//! The metadata of a GGUF file, as far as tokenizers are concerned.
//!
//! It is for files that are known, by their hash: what is damaged panics. Programs read GGUF with
//! the crate `checkpoint`.

use std::path::Path;

use text::{TokenType, Vocabulary};

enum Value {
    Number(f64),
    Text(String),
    Numbers(Vec<f64>),
    Texts(Vec<String>),
}

impl Value {
    fn text(self) -> String {
        match self {
            Self::Text(text) => text,
            _ => panic!("not a text"),
        }
    }

    fn texts(self) -> Vec<String> {
        match self {
            Self::Texts(texts) => texts,
            _ => panic!("not texts"),
        }
    }

    fn number(self) -> f64 {
        match self {
            Self::Number(number) => number,
            _ => panic!("not a number"),
        }
    }

    fn numbers(self) -> Vec<f64> {
        match self {
            Self::Numbers(numbers) => numbers,
            _ => panic!("not numbers"),
        }
    }

    fn id(self) -> Option<u32> {
        Some(self.number() as u32)
    }
}

/// What the file at `path` says of its tokens.
pub fn vocabulary(path: &Path) -> Vocabulary {
    let bytes = std::fs::read(path).unwrap();
    let mut reader = Reader(&bytes);
    assert_eq!(reader.take(4), b"GGUF");
    assert!((2..=3).contains(&reader.u32()));
    let _tensors = reader.u64();
    let mut vocabulary = Vocabulary::default();
    for _ in 0..reader.u64() {
        let key = reader.text();
        let kind = reader.u32();
        let value = reader.value(kind);
        put(&mut vocabulary, &key, value);
    }
    vocabulary
}

fn put(it: &mut Vocabulary, key: &str, value: Value) {
    match key {
        "general.architecture" => it.architecture = value.text(),
        "tokenizer.ggml.model" => it.model = value.text(),
        "tokenizer.ggml.pre" => it.pre = Some(value.text()),
        "tokenizer.ggml.tokens" => it.tokens = value.texts(),
        "tokenizer.ggml.merges" => it.merges = value.texts(),
        "tokenizer.ggml.scores" => {
            it.scores = value.numbers().into_iter().map(|score| score as f32).collect();
        }
        "tokenizer.ggml.token_type" => {
            let types = value.numbers().into_iter();
            it.types = types.map(|kind| TokenType::from_number(kind as i64).unwrap()).collect();
        }
        "tokenizer.ggml.precompiled_charsmap" => {
            let bytes = value.numbers().into_iter();
            it.precompiled_charsmap = bytes.map(|byte| byte as i64 as u8).collect();
        }
        "tokenizer.ggml.bos_token_id" => it.bos = value.id(),
        "tokenizer.ggml.eos_token_id" => it.eos = value.id(),
        "tokenizer.ggml.unknown_token_id" => it.unknown = value.id(),
        "tokenizer.ggml.seperator_token_id" => it.separator = value.id(),
        "tokenizer.ggml.padding_token_id" => it.padding = value.id(),
        "tokenizer.ggml.cls_token_id" => it.cls = value.id(),
        "tokenizer.ggml.mask_token_id" => it.mask = value.id(),
        "tokenizer.ggml.add_bos_token" => it.add_bos = Some(value.number() != 0.0),
        "tokenizer.ggml.add_eos_token" => it.add_eos = Some(value.number() != 0.0),
        "tokenizer.ggml.add_space_prefix" => it.add_space_prefix = Some(value.number() != 0.0),
        "tokenizer.ggml.remove_extra_whitespaces" => {
            it.remove_extra_whitespaces = value.number() != 0.0;
        }
        "tokenizer.chat_template" => it.chat_template = Some(value.text()),
        _ => {}
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, length: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(length);
        self.0 = rest;
        taken
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take(4).try_into().unwrap())
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take(8).try_into().unwrap())
    }

    fn text(&mut self) -> String {
        let length = self.u64() as usize;
        String::from_utf8_lossy(self.take(length)).into_owned()
    }

    fn value(&mut self, kind: u32) -> Value {
        match kind {
            8 => Value::Text(self.text()),
            9 => {
                let (kind, length) = (self.u32(), self.u64());
                match kind {
                    8 => Value::Texts((0..length).map(|_| self.text()).collect()),
                    _ => Value::Numbers((0..length).map(|_| self.number(kind)).collect()),
                }
            }
            _ => Value::Number(self.number(kind)),
        }
    }

    fn number(&mut self, kind: u32) -> f64 {
        match kind {
            0 | 7 => f64::from(self.take(1)[0]),
            1 => f64::from(self.take(1)[0] as i8),
            2 => f64::from(u16::from_le_bytes(self.take(2).try_into().unwrap())),
            3 => f64::from(i16::from_le_bytes(self.take(2).try_into().unwrap())),
            4 => f64::from(self.u32()),
            5 => f64::from(self.u32() as i32),
            6 => f64::from(f32::from_bits(self.u32())),
            10 => self.u64() as f64,
            11 => self.u64() as i64 as f64,
            12 => f64::from_bits(self.u64()),
            _ => panic!("no type of GGUF: {kind}"),
        }
    }
}
