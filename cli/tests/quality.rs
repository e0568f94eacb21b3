//! `iree-llm quality` on the model in the repository, and on a tiny one.
#![cfg(feature = "iree")]

mod support;

use serde_json::Value;
use support::{fails, json, model, succeeds};

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("no number: {value}"))
}

#[cfg(feature = "iree")]
#[test]
fn fewer_bits_lose_more() {
    let tales = concat!(env!("CARGO_MANIFEST_DIR"), "/../models/tiny-tales");
    // Each by itself: to compile two precisions takes a slow machine long enough.
    let [stored, bf16, int8, int4] = ["stored", "bf16", "int8", "int4"].map(|precision| {
        let more = ["-n", "96", "--prompts", "3", "--greedy-tokens", "12", "-q", "--json"];
        let line = ["quality", "-m", tales, "--precision", precision];
        let report = json(&[&line[..], &more].concat());
        assert_eq!((&report["source"], &report["tokens"]), (&"own".into(), &96.into()));
        report
    });
    let f32 = number(&stored["perplexity"]);
    assert_eq!(f32, number(&int4["perplexity"]), "the same text in every run");
    let [stored, bf16, int8, int4] =
        [stored, bf16, int8, int4].map(|report| report["precisions"][0].clone());

    // bf16 weights are widened exactly: nothing but the order of sums could differ.
    assert!(number(&stored["kl"]["max"]) < 1e-6, "{stored}");
    assert_eq!(number(&stored["same_top"]), 1.0, "{stored}");
    assert_eq!(stored["greedy"]["to_the_end"], 3, "{stored}");
    assert_eq!(stored["greedy"]["common_prefix"], stored["greedy"]["length"]);
    assert!((number(&stored["perplexity"]) - f32).abs() < 1e-4, "{stored}");

    let kl = |it: &Value| number(&it["kl"]["mean"]);
    assert!(kl(&bf16) > 1e-9 && kl(&bf16) < 0.2 * kl(&int8), "{bf16}");
    assert!(kl(&int8) > 1e-7 && kl(&int8) < 0.001, "{int8}");
    assert!(kl(&int4) > 4.0 * kl(&int8) && kl(&int4) < 0.05, "{int4}");
    assert!(number(&int4["logit_error"]) > number(&int8["logit_error"]), "{int4}");
    for it in [stored, bf16, int8, int4] {
        let [mean, p99, max] = ["mean", "p99", "max"].map(|key| number(&it["kl"][key]));
        assert!(mean <= p99 && p99 <= max, "{it}");
    }
}

#[test]
fn a_text_is_cut_into_pieces_that_begin_as_texts_do() {
    let model = model();
    let folder = model.path().to_str().unwrap();
    let line = ["quality", "-m", folder, "-q", "--precision", "stored", "--greedy-tokens", "4"];
    // A token for the beginning and one for each byte, in pieces of 8: 20 letters are 7 + 7 + 6.
    let text = ["-p", "abcdefghijklmnopqrst", "--window", "8"];
    let report = json(&[&line[..], &text, &["--json"]].concat());
    assert_eq!((&report["tokens"], &report["contexts"]), (&23.into(), &3.into()), "{report}");
    assert_eq!(report["source"], "given");
    // The model is stored in float32: it is compared with itself.
    let [same] = &report["precisions"].as_array().unwrap()[..] else { panic!("{report}") };
    assert_eq!((number(&same["kl"]["max"]), number(&same["same_top"])), (0.0, 1.0));
    assert_eq!(same["perplexity"], report["perplexity"]);
    // Arbitrary weights know nothing of the alphabet.
    assert!(number(&report["perplexity"]) > 50.0, "{report}");

    let file = model.path().join("text.txt");
    std::fs::write(&file, "abcdefghijklmnopqrst").unwrap();
    let from_file = ["-f", file.to_str().unwrap(), "--window", "8", "--json"];
    assert_eq!(json(&[&line[..], &from_file].concat()), report);

    let table = succeeds(&[&line[..], &text].concat());
    assert!(table.contains("23 tokens of the text (contexts: 3)"), "{table}");
    assert!(table.contains("\n| f32 ") && table.contains("\n| stored "), "{table}");
}

#[test]
fn random_ids_need_no_tokenizer() {
    let model = model();
    std::fs::remove_file(model.path().join("tokenizer.json")).unwrap();
    let folder = model.path().to_str().unwrap();
    let line = ["quality", "-m", folder, "-q", "--precision", "stored", "-n", "20", "--json"];
    let report = json(&[&line[..], &["--prompts", "0"]].concat());
    assert_eq!((&report["source"], &report["tokens"]), (&"random".into(), &20.into()));
    assert!(report["precisions"][0]["greedy"].is_null(), "{report}");

    let message = fails(1, &[&line[..], &["-p", "a text"]].concat());
    assert!(message.contains("tokenizer.json"), "{message}");
}

#[test]
fn what_cannot_be_compared_is_said() {
    let model = model();
    let folder = model.path().to_str().unwrap();
    let line = ["quality", "-m", folder, "-q"];
    let message = fails(1, &[&line[..], &["-f", "/nowhere/text"]].concat());
    assert!(message.contains("/nowhere/text"), "{message}");
    let message = fails(1, &[&line[..], &["-p", ""]].concat());
    assert!(message.contains("the text is empty"), "{message}");
    let message = fails(1, &[&line[..], &["--greedy-tokens", "256"]].concat());
    assert!(message.contains("--greedy-tokens") && message.contains("256 tokens"), "{message}");
    let message = fails(2, &[&line[..], &["--precision", "int3"]].concat());
    assert!(message.contains("int3") && message.contains("stored, f32"), "{message}");
    // Said before anything runs.
    let nowhere = ["--device", "nowhere", "--with"];
    let message = fails(1, &[&line[..], &nowhere, &["./no/such/model"]].concat());
    assert!(message.contains("./no/such/model"), "{message}");
    let other = concat!(env!("CARGO_MANIFEST_DIR"), "/../models/tiny-tales");
    let message = fails(1, &[&line[..], &nowhere, &[other]].concat());
    assert!(message.contains("give another form of the same model"), "{message}");
    fails(2, &[&line[..], &["-n", "0"]].concat());
    fails(2, &[&line[..], &["-p", "a", "-f", "b"]].concat());
}
