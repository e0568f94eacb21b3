//! Byte-level BPE: text is cut by regular expressions, and the bytes of each piece are merged.
//!
//! GGUF names the expressions (`tokenizer.ggml.pre`) and does not hold them. They are those of the
//! models' own tokenizers, as far as these are known, else those of llama.cpp.

use serde_json::{Value, json};
use tokenizers::ModelWrapper;
use tokenizers::models::bpe::Vocab;

use super::{Vocabulary, bpe, merges};

/// How text is cut into pieces.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct PreTokenizer {
    /// What files call it, with spaces between.
    names: &'static str,
    /// Regular expressions, one after the other: what each finds is a piece, and so is what lies
    /// between, and the next one cuts these.
    cuts: &'static [&'static str],
    /// Whether characters are composed first (NFC).
    composes: bool,
    /// Whether a piece that is a token as a whole is that token, whatever the merges would make.
    whole: bool,
    /// Whether BOS comes first where the file does not say.
    pub bos: bool,
}

impl PreTokenizer {
    /// The one that files call `name`.
    pub fn named(name: &str) -> Option<&'static Self> {
        ALL.iter().find(|it| it.names.split(' ').any(|it| it == name))
    }

    /// All names.
    pub fn names() -> impl Iterator<Item = &'static str> {
        ALL.iter().flat_map(|it| it.names.split(' '))
    }

    pub fn normalizer(&self) -> Value {
        match self.composes {
            true => json!({"type": "NFC"}),
            false => Value::Null,
        }
    }

    pub fn json(&self) -> Value {
        let cuts = self.cuts.iter().map(|cut| {
            json!({"type": "Split", "pattern": {"Regex": cut}, "behavior": "Isolated",
                   "invert": false})
        });
        let steps: Vec<_> = cuts.chain([decoder()]).collect();
        json!({"type": "Sequence", "pretokenizers": steps})
    }
}

/// Bytes as characters, and back.
pub(super) fn decoder() -> Value {
    json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
           "use_regex": false})
}

pub(super) fn model(
    vocabulary: &Vocabulary,
    vocab: Vocab,
    pre: &PreTokenizer,
) -> Result<ModelWrapper, String> {
    if vocabulary.merges.is_empty() {
        return Err("the key tokenizer.ggml.merges is missing or empty".into());
    }
    bpe(vocab, merges(&vocabulary.merges)?, |model| model.ignore_merges(pre.whole))
}

const PLAIN: PreTokenizer =
    PreTokenizer { names: "", cuts: &[], composes: false, whole: false, bos: false };

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const DIGIT: &str = r"\p{N}";
const LLAMA3: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*",
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
);
const QWEN2: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*",
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
);
const QWEN35: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}",
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);
const SEED: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+",
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
);
const TEKKEN: &str = concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);
const GPT4O: &str = concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);
const UP_TO_THREE_DIGITS: &str = r"\p{N}{1,3}";
const CHINESE_AND_JAPANESE: &str = "[一-龥\u{3040}-ゟ゠-ヿ]+";
const DEEPSEEK3: &str = concat!(
    r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"##,
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);
/// Runs of Chinese, Japanese and Korean, and of some scripts that lie between.
const DEEPSEEK_EAST: &str = "[一-龥\u{800}-一가-\u{d7ff}]+";
/// Letters of alphabets with two cases.
const DEEPSEEK_LETTERS: &str = concat!(
    r"\s?[",
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕ",
    "ἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳ",
    "Ꙁ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃",
    "]+"
);
const BLOOM: &str = r" ?[^(\s|.,!?…。，、।۔،)]+";

/// All of them; files of many models share a row.
static ALL: &[PreTokenizer] = &[
    PreTokenizer {
        names: "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
        cuts: &[LLAMA3],
        whole: true,
        bos: true,
        ..PLAIN
    },
    PreTokenizer { names: "dbrx chatglm-bpe", cuts: &[LLAMA3], ..PLAIN },
    // Files of SmolLM3 say smaug-bpe: Llama 3's tokenizer without BOS.
    PreTokenizer { names: "glm4 glm5 smaug-bpe", cuts: &[LLAMA3], whole: true, ..PLAIN },
    PreTokenizer {
        names: "gpt-2 phi-2 exaone4 jais gigachat a.x-4.0 mellum modern-bert trillion \
                granite-docling jina-es jina-de jina-v1-en jina-v2-es jina-v2-de \
                jina-v2-code roberta-bpe",
        cuts: &[GPT2],
        ..PLAIN
    },
    PreTokenizer { names: "mpt olmo", cuts: &[GPT2], composes: true, ..PLAIN },
    PreTokenizer {
        names: "smollm starcoder refact codeshell exaone minerva-7b mellum2",
        cuts: &[DIGIT, GPT2],
        ..PLAIN
    },
    PreTokenizer { names: "command-r", cuts: &[DIGIT, GPT2], composes: true, ..PLAIN },
    PreTokenizer {
        names: "qwen2 deepseek-r1-qwen kormo f2llmv2",
        cuts: &[QWEN2],
        composes: true,
        ..PLAIN
    },
    PreTokenizer { names: "stablelm2 hunyuan solar-open grok-2 megrez", cuts: &[QWEN2], ..PLAIN },
    PreTokenizer { names: "qwen35", cuts: &[QWEN35], composes: true, ..PLAIN },
    PreTokenizer { names: "seed-coder", cuts: &[SEED], ..PLAIN },
    PreTokenizer { names: "tekken", cuts: &[TEKKEN], whole: true, bos: true, ..PLAIN },
    PreTokenizer { names: "gpt-4o llama4 kanana2 talkie minimax-m2", cuts: &[GPT4O], ..PLAIN },
    PreTokenizer {
        names: "tiny_aya cohere2moe",
        cuts: &[r"\d{1,3}(?=(?:\d{3})*\b)", GPT4O],
        ..PLAIN
    },
    PreTokenizer { names: "minicpm5", cuts: &[UP_TO_THREE_DIGITS, LLAMA3], whole: true, ..PLAIN },
    PreTokenizer {
        names: "deepseek-llm",
        cuts: &[
            r"[\r\n]",
            DEEPSEEK_LETTERS,
            r"\s?[!-/:-~！-／：-～‘-‟\u{3000}-。]+",
            r"\s+$",
            DEEPSEEK_EAST,
            r"\p{N}+",
        ],
        ..PLAIN
    },
    PreTokenizer {
        names: "deepseek-coder",
        cuts: &[r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", DEEPSEEK_EAST, DIGIT],
        ..PLAIN
    },
    PreTokenizer {
        names: "deepseek-v3 hunyuan-dense joyai-llm hy_v4",
        cuts: &[UP_TO_THREE_DIGITS, CHINESE_AND_JAPANESE, DEEPSEEK3],
        ..PLAIN
    },
    PreTokenizer {
        names: "falcon",
        cuts: &[r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]"],
        ..PLAIN
    },
    PreTokenizer { names: "bloom gpt3-finnish poro-chat", cuts: &[BLOOM], ..PLAIN },
    PreTokenizer { names: "viking", cuts: &[BLOOM, DIGIT], ..PLAIN },
    PreTokenizer {
        names: "default",
        cuts: &[r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"],
        ..PLAIN
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_stands_once() {
        let mut names: Vec<_> = PreTokenizer::names().collect();
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all);
    }

    #[test]
    fn every_expression_is_one_and_cuts_all_of_a_text() {
        let text =
            "It's 12345 o'clock,\r\n\n  DON'T  panic: 日本語 и так далее… é 가나 \u{3000}x \t ";
        for pre in ALL {
            let pieces: tokenizers::PreTokenizerWrapper =
                serde_json::from_value(pre.json()).unwrap_or_else(|e| panic!("{pre:?}: {e}"));
            let mut cut = tokenizers::PreTokenizedString::from(text);
            tokenizers::PreTokenizer::pre_tokenize(&pieces, &mut cut).unwrap();
            let pieces = cut
                .get_splits(tokenizers::OffsetReferential::Original, tokenizers::OffsetType::Byte);
            assert!(pieces.len() > 10, "{pre:?}");
            let ends: Vec<_> = pieces.iter().map(|(_, (start, end), _)| (*start, *end)).collect();
            assert_eq!(ends.last().unwrap().1, text.len(), "{pre:?}");
            assert!(ends.windows(2).all(|it| it[0].1 == it[1].0), "{pre:?}: {ends:?}");
        }
    }
}
