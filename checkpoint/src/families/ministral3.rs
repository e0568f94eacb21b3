//! Ministral 3 and Devstral Small 2 (`modeling_ministral3.py`): as Mistral, without a window; scores grow with the
//! position of their query.

use super::mistral::decoder;
use super::{Defaults, Family, Sizes};
use crate::Result;
use crate::architecture::Architecture;
use crate::keys::Keys;
use crate::rope::{Rope, RopeScaling, Temperature};

pub(super) static FAMILY: Family = Family {
    model_type: "ministral3",
    class: "Ministral3ForCausalLM",
    // `configuration_ministral3.py` in transformers 5.
    defaults: Defaults {
        vocab_size: 131_072,
        hidden_size: 4096,
        intermediate_size: 14_336,
        num_hidden_layers: 34,
        num_attention_heads: 32,
        num_key_value_heads: Some(8),
        head_dim: Some(128),
        max_position_embeddings: 262_144,
        rms_norm_eps: 1e-5,
        rope_theta: 1_000_000.0,
        tie_word_embeddings: false,
        bos_token_id: Some(1),
        eos_token_ids: &[2],
    },
    architecture,
};

fn architecture(keys: &Keys, sizes: &Sizes) -> Result<Architecture> {
    let plain = sizes.rope(keys)?;
    let (plain, temperature) = match ["rope_parameters", "rope_scaling"].map(|it| keys.value(it)) {
        [None, None] => default(plain),
        _ => (plain, sizes.temperature(keys)?),
    };
    let mut ropes = vec![plain.clone()];
    ropes.extend(temperature.map(|it| Rope { temperature: Some(it), ..plain }));
    let of_queries = ropes.len() - 1;
    decoder(keys, sizes, None, ropes, [of_queries, 0])
}

/// What the configuration class makes of a file that does not say how to rotate.
fn default(rope: Rope) -> (Rope, Option<Temperature>) {
    let original_max_position_embeddings = 16_384;
    let scaling = RopeScaling::Yarn {
        factor: 16.0,
        beta_fast: 32.0,
        beta_slow: 1.0,
        truncate: true,
        attention_factor: 1.0,
        original_max_position_embeddings,
    };
    let temperature = Temperature { beta: 0.1, original_max_position_embeddings };
    (Rope { scaling, ..rope }, Some(temperature))
}
