//! How each matrix of a model is stored.

use std::collections::{BTreeMap, BTreeSet};

use checkpoint::architecture::Role;
use checkpoint::config::ModelConfig;
use checkpoint::{Checkpoint, Dtype};
use kernels::Format;

use crate::Precision;

/// The formats of a model's matrices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WeightFormats {
    /// The format of every matrix that is not an exception.
    pub default: Format,
    /// Matrices in another format, by tensor name.
    pub exceptions: BTreeMap<String, Format>,
}

impl WeightFormats {
    /// Those of `precision`. The token embedding and the output projection decide the most, and then
    /// [the ends](checkpoint::architecture::Architecture::ends) of the layers: beside int4 they are int6,
    /// which is nearly as good as int8 there, and beside w8a8 they meet more of activations. In other precisions they are
    /// as all matrices are. What decides
    /// where rows go is never rounded, and layers that the file has in four bits of its own (Q4_0, but for
    /// the ends) stay as they are.
    pub fn new(precision: Precision, config: &ModelConfig, checkpoint: &Checkpoint) -> Self {
        let (default, embeddings) = match precision {
            Precision::Stored => return Self::stored(config, checkpoint),
            Precision::F32 => return Self::all(Format::F32),
            Precision::Bf16 => (Format::Bf16Rounded, None),
            Precision::Int8 => (Format::Int8, None),
            Precision::W8a8 => (Format::Int8Rounded, Some(Format::Int8)),
            Precision::Int4 => (Format::Nested4, Some(Format::Int6)),
        };
        let ends: BTreeSet<_> = config.architecture.ends().map(|it| &it.weight.name).collect();
        let matrices = || config.tensors().filter(|it| it.role == Role::Matrix);
        // Of files of four bits newer ones have what latent attention expands in two tensors, of which none of those is made.
        let latent = config.architecture.layers.iter().filter_map(|layer| layer.mixer.latent());
        let in_two: BTreeSet<_> = latent
            .map(|it| &it.expand.weight)
            .filter(|it| checkpoint.type_of(it) != Some(Dtype::Q4_0))
            .map(|it| &it.name)
            .collect();
        let of_q4_0 = || {
            let mut inner =
                matrices().filter(|it| !ends.contains(&it.name) && !in_two.contains(&it.name));
            inner.all(|it| checkpoint.type_of(it) == Some(Dtype::Q4_0))
        };
        let stay = default == Format::Nested4 && of_q4_0();
        let mut formats = Self::all(default);
        for parameter in config.architecture.parameters() {
            let format = match parameter.role {
                Role::Router => Some(Format::F32),
                Role::Embedding | Role::Output => embeddings,
                Role::Matrix if stay && !in_two.contains(&parameter.name) => {
                    checkpoint.type_of(parameter).map(stored_format)
                }
                Role::Matrix if ends.contains(&parameter.name) => embeddings,
                Role::Norm | Role::Matrix | Role::Taps => None,
                Role::Bias | Role::Sinks | Role::Decay | Role::Activation => None,
            };
            if let Some(format) = format {
                formats.exceptions.insert(parameter.name.clone(), format);
            }
        }
        formats
    }

    /// As the checkpoint stores them.
    fn stored(config: &ModelConfig, checkpoint: &Checkpoint) -> Self {
        let mut formats = Self::all(Format::F32);
        for tensor in config.tensors() {
            if let Some(dtype) = checkpoint.type_of(tensor) {
                formats.exceptions.insert(tensor.name.clone(), stored_format(dtype));
            }
        }
        formats
    }

    /// Every matrix in this format.
    pub fn all(format: Format) -> Self {
        Self { default: format, exceptions: BTreeMap::new() }
    }

    /// The format of a matrix that joins `tensors`: theirs, or f32 when they differ.
    pub(crate) fn of<'a>(&self, tensors: impl Iterator<Item = &'a str>) -> Format {
        let mut formats =
            tensors.map(|name| self.exceptions.get(name).copied().unwrap_or(self.default));
        let first = formats.next().unwrap_or(self.default);
        if formats.all(|it| it == first) { first } else { Format::F32 }
    }
}

/// What lies row by row in the place of a format that only blocks have: eight bits for the six that lie
/// in words of several lanes, no minima, f32 for what is as files have it.
pub(crate) fn in_rows(format: Format) -> Format {
    match format {
        Format::Int8Rounded | Format::Int6 => Format::Int8,
        Format::Nested4 => Format::Int4,
        Format::Int8 | Format::Int4 => format,
        blocks if blocks.is_quantised() => Format::F32,
        floats => floats,
    }
}

/// The format of weights that stay as they are.
pub(crate) fn stored_format(dtype: Dtype) -> Format {
    match dtype {
        Dtype::F32 => Format::F32,
        Dtype::F16 => Format::F16,
        Dtype::BF16 => Format::Bf16,
        // The file's integers and scales as they are.
        Dtype::Q8_0 => Format::Int8,
        Dtype::Q4_0 => Format::Int4,
        Dtype::Q4_1 => Format::Q4_1,
        Dtype::Q5_0 => Format::Q5_0,
        Dtype::Q5_1 => Format::Q5_1,
        Dtype::Q4K => Format::Q4K,
        Dtype::Q5K => Format::Q5K,
        Dtype::Q6K => Format::Q6K,
        Dtype::Affine4 => Format::Affine4,
        Dtype::Zeroed4 => Format::Zeroed4,
        Dtype::Q2K => Format::Q2K,
        Dtype::Q3K => Format::Q3K,
        Dtype::Iq4Nl => Format::Iq4Nl,
        Dtype::Iq4Xs => Format::Iq4Xs,
        Dtype::Mxfp4 => Format::Mxfp4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_of_differing_types_is_widened() {
        let mut formats = WeightFormats::all(Format::Bf16);
        formats.exceptions.insert("k".into(), Format::F16);
        assert_eq!(formats.of(["q", "v"].into_iter()), Format::Bf16);
        assert_eq!(formats.of(["q", "k", "v"].into_iter()), Format::F32);
    }
}
