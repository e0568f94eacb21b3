//! Granite's.

use super::super::keys::Keys;

pub(super) fn granite(keys: &mut Keys) -> Result<(), String> {
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

pub(super) fn granite_moe(keys: &mut Keys) -> Result<(), String> {
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
