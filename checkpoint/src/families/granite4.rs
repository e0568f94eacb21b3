//! Granite 4 where it is dense (`modeling_granitemoehybrid.py` without experts and without Mamba): as Granite
//! 3, with gate and up in one projection (apart in MLX's folders, as other models have them), and perhaps no
//! rotation at all.

use super::granite::Multipliers;
use super::{Family, Sizes, limit};
use crate::Result;
use crate::architecture::{Activation, Architecture, Attention, FeedForward};
use crate::keys::Keys;

pub(super) static FAMILY: Family = Family {
    model_type: "granitemoehybrid",
    class: "GraniteMoeHybridForCausalLM",
    // `configuration_granitemoehybrid.py` in transformers 5.
    defaults: super::granite::FAMILY.defaults,
    architecture,
};

fn architecture(keys: &Keys, sizes: &Sizes) -> Result<Architecture> {
    let experts = keys.value("num_local_experts").and_then(serde_json::Value::as_u64);
    if experts != Some(0) {
        return Err(keys.refuse("num_local_experts", "supported is 0, models without experts"));
    }
    for key in ["layer_types", "layers_block_type"] {
        let types = keys.strings(key)?.unwrap_or_default();
        if types.iter().any(|it| !["attention", "full_attention"].contains(it)) {
            return Err(keys.refuse(key, "supported is \"attention\" alone, models without Mamba"));
        }
        if types.is_empty() && key == "layer_types" && keys.value("layers_block_type").is_none() {
            return Err(keys.refuse(key, "without it layers are Mamba's, which is not supported"));
        }
    }
    let activation = Activation::read(keys, "hidden_act", Activation::Silu)?;
    let bias = keys.boolean("attention_bias")?.unwrap_or(false);
    let wide = keys.size("shared_intermediate_size", limit::WIDTH)?.unwrap_or(1024);
    let ropes = (keys.string("position_embedding_type")? == Some("rope")).then_some([0; 2]);
    let multipliers = Multipliers::read(keys)?;
    let mlx = keys.value("quantization").is_some();
    Ok(multipliers.of(sizes.decoder(vec![sizes.rope(keys)?], |layer, _| {
        let attention = Attention { ropes, ..sizes.attention(layer, [bias; 2]) };
        let mlp = if mlx {
            let names = ["gate_proj", "up_proj", "down_proj"];
            sizes.mlp_of(&layer.at("mlp"), names, wide, false, activation)
        } else {
            let names = ["input_linear", "output_linear"];
            sizes.fused_mlp_of(&layer.at("shared_mlp"), names, wide, activation)
        };
        sizes.layer(layer, attention, FeedForward::Mlp(mlp))
    })))
}
