//! What the host writes before a step: one piece of memory, in one upload.

use checkpoint::config::ModelConfig;
use kernels::KV_BLOCK;

use super::Source;
use crate::emit::builder::{ElementType, TensorType};

/// Where each input of a step lies in the memory that the host writes, bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inputs {
    /// Each with its place; the last one is [`Source::Pages`], of which only the beginning is written.
    pub places: Vec<(Source, TensorType, usize)>,
    /// Bytes in all.
    pub bytes: usize,
}

/// Views of a device's memory begin at multiples of this.
const ALIGNMENT: usize = 64;

impl Inputs {
    /// Of a step of `rows` rows.
    pub fn new(config: &ModelConfig, rows: usize) -> Self {
        let half = config.head_dim / 2;
        let pages = config.max_position_embeddings.div_ceil(KV_BLOCK);
        let (f32, i32) = (ElementType::F32, ElementType::I32);
        let mut bytes = 0;
        let places = [
            (Source::Tokens, TensorType::new(&[rows], i32)),
            (Source::Positions, TensorType::new(&[rows], i32)),
            (Source::Slots, TensorType::new(&[rows], i32)),
            (Source::Tables, TensorType::new(&[rows], i32)),
            (Source::Used, TensorType::new(&[1], i32)),
            (Source::Cos, TensorType::new(&[rows, half], f32)),
            (Source::Sin, TensorType::new(&[rows, half], f32)),
            (Source::Pages, TensorType::new(&[rows * pages], i32)),
        ]
        .map(|(source, ty)| {
            let at = bytes;
            bytes = (at + ty.bytes()).next_multiple_of(ALIGNMENT);
            (source, ty, at)
        });
        Self { places: places.into(), bytes }
    }

    /// The type of an input.
    ///
    /// # Panics
    ///
    /// When it is none.
    pub(super) fn ty(&self, source: &Source) -> &TensorType {
        let place = self.places.iter().find(|(it, ..)| it == source);
        &place.expect("one of the inputs").1
    }
}
