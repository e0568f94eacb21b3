//! Llama's files, and Mistral's, which say the same.

use serde_json::{Value as Json, json};

use super::super::keys::Keys;

pub(super) fn llama(keys: &mut Keys) -> Result<(), String> {
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
pub(super) fn mistral3(keys: &mut Keys) -> Result<(), String> {
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
