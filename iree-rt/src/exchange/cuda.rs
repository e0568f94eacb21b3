//! Memory of `cudarc` 0.19 as tensors, and tensors as memory of `cudarc`, without a copy.

use std::borrow::Borrow;
use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaSlice, CudaStream, CudaViewMut, DevicePtr};

use crate::base::error::{Code, Error, Result};
use crate::hal::devices::device::Device;
use crate::hal::memory::buffer::{Buffer, Memory};
use crate::hal::memory::buffer_view::BufferView;
use crate::hal::memory::element::Element;
use crate::hal::memory::exclusive::PUT_AWAY;

impl BufferView {
    /// The elements of `slice`, which is of `cudarc` 0.19, as a tensor of `shape` on `device`,
    /// without a copy. The slice (or one handle to it: an `Arc<CudaSlice<T>>` will do) lives until
    /// the last handle of the tensor is gone.
    ///
    /// This waits for what `cudarc` has in flight on the stream of the slice, and for writes on
    /// other streams that it tracks: calls of IREE run in a stream of its own, which nothing orders
    /// against those of others. Who keeps a handle waits for its own work in the same way
    /// (`CudaStream::synchronize`) before the tensor is used; calls of IREE have finished when they
    /// return, and those in flight when their fence is reached.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use cudarc::driver::CudaContext;
    /// use iree_rt::{BufferView, Instance};
    ///
    /// let device = Instance::get()?.device("cuda")?;
    /// let stream = CudaContext::new(0)?.default_stream();
    /// let slice = stream.clone_htod(&[1f32, 2., 3., 4.])?;
    /// let tensor = BufferView::from_cuda(&device, &[2, 2], slice)?;
    /// assert_eq!(tensor.read::<f32>()?, [1., 2., 3., 4.]);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`InvalidArgument`](Code::InvalidArgument) when the device is none of CUDA or the slice is of
    /// another context than its (its GPU's primary one, which `CudaContext::new` gives), for `bool`,
    /// and for memory that starts at no multiple of [`ALIGNMENT`](crate::hal::memory::buffer::ALIGNMENT);
    /// [`OutOfRange`](Code::OutOfRange) when the shape needs more elements than there are. The slice
    /// is dropped.
    pub fn from_cuda<T: Element>(
        device: &Device,
        shape: &[usize],
        slice: impl Borrow<CudaSlice<T>> + Send + 'static,
    ) -> Result<Self> {
        check_bits::<T>()?;
        let memory = slice.borrow();
        check_context(device, memory.context())?;
        let (address, bytes) = (settle(memory)?, memory.num_bytes());
        // SAFETY: memory of the device's context, which the slice keeps wherever it is moved; what
        // others do with it is kept apart by synchronising, as above.
        let buffer = unsafe { Buffer::import_device(device, address, bytes, slice)? };
        Self::from_buffer(&buffer, 0, shape, T::TYPE)
    }

    /// The elements of this tensor as memory of `cudarc` 0.19 in `stream`, without a copy.
    ///
    /// The tensor must not be in use by a call in flight. Results of calls lie in pools that IREE
    /// does not export: copy them with [`to_device`](Self::to_device) first, or open the device
    /// without [`async_allocations`](crate::cuda::Options::async_allocations).
    ///
    /// # Errors
    /// [`InvalidArgument`](Code::InvalidArgument) when the device is none of CUDA, the stream is of
    /// another context, or the elements are of another type or `bool`; [`Unavailable`](Code::Unavailable) for
    /// memory of a pool.
    pub fn to_cuda<T: Element>(&self, stream: &Arc<CudaStream>) -> Result<SharedSlice<T>> {
        check_bits::<T>()?;
        check_context(self.device(), stream.context())?;
        self.check_type::<T>()?;
        let external =
            self.buffer().export(Memory::Device).map_err(|error| match error.code() {
                Code::Unavailable => Error::new(
                    Code::Unavailable,
                    "the tensor lies in memory of a pool, as results of calls do, and IREE exports \
                     none of it: copy it with `BufferView::to_device`, or open the device without \
                     `cuda::Options::async_allocations`",
                ),
                _ => error,
            })?;
        // For the events that the slice makes, which cannot fail but without a context.
        bind(stream.context())?;
        // SAFETY: the elements of the tensor, which the result keeps; freed by IREE, as the slice is
        // never dropped.
        let slice = unsafe { stream.upgrade_device_ptr(external.address(), self.len()) };
        Ok(SharedSlice { slice: ManuallyDrop::new(slice), tensor: self.clone() })
    }
}

/// The memory of a tensor as a slice of `cudarc`, made by [`BufferView::to_cuda`], which it keeps
/// alive.
///
/// It goes wherever `cudarc` takes a `&CudaSlice`, and is a handle of the tensor as others are.
/// What is written through [`as_view_mut`](Self::as_view_mut) the tensor shows once the stream has
/// been synchronised, which dropping this does too.
pub struct SharedSlice<T> {
    /// Never dropped, as that would free the memory.
    slice: ManuallyDrop<CudaSlice<T>>,
    tensor: BufferView,
}

impl<T> SharedSlice<T> {
    /// All of it, to write, when nobody else has a handle to the tensor.
    ///
    /// # Errors
    /// [`FailedPrecondition`](Code::FailedPrecondition) when there is
    /// [another](crate::buffer#who-may-write).
    pub fn as_view_mut(&mut self) -> Result<CudaViewMut<'_, T>> {
        self.tensor.exclusive(PUT_AWAY)?;
        Ok(self.slice.as_view_mut())
    }

    /// The tensor.
    pub fn tensor(&self) -> &BufferView {
        &self.tensor
    }
}

// To read only: whoever had a `&mut CudaSlice` could take it away and have it free the memory.
impl<T> Deref for SharedSlice<T> {
    type Target = CudaSlice<T>;

    fn deref(&self) -> &CudaSlice<T> {
        &self.slice
    }
}

impl<T> Drop for SharedSlice<T> {
    fn drop(&mut self) {
        // SAFETY: not used again.
        let slice = unsafe { ManuallyDrop::take(&mut self.slice) };
        let stream = slice.stream().clone();
        slice.leak();
        // IREE may free or reuse the memory now. The context keeps the error for its next user.
        stream.context().record_err(stream.synchronize());
    }
}

impl<T> fmt::Debug for SharedSlice<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SharedSlice").field(&self.tensor).finish()
    }
}

/// Waits until everything that was written to `slice` is there, and gives its address.
fn settle<T>(slice: &CudaSlice<T>) -> Result<u64> {
    let stream = slice.stream();
    let (address, reading) = slice.device_ptr(stream);
    drop(reading);
    stream.synchronize().map_err(|error| {
        Error::new(Code::Internal, format!("waiting for the stream of a CUDA slice: {error}"))
    })?;
    Ok(address)
}

/// Refuses types of which some bits are no value: `cudarc` makes values of whatever bytes are there, and
/// programs and buffers write what they like.
fn check_bits<T: Element>() -> Result<()> {
    if T::ANY_BITS {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "memory of CUDA is not exchanged as {}, which has values that are none: exchange it as bytes (`u8`) \
         and view these as another type (`Buffer::view`)",
        T::TYPE
    )))
}

fn bind(context: &CudaContext) -> Result<()> {
    context
        .bind_to_thread()
        .map_err(|error| Error::new(Code::Internal, format!("entering a CUDA context: {error}")))
}

fn check_context(device: &Device, context: &CudaContext) -> Result<()> {
    let Some(its) = device.context() else {
        return Err(Error::invalid(format!(
            "memory of CUDA cannot be exchanged with device `{}`, which is none of CUDA",
            device.uri()
        )));
    };
    if its.raw() == context.cu_ctx().cast() {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "the memory is of another CUDA context (of GPU {}) than device `{}`, which has the primary \
         one of its GPU, as `CudaContext::new` gives",
        context.ordinal(),
        device.uri()
    )))
}
