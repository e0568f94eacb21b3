//! Attention by way of fewer numbers.

use std::iter::once;

use super::{Linear, Norm, Parameter};

/// What makes queries, keys and values of fewer numbers (DeepSeek-V2, multi-head latent attention). Of each row
/// [`Attention::qkv`](super::Attention::qkv) gives two pieces side by side: what queries are made of, or the queries
/// themselves; and what keys and values are made of, `[norm.width()]`, behind which lie the columns of keys that turn,
/// `[rotated]`, the same for all heads.
///
/// Of a head's query and key those columns turn that come last here. Scores do not change with the order of columns:
/// layers put them first, as of any other attention. Values are narrower than keys or as wide; they are kept with zeros
/// behind them, as wide as keys, and [`Attention::output`](super::Attention::output) reads them without.
#[derive(Debug, Clone, PartialEq)]
pub struct Latent {
    /// Of what queries are made of, and to queries, `[heads * head_dim, norm.width()]`, where these are not there
    /// already.
    pub queries: Option<(Norm, Linear)>,
    /// Of what keys and values are made of.
    pub norm: Norm,
    /// To keys, but for the columns that turn, and values: `[heads * (head_dim - rotated + value_dim), norm.width()]`,
    /// of each head its key and its value.
    pub expand: Linear,
    /// Columns of a head that turn; all that its layer's rope rotates.
    pub rotated: usize,
    /// Width of a head's value; at most `head_dim`.
    pub value_dim: usize,
}

impl Latent {
    /// Its projections, in the order in which a row meets them.
    pub fn matrices(&self) -> impl Iterator<Item = &Linear> {
        self.queries.iter().map(|(_, linear)| linear).chain([&self.expand])
    }

    /// Its norms, in that order.
    pub fn norms(&self) -> impl Iterator<Item = &Norm> {
        self.queries.iter().map(|(norm, _)| norm).chain([&self.norm])
    }

    pub(super) fn parameters(&self) -> impl Iterator<Item = &Parameter> {
        let queries = self.queries.iter();
        let queries = queries.flat_map(|(norm, to)| once(&norm.weight).chain(to.parameters()));
        queries.chain([&self.norm.weight]).chain(self.expand.parameters())
    }
}
