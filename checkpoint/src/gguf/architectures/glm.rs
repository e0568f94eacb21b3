//! GLM's, and those that have experts as its mixtures do.

use serde_json::{Value as Json, json};

use super::super::keys::Keys;
use super::{no_window, sigmoid_experts};

/// The expert of all rows.
pub(super) const SHARED: [(&str, &str); 3] = [
    ("ffn_gate_shexp", "mlp.shared_experts.gate_proj"),
    ("ffn_up_shexp", "mlp.shared_experts.up_proj"),
    ("ffn_down_shexp", "mlp.shared_experts.down_proj"),
];

pub(super) const GLM4_MOE: [(&str, &str); 4] =
    [("post_attention_norm", "post_attention_layernorm"), SHARED[0], SHARED[1], SHARED[2]];

/// What is added to shares where experts are chosen.
pub(super) const CHOICE: [(&str, &str); 1] =
    [("exp_probs_b.bias", "mlp.gate.e_score_correction_bias")];

pub(super) fn chatglm(keys: &mut Keys) -> Result<(), String> {
    keys.partial_rotation();
    no_window(keys)
}

pub(super) fn glm4(keys: &mut Keys) -> Result<(), String> {
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

pub(super) fn glm4_moe(keys: &mut Keys) -> Result<(), String> {
    glm4(keys)?;
    experts(keys)?;
    let normed = keys.has("model.layers.0.self_attn.q_norm.weight");
    keys.put("use_qk_norm", "attention.qk_norm", Some(json!(normed)));
    Ok(())
}

/// No file says that it has windows.
pub(super) fn dots1(keys: &mut Keys) -> Result<(), String> {
    no_window(keys)?;
    keys.put("sliding_window", "attention.sliding_window", Some(Json::Null));
    experts(keys)
}

fn experts(keys: &mut Keys) -> Result<(), String> {
    keys.required("n_routed_experts", "expert_count")?;
    keys.required("n_shared_experts", "expert_shared_count")?;
    sigmoid_experts(keys, "first_k_dense_replace")?;
    keys.copy("norm_topk_prob", "expert_weights_norm");
    keys.copy("n_group", "expert_group_count");
    keys.copy("topk_group", "expert_group_used_count");
    Ok(())
}
