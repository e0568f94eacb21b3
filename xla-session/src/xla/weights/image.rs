//! The image of a model's weights: which bytes lie where, in device memory and in the cache alike.

use crate::emit::WeightSpec;
use crate::emit::builder::TensorType;

/// What packing means; goes up whenever the bytes of an image change for the same specs.
pub(super) const VERSION: u32 = 1;

/// Planes begin at multiples of this, bytes: whole pages, and more than [`iree_rt::buffer::ALIGNMENT`].
const ALIGNMENT: usize = 4096;

/// Every weight of a model, one after the other.
#[derive(Debug)]
pub(super) struct Image<'a> {
    pub weights: Vec<Weight<'a>>,
    /// Its size.
    pub bytes: usize,
}

/// One weight in the image.
#[derive(Debug)]
pub(super) struct Weight<'a> {
    pub spec: &'a WeightSpec,
    /// In the order in which they lie.
    pub planes: Vec<Plane>,
}

/// One tensor that a weight consists of.
#[derive(Debug)]
pub(super) struct Plane {
    pub ty: TensorType,
    /// Its first byte.
    pub offset: usize,
    /// Its size.
    pub bytes: usize,
}

impl<'a> Image<'a> {
    /// The image of `specs`, in their order.
    pub fn new(specs: &'a [WeightSpec]) -> Self {
        let mut end = 0usize;
        let mut place = |ty: TensorType| {
            let offset = end.next_multiple_of(ALIGNMENT);
            let bytes = ty.bytes();
            end = offset + bytes;
            Plane { ty, offset, bytes }
        };
        let weights = specs
            .iter()
            .map(|spec| Weight { spec, planes: planes(spec).into_iter().map(&mut place).collect() })
            .collect();
        Self { weights, bytes: end }
    }

    /// Everything that decides its bytes but the checkpoint's tensors, for a cache's key.
    pub fn describe(&self) -> String {
        format!("{VERSION} {:?}", self.weights)
    }
}

/// The tensors that a weight consists of: its values, then its scales if it has any.
fn planes(spec: &WeightSpec) -> Vec<TensorType> {
    std::iter::once(spec.ty()).chain(spec.scales()).collect()
}
