//! Gemma 3's text model (`modeling_gemma3.py`): as Gemma 2 with normed queries and keys; five of six layers
//! have a window, and rotate by a base of their own. EmbeddingGemma is an encoder of the same layers.

use super::gemma2::{around, cap, gemma, scale};
use super::window::alternating;
use super::{Defaults, Family, Sizes, limit};
use crate::Result;
use crate::architecture::{Activation, Architecture, Attention, Logits};
use crate::keys::Keys;

pub(super) static FAMILY: Family = Family {
    model_type: "gemma3_text",
    class: "Gemma3ForCausalLM",
    // `configuration_gemma3.py` in transformers 5.
    defaults: Defaults {
        vocab_size: 262_208,
        hidden_size: 2304,
        intermediate_size: 9216,
        num_hidden_layers: 26,
        num_attention_heads: 8,
        num_key_value_heads: Some(4),
        head_dim: Some(256),
        max_position_embeddings: 131_072,
        rms_norm_eps: 1e-6,
        rope_theta: 1_000_000.0,
        tie_word_embeddings: true,
        bos_token_id: Some(2),
        eos_token_ids: &[1],
    },
    architecture,
};

fn architecture(keys: &Keys, sizes: &Sizes) -> Result<Architecture> {
    let activation = Activation::read(keys, "hidden_activation", Activation::GeluTanh)?;
    let bias = keys.boolean("attention_bias")?.unwrap_or(false);
    let scale = scale(keys)?;
    if keys.value("attn_logit_softcapping").is_some() {
        return Err(keys.refuse(
            "attn_logit_softcapping",
            "supported is null: transformers reads this key and ignores it",
        ));
    }
    let logit_cap = cap(keys, "final_logit_softcapping", None)?;
    let pattern = keys.size("sliding_window_pattern", limit::LAYERS)?.unwrap_or(6);
    let (sliding, mut window) =
        alternating(keys, sizes, 4096, |layer| !(layer + 1).is_multiple_of(pattern))?;
    let both_ways = keys.boolean("use_bidirectional_attention")?.unwrap_or(false);
    if both_ways {
        // As wide, with the row in its middle.
        let whole = keys.size("sliding_window", usize::MAX)?.unwrap_or(4096);
        window = sizes.window(Some(whole / 2 + 1));
    }
    let ropes = sizes.ropes_by_window(keys, "rope_local_base_freq", 10_000.0)?;
    let architecture = sizes.decoder(ropes, |layer, index| {
        let attention = Attention {
            qk_norm: Some(sizes.qk_norm(layer)),
            ropes: Some([usize::from(sliding[index]); 2]),
            scale,
            window: window.filter(|_| sliding[index]),
            ..sizes.attention(layer, [bias; 2])
        };
        around(sizes, layer, attention, sizes.mlp(layer, false, activation))
    });
    let architecture =
        Architecture { logits: Logits { scale: 1.0, cap: logit_cap }, ..architecture };
    let architecture = if both_ways { architecture.into_encoder() } else { architecture };
    Ok(gemma(keys, sizes, architecture))
}
