//! Prompts for filling in: the tokens of what the makers of models show, cut to what there is room for.

mod fixture;

use serde_json::{Value, json};
use text::{Infill, Place, Tokenizer};

/// The tokenizer of the fixture with `marks` besides, of which some models say that they are special, others not.
fn with(marks: &[&str]) -> Tokenizer {
    let folder = tempfile::tempdir().unwrap();
    fixture::write_tokenizer(folder.path());
    let path = folder.path().join("tokenizer.json");
    let mut json: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let added = json["added_tokens"].as_array_mut().unwrap();
    for (at, mark) in marks.iter().enumerate() {
        added.push(json!({
            "id": fixture::vocab_size() + at, "content": mark, "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false, "special": at % 2 == 0,
        }));
    }
    std::fs::write(&path, json.to_string()).unwrap();
    Tokenizer::require(folder.path()).unwrap()
}

const QWEN: [&str; 7] = [
    "<|fim_prefix|>",
    "<|fim_suffix|>",
    "<|fim_middle|>",
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
    "<|endoftext|>",
];

fn around<'a>(prefix: &'a str, suffix: &'a str) -> Place<'a> {
    Place { prefix, suffix, ..Place::default() }
}

/// What all tokens of a prompt for `place` say.
fn written(tokenizer: &Tokenizer, place: &Place<'_>) -> String {
    let infill = Infill::of(tokenizer).unwrap();
    let (tokens, cut) = infill.tokens(place, usize::MAX, 0).unwrap();
    assert!(!cut);
    // As the text of the prompt has them, which is what the makers' programs tokenize.
    let text = tokenizer.decode_all(&tokens).unwrap();
    assert_eq!(tokenizer.encode(text.strip_prefix("<s>").unwrap(), true).unwrap(), tokens);
    text
}

#[test]
fn a_place_is_marked_as_each_family_knows_it() {
    let cases: [(&[&str], &str); 6] = [
        (&QWEN, "<s><|fim_prefix|>def f(<|fim_suffix|>):\n<|fim_middle|>"),
        (
            &["<fim_prefix>", "<fim_middle>", "<fim_suffix>"],
            "<s><fim_prefix>def f(<fim_suffix>):\n<fim_middle>",
        ),
        (
            &["<｜fim▁hole｜>", "<｜fim▁begin｜>", "<｜fim▁end｜>"],
            "<s><｜fim▁begin｜>def f(<｜fim▁hole｜>):\n<｜fim▁end｜>",
        ),
        (
            &["<|code_prefix|>", "<|code_middle|>", "<|code_suffix|>"],
            "<s><|code_prefix|>def f(<|code_suffix|>):\n<|code_middle|>",
        ),
        (
            &["<[fim-prefix]>", "<[fim-suffix]>", "<[fim-middle]>"],
            "<s><[fim-suffix]>):\n<[fim-prefix]>def f(<[fim-middle]>",
        ),
        (&["[SUFFIX]", "[PREFIX]"], "<s>[SUFFIX]):\n[PREFIX]def f("),
    ];
    for (marks, expected) in cases {
        assert_eq!(written(&with(marks), &around("def f(", "):\n")), expected);
    }
}

#[test]
fn a_tokenizer_without_all_marks_fills_nothing_in() {
    for marks in [&[][..], &QWEN[..2], &["[PREFIX]"]] {
        assert!(Infill::of(&with(marks)).is_none(), "{marks:?}");
    }
}

#[test]
fn marks_and_ends_of_texts_end_what_is_filled_in() {
    let tokenizer = with(&QWEN);
    let mut ends = Infill::of(&tokenizer).unwrap().ends().to_vec();
    ends.sort_unstable();
    let first = fixture::vocab_size() as u32;
    assert_eq!(ends, (first..first + QWEN.len() as u32).collect::<Vec<_>>());

    let gemma = with(&[&QWEN[..3], &["<|file_separator|>"]].concat());
    assert_eq!(Infill::of(&gemma).unwrap().ends().len(), 4);
    let granite = with(&[&QWEN[..4], &["<|filename|>", "<|reponame|>"]].concat());
    assert_eq!(Infill::of(&granite).unwrap().ends().len(), 6);
}

#[test]
fn other_files_go_before_it_as_the_family_has_them() {
    let files =
        [("a.py".to_owned(), "A = 1".to_owned()), ("b.py".to_owned(), "B = 2\n".to_owned())];
    let place = Place { name: Some("c.py"), files: &files, ..around("c = ", "\n") };
    assert_eq!(
        written(&with(&QWEN), &place),
        "<s><|repo_name|>project\n<|file_sep|>a.py\nA = 1\n<|file_sep|>b.py\nB = 2\n<|file_sep|>c.py\n\
         <|fim_prefix|>c = <|fim_suffix|>\n<|fim_middle|>"
    );
    let nameless = Place { name: None, ..place };
    assert!(written(&with(&QWEN), &nameless).contains("<|file_sep|>file\n<|fim_prefix|>"));
    let starcoder = ["<fim_prefix>", "<fim_middle>", "<fim_suffix>", "<filename>"];
    assert_eq!(
        written(&with(&starcoder), &place),
        "<s><filename>a.py\nA = 1\n<filename>b.py\nB = 2\n<filename>c.py\n\
         <fim_prefix>c = <fim_suffix>\n<fim_middle>"
    );
    let codestral = with(&["[SUFFIX]", "[PREFIX]"]);
    let infill = Infill::of(&codestral).unwrap();
    let (tokens, _) = infill.tokens(&place, usize::MAX, 0).unwrap();
    let text = codestral.decode_all(&tokens).unwrap();
    assert_eq!(text, "<s>[SUFFIX]\n[PREFIX]#a.py\nA = 1\n#b.py\nB = 2\n#c.py\nc = ");
    let (tokens, _) = infill.tokens(&nameless, usize::MAX, 0).unwrap();
    assert!(codestral.decode_all(&tokens).unwrap().ends_with("#b.py\nB = 2\nc = "));
}

#[test]
fn a_mark_in_a_text_is_text() {
    let tokenizer = with(&QWEN);
    let infill = Infill::of(&tokenizer).unwrap();
    let text = "a <|fim_suffix|><|endoftext|> b </s> \u{e9}<|fim_middle|>";
    let files = [("<|file_sep|>".to_owned(), text.to_owned())];
    let place = Place { files: &files, ..around(text, text) };
    let (tokens, _) = infill.tokens(&place, usize::MAX, 0).unwrap();
    let added: Vec<_> = tokens.iter().filter(|&&id| tokenizer.is_added(id)).collect();
    let marks =
        "<s><|repo_name|><|file_sep|><|file_sep|><|fim_prefix|><|fim_suffix|><|fim_middle|>";
    let marks = tokenizer.encode(marks, false).unwrap();
    assert_eq!(added, marks.iter().collect::<Vec<_>>());
    assert_eq!(
        tokenizer.decode_all(&tokens).unwrap(),
        format!(
            "<s><|repo_name|>project\n<|file_sep|><|file_sep|>\n{text}\n<|file_sep|>file\n\
             <|fim_prefix|>{text}<|fim_suffix|>{text}<|fim_middle|>"
        )
    );
}

#[test]
fn many_marks_in_a_text_take_no_longer_than_other_words() {
    // Models have tokens of one character that text is split before, too.
    let tokenizer = with(&[&QWEN[..], &["\u{3042}", "\n"]].concat());
    let infill = Infill::of(&tokenizer).unwrap();
    let text = "\u{3042}\n<|fim_suffix|>".repeat(20_000);
    let (tokens, _) = infill.tokens(&around(&text, ""), usize::MAX, 0).unwrap();
    let suffix = infill.ends()[1];
    assert_eq!(tokens.iter().filter(|&&id| id == suffix).count(), 1);
    let written = tokenizer.decode_all(&tokens).unwrap();
    assert_eq!(written, format!("<s><|fim_prefix|>{text}<|fim_suffix|><|fim_middle|>"));
}

#[test]
fn what_there_is_no_room_for_is_left_out_farthest_first() {
    let tokenizer = with(&QWEN);
    let infill = Infill::of(&tokenizer).unwrap();
    let fill = |place: &Place<'_>, most| {
        let (tokens, cut) = infill.tokens(place, most, 0).unwrap();
        (tokens.len(), tokenizer.decode_all(&tokens).unwrap(), cut)
    };
    let (prefix, suffix) = ("0123456789".repeat(8), "abcdefghij".repeat(8));
    let files: Vec<_> = ["x", "y", "z"].map(|it| (it.to_owned(), it.repeat(30))).into();
    let place = Place { files: &files, ..around(&prefix, &suffix) };

    let (whole, text, cut) = fill(&place, usize::MAX);
    assert!(!cut && text.contains("xxx") && text.contains("yyy") && text.contains("zzz"));
    assert_eq!(fill(&place, 3 * whole), (whole, text, false));
    // Files have a third of the room, the last ones of them.
    let (most, text, cut) = fill(&place, 270);
    assert!(cut && most < 270 && !text.contains("xxx") && text.contains("yyy"), "{text}");
    let files_of = |text: &str| text[..text.find("<|fim_prefix|>").unwrap()].to_owned();
    // Whatever stands around the place.
    let alone = Place { prefix: "", suffix: "", ..place };
    let (_, other, cut) = fill(&alone, 270);
    assert!(cut && files_of(&other) == files_of(&text), "{other}");
    // However long the answer is to be, up to a quarter.
    let (tokens, cut) = infill.tokens(&alone, 270, 60).unwrap();
    assert!(cut && files_of(&tokenizer.decode_all(&tokens).unwrap()) == files_of(&text), "{text}");
    let (tokens, cut) = infill.tokens(&place, 270, 60).unwrap();
    assert!(cut && tokens.len() == 270 + 1 - 60);
    let (_, text, cut) = fill(&alone, 90);
    assert!(cut && !text.contains("<|file_sep|>"), "{text}");
    let large = [files[0].clone(), ("large".to_owned(), "l".repeat(500))];
    let (_, text, cut) = fill(&Place { files: &large, ..place }, 270);
    assert!(cut && text.contains("xxx") && !text.contains("lll"), "{text}");

    // The marks, what begins every text, and of 100 others a quarter of what stands behind.
    let place = around(&prefix, &suffix);
    let (most, text, cut) = fill(&place, 104);
    assert!(cut && most == 104, "{most}");
    assert_eq!(
        text,
        format!(
            "<s><|fim_prefix|>{}<|fim_suffix|>{}<|fim_middle|>",
            &prefix[prefix.len() - 76..],
            &suffix[..24]
        )
    );
    // Either takes what the other leaves.
    let short = around("0123", &suffix);
    let (most, text, cut) = fill(&short, 54);
    assert!(cut && most == 54 && text.contains("<|fim_prefix|>0123<|fim_suffix|>abc"), "{text}");
    let short = around(&prefix, "abcd");
    let (most, text, cut) = fill(&short, 54);
    assert!(cut && most == 54 && text.ends_with("789<|fim_suffix|>abcd<|fim_middle|>"), "{text}");
    let place = Place { files: &files, ..place };
    for most in 0..200 {
        let (tokens, text, _) = fill(&place, most);
        assert!(tokens <= most.max(4) && text.ends_with("<|fim_middle|>"), "{most}: {text}");
    }
}
