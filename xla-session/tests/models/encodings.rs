//! Quantised folders: the values of each encoding's own formula, to the bit, and the tokens that
//! transformers has of them.
//!
//! `tests/reference/make_quantised.py` makes the folders.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;
use sha2::{Digest, Sha256};
use xla_session::checkpoint::{Checkpoint, LoadMode};
use xla_session::config::ModelConfig;
use xla_session::{Engine, EngineOptions, Model, Output, Precision, Run, SessionOptions, Want};

use crate::fixtures::{self, Fixture};

/// What is made, how [`Encoding`](xla_session::checkpoint::Encoding) says it, and the types of blocks that
/// its matrices are multiplied as.
const ALL: [(&str, &[&str], &[&str]); 14] = [
    (
        "mlx-int4-llama",
        &["MLX int4, groups of 32: 13", "MLX int6, groups of 32: 2", "MLX int8, groups of 32: 1"],
        &["f32: 3", "q4_1: 13"],
    ),
    ("mlx-int4-groups-of-64-qwen3", &["MLX int4, groups of 64: 15"], &["affine4: 15"]),
    ("gptq-int4-act-order-llama", &["GPTQ int4, groups of 32: 14"], &["f32: 14"]),
    ("gptq-int8-qwen3", &["GPTQ int8, groups of 32: 14"], &["f32: 14"]),
    ("awq-int4-qwen3", &["AWQ int4, groups of 32: 14"], &["f32: 14"]),
    ("awq-int4-groups-of-128-qwen3", &["AWQ int4, groups of 128: 14"], &["zeroed4: 14"]),
    ("compressed-int4-llama", &["compressed-tensors int4, groups of 32: 14"], &["f32: 14"]),
    (
        "compressed-int8-qwen3",
        &["compressed-tensors int8, a scale for each row: 14"],
        &["q8_0: 14"],
    ),
    (
        "compressed-fp8-llama",
        &["compressed-tensors fp8 (E4M3), blocks of 24 x 32: 14"],
        &["f32: 14"],
    ),
    ("fp8-qwen3", &["FP8 fp8 (E4M3), blocks of 24 x 32: 14"], &["f32: 14"]),
    ("bnb-nf4-qwen3", &["bitsandbytes nf4, groups of 64, scales in eight bits: 14"], &["f32: 14"]),
    ("bnb-fp4-qwen3", &["bitsandbytes fp4, groups of 64: 14"], &["f32: 14"]),
    ("bnb-int8-qwen3", &["bitsandbytes int8, a scale for each row: 14"], &["f32: 14"]),
    ("mxfp4-gpt-oss", &["MXFP4 fp4 (E2M1), groups of 32: 24"], &["mxfp4: 24"]),
];

/// Those of ours whose groups are as long as in the files that people have.
const PACKED: [&str; 3] =
    ["mlx-int4-groups-of-64-qwen3", "awq-int4-groups-of-128-qwen3", "mxfp4-gpt-oss"];

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
    for (name, expected, types) in ALL {
        let Fixture { folder, .. } = named(name);
        let text = std::fs::read(folder.join("reference.json")).unwrap();
        let reference: Reference = serde_json::from_slice(&text).unwrap();
        let config = ModelConfig::from_dir(&folder).unwrap();
        for mode in [LoadMode::Mmap, LoadMode::Read] {
            let checkpoint = Checkpoint::open(&folder, mode).unwrap();
            assert_eq!(checkpoint.check(&config).unwrap(), read_bytes(&checkpoint), "{name}");
            let encodings = checkpoint.encodings(&config).unwrap();
            let encodings: Vec<_> = encodings
                .iter()
                .map(|(encoding, all)| format!("{encoding}: {}", all.count))
                .collect();
            assert_eq!(encodings, expected, "{name}");
            let mut compared = 0;
            let mut found = BTreeMap::new();
            for parameter in config.tensors() {
                let Some(expected) = reference.sha256.get(&parameter.name) else { continue };
                let tensor = checkpoint.get(parameter).unwrap();
                *found.entry(tensor.dtype().as_str()).or_insert(0) += 1;
                let mut digest = Sha256::new();
                tensor.to_f32().iter().for_each(|value| digest.update(value.to_le_bytes()));
                let digest = format!("{:x}", digest.finalize());
                assert_eq!(digest, *expected, "{name}: {}", parameter.name);
                // And from the middle of a row to that of the next, if that lies behind it.
                let (all, columns) = (tensor.to_f32(), tensor.shape()[1]);
                let [first, next] = [0, 1].map(|row| tensor.row(row));
                let more = if next.start == first.end { columns / 2 } else { 0 };
                let range = first.start + columns / 2..first.end + more;
                let mut some = vec![0.0; range.len()];
                tensor.to_f32_row(range, &mut some);
                let from = columns / 2;
                assert_eq!(some, all[from..from + some.len()], "{name}: {}", parameter.name);
                compared += 1;
            }
            assert_eq!(compared, reference.sha256.len(), "{name}");
            let found: Vec<_> = found.iter().map(|(dtype, n)| format!("{dtype}: {n}")).collect();
            assert_eq!(found, types, "{name}");
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
    for (name, _, types) in ALL {
        let fixture = named(name);
        for (precision, packed) in
            [(Precision::Stored, has_integers(types)), (Precision::F32, false)]
        {
            let options = options(precision);
            let mut session = xla_session::open(&fixture.folder, &options).unwrap().session;
            if packed {
                let bound = fixtures::ACTIVATIONS;
                fixtures::assert_same_tokens_within(bound, &fixture, &mut *session);
            } else {
                fixtures::assert_same_tokens(&fixture, &mut *session);
            }
        }
    }
}

fn has_integers(types: &[&str]) -> bool {
    types.iter().any(|it| !it.starts_with("f32"))
}

fn options(precision: Precision) -> SessionOptions {
    SessionOptions {
        precision,
        cache_dir: Some(fixtures::compiled()),
        weights_cache: false,
        context: Some(512),
        ..Default::default()
    }
}

#[test]
fn packed_matrices_are_as_large_as_in_the_file() {
    for name in PACKED {
        let Fixture { folder, .. } = named(name);
        let config = ModelConfig::from_dir(&folder).unwrap();
        let checkpoint = Checkpoint::open(&folder, LoadMode::Mmap).unwrap();
        let of_type = |parameter| checkpoint.get(parameter).unwrap().dtype();
        let elements = |shape: &[usize]| shape.iter().product::<usize>();
        let packed: usize =
            config.tensors().map(|it| of_type(it).bytes_of(elements(&it.shape))).sum();
        let file = read_bytes(&checkpoint);
        assert!(packed as f64 <= 1.03 * file as f64, "{name}: {packed} of {file} bytes");
    }
}

#[test]
fn packed_rows_have_the_same_bits_in_company() {
    for name in PACKED {
        let fixture = named(name);
        let model = Model::open(&fixture.folder, &options(Precision::Stored)).unwrap();
        let mut engine = Engine::new(&model, &EngineOptions::default()).unwrap();
        let texts: Vec<_> =
            fixture.cases.iter().map(|it| [&*it.prompt, &it.tokens].concat()).collect();
        let mut logits_of = |texts: &[&[u32]]| {
            engine.pages().forget_prefixes();
            let mut sequences: Vec<_> = texts.iter().map(|_| engine.sequence()).collect();
            let runs = sequences.iter_mut().zip(texts);
            let runs = runs.map(|(sequence, tokens)| Run { sequence, tokens, want: Want::Logits });
            let outputs = engine.step(&mut runs.collect::<Vec<_>>()).unwrap();
            let logits = outputs.into_iter().map(|output| match output {
                Output::Logits(logits) => logits.into_iter().map(f32::to_bits).collect::<Vec<_>>(),
                _ => panic!("logits were wanted"),
            });
            logits.collect::<Vec<_>>()
        };
        // Single rows beside tiles of several lengths.
        let rows: Vec<&[u32]> =
            texts.iter().flat_map(|text| [&text[..1], &text[..3], &text[..48]]).collect();
        let alone: Vec<_> = rows.iter().flat_map(|row| logits_of(&[row])).collect();
        assert_eq!(logits_of(&rows), alone, "{name}");
    }
}
