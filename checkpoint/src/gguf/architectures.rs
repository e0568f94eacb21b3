//! The architectures of GGUF files (`general.architecture`), each with what is its own: Hugging Face's name of
//! it, how its converter changes weights, what it calls parts of a layer, and which keys only it has.

use serde_json::{Value as Json, json};

use super::keys::{Keys, NORMS_ARE_WHOLE, VALUE_HEADS_ARE_TILED};
use crate::families::limit;

/// An architecture.
#[derive(Debug)]
pub(crate) struct Architecture {
    /// Its name in files.
    pub name: &'static str,
    /// Hugging Face's `model_type`; some are told apart by keys.
    pub model_type: &'static str,
    /// Whether its converter reorders the rows of queries and keys, for a rotation of neighbours.
    pub pairs: bool,
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

const LFM2: [(&str, &str); 15] = [
    ("attn_norm", "operator_norm"),
    ("attn_output", "self_attn.out_proj"),
    ("attn_q_norm", "self_attn.q_layernorm"),
    ("attn_k_norm", "self_attn.k_layernorm"),
    ("shortconv.in_proj", "conv.in_proj"),
    ("shortconv.conv", "conv.conv"),
    ("shortconv.out_proj", "conv.out_proj"),
    ("ffn_norm", "ffn_norm"),
    ("ffn_gate", "feed_forward.w1"),
    ("ffn_up", "feed_forward.w3"),
    ("ffn_down", "feed_forward.w2"),
    ("ffn_gate_inp", "feed_forward.gate"),
    ("ffn_gate_exps", "feed_forward.experts.*.w1"),
    ("ffn_up_exps", "feed_forward.experts.*.w3"),
    ("ffn_down_exps", "feed_forward.experts.*.w2"),
];

/// Of layers with linear attention, and of those that attend between them.
const QWEN35: [(&str, &str); 8] = [
    ("post_attention_norm", "post_attention_layernorm"),
    ("attn_qkv", "linear_attn.in_proj_qkv"),
    ("attn_gate", "linear_attn.in_proj_z"),
    ("ssm_beta", "linear_attn.in_proj_b"),
    ("ssm_alpha", "linear_attn.in_proj_a"),
    ("ssm_conv1d", "linear_attn.conv1d"),
    ("ssm_norm", "linear_attn.norm"),
    ("ssm_out", "linear_attn.out_proj"),
];

/// The same, two for four as in Hugging Face's files; of these the first one is in files of older converters alone.
const QWEN3_NEXT: [(&str, &str); 8] = [
    ("post_attention_norm", "post_attention_layernorm"),
    ("attn_qkv", "linear_attn.in_proj_qkv"),
    ("attn_gate", "linear_attn.in_proj_z"),
    ("ssm_in", "linear_attn.in_proj_qkvz"),
    ("ssm_ba", "linear_attn.in_proj_ba"),
    ("ssm_conv1d", "linear_attn.conv1d"),
    ("ssm_norm", "linear_attn.norm"),
    ("ssm_out", "linear_attn.out_proj"),
];

const DELTA: [(&str, &str); 2] =
    [("ssm_a", "linear_attn.A_log"), ("ssm_dt.bias", "linear_attn.dt_bias")];

const ALL: [Architecture; 32] = [
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
        parameters: &[],
        keys: llama,
    },
    Architecture {
        name: "mistral3",
        model_type: "ministral3",
        pairs: true,
        parts: &[],
        parameters: &[],
        keys: mistral3,
    },
    Architecture {
        name: "qwen2",
        model_type: "qwen2",
        pairs: false,
        parts: &[],
        parameters: &[],
        keys: no_window,
    },
    Architecture {
        name: "qwen3",
        model_type: "qwen3",
        pairs: false,
        parts: &[],
        parameters: &[],
        keys: no_window,
    },
    Architecture {
        name: "qwen35",
        model_type: "qwen3_5_text",
        pairs: false,
        parts: &QWEN35,
        parameters: &DELTA,
        keys: qwen35,
    },
    Architecture {
        name: "qwen35moe",
        model_type: "qwen3_5_moe_text",
        pairs: false,
        parts: &QWEN35,
        parameters: &DELTA,
        keys: qwen35_moe,
    },
    Architecture {
        name: "qwen3next",
        model_type: "qwen3_next",
        pairs: false,
        parts: &QWEN3_NEXT,
        parameters: &DELTA,
        keys: qwen3_next,
    },
    Architecture {
        name: "qwen2moe",
        model_type: "qwen2_moe",
        pairs: false,
        parts: &[],
        parameters: &[],
        keys: qwen2_moe,
    },
    Architecture {
        name: "qwen3moe",
        model_type: "qwen3_moe",
        pairs: false,
        parts: &[],
        parameters: &[],
        keys: qwen3_moe,
    },
    Architecture {
        name: "olmoe",
        model_type: "olmoe",
        pairs: false,
        parts: &[],
        parameters: &[],
        keys: olmoe,
    },
    Architecture {
        name: "gemma",
        model_type: "gemma",
        pairs: false,
        parts: &[],
        parameters: &[],
        keys: gemma1,
    },
    Architecture {
        name: "gemma2",
        model_type: "gemma2",
        pairs: false,
        parts: &NORMS_AROUND,
        parameters: &[],
        keys: gemma2,
    },
    Architecture {
        name: "gemma3",
        model_type: "gemma3_text",
        pairs: false,
        parts: &NORMS_AROUND,
        parameters: &[],
        keys: gemma3,
    },
    Architecture {
        name: "gemma4",
        model_type: "gemma4_text",
        pairs: false,
        parts: &[
            ("post_attention_norm", "post_attention_layernorm"),
            ("ffn_norm", "pre_feedforward_layernorm"),
            ("post_ffw_norm", "post_feedforward_layernorm"),
            ("inp_gate", "per_layer_input_gate"),
            ("proj", "per_layer_projection"),
            ("post_norm", "post_per_layer_input_norm"),
        ],
        parameters: &[("layer_output_scale.weight", "layer_scalar")],
        keys: gemma4,
    },
    Architecture {
        name: "phi3",
        model_type: "phi3",
        pairs: false,
        parts: &[("attn_qkv", "self_attn.qkv_proj"), ("ffn_up", "mlp.gate_up_proj")],
        parameters: &[],
        keys: phi3,
    },
    Architecture {
        name: "smollm3",
        model_type: "smollm3",
        pairs: true,
        parts: &[],
        parameters: &[],
        keys: no_window,
    },
    Architecture {
        name: "olmo2",
        model_type: "olmo2",
        pairs: false,
        parts: &[
            ("post_attention_norm", "post_attention_layernorm"),
            ("post_ffw_norm", "post_feedforward_layernorm"),
        ],
        parameters: &[],
        keys: olmo2,
    },
    Architecture {
        name: "exaone4",
        model_type: "exaone4",
        pairs: false,
        parts: &[
            ("post_attention_norm", "post_attention_layernorm"),
            ("post_ffw_norm", "post_feedforward_layernorm"),
        ],
        parameters: &[],
        keys: exaone4,
    },
    Architecture {
        name: "seed_oss",
        model_type: "seed_oss",
        pairs: false,
        parts: &[("post_attention_norm", "post_attention_layernorm")],
        parameters: &[],
        keys: no_window,
    },
    // Its rows are those of neighbours that rotate, as they are.
    Architecture {
        name: "ernie4_5",
        model_type: "ernie4_5",
        pairs: false,
        parts: &[],
        parameters: &[],
        keys: no_window,
    },
    Architecture {
        name: "granite",
        model_type: "granite",
        pairs: true,
        parts: &[],
        parameters: &[],
        keys: granite,
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
        parameters: &[],
        keys: granite_moe,
    },
    Architecture {
        name: "glm4",
        model_type: "glm4",
        pairs: false,
        parts: &[
            ("post_attention_norm", "post_self_attn_layernorm"),
            ("post_ffw_norm", "post_mlp_layernorm"),
            ("ffn_up", "mlp.gate_up_proj"),
        ],
        parameters: &[],
        keys: glm4,
    },
    Architecture {
        name: "glm4moe",
        model_type: "glm4_moe",
        pairs: false,
        parts: &[
            ("post_attention_norm", "post_attention_layernorm"),
            ("ffn_gate_shexp", "mlp.shared_experts.gate_proj"),
            ("ffn_up_shexp", "mlp.shared_experts.up_proj"),
            ("ffn_down_shexp", "mlp.shared_experts.down_proj"),
        ],
        parameters: &[("exp_probs_b.bias", "mlp.gate.e_score_correction_bias")],
        keys: glm4_moe,
    },
    Architecture {
        name: "arcee",
        model_type: "arcee",
        pairs: true,
        parts: &[],
        parameters: &[],
        keys: no_window,
    },
    Architecture {
        name: "apertus",
        model_type: "apertus",
        pairs: false,
        parts: &[("attn_norm", "attention_layernorm"), ("ffn_norm", "feedforward_layernorm")],
        parameters: &[],
        keys: apertus,
    },
    // Its base is stretched already.
    Architecture {
        name: "hunyuan-dense",
        model_type: "hunyuan_v1_dense",
        pairs: false,
        parts: &[
            ("attn_q_norm", "self_attn.query_layernorm"),
            ("attn_k_norm", "self_attn.key_layernorm"),
        ],
        parameters: &[],
        keys: no_window,
    },
    // Rows of neighbours, as they are.
    Architecture {
        name: "command-r",
        model_type: "cohere",
        pairs: false,
        parts: &[],
        parameters: &[],
        keys: command_r,
    },
    Architecture {
        name: "cohere2",
        model_type: "cohere2",
        pairs: false,
        parts: &[],
        parameters: &[],
        keys: cohere2,
    },
    Architecture {
        name: "lfm2",
        model_type: "lfm2",
        pairs: false,
        parts: &LFM2,
        parameters: &[],
        keys: lfm2,
    },
    Architecture {
        name: "lfm2moe",
        model_type: "lfm2_moe",
        pairs: false,
        parts: &LFM2,
        parameters: &[("exp_probs_b.bias", "feed_forward.expert_bias")],
        keys: lfm2_moe,
    },
    Architecture {
        name: "gpt-oss",
        model_type: "gpt_oss",
        pairs: false,
        parts: &[
            ("post_attention_norm", "post_attention_layernorm"),
            ("ffn_gate_inp", "mlp.router"),
        ],
        parameters: &[("attn_sinks.weight", "self_attn.sinks")],
        keys: gpt_oss,
    },
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

fn llama(keys: &mut Keys) -> Result<(), String> {
    // Mistral's files say llama; of those two families it is the one with a window.
    if keys.copy_window() {
        keys.put("model_type", "general.architecture", Some(json!("mistral")));
    }
    // So do Mixtral's, which have experts.
    if keys.own("expert_count").is_some_and(|count| count != 0) {
        keys.put("model_type", "general.architecture", Some(json!("mixtral")));
        keys.required("num_local_experts", "expert_count")?;
        keys.required("num_experts_per_tok", "expert_used_count")?;
    }
    Ok(())
}

/// Mistral Small's files say it too, which are like Llama's.
fn mistral3(keys: &mut Keys) -> Result<(), String> {
    const BETA: &str = "attention.temperature_scale";
    let number = |it: Option<Json>| it.filter(|it| it.as_f64() != Some(0.0));
    if let Some(by) = number(keys.own("rope.scaling.yarn_log_multiplier")) {
        let scaling = keys.scaling_object();
        scaling.insert("mscale".into(), json!(1.0));
        scaling.insert("mscale_all_dim".into(), by);
    }
    let Some(beta) = number(keys.own(BETA)) else {
        keys.put("model_type", "general.architecture", Some(json!("llama")));
        return llama(keys);
    };
    keys.copy_window();
    keys.names.insert("rope_scaling.llama_4_scaling_beta".into(), format!("mistral3.{BETA}"));
    keys.scaling_object().insert("llama_4_scaling_beta".into(), beta);
    Ok(())
}

/// Its converter puts value heads that meet one key head far apart.
fn qwen35(keys: &mut Keys) -> Result<(), String> {
    keys.config.insert(VALUE_HEADS_ARE_TILED.into(), json!(true));
    gated_delta(keys)
}

fn qwen35_moe(keys: &mut Keys) -> Result<(), String> {
    qwen35(keys)?;
    shared_experts(keys)
}

fn qwen3_next(keys: &mut Keys) -> Result<(), String> {
    gated_delta(keys)?;
    shared_experts(keys)
}

/// Experts as llama.cpp has them of both: their shares are divided by their sum.
fn shared_experts(keys: &mut Keys) -> Result<(), String> {
    qwen3_moe(keys)?;
    keys.required("shared_expert_intermediate_size", "expert_shared_feed_forward_length")
}

/// Layers with linear attention, and some that attend.
fn gated_delta(keys: &mut Keys) -> Result<(), String> {
    const INNER: &str = "ssm.inner_size";
    const RECURRENT: &str = "attention.recurrent_layers";
    no_window(keys)?;
    keys.partial_rotation();
    keys.config.insert(NORMS_ARE_WHOLE.into(), json!(true));
    keys.required("linear_conv_kernel_dim", "ssm.conv_kernel")?;
    keys.required("linear_key_head_dim", "ssm.state_size")?;
    keys.required("linear_num_key_heads", "ssm.group_count")?;
    keys.required("linear_num_value_heads", "ssm.time_step_rank")?;
    keys.required("linear_value_head_dim", INNER)?;
    let number = |keys: &Keys, key: &str| keys.config.get(key).and_then(Json::as_u64);
    if let (Some(inner), Some(heads)) =
        (number(keys, "linear_value_head_dim"), number(keys, "linear_num_value_heads"))
    {
        let width = inner.checked_div(heads).filter(|width| width * heads == inner);
        let Some(width) = width else {
            return Err(format!(
                "`{}.{INNER}` is {inner}, which are not {heads} heads (`ssm.time_step_rank`) of one width: \
                 the file is damaged",
                keys.architecture
            ));
        };
        keys.put("linear_value_head_dim", INNER, Some(json!(width)));
    }
    let layers = number(keys, "num_hidden_layers").unwrap_or(0);
    match keys.own(RECURRENT) {
        Some(Json::Array(recurrent)) => {
            let kind = |recurrent: &Json| match recurrent {
                Json::Bool(true) => "linear_attention",
                other if *other == 1 => "linear_attention",
                _ => "full_attention",
            };
            let types = recurrent.iter().map(kind).take(usize::try_from(layers).unwrap_or(0));
            let types: Vec<_> = types.collect();
            keys.put("layer_types", RECURRENT, Some(json!(types)));
        }
        _ => {
            keys.copy("full_attention_interval", "full_attention_interval");
        }
    }
    Ok(())
}

fn qwen_experts(keys: &mut Keys) -> Result<(), String> {
    no_window(keys)?;
    keys.required("num_experts", "expert_count")?;
    keys.required("num_experts_per_tok", "expert_used_count")?;
    keys.required("moe_intermediate_size", "expert_feed_forward_length")
}

fn qwen2_moe(keys: &mut Keys) -> Result<(), String> {
    qwen_experts(keys)?;
    keys.config.insert("norm_topk_prob".into(), json!(false));
    keys.required("shared_expert_intermediate_size", "expert_shared_feed_forward_length")
}

fn qwen3_moe(keys: &mut Keys) -> Result<(), String> {
    qwen_experts(keys)?;
    keys.config.insert("norm_topk_prob".into(), json!(true));
    Ok(())
}

fn olmoe(keys: &mut Keys) -> Result<(), String> {
    keys.required("num_experts", "expert_count")?;
    keys.required("num_experts_per_tok", "expert_used_count")
}

fn gemma1(keys: &mut Keys) -> Result<(), String> {
    keys.config.insert(NORMS_ARE_WHOLE.into(), json!(true));
    Ok(())
}

/// What scores are divided by the root of: the width of a head, but for the largest models, whose
/// number of layers llama.cpp knows them by.
///
/// Returns whether there is a window.
fn gemma(keys: &mut Keys, layers_of_27b: u64) -> bool {
    let number = |key: &str| keys.config.get(key).and_then(Json::as_u64);
    let per_head = match (number("hidden_size"), number("num_attention_heads")) {
        (Some(width), Some(heads)) => width.checked_div(heads),
        _ => None,
    };
    let width = match number("num_hidden_layers") {
        Some(layers) if layers == layers_of_27b => per_head,
        _ => number("head_dim"),
    };
    keys.put("query_pre_attn_scalar", "attention.key_length", width.map(Json::from));
    keys.config.insert(NORMS_ARE_WHOLE.into(), json!(true));
    keys.copy("final_logit_softcapping", "final_logit_softcapping");
    keys.copy_window()
}

fn gemma2(keys: &mut Keys) -> Result<(), String> {
    gemma(keys, 46);
    keys.copy("attn_logit_softcapping", "attn_logit_softcapping");
    Ok(())
}

fn gemma3(keys: &mut Keys) -> Result<(), String> {
    if gemma(keys, 62) {
        window_pattern(keys);
    } else {
        // The converter leaves the key out of a model that sees everything, which then has one rope: Rnj-1.
        let layers = keys.config["num_hidden_layers"].as_u64().and_then(|it| it.try_into().ok());
        let types = vec!["full_attention"; layers.unwrap_or(0).min(limit::LAYERS)];
        keys.put("layer_types", "attention.sliding_window", Some(json!(types)));
    }
    keys.copy("rope_local_base_freq", "rope.freq_base_swa");
    if keys.own("rope.freq_base").is_none() {
        keys.put("rope_theta", "rope.freq_base", Some(json!(1_000_000.0)));
    }
    Ok(())
}

/// What differs between layers is a list of all of them, or has two keys.
fn gemma4(keys: &mut Keys) -> Result<(), String> {
    const PATTERN: &str = "attention.sliding_window_pattern";
    window_pattern(keys);
    let Some(Json::Array(sliding)) = keys.own(PATTERN) else {
        return Err("`gemma4.attention.sliding_window_pattern` is no list of layers".into());
    };
    let full = |layer: &usize| sliding[*layer] != Json::Bool(true);
    let layers = 0..sliding.len();
    let mut of_kinds = |ours: [&str; 2], theirs: &str| {
        let Some(Json::Array(own)) = keys.own(theirs) else { return Ok(()) };
        for (ours, kind) in ours.into_iter().zip([false, true]) {
            let mut of = layers.clone().filter(|it| full(it) == kind).map(|it| own.get(it));
            let first = of.next().flatten();
            if of.any(|it| it != first) {
                return Err(format!("`gemma4.{theirs}` differs between layers of one kind"));
            }
            keys.put(ours, theirs, first.cloned());
        }
        Ok(())
    };
    let heads = ["num_key_value_heads", "num_global_key_value_heads"];
    of_kinds(heads, "attention.head_count_kv")?;

    keys.required("sliding_window", "attention.sliding_window")?;
    keys.required("global_head_dim", "attention.key_length")?;
    keys.required("head_dim", "attention.key_length_swa")?;
    keys.required("hidden_size_per_layer_input", "embedding_length_per_layer_input")?;
    keys.copy("num_kv_shared_layers", "attention.shared_kv_layers");
    keys.copy("final_logit_softcapping", "final_logit_softcapping");

    // Layers that share keys may have MLPs that are twice as wide.
    const WIDTH: &str = "feed_forward_length";
    if let Some(Json::Array(widths)) = keys.own(WIDTH) {
        let width = widths.first().and_then(Json::as_u64).unwrap_or(0);
        let shared = keys.config.get("num_kv_shared_layers").and_then(Json::as_u64).unwrap_or(0);
        let wide = widths.last().is_some_and(|last| *last != width);
        let first = widths.len().saturating_sub(shared as usize);
        let expected =
            |layer: usize| if wide && layer >= first { width.saturating_mul(2) } else { width };
        if widths.iter().enumerate().any(|(layer, own)| *own != expected(layer)) {
            return Err(format!(
                "`gemma4.{WIDTH}` differs otherwise than by layers that share keys, twice as wide"
            ));
        }
        keys.put("intermediate_size", WIDTH, Some(json!(width)));
        keys.put("use_double_wide_mlp", WIDTH, Some(json!(wide)));
    }

    let has = |keys: &Keys, layer: usize, part: &str| {
        keys.has(&format!("model.layers.{layer}.self_attn.{part}.weight"))
    };
    let first = layers.clone().find(|it| full(it));
    let as_values = first.is_some_and(|it| has(keys, it, "k_proj") && !has(keys, it, "v_proj"));
    keys.config.insert("attention_k_eq_v".into(), json!(as_values));
    let rows = keys.rows("model.embed_tokens_per_layer.weight");
    keys.put(
        "vocab_size_per_layer_input",
        "embedding_length_per_layer_input",
        rows.map(Json::from),
    );

    // Divisors of the frequencies of layers without a window: those that do not turn have one without end.
    const FACTORS: &str = "rope_freqs.weight";
    let factors = keys
        .vector(FACTORS)?
        .ok_or("tensor `rope_freqs.weight` is missing: the file is damaged")?;
    let turning = factors.iter().take_while(|it| **it == 1.0).count();
    if factors[turning..].iter().any(|it| *it < 1e20) {
        return Err(format!(
            "tensor `{FACTORS}` has other divisors than 1 and, behind these, 1e30"
        ));
    }
    let theta = keys.own("rope.freq_base").unwrap_or(json!(1_000_000.0));
    let of_windows = keys.own("rope.freq_base_swa").unwrap_or(json!(10_000.0));
    let ropes = json!({
        "full_attention": {
            "rope_type": "proportional",
            "rope_theta": theta,
            "partial_rotary_factor": turning as f64 / factors.len() as f64,
        },
        "sliding_attention": {"rope_type": "default", "rope_theta": of_windows},
    });
    keys.config.remove("rope_theta");
    keys.config.insert("rope_parameters".into(), ropes);
    Ok(())
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

fn granite(keys: &mut Keys) -> Result<(), String> {
    for (ours, theirs) in [
        ("attention_multiplier", "attention.scale"),
        ("embedding_multiplier", "embedding_scale"),
        ("residual_multiplier", "residual_scale"),
        ("logits_scaling", "logit_scale"),
    ] {
        keys.required(ours, theirs)?;
    }
    Ok(())
}

fn granite_moe(keys: &mut Keys) -> Result<(), String> {
    const SHARED: &str = "expert_shared_feed_forward_length";
    granite(keys)?;
    if let Some(wide) = keys.own(SHARED).filter(|wide| *wide != 0) {
        return Err(format!(
            "`granitemoe.{SHARED}` is {wide}: an expert of all rows is not supported in these files; take the \
             model in Hugging Face layout"
        ));
    }
    keys.required("num_local_experts", "expert_count")?;
    keys.required("num_experts_per_tok", "expert_used_count")
}

fn glm4(keys: &mut Keys) -> Result<(), String> {
    // Those that see images have other rows of queries and keys (`conversion/glm.py`).
    let sections = keys.own("rope.dimension_sections");
    if sections.is_some_and(|it| it.as_array().is_some_and(|it| it.iter().any(|it| *it != 0))) {
        return Err(format!(
            "`{}.rope.dimension_sections` is set: models that see images are not supported",
            keys.architecture
        ));
    }
    keys.partial_rotation();
    Ok(())
}

fn command_r(keys: &mut Keys) -> Result<(), String> {
    no_window(keys)?;
    let scale = keys.own("logit_scale").unwrap_or(json!(1.0));
    keys.put("logit_scale", "logit_scale", Some(scale));
    // Command R+ alone has them.
    let normed = keys.has("model.layers.0.self_attn.q_norm.weight");
    keys.put("use_qk_norm", "attention.qk_norm", Some(json!(normed)));
    Ok(())
}

fn cohere2(keys: &mut Keys) -> Result<(), String> {
    keys.required("logit_scale", "logit_scale")?;
    keys.copy_window();
    window_pattern(keys);
    Ok(())
}

/// Its rope is plain where no key says how it is stretched: divisors say so.
fn apertus(keys: &mut Keys) -> Result<(), String> {
    keys.scaling_object().entry("rope_type").or_insert(json!("default"));
    no_window(keys)
}

fn glm4_moe(keys: &mut Keys) -> Result<(), String> {
    glm4(keys)?;
    keys.required("n_routed_experts", "expert_count")?;
    keys.required("n_shared_experts", "expert_shared_count")?;
    sigmoid_experts(keys, "first_k_dense_replace")?;
    keys.copy("norm_topk_prob", "expert_weights_norm");
    keys.copy("n_group", "expert_group_count");
    keys.copy("topk_group", "expert_group_used_count");
    let normed = keys.has("model.layers.0.self_attn.q_norm.weight");
    keys.put("use_qk_norm", "attention.qk_norm", Some(json!(normed)));
    Ok(())
}

/// Experts that are chosen by sigmoids, behind as many layers without as `dense` says.
fn sigmoid_experts(keys: &mut Keys, dense: &str) -> Result<(), String> {
    keys.required("num_experts_per_tok", "expert_used_count")?;
    keys.required("moe_intermediate_size", "expert_feed_forward_length")?;
    let layers = keys.own("leading_dense_block_count").unwrap_or(json!(0));
    keys.put(dense, "leading_dense_block_count", Some(layers));
    let scale = keys.own("expert_weights_scale").filter(|scale| scale.as_f64() != Some(0.0));
    keys.put("routed_scaling_factor", "expert_weights_scale", scale);
    match keys.own("expert_gating_func") {
        Some(function) if function != 2 => Err(format!(
            "`{}.expert_gating_func` is {function}: supported is 2, a sigmoid",
            keys.architecture
        )),
        _ => Ok(()),
    }
}

/// Layers without heads of keys are those that convolve.
fn lfm2(keys: &mut Keys) -> Result<(), String> {
    const HEADS: &str = "attention.head_count_kv";
    no_window(keys)?;
    keys.required("norm_eps", "attention.layer_norm_rms_epsilon")?;
    keys.required("conv_L_cache", "shortconv.l_cache")?;
    // The file has the width that was made of the key.
    keys.config.insert("block_auto_adjust_ff_dim".into(), json!(false));
    let Some(Json::Array(heads)) = keys.own(HEADS) else { return Ok(()) };
    let kind = |heads: &Json| if *heads == 0 { "conv" } else { "full_attention" };
    let types: Vec<_> = heads.iter().map(kind).collect();
    keys.put("layer_types", HEADS, Some(json!(types)));
    let mut attending = heads.iter().filter(|heads| **heads != 0);
    // Where no layer attends nobody reads it.
    let first = attending.next().cloned().unwrap_or(json!(1));
    if let Some(other) = attending.find(|heads| **heads != first) {
        return Err(format!(
            "`{}.{HEADS}` is {first} in one layer and {other} in another: layers that attend with different \
             numbers of heads are not supported",
            keys.architecture
        ));
    }
    keys.put("num_key_value_heads", HEADS, Some(first));
    Ok(())
}

fn lfm2_moe(keys: &mut Keys) -> Result<(), String> {
    lfm2(keys)?;
    keys.required("num_experts", "expert_count")?;
    sigmoid_experts(keys, "num_dense_layers")
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
