//! Tokenizers and chat templates of what model files say, with small vocabularies of every kind.

use std::path::Path;
use std::sync::LazyLock;

use proptest::prelude::*;
use text::{ChatTemplate, Message, RenderOptions, TokenType, Tokenizer, Vocabulary};

const FILE: &str = "model.gguf";

fn tokenizer(vocabulary: &Vocabulary) -> Tokenizer {
    Tokenizer::from_vocabulary(vocabulary, Path::new(FILE)).unwrap()
}

/// What is wrong with it.
fn refused(vocabulary: &Vocabulary) -> String {
    let error = Tokenizer::from_vocabulary(vocabulary, Path::new(FILE)).unwrap_err().to_string();
    assert!(error.starts_with("model.gguf: "), "{error}");
    error
}

/// A vocabulary of tokens one by one; answers their ids.
#[derive(Default)]
struct Builder(Vocabulary);

impl Builder {
    fn new(model: &str) -> Self {
        Self(Vocabulary { model: model.into(), ..Vocabulary::default() })
    }

    fn token(&mut self, text: &str, kind: TokenType, score: f32) -> u32 {
        self.0.tokens.push(text.into());
        self.0.types.push(kind);
        self.0.scores.push(score);
        self.0.tokens.len() as u32 - 1
    }

    fn pieces(&mut self, pieces: &[&str]) {
        for (rank, piece) in pieces.iter().enumerate() {
            self.token(piece, TokenType::Normal, -1.0 - rank as f32);
        }
    }

    /// `<0x00>` to `<0xFF>`.
    fn bytes(&mut self) {
        for byte in 0..=255 {
            self.token(&format!("<0x{byte:02X}>"), TokenType::Byte, 0.0);
        }
    }
}

/// "gpt2": 256 bytes, four merges, `<|end|>`, `<|turn|>` and two spaces.
fn byte_level(pre: &str) -> Vocabulary {
    let mut it = Builder::new("gpt2");
    for byte in 0..=255u8 {
        it.token(&byte_character(byte).to_string(), TokenType::Normal, 0.0);
    }
    for (left, right) in [("t", "h"), ("th", "e"), ("Ġ", "the"), ("1", "2")] {
        it.token(&format!("{left}{right}"), TokenType::Normal, 0.0);
        it.0.merges.push(format!("{left} {right}"));
    }
    let end = it.token("<|end|>", TokenType::Control, 0.0);
    it.token("<|turn|>", TokenType::Control, 0.0);
    it.token("  ", TokenType::UserDefined, 0.0);
    Vocabulary { pre: Some(pre.into()), bos: Some(end), eos: Some(end), scores: vec![], ..it.0 }
}

/// The character that byte-level BPE writes for a byte.
fn byte_character(byte: u8) -> char {
    let printable = |b: u8| matches!(b, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    if printable(byte) {
        return byte as char;
    }
    let rank = (0..byte).filter(|&b| !printable(b)).count() as u32;
    char::from_u32(256 + rank).unwrap()
}

/// "llama": `<unk>`, `<s>`, `</s>`, the bytes, pieces whose scores fall, and a marker.
fn sentencepiece() -> Vocabulary {
    let mut it = Builder::new("llama");
    it.token("<unk>", TokenType::Unknown, 0.0);
    it.token("<s>", TokenType::Control, 0.0);
    it.token("</s>", TokenType::Control, 0.0);
    it.bytes();
    it.pieces(&["ab", "bc", "abc", "▁ab", "▁▁", "▁", "a", "b", "c"]);
    it.token("<|user|>", TokenType::UserDefined, 0.0);
    it.token("[PAD]", TokenType::Unused, 0.0);
    it.0
}

/// "gemma4": the same pieces, by merges that are listed.
fn listed() -> Vocabulary {
    let merges = ["a b", "b c", "ab c", "▁ ab", "▁ ▁"].map(String::from).to_vec();
    let (model, scores) = ("gemma4".into(), vec![]);
    let vocabulary = Vocabulary { model, scores, merges, ..sentencepiece() };
    Vocabulary { bos: Some(1), eos: Some(2), unknown: Some(0), ..vocabulary }
}

/// "t5": `<pad>`, `</s>`, `<unk>`, the bytes and pieces.
fn unigram() -> Vocabulary {
    let mut it = Builder::new("t5");
    it.token("<pad>", TokenType::Control, 0.0);
    it.token("</s>", TokenType::Control, 0.0);
    it.token("<unk>", TokenType::Unknown, 0.0);
    it.bytes();
    for (piece, score) in [("▁", -2.0), ("a", -3.0), ("b", -3.0), ("ab", -4.0), ("▁a", -6.0)] {
        it.token(piece, TokenType::Normal, score);
    }
    it.0
}

/// "bert".
fn word_piece() -> Vocabulary {
    let mut it = Builder::new("bert");
    for text in ["[PAD]", "[UNK]", "[CLS]", "[SEP]"] {
        it.token(text, TokenType::Control, 0.0);
    }
    it.pieces(&["▁run", "ning", "▁fast", "▁,", "▁中"]);
    let ids = [Some(1), Some(2), Some(3)];
    Vocabulary { unknown: ids[0], bos: ids[1], separator: ids[2], scores: vec![], ..it.0 }
}

/// The texts of the tokens of `text`.
fn pieces(vocabulary: &Vocabulary, text: &str) -> Vec<String> {
    let ids = tokenizer(vocabulary).encode(text, false).unwrap();
    ids.iter().map(|&id| vocabulary.tokens[id as usize].clone()).collect()
}

#[test]
fn bytes_are_merged_within_what_the_pre_tokenizer_cuts() {
    let gpt2 = byte_level("gpt-2");
    assert_eq!(pieces(&gpt2, "the the"), ["the", "Ġthe"]);
    assert_eq!(pieces(&gpt2, "12"), ["12"]);
    assert_eq!(pieces(&byte_level("smollm"), "12"), ["1", "2"]);
    assert_eq!(pieces(&gpt2, "é"), ["Ã", "©"]);
    // Added tokens first, wherever they are.
    assert_eq!(pieces(&gpt2, "th<|turn|>e  x"), ["th", "<|turn|>", "e", "  ", "x"]);
    let tokenizer = tokenizer(&gpt2);
    let ids = tokenizer.encode("the<|turn|>  x", false).unwrap();
    assert_eq!(tokenizer.decode(&ids).unwrap(), "the  x", "control tokens are not shown");
    assert!(tokenizer.is_added(ids[1]) && !tokenizer.is_added(ids[0]));
}

#[test]
fn whole_pieces_come_before_merges_where_the_model_does_so() {
    // "xy" is a token that no merge makes.
    let with = |pre: &str| {
        let mut vocabulary = byte_level(pre);
        vocabulary.tokens.push("xy".into());
        vocabulary.types.push(TokenType::Normal);
        vocabulary
    };
    assert_eq!(pieces(&with("llama-bpe"), "xy"), ["xy"]);
    assert_eq!(pieces(&with("smaug-bpe"), "xy"), ["xy"]);
    assert_eq!(pieces(&with("gpt-2"), "xy"), ["x", "y"]);
}

#[test]
fn composed_and_decomposed_characters_are_one_where_the_model_composes() {
    for name in ["qwen2", "qwen35"] {
        assert_eq!(pieces(&byte_level(name), "e\u{301}"), ["Ã", "©"], "{name}");
    }
    assert_eq!(pieces(&byte_level("llama-bpe"), "e\u{301}").len(), 3);
}

#[test]
fn the_best_score_is_merged_first() {
    let vocabulary = sentencepiece();
    // "ab" before "bc", and "abc" before "▁ab".
    assert_eq!(pieces(&vocabulary, "abc"), ["▁", "abc"]);
    assert_eq!(pieces(&vocabulary, "ab"), ["▁ab"]);
    assert_eq!(pieces(&vocabulary, "  ab"), ["▁▁", "▁ab"]);
    // The leftmost of what is equally good.
    assert_eq!(pieces(&vocabulary, "abab"), ["▁ab", "ab"]);
    // What has no piece is bytes.
    assert_eq!(pieces(&vocabulary, "é"), ["▁", "<0xC3>", "<0xA9>"]);
    // A space is put before what follows a special token, as before the beginning.
    assert_eq!(pieces(&vocabulary, "ab<s>ab"), ["▁ab", "<s>", "▁ab"]);
    assert_eq!(pieces(&vocabulary, "<|user|>ab"), ["<|user|>", "▁ab"]);
    assert!(pieces(&vocabulary, "").is_empty());
    // No text leads to a number that is not used.
    assert!(!pieces(&vocabulary, "[PAD]").contains(&"[PAD]".into()));

    let bare = Vocabulary { add_space_prefix: Some(false), ..vocabulary };
    assert_eq!(pieces(&bare, "ab ab"), ["ab", "▁ab"]);
    let tokenizer = tokenizer(&bare);
    assert_eq!(tokenizer.decode(&tokenizer.encode(" ab", false).unwrap()).unwrap(), " ab");
}

#[test]
fn listed_merges_are_taken_as_they_are_listed() {
    let vocabulary = listed();
    assert_eq!(pieces(&vocabulary, "ab abc  é"), ["ab", "▁", "abc", "▁▁", "<0xC3>", "<0xA9>"]);
    let turned = ["b c", "a b"].map(String::from).to_vec();
    assert_eq!(pieces(&Vocabulary { merges: turned, ..vocabulary }, "abc"), ["a", "bc"]);
}

#[test]
fn user_defined_pieces_of_spaces_are_found() {
    let mut it = Builder(sentencepiece());
    it.0.add_space_prefix = Some(false);
    it.token("▁▁▁", TokenType::UserDefined, 0.0);
    assert_eq!(pieces(&it.0, "a   b"), ["a", "▁▁▁", "b"]);
}

#[test]
fn unigrams_are_the_most_likely_pieces() {
    let vocabulary = unigram();
    // -2 - 4 beats -6 - 3 and -2 - 3 - 3.
    assert_eq!(pieces(&vocabulary, "ab"), ["▁", "ab"]);
    assert_eq!(pieces(&vocabulary, "a b"), ["▁", "a", "▁", "b"]);
    assert_eq!(tokenizer(&vocabulary).encode("b", true).unwrap().last(), Some(&1), "EOS");
    let extra = "  a   b ";
    assert_eq!(pieces(&vocabulary, extra).iter().filter(|it| *it == "▁").count(), 7);
    let vocabulary = Vocabulary { remove_extra_whitespaces: true, ..vocabulary };
    assert_eq!(pieces(&vocabulary, extra), ["▁", "a", "▁", "b"]);
    // A table that is none.
    let damaged = Vocabulary { precompiled_charsmap: vec![1, 2, 3], ..vocabulary };
    assert!(refused(&damaged).contains("not a usable tokenizer"));
}

#[test]
fn words_are_pieces_the_longest_first() {
    let vocabulary = word_piece();
    assert_eq!(
        pieces(&vocabulary, "Running FAST, 中x"),
        ["▁run", "ning", "▁fast", "▁,", "▁中", "[UNK]"]
    );
    assert_eq!(tokenizer(&vocabulary).encode("run", true).unwrap(), [2, 4, 3]);
    let tokenizer = tokenizer(&vocabulary);
    let ids = tokenizer.encode("running fast", true).unwrap();
    assert_eq!(tokenizer.decode(&ids).unwrap(), "running fast");
    let cased = Vocabulary { lowercase: Some(false), ..vocabulary };
    assert_eq!(pieces(&cased, "Fast"), ["[UNK]"]);
}

#[test]
fn what_stands_around_a_text_is_the_files_or_the_algorithms() {
    let around = |vocabulary: &Vocabulary| {
        let tokenizer = tokenizer(vocabulary);
        let (bare, full) = (tokenizer.encode("a", false), tokenizer.encode("a", true));
        let (bare, full) = (bare.unwrap(), full.unwrap());
        let at = full.windows(bare.len()).position(|it| it == bare).unwrap();
        (full[..at].to_vec(), full[at + bare.len()..].to_vec())
    };
    assert_eq!(around(&sentencepiece()), (vec![1], vec![]));
    assert_eq!(around(&listed()), (vec![1], vec![]));
    assert_eq!(around(&unigram()), (vec![], vec![1]));
    let neither = Vocabulary { add_bos: Some(false), ..sentencepiece() };
    assert_eq!(around(&neither), (vec![], vec![]));
    let both = Vocabulary { bos: Some(5), add_eos: Some(true), ..sentencepiece() };
    assert_eq!(around(&both), (vec![5], vec![2]));
    let end = byte_level("gpt-2").bos.unwrap();
    assert_eq!(around(&byte_level("gpt-2")), (vec![], vec![]));
    assert_eq!(around(&byte_level("llama-bpe")), (vec![end], vec![]));
}

/// As llama.cpp does it: what saves a file may have taken BOS out of its template.
#[test]
fn chats_begin_with_bos_once_where_the_file_says_so() {
    let mut vocabulary = sentencepiece();
    let (bos, written) = (1, "<s>");
    let chat =
        |vocabulary: &Vocabulary, text: &str| tokenizer(vocabulary).encode_chat(text).unwrap();
    let plain = tokenizer(&vocabulary).encode("the", false).unwrap();
    assert_eq!(chat(&vocabulary, "the"), [&[bos][..], &plain].concat());
    let begun = chat(&vocabulary, &format!("{written}the"));
    assert_eq!(begun[0], bos);
    assert_eq!(begun.iter().filter(|id| **id == bos).count(), 1, "{begun:?}");
    vocabulary.add_bos = Some(false);
    assert_eq!(chat(&vocabulary, "the"), plain);
}

/// However many bytes a prompt ends in, which are decoded as a whole.
#[test]
fn an_answer_goes_on_behind_bytes_of_the_prompt() {
    let tokenizer = tokenizer(&sentencepiece());
    for (prompt, answer) in [("ab🇩🇪", "\nab"), ("您好\n", "您 ab"), ("😀😀", "😀"), ("a😀", "b")]
    {
        let before = tokenizer.encode(prompt, false).unwrap();
        let all = tokenizer.encode(&format!("{prompt}{answer}"), false).unwrap();
        assert_eq!(all[..before.len()], before);
        let mut detokenizer = tokenizer.detokenizer(&before);
        let pieces = all[before.len()..].iter().map(|&id| detokenizer.push(id).unwrap());
        let mut text: String = pieces.collect();
        text += &detokenizer.finish().unwrap();
        assert_eq!(text, answer, "behind {prompt}");
    }
}

#[test]
fn phi_3_drops_white_space_behind_its_markers() {
    let vocabulary = Vocabulary { architecture: "phi3".into(), ..sentencepiece() };
    assert_eq!(pieces(&vocabulary, "<|user|>\nab"), ["<|user|>", "▁ab"]);
    assert_eq!(pieces(&vocabulary, "<s> ab"), ["<s>", "▁", "▁ab"]);
    assert!(pieces(&sentencepiece(), "<|user|>\nab").contains(&"<0x0A>".into()));
    // Phi-4 has the architecture, and another tokenizer.
    let vocabulary = Vocabulary { architecture: "phi3".into(), ..byte_level("gpt-4o") };
    assert_eq!(pieces(&vocabulary, "<|turn|>\nx"), ["<|turn|>", "Ċ", "x"]);
}

#[test]
fn markers_that_a_file_calls_normal_are_cut_out_and_other_text_is_not() {
    let mut vocabulary = byte_level("gpt-2");
    let end = vocabulary.eos.unwrap() as usize;
    vocabulary.types[end] = TokenType::Normal;
    vocabulary.bos = vocabulary.tokens.iter().position(|it| it == ",").map(|id| id as u32);
    assert_eq!(pieces(&vocabulary, "x,<|end|>"), ["x", ",", "<|end|>"]);
    let tokenizer = tokenizer(&vocabulary);
    let ids = tokenizer.encode("x,<|end|>", false).unwrap();
    assert_eq!(tokenizer.decode(&ids).unwrap(), "x,");
}

#[test]
fn the_template_knows_the_special_tokens() {
    let template =
        "{{ bos_token }}{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}";
    let vocabulary = Vocabulary { chat_template: Some(template.into()), ..sentencepiece() };
    let path = Path::new(FILE);
    let template = ChatTemplate::from_vocabulary(&vocabulary, path).unwrap().unwrap();
    let messages = [Message::new("user", "ab")];
    assert_eq!(template.render(&messages, &RenderOptions::prompt()).unwrap(), "<s>ab</s>");
    assert!(ChatTemplate::from_vocabulary(&sentencepiece(), path).unwrap().is_none());

    let endless = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}";
    for (template, what) in [("{% if %}", "chat template"), (endless, "fuel")] {
        let vocabulary = Vocabulary { chat_template: Some(template.into()), ..sentencepiece() };
        let error = ChatTemplate::from_vocabulary(&vocabulary, path)
            .and_then(|it| it.unwrap().render(&messages, &RenderOptions::prompt()))
            .unwrap_err()
            .to_string();
        assert!(error.contains(FILE) && error.contains(what), "{error}");
    }
}

#[test]
fn what_contradicts_itself_is_named() {
    type Change = fn(&mut Vocabulary);
    let byte_level = || byte_level("gpt-2");
    let cases: [(Vocabulary, Change, &str); 21] = [
        (byte_level(), |it| it.model.clear(), "tokenizer.ggml.model is missing"),
        (byte_level(), |it| it.model = "rwkv".into(), "`rwkv` is not supported"),
        (byte_level(), |it| it.pre = None, "tokenizer.ggml.pre is missing"),
        (
            byte_level(),
            |it| it.pre = Some("odd".into()),
            "`odd` is not supported; these are: llama-bpe",
        ),
        (byte_level(), |it| it.tokens.clear(), "tokenizer.ggml.tokens is missing"),
        (byte_level(), |it| it.merges.clear(), "tokenizer.ggml.merges is missing"),
        (byte_level(), |it| it.types.truncate(5), "token_type has 5 values for 263 tokens"),
        (byte_level(), |it| it.scores = vec![0.0], "scores has 1 values"),
        (byte_level(), |it| it.merges[2] = "Ġthe".into(), "2 is `Ġthe`, which is no pair"),
        (byte_level(), |it| it.merges[2] = " ".into(), "2 is ` `, which is no pair"),
        (
            byte_level(),
            |it| it.merges[2] = "th nope".into(),
            "tokenizer.ggml.merges: Token `nope` out of vocabulary",
        ),
        (byte_level(), |it| it.merges[2] = "th h".into(), "`thh` out of vocabulary"),
        (byte_level(), |it| it.tokens[7] = "the".into(), "7 and 257 are both `the`"),
        (byte_level(), |it| it.bos = Some(263), "bos_token_id is 263, of 263 tokens"),
        (byte_level(), |it| it.eot = Some(u32::MAX), "eot_token_id is 4294967295"),
        (
            byte_level(),
            |it| (it.bos, it.add_bos) = (None, Some(true)),
            "bos_token_id is missing, which",
        ),
        (sentencepiece(), |it| it.scores.clear(), "tokenizer.ggml.scores is missing"),
        (sentencepiece(), |it| it.scores[9] = f32::NAN, "of token 9 is NaN"),
        (sentencepiece(), |it| it.tokens[260] = "ab".repeat(600), "260 has 1200 bytes"),
        (unigram(), |it| it.unknown = Some(9999), "unknown_token_id is 9999"),
        (word_piece(), |it| it.unknown = None, "unknown_token_id is missing"),
    ];
    for (mut vocabulary, change, message) in cases {
        change(&mut vocabulary);
        let error = refused(&vocabulary);
        assert!(error.contains(message), "{message}: {error}");
    }
    // No text for a number is no mistake.
    let mut vocabulary = byte_level();
    vocabulary.tokens[5].clear();
    assert_eq!(tokenizer(&vocabulary).encode("the", false).unwrap(), [257]);
}

#[test]
fn what_is_written_as_json_is_the_same_tokenizer() {
    let folder = tempfile::tempdir().unwrap();
    let text = "<s>ab abc the 12  é running <|user|> <|end|>";
    let all = [byte_level("llama-bpe"), sentencepiece(), listed(), unigram(), word_piece()];
    for vocabulary in all {
        let tokenizer = tokenizer(&vocabulary);
        let json = tokenizer.to_json().unwrap();
        std::fs::write(folder.path().join("tokenizer.json"), json).unwrap();
        let read = Tokenizer::require(folder.path()).unwrap();
        for special in [false, true] {
            let ids = tokenizer.encode(text, special).unwrap();
            assert_eq!(read.encode(text, special).unwrap(), ids);
            assert_eq!(read.decode(&ids).unwrap(), tokenizer.decode(&ids).unwrap());
        }
    }
}

/// Texts of all characters, and of those that the vocabularies have pieces of.
fn texts() -> impl Strategy<Value = String> {
    let some = prop::sample::select("abcthe12 \n\r\t'<|>.é中\u{301}🦊".chars().collect::<Vec<_>>());
    let character = prop_oneof![some, any::<char>()];
    prop::collection::vec(character, 0..24).prop_map(|text| text.into_iter().collect())
}

/// Tokenizers that keep all of a text, and what to call them.
static LOSSLESS: LazyLock<Vec<(String, Tokenizer)>> = LazyLock::new(|| {
    let pres = ["gpt-2", "llama-bpe", "smollm", "tekken", "gpt-4o", "deepseek-v3", "falcon"];
    let bare = Vocabulary { add_space_prefix: Some(false), ..sentencepiece() };
    let all = pres.map(byte_level).into_iter().chain([sentencepiece(), bare, listed(), unigram()]);
    all.map(|it| (format!("{} {:?}", it.model, it.pre), tokenizer(&it))).collect()
});

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_text_comes_back(text in texts()) {
        // This one stands for a space, and then is one.
        let text = text.replace('▁', " ");
        for (kind, tokenizer) in &*LOSSLESS {
            let ids = tokenizer.encode(&text, false).unwrap();
            prop_assert_eq!(tokenizer.decode(&ids).unwrap(), text.clone(), "{}", kind);
            // The same by pieces, as it is shown while it is generated; but U+FFFD as text looks
            // like the half of a character.
            if text.contains(char::REPLACEMENT_CHARACTER) {
                continue;
            }
            let mut detokenizer = tokenizer.detokenizer(&[]);
            let mut shown = String::new();
            for &id in &ids {
                shown += &detokenizer.push(id).unwrap();
            }
            shown += &detokenizer.finish().unwrap();
            prop_assert_eq!(shown, text.clone(), "{}", kind);
        }
    }

    #[test]
    fn hostile_vocabularies_are_refused_or_work(
        model in prop::sample::select(vec!["gpt2", "llama", "gemma4", "t5", "bert"]),
        tokens in prop::collection::vec("[ab ▁<>#\\[\\]]{0,4}", 0..30),
        types in prop::collection::vec(0i64..7, 0..30),
        merges in prop::collection::vec("[ab ▁]{0,4}", 0..6),
        ids in prop::array::uniform4(prop::option::of(0u32..40)),
        flags in any::<[bool; 4]>(),
    ) {
        let types = types.into_iter().map(|it| TokenType::from_number(it).unwrap());
        let mut types: Vec<_> = types.take(tokens.len()).collect();
        if types.len() < tokens.len() {
            types.clear();
        }
        let vocabulary = Vocabulary {
            model: model.into(),
            pre: Some("gpt-2".into()),
            scores: tokens.iter().map(|token| -(token.len() as f32)).collect(),
            tokens,
            types,
            merges,
            bos: ids[0],
            eos: ids[1],
            unknown: ids[2],
            separator: ids[3],
            add_bos: Some(flags[0]),
            add_eos: Some(flags[1]),
            add_space_prefix: Some(flags[2]),
            remove_extra_whitespaces: flags[3],
            ..Vocabulary::default()
        };
        if let Ok(tokenizer) = Tokenizer::from_vocabulary(&vocabulary, Path::new(FILE))
            && let Ok(ids) = tokenizer.encode("ab a▁b <a> #b", true)
        {
            prop_assert!(ids.iter().all(|&id| (id as usize) < vocabulary.tokens.len()));
            tokenizer.decode(&ids).unwrap();
        }
    }
}

/// Some converters took tokenizers of SentencePiece for BERT's: that is refused, as words would be unknown.
#[test]
fn what_begins_texts_tells_another_tokenizer() {
    let vocabulary = |first: &str| Vocabulary {
        architecture: "bert".into(),
        model: "bert".into(),
        tokens: [first, "[SEP]", "[UNK]", "\u{2581}so"].map(str::to_owned).into(),
        cls: Some(0),
        separator: Some(1),
        unknown: Some(2),
        ..Vocabulary::default()
    };
    let build = |first| Tokenizer::from_vocabulary(&vocabulary(first), Path::new(FILE));
    assert_eq!(build("[CLS]").unwrap().encode("so", true).unwrap(), [0, 3, 1]);
    for first in ["<s>", "\u{2581}<s>"] {
        let error = build(first).unwrap_err().to_string();
        assert!(error.contains("converted as BERT's"), "{error}");
    }
}
