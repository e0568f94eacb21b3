//! LFM2's.

use serde_json::{Value as Json, json};

use super::super::keys::Keys;
use super::{no_window, sigmoid_experts};

pub(super) const LFM2: [(&str, &str); 15] = [
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

/// Layers without heads of keys are those that convolve.
pub(super) fn lfm2(keys: &mut Keys) -> Result<(), String> {
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

pub(super) fn lfm2_moe(keys: &mut Keys) -> Result<(), String> {
    lfm2(keys)?;
    keys.required("num_experts", "expert_count")?;
    sigmoid_experts(keys, "num_dense_layers")
}
