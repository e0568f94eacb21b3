//! The image of a model's weights: which bytes lie where, in device memory and in the cache alike.

use crate::emit::builder::{DYNAMIC, TensorType};
use crate::emit::{ElementType, WeightSpec};

/// What packing means; goes up whenever the bytes of an image change for the same specs.
pub(super) const VERSION: u32 = 6;

/// Planes begin at multiples of this, bytes: whole pages, and more than [`iree_rt::buffer::ALIGNMENT`].
pub(super) const ALIGNMENT: usize = 4096;

/// Two numbers of 64 bits for each plane: where it begins, and its bytes.
const ENTRY: usize = 16;

/// Every weight of a model, one after the other, then a table of where their planes lie: that of
/// compressed weights is known when they are packed.
#[derive(Debug)]
pub(super) struct Image<'a> {
    pub specs: &'a [WeightSpec],
    /// Its size; where weights are compressed, its largest.
    pub bytes: usize,
}

/// One tensor that a weight consists of.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Plane {
    /// Its type, every extent known.
    pub ty: TensorType,
    /// Its first byte.
    pub offset: usize,
    /// Its size.
    pub bytes: usize,
}

/// The planes of each weight of an image, in the order in which they lie.
pub(super) type Planes = Vec<Vec<Plane>>;

impl<'a> Image<'a> {
    /// The image of `specs`, in their order.
    pub fn new(specs: &'a [WeightSpec]) -> Self {
        let (mut end, mut planes) = (0usize, 0);
        for spec in specs {
            let types = spec.planes();
            let beside = types[1..].iter().map(TensorType::bytes);
            for bytes in std::iter::once(spec.most_bytes()).chain(beside) {
                end = end.next_multiple_of(ALIGNMENT) + bytes;
            }
            planes += types.len();
        }
        Self { specs, bytes: end.next_multiple_of(ENTRY) + planes * ENTRY }
    }

    /// Everything that decides its bytes but the checkpoint's tensors, for a cache's key.
    pub fn describe(&self) -> String {
        format!("{VERSION} {:?}", self.specs)
    }

    /// The planes of a whole image, by the table at its end; `None` if that is none.
    pub fn planes(&self, image: &[u8]) -> Option<Planes> {
        let count: usize = self.specs.iter().map(|spec| spec.planes().len()).sum();
        let table = image.len().checked_sub(count * ENTRY)?;
        let mut entries = image[table..].as_chunks::<ENTRY>().0.iter();
        let weights = self.specs.iter().map(|spec| {
            let planes = spec.planes().into_iter().map(|ty| {
                let [offset, bytes] = bytemuck::pod_read_unaligned::<[u64; 2]>(entries.next()?);
                let (offset, bytes) = (usize::try_from(offset).ok()?, usize::try_from(bytes).ok()?);
                let plane = Plane::new(ty, offset, bytes);
                let fits = offset.checked_add(bytes)? <= table && plane.ty.bytes() == bytes;
                (fits && offset.is_multiple_of(ALIGNMENT)).then_some(plane)
            });
            let planes: Vec<Plane> = planes.collect::<Option<_>>()?;
            let blocks = planes.iter().find(|plane| plane.ty.element == ElementType::I64);
            let whole = blocks.is_none_or(|blocks| {
                let begins = image[blocks.offset..][..blocks.bytes].as_chunks::<8>().0;
                let begins = begins.iter().map(|begin| u64::from_le_bytes(*begin));
                begins.clone().is_sorted()
                    && begins.max().is_none_or(|last| last < planes[0].bytes as u64)
            });
            whole.then_some(planes)
        });
        weights.collect()
    }
}

impl Plane {
    /// A tensor of type `ty` in `bytes` bytes, which say its extent where the type does not.
    pub fn new(mut ty: TensorType, offset: usize, bytes: usize) -> Self {
        let element = ty.element.bytes();
        for dim in ty.dims.iter_mut().filter(|dim| **dim == DYNAMIC) {
            *dim = bytes / element;
        }
        Self { ty, offset, bytes }
    }
}

/// The table of an image that ends with it; [`Image::planes`] reads it.
pub(super) fn table(planes: &Planes) -> Vec<u8> {
    let entry = |plane: &Plane| [plane.offset as u64, plane.bytes as u64].map(u64::to_le_bytes);
    planes.iter().flatten().flat_map(entry).flatten().collect()
}

/// The size of an image with these planes.
pub(super) fn bytes(planes: &Planes) -> usize {
    table_offset(planes) + planes.iter().flatten().count() * ENTRY
}

/// Where the table of `planes` begins.
pub(super) fn table_offset(planes: &Planes) -> usize {
    let last = planes.iter().flatten().last();
    last.map_or(0, |plane| plane.offset + plane.bytes).next_multiple_of(ENTRY)
}
