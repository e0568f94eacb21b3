//! GLM-4.7-Flash (`modeling_glm4_moe_lite.py`): DeepSeek-V3 with wider heads and narrower layers.

use super::experts::{DeepSeekDefaults, DeepSeekExperts, Routing};
use super::latent::{LatentModel, LatentSizes};
use super::{Defaults, Family, Sizes};
use crate::Result;
use crate::architecture::Architecture;
use crate::keys::Keys;

pub(super) static FAMILY: Family = Family {
    model_type: "glm4_moe_lite",
    class: "Glm4MoeLiteForCausalLM",
    // `configuration_glm4_moe_lite.py` in transformers 5.
    defaults: Defaults {
        vocab_size: 154_880,
        hidden_size: 2048,
        intermediate_size: 10_240,
        num_hidden_layers: 47,
        num_attention_heads: 20,
        num_key_value_heads: None,
        // Of the columns that turn.
        head_dim: Some(64),
        max_position_embeddings: 202_752,
        rms_norm_eps: 1e-5,
        rope_theta: 10_000.0,
        tie_word_embeddings: false,
        bos_token_id: Some(0),
        eos_token_ids: &[1],
    },
    architecture,
};

fn architecture(keys: &Keys, sizes: &Sizes) -> Result<Architecture> {
    let attention = LatentSizes {
        queries: Some(768),
        keys_values: 512,
        plain: 192,
        rotated: 64,
        value_dim: 256,
    };
    let model = LatentModel::read(keys, sizes, attention)?;
    let routing = Routing { experts: 64, top_k: 4, normalised: true, width: 1536, bias: false };
    let defaults = DeepSeekDefaults {
        routing,
        sigmoids: true,
        groups: Some([1; 2]),
        scale: 1.8,
        shared: 1,
        dense: 1,
    };
    let experts = DeepSeekExperts::read(keys, sizes, defaults)?.by_layer_types(keys)?;
    Ok(model.decoder(|layer, index| experts.layer(sizes, layer, index)))
}
