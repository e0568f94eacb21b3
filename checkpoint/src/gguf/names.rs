//! What tensors are called: in GGUF files, and by Hugging Face.

use super::architectures::Architecture;

/// What decoders have outside of layers.
pub(super) const DECODER: [(&str, &str); 7] = [
    ("token_embd", "model.embed_tokens"),
    ("output_norm", "model.norm"),
    // LFM2's norm behind the last layer, by a mistake that became its name.
    ("token_embd_norm", "model.embedding_norm"),
    ("output", "lm_head"),
    ("per_layer_token_embd", "model.embed_tokens_per_layer"),
    ("per_layer_model_proj", "model.per_layer_model_projection"),
    ("per_layer_proj_norm", "model.per_layer_projection_norm"),
];

/// Within a layer, `blk.0` here and `model.layers.0` there, where an architecture has no name of its own.
const LAYER: [(&str, &str); 19] = [
    ("attn_norm", "input_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
    ("ffn_norm", "post_attention_layernorm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
    ("ffn_gate_inp", "mlp.gate"),
    ("ffn_gate_exps", "mlp.experts.*.gate_proj"),
    ("ffn_up_exps", "mlp.experts.*.up_proj"),
    ("ffn_down_exps", "mlp.experts.*.down_proj"),
    ("ffn_gate_inp_shexp", "mlp.shared_expert_gate"),
    ("ffn_gate_shexp", "mlp.shared_expert.gate_proj"),
    ("ffn_up_shexp", "mlp.shared_expert.up_proj"),
    ("ffn_down_shexp", "mlp.shared_expert.down_proj"),
];

/// Parameters of layers that a file has among its keys, as an array with a number for each layer; and their
/// shapes to Hugging Face.
pub(super) const AMONG_KEYS: [(&str, &str, &[usize]); 4] = [
    ("xielu.alpha_p", "mlp.act_fn.alpha_p", &[1]),
    ("xielu.alpha_n", "mlp.act_fn.alpha_n", &[1]),
    ("xielu.beta", "mlp.act_fn.beta", &[]),
    ("xielu.eps", "mlp.act_fn.eps", &[]),
];

/// Stands for the number of each expert in the name of a tensor that holds all of them.
pub(super) const EACH: &str = "*";

/// Hugging Face's name of the tensor that a file calls `name`; `None` where it has none.
pub(super) fn hugging_face_name(name: &str, of: &Architecture) -> Option<String> {
    match name.strip_prefix("blk.") {
        None => {
            let (stem, end) = parameter(name)?;
            let (_, there) = of.outside.iter().find(|(here, _)| *here == stem)?;
            Some(format!("{there}.{end}"))
        }
        Some(rest) => {
            let (layer, whole) = layer(rest)?;
            let layers = of.layers;
            if let Some((_, there)) = of.parameters.iter().find(|(here, _)| *here == whole) {
                return Some(format!("{layers}.{layer}.{there}"));
            }
            let (part, end) = parameter(whole)?;
            let (_, there) = parts(of).find(|(here, _)| *here == part)?;
            Some(format!("{layers}.{layer}.{there}.{end}"))
        }
    }
}

/// What a file calls the tensor with Hugging Face's name `name`.
pub(crate) fn stored_name(name: &str, of: &Architecture) -> Option<String> {
    if let Some((key, ..)) = AMONG_KEYS.into_iter().find(|(_, there, _)| name.ends_with(there)) {
        return Some(format!("{}.{key}", of.name));
    }
    match name.strip_prefix(of.layers).and_then(|rest| rest.strip_prefix('.')) {
        None => {
            let (stem, end) = parameter(name)?;
            let (here, _) = of.outside.iter().find(|(_, there)| *there == stem)?;
            Some(format!("{here}.{end}"))
        }
        Some(rest) => {
            let (layer, whole) = layer(rest)?;
            if let Some((here, _)) = of.parameters.iter().find(|(_, there)| *there == whole) {
                return Some(format!("blk.{layer}.{here}"));
            }
            let (part, end) = parameter(whole)?;
            let part = of_all_experts(part);
            let (here, _) = parts(of).find(|(_, there)| *there == part)?;
            Some(format!("blk.{layer}.{here}.{end}"))
        }
    }
}

/// The names of a layer's parts, those of the architecture first.
fn parts(of: &Architecture) -> impl Iterator<Item = (&'static str, &'static str)> {
    let general = LAYER.into_iter();
    // What has a name of its own has no other one.
    let general = general.filter(|(here, _)| !of.parts.iter().any(|(own, _)| own == here));
    of.parts.iter().copied().chain(general)
}

/// The name of a part, with [`EACH`] in the place of an expert's number.
fn of_all_experts(part: &str) -> String {
    const EXPERTS: &str = "experts.";
    let found = part.split_once(EXPERTS).and_then(|(before, rest)| {
        let (number, part) = rest.split_once('.')?;
        number.parse::<usize>().ok()?;
        Some(format!("{before}{EXPERTS}{EACH}.{part}"))
    });
    found.unwrap_or_else(|| part.to_owned())
}

/// A module's name, and "weight" or "bias".
fn parameter(name: &str) -> Option<(&str, &str)> {
    name.rsplit_once('.').filter(|(_, end)| matches!(*end, "weight" | "bias"))
}

/// The number of a layer, and its part.
fn layer(rest: &str) -> Option<(usize, &str)> {
    let (number, part) = rest.split_once('.')?;
    let layer: usize = number.parse().ok()?;
    // No other spelling of the same number: two tensors would have one name.
    (layer.to_string() == number).then_some((layer, part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_other_and_back() {
        let of = |name| Architecture::find(name).unwrap();
        let llama = of("llama");
        for (architecture, here, there) in [
            ("gemma3", "ffn_norm", "pre_feedforward_layernorm"),
            ("gemma3", "post_attention_norm", "post_attention_layernorm"),
            ("olmo2", "post_ffw_norm", "post_feedforward_layernorm"),
            ("glm4", "post_attention_norm", "post_self_attn_layernorm"),
            ("glm4", "ffn_norm", "post_attention_layernorm"),
            ("phi3", "ffn_up", "mlp.gate_up_proj"),
            ("qwen3moe", "ffn_up_exps", "mlp.experts.*.up_proj"),
            ("llama", "ffn_down_exps", "block_sparse_moe.experts.*.w2"),
            ("gpt-oss", "ffn_gate_inp", "mlp.router"),
            ("lfm2", "ffn_norm", "ffn_norm"),
            ("lfm2", "shortconv.conv", "conv.conv"),
            ("qwen35", "post_attention_norm", "post_attention_layernorm"),
            ("qwen35", "attn_gate", "linear_attn.in_proj_z"),
            ("qwen35moe", "ffn_gate_inp_shexp", "mlp.shared_expert_gate"),
            ("qwen3next", "ssm_ba", "linear_attn.in_proj_ba"),
            ("lfm2moe", "ffn_up_exps", "feed_forward.experts.*.w3"),
            ("gemma4", "inp_gate", "per_layer_input_gate"),
            ("gemma4", "post_norm", "post_per_layer_input_norm"),
        ] {
            let (here, there) =
                (format!("blk.3.{here}.weight"), format!("model.layers.3.{there}.weight"));
            assert_eq!(hugging_face_name(&here, of(architecture)).unwrap(), there);
            assert_eq!(stored_name(&there, of(architecture)).unwrap(), here);
            let seventh = there.replace(EACH, "7");
            assert_eq!(stored_name(&seventh, of(architecture)).unwrap(), here);
        }
        for (architecture, here, there) in [
            ("gpt-oss", "attn_sinks.weight", "self_attn.sinks"),
            ("gemma4", "layer_output_scale.weight", "layer_scalar"),
            ("lfm2moe", "exp_probs_b.bias", "feed_forward.expert_bias"),
            ("qwen35", "ssm_a", "linear_attn.A_log"),
            ("qwen35", "ssm_dt.bias", "linear_attn.dt_bias"),
        ] {
            let (here, there) = (format!("blk.2.{here}"), format!("model.layers.2.{there}"));
            assert_eq!(hugging_face_name(&here, of(architecture)).as_ref(), Some(&there));
            assert_eq!(stored_name(&there, of(architecture)).as_ref(), Some(&here));
        }
        for (here, there) in [
            ("token_embd.weight", "model.embed_tokens.weight"),
            ("output.weight", "lm_head.weight"),
            ("blk.12.attn_q.bias", "model.layers.12.self_attn.q_proj.bias"),
            ("blk.0.attn_q_norm.weight", "model.layers.0.self_attn.q_norm.weight"),
            ("blk.0.ffn_norm.weight", "model.layers.0.post_attention_layernorm.weight"),
        ] {
            assert_eq!(hugging_face_name(here, llama).as_deref(), Some(there));
            assert_eq!(stored_name(there, llama).as_deref(), Some(here));
        }
        for other in ["rope_freqs.weight", "blk.0.attn_sinks.weight", "blk.00.attn_q.weight", "x"] {
            assert_eq!(hugging_face_name(other, llama), None);
        }
    }
}
