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

/// Views of a device's memory begin at multiples of this: no device of Vulkan asks for more.
const ALIGNMENT: usize = 256;

impl Inputs {
    /// Of a step of `rows` rows of at most `sequences` sequences.
    pub fn new(config: &ModelConfig, rows: usize, sequences: usize) -> Self {
        // Whatever context it is opened for, so that graphs that were compiled ahead serve any.
        let pages = config.longest_context.div_ceil(KV_BLOCK);
        let (f32, i32) = (ElementType::F32, ElementType::I32);
        let mut bytes = 0;
        let ropes = config.architecture.ropes.iter().enumerate().flat_map(|(at, rope)| {
            let ty = TensorType::new(&[rows, rope.width / 2], f32);
            [(Source::Cos(at), ty.clone()), (Source::Sin(at), ty)]
        });
        let before = [
            (Source::Tokens, TensorType::new(&[rows], i32)),
            (Source::Positions, TensorType::new(&[rows], i32)),
            (Source::Slots, TensorType::new(&[rows], i32)),
            (Source::Tables, TensorType::new(&[rows], i32)),
            (Source::Used, TensorType::new(&[1], i32)),
        ];
        let pages = (Source::Pages, TensorType::new(&[sequences * pages], i32));
        let place = |(source, ty): (Source, TensorType)| {
            let at = bytes;
            bytes = (at + ty.bytes()).next_multiple_of(ALIGNMENT);
            (source, ty, at)
        };
        let places = before.into_iter().chain(ropes).chain([pages]).map(place).collect();
        Self { places, bytes }
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
