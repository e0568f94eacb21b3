//! GGUF files: the tokens of the same weights in safetensors, and integers that are not rounded again.

mod converter;
#[path = "../../../../checkpoint/tests/writer/mod.rs"]
mod writer;

use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use converter::convert;
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use xla_session::checkpoint::architecture::Role;
use xla_session::checkpoint::{Checkpoint, Conversion, ConvertOptions, Dtype as Stored, Float};
use xla_session::config::ModelConfig;
use xla_session::emit::WeightFormats;
use xla_session::kernels::Format;
use xla_session::{InferenceSession, KvFormat, LoadMode, Precision, SessionOptions};

use crate::fixtures;

/// Writes the values of the GGUF file `from` as safetensors, beside the configuration in `folder`.
fn widen(from: &Path, folder: &Path, to: &Path) {
    fs::copy(folder.join("config.json"), to.join("config.json")).unwrap();
    let config = ModelConfig::from_dir(from).unwrap();
    let checkpoint = Checkpoint::open(from, LoadMode::Mmap).unwrap();
    let tensors: Vec<_> = config
        .tensors()
        .map(|it| {
            let values = checkpoint.get(it).unwrap().to_f32();
            let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            (it.name.clone(), it.shape.clone(), bytes)
        })
        .collect();
    let views = tensors.iter().map(|(name, shape, bytes)| {
        (name, TensorView::new(Dtype::F32, shape.clone(), bytes).unwrap())
    });
    safetensors::serialize_to_file(views, None, &to.join("model.safetensors")).unwrap();
}

fn open(model: &Path, precision: Precision) -> Box<dyn InferenceSession> {
    let options = SessionOptions {
        precision,
        kv_cache: Some(KvFormat::F32),
        cache_dir: Some(fixtures::compiled()),
        weights_cache: false,
        context: Some(512),
        ..Default::default()
    };
    xla_session::open(model, &options).unwrap().session
}

#[test]
fn floats_give_the_tokens_of_the_same_weights_in_safetensors() {
    for name in ["llama-mha-f32", "llama-gqa-long-bf16"] {
        let fixture = fixtures::named(name);
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("model.gguf");
        convert(&fixture.folder, &file, |_| Stored::F32);
        fixtures::assert_same_tokens(&fixture, &mut *open(&file, Precision::Stored));
        fixtures::assert_same_tokens(&fixture, &mut *open(folder.path(), Precision::F32));
    }
}

/// One of each architecture, of those whose options its files can say.
#[test]
fn other_architectures_give_the_tokens_of_the_same_weights_in_safetensors() {
    for name in [
        "gemma2-mha-f32",
        "gemma3-newer-mqa-f16",
        "gemma4-shared-inputs-gqa-bf16",
        "gemma4-unified-keys-as-values-f16",
        "phi3-longrope-partial-gqa-f16",
        "smollm3-gqa-tied-bf16",
        "olmo2-mha-tied-f16",
        "olmo3-tied-mha-f16",
        "granite-gqa-tied-bf16",
        "glm4-gqa-biases-bf16",
        "mixtral-gqa-bf16",
        "qwen2-moe-mqa-f32",
        "qwen3-moe-gqa-bf16",
        "gpt-oss-gqa-bf16",
        "lfm2-older-tied-gqa-bf16",
        "qwen3-5-gqa-bf16",
        "qwen3-5-moe-gqa-bf16",
        "qwen3-next-mqa-f16",
        "lfm2-moe-gqa-f16",
        "glm4-moe-gqa-bf16",
        "deepseek-v2-moe-groups-f32",
        "deepseek-v3-moe-groups-bf16",
        "granite-moe-tied-gqa-bf16",
        "apertus-gqa-bf16",
        "cohere-biases-mha-f16",
        "cohere-head-norms-gqa-bf16",
        "cohere2-windows-tied-gqa-bf16",
        "arcee-biases-gqa-f16",
        "starcoder2-window-gqa-bf16",
        "stablelm-biases-mha-f16",
        "nemotron-gqa-bf16",
        "hunyuan-alpha-tied-gqa-bf16",
        "phi-partial-mha-f16",
        "glm-partial-gqa-bf16",
        "dots1-gqa-bf16",
        "mellum-windows-gqa-bf16",
    ] {
        let fixture = fixtures::named(name);
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("model.gguf");
        convert(&fixture.folder, &file, |_| Stored::F32);
        fixtures::assert_same_tokens(&fixture, &mut *open(&file, Precision::Stored));
        // And back again.
        let back = tempfile::tempdir().unwrap();
        let options = ConvertOptions::new(Float::F32);
        let conversion = Conversion::open(&file, options).unwrap();
        let written = conversion.write(back.path(), &mut |_| ControlFlow::Continue(())).unwrap();
        assert!(written.is_continue());
        fixtures::assert_same_tokens(&fixture, &mut *open(back.path(), Precision::F32));
        let [before, after] = [&*fixture.folder, back.path()].map(|folder| {
            let checkpoint = Checkpoint::open(folder, LoadMode::Mmap).unwrap();
            let config = ModelConfig::from_dir(folder).unwrap();
            let values = config.tensors().map(|it| checkpoint.get(it).unwrap().to_f32());
            values.collect::<Vec<_>>()
        });
        let config = ModelConfig::from_dir(&fixture.folder).unwrap();
        let roles: Vec<_> = config.tensors().map(|it| it.role).collect();
        assert_eq!(before.len(), after.len(), "{name}");
        let adds_one = ["gemma-", "gemma2", "gemma3", "qwen3-5", "qwen3-next", "nemotron"]
            .iter()
            .any(|it| name.starts_with(it));
        for ((before, after), role) in before.iter().zip(&after).zip(roles) {
            let off = match role {
                // Norms to which the GGUF file adds one are rounded there.
                Role::Norm if adds_one => f32::EPSILON,
                // So are logarithms.
                Role::Decay => 1e-6,
                _ => 0.0,
            };
            assert!(before.iter().zip(after).all(|(a, b)| (a - b).abs() <= off), "{name}");
        }
    }
}

/// Types that differ between queries, keys and values, and between gate and up, too.
#[test]
fn integers_are_multiplied_as_they_are_in_the_file() {
    let fixture = fixtures::named("llama-gqa-long-bf16");
    let mixed = |name: &str| match name {
        name if name.contains("q_proj") || name.contains("up_proj") => Stored::Q8_0,
        name if name.contains("k_proj") || name.contains("down_proj") => Stored::Q4_0,
        name if name.contains("lm_head") => Stored::Q8_0,
        _ => Stored::F32,
    };
    for of in
        [&|_: &str| Stored::Q8_0, &|_: &str| Stored::Q4_0, &mixed] as [&dyn Fn(&str) -> Stored; 3]
    {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("model.gguf");
        convert(&fixture.folder, &file, of);
        let wide = tempfile::tempdir().unwrap();
        widen(&file, &fixture.folder, wide.path());
        let prompts: Vec<&[u32]> = fixture.cases.iter().map(|case| &case.prompt[..]).collect();
        assert_same_logits(&file, wide.path(), &prompts);
    }
}

/// Of four bits nothing is gained by rounding them to four bits once more.
#[test]
fn layers_of_four_bits_stay_as_they_are_in_int4() {
    let fixture = fixtures::named("llama-gqa-long-bf16");
    let config = ModelConfig::from_dir(&fixture.folder).unwrap();
    let ends: Vec<_> = config.architecture.ends().map(|it| it.weight.name.clone()).collect();
    let formats = |of: &dyn Fn(&str) -> Stored| {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("model.gguf");
        convert(&fixture.folder, &file, of);
        let checkpoint = Checkpoint::open(&file, LoadMode::Mmap).unwrap();
        let formats = WeightFormats::new(Precision::Int4, &config, &checkpoint);
        let format = |name: &str| *formats.exceptions.get(name).unwrap_or(&formats.default);
        let matrices = config.tensors().filter(|it| it.role == Role::Matrix);
        let (ends, inner): (Vec<_>, Vec<_>) = matrices.partition(|it| ends.contains(&it.name));
        [ends, inner].map(|of| of.iter().map(|it| format(&it.name)).collect::<Vec<_>>())
    };
    let end = |name: &str| ends.iter().any(|end| end == name);
    let [at_ends, inner] = formats(&|name| if end(name) { Stored::Q8_0 } else { Stored::Q4_0 });
    assert!(at_ends.iter().all(|it| *it == Format::Int8), "{at_ends:?}");
    assert!(!inner.is_empty() && inner.iter().all(|it| *it == Format::Int4), "{inner:?}");
    let [at_ends, inner] =
        formats(&|name| if name.contains("up_proj") { Stored::Q8_0 } else { Stored::Q4_0 });
    assert!(at_ends.len() > 4 && at_ends.iter().all(|it| *it == Format::Int6), "{at_ends:?}");
    assert!(inner.iter().all(|it| *it == Format::Nested4), "{inner:?}");
}

/// A mix as llama.cpp's Q4_K_M, and others, of all types.
#[test]
fn every_type_gives_the_logits_of_its_values() {
    let folder = tempfile::tempdir().unwrap();
    let config = r#"{"model_type": "llama", "vocab_size": 320, "hidden_size": 256,
        "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "max_position_embeddings": 512, "tie_word_embeddings": true}"#;
    fs::write(folder.path().join("config.json"), config).unwrap();
    type Types = &'static [(&'static str, Stored)];
    let mixes: [(Stored, Types); 3] = [
        (Stored::Q4K, &[("v_proj", Stored::Q6K), ("down", Stored::Q6K), ("embed", Stored::Q6K)]),
        (Stored::Q5K, &[("k_proj", Stored::Q5_0), ("gate", Stored::Q5_1), ("embed", Stored::Q8_0)]),
        (
            Stored::Q4_1,
            &[
                ("q_proj", Stored::Q2K),
                ("o_proj", Stored::Q3K),
                ("up", Stored::Iq4Nl),
                ("gate", Stored::Mxfp4),
                ("down", Stored::Iq4Xs),
                ("embed", Stored::Q3K),
            ],
        ),
    ];
    let tokens: Vec<u32> = (0..90).map(|i| i * 37 % 320).collect();
    for (most, others) in mixes {
        let of = |name: &str| {
            others.iter().find(|(part, _)| name.contains(part)).map_or(most, |(_, dtype)| *dtype)
        };
        let file = folder.path().join("model.gguf");
        convert(folder.path(), &file, of);
        let wide = tempfile::tempdir().unwrap();
        widen(&file, folder.path(), wide.path());
        // Alone, and in steps of many rows.
        assert_same_logits(&file, wide.path(), &[&tokens[..1], &tokens[..7], &tokens]);
    }
}

#[test]
fn experts_in_mxfp4_give_the_logits_of_their_values() {
    let folder = tempfile::tempdir().unwrap();
    let config = r#"{"model_type": "gpt_oss", "vocab_size": 320, "hidden_size": 64,
        "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 16,
        "num_key_value_heads": 2, "max_position_embeddings": 512, "sliding_window": 32,
        "num_local_experts": 6, "num_experts_per_tok": 2}"#;
    fs::write(folder.path().join("config.json"), config).unwrap();
    let file = folder.path().join("model.gguf");
    let of = |name: &str| if name.contains("experts") { Stored::Mxfp4 } else { Stored::F32 };
    convert(folder.path(), &file, of);
    let wide = tempfile::tempdir().unwrap();
    widen(&file, folder.path(), wide.path());
    let tokens: Vec<u32> = (0..90).map(|i| i * 37 % 320).collect();
    assert_same_logits(&file, wide.path(), &[&tokens[..1], &tokens[..7], &tokens]);
}

/// What keys and values are made of is wider than a row here.
const LATENT: &str = r#"{"model_type": "deepseek_v3", "vocab_size": 320, "hidden_size": 64,
    "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "q_lora_rank": 32,
    "kv_lora_rank": 96, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 32,
    "first_k_dense_replace": 0, "moe_intermediate_size": 32, "n_routed_experts": 4, "n_group": 1,
    "topk_group": 1, "num_experts_per_tok": 2, "max_position_embeddings": 512}"#;

/// A file of such a model, all of whose matrices but the router are of `dtype`, and the folder that it is in.
fn latent(dtype: Stored) -> (PathBuf, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("config.json"), LATENT).unwrap();
    let file = folder.path().join("model.gguf");
    convert(folder.path(), &file, |name| match name {
        name if name.contains("gate.weight") => Stored::F32,
        _ => dtype,
    });
    (file, folder)
}

#[test]
fn latent_attention_in_integers_gives_the_logits_of_its_values() {
    let (file, folder) = latent(Stored::Q8_0);
    let wide = tempfile::tempdir().unwrap();
    widen(&file, folder.path(), wide.path());
    let tokens: Vec<u32> = (0..20).map(|i| i * 37 % 320).collect();
    assert_same_logits(&file, wide.path(), &[&tokens[..1], &tokens]);
}

/// It has what latent attention expands in two tensors, of which none of four bits is made.
#[test]
fn others_stay_in_int4_beside_what_a_file_has_in_two() {
    let (file, folder) = latent(Stored::Q4_0);
    let config = ModelConfig::from_dir(folder.path()).unwrap();
    let checkpoint = Checkpoint::open(&file, LoadMode::Mmap).unwrap();
    let formats = WeightFormats::new(Precision::Int4, &config, &checkpoint);
    let format = |name: &str| *formats.exceptions.get(name).unwrap_or(&formats.default);
    let matrices: Vec<_> = config.tensors().filter(|it| it.role == Role::Matrix).collect();
    assert_eq!(matrices.len(), 4 + 3 * (4 + 1) + 1);
    for matrix in matrices {
        // The only layer is the first one and the last.
        let expected = if matrix.name.contains("kv_b") { Format::Int6 } else { Format::Int4 };
        assert_eq!(format(&matrix.name), expected, "{}", matrix.name);
    }
}

/// Compares the logits behind prompts with those of the values in float32, and those of single tokens
/// behind them.
fn assert_same_logits(file: &Path, wide: &Path, prompts: &[&[u32]]) {
    let mut stored = open(file, Precision::Stored);
    let mut exact = open(wide, Precision::F32);
    for prompt in prompts {
        for single in [false, true] {
            let [actual, expected] = [&mut stored, &mut exact].map(|session| {
                if single {
                    session.decode_step(prompt[0]).unwrap();
                } else {
                    session.reset();
                    session.prefill(prompt).unwrap();
                }
                let mut logits = Vec::new();
                session.read_logits(&mut logits).unwrap();
                logits
            });
            let scale = expected.iter().fold(0f32, |most, it| most.max(it.abs()));
            for (actual, expected) in actual.iter().zip(&expected) {
                let off = (actual - expected).abs() / scale;
                assert!(off < fixtures::ACTIVATIONS, "{} tokens: off by {off}", prompt.len());
            }
        }
    }
}
