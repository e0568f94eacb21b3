//! OLMo 3 (`modeling_olmo3.py`): as OLMo 2; three of four layers have a window, and only the others scale
//! their frequencies.

use super::olmo2::behind;
use super::window::alternating;
use super::{Defaults, Family, Sizes};
use crate::Result;
use crate::architecture::{Activation, Architecture, Attention};
use crate::keys::Keys;

pub(super) static FAMILY: Family = Family {
    model_type: "olmo3",
    class: "Olmo3ForCausalLM",
    // `configuration_olmo3.py` in transformers 5.
    defaults: Defaults {
        vocab_size: 50_304,
        hidden_size: 4096,
        intermediate_size: 11_008,
        num_hidden_layers: 32,
        num_attention_heads: 32,
        num_key_value_heads: None,
        head_dim: None,
        max_position_embeddings: 2048,
        rms_norm_eps: 1e-5,
        rope_theta: 500_000.0,
        tie_word_embeddings: false,
        bos_token_id: None,
        eos_token_ids: &[50_279],
    },
    architecture,
};

fn architecture(keys: &Keys, sizes: &Sizes) -> Result<Architecture> {
    let activation = Activation::read(keys, "hidden_act", Activation::Silu)?;
    let bias = keys.boolean("attention_bias")?.unwrap_or(false);
    let (sliding, window) = alternating(keys, sizes, 4096, |layer| !(layer + 1).is_multiple_of(4))?;
    // The older form has one base, which transformers gives to layers without a window alone.
    let ropes = sizes.ropes_by_window(keys, "rope_local_base_freq", sizes.rope_theta)?;
    Ok(sizes.decoder(ropes, |layer, index| {
        let attention = Attention {
            qk_norm: Some(sizes.joint_qk_norm(layer)),
            ropes: Some([usize::from(sliding[index]); 2]),
            window: window.filter(|_| sliding[index]),
            ..sizes.attention(layer, [bias; 2])
        };
        behind(sizes, layer, attention, sizes.mlp(layer, false, activation))
    }))
}
