//! Converted models: the values of what they were converted from, to the bit, and the same tokens.

use std::fs;
use std::ops::ControlFlow;
use std::path::Path;

use tempfile::TempDir;
use xla_session::checkpoint::{Checkpoint, Conversion, ConvertOptions, Float, LoadMode};
use xla_session::config::ModelConfig;
use xla_session::{Precision, SessionOptions};

use crate::fixtures::{self, Fixture, SOME};

/// `model` in f32, in several files.
fn converted(model: &Path) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let options = ConvertOptions { shard_bytes: 100_000, ..ConvertOptions::new(Float::F32) };
    let conversion = Conversion::open(model, options).unwrap();
    let mut bytes = 0;
    let mut wrote = |more| {
        bytes += more;
        ControlFlow::Continue(())
    };
    assert!(conversion.write(folder.path(), &mut wrote).unwrap().is_continue());
    assert_eq!(bytes, conversion.bytes());
    folder
}

/// The converted fixture, whose values and configuration are the same.
fn assert_same(fixture: &Fixture) -> TempDir {
    let name = &fixture.name;
    let folder = converted(&fixture.folder);
    let text = fs::read_to_string(folder.path().join("config.json")).unwrap();
    assert!(!text.contains("quant"), "{name}: {text}");
    let [before, after] =
        [&*fixture.folder, folder.path()].map(|it| Checkpoint::open(it, LoadMode::Mmap).unwrap());
    let mut config = ModelConfig::from_dir(&fixture.folder).unwrap();
    config.tie_word_embeddings = before.is_tied(&config).unwrap();
    assert_eq!(ModelConfig::from_dir(folder.path()).unwrap(), config, "{name}");
    assert_eq!(after.tensors().len(), config.tensors().count(), "{name}");
    assert_eq!(after.check(&config).unwrap(), after.total_bytes(), "{name}");
    for parameter in config.tensors() {
        let [before, after] = [&before, &after].map(|it| it.get(parameter).unwrap().to_f32());
        assert!(before == after, "{name}: {}", parameter.name);
    }
    folder
}

/// And whose tokens are.
fn assert_runs(fixture: &Fixture) {
    let folder = assert_same(fixture);
    let options = SessionOptions {
        precision: Precision::F32,
        cache_dir: Some(fixtures::compiled()),
        weights_cache: false,
        context: Some(512),
        ..Default::default()
    };
    let mut session = xla_session::open(folder.path(), &options).unwrap().session;
    fixtures::assert_same_tokens(fixture, &mut *session);
}

#[test]
fn plain_folders_stay_what_they_are() {
    for fixture in fixtures::of_each_family(fixtures::all()) {
        assert_same(&fixture);
    }
    SOME.map(fixtures::named).iter().for_each(assert_runs);
}

#[test]
fn quantised_folders_become_their_values() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/encodings");
    for entry in fs::read_dir(root).unwrap() {
        assert_runs(&Fixture::read(entry.unwrap().path()));
    }
}

#[test]
fn encoders_are_converted_and_what_ranks_is_refused() {
    let encoders = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/encoders");
    for name in [
        "bert-f32",
        "bert-masked-lm-f16",
        "roberta-bf16",
        "mpnet-f32",
        "modernbert-bf16",
        "gemma3-both-ways-bf16",
        "qwen2-both-ways-f16",
    ] {
        let (name, folder) = (name.to_owned(), encoders.join(name));
        assert_same(&Fixture { name, folder, cases: Vec::new() });
    }
    let options = ConvertOptions::new(Float::F32);
    let ranks = encoders.join("distilbert-classifier-f16");
    let error = Conversion::open(&ranks, options).unwrap_err();
    assert!(error.to_string().contains("would be lost"), "{error}");

    // The encoder of it, whose keys have names of their own.
    let folder = tempfile::tempdir().unwrap();
    fs::copy(ranks.join("model.safetensors"), folder.path().join("model.safetensors")).unwrap();
    let config = fs::read_to_string(ranks.join("config.json")).unwrap();
    let config = config.replace("ForSequenceClassification", "Model");
    fs::write(folder.path().join("config.json"), config).unwrap();
    let (name, path) = ("distilbert".to_owned(), folder.path().to_owned());
    assert_same(&Fixture { name, folder: path, cases: Vec::new() });
}
