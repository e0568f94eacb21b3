//! Every family's parameters beside what transformers writes: the tensors of the committed fixtures.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use checkpoint::architecture::{Parameter, Role};
use checkpoint::config::ModelConfig;
use checkpoint::families::Family;
use checkpoint::{Checkpoint, LoadMode};

/// The models that transformers made for the tests of `xla-session`.
fn fixtures() -> Vec<(String, ModelConfig, Checkpoint)> {
    models_in("fixtures")
}

fn models_in(folder: &str) -> Vec<(String, ModelConfig, Checkpoint)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../xla-session/tests").join(folder);
    let folders = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let models = folders.filter(|path| path.join("config.json").exists());
    let open = |path: std::path::PathBuf| {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let config = ModelConfig::from_dir(&path).unwrap();
        (name, config, Checkpoint::open(&path, LoadMode::Mmap).unwrap())
    };
    models.map(open).collect()
}

#[test]
fn a_model_needs_exactly_what_transformers_saved() {
    let mut families = BTreeSet::new();
    for (name, config, checkpoint) in fixtures().into_iter().chain(models_in("encoders")) {
        families.insert(config.family.model_type());
        let needed: Vec<_> =
            config.tensors().map(|it| (it.name.as_str(), it.shape.as_slice())).collect();
        // What is behind an encoder that ranks is not its own.
        let behind = ["pooler.", "classifier.", "pre_classifier.", "head."];
        let behind = |name: &str| behind.iter().any(|it| name.starts_with(it));
        let saved = checkpoint.tensors().filter(|it| !behind(it.name));
        let saved: BTreeMap<_, _> = saved.map(|it| (it.name, it.shape)).collect();
        assert_eq!(needed.len(), saved.len(), "{name}: as many, so none twice");
        assert_eq!(needed.into_iter().collect::<BTreeMap<_, _>>(), saved, "{name}");
        let elements: usize = saved.values().map(|shape| shape.iter().product::<usize>()).sum();
        assert_eq!(config.parameter_count(), elements, "{name}");
    }
    let known: BTreeSet<_> = Family::ALL.iter().map(|family| family.model_type()).collect();
    assert_eq!(families, known, "families with a fixture");
}

/// What a parameter is for can be seen from its name in these families.
#[test]
fn roles_are_what_names_say() {
    for (name, config, _) in fixtures() {
        for Parameter { name: tensor, shape, role } in config.architecture.parameters() {
            let (expected, dimensions) = match tensor.as_str() {
                "model.embed_tokens.weight" | "model.embed_tokens_per_layer.weight" => {
                    (Role::Embedding, 2)
                }
                "lm_head.weight" => (Role::Output, 2),
                it if it.ends_with(".bias") || it.ends_with("_bias") => (Role::Bias, 1),
                it if it.contains(".act_fn.alpha_") => (Role::Activation, 1),
                it if it.contains(".act_fn.") => (Role::Activation, 0),
                it if it.ends_with("norm.weight") => {
                    let of_heads = name == "cohere-head-norms-gqa-bf16" && it.contains("self_attn");
                    (Role::Norm, if of_heads { 2 } else { 1 })
                }
                it if it.ends_with(".layer_scalar") => (Role::Norm, 1),
                it if it.contains(".per_layer_") => (Role::Matrix, 2),
                it if it.ends_with("self_attn.sinks") => (Role::Sinks, 1),
                it if it.ends_with("gate.weight") || it.ends_with("router.weight") => {
                    (Role::Router, 2)
                }
                it if it.ends_with("in_proj_b.weight") || it.ends_with("in_proj_a.weight") => {
                    (Role::Router, 2)
                }
                it if it.ends_with(".in_proj_qkv.weight") || it.ends_with(".in_proj_z.weight") => {
                    (Role::Matrix, 2)
                }
                it if it.ends_with(".kv_a_proj_with_mqa.weight") => (Role::Matrix, 2),
                it if it.ends_with("linear_attn.A_log") => (Role::Decay, 1),
                it if it.ends_with("linear_attn.dt_bias") => (Role::Bias, 1),
                it if it.ends_with(".router.layer.weight") => (Role::Router, 2),
                it if it.contains(".block_sparse_moe.experts.") => (Role::Matrix, 2),
                it if it.contains(".feed_forward.experts.") => (Role::Matrix, 2),
                it if it.contains(".feed_forward.w") => (Role::Matrix, 2),
                it if it.ends_with(".mlp.c_fc.weight") => (Role::Matrix, 2),
                it if it.ends_with(".self_attn.dense.weight") => (Role::Matrix, 2),
                it if it.contains(".mlp.fc") => (Role::Matrix, 2),
                it if it.ends_with(".conv.conv.weight") || it.ends_with(".conv1d.weight") => {
                    (Role::Taps, 3)
                }
                it if it.ends_with("_proj.weight") || it.ends_with("_linear.weight") => {
                    (Role::Matrix, 2)
                }
                _ => panic!("{name}: {tensor}"),
            };
            assert_eq!((*role, shape.len()), (expected, dimensions), "{name}: {tensor}");
        }
    }
}

/// A token meets the embedding first, then the layers, in each of them attention before the MLP, then
/// the last norm and the output.
#[test]
fn parameters_come_in_the_order_of_the_model() {
    for (name, config, _) in fixtures() {
        let places: Vec<_> = config
            .architecture
            .parameters()
            .map(|parameter| {
                let name = parameter.name.as_str();
                let layer = name.strip_prefix("model.layers.").and_then(|it| it.split_once('.'));
                let Some((layer, part)) = layer else {
                    let after = config.num_hidden_layers;
                    return match name {
                        "model.embed_tokens.weight" => (0, 0),
                        "model.embed_tokens_per_layer.weight" => (0, 1),
                        "model.per_layer_model_projection.weight" => (0, 2),
                        "model.per_layer_projection_norm.weight" => (0, 3),
                        "model.norm.weight" | "model.embedding_norm.weight" => (after + 1, 0),
                        "model.final_layernorm.weight" => (after + 1, 0),
                        "model.norm.bias" | "model.final_layernorm.bias" => (after + 1, 1),
                        "lm_head.weight" => (after + 1, 2),
                        "lm_head.bias" => (after + 1, 3),
                        _ => panic!("{name}"),
                    };
                };
                // Each with the names that families give it. Of two norms around the MLP the first one is
                // called after attention where there is none behind attention.
                let norms = &config.architecture.layers[0];
                let [behind_attention, before_mlp] =
                    [&norms.mixer_norm, &norms.mlp_norm].map(|norm| {
                        let name = norm.as_ref().map_or("", |norm| &norm.weight.name);
                        name.rsplit('.').nth(1).unwrap_or("none").to_owned()
                    });
                let order = [
                    "input_layernorm",
                    "attention_layernorm",
                    "operator_norm",
                    "conv.in_proj",
                    "conv.conv",
                    "conv.out_proj",
                    "linear_attn.in_proj_qkv",
                    "linear_attn.in_proj_z",
                    "linear_attn.in_proj_b",
                    "linear_attn.in_proj_a",
                    "linear_attn.conv1d",
                    "linear_attn.A_log",
                    "linear_attn.dt_bias",
                    "linear_attn.norm",
                    "linear_attn.out_proj",
                    "self_attn.q_proj",
                    "self_attn.q_a_proj",
                    "self_attn.kv_a_proj_with_mqa",
                    "self_attn.q_a_layernorm",
                    "self_attn.q_b_proj",
                    "self_attn.kv_a_layernorm",
                    "self_attn.kv_b_proj",
                    "self_attn.k_proj",
                    "self_attn.v_proj",
                    "self_attn.qkv_proj",
                    "self_attn.q_norm",
                    "self_attn.k_norm",
                    "self_attn.q_layernorm",
                    "self_attn.k_layernorm",
                    "self_attn.query_layernorm",
                    "self_attn.key_layernorm",
                    "self_attn.sinks",
                    "self_attn.o_proj",
                    "self_attn.out_proj",
                    "self_attn.dense",
                    &behind_attention,
                    &before_mlp,
                    "mlp.gate_proj",
                    "mlp.up_proj",
                    "mlp.gate_up_proj",
                    "mlp.act_fn.",
                    "mlp.down_proj",
                    "mlp.c_fc",
                    "mlp.c_proj",
                    "mlp.fc1",
                    "mlp.fc2",
                    "feed_forward.w1",
                    "feed_forward.w3",
                    "feed_forward.w2",
                    "feed_forward.gate.",
                    "feed_forward.expert_bias",
                    "feed_forward.experts",
                    "mlp.gate.",
                    "mlp.router.",
                    "block_sparse_moe.gate.",
                    "block_sparse_moe.router.",
                    "mlp.experts",
                    "block_sparse_moe.experts",
                    "shared_mlp.input_linear",
                    "shared_mlp.output_linear",
                    "mlp.shared_expert.",
                    "mlp.shared_experts.",
                    "mlp.shared_expert_gate.",
                    "post_feedforward_layernorm",
                    "post_mlp_layernorm",
                    "per_layer_input_gate",
                    "per_layer_projection",
                    "post_per_layer_input_norm",
                    "layer_scalar",
                ];
                let part = order.iter().position(|it| part.starts_with(it));
                (layer.parse::<usize>().unwrap() + 1, part.expect(name))
            })
            .collect();
        assert!(places.is_sorted(), "{name}: {places:?}");
    }
}

/// Gemma 3 from 4B on, Gemma 4, Mistral Small 3, Ministral 3 and Qwen3.5 read images: their text model is a part of them.
#[test]
fn the_text_model_of_one_that_reads_images_is_found() {
    for (fixture, outer) in [
        ("gemma3-older-gqa-bf16", "gemma3"),
        ("gemma4-shared-inputs-gqa-bf16", "gemma4"),
        ("gemma4-unified-keys-as-values-f16", "gemma4_unified"),
        ("mistral-full-mqa-f16", "mistral3"),
        ("ministral3-yarn-gqa-bf16", "mistral3"),
        ("qwen3-5-gqa-bf16", "qwen3_5"),
    ] {
        let fixture = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../xla-session/tests/fixtures")
            .join(fixture);
        let text: serde_json::Value =
            serde_json::from_slice(&std::fs::read(fixture.join("config.json")).unwrap()).unwrap();
        let expected = ModelConfig::from_dir(&fixture).unwrap();
        let tensors = std::fs::read(fixture.join("model.safetensors")).unwrap();
        let tensors = safetensors::SafeTensors::deserialize(&tensors).unwrap();
        for [prefix, head] in [
            ["language_model.model.", "language_model.lm_head."],
            ["model.language_model.", "lm_head."],
        ] {
            let folder = tempfile::tempdir().unwrap();
            let config = serde_json::json!({
                "architectures": null, "model_type": outer,
                "text_config": text, "vision_config": {"hidden_size": 1152},
                "tie_word_embeddings": text["tie_word_embeddings"],
            });
            std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
            let name = |name: &str| match name.strip_prefix("model.") {
                Some(rest) => format!("{prefix}{rest}"),
                None => format!("{head}{}", name.strip_prefix("lm_head.").unwrap()),
            };
            let renamed = tensors.iter().map(|(old, view)| (name(old), view));
            let path = folder.path().join("model.safetensors");
            safetensors::serialize_to_file(renamed, None, &path).unwrap();
            let config = ModelConfig::from_dir(folder.path()).unwrap();
            assert_eq!(config.architecture, expected.architecture);
            let [whole, alone] = [folder.path(), &fixture]
                .map(|model| Checkpoint::open(model, LoadMode::Mmap).unwrap());
            whole.check(&config).unwrap();
            assert_eq!(whole.is_tied(&config).unwrap(), alone.is_tied(&expected).unwrap());
        }
    }
}

/// MLX's folders of Qwen3.5 have one more in their norms, and other axes of taps.
#[test]
fn norms_that_mlx_has_added_one_to_are_read_as_they_were() {
    let fixture =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../xla-session/tests/fixtures/qwen3-5-mha-f32");
    let (config, folder) = (ModelConfig::from_dir(&fixture).unwrap(), tempfile::tempdir().unwrap());
    std::fs::copy(fixture.join("config.json"), folder.path().join("config.json")).unwrap();
    let checkpoint = Checkpoint::open(&fixture, LoadMode::Mmap).unwrap();
    let tensors: Vec<_> = config
        .tensors()
        .map(|it| {
            let mut values = checkpoint.get(it).unwrap().to_f32();
            let mut shape = it.shape.clone();
            match it.role {
                Role::Taps => shape.swap(1, 2),
                Role::Norm if !it.name.contains("linear_attn") => {
                    values.iter_mut().for_each(|value| *value += 1.0);
                }
                _ => {}
            }
            let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            (format!("language_model.{}", it.name), shape, bytes)
        })
        .collect();
    let views = tensors.iter().map(|(name, shape, bytes)| {
        let dtype = safetensors::Dtype::F32;
        (name, safetensors::tensor::TensorView::new(dtype, shape.clone(), bytes).unwrap())
    });
    let path = folder.path().join("model.safetensors");
    safetensors::serialize_to_file(views, None, &path).unwrap();
    let mlx = Checkpoint::open(folder.path(), LoadMode::Mmap).unwrap();
    mlx.check(&config).unwrap();
    for it in config.tensors() {
        let [before, after] = [&checkpoint, &mlx].map(|from| from.get(it).unwrap().to_f32());
        let off = if it.role == Role::Norm { f32::EPSILON } else { 0.0 };
        assert!(before.iter().zip(after).all(|(a, b)| (a - b).abs() <= off), "{}", it.name);
    }
}
