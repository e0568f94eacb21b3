//! Qwen's, those with linear attention and with experts.

use serde_json::{Value as Json, json};

use super::super::keys::{Keys, NORMS_ARE_WHOLE, VALUE_HEADS_ARE_TILED};
use super::{no_window, window_pattern};

/// Of layers with linear attention, and of those that attend between them.
pub(super) const QWEN35: [(&str, &str); 8] = [
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
pub(super) const QWEN3_NEXT: [(&str, &str); 8] = [
    ("post_attention_norm", "post_attention_layernorm"),
    ("attn_qkv", "linear_attn.in_proj_qkv"),
    ("attn_gate", "linear_attn.in_proj_z"),
    ("ssm_in", "linear_attn.in_proj_qkvz"),
    ("ssm_ba", "linear_attn.in_proj_ba"),
    ("ssm_conv1d", "linear_attn.conv1d"),
    ("ssm_norm", "linear_attn.norm"),
    ("ssm_out", "linear_attn.out_proj"),
];

pub(super) const DELTA: [(&str, &str); 2] =
    [("ssm_a", "linear_attn.A_log"), ("ssm_dt.bias", "linear_attn.dt_bias")];

/// Its converter puts value heads that meet one key head far apart.
pub(super) fn qwen35(keys: &mut Keys) -> Result<(), String> {
    keys.config.insert(VALUE_HEADS_ARE_TILED.into(), json!(true));
    gated_delta(keys)
}

pub(super) fn qwen35_moe(keys: &mut Keys) -> Result<(), String> {
    qwen35(keys)?;
    shared_experts(keys)
}

pub(super) fn qwen3_next(keys: &mut Keys) -> Result<(), String> {
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

/// Layers with a window rotate by another base, or by the same.
pub(super) fn mellum(keys: &mut Keys) -> Result<(), String> {
    if keys.copy_window() {
        window_pattern(keys);
        // Else every so many layers, the last of these, has none.
        let every = keys.config.remove("sliding_window_pattern").and_then(|it| it.as_u64());
        if !keys.config.contains_key("layer_types") {
            let every = every.unwrap_or(4);
            let layers = keys.config["num_hidden_layers"].as_u64().unwrap_or(0);
            let kind = |layer: u64| match every != 0 && (layer + 1).is_multiple_of(every) {
                true => "full_attention",
                false => "sliding_attention",
            };
            let types: Vec<_> = (0..layers.min(1 << 12)).map(kind).collect();
            keys.put("layer_types", "attention.sliding_window_pattern", Some(json!(types)));
        }
    }
    let plain = |base: Option<Json>| json!({"rope_type": "default", "rope_theta": base});
    let base = keys.config.get("rope_theta").cloned();
    let of_windows = keys.own("rope.freq_base_swa").or(base.clone());
    let mut full = keys.config.remove("rope_scaling").unwrap_or_else(|| plain(base.clone()));
    full["rope_theta"] = base.into();
    let ropes = json!({"full_attention": full, "sliding_attention": plain(of_windows)});
    keys.put("rope_parameters", "rope.freq_base", Some(ropes));
    keys.config.insert("norm_topk_prob".into(), json!(true));
    experts_alone(keys)
}

fn qwen_experts(keys: &mut Keys) -> Result<(), String> {
    no_window(keys)?;
    experts_alone(keys)
}

fn experts_alone(keys: &mut Keys) -> Result<(), String> {
    keys.required("num_experts", "expert_count")?;
    keys.required("num_experts_per_tok", "expert_used_count")?;
    keys.required("moe_intermediate_size", "expert_feed_forward_length")
}

pub(super) fn qwen2_moe(keys: &mut Keys) -> Result<(), String> {
    qwen_experts(keys)?;
    keys.config.insert("norm_topk_prob".into(), json!(false));
    keys.required("shared_expert_intermediate_size", "expert_shared_feed_forward_length")
}

pub(super) fn qwen3_moe(keys: &mut Keys) -> Result<(), String> {
    qwen_experts(keys)?;
    keys.config.insert("norm_topk_prob".into(), json!(true));
    Ok(())
}
