//! Multi-head latent attention, as DeepSeek's models have it and those after them.

use super::rope::stretched_scores;
use super::{Sizes, limit};
use crate::Result;
use crate::architecture::{Architecture, Attention, FeedForward, Latent, Module};
use crate::keys::Keys;
use crate::rope::Rope;

/// The epsilon of its norms, whatever that of others is: `modeling_deepseek_v3.py` gives them none.
const EPSILON: f64 = 1e-6;

/// Sizes of what is its own.
#[derive(Clone, Copy)]
pub(super) struct LatentSizes {
    /// Numbers that queries are made of; `None` where they are made of all of a row.
    pub queries: Option<usize>,
    /// Numbers that keys and values are made of.
    pub keys_values: usize,
    /// Columns of a head's query and key that do not turn.
    pub plain: usize,
    /// Those that do.
    pub rotated: usize,
    /// Width of a head's value.
    pub value_dim: usize,
}

/// A model whose layers have it.
pub(super) struct LatentModel {
    sizes: Sizes,
    own: LatentSizes,
    rope: Rope,
    scale: f32,
    bias: bool,
}

impl LatentModel {
    /// What `keys` say, of models that have `defaults` where they are silent.
    pub fn read(keys: &Keys, sizes: &Sizes, defaults: LatentSizes) -> Result<Self> {
        let size =
            |key, max, default| Ok::<_, crate::Error>(keys.size(key, max)?.unwrap_or(default));
        let own = LatentSizes {
            queries: match keys.size("q_lora_rank", limit::WIDTH)? {
                // An explicit null is none.
                None if keys.map.contains_key("q_lora_rank") => None,
                rank => rank.or(defaults.queries),
            },
            keys_values: size("kv_lora_rank", limit::WIDTH, defaults.keys_values)?,
            plain: size("qk_nope_head_dim", limit::HEAD_DIM, defaults.plain)?,
            rotated: size("qk_rope_head_dim", limit::HEAD_DIM, defaults.rotated)?,
            value_dim: size("v_head_dim", limit::HEAD_DIM, defaults.value_dim)?,
        };
        if sizes.kv_heads != sizes.heads {
            return Err(keys.refuse(
                "num_key_value_heads",
                format_args!(
                    "latent attention has as many as `num_attention_heads`, {}",
                    sizes.heads
                ),
            ));
        }
        let head_dim = own.plain + own.rotated;
        for (key, width) in [("qk_rope_head_dim", own.rotated), ("qk_nope_head_dim", own.plain)] {
            if !width.is_multiple_of(2) {
                return Err(keys.error(format!("`{key}` is {width}: supported are even widths")));
            }
        }
        if own.value_dim > head_dim {
            return Err(keys.error(format!(
                "`v_head_dim` is {}: supported are values that are no wider than keys, {head_dim} \
                 (`qk_nope_head_dim` + `qk_rope_head_dim`)",
                own.value_dim
            )));
        }
        let interleaved = keys.boolean("rope_interleave")?.unwrap_or(true);
        // The rope is of the columns that turn alone.
        let rope = Sizes { head_dim: own.rotated, ..sizes.clone() }.rope(keys)?;
        let stretched = stretched_scores(keys)?;
        Ok(Self {
            sizes: Sizes { head_dim, ..sizes.clone() },
            own,
            rope: Rope { interleaved, ..rope },
            scale: (stretched / (head_dim as f64).sqrt()) as f32,
            bias: keys.boolean("attention_bias")?.unwrap_or(false),
        })
    }

    /// The model, of which `mlp` makes what each layer does with each row.
    pub fn decoder(self, mlp: impl Fn(&Module, usize) -> FeedForward) -> Architecture {
        let rope = vec![self.rope.clone()];
        self.sizes.decoder(rope, |layer, index| {
            self.sizes.layer(layer, self.attention(layer), mlp(layer, index))
        })
    }

    fn attention(&self, module: &Module) -> Attention {
        let Self { sizes, own, bias, .. } = self;
        let &LatentSizes { queries, keys_values: rank, plain, rotated, value_dim } = own;
        let plain_attention = sizes.attention(module, [false; 2]);
        let module = module.at("self_attn");
        let (heads, hidden) = (sizes.heads, sizes.hidden_size);
        let first = match queries {
            Some(rank) => module.linear("q_a_proj", [rank, hidden], *bias),
            None => module.linear("q_proj", [sizes.query_width(), hidden], false),
        };
        let latent = Latent {
            queries: queries.map(|rank| {
                let to = module.linear("q_b_proj", [sizes.query_width(), rank], false);
                (module.norm("q_a_layernorm", rank, EPSILON), to)
            }),
            norm: module.norm("kv_a_layernorm", rank, EPSILON),
            expand: module.linear("kv_b_proj", [heads * (plain + value_dim), rank], false),
            rotated,
            value_dim,
        };
        Attention {
            qkv: vec![first, module.linear("kv_a_proj_with_mqa", [rank + rotated, hidden], *bias)],
            latent: Some(Box::new(latent)),
            output: module.linear("o_proj", [hidden, heads * value_dim], *bias),
            scale: self.scale,
            ..plain_attention
        }
    }
}
