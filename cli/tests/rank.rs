//! Ranking documents with the tiny model, which is called as one that ranks.
#![cfg(all(feature = "iree", unix))]

mod support;

use serde_json::Value;
use support::{fails, program, succeeds};

const ENCODER: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../xla-session/tests/encoders/xlm-roberta-classifier-f32"
);
const TALES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../models/tiny-tales");

/// Index and score of each line.
fn ranks(text: &str) -> Vec<(u64, f64)> {
    let one = |line: &str| {
        let it: Value = serde_json::from_str(line).unwrap();
        (it["index"].as_u64().unwrap(), it["score"].as_f64().unwrap())
    };
    text.lines().map(one).collect()
}

#[test]
fn documents_come_with_the_best_first() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("Qwen3-Reranker-tiny");
    std::os::unix::fs::symlink(TALES, &model).unwrap();
    let model = model.to_str().unwrap();
    let flags = ["rank", "-q", "-m", model, "--query", "Who ran home?"];
    let documents = ["The dog ran home.", "It was a cold night.", "The cat slept."];
    let all = succeeds(&[&flags[..], &documents].concat());
    let found = ranks(&all);
    assert!(found.is_sorted_by(|one, other| one.1 >= other.1), "{all}");
    let mut indices: Vec<_> = found.iter().map(|it| it.0).collect();
    indices.sort_unstable();
    assert_eq!(indices, [0, 1, 2]);
    for &(index, score) in &found {
        let alone = succeeds(&[&flags[..], &[documents[index as usize]]].concat());
        assert_eq!(ranks(&alone), [(0, score)]);
    }

    let file = [&flags[..], &["--file", "-", "--top", "2"]].concat();
    let run = program(&file).write_stdin(documents.join("\n")).assert().success();
    let best: Vec<_> = all.lines().take(2).collect();
    assert_eq!(String::from_utf8_lossy(&run.get_output().stdout), best.join("\n") + "\n");
    let other = [&flags[..], &["--instruction", "Find who slept."], &documents].concat();
    assert_ne!(ranks(&succeeds(&other)), found);

    assert!(fails(1, &flags).contains("no document"));
    let none = ["rank", "-m", TALES, "--query", "Who?", "The dog."];
    let message = fails(1, &none);
    assert!(message.contains("no model that ranks"), "{message}");
    let long = "The dog ran. ".repeat(2000);
    let message = fails(1, &[&flags[..], &["short", &long]].concat());
    assert!(message.contains("context"), "{message}");
}

#[test]
fn an_encoder_reads_query_and_document_at_once() {
    let flags = ["rank", "-q", "-m", ENCODER, "--query", "w20 w30"];
    let (short, long) = ("w40 w50", "w60 ".repeat(400));
    let both = ranks(&succeeds(&[&flags[..], &[short, "w70 w80"]].concat()));
    assert!(both.len() == 2 && both[0].1 != both[1].1, "{both:?}");
    for (index, score) in &both {
        let document = [short, "w70 w80"][*index as usize];
        assert_eq!(ranks(&succeeds(&[&flags[..], &[document]].concat())), [(0, *score)]);
    }
    let message = fails(1, &[&flags[..], &[short, &long]].concat());
    assert!(message.contains("document 2") && message.contains("context"), "{message}");
    let cut = ranks(&succeeds(&[&flags[..], &["--truncate", short, &long]].concat()));
    assert_eq!(cut.len(), 2);
    let score = |of: &[(u64, f64)]| of.iter().find(|it| it.0 == 0).unwrap().1;
    assert_eq!(score(&cut), score(&both));
    let message = fails(1, &[&flags[..], &["--instruction", "Find it.", short]].concat());
    assert!(message.contains("an instruction"), "{message}");
    let message = fails(1, &["embed", "-m", ENCODER, short]);
    assert!(message.contains("has no vectors"), "{message}");
}

/// Of a model that is asked, too: what is around the document stays.
#[test]
fn a_document_is_cut_off_where_a_model_is_asked() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("Qwen3-Reranker-tiny");
    std::os::unix::fs::symlink(TALES, &model).unwrap();
    let flags = ["rank", "-q", "-m", model.to_str().unwrap(), "--query", "Who ran home?"];
    let long = "The dog ran, 走った🐕. ".repeat(500);
    let message = fails(1, &[&flags[..], &[&long]].concat());
    assert!(message.contains("context"), "{message}");
    let cut = ranks(&succeeds(&[&flags[..], &["--truncate", &long, "The dog."]].concat()));
    let whole = ranks(&succeeds(&[&flags[..], &["The dog."]].concat()));
    assert_eq!(cut.len(), 2);
    assert_eq!(cut.iter().find(|it| it.0 == 1).unwrap().1, whole[0].1);
}
