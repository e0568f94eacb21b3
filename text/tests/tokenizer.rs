//! Text to tokens and back, with a byte-level tokenizer that is written by program.

mod fixture;

use std::collections::HashMap;
use std::sync::LazyLock;

use proptest::prelude::*;
use text::{StopStrings, TextStream, Tokenizer};

fn tokenizer() -> (tempfile::TempDir, Tokenizer) {
    let folder = tempfile::tempdir().unwrap();
    fixture::write_tokenizer(folder.path());
    let tokenizer = Tokenizer::require(folder.path()).unwrap();
    (folder, tokenizer)
}

fn stream(tokenizer: &Tokenizer, prompt: &[u32], ids: &[u32]) -> Vec<String> {
    let mut detokenizer = tokenizer.detokenizer(prompt);
    let mut pieces: Vec<_> = ids.iter().map(|&id| detokenizer.push(id).unwrap()).collect();
    pieces.push(detokenizer.finish().unwrap());
    pieces
}

#[test]
fn what_the_library_panics_at_is_an_error() {
    let (folder, _) = tokenizer();
    let path = folder.path().join("tokenizer.json");
    let mut json: serde_json::Value =
        serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    json["decoder"] = serde_json::Value::Null;
    // Cut in the middle of a decoder: the library unwraps what it cannot parse.
    let whole = json.to_string();
    let damaged = whole.replace(r#""decoder":null"#, r#""decoder":{"type":"Fuse"u}"#);
    assert_ne!(damaged, whole);
    std::fs::write(&path, damaged).unwrap();
    let Err(error) = Tokenizer::from_dir(folder.path()) else { panic!("it loads") };
    let error = error.to_string();
    assert!(error.contains("tokenizer.json: not a usable tokenizer: "), "{error}");
}

#[test]
fn a_text_is_neither_cut_nor_filled_up_whatever_the_file_says() {
    let (folder, as_it_is) = tokenizer();
    let path = folder.path().join("tokenizer.json");
    let mut json: serde_json::Value =
        serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    json["truncation"] = serde_json::json!({
        "direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0
    });
    json["padding"] = serde_json::json!({
        "strategy": {"Fixed": 64}, "direction": "Left", "pad_to_multiple_of": null,
        "pad_id": 1, "pad_type_id": 0, "pad_token": "</s>"
    });
    std::fs::write(&path, json.to_string()).unwrap();
    let tokenizer = Tokenizer::require(folder.path()).unwrap();
    for text in ["a", "one two three four five six seven eight nine ten"] {
        let ids = tokenizer.encode(text, true).unwrap();
        assert_eq!(ids, as_it_is.encode(text, true).unwrap());
        assert_eq!(tokenizer.decode(&ids).unwrap(), text);
    }
}

#[test]
fn characters_that_span_tokens_appear_whole() {
    let (_folder, tokenizer) = tokenizer();
    for expected in ["fox", " a – b", "日本語", "🦊🦊", "naïve ", "\n\n x"] {
        let ids = tokenizer.encode(expected, false).unwrap();
        let pieces = stream(&tokenizer, &[], &ids);
        assert_eq!(pieces.concat(), expected);
        assert!(pieces.iter().all(|piece| !piece.contains('\u{fffd}')), "{pieces:?}");
    }
}

/// A tokenizer with a token for each run of up to four bytes of `text`, and all of these.
fn runs_of_bytes(text: &str) -> (Tokenizer, Vec<Vec<u8>>) {
    let bytes = text.as_bytes();
    let runs = (1..=4).flat_map(|length| bytes.windows(length).map(<[u8]>::to_vec));
    let mut runs: Vec<_> = runs.collect();
    runs.sort();
    runs.dedup();
    let written = |run: &Vec<u8>| run.iter().map(|&b| fixture::byte_character(b)).collect();
    let vocab: HashMap<String, usize> =
        runs.iter().enumerate().map(|(id, run)| (written(run), id)).collect();
    let json = serde_json::json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
        "normalizer": null, "pre_tokenizer": null, "post_processor": null,
        "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true},
        "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "a"},
    });
    let folder = tempfile::tempdir().unwrap();
    fixture::write(folder.path(), "tokenizer.json", &json);
    (Tokenizer::require(folder.path()).unwrap(), runs)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Tokens of vocabularies end one character and begin the next, as those of Falcon and Command R.
    #[test]
    fn a_character_appears_with_the_token_that_ends_it(
        lengths in prop::collection::vec(1..5usize, 32),
    ) {
        const TEXT: &str = "嚢儾a饳é끓ש🦊ת🦊🦊b";
        static RUNS: LazyLock<(Tokenizer, Vec<Vec<u8>>)> = LazyLock::new(|| runs_of_bytes(TEXT));
        let (tokenizer, runs) = &*RUNS;
        let mut detokenizer = tokenizer.detokenizer(&[]);
        let (mut shown, mut at) = (String::new(), 0);
        for length in lengths {
            let end = (at + length).min(TEXT.len());
            if end == at {
                break;
            }
            let id = runs.iter().position(|run| run == &TEXT.as_bytes()[at..end]).unwrap();
            shown += &detokenizer.push(id as u32).unwrap();
            at = end;
            let whole = (0..=at).rev().find(|&it| TEXT.is_char_boundary(it)).unwrap();
            prop_assert_eq!(&shown, &TEXT[..whole]);
        }
        let rest = if TEXT.is_char_boundary(at) { "" } else { "\u{fffd}" };
        prop_assert_eq!(detokenizer.finish().unwrap(), rest);
    }
}

#[test]
fn a_character_may_begin_in_the_prompt() {
    let (_folder, tokenizer) = tokenizer();
    let ids = tokenizer.encode("x🦊y", false).unwrap();
    let (prompt, rest) = ids.split_at(3);
    assert_eq!(stream(&tokenizer, prompt, rest).concat(), "🦊y");
}

#[test]
fn a_character_of_four_tokens_may_follow_one_that_shows_nothing() {
    let (_folder, tokenizer) = tokenizer();
    let ids = tokenizer.encode("<|turn|>🦊", false).unwrap();
    assert_eq!(ids.len(), 5);
    assert_eq!(stream(&tokenizer, &[], &ids), ["", "", "", "", "🦊", ""]);
}

#[test]
fn a_space_before_the_first_new_word_is_kept() {
    // As sentencepiece models do: the first word's space is not shown.
    let metaspace = serde_json::json!({
        "type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true
    });
    let tokenizer = serde_json::json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
        "normalizer": null, "pre_tokenizer": metaspace, "post_processor": null,
        "decoder": metaspace,
        "model": {"type": "WordLevel", "vocab": {"▁one": 0, "▁two": 1}, "unk_token": "▁one"},
    });
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
    let tokenizer = Tokenizer::require(folder.path()).unwrap();
    assert_eq!(stream(&tokenizer, &[0], &[1, 0, 1]).concat(), " two one two");
    assert_eq!(stream(&tokenizer, &[], &[1, 0]).concat(), "two one");
}

#[test]
fn bytes_that_are_no_character_do_not_hold_text_back_for_ever() {
    let (_folder, tokenizer) = tokenizer();
    let lead = tokenizer.encode("🦊", false).unwrap()[0];
    let mut detokenizer = tokenizer.detokenizer(&[]);
    let shown: String = (0..12).map(|_| detokenizer.push(lead).unwrap()).collect();
    assert!(shown.starts_with('\u{fffd}'));
    let mut detokenizer = tokenizer.detokenizer(&[]);
    assert_eq!(detokenizer.push(lead).unwrap(), "");
    assert_eq!(detokenizer.finish().unwrap(), "\u{fffd}");
}

#[test]
fn special_tokens_are_added_on_demand_and_never_shown() {
    let (_folder, tokenizer) = tokenizer();
    let ids = tokenizer.encode("ab", true).unwrap();
    assert_eq!(ids[0], fixture::BOS);
    assert_eq!(tokenizer.encode("ab", false).unwrap(), ids[1..]);
    assert_eq!(tokenizer.decode(&ids).unwrap(), "ab");
    assert!(tokenizer.is_added(fixture::BOS) && !tokenizer.is_added(ids[1]));
}

#[test]
fn a_damaged_tokenizer_is_named() {
    let folder = tempfile::tempdir().unwrap();
    assert!(Tokenizer::from_dir(folder.path()).unwrap().is_none());
    let error = Tokenizer::require(folder.path()).err().unwrap().to_string();
    assert!(error.contains("tokenizer.json"), "{error}");
    std::fs::write(folder.path().join("tokenizer.json"), "{").unwrap();
    let error = Tokenizer::from_dir(folder.path()).err().unwrap().to_string();
    assert!(error.contains("tokenizer.json"), "{error}");
}

#[test]
fn a_stream_ends_at_a_stop_string() {
    let (_folder, tokenizer) = tokenizer();
    let ids = tokenizer.encode("ab END cd", false).unwrap();
    let stops = StopStrings::new(&["END".into()]).unwrap();
    let mut stream = TextStream::new(tokenizer.detokenizer(&[]), stops);
    let mut shown = String::new();
    let used = ids.iter().take_while(|&&id| {
        let (piece, stopped) = stream.push(id);
        shown += &piece;
        !stopped
    });
    assert_eq!(used.count(), "ab EN".len());
    assert_eq!(stream.push(ids[0]), (String::new(), true));
    assert_eq!((shown.as_str(), stream.finish().unwrap().as_str()), ("ab ", ""));
}

#[test]
fn a_stream_gives_what_it_held_back_at_its_end() {
    let (_folder, tokenizer) = tokenizer();
    let ids = tokenizer.encode("a END 🦊", false).unwrap();
    let cut = &ids[..ids.len() - 1];
    for (stop, rest) in [("\u{fffd}x", "\u{fffd}"), ("\u{fffd}", "")] {
        let stops = StopStrings::new(&[stop.into()]).unwrap();
        let mut stream = TextStream::new(tokenizer.detokenizer(&[]), stops);
        let shown: String = cut.iter().map(|&id| stream.push(id).0).collect();
        assert_eq!((shown.as_str(), stream.finish().unwrap().as_str()), ("a END ", rest));
    }
}
