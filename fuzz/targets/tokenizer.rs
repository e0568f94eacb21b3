//! `tokenizer.json`: what loads encodes and decodes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use text::Tokenizer;

fuzz_target!(|bytes: &[u8]| {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("tokenizer.json"), bytes).unwrap();
    let Ok(Some(tokenizer)) = Tokenizer::from_dir(folder.path()) else { return };
    for words in ["", "Hello, wörld! 12", " a\u{301}b\n\n<s>", "日本 \u{1F600}"] {
        let Ok(ids) = tokenizer.encode(words, true) else { continue };
        std::hint::black_box(tokenizer.decode(&ids).ok());
    }
});
