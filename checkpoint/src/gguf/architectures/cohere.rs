//! Cohere's.

use serde_json::json;

use super::super::keys::Keys;
use super::{no_window, window_pattern};

pub(super) fn command_r(keys: &mut Keys) -> Result<(), String> {
    no_window(keys)?;
    let scale = keys.own("logit_scale").unwrap_or(json!(1.0));
    keys.put("logit_scale", "logit_scale", Some(scale));
    // Command R+ alone has them.
    let normed = keys.has("model.layers.0.self_attn.q_norm.weight");
    keys.put("use_qk_norm", "attention.qk_norm", Some(json!(normed)));
    Ok(())
}

pub(super) fn cohere2(keys: &mut Keys) -> Result<(), String> {
    keys.required("logit_scale", "logit_scale")?;
    keys.copy_window();
    window_pattern(keys);
    Ok(())
}
