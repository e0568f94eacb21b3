//! GLM's.

use serde_json::json;

use super::super::keys::Keys;
use super::sigmoid_experts;

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
