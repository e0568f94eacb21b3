//! The sizes that every family has, under the keys that they share.

use super::Defaults;
use crate::Result;
use crate::keys::Keys;

/// Bounds far above any published model: beyond them a configuration is a mistake, and below them
/// no product of two sizes overflows.
pub(crate) mod limit {
    pub const VOCAB: usize = 1 << 24;
    pub const WIDTH: usize = 1 << 20;
    pub const LAYERS: usize = 1 << 12;
    pub const HEADS: usize = 1 << 12;
    pub const EXPERTS: usize = 1 << 10;
    /// Experts of all layers together.
    pub const ALL_EXPERTS: usize = 1 << 17;
    /// Tensors of a file or folder, each expert's counted: a header of a megabyte could name a hundred times as many.
    pub const TENSORS: usize = 1 << 19;
    pub const HEAD_DIM: usize = 1 << 12;
    pub const POSITIONS: usize = 1 << 28;
}

/// What a model's parts are made with.
#[derive(Clone)]
pub(crate) struct Sizes {
    pub vocab_size: usize,
    pub hidden_size: usize,
    pub intermediate_size: usize,
    pub layers: usize,
    pub heads: usize,
    /// Divides `heads`.
    pub kv_heads: usize,
    /// Even.
    pub head_dim: usize,
    /// What the key says, or more where YaRN stretches it.
    pub max_position_embeddings: usize,
    pub rms_norm_eps: f64,
    /// Where the configuration has none.
    pub rope_theta: f64,
}

impl Sizes {
    pub fn read(config: &Keys, defaults: &Defaults) -> Result<Self> {
        let size =
            |key, max, default| Ok::<_, crate::Error>(config.size(key, max)?.unwrap_or(default));
        let hidden_size = size("hidden_size", limit::WIDTH, defaults.hidden_size)?;
        let heads = size("num_attention_heads", limit::HEADS, defaults.num_attention_heads)?;
        let kv_heads = match config.size("num_key_value_heads", limit::HEADS)? {
            Some(n) => n,
            // An explicit null means one for each query head in every family.
            None if config.map.contains_key("num_key_value_heads") => heads,
            None => defaults.num_key_value_heads.unwrap_or(heads),
        };
        if !heads.is_multiple_of(kv_heads) {
            return Err(config.error(format!(
                "`num_key_value_heads` is {kv_heads}: it must divide `num_attention_heads`, {heads}"
            )));
        }
        let positions =
            size("max_position_embeddings", limit::POSITIONS, defaults.max_position_embeddings)?;
        let stretched = super::rope::stretched_context(config)?;
        Ok(Self {
            vocab_size: size("vocab_size", limit::VOCAB, defaults.vocab_size)?,
            hidden_size,
            intermediate_size: size("intermediate_size", limit::WIDTH, defaults.intermediate_size)?,
            layers: size("num_hidden_layers", limit::LAYERS, defaults.num_hidden_layers)?,
            heads,
            kv_heads,
            head_dim: head_dim(config, hidden_size, heads, defaults.head_dim)?,
            max_position_embeddings: stretched.map_or(positions, |it| it.max(positions)),
            rms_norm_eps: config.positive("rms_norm_eps")?.unwrap_or(defaults.rms_norm_eps),
            rope_theta: defaults.rope_theta,
        })
    }

    /// A window of attention; none where it is as wide as the context.
    pub fn window(&self, tokens: Option<usize>) -> Option<usize> {
        tokens.filter(|tokens| *tokens < self.max_position_embeddings)
    }
}

fn head_dim(
    config: &Keys,
    hidden_size: usize,
    heads: usize,
    default: Option<usize>,
) -> Result<usize> {
    let (head_dim, origin) = match config.size("head_dim", limit::HEAD_DIM)?.or(default) {
        Some(head_dim) => (head_dim, "`head_dim`"),
        None if hidden_size.is_multiple_of(heads) => {
            (hidden_size / heads, "`hidden_size` / `num_attention_heads`")
        }
        None => {
            return Err(config.error(format!(
                "`hidden_size` is {hidden_size}: without `head_dim` it must be a multiple of \
                 `num_attention_heads`, {heads}"
            )));
        }
    };
    if !head_dim.is_multiple_of(2) {
        return Err(config
            .error(format!("{origin} is {head_dim}: rotary embeddings need an even head width")));
    }
    Ok(head_dim)
}
