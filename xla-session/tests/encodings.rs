//! Quantised folders: the values of each encoding's own formula, to the bit, and the tokens that
//! transformers has of them.
//!
//! `tests/reference/make_quantised.py` makes the folders.
#![cfg(feature = "iree")]

mod fixtures;

use std::collections::BTreeMap;
use std::path::Path;

use fixtures::Fixture;
use serde::Deserialize;
use sha2::{Digest, Sha256};
use xla_session::checkpoint::{Checkpoint, LoadMode};
use xla_session::config::ModelConfig;
use xla_session::{Precision, SessionOptions};

/// What is made, and how [`Encoding`](xla_session::checkpoint::Encoding) says it.
const ALL: [(&str, &[&str]); 8] = [
    (
        "mlx-int4-llama",
        &["MLX int4, groups of 32: 13", "MLX int6, groups of 32: 2", "MLX int8, groups of 32: 1"],
    ),
    ("gptq-int4-act-order-llama", &["GPTQ int4, groups of 32: 14"]),
    ("gptq-int8-qwen3", &["GPTQ int8, groups of 32: 14"]),
    ("awq-int4-qwen3", &["AWQ int4, groups of 32: 14"]),
    ("compressed-int4-llama", &["compressed-tensors int4, groups of 32: 14"]),
    ("compressed-int8-qwen3", &["compressed-tensors int8, a scale for each row: 14"]),
    ("compressed-fp8-llama", &["compressed-tensors fp8 (E4M3), blocks of 24 x 32: 14"]),
    ("fp8-qwen3", &["FP8 fp8 (E4M3), blocks of 24 x 32: 14"]),
];

fn named(name: &str) -> Fixture {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/encodings");
    Fixture::read(root.join(name))
}

#[test]
fn values_are_those_of_the_formula_to_the_bit() {
    #[derive(Deserialize)]
    struct Reference {
        sha256: BTreeMap<String, String>,
    }
    for (name, expected) in ALL {
        let Fixture { folder, .. } = named(name);
        let text = std::fs::read(folder.join("reference.json")).unwrap();
        let reference: Reference = serde_json::from_slice(&text).unwrap();
        let config = ModelConfig::from_dir(&folder).unwrap();
        for mode in [LoadMode::Mmap, LoadMode::Read] {
            let checkpoint = Checkpoint::open(&folder, mode).unwrap();
            assert_eq!(checkpoint.check(&config).unwrap(), read_bytes(&checkpoint), "{name}");
            let encodings = checkpoint.encodings(&config).unwrap();
            let encodings: Vec<_> =
                encodings.iter().map(|(encoding, count)| format!("{encoding}: {count}")).collect();
            assert_eq!(encodings, expected, "{name}");
            let mut compared = 0;
            for parameter in config.tensors() {
                let Some(expected) = reference.sha256.get(&parameter.name) else { continue };
                let tensor = checkpoint.get(parameter).unwrap();
                let mut digest = Sha256::new();
                tensor.to_f32().iter().for_each(|value| digest.update(value.to_le_bytes()));
                let digest = format!("{:x}", digest.finalize());
                assert_eq!(digest, *expected, "{name}: {}", parameter.name);
                // And from the middle of a row to that of the next.
                let (all, columns) = (tensor.to_f32(), tensor.shape()[1]);
                let range = columns / 2..columns + columns / 2;
                let mut some = vec![0.0; columns];
                tensor.to_f32_row(range.clone(), &mut some);
                assert_eq!(some, all[range], "{name}: {}", parameter.name);
                compared += 1;
            }
            assert_eq!(compared, reference.sha256.len(), "{name}");
        }
    }
}

/// Bytes of all tensors, but those that only say a shape.
fn read_bytes(checkpoint: &Checkpoint) -> u64 {
    let tensors = checkpoint.tensors().filter(|it| !it.name.ends_with("weight_shape"));
    tensors.map(|it| it.bytes).sum()
}

#[test]
fn tokens_are_those_of_the_values() {
    for (name, _) in ALL {
        let fixture = named(name);
        for precision in [Precision::Stored, Precision::F32] {
            let options = SessionOptions {
                precision,
                cache_dir: Some(Path::new(env!("CARGO_TARGET_TMPDIR")).join("compiled")),
                weights_cache: false,
                context: Some(512),
                ..Default::default()
            };
            let mut session = xla_session::open(&fixture.folder, &options).unwrap().session;
            fixtures::assert_same_tokens(&fixture, &mut *session);
        }
    }
}
