//! DeepSeek-V3 and R1, Kimi K2, Moonlight (`modeling_deepseek_v3.py`): latent attention, and experts that are chosen of
//! a few groups by a sigmoid of each and a bias, beside one of all rows.

use super::experts::{DeepSeekDefaults, DeepSeekExperts, Routing};
use super::latent::{LatentModel, LatentSizes};
use super::{Defaults, Family, Sizes};
use crate::Result;
use crate::architecture::Architecture;
use crate::keys::Keys;

pub(super) static FAMILY: Family = Family {
    model_type: "deepseek_v3",
    class: "DeepseekV3ForCausalLM",
    // `configuration_deepseek_v3.py` in transformers 5.
    defaults: Defaults {
        vocab_size: 129_280,
        hidden_size: 7168,
        intermediate_size: 18_432,
        num_hidden_layers: 61,
        num_attention_heads: 128,
        num_key_value_heads: None,
        // Of the columns that turn.
        head_dim: Some(64),
        max_position_embeddings: 4096,
        rms_norm_eps: 1e-6,
        rope_theta: 10_000.0,
        tie_word_embeddings: false,
        bos_token_id: Some(0),
        eos_token_ids: &[1],
    },
    architecture,
};

fn architecture(keys: &Keys, sizes: &Sizes) -> Result<Architecture> {
    let attention = LatentSizes {
        queries: Some(1536),
        keys_values: 512,
        plain: 128,
        rotated: 64,
        value_dim: 128,
    };
    let model = LatentModel::read(keys, sizes, attention)?;
    let routing = Routing { experts: 256, top_k: 8, normalised: true, width: 2048, bias: false };
    let defaults = DeepSeekDefaults {
        routing,
        sigmoids: true,
        groups: Some([8, 4]),
        scale: 2.5,
        shared: 1,
        dense: 3,
    };
    let experts = DeepSeekExperts::read(keys, sizes, defaults)?;
    Ok(model.decoder(|layer, index| experts.layer(sizes, layer, index)))
}
