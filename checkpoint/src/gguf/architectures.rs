//! The architectures of GGUF files (`general.architecture`), each with what is its own: Hugging Face's name of
//! it, how its converter changes weights, what it calls parts of a layer, and which keys only it has.

use serde_json::{Value as Json, json};

mod cohere;
mod deepseek;
mod encoder;
mod gemma;
mod glm;
mod granite;
mod lfm2;
mod llama;
mod qwen;

use super::keys::{Keys, NORMS_ARE_WHOLE};
use super::names::DECODER;

/// An architecture.
#[derive(Debug)]
pub(crate) struct Architecture {
    /// Its name in files.
    pub name: &'static str,
    /// Hugging Face's `model_type`; some are told apart by keys.
    pub model_type: &'static str,
    /// The key of the epsilon of its norms: Hugging Face's, and the file's.
    pub epsilon: (&'static str, &'static str),
    /// Whether its converter reorders the rows of queries and keys, for a rotation of neighbours.
    pub pairs: bool,
    /// What is in no layer: in the file, and to Hugging Face.
    pub outside: &'static [(&'static str, &'static str)],
    /// Hugging Face's module of layers.
    pub layers: &'static str,
    /// Parts of a layer that are not called as most are: in the file, and by Hugging Face.
    pub parts: &'static [(&'static str, &'static str)],
    /// What of a layer is no module with a weight to Hugging Face, but a parameter: in the file, and there.
    pub parameters: &'static [(&'static str, &'static str)],
    /// Reads what it alone has, or says what is wrong.
    pub(super) keys: fn(&mut Keys) -> Result<(), String>,
}

const NORMS_AROUND: [(&str, &str); 3] = [
    ("post_attention_norm", "post_attention_layernorm"),
    ("ffn_norm", "pre_feedforward_layernorm"),
    ("post_ffw_norm", "post_feedforward_layernorm"),
];

/// What most have.
const PLAIN: Architecture = Architecture {
    name: "",
    model_type: "",
    epsilon: ("rms_norm_eps", "attention.layer_norm_rms_epsilon"),
    pairs: false,
    outside: &DECODER,
    layers: "model.layers",
    parts: &[],
    parameters: &[],
    keys: no_window,
};

const LAYER_NORM: (&str, &str) = ("layer_norm_eps", "attention.layer_norm_epsilon");

const ALL: [Architecture; 47] = [
    Architecture {
        name: "llama",
        model_type: "llama",
        pairs: true,
        parts: &[
            ("ffn_gate_inp", "block_sparse_moe.gate"),
            ("ffn_gate_exps", "block_sparse_moe.experts.*.w1"),
            ("ffn_up_exps", "block_sparse_moe.experts.*.w3"),
            ("ffn_down_exps", "block_sparse_moe.experts.*.w2"),
        ],
        keys: llama::llama,
        ..PLAIN
    },
    Architecture {
        name: "mistral3",
        model_type: "ministral3",
        pairs: true,
        keys: llama::mistral3,
        ..PLAIN
    },
    Architecture { name: "qwen2", model_type: "qwen2", ..PLAIN },
    Architecture { name: "qwen3", model_type: "qwen3", ..PLAIN },
    // The text models of those that read images.
    Architecture { name: "qwen2vl", model_type: "qwen2", ..PLAIN },
    Architecture { name: "qwen3vl", model_type: "qwen3", ..PLAIN },
    Architecture {
        name: "qwen35",
        model_type: "qwen3_5_text",
        parts: &qwen::QWEN35,
        parameters: &qwen::DELTA,
        keys: qwen::qwen35,
        ..PLAIN
    },
    Architecture {
        name: "qwen35moe",
        model_type: "qwen3_5_moe_text",
        parts: &qwen::QWEN35,
        parameters: &qwen::DELTA,
        keys: qwen::qwen35_moe,
        ..PLAIN
    },
    Architecture {
        name: "qwen3next",
        model_type: "qwen3_next",
        parts: &qwen::QWEN3_NEXT,
        parameters: &qwen::DELTA,
        keys: qwen::qwen3_next,
        ..PLAIN
    },
    Architecture { name: "qwen2moe", model_type: "qwen2_moe", keys: qwen::qwen2_moe, ..PLAIN },
    Architecture { name: "qwen3moe", model_type: "qwen3_moe", keys: qwen::qwen3_moe, ..PLAIN },
    Architecture { name: "mellum", model_type: "mellum", keys: qwen::mellum, ..PLAIN },
    Architecture { name: "olmoe", model_type: "olmoe", keys: olmoe, ..PLAIN },
    Architecture { name: "gemma", model_type: "gemma", keys: gemma::gemma1, ..PLAIN },
    Architecture {
        name: "gemma2",
        model_type: "gemma2",
        parts: &NORMS_AROUND,
        keys: gemma::gemma2,
        ..PLAIN
    },
    Architecture {
        name: "gemma3",
        model_type: "gemma3_text",
        parts: &NORMS_AROUND,
        keys: gemma::gemma3,
        ..PLAIN
    },
    Architecture {
        name: "gemma4",
        model_type: "gemma4_text",
        parts: &[
            ("post_attention_norm", "post_attention_layernorm"),
            ("ffn_norm", "pre_feedforward_layernorm"),
            ("post_ffw_norm", "post_feedforward_layernorm"),
            ("inp_gate", "per_layer_input_gate"),
            ("proj", "per_layer_projection"),
            ("post_norm", "post_per_layer_input_norm"),
        ],
        parameters: &[("layer_output_scale.weight", "layer_scalar")],
        keys: gemma::gemma4,
        ..PLAIN
    },
    Architecture {
        name: "phi2",
        model_type: "phi",
        epsilon: LAYER_NORM,
        outside: &[
            ("token_embd", "model.embed_tokens"),
            ("output_norm", "model.final_layernorm"),
            ("output", "lm_head"),
        ],
        parts: &[
            ("attn_output", "self_attn.dense"),
            ("ffn_up", "mlp.fc1"),
            ("ffn_down", "mlp.fc2"),
        ],
        keys: phi2,
        ..PLAIN
    },
    Architecture {
        name: "phi3",
        model_type: "phi3",
        parts: &[("attn_qkv", "self_attn.qkv_proj"), ("ffn_up", "mlp.gate_up_proj")],
        keys: phi3,
        ..PLAIN
    },
    Architecture { name: "smollm3", model_type: "smollm3", pairs: true, ..PLAIN },
    Architecture {
        name: "olmo2",
        model_type: "olmo2",
        parts: &[
            ("post_attention_norm", "post_attention_layernorm"),
            ("post_ffw_norm", "post_feedforward_layernorm"),
        ],
        keys: olmo2,
        ..PLAIN
    },
    Architecture {
        name: "exaone4",
        model_type: "exaone4",
        parts: &[
            ("post_attention_norm", "post_attention_layernorm"),
            ("post_ffw_norm", "post_feedforward_layernorm"),
        ],
        keys: exaone4,
        ..PLAIN
    },
    Architecture {
        name: "seed_oss",
        model_type: "seed_oss",
        parts: &[("post_attention_norm", "post_attention_layernorm")],
        ..PLAIN
    },
    // Its rows are those of neighbours that rotate, as they are.
    Architecture { name: "ernie4_5", model_type: "ernie4_5", ..PLAIN },
    Architecture {
        name: "granite",
        model_type: "granite",
        pairs: true,
        keys: granite::granite,
        ..PLAIN
    },
    Architecture {
        name: "granitemoe",
        model_type: "granitemoe",
        pairs: true,
        parts: &[
            ("ffn_gate_inp", "block_sparse_moe.router.layer"),
            ("ffn_gate_exps", "block_sparse_moe.experts.*.gate_proj"),
            ("ffn_up_exps", "block_sparse_moe.experts.*.up_proj"),
            ("ffn_down_exps", "block_sparse_moe.experts.*.down_proj"),
        ],
        keys: granite::granite_moe,
        ..PLAIN
    },
    // Rows of neighbours, as they are.
    Architecture {
        name: "chatglm",
        model_type: "glm",
        parts: &[("ffn_up", "mlp.gate_up_proj")],
        keys: glm::chatglm,
        ..PLAIN
    },
    Architecture {
        name: "glm4",
        model_type: "glm4",
        parts: &[
            ("post_attention_norm", "post_self_attn_layernorm"),
            ("post_ffw_norm", "post_mlp_layernorm"),
            ("ffn_up", "mlp.gate_up_proj"),
        ],
        keys: glm::glm4,
        ..PLAIN
    },
    Architecture {
        name: "glm4moe",
        model_type: "glm4_moe",
        parts: &glm::GLM4_MOE,
        parameters: &glm::CHOICE,
        keys: glm::glm4_moe,
        ..PLAIN
    },
    Architecture {
        name: "dots1",
        model_type: "dots1",
        parts: &glm::SHARED,
        parameters: &glm::CHOICE,
        keys: glm::dots1,
        ..PLAIN
    },
    Architecture {
        name: "deepseek2",
        model_type: "deepseek_v2",
        parts: &deepseek::DEEPSEEK2,
        parameters: &glm::CHOICE,
        keys: deepseek::deepseek2,
        ..PLAIN
    },
    Architecture { name: "arcee", model_type: "arcee", pairs: true, ..PLAIN },
    Architecture {
        name: "starcoder2",
        model_type: "starcoder2",
        epsilon: ("norm_epsilon", "attention.layer_norm_epsilon"),
        parts: &[("ffn_up", "mlp.c_fc"), ("ffn_down", "mlp.c_proj")],
        keys: starcoder2,
        ..PLAIN
    },
    Architecture {
        name: "stablelm",
        model_type: "stablelm",
        epsilon: LAYER_NORM,
        keys: stablelm,
        ..PLAIN
    },
    Architecture {
        name: "nemotron",
        model_type: "nemotron",
        epsilon: ("norm_eps", "attention.layer_norm_epsilon"),
        keys: nemotron,
        ..PLAIN
    },
    Architecture {
        name: "apertus",
        model_type: "apertus",
        parts: &[("attn_norm", "attention_layernorm"), ("ffn_norm", "feedforward_layernorm")],
        keys: apertus,
        ..PLAIN
    },
    // Its base is stretched already.
    Architecture {
        name: "hunyuan-dense",
        model_type: "hunyuan_v1_dense",
        parts: &[
            ("attn_q_norm", "self_attn.query_layernorm"),
            ("attn_k_norm", "self_attn.key_layernorm"),
        ],
        ..PLAIN
    },
    // Rows of neighbours, as they are.
    Architecture {
        name: "command-r",
        model_type: "cohere",
        epsilon: LAYER_NORM,
        keys: cohere::command_r,
        ..PLAIN
    },
    Architecture {
        name: "cohere2",
        model_type: "cohere2",
        epsilon: LAYER_NORM,
        keys: cohere::cohere2,
        ..PLAIN
    },
    Architecture {
        name: "lfm2",
        model_type: "lfm2",
        parts: &lfm2::LFM2,
        keys: lfm2::lfm2,
        ..PLAIN
    },
    Architecture {
        name: "lfm2moe",
        model_type: "lfm2_moe",
        parts: &lfm2::LFM2,
        parameters: &[("exp_probs_b.bias", "feed_forward.expert_bias")],
        keys: lfm2::lfm2_moe,
        ..PLAIN
    },
    Architecture {
        name: "gpt-oss",
        model_type: "gpt_oss",
        parts: &[
            ("post_attention_norm", "post_attention_layernorm"),
            ("ffn_gate_inp", "mlp.router"),
        ],
        parameters: &[("attn_sinks.weight", "self_attn.sinks")],
        keys: gpt_oss,
        ..PLAIN
    },
    Architecture {
        name: "gemma-embedding",
        model_type: "gemma3_text",
        parts: &NORMS_AROUND,
        keys: gemma::embedding,
        ..PLAIN
    },
    Architecture {
        name: "bert",
        model_type: "bert",
        epsilon: LAYER_NORM,
        outside: &encoder::BERT_OUTSIDE,
        layers: "encoder.layer",
        parts: &encoder::BERT,
        keys: encoder::bert,
        ..PLAIN
    },
    Architecture {
        name: "nomic-bert",
        model_type: "nomic_bert",
        epsilon: LAYER_NORM,
        outside: &encoder::NOMIC_OUTSIDE,
        layers: "encoder.layers",
        parts: &encoder::NOMIC,
        keys: encoder::bert,
        ..PLAIN
    },
    Architecture {
        name: "modern-bert",
        model_type: "modernbert",
        epsilon: ("norm_eps", "attention.layer_norm_epsilon"),
        outside: &encoder::MODERN_OUTSIDE,
        layers: "layers",
        parts: &encoder::MODERN,
        keys: encoder::modern,
        ..PLAIN
    },
    Architecture { name: "eurobert", model_type: "eurobert", ..PLAIN },
];

impl Architecture {
    /// The one that files call `name`.
    pub fn find(name: &str) -> Option<&'static Self> {
        ALL.iter().find(|it| it.name == name)
    }

    /// The names of all, for people.
    pub fn names() -> String {
        ALL.map(|it| it.name).join(", ")
    }
}

/// Windows in layers that the file does not tell.
fn no_window(keys: &mut Keys) -> Result<(), String> {
    match keys.copy_window() {
        false => Ok(()),
        true => Err(format!(
            "`{}.attention.sliding_window` is set, but not in which layers: windows of this \
             architecture are not supported",
            keys.architecture
        )),
    }
}

fn olmoe(keys: &mut Keys) -> Result<(), String> {
    keys.required("num_experts", "expert_count")?;
    keys.required("num_experts_per_tok", "expert_used_count")
}

fn starcoder2(keys: &mut Keys) -> Result<(), String> {
    let bias = keys.config.remove("attention_bias").unwrap_or_default();
    keys.put_named("use_bias", "blk.0.attn_q.bias", bias);
    // Of all layers; files that llama.cpp's converter has made have none.
    keys.copy_window();
    Ok(())
}

/// Its key says that MLPs are in parallel where the model's configuration said nothing; the norm before them says whether they
/// are, also to llama.cpp.
fn stablelm(keys: &mut Keys) -> Result<(), String> {
    let bias = keys.config.remove("attention_bias").unwrap_or_default();
    keys.put_named("use_qkv_bias", "blk.0.attn_q.bias", bias);
    let parallel = !keys.has("model.layers.0.post_attention_layernorm.weight");
    keys.put_named("use_parallel_residual", "blk.0.ffn_norm.weight", json!(parallel));
    let normed = keys.has("model.layers.0.self_attn.q_norm.weight");
    keys.put_named("qk_layernorm", "blk.0.attn_q_norm.weight", json!(normed));
    keys.partial_rotation();
    no_window(keys)
}

/// Its converter has added the one to the weights of norms.
fn nemotron(keys: &mut Keys) -> Result<(), String> {
    keys.config.insert(NORMS_ARE_WHOLE.into(), json!(true));
    keys.partial_rotation();
    no_window(keys)
}

/// Its biases go without saying.
fn phi2(keys: &mut Keys) -> Result<(), String> {
    keys.config.remove("attention_bias");
    keys.config.remove("mlp_bias");
    keys.partial_rotation();
    no_window(keys)
}

fn phi3(keys: &mut Keys) -> Result<(), String> {
    keys.partial_rotation();
    keys.copy_window();
    // Files of Phi-3 mini and medium with 4k from before there was the key: llama.cpp knows them so too
    // (its pull request 8931), and Hugging Face's configuration of both has this number.
    let number = |key: &str| keys.config.get(key).and_then(Json::as_u64);
    if let (Some(32 | 40), Some(4096)) =
        (number("num_hidden_layers"), number("max_position_embeddings"))
        && !keys.config.contains_key("sliding_window")
    {
        keys.put("sliding_window", "attention.sliding_window", Some(json!(2047)));
    }
    let original = "rope.scaling.original_context_length";
    keys.copy("original_max_position_embeddings", original);
    let mut factors = |ours: &str, tensor: &str| {
        let values = keys.vector(tensor)?;
        if let Some(values) = &values {
            keys.names.insert(format!("rope_scaling.{ours}"), tensor.to_owned());
            keys.scaling_object().insert(ours.to_owned(), json!(values));
        }
        Ok::<_, String>(values.is_some())
    };
    let long = factors("long_factor", "rope_factors_long.weight")?;
    let short = factors("short_factor", "rope_factors_short.weight")?;
    if long || short {
        let factor = keys.own("rope.scaling.attn_factor");
        let scaling = keys.scaling_object();
        scaling.insert("rope_type".into(), json!("longrope"));
        if let Some(factor) = factor {
            scaling.insert("attention_factor".into(), factor);
        }
    }
    Ok(())
}

/// OLMo 3's files say olmo2, and have windows.
fn olmo2(keys: &mut Keys) -> Result<(), String> {
    if !keys.copy_window() {
        return Ok(());
    }
    keys.put("model_type", "general.architecture", Some(json!("olmo3")));
    window_pattern(keys);
    Ok(())
}

/// Which layers have a window: one answer for each, or a number, of which every such layer has none.
fn window_pattern(keys: &mut Keys) {
    const KEY: &str = "attention.sliding_window_pattern";
    match keys.own(KEY) {
        Some(Json::Array(pattern)) => {
            let kind = |sliding: &Json| match sliding {
                Json::Bool(true) => "sliding_attention",
                _ => "full_attention",
            };
            let types: Vec<_> = pattern.iter().map(kind).collect();
            keys.put("layer_types", KEY, Some(json!(types)));
        }
        number => keys.put("sliding_window_pattern", KEY, number),
    }
}

fn exaone4(keys: &mut Keys) -> Result<(), String> {
    const KEY: &str = "attention.sliding_window";
    window_pattern(keys);
    // llama.cpp knows the one with windows by its layers.
    if !keys.copy_window() && keys.config["num_hidden_layers"] != 64 {
        keys.put("sliding_window", KEY, Some(Json::Null));
    }
    Ok(())
}

/// Its rope is plain where no key says how it is stretched: divisors say so.
fn apertus(keys: &mut Keys) -> Result<(), String> {
    keys.scaling_object().entry("rope_type").or_insert(json!("default"));
    no_window(keys)
}

/// Experts that are chosen by sigmoids, behind as many layers without as `dense` says.
fn sigmoid_experts(keys: &mut Keys, dense: &str) -> Result<(), String> {
    experts_behind(keys, dense)?;
    match keys.own("expert_gating_func") {
        Some(function) if function != 2 => Err(format!(
            "`{}.expert_gating_func` is {function}: supported is 2, a sigmoid",
            keys.architecture
        )),
        _ => Ok(()),
    }
}

/// Experts behind as many layers without as `dense` says.
fn experts_behind(keys: &mut Keys, dense: &str) -> Result<(), String> {
    keys.required("num_experts_per_tok", "expert_used_count")?;
    keys.required("moe_intermediate_size", "expert_feed_forward_length")?;
    let layers = keys.own("leading_dense_block_count").unwrap_or(json!(0));
    keys.put(dense, "leading_dense_block_count", Some(layers));
    let scale = keys.own("expert_weights_scale").filter(|scale| scale.as_f64() != Some(0.0));
    let scale = Some(scale.unwrap_or(json!(1.0)));
    keys.put("routed_scaling_factor", "expert_weights_scale", scale);
    Ok(())
}

fn gpt_oss(keys: &mut Keys) -> Result<(), String> {
    keys.required("sliding_window", "attention.sliding_window")?;
    keys.required("num_local_experts", "expert_count")?;
    keys.required("num_experts_per_tok", "expert_used_count")?;
    keys.required("intermediate_size", "expert_feed_forward_length")?;
    // No key says it: the ramp of its frequencies ends between dimensions.
    if keys.own("rope.scaling.type").is_some() {
        keys.scaling_object().insert("truncate".into(), json!(false));
    }
    Ok(())
}
