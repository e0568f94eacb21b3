//! `tokenizer.json`: what loads encodes and decodes.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../cli/src/panics.rs"]
mod panics;
#[allow(dead_code)]
#[path = "../../cli/src/text.rs"]
mod text;

fuzz_target!(|bytes: &[u8]| {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("tokenizer.json"), bytes).unwrap();
    let Ok(Some(text)) = text::Text::from_dir(folder.path()) else { return };
    for words in ["", "Hello, wörld! 12", " a\u{301}b\n\n<s>", "日本 \u{1F600}"] {
        let Ok(ids) = text.encode(words, true) else { continue };
        std::hint::black_box(text.decode(&ids).ok());
    }
});
