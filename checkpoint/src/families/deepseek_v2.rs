//! DeepSeek-V2, its Lite and Coder (`modeling_deepseek_v2.py`): latent attention, and experts that are chosen by a
//! softmax, of all of them or of a few groups, beside one of all rows.

use super::experts::{DeepSeekDefaults, DeepSeekExperts, Routing};
use super::latent::{LatentModel, LatentSizes};
use super::{Defaults, Family, Sizes};
use crate::Result;
use crate::architecture::Architecture;
use crate::keys::Keys;

pub(super) static FAMILY: Family = Family {
    model_type: "deepseek_v2",
    class: "DeepseekV2ForCausalLM",
    // `configuration_deepseek_v2.py` in transformers 5.
    defaults: Defaults {
        vocab_size: 102_400,
        hidden_size: 4096,
        intermediate_size: 11_008,
        num_hidden_layers: 32,
        num_attention_heads: 32,
        num_key_value_heads: None,
        // Of the columns that turn.
        head_dim: Some(64),
        max_position_embeddings: 2048,
        rms_norm_eps: 1e-6,
        rope_theta: 10_000.0,
        tie_word_embeddings: false,
        bos_token_id: Some(1),
        eos_token_ids: &[2],
    },
    architecture,
};

fn architecture(keys: &Keys, sizes: &Sizes) -> Result<Architecture> {
    for key in ["norm_topk_prob", "mlp_bias"] {
        // transformers and DeepSeek's own code disagree on what the first one changes; no model has either.
        if keys.boolean(key)? == Some(true) {
            return Err(keys.refuse(key, "supported is false"));
        }
    }
    if keys.boolean("rope_interleave")? == Some(false) {
        return Err(keys.refuse("rope_interleave", "this family always interleaves"));
    }
    if keys.value("num_experts_per_tok").is_none() {
        return Err(keys.refuse("num_experts_per_tok", "this family needs a number here"));
    }
    let attention = LatentSizes {
        queries: Some(1536),
        keys_values: 512,
        plain: 128,
        rotated: 64,
        value_dim: 128,
    };
    let grouped = match keys.string("topk_method")? {
        None | Some("greedy") => false,
        Some("group_limited_greedy") => true,
        Some(_) => {
            let must = "supported are \"greedy\" and \"group_limited_greedy\"";
            return Err(keys.refuse("topk_method", must));
        }
    };
    let model = LatentModel::read(keys, sizes, attention)?;
    let routing = Routing { experts: 64, top_k: 1, normalised: false, width: 1407, bias: false };
    let defaults = DeepSeekDefaults {
        routing,
        sigmoids: false,
        groups: grouped.then_some([1; 2]),
        scale: 1.0,
        shared: 2,
        dense: 0,
    };
    let experts = DeepSeekExperts::read(keys, sizes, defaults)?;
    Ok(model.decoder(|layer, index| experts.layer(sizes, layer, index)))
}
