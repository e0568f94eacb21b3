//! What converters make of the values of some vectors, and how it is undone when these are read: what is behind
//! this crate knows of one form.

/// What a converter has done to a vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Converted {
    /// `-exp(x)`: GGUF's of the decays of linear attention.
    NegativeExponential,
    /// `1 + x`: MLX's of the norms of Qwen3.5 and Qwen3-Next.
    OneMore,
}

impl Converted {
    /// What was done to the tensor `name` of a GGUF file, by Hugging Face's name.
    pub fn by_gguf(name: &str) -> Option<Self> {
        name.ends_with(".linear_attn.A_log").then_some(Self::NegativeExponential)
    }

    /// What was done to the tensor `name` of a folder that [MLX has made](is_of_mlx).
    pub fn by_mlx(name: &str) -> Option<Self> {
        let norms = [
            ".input_layernorm.weight",
            ".post_attention_layernorm.weight",
            ".q_norm.weight",
            ".k_norm.weight",
        ];
        let is_norm = name == "model.norm.weight" || norms.iter().any(|norm| name.ends_with(norm));
        is_norm.then_some(Self::OneMore)
    }

    /// The value before; `None` where there is none.
    pub fn undo(self, value: f32) -> Option<f32> {
        match self {
            // Zero is what underflowed, and is nothing for ever.
            Self::NegativeExponential => (value <= 0.0).then(|| (-value).ln()),
            Self::OneMore => Some(value - 1.0),
        }
    }
}

/// Whether MLX has made the folder of a model that has linear attention: the taps of its convolutions are
/// `[columns, rows, 1]` there, by which MLX itself knows it.
pub(crate) fn is_of_mlx<'a>(mut tensors: impl Iterator<Item = (&'a str, &'a [usize])>) -> bool {
    tensors.any(|(name, shape)| {
        name.ends_with(".linear_attn.conv1d.weight") && matches!(shape, [_, rows, 1] if *rows > 1)
    })
}
