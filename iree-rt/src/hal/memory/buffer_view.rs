//! Buffer views: buffers with a shape and an element type, the tensors of a call.

use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::ptr::{self, NonNull};
use std::slice;
use std::time::Duration;

use iree_sys as sys;
use iree_sys::allocator::host_allocator;

use crate::base::error::{Code, Error, Result};
use crate::base::status::check;
use crate::base::text::entries;
use crate::hal::devices::device::Device;
use crate::hal::memory::buffer::length;
use crate::hal::memory::buffer::{ALIGNMENT, Buffer};
use crate::hal::memory::element::{Element, ElementType, byte_len, element_count};
use crate::hal::memory::exclusive::{self, PUT_AWAY};

/// A dense row-major tensor on a device. Cloning gives another handle to the same tensor.
///
/// Any thread may hold one; [the only one](crate::buffer#who-may-write) writes.
pub struct BufferView {
    raw: NonNull<sys::iree_hal_buffer_view_t>,
    device: Device,
}

// SAFETY: buffer views are reference-counted atomically; shape and type do not change after
// creation (we offer no reshape in place).
unsafe impl Send for BufferView {}
// SAFETY: as above.
unsafe impl Sync for BufferView {}

impl BufferView {
    /// A tensor of `shape` in new memory of `device`, holding a copy of `data` in row-major order.
    ///
    /// # Errors
    /// [`InvalidArgument`](Code::InvalidArgument) when `data` has not as many elements as
    /// `shape`; allocation and transfer errors of the device.
    pub fn new<T: Element>(device: &Device, shape: &[usize], data: &[T]) -> Result<Self> {
        if element_count(shape) != Some(data.len()) {
            return Err(Error::invalid(format!(
                "{} elements given for a tensor of shape {shape:?}",
                data.len()
            )));
        }
        let mut buffer = Buffer::allocate(device, size_of_val(data))?;
        buffer.write(0, data)?;
        Self::from_buffer(&buffer, 0, shape, T::TYPE)
    }

    /// A tensor of `shape` in new memory of `device`, whose elements are unspecified.
    ///
    /// ```
    /// # #[cfg(feature = "link")] fn main() -> iree_rt::Result<()> {
    /// # let device = iree_rt::Instance::get()?.device("local-task")?;
    /// use iree_rt::{BufferView, ElementType};
    ///
    /// let mut cache = BufferView::uninitialized(&device, &[2, 3], ElementType::I64)?;
    /// cache.fill(7i64)?;
    /// cache.write(4, &[-1i64, -2])?;
    /// assert_eq!(cache.read_range::<i64>(3..6)?, [7, -1, -2]);
    /// # Ok(()) }
    /// # #[cfg(not(feature = "link"))] fn main() {}
    /// ```
    ///
    /// # Errors
    /// [`InvalidArgument`](Code::InvalidArgument) for a shape of too many elements;
    /// [`ResourceExhausted`](Code::ResourceExhausted) when the device has no memory for them.
    pub fn uninitialized(
        device: &Device,
        shape: &[usize],
        element_type: ElementType,
    ) -> Result<Self> {
        let buffer = Buffer::allocate(device, byte_len(shape, element_type)?)?;
        Self::from_buffer(&buffer, 0, shape, element_type)
    }

    /// The bytes of `buffer` from `offset` on as a tensor of `shape`: the same memory, kept alive
    /// by the view. The buffer may be longer than the tensor.
    ///
    /// # Errors
    /// [`OutOfRange`](Code::OutOfRange) when the tensor does not fit;
    /// [`InvalidArgument`](Code::InvalidArgument) when it would not start at a multiple of
    /// [`ALIGNMENT`] bytes.
    pub fn from_buffer(
        buffer: &Buffer,
        offset: usize,
        shape: &[usize],
        element_type: ElementType,
    ) -> Result<Self> {
        let bytes = byte_len(shape, element_type)?;
        buffer.check_range(offset, bytes, "view")?;
        if !(buffer.offset() + offset).is_multiple_of(ALIGNMENT) {
            return Err(Error::invalid(format!(
                "a tensor at byte {} of its allocation is not aligned to {ALIGNMENT} bytes",
                buffer.offset() + offset
            )));
        }
        let part;
        let buffer = if offset == 0 {
            buffer
        } else {
            part = buffer.subspan(offset..offset + bytes)?;
            &part
        };
        let mut raw = ptr::null_mut();
        // SAFETY: the buffer is live and long enough; the view retains it and copies the shape.
        check(unsafe {
            sys::iree_hal_buffer_view_create(
                buffer.raw(),
                shape.len(),
                shape.as_ptr(),
                element_type.0,
                sys::IREE_HAL_ENCODING_TYPE_DENSE_ROW_MAJOR as _,
                host_allocator(),
                &mut raw,
            )
        })?;
        Ok(Self::own(raw, buffer.device()))
    }

    /// Takes over a reference that IREE returned, to a view on a device of `device`'s group.
    pub(crate) fn own(raw: *mut sys::iree_hal_buffer_view_t, device: &Device) -> Self {
        let raw = NonNull::new(raw).expect("IREE returned OK with a null buffer view");
        // SAFETY: the view is live and holds its buffer.
        let buffer = unsafe { sys::iree_hal_buffer_view_buffer(raw.as_ptr()) };
        Self { raw, device: device.holding(buffer) }
    }

    /// Elements along each dimension, outermost first.
    pub fn shape(&self) -> &[usize] {
        // SAFETY: the view is live, and its shape does not change while it is.
        unsafe {
            let rank = sys::iree_hal_buffer_view_shape_rank(self.raw());
            let dims = sys::iree_hal_buffer_view_shape_dims(self.raw());
            entries(dims, rank)
        }
    }

    /// The type of its elements.
    pub fn element_type(&self) -> ElementType {
        // SAFETY: the view is live.
        ElementType(unsafe { sys::iree_hal_buffer_view_element_type(self.raw()) })
    }

    /// Elements in all.
    pub fn len(&self) -> usize {
        // SAFETY: the view is live.
        unsafe { sys::iree_hal_buffer_view_element_count(self.raw()) }
    }

    /// Whether it has no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of the tensor (its buffer may have more).
    pub fn byte_len(&self) -> usize {
        // SAFETY: the view is live.
        unsafe { sys::iree_hal_buffer_view_byte_length(self.raw()) }
    }

    /// The buffer behind it.
    pub fn buffer(&self) -> Buffer {
        // SAFETY: the view is live and holds its buffer, which is of the same device.
        unsafe { Buffer::retain(sys::iree_hal_buffer_view_buffer(self.raw()), &self.device) }
    }

    /// The device that holds it.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// All elements, in row-major order.
    ///
    /// # Errors
    /// [`InvalidArgument`](Code::InvalidArgument) when the elements are no `T`.
    pub fn read<T: Element>(&self) -> Result<Vec<T>> {
        self.read_range(0..self.len())
    }

    /// The elements of `range`, counted in row-major order; the others are not transferred.
    ///
    /// # Errors
    /// As [`read`](Self::read); [`OutOfRange`](Code::OutOfRange) past the end, and
    /// [`InvalidArgument`](Code::InvalidArgument) for a range that ends before it starts.
    pub fn read_range<T: Element>(&self, range: Range<usize>) -> Result<Vec<T>> {
        self.check_type::<T>()?;
        let count = length(&range)?;
        self.check_elements(range.start, count)?;
        let mut out: Vec<T> = Vec::with_capacity(count);
        let spare = out.spare_capacity_mut()[..count].as_mut_ptr().cast::<u8>();
        // SAFETY: `spare` has room for `count` elements, which the transfer fills.
        unsafe { self.read_elements::<T>(range.start, spare, count)? };
        // SAFETY: filled, and every element is a value of T.
        unsafe { out.set_len(count) };
        Ok(out)
    }

    /// Copies all elements to `out`.
    ///
    /// # Errors
    /// As [`read`](Self::read), and [`InvalidArgument`](Code::InvalidArgument) when `out` has
    /// another length than this tensor.
    pub fn read_into<T: Element>(&self, out: &mut [T]) -> Result<()> {
        if out.len() != self.len() {
            return Err(Error::invalid(format!(
                "cannot read a tensor of {} elements into a slice of {}",
                self.len(),
                out.len()
            )));
        }
        self.read_range_into(0, out)
    }

    /// Copies the elements from the `start`-th on to fill `out`. Allocates nothing.
    ///
    /// # Errors
    /// As [`read`](Self::read), and [`OutOfRange`](Code::OutOfRange).
    pub fn read_range_into<T: Element>(&self, start: usize, out: &mut [T]) -> Result<()> {
        self.check_type::<T>()?;
        self.check_elements(start, out.len())?;
        if !T::ANY_BITS {
            out.copy_from_slice(&self.read_range(start..start + out.len())?);
            return Ok(());
        }
        // SAFETY: the slice is valid for writes, and any bytes are values of T.
        unsafe { self.read_elements::<T>(start, out.as_mut_ptr().cast(), out.len()) }
    }

    /// Replaces the elements from the `start`-th on by `data`.
    ///
    /// # Errors
    /// [`InvalidArgument`](Code::InvalidArgument) when the elements are no `T`, and the errors of
    /// [`Buffer::write`].
    pub fn write<T: Element>(&mut self, start: usize, data: &[T]) -> Result<()> {
        self.check_write::<T>(start, data.len())?;
        self.exclusive(PUT_AWAY)?;
        // SAFETY: nobody else has a handle.
        unsafe { self.buffer().write_unchecked(start * size_of::<T>(), data) }
    }

    /// Makes all elements `value`, on the device.
    ///
    /// # Errors
    /// [`InvalidArgument`](Code::InvalidArgument) when the elements are no `T`, and the errors of
    /// [`Buffer::fill`].
    pub fn fill<T: Element>(&mut self, value: T) -> Result<()> {
        self.check_write::<T>(0, self.len())?;
        self.exclusive(PUT_AWAY)?;
        let (buffer, bytes) = (self.buffer(), self.byte_len());
        if size_of::<T>() <= 4 {
            // SAFETY: nobody else has a handle.
            return unsafe { buffer.fill_unchecked(0..bytes, value) };
        }
        // Devices fill with 4 bytes at most: one value is written, and what is there is copied
        // behind it until all is.
        let mut done = size_of::<T>().min(bytes);
        // SAFETY: as above.
        unsafe { buffer.write_unchecked(0, &[value][..self.len().min(1)])? };
        while done < bytes {
            let next = done.min(bytes - done);
            // SAFETY: as above.
            unsafe { buffer.copy_from_unchecked(done, &buffer, 0, next)? };
            done += next;
        }
        Ok(())
    }

    /// Whether these elements are `T`s that may be written.
    pub(crate) fn check_write<T: Element>(&self, start: usize, count: usize) -> Result<()> {
        self.check_type::<T>()?;
        self.check_elements(start, count)?;
        self.buffer().check_write(start * size_of::<T>(), count * size_of::<T>(), "write")
    }

    /// A copy of this tensor on `device`, which may be any.
    ///
    /// ```
    /// # #[cfg(feature = "link")] fn main() -> iree_rt::Result<()> {
    /// # let instance = iree_rt::Instance::get()?;
    /// let (here, there) = (instance.device("local-task")?, instance.device("local-sync")?);
    /// let mut tensor = here.buffer_view(&[2], &[1f32, 2.])?;
    /// let copy = tensor.to_device(&there)?;
    /// tensor.fill(0f32)?;
    /// assert_eq!((copy.device(), copy.read::<f32>()?), (&there, vec![1., 2.]));
    /// # Ok(()) }
    /// # #[cfg(not(feature = "link"))] fn main() {}
    /// ```
    ///
    /// # Errors
    /// Allocation and transfer errors of the devices.
    pub fn to_device(&self, device: &Device) -> Result<Self> {
        let mut copy = Buffer::allocate(device, self.byte_len())?;
        copy.copy_from(0, &self.buffer(), 0, self.byte_len())?;
        Self::from_buffer(&copy, 0, self.shape(), self.element_type())
    }

    pub(crate) fn raw(&self) -> *mut sys::iree_hal_buffer_view_t {
        self.raw.as_ptr()
    }

    /// Gives the reference to the caller, who keeps the device.
    pub(crate) fn into_raw(self) -> *mut sys::iree_hal_buffer_view_t {
        let this = ManuallyDrop::new(self);
        // SAFETY: not used again, and not dropped.
        drop(unsafe { ptr::read(&this.device) });
        this.raw.as_ptr()
    }

    /// # Safety
    /// `out` is valid for writes of `count` elements of `T`, and the range lies inside.
    unsafe fn read_elements<T: Element>(
        &self,
        start: usize,
        out: *mut u8,
        count: usize,
    ) -> Result<()> {
        let size = size_of::<T>();
        // SAFETY: by the contract of this function; the view holds its buffer.
        unsafe {
            let buffer = sys::iree_hal_buffer_view_buffer(self.raw());
            if count > 0 {
                check(sys::iree_hal_device_transfer_d2h(
                    self.device.raw(),
                    buffer,
                    start * size,
                    out.cast(),
                    count * size,
                    0,
                    sys::iree_infinite_timeout(),
                ))?;
            }
        }
        if !T::ANY_BITS {
            // SAFETY: just written.
            let bytes = unsafe { slice::from_raw_parts(out, count * size) };
            bytemuck::checked::try_cast_slice::<u8, T>(bytes).map_err(|e| bad_bits::<T>(e))?;
        }
        Ok(())
    }

    pub(crate) fn check_type<T: Element>(&self) -> Result<()> {
        let actual = self.element_type();
        if T::reads(actual) {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "a tensor of {actual} cannot be used as {}",
            std::any::type_name::<T>()
        )))
    }

    fn check_elements(&self, start: usize, count: usize) -> Result<()> {
        match start.checked_add(count) {
            Some(end) if end <= self.len() => Ok(()),
            _ => Err(Error::new(
                Code::OutOfRange,
                format!("{count} elements at element {start} of a tensor of {}", self.len()),
            )),
        }
    }
}

impl BufferView {
    /// An error unless this is the only handle to the memory, at `limit` at the latest.
    pub(crate) fn exclusive(&mut self, limit: Duration) -> Result<()> {
        // SAFETY: the view is live and holds its buffer; HAL objects that modules pass around count
        // as resources do (iree/modules/hal/types.c).
        exclusive::wait(limit, || unsafe {
            let buffer = sys::iree_hal_buffer_view_buffer(self.raw());
            exclusive::references(self.raw().cast()) == 1 && exclusive::sole(buffer)
        })
    }
}

impl Buffer {
    /// The first bytes of this buffer as a tensor of `shape`.
    ///
    /// # Errors
    /// As [`BufferView::from_buffer`].
    pub fn view(&self, shape: &[usize], element_type: ElementType) -> Result<BufferView> {
        BufferView::from_buffer(self, 0, shape, element_type)
    }
}

impl Device {
    /// A tensor of `shape` holding a copy of `data`: [`BufferView::new`].
    ///
    /// # Errors
    /// As [`BufferView::new`].
    pub fn buffer_view<T: Element>(&self, shape: &[usize], data: &[T]) -> Result<BufferView> {
        BufferView::new(self, shape, data)
    }
}

impl Clone for BufferView {
    fn clone(&self) -> Self {
        // SAFETY: the view is live.
        unsafe { sys::iree_hal_buffer_view_retain(self.raw()) };
        Self { raw: self.raw, device: self.device.clone() }
    }
}

impl Drop for BufferView {
    fn drop(&mut self) {
        self.device.enter();
        // SAFETY: a reference of ours, not used again; the device outlives this call.
        unsafe { sys::iree_hal_buffer_view_release(self.raw()) };
    }
}

impl fmt::Debug for BufferView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BufferView(")?;
        for dim in self.shape() {
            write!(f, "{dim}x")?;
        }
        write!(f, "{} on {})", self.element_type(), self.device.uri())
    }
}

pub(crate) fn bad_bits<T>(error: impl fmt::Display) -> Error {
    Error::new(
        Code::DataLoss,
        format!("the tensor holds bytes that are no {}: {error}", std::any::type_name::<T>()),
    )
}
