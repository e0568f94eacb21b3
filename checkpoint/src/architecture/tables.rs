//! Tables of which a row or a number is looked up by a token, its position or a distance.

use super::{Linear, Norm, Parameter};

/// What is added to the embedding of each token (Vaswani et al.): a row for its position.
#[derive(Debug, Clone, PartialEq)]
pub struct Positions {
    /// A row for each position, `[positions, hidden_size]`.
    pub embedding: Parameter,
    /// The row of the first position.
    pub first: usize,
}

/// What is added to scores of queries and keys by how far a key is before or behind its query (Raffel et al., T5): of the
/// distances before it half of the buckets, of those behind it the others; of each half's the first half are of one distance
/// each, the others of ever more, by their logarithms.
#[derive(Debug, Clone, PartialEq)]
pub struct Distances {
    /// `[buckets, heads]`, of which a multiple of 4 buckets.
    pub scores: Parameter,
    /// Where the last bucket begins.
    pub most: usize,
}

/// What every layer is given of a token, `[layers, width]`: `scale * embedding[token] + norm(projection(x))`, where
/// `x` is the row of the residual stream before the first layer, and the norm is of each layer's part by itself
/// (`modeling_gemma4.py`, per-layer embeddings).
#[derive(Debug, Clone, PartialEq)]
pub struct LayerInputs {
    /// A row for each token, `[vocab_size or more, layers * width]`.
    pub embedding: Parameter,
    /// What its rows are multiplied with.
    pub scale: f32,
    /// `[layers * width, hidden_size]`.
    pub projection: Linear,
    /// `[width]`, a multiple of 16.
    pub norm: Norm,
}

impl LayerInputs {
    /// Numbers of a layer's part.
    pub fn width(&self) -> usize {
        self.norm.width()
    }
}

/// Of so many buckets of [`Distances`], of which the last begins at `most`, that of a key so far behind its query, in the
/// float32 steps of transformers; below 0 it is before it.
pub fn bucket(distance: isize, buckets: usize, most: usize) -> usize {
    let half = buckets / 2;
    let (exact, far) = (half / 2, distance.unsigned_abs());
    let bucket = if far < exact {
        far
    } else {
        let logarithm = (far as f32 / exact as f32).ln();
        let all = (most as f64 / exact as f64).ln() as f32;
        let more = (logarithm / all * (half - exact) as f32) as usize;
        exact.saturating_add(more).min(half - 1)
    };
    if distance > 0 { half + bucket } else { bucket }
}
