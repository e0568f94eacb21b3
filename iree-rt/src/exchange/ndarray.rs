//! Tensors from and to arrays of `ndarray` 0.17 (feature `ndarray`).

use ndarray::{ArrayD, ArrayRef, Dimension, IxDyn};

use crate::base::error::{Error, Result};
use crate::hal::devices::device::Device;
use crate::hal::memory::buffer_view::BufferView;
use crate::hal::memory::element::Element;

impl BufferView {
    /// A tensor in new memory of `device`, holding a copy of `array` (of `ndarray` 0.17), whatever
    /// its layout is.
    ///
    /// ```
    /// # #[cfg(feature = "link")] fn main() -> iree_rt::Result<()> {
    /// use iree_rt::BufferView;
    /// use ndarray::{ArrayViewMutD, Axis, array};
    ///
    /// # let device = iree_rt::Instance::get()?.device("local-task")?;
    /// let matrix = array![[1f32, 2., 3.], [4., 5., 6.]];
    /// let mut tensor = BufferView::from_array(&device, &matrix.t())?;
    /// assert_eq!(tensor.to_array::<f32>()?, matrix.t().into_dyn());
    ///
    /// // In place, without a copy:
    /// let shape = tensor.shape().to_vec();
    /// let mut map = tensor.map_mut::<f32>()?;
    /// let mut view = ArrayViewMutD::from_shape(shape, &mut map).unwrap();
    /// view.index_axis_mut(Axis(1), 0).fill(0.);
    /// drop(map);
    /// assert_eq!(tensor.read::<f32>()?, [0., 4., 0., 5., 0., 6.]);
    /// # Ok(()) }
    /// # #[cfg(not(feature = "link"))] fn main() {}
    /// ```
    ///
    /// # Errors
    /// Allocation and transfer errors of the device.
    pub fn from_array<T: Element, D: Dimension>(
        device: &Device,
        array: &ArrayRef<T, D>,
    ) -> Result<Self> {
        match array.as_slice() {
            Some(elements) => Self::new(device, array.shape(), elements),
            None => Self::new(device, array.shape(), &array.iter().copied().collect::<Vec<T>>()),
        }
    }

    /// A copy of all elements as an array of `ndarray` 0.17, of the same shape.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn to_array<T: Element>(&self) -> Result<ArrayD<T>> {
        ArrayD::from_shape_vec(IxDyn(self.shape()), self.read()?)
            .map_err(|error| Error::invalid(format!("{self:?} as an array: {error}")))
    }
}
