//! What a model file says of its tokens, and the tokenizer that it means.
//!
//! GGUF has a model's vocabulary under keys that begin with `tokenizer.`, and names the algorithms
//! that cut text into it. [`Vocabulary`] holds these values; what they mean is put together of the
//! parts of the crate `tokenizers`, so that it can be written as a Hugging Face `tokenizer.json`
//! too. `docs/tokenizers.md` lists what is supported and what was compared.

mod byte_level;
mod sentencepiece;
mod special;
mod word_piece;

use std::borrow::Cow;

use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokenizers::models::bpe::{BPE, BpeBuilder, Merges, Vocab};
use tokenizers::{
    AddedToken, DecoderWrapper, ModelWrapper, NormalizerWrapper, PostProcessorWrapper,
    PreTokenizerWrapper,
};

use byte_level::PreTokenizer;
use special::Special;

/// The values under a model file's `tokenizer.` keys; the default is a file without any.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Vocabulary {
    /// `general.architecture`: some habits of tokenizers are known by the kind of model alone.
    pub architecture: String,
    /// `tokenizer.ggml.model`: the algorithm, "gpt2", "llama", "gemma4", "t5" or "bert".
    pub model: String,
    /// `tokenizer.ggml.pre`: how "gpt2" cuts text before it merges pairs.
    pub pre: Option<String>,
    /// `tokenizer.ggml.tokens`: the text of each id.
    pub tokens: Vec<String>,
    /// `tokenizer.ggml.scores`: of each token; empty where the file has none.
    pub scores: Vec<f32>,
    /// `tokenizer.ggml.token_type`: of each token; empty where the file has none, all are normal
    /// then.
    pub types: Vec<TokenType>,
    /// `tokenizer.ggml.merges`: pairs of tokens with a space between them, the first is merged
    /// first.
    pub merges: Vec<String>,
    /// `tokenizer.ggml.bos_token_id`.
    pub bos: Option<u32>,
    /// `tokenizer.ggml.eos_token_id`.
    pub eos: Option<u32>,
    /// `tokenizer.ggml.eot_token_id`: ends a turn.
    pub eot: Option<u32>,
    /// `tokenizer.ggml.eom_token_id`: ends a message that calls a tool.
    pub eom: Option<u32>,
    /// `tokenizer.ggml.unknown_token_id`.
    pub unknown: Option<u32>,
    /// `tokenizer.ggml.seperator_token_id`, which is how GGUF spells it.
    pub separator: Option<u32>,
    /// `tokenizer.ggml.padding_token_id`.
    pub padding: Option<u32>,
    /// `tokenizer.ggml.cls_token_id`.
    pub cls: Option<u32>,
    /// `tokenizer.ggml.mask_token_id`.
    pub mask: Option<u32>,
    /// `tokenizer.ggml.add_bos_token`; where it is absent the algorithm decides.
    pub add_bos: Option<bool>,
    /// `tokenizer.ggml.add_eos_token`; where it is absent the algorithm decides.
    pub add_eos: Option<bool>,
    /// `tokenizer.ggml.add_sep_token`: whether a separator of its own is between two texts of an encoder, behind what ends the
    /// first; BERT and ModernBERT have none, whatever is said, and others have where nothing is.
    pub add_sep: Option<bool>,
    /// `tokenizer.ggml.add_space_prefix`; where it is absent the algorithm decides.
    pub add_space_prefix: Option<bool>,
    /// `tokenizer.ggml.remove_extra_whitespaces`.
    pub remove_extra_whitespaces: bool,
    /// `tokenizer.ggml.precompiled_charsmap`: SentencePiece's table of characters to normalize.
    pub precompiled_charsmap: Vec<u8>,
    /// `tokenizer.ggml.normalizer.lowercase`.
    pub lowercase: Option<bool>,
    /// `tokenizer.ggml.normalizer.strip_accents`.
    pub strip_accents: Option<bool>,
    /// `tokenizer.chat_template`.
    pub chat_template: Option<String>,
    /// `tokenizer.chat_template.tool_use`: takes its place where there are tools.
    pub tool_template: Option<String>,
}

/// What a token is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TokenType {
    /// A piece of text.
    #[default]
    Normal,
    /// Stands for what has no token.
    Unknown,
    /// Steers the model and is not shown: BOS, a role's marker.
    Control,
    /// Text that is cut out before anything else is, and shown.
    UserDefined,
    /// A number that no text leads to.
    Unused,
    /// A byte of a character that has no token.
    Byte,
}

impl TokenType {
    /// The type with this number in `tokenizer.ggml.token_type`.
    pub fn from_number(number: i64) -> Option<Self> {
        Some(match number {
            // 0 is a type that was not set.
            0 | 1 => Self::Normal,
            2 => Self::Unknown,
            3 => Self::Control,
            4 => Self::UserDefined,
            5 => Self::Unused,
            6 => Self::Byte,
            _ => return None,
        })
    }
}

/// The algorithms; a model's name stands for one of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// BPE of bytes, in pieces that a regular expression cuts.
    ByteLevel(&'static PreTokenizer),
    /// BPE of characters with spaces as ▁, merges as listed.
    Merges,
    /// BPE of characters with spaces as ▁, the merge with the highest score first.
    Scores,
    /// The most likely sequence of pieces.
    Unigram,
    /// The longest piece first, word by word.
    WordPiece,
}

/// Architectures that read two texts at once.
const ENCODERS: [&str; 3] = ["bert", "nomic-bert", "modern-bert"];

/// Names of "gpt2" vocabularies that are BPE of characters in truth.
const OF_CHARACTERS: [&str; 3] = ["gemma4", "granite-embed-multi-311m", "sarvam-moe"];

impl Vocabulary {
    /// The tokenizer that this means; an error says which key is wrong.
    pub(crate) fn build(&self) -> Result<tokenizers::Tokenizer, String> {
        let kind = self.kind()?;
        self.check_lengths()?;
        let texts = self.texts(kind);
        let vocab = vocab(&texts)?;
        let (model, normalizer, pre_tokenizer, decoder) = match kind {
            Kind::ByteLevel(pre) => (
                byte_level::model(self, vocab, pre)?,
                pre.normalizer(),
                pre.json(),
                byte_level::decoder(),
            ),
            Kind::Merges | Kind::Scores | Kind::Unigram => {
                let prefix = self.add_space_prefix.unwrap_or(kind != Kind::Merges);
                let model = match kind {
                    Kind::Merges => sentencepiece::listed(self, &texts, vocab)?,
                    Kind::Scores => sentencepiece::scored(self, &texts, vocab)?,
                    _ => sentencepiece::unigram(self, &texts)?,
                };
                let decoder = sentencepiece::decoder(prefix);
                // XLM-RoBERTa's own cuts at any white space first, whatever the file says.
                match kind == Kind::Unigram && self.is_encoder() {
                    true => (model, sentencepiece::charsmap(self), sentencepiece::words(), decoder),
                    false => (model, sentencepiece::normalizer(self, prefix), Value::Null, decoder),
                }
            }
            Kind::WordPiece => (
                word_piece::model(self, &texts, vocab)?,
                word_piece::normalizer(self),
                json!({"type": "BertPreTokenizer"}),
                json!({"type": "WordPiece", "prefix": word_piece::PREFIX, "cleanup": true}),
            ),
        };
        let mut tokenizer = tokenizers::Tokenizer::new(model);
        tokenizer.with_normalizer(part::<NormalizerWrapper>(normalizer)?);
        tokenizer.with_pre_tokenizer(part::<PreTokenizerWrapper>(pre_tokenizer)?);
        let around = self.post_processor(kind, &texts)?;
        tokenizer.with_post_processor(part::<PostProcessorWrapper>(around)?);
        tokenizer.with_decoder(part::<DecoderWrapper>(decoder)?);
        tokenizer.add_tokens(&self.added_tokens(&texts));
        Ok(tokenizer)
    }

    /// What a `tokenizer_config.json` beside [`Tokenizer::to_json`](crate::Tokenizer::to_json) has: the
    /// special tokens, and the chat template or templates.
    pub fn tokenizer_config(&self) -> Value {
        let mut config = json!({
            "tokenizer_class": "PreTrainedTokenizerFast",
            // Texts are as their tokens are.
            "clean_up_tokenization_spaces": false,
        });
        for (name, text) in self.special_texts() {
            config[name] = text.into();
        }
        match (&self.chat_template, &self.tool_template) {
            (Some(template), None) => config["chat_template"] = template.as_str().into(),
            (Some(template), Some(for_tools)) => {
                config["chat_template"] = json!([
                    {"name": "default", "template": template},
                    {"name": "tool_use", "template": for_tools},
                ]);
            }
            (None, _) => {}
        }
        config
    }

    fn kind(&self) -> Result<Kind, String> {
        let pre = self.pre.as_deref();
        Ok(match self.model.as_str() {
            "gpt2" if pre.is_some_and(|pre| OF_CHARACTERS.contains(&pre)) => Kind::Merges,
            "gpt2" => {
                let pre = pre.ok_or(
                    "the key tokenizer.ggml.pre is missing, which says how the text is cut: \
                     convert the model again, with a converter of May 2024 or later",
                )?;
                Kind::ByteLevel(PreTokenizer::named(pre).ok_or_else(|| {
                    let known: Vec<_> = PreTokenizer::names().chain(OF_CHARACTERS).collect();
                    let (known, pre) = (known.join(", "), shown(pre));
                    format!("tokenizer.ggml.pre: `{pre}` is not supported; these are: {known}")
                })?)
            }
            "gemma4" => Kind::Merges,
            "llama" => Kind::Scores,
            "t5" => Kind::Unigram,
            "bert" => Kind::WordPiece,
            "" => return Err("the key tokenizer.ggml.model is missing: no tokenizer".into()),
            other => {
                let other = shown(other);
                return Err(format!(
                    "tokenizer.ggml.model: `{other}` is not supported; these are: gpt2, llama, \
                     gemma4, t5, bert"
                ));
            }
        })
    }

    fn check_lengths(&self) -> Result<(), String> {
        let tokens = self.tokens.len();
        if tokens == 0 {
            return Err("the key tokenizer.ggml.tokens is missing or empty".into());
        }
        if u32::try_from(tokens).is_err() {
            return Err(format!("tokenizer.ggml.tokens: {tokens} are more than ids can name"));
        }
        for (key, length) in [("scores", self.scores.len()), ("token_type", self.types.len())] {
            if length != 0 && length != tokens {
                return Err(format!(
                    "tokenizer.ggml.{key} has {length} values for {tokens} tokens"
                ));
            }
        }
        if let Some(at) = self.scores.iter().position(|score| !score.is_finite()) {
            return Err(format!("tokenizer.ggml.scores: of token {at} is {}", self.scores[at]));
        }
        let named = Special::ALL.map(|it| (it.key(), self.named(it)));
        for (key, id) in
            named.into_iter().chain([("eot_token_id", self.eot), ("eom_token_id", self.eom)])
        {
            if let Some(id) = id.filter(|&id| self.text(id).is_none()) {
                return Err(format!("tokenizer.ggml.{key} is {id}, of {tokens} tokens"));
            }
        }
        Ok(())
    }

    /// The texts of all ids as Hugging Face has them.
    fn texts(&self, kind: Kind) -> Vec<Cow<'_, str>> {
        let texts = self.tokens.iter().enumerate();
        texts
            .map(|(id, text)| {
                let user_defined = self.token_type(id) == TokenType::UserDefined;
                match kind {
                    // Such a number is no text, but has to be something else than the others.
                    _ if text.is_empty() => format!("[EMPTY_{id}]").into(),
                    Kind::WordPiece => word_piece::text(text),
                    Kind::Merges | Kind::Scores | Kind::Unigram if user_defined => {
                        // Found in the text as it is given, before spaces are replaced.
                        match text.contains(sentencepiece::SPACE) {
                            true => text.replace(sentencepiece::SPACE, " ").into(),
                            false => text.into(),
                        }
                    }
                    _ => text.into(),
                }
            })
            .collect()
    }

    /// Tokens that are cut out of the text before anything else.
    fn added_tokens(&self, texts: &[Cow<'_, str>]) -> Vec<AddedToken> {
        // Some files call them normal; what does not look like a marker is text all the same.
        let ends = [self.id(Special::Bos), self.id(Special::Eos), self.eot, self.eom];
        let marks = |text: &str| {
            let within = |begin, end| text.starts_with(begin) && text.ends_with(end);
            within('<', '>') || within('[', ']')
        };
        // The tokenizer of Phi-3 and 3.5 drops white space behind its markers, which no key says; Phi-4's is
        // another.
        let phi = self.architecture == "phi3" && self.model == "llama";
        let mut added = Vec::new();
        for (id, text) in texts.iter().enumerate() {
            let kind = self.token_type(id);
            let special = matches!(kind, TokenType::Control | TokenType::Unknown)
                || (marks(text) && ends.iter().flatten().any(|&end| end as usize == id));
            if special || kind == TokenType::UserDefined {
                let strips = phi && !["<unk>", "<s>", "<|endoftext|>"].contains(&&**text);
                let token = AddedToken::from(text.clone(), special);
                added.push(token.rstrip(strips).normalized(false));
            }
        }
        added
    }

    /// Whether the model reads two texts at once.
    fn is_encoder(&self) -> bool {
        ENCODERS.contains(&&*self.architecture)
    }

    /// What a text may begin with.
    pub(crate) fn beginning(&self) -> Option<u32> {
        self.id(Special::Bos)
    }

    /// What is put around an encoded text.
    fn post_processor(&self, kind: Kind, texts: &[Cow<'_, str>]) -> Result<Value, String> {
        let encoder = self.is_encoder();
        let (bos, eos) = match kind {
            Kind::ByteLevel(pre) => (pre.bos || encoder, encoder),
            Kind::Merges | Kind::Scores => (true, false),
            Kind::Unigram => (encoder, true),
            Kind::WordPiece => (true, true),
        };
        let (before, after) = match kind {
            Kind::WordPiece => (Special::Cls, Special::Separator),
            _ => (Special::Bos, Special::Eos),
        };
        let mut special_tokens = serde_json::Map::new();
        let mut around = |wanted: bool, key: &str, which: Special| {
            if !wanted {
                return Ok(Vec::new());
            }
            let id = self.id(which).ok_or_else(|| {
                let id = which.key();
                format!(
                    "the key tokenizer.ggml.{id} is missing, which is put beside a text unless \
                     tokenizer.ggml.{key} is false"
                )
            })?;
            let text = &texts[id as usize];
            let token = json!({"id": text, "ids": [id], "tokens": [text]});
            special_tokens.insert(text.clone().into_owned(), token);
            Ok::<_, String>(vec![json!({"SpecialToken": {"id": text, "type_id": 0}})])
        };
        let before = around(self.add_bos.unwrap_or(bos), "add_bos_token", before)?;
        let after = around(self.add_eos.unwrap_or(eos), "add_eos_token", after)?;
        if before.is_empty() && after.is_empty() {
            return Ok(Value::Null);
        }
        // Encoders read two texts at once, which BERT's tell apart, and others by what is between.
        let separated = encoder && kind != Kind::WordPiece && self.architecture != "modern-bert";
        let separated = separated && self.add_sep.unwrap_or(true);
        let which = if self.separator.is_some() { Special::Separator } else { Special::Eos };
        let separator = around(separated, "add_sep_token", which)?;
        let second = u8::from(encoder && kind == Kind::WordPiece);
        let sequence = |id: &str, text: u8| vec![json!({"Sequence": {"id": id, "type_id": text}})];
        let mut last = after.clone();
        last.iter_mut().for_each(|it| it["SpecialToken"]["type_id"] = second.into());
        let single = [before.clone(), sequence("A", 0), after.clone()].concat();
        let between = if encoder { [after, separator].concat() } else { Vec::new() };
        let pair = [before, sequence("A", 0), between, sequence("B", second), last].concat();
        Ok(json!({"type": "TemplateProcessing", "single": single, "pair": pair,
                  "special_tokens": special_tokens}))
    }

    fn token_type(&self, id: usize) -> TokenType {
        self.types.get(id).copied().unwrap_or_default()
    }

    fn text(&self, id: u32) -> Option<&str> {
        self.tokens.get(id as usize).map(String::as_str)
    }
}

/// As much of a file's text as belongs into a message.
fn shown(text: &str) -> String {
    text.chars().take(80).collect()
}

/// A part as `tokenizer.json` has it; null is none.
fn part<T: DeserializeOwned>(json: Value) -> Result<Option<T>, String> {
    serde_json::from_value(json).map_err(|error| error.to_string())
}

/// `texts` with their ids; of a text that two ids have there would be one only.
fn vocab(texts: &[Cow<'_, str>]) -> Result<Vocab, String> {
    let mut ids = Vocab::with_capacity(texts.len());
    for (text, id) in texts.iter().zip(0..) {
        if let Some(other) = ids.insert(text.clone().into_owned(), id) {
            let text = shown(text);
            return Err(format!("tokenizer.ggml.tokens: {other} and {id} are both `{text}`"));
        }
    }
    Ok(ids)
}

/// BPE that merges `merges`, the first of them first, with what else `set` sets.
fn bpe(
    vocab: Vocab,
    merges: Merges,
    set: impl FnOnce(BpeBuilder) -> BpeBuilder,
) -> Result<ModelWrapper, String> {
    let model = set(BPE::builder().vocab_and_merges(vocab, merges)).build();
    // It names a token that a merge has and the vocabulary has not.
    model.map(Into::into).map_err(|e| format!("tokenizer.ggml.merges: {}", shown(&e.to_string())))
}

/// The pairs that `tokenizer.ggml.merges` lists.
fn merges(listed: &[String]) -> Result<Merges, String> {
    let mut pairs = Vec::with_capacity(listed.len());
    for (at, merge) in listed.iter().enumerate() {
        // A token may begin with a space, but is not empty.
        let space = merge.char_indices().skip(1).find(|&(_, c)| c == ' ');
        let Some((left, right)) = space.map(|(at, _)| (&merge[..at], &merge[at + 1..])) else {
            let merge = shown(merge);
            return Err(format!("tokenizer.ggml.merges: {at} is `{merge}`, which is no pair"));
        };
        pairs.push((left.to_owned(), right.to_owned()));
    }
    Ok(pairs)
}
