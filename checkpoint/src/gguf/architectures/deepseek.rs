//! DeepSeek's, and those after them: GLM-4.7-Flash, Kimi K2, Moonlight.

use serde_json::{Value as Json, json};

use super::super::keys::Keys;
use super::experts_behind;

pub(super) const DEEPSEEK2: [(&str, &str); 11] = [
    ("attn_q_a", "self_attn.q_a_proj"),
    ("attn_q_a_norm", "self_attn.q_a_layernorm"),
    ("attn_q_b", "self_attn.q_b_proj"),
    ("attn_kv_a_mqa", "self_attn.kv_a_proj_with_mqa"),
    ("attn_kv_a_norm", "self_attn.kv_a_layernorm"),
    // Of older files; newer ones have it as two.
    ("attn_kv_b", "self_attn.kv_b_proj"),
    ("attn_k_b", "self_attn.k_b_proj"),
    ("attn_v_b", "self_attn.v_b_proj"),
    ("ffn_gate_shexp", "mlp.shared_experts.gate_proj"),
    ("ffn_up_shexp", "mlp.shared_experts.up_proj"),
    ("ffn_down_shexp", "mlp.shared_experts.down_proj"),
];

/// Which model it is, the way says in which its experts are chosen.
pub(super) fn deepseek2(keys: &mut Keys) -> Result<(), String> {
    attention(keys)?;
    if keys.own("expert_count").is_none_or(|count| count == 0) {
        return Err(format!(
            "`{}.expert_count` is missing or 0: models without experts are not supported",
            keys.architecture
        ));
    }
    keys.required("n_routed_experts", "expert_count")?;
    keys.required("n_shared_experts", "expert_shared_count")?;
    experts_behind(keys, "first_k_dense_replace")?;
    let normed = keys.own("expert_weights_norm").unwrap_or(json!(false));
    keys.put("norm_topk_prob", "expert_weights_norm", Some(normed));

    const CHOICE: &str = "expert_gating_func";
    let first = keys.config["first_k_dense_replace"].clone();
    let bias = format!("model.layers.{first}.mlp.gate.e_score_correction_bias");
    let sigmoids = match keys.own(CHOICE).as_ref().and_then(Json::as_u64) {
        Some(1) => false,
        Some(2) => true,
        // Older files do not say it.
        None | Some(0) => keys.has(&bias),
        Some(other) => {
            let architecture = keys.architecture;
            return Err(format!(
                "`{architecture}.{CHOICE}` is {other}: supported are 1, a softmax, and 2, a sigmoid"
            ));
        }
    };
    // Older files do not say either what groups DeepSeek-V2's 160 experts and DeepSeek-V3's 256 are in.
    let known = match (sigmoids, keys.config["n_routed_experts"].as_u64()) {
        (false, Some(160)) => [8, 3],
        (true, Some(256)) => [8, 4],
        _ => [1, 1],
    };
    let groups = [("n_group", "expert_group_count"), ("topk_group", "expert_group_used_count")];
    for ((ours, theirs), known) in groups.into_iter().zip(known) {
        let value = keys.own(theirs).unwrap_or(json!(known));
        keys.put(ours, theirs, Some(value));
    }
    if !sigmoids && keys.config["n_group"] != 1 {
        keys.put("topk_method", "expert_group_count", Some(json!("group_limited_greedy")));
    }
    let model_type = if sigmoids { "deepseek_v3" } else { "deepseek_v2" };
    keys.put("model_type", "general.architecture", Some(json!(model_type)));
    Ok(())
}

/// Widths of heads as they are to whom reads keys and values, and how scores grow where the rope is stretched.
fn attention(keys: &mut Keys) -> Result<(), String> {
    keys.required("kv_lora_rank", "attention.kv_lora_rank")?;
    let queries = keys.own("attention.q_lora_rank").unwrap_or(Json::Null);
    keys.put("q_lora_rank", "attention.q_lora_rank", Some(queries));
    keys.required("qk_rope_head_dim", "rope.dimension_count")?;
    // In newer files the others are widths of what lies in llama.cpp's cache.
    let newer = keys.own("attention.key_length_mla").is_some();
    let [key, value] = match newer {
        true => ["attention.key_length_mla", "attention.value_length_mla"],
        false => ["attention.key_length", "attention.value_length"],
    };
    keys.required("qk_head_dim", key)?;
    keys.required("v_head_dim", value)?;
    let width = |key: &str| keys.config[key].as_u64().unwrap_or(0);
    let plain = width("qk_head_dim").saturating_sub(width("qk_rope_head_dim"));
    keys.put("qk_nope_head_dim", key, Some(json!(plain)));
    for (ours, theirs) in
        [("num_key_value_heads", "attention.head_count"), ("head_dim", "rope.dimension_count")]
    {
        keys.copy(ours, theirs);
    }
    let architecture = keys.architecture;
    // Of the biases that Hugging Face's models may have llama.cpp knows none.
    if keys.has("model.layers.0.self_attn.kv_a_proj_with_mqa.bias") {
        return Err(
            "`blk.0.attn_kv_a_mqa.bias`: latent attention with biases is not supported here".into(),
        );
    }
    if keys.own("attention.temperature_scale").is_some() {
        return Err(format!(
            "`{architecture}.attention.temperature_scale` is set: latent attention whose scores grow with the \
             position is not supported"
        ));
    }
    const GROWTH: &str = "rope.scaling.yarn_log_multiplier";
    let yarn = keys.own("rope.scaling.type").is_some_and(|kind| kind == "yarn");
    let growth = keys.own(GROWTH);
    if !yarn && growth.is_some_and(|it| it != 0.0) {
        return Err(format!(
            "`{architecture}.{GROWTH}` is set: supported is beside \"yarn\" alone"
        ));
    }
    if yarn {
        let Some(growth) = keys.own(GROWTH).as_ref().and_then(Json::as_f64) else {
            return Err(format!(
                "`{architecture}.{GROWTH}` is missing beside \"yarn\": the file is old, or the model's configuration \
                 has no `mscale_all_dim`, which is not supported; convert the model again"
            ));
        };
        // A tenth of it is in the file. No published model has two different ones.
        for ours in ["mscale", "mscale_all_dim"] {
            let key = format!("{architecture}.{GROWTH}");
            keys.names.insert(format!("rope_scaling.{ours}"), key);
            keys.scaling_object().insert(ours.into(), json!(growth * 10.0));
        }
    }
    Ok(())
}
