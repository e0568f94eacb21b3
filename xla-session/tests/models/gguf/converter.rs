//! What llama.cpp's converter makes of a model in Hugging Face layout.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use half::f16;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use xla_session::LoadMode;
use xla_session::checkpoint::architecture::{
    Architecture, Experts, FeedForward, GatedDelta, Layer, LayerInputs, Mixer, Mlp, Role,
    RopeScaling, Shares,
};
use xla_session::checkpoint::{Checkpoint, Dtype as Stored};
use xla_session::config::ModelConfig;

use super::writer::{Gguf, booleans, f32_value, floats, integers, text, u32_value};

/// What llama.cpp's converter calls a tensor.
fn name_of(architecture: &str, name: &str) -> String {
    let Some(rest) = name.strip_prefix("model.layers.") else {
        return match name {
            "model.embed_tokens.weight" => "token_embd.weight",
            "model.norm.weight" => "output_norm.weight",
            "model.norm.bias" => "output_norm.bias",
            "model.final_layernorm.weight" => "output_norm.weight",
            "model.final_layernorm.bias" => "output_norm.bias",
            "lm_head.bias" => "output.bias",
            "model.embedding_norm.weight" => "token_embd_norm.weight",
            "lm_head.weight" => "output.weight",
            "model.embed_tokens_per_layer.weight" => "per_layer_token_embd.weight",
            "model.per_layer_model_projection.weight" => "per_layer_model_proj.weight",
            "model.per_layer_projection_norm.weight" => "per_layer_proj_norm.weight",
            other => panic!("{other}"),
        }
        .into();
    };
    let (layer, part) = rest.split_once('.').unwrap();
    // A parameter of the layer itself is no module's weight.
    let (part, end) = part.rsplit_once('.').unwrap_or((part, "weight"));
    // LFM2's with experts are called as those without.
    let architecture = match architecture {
        "lfm2moe" => "lfm2",
        "qwen35moe" | "qwen3next" => "qwen35",
        other => other,
    };
    if matches!(end, "expert_bias" | "e_score_correction_bias") {
        return format!("blk.{layer}.exp_probs_b.bias");
    }
    let part = match (architecture, part) {
        ("gemma2" | "gemma3" | "gemma4", "pre_feedforward_layernorm") => "ffn_norm",
        ("gemma2" | "gemma3" | "gemma4" | "olmo2", "post_attention_layernorm") => {
            "post_attention_norm"
        }
        ("gemma2" | "gemma3" | "gemma4" | "olmo2", "post_feedforward_layernorm") => "post_ffw_norm",
        ("gemma4", "per_layer_input_gate") => "inp_gate",
        ("gemma4", "per_layer_projection") => "proj",
        ("gemma4", "post_per_layer_input_norm") => "post_norm",
        ("gemma4", "layer_scalar") => "layer_output_scale",
        ("glm4moe", "post_attention_layernorm") => "post_attention_norm",
        ("glm4moe", "self_attn.q_norm") => "attn_q_norm",
        ("glm4moe", "self_attn.k_norm") => "attn_k_norm",
        (_, "mlp.shared_experts.gate_proj") => "ffn_gate_shexp",
        (_, "mlp.shared_experts.up_proj") => "ffn_up_shexp",
        (_, "mlp.shared_experts.down_proj") => "ffn_down_shexp",
        ("deepseek2", "self_attn.q_a_proj") => "attn_q_a",
        ("deepseek2", "self_attn.q_a_layernorm") => "attn_q_a_norm",
        ("deepseek2", "self_attn.q_b_proj") => "attn_q_b",
        ("deepseek2", "self_attn.kv_a_proj_with_mqa") => "attn_kv_a_mqa",
        ("deepseek2", "self_attn.kv_a_layernorm") => "attn_kv_a_norm",
        ("deepseek2", "self_attn.kv_b_proj") => "attn_kv_b",
        ("glm4", "post_self_attn_layernorm") => "post_attention_norm",
        ("glm4", "post_mlp_layernorm") => "post_ffw_norm",
        ("chatglm" | "glm4" | "phi3", "mlp.gate_up_proj") => "ffn_up",
        ("phi2", "self_attn.dense") => "attn_output",
        ("phi2", "mlp.fc1") => "ffn_up",
        ("phi2", "mlp.fc2") => "ffn_down",
        ("phi3", "self_attn.qkv_proj") => "attn_qkv",
        ("olmo2" | "gemma3" | "gemma4", "self_attn.q_norm") => "attn_q_norm",
        ("olmo2" | "gemma3" | "gemma4", "self_attn.k_norm") => "attn_k_norm",
        ("hunyuan-dense", "self_attn.query_layernorm") => "attn_q_norm",
        ("hunyuan-dense", "self_attn.key_layernorm") => "attn_k_norm",
        ("apertus", "attention_layernorm") => "attn_norm",
        ("apertus", "feedforward_layernorm") => "ffn_norm",
        ("apertus" | "command-r", "self_attn.q_norm") => "attn_q_norm",
        ("apertus" | "command-r", "self_attn.k_norm") => "attn_k_norm",
        ("granitemoe", "block_sparse_moe.router.layer") => "ffn_gate_inp",
        ("granitemoe", "block_sparse_moe.experts.*.gate_proj") => "ffn_gate_exps",
        ("granitemoe", "block_sparse_moe.experts.*.up_proj") => "ffn_up_exps",
        ("granitemoe", "block_sparse_moe.experts.*.down_proj") => "ffn_down_exps",
        ("lfm2", "operator_norm") => "attn_norm",
        ("lfm2", "self_attn.q_layernorm") => "attn_q_norm",
        ("lfm2", "self_attn.k_layernorm") => "attn_k_norm",
        ("lfm2", "self_attn.out_proj") => "attn_output",
        ("lfm2", "conv.in_proj") => "shortconv.in_proj",
        ("lfm2", "conv.conv") => "shortconv.conv",
        ("lfm2", "conv.out_proj") => "shortconv.out_proj",
        ("lfm2", "ffn_norm") => "ffn_norm",
        ("lfm2", "feed_forward.w1") => "ffn_gate",
        ("lfm2", "feed_forward.w2") => "ffn_down",
        ("lfm2", "feed_forward.w3") => "ffn_up",
        ("qwen35", "post_attention_layernorm") => "post_attention_norm",
        ("qwen35", "self_attn.q_norm") => "attn_q_norm",
        ("qwen35", "self_attn.k_norm") => "attn_k_norm",
        ("qwen35", "linear_attn.in_proj_qkv") => "attn_qkv",
        ("qwen35", "linear_attn.in_proj_z") => "attn_gate",
        ("qwen35", "linear_attn.in_proj_b") => "ssm_beta",
        ("qwen35", "linear_attn.in_proj_a") => "ssm_alpha",
        ("qwen35", "linear_attn.conv1d") => "ssm_conv1d",
        ("qwen35", "linear_attn.norm") => "ssm_norm",
        ("qwen35", "linear_attn.out_proj") => "ssm_out",
        // Parameters that are in no module of their own.
        ("qwen35", "linear_attn") if end == "A_log" => return format!("blk.{layer}.ssm_a"),
        ("qwen35", "linear_attn") => return format!("blk.{layer}.ssm_dt.bias"),
        ("lfm2", "feed_forward.gate") => "ffn_gate_inp",
        ("lfm2", "feed_forward.experts.*.w1") => "ffn_gate_exps",
        ("lfm2", "feed_forward.experts.*.w2") => "ffn_down_exps",
        ("lfm2", "feed_forward.experts.*.w3") => "ffn_up_exps",
        ("starcoder2", "mlp.c_fc") => "ffn_up",
        ("starcoder2", "mlp.c_proj") => "ffn_down",
        ("gpt-oss", "self_attn") => "attn_sinks",
        ("gpt-oss", "post_attention_layernorm") => "post_attention_norm",
        ("llama", "block_sparse_moe.gate") | (_, "mlp.gate" | "mlp.router") => "ffn_gate_inp",
        ("llama", "block_sparse_moe.experts.*.w1") => "ffn_gate_exps",
        ("llama", "block_sparse_moe.experts.*.w2") => "ffn_down_exps",
        ("llama", "block_sparse_moe.experts.*.w3") => "ffn_up_exps",
        (_, "mlp.experts.*.gate_proj") => "ffn_gate_exps",
        (_, "mlp.experts.*.up_proj") => "ffn_up_exps",
        (_, "mlp.experts.*.down_proj") => "ffn_down_exps",
        (_, "mlp.shared_expert_gate") => "ffn_gate_inp_shexp",
        (_, "mlp.shared_expert.gate_proj") => "ffn_gate_shexp",
        (_, "mlp.shared_expert.up_proj") => "ffn_up_shexp",
        (_, "mlp.shared_expert.down_proj") => "ffn_down_shexp",
        ("qwen3moe" | "dots1" | "mellum", "self_attn.q_norm") => "attn_q_norm",
        ("qwen3moe" | "dots1" | "mellum", "self_attn.k_norm") => "attn_k_norm",
        (_, part) => match part {
            "input_layernorm" => "attn_norm",
            "self_attn.q_proj" => "attn_q",
            "self_attn.k_proj" => "attn_k",
            "self_attn.v_proj" => "attn_v",
            "self_attn.o_proj" => "attn_output",
            "post_attention_layernorm" => "ffn_norm",
            "mlp.gate_proj" => "ffn_gate",
            "mlp.up_proj" => "ffn_up",
            "mlp.down_proj" => "ffn_down",
            other => panic!("{other}"),
        },
    };
    // Sinks are no module's weight.
    let end = if end == "sinks" { "weight" } else { end };
    format!("blk.{layer}.{part}.{end}")
}

/// Rows of heads as that converter orders them: `[heads, 2, half]` becomes `[heads, half, 2]`.
fn permuted(values: &[f32], columns: usize, heads: usize) -> Vec<f32> {
    let rows: Vec<&[f32]> = values.chunks(columns).collect();
    let width = rows.len() / heads;
    let from = |head: usize, i: usize| head * width + i % 2 * (width / 2) + i / 2;
    let order = (0..heads).flat_map(|head| (0..width).map(move |i| from(head, i)));
    order.flat_map(|row| rows[row].iter().copied()).collect()
}

/// What that converter makes of a tensor of linear attention: value heads in another order, and of decays what
/// they are the logarithm of. Rows are so long.
fn of_linear_attention(delta: &GatedDelta, name: &str, row: usize, values: &[f32]) -> Vec<f32> {
    let &GatedDelta { key_heads, value_heads, key_dim, value_dim, .. } = delta;
    let each = value_heads / key_heads;
    // Rows of heads as `[each, key_heads]`, where they were `[key_heads, each]`.
    let tiled = |values: &[f32], row: usize, before: usize, width: usize| -> Vec<f32> {
        let (first, heads) = values.split_at(before * row);
        let heads: Vec<_> = heads.chunks(width * row).collect();
        let from = |head: usize| head % key_heads * each + head / key_heads;
        let heads = (0..value_heads).flat_map(|head| heads[from(head)]);
        first.iter().chain(heads).copied().collect()
    };
    match name.rsplit_once("linear_attn.").unwrap().1 {
        "in_proj_qkv.weight" | "conv1d.weight" => {
            tiled(values, row, 2 * key_heads * key_dim, value_dim)
        }
        "in_proj_z.weight" => tiled(values, row, 0, value_dim),
        "in_proj_b.weight" | "in_proj_a.weight" | "dt_bias" => tiled(values, row, 0, 1),
        "A_log" => tiled(values, row, 0, 1).into_iter().map(|value| -value.exp()).collect(),
        "out_proj.weight" => {
            values.chunks(row).flat_map(|row| tiled(row, 1, 0, value_dim)).collect()
        }
        _ => values.to_vec(),
    }
}

/// A matrix that makes keys and values of fewer numbers, as that converter splits it: of each head the columns for
/// keys, and the rows for values. Names, dimensions, the innermost first, and values.
fn split(config: &ModelConfig, values: &[f32]) -> [(&'static str, [usize; 3], Vec<f32>); 2] {
    let attention = config.architecture.layers[0].attention().unwrap();
    let latent = attention.latent.as_ref().unwrap();
    let (rank, value) = (latent.norm.width(), latent.value_dim);
    let (heads, key) = (attention.heads, attention.head_dim - latent.rotated);
    let of_heads = || values.chunks((key + value) * rank).map(|head| head.split_at(key * rank));
    let at = |rows: &[f32], column: usize, row: usize| rows[row * rank + column];
    let columns = |rows: &[f32]| -> Vec<f32> {
        (0..rank).flat_map(|it| (0..key).map(move |row| at(rows, it, row))).collect()
    };
    let keys = of_heads().flat_map(|(keys, _)| columns(keys)).collect();
    let values = of_heads().flat_map(|(_, values)| values.iter().copied()).collect();
    [("attn_k_b", [key, rank, heads], keys), ("attn_v_b", [rank, value, heads], values)]
}

/// f16 of a block: where they are, and their values.
type Scales = &'static [(usize, f32)];

/// Types that weights are not rounded to here: blocks of any bits, but scales (f16, by their place) that
/// make small numbers. With the type's number, its columns and bytes.
const ANY_BITS: [(Stored, u32, usize, usize, Scales); 11] = [
    (Stored::Q4_1, 3, 32, 20, &[(0, 4e-3), (2, -3e-2)]),
    (Stored::Q5_0, 6, 32, 22, &[(0, 3e-3)]),
    (Stored::Q5_1, 7, 32, 24, &[(0, 3e-3), (2, -4.5e-2)]),
    (Stored::Q2K, 10, 256, 84, &[(80, 1e-3), (82, 1e-3)]),
    (Stored::Q3K, 11, 256, 110, &[(108, 1e-3)]),
    (Stored::Q4K, 12, 256, 144, &[(0, 4e-5), (2, 3e-4)]),
    (Stored::Q5K, 13, 256, 176, &[(0, 2e-5), (2, 3e-4)]),
    (Stored::Q6K, 14, 256, 210, &[(208, 1e-5)]),
    (Stored::Iq4Nl, 20, 32, 18, &[(0, 3e-4)]),
    (Stored::Iq4Xs, 23, 256, 136, &[(0, 1e-5)]),
    (Stored::Mxfp4, 39, 32, 17, &[]),
];

/// Any bits, of as many weights.
fn any_bits(dtype: Stored, weights: usize, random: &mut ChaCha8Rng) -> (u32, Vec<u8>) {
    let found = ANY_BITS.iter().find(|(known, ..)| *known == dtype);
    let &(_, number, columns, bytes, scales) = found.unwrap();
    let mut all = vec![0; weights / columns * bytes];
    random.fill_bytes(&mut all);
    for block in all.chunks_mut(bytes) {
        for &(at, scale) in scales {
            block[at..at + 2].copy_from_slice(&f16::from_f32(scale).to_le_bytes());
        }
        if dtype == Stored::Mxfp4 {
            // A power of two, 2^-7.
            block[0] = 120;
        }
    }
    (number, all)
}

/// Rounds to Q8_0 or Q4_0; its number and bytes.
fn blocks(dtype: Stored, values: &[f32]) -> (u32, Vec<u8>) {
    let mut bytes = Vec::new();
    for block in values.chunks(32) {
        let largest = block.iter().fold(0f32, |most, value| most.max(value.abs()));
        let levels = if dtype == Stored::Q8_0 { 127.0 } else { 7.0 };
        let scale = f16::from_f32(largest / levels);
        bytes.extend(scale.to_le_bytes());
        let q = |value: f32| (value / scale.to_f32()).round().clamp(-levels, levels) as i8;
        match dtype {
            Stored::Q8_0 => bytes.extend(block.iter().map(|value| q(*value) as u8)),
            _ => bytes.extend(
                (0..16).map(|i| (q(block[i]) + 8) as u8 | ((q(block[16 + i]) + 8) as u8) << 4),
            ),
        }
    }
    (if dtype == Stored::Q8_0 { 8 } else { 2 }, bytes)
}

/// A key of an architecture, with its type's number and its bytes.
type OwnKey = (&'static str, (u32, Vec<u8>));

/// What that converter calls the family, and the keys that only it has.
fn architecture(config: &ModelConfig) -> (&'static str, Vec<OwnKey>) {
    let Architecture { ropes, layers, logits, embedding_scale, layer_inputs, .. } =
        &config.architecture;
    let first = layers.iter().find_map(Layer::attention).unwrap();
    let scaling = &ropes[0].scaling;
    let mut keys = Vec::new();
    let mut key = |key, value| keys.push((key, value));
    let name = match config.family.model_type() {
        "gemma3_text" => "gemma3",
        "gemma4_text" | "gemma4_unified_text" => "gemma4",
        "olmo3" => "olmo2",
        "mixtral" => "llama",
        "ministral3" => "mistral3",
        "qwen2_moe" => "qwen2moe",
        "qwen3_5_text" => "qwen35",
        "qwen3_5_moe_text" => "qwen35moe",
        "qwen3_next" => "qwen3next",
        "qwen3_moe" => "qwen3moe",
        "lfm2_moe" => "lfm2moe",
        "glm4_moe" => "glm4moe",
        "gpt_oss" => "gpt-oss",
        "hunyuan_v1_dense" => "hunyuan-dense",
        "phi" => "phi2",
        "glm" => "chatglm",
        "cohere" => "command-r",
        "deepseek_v2" | "deepseek_v3" => "deepseek2",
        other => other,
    };
    match name {
        "gemma2" | "gemma3" => {
            if let Some(cap) = first.cap {
                key("attn_logit_softcapping", f32_value(cap));
            }
            if let Some(cap) = logits.cap {
                key("final_logit_softcapping", f32_value(cap));
            }
            if let Some(rope) = ropes.get(1) {
                key("rope.freq_base_swa", f32_value(rope.theta as f32));
            }
        }
        "gemma4" => {
            let of_all = |of: &dyn Fn(&Layer) -> usize| {
                integers(&layers.iter().map(|layer| of(layer) as i32).collect::<Vec<_>>())
            };
            let width = |rope: usize| u32_value(ropes[rope].width as u32);
            let attention = |layer: &Layer| layer.attention().unwrap().clone();
            key("attention.key_length", width(0));
            key("attention.value_length", width(0));
            key("attention.key_length_swa", width(1));
            key("attention.head_count_kv", of_all(&|it| attention(it).kv_heads));
            key("feed_forward_length", of_all(&|it| it.mlp.widths()[0]));
            let shared = layers.iter().filter(|it| attention(it).shared.is_some()).count();
            key("attention.shared_kv_layers", u32_value(shared as u32));
            let inputs = layer_inputs.as_ref().map_or(0, LayerInputs::width);
            key("embedding_length_per_layer_input", u32_value(inputs as u32));
            key("rope.freq_base_swa", f32_value(ropes[1].theta as f32));
            if let Some(cap) = logits.cap {
                key("final_logit_softcapping", f32_value(cap));
            }
        }
        "granite" | "granitemoe" => {
            key("attention.scale", f32_value(first.scale));
            key("embedding_scale", f32_value(*embedding_scale));
            key("residual_scale", f32_value(layers[0].residual_scale));
            key("logit_scale", f32_value(1.0 / logits.scale));
            // The converter of Granite 4 says it of each layer.
            let heads = vec![config.num_key_value_heads as i32; config.num_hidden_layers];
            key("attention.head_count_kv", integers(&heads));
        }
        "cohere2" | "command-r" => key("logit_scale", f32_value(logits.scale)),
        "mistral3" => {
            let temperature = ropes.last().unwrap().temperature.unwrap();
            key("attention.temperature_scale", f32_value(temperature.beta as f32));
            key("rope.scaling.yarn_log_multiplier", f32_value(1.0));
        }
        "lfm2" | "lfm2moe" => {
            let heads = |it: &Layer| it.attention().map_or(0, |it| it.kv_heads as i32);
            key("attention.head_count_kv", integers(&layers.iter().map(heads).collect::<Vec<_>>()));
            let rows = |it: &Layer| match &it.mixer {
                Mixer::ShortConvolution(convolution) => Some(convolution.rows()),
                Mixer::Attention(_) | Mixer::GatedDelta(_) => None,
            };
            let rows = layers.iter().find_map(rows).unwrap();
            key("shortconv.l_cache", u32_value(rows as u32));
        }
        "qwen35" | "qwen35moe" | "qwen3next" => {
            let delta = layers.iter().find_map(Layer::gated_delta).unwrap();
            let recurrent = layers.iter().map(|layer| u8::from(layer.attention().is_none()));
            key("attention.recurrent_layers", booleans(&recurrent.collect::<Vec<_>>()));
            key("rope.dimension_count", u32_value(ropes[0].width as u32));
            for (name, value) in [
                ("ssm.conv_kernel", delta.rows()),
                ("ssm.state_size", delta.key_dim),
                ("ssm.group_count", delta.key_heads),
                ("ssm.time_step_rank", delta.value_heads),
                ("ssm.inner_size", delta.value_heads * delta.value_dim),
            ] {
                key(name, u32_value(value as u32));
            }
        }
        "deepseek2" => {
            let latent = first.latent.as_ref().unwrap();
            let rank = latent.norm.width();
            // Files of DeepSeek-V2 are older ones.
            let older = config.family.model_type() == "deepseek_v2";
            let widths = if older {
                vec![("key_length", first.head_dim), ("value_length", latent.value_dim)]
            } else {
                vec![
                    ("key_length", rank + latent.rotated),
                    ("value_length", rank),
                    ("key_length_mla", first.head_dim),
                    ("value_length_mla", latent.value_dim),
                    ("head_count_kv", 1),
                ]
            };
            let queries = latent.queries.as_ref().map(|(norm, _)| ("q_lora_rank", norm.width()));
            for (name, value) in widths.into_iter().chain(queries).chain([("kv_lora_rank", rank)]) {
                key(format!("attention.{name}").leak(), u32_value(value as u32));
            }
            key("rope.dimension_count", u32_value(latent.rotated as u32));
            if let RopeScaling::Yarn { factor, .. } = scaling {
                let growth = (first.scale * (first.head_dim as f32).sqrt()).sqrt() - 1.0;
                let growth = growth / factor.ln() as f32;
                key("rope.scaling.yarn_log_multiplier", f32_value(growth));
            }
        }
        "mellum" => {
            let widest = |windowed: bool| {
                let has = |it: &&Layer| it.attention().unwrap().window.is_some() == windowed;
                let rope = layers.iter().find(has).unwrap().attention().unwrap().ropes.unwrap()[0];
                f32_value(ropes[rope].theta as f32)
            };
            key("rope.freq_base_swa", widest(true));
        }
        "chatglm" | "glm4" | "glm4moe" | "phi2" | "phi3" | "stablelm" | "nemotron" => {
            key("rope.dimension_count", u32_value(ropes[0].width as u32))
        }
        _ => {}
    }
    let experts = layers.iter().enumerate().find_map(|(index, layer)| match &layer.mlp {
        FeedForward::Experts(experts) => Some((index, &**experts)),
        FeedForward::Mlp(_) => None,
    });
    if let Some((dense, of)) = experts {
        let Experts { experts, shares, top_k, groups, normalised, scale, shared, .. } = of;
        let sigmoids = matches!(shares, Shares::Sigmoid { .. });
        if sigmoids {
            key("expert_gating_func", u32_value(2));
        }
        if let Some(groups) = groups {
            key("expert_group_count", u32_value(groups.count as u32));
            key("expert_group_used_count", u32_value(groups.chosen as u32));
        }
        if matches!(name, "deepseek2" | "dots1") && *normalised {
            key("expert_weights_norm", (7, vec![1]));
        }
        if sigmoids || name == "deepseek2" {
            key("leading_dense_block_count", u32_value(dense as u32));
            key("expert_weights_scale", f32_value(*scale));
        }
        let width = |mlp: &Mlp| u32_value(mlp.down.inputs() as u32);
        key("expert_count", u32_value(experts.len() as u32));
        key("expert_used_count", u32_value(*top_k as u32));
        key("expert_feed_forward_length", width(&experts[0]));
        if let Some(shared) = shared {
            let times = shared.mlp.down.inputs() / experts[0].down.inputs();
            key("expert_shared_count", u32_value(times as u32));
            key("expert_shared_feed_forward_length", width(&shared.mlp));
        }
    }
    if let Some(window) = layers.iter().find_map(|layer| layer.attention()?.window) {
        key("attention.sliding_window", u32_value(window as u32));
        if matches!(name, "mellum" | "olmo2" | "gemma3" | "gemma4" | "exaone4" | "cohere2") {
            let sliding =
                layers.iter().map(|layer| u8::from(layer.attention().unwrap().window.is_some()));
            key("attention.sliding_window_pattern", booleans(&sliding.collect::<Vec<_>>()));
        }
    }
    match scaling {
        RopeScaling::LongRope { attention_factor, original_max_position_embeddings, .. } => {
            let original = u32_value(*original_max_position_embeddings as u32);
            key("rope.scaling.original_context_length", original);
            key("rope.scaling.attn_factor", f32_value(*attention_factor as f32));
        }
        RopeScaling::Yarn { factor, original_max_position_embeddings, .. } => {
            key("rope.scaling.type", text("yarn"));
            key("rope.scaling.factor", f32_value(*factor as f32));
            let original = u32_value(*original_max_position_embeddings as u32);
            key("rope.scaling.original_context_length", original);
        }
        RopeScaling::Linear { factor } => {
            key("rope.scaling.type", text("linear"));
            key("rope.scaling.factor", f32_value(*factor as f32));
        }
        _ => {}
    }
    (name, keys)
}

/// Whether that converter adds one to the norm called `name`.
fn adds_one(architecture: &str, name: &str) -> bool {
    matches!(architecture, "gemma" | "gemma2" | "gemma3" | "nemotron")
        || matches!(architecture, "qwen35" | "qwen35moe" | "qwen3next")
            && !name.ends_with("linear_attn.norm.weight")
}

/// Writes the model in `folder` as `to`, every matrix in the type that `of` says.
pub fn convert(folder: &Path, to: &Path, of: impl Fn(&str) -> Stored) {
    let config = ModelConfig::from_dir(folder).unwrap();
    let made = folder.join("model.safetensors").exists();
    let mode = if made { LoadMode::Mmap } else { LoadMode::Random };
    let checkpoint = Checkpoint::open(folder, mode).unwrap();
    let mut random = ChaCha8Rng::seed_from_u64(9);
    let mut file = Gguf::new(3);
    let (architecture, own) = architecture(&config);
    file.key("general.architecture", text(architecture));
    let said: Vec<_> = own.iter().map(|(key, _)| *key).collect();
    for (key, value) in own {
        file.key(&format!("{architecture}.{key}"), value);
    }
    for (key, value) in [
        ("block_count", config.num_hidden_layers),
        ("embedding_length", config.hidden_size),
        ("feed_forward_length", config.intermediate_size),
        ("attention.head_count", config.num_attention_heads),
        ("attention.head_count_kv", config.num_key_value_heads),
        ("attention.key_length", config.head_dim),
        ("attention.value_length", config.head_dim),
        ("context_length", config.max_position_embeddings),
    ] {
        // Where all layers have experts there is none.
        let has = key != "feed_forward_length" || architecture != "qwen35moe";
        if has && !said.contains(&key) {
            file.key(&format!("{architecture}.{key}"), u32_value(value as u32));
        }
    }
    let epsilon = f32_value(config.architecture.norm.epsilon as f32);
    let kind = if config.architecture.norm.centred { "norm" } else { "norm_rms" };
    file.key(&format!("{architecture}.attention.layer_{kind}_epsilon"), epsilon);
    let theta = f32_value(config.rope().theta as f32);
    file.key(&format!("{architecture}.rope.freq_base"), theta);
    let pairs = matches!(
        architecture,
        "llama" | "mistral3" | "smollm3" | "granite" | "granitemoe" | "arcee"
    );
    for (at, key) in ["alpha_p", "alpha_n", "beta", "eps"].into_iter().enumerate() {
        let of = |layer: &Layer| match &layer.mlp {
            FeedForward::Mlp(mlp) => Some(checkpoint.get(mlp.learned.get(at)?).unwrap().to_f32()),
            FeedForward::Experts(_) => None,
        };
        let values: Vec<f32> = config.architecture.layers.iter().filter_map(of).flatten().collect();
        if !values.is_empty() {
            file.key(&format!("{architecture}.xielu.{key}"), floats(&values));
        }
    }
    let mut at = 0;
    if let RopeScaling::LongRope { short_factor, long_factor, .. } = &config.rope().scaling {
        for (name, factors) in [("short", short_factor), ("long", long_factor)] {
            let bytes: Vec<u8> = factors.iter().flat_map(|factor| factor.to_le_bytes()).collect();
            let name = format!("rope_factors_{name}.weight");
            file.described(&name, &[factors.len() as u64], 0, at, &bytes);
            at = (at + bytes.len() as u64).next_multiple_of(32);
        }
    }
    if let RopeScaling::Divided(by) = &config.rope().scaling {
        let bytes: Vec<u8> = by.iter().flat_map(|by| by.min(1e30).to_le_bytes()).collect();
        file.described("rope_freqs.weight", &[by.len() as u64], 0, at, &bytes);
        at = (at + bytes.len() as u64).next_multiple_of(32);
    }
    let mut first = Vec::new();
    let mut stacks: BTreeMap<String, (Vec<u64>, u32, Vec<u8>)> = BTreeMap::new();
    for parameter in config.tensors().filter(|it| it.role != Role::Activation) {
        let mut values = checkpoint.get(parameter).unwrap().to_f32();
        let columns = parameter.shape.get(1).copied().unwrap_or(1);
        if pairs && parameter.name.contains("q_proj") {
            values = permuted(&values, columns, config.num_attention_heads);
        } else if pairs && parameter.name.contains("k_proj") {
            values = permuted(&values, columns, config.num_key_value_heads);
        }
        if adds_one(architecture, &parameter.name) && parameter.role == Role::Norm {
            values.iter_mut().for_each(|weight| *weight += 1.0);
        }
        if parameter.name.contains(".linear_attn.") {
            let delta = config.architecture.layers.iter().find_map(Layer::gated_delta).unwrap();
            let row = parameter.elements() / parameter.shape[0];
            if architecture != "qwen3next" {
                values = of_linear_attention(delta, &parameter.name, row, &values);
            } else if parameter.name.ends_with("A_log") {
                values.iter_mut().for_each(|value| *value = -value.exp());
            } else if parameter.name.ends_with("in_proj_b.weight") {
                // Written with the next one.
                first = values;
                continue;
            } else if parameter.name.ends_with("in_proj_a.weight") {
                let of_head = delta.value_heads / delta.key_heads * row;
                let heads = first.chunks(of_head).zip(values.chunks(of_head));
                values = heads.flat_map(|(b, a)| b.iter().chain(a)).copied().collect();
            }
        }
        let is_norm = parameter.role == Role::Norm;
        let of_rows = parameter.shape.len() > 1 && !is_norm;
        let dtype = if of_rows { of(&parameter.name) } else { Stored::F32 };
        let (kind, bytes) = match dtype {
            Stored::F32 => (0, values.iter().flat_map(|value| value.to_le_bytes()).collect()),
            Stored::Q8_0 | Stored::Q4_0 => blocks(dtype, &values),
            dtype => any_bits(dtype, values.len(), &mut random),
        };
        let mut dimensions: Vec<u64> = parameter.shape.iter().rev().map(|n| *n as u64).collect();
        if parameter.role == Role::Taps {
            dimensions.remove(1);
        }
        if let Some((before, rest)) = parameter.name.split_once(".experts.") {
            // One tensor of all experts, in their order.
            let (_, part) = rest.split_once('.').unwrap();
            let name = name_of(architecture, &format!("{before}.experts.*.{part}"));
            dimensions.push(0);
            let (dimensions, _, all) = stacks.entry(name).or_insert((dimensions, kind, Vec::new()));
            *dimensions.last_mut().unwrap() += 1;
            all.extend(bytes);
            continue;
        }
        let mut name = name_of(architecture, &parameter.name);
        if name.ends_with("attn_kv_b.weight") && config.family.model_type() == "deepseek_v3" {
            for (part, dimensions, values) in split(&config, &values) {
                let name = name.replace("attn_kv_b", part);
                let (kind, bytes) = match dtype {
                    Stored::F32 => (0, values.iter().flat_map(|it| it.to_le_bytes()).collect()),
                    dtype => blocks(dtype, &values),
                };
                file.described(&name, &dimensions.map(|it| it as u64), kind, at, &bytes);
                at = (at + bytes.len() as u64).next_multiple_of(32);
            }
            continue;
        }
        if architecture == "qwen3next" && name.contains("ssm_alpha") {
            dimensions[1] *= 2;
            name = name.replace("ssm_alpha", "ssm_ba");
        }
        file.described(&name, &dimensions, kind, at, &bytes);
        at = (at + bytes.len() as u64).next_multiple_of(32);
    }
    for (name, (dimensions, kind, bytes)) in stacks {
        file.described(&name, &dimensions, kind, at, &bytes);
        at = (at + bytes.len() as u64).next_multiple_of(32);
    }
    fs::write(to, file.bytes()).unwrap();
}
