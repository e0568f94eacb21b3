//! Granite 3 with experts (`modeling_granitemoe.py`): Granite's multipliers, and Mixtral's routing.

use super::experts::{NAMES, Routing};
use super::granite::Multipliers;
use super::{Family, Sizes, limit};
use crate::Result;
use crate::architecture::{Activation, Architecture, FeedForward, SharedExpert};
use crate::keys::Keys;

pub(super) static FAMILY: Family = Family {
    model_type: "granitemoe",
    class: "GraniteMoeForCausalLM",
    // `configuration_granitemoe.py` in transformers 5.
    defaults: super::granite::FAMILY.defaults,
    architecture: |keys, sizes| decoder(keys, sizes, None),
};

/// A model whose layers have experts, and one of width `shared` that every row goes through.
pub(super) fn decoder(keys: &Keys, sizes: &Sizes, shared: Option<usize>) -> Result<Architecture> {
    let activation = Activation::read(keys, "hidden_act", Activation::Silu)?;
    let bias = keys.boolean("attention_bias")?.unwrap_or(false);
    let routing = Routing {
        experts: keys.size("num_local_experts", limit::EXPERTS)?.unwrap_or(8),
        top_k: keys.size("num_experts_per_tok", limit::EXPERTS)?.unwrap_or(2),
        // A softmax of those that were chosen.
        normalised: true,
        width: sizes.intermediate_size,
        bias: false,
    };
    routing.check(keys, sizes, "num_local_experts", "intermediate_size")?;
    let multipliers = Multipliers::read(keys)?;
    Ok(multipliers.of(sizes.decoder(vec![sizes.rope(keys)?], |layer, _| {
        let module = layer.at("block_sparse_moe");
        let mut experts = routing.experts(sizes, &module, "router.layer", NAMES, activation);
        experts.shared = shared.map(|wide| {
            let names = ["input_linear", "output_linear"];
            let mlp = sizes.fused_mlp_of(&layer.at("shared_mlp"), names, wide, activation);
            SharedExpert { mlp, gate: None }
        });
        let experts = FeedForward::Experts(Box::new(experts));
        sizes.layer(layer, sizes.attention(layer, [bias; 2]), experts)
    })))
}
