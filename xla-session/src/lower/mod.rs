//! Lowerings: how a kind of device runs a model. Each walks the layers of an
//! [architecture](checkpoint::architecture) and composes its parts in its own way; what they write
//! with is in [`emit`](crate::emit).

use checkpoint::architecture::{Activation, Architecture, FeedForward};

pub mod cpu;
pub mod cuda;
pub mod paged;
pub mod portable;
pub mod vulkan;

/// What a model has of what so far only CPUs' graphs have: mostly parts of encoders.
fn of_encoders(of: &Architecture) -> Option<&'static str> {
    let exact = |mlp: &FeedForward| match mlp {
        FeedForward::Mlp(mlp) => mlp.activation == Activation::Gelu,
        FeedForward::Experts(experts) => {
            experts.experts.iter().any(|mlp| mlp.activation == Activation::Gelu)
        }
    };
    let parts = [
        (of.is_encoder(), "attention both ways"),
        (!of.makes_tokens(), "no output projection"),
        (of.positions.is_some(), "learned positions"),
        (of.texts.is_some(), "texts that are told apart"),
        (of.embedding_norm.is_some(), "a norm of embeddings"),
        (of.distances.is_some(), "scores by distance"),
        (of.layers.iter().any(|layer| layer.norms_stream), "norms of the residual stream"),
        (of.layers.iter().any(|layer| exact(&layer.mlp)), "GELU by erf"),
    ];
    parts.into_iter().find_map(|(is, name)| is.then_some(name))
}
