//! Tensors from and to DLPack, the exchange format of array libraries, by `dlpark` 0.10 (feature
//! `dlpack`).

use std::ptr::NonNull;

use dlpark::ffi::{DLDataType, DLDevice};
use dlpark::metadata::Dynamic;
use dlpark::{DlpackFlags, Managed, ManagedTensorBase};
use iree_sys as sys;

use crate::base::error::{Code, Error, Result};
use crate::hal::devices::device::Device;
use crate::hal::memory::buffer::{ALIGNMENT, Buffer, Memory};
use crate::hal::memory::buffer_view::BufferView;
use crate::hal::memory::element::ElementType;
use crate::hal::memory::import::import;

/// Element types and what DLPack calls them; the first of each is what comes in and goes out.
const TYPES: [(ElementType, DLDataType); 25] = [
    (ElementType::F32, DLDataType::F32),
    (ElementType::F64, DLDataType::F64),
    (ElementType::F16, DLDataType::F16),
    (ElementType::BF16, DLDataType::BF16),
    (ElementType::BOOL, DLDataType::BOOL),
    (ElementType::F8E4M3FN, DLDataType::F8E4M3FN),
    (ElementType::F8E5M2, DLDataType::F8E5M2),
    (ElementType::CF64, DLDataType::C64),
    (ElementType::CF128, DLDataType::C128),
    (ElementType::I8, DLDataType::I8),
    (ElementType::I16, DLDataType::I16),
    (ElementType::I32, DLDataType::I32),
    (ElementType::I64, DLDataType::I64),
    (ElementType::I8, DLDataType::U8),
    (ElementType::I16, DLDataType::U16),
    (ElementType::I32, DLDataType::U32),
    (ElementType::I64, DLDataType::U64),
    (ElementType::SI8, DLDataType::I8),
    (ElementType::SI16, DLDataType::I16),
    (ElementType::SI32, DLDataType::I32),
    (ElementType::SI64, DLDataType::I64),
    (ElementType::UI8, DLDataType::U8),
    (ElementType::UI16, DLDataType::U16),
    (ElementType::UI32, DLDataType::U32),
    (ElementType::UI64, DLDataType::U64),
];

impl BufferView {
    /// This tensor for another library, without a copy: host memory that the managed tensor keeps
    /// alive, in the versioned ABI ([`dlpark::versioned::Dlpack`]) or the legacy one
    /// ([`dlpark::legacy::Dlpack`]) of `dlpark` 0.10.
    ///
    /// Integers without a sign of their own go out as signed; for unsigned ones, make a view that
    /// says so: `view.buffer().view(view.shape(), ElementType::UI8)`.
    ///
    /// The managed tensor is a handle as others are: while it is there,
    /// [nobody writes](crate::buffer#who-may-write) the memory in safe code. The other library keeps
    /// its own writes apart from reads, which nothing orders against those of calls.
    ///
    /// ```
    /// # #[cfg(feature = "link")] fn main() -> iree_rt::Result<()> {
    /// # let device = iree_rt::Instance::get()?.device("local-task")?;
    /// use iree_rt::BufferView;
    ///
    /// let out: dlpark::versioned::Dlpack = device.buffer_view(&[2, 2], &[1f32; 4])?.to_dlpack()?;
    /// assert_eq!(out.validate().unwrap().shape(), [2, 2]);
    /// // SAFETY: nobody else has the tensor.
    /// let back = unsafe { BufferView::from_dlpack(&device, out)? };
    /// assert_eq!(back.read::<f32>()?, [1.; 4]);
    /// # Ok(()) }
    /// # #[cfg(not(feature = "link"))] fn main() {}
    /// ```
    ///
    /// # Errors
    /// [`Unimplemented`](Code::Unimplemented) for memory that is not the host's and for element
    /// types that DLPack has no name for; [`PermissionDenied`](Code::PermissionDenied) for
    /// read-only memory in the legacy ABI, which cannot say so.
    pub fn to_dlpack<M: ManagedTensorBase>(&self) -> Result<Managed<M>> {
        let ty = self.element_type();
        let (_, dtype) = *TYPES.iter().find(|(known, _)| *known == ty).ok_or_else(|| {
            Error::new(Code::Unimplemented, format!("DLPack has no name for {ty}"))
        })?;
        if !self.device().is_local() {
            return Err(Error::new(
                Code::Unimplemented,
                "only tensors in host memory go out as DLPack; `Buffer::export` gives the address \
                 of others",
            ));
        }
        let data = match self.is_empty() {
            true => std::ptr::null_mut(),
            false => self.buffer().export(Memory::Host)?.address() as *mut u8,
        };
        let shape: Vec<i64> = self.shape().iter().map(|&dim| dim as i64).collect();
        let mut tensor = Dynamic::compact(&shape[..])
            .initialize_as::<M>(Box::new(self.clone()))
            .map_err(|error| Error::invalid(format!("{self:?} as DLPack: {error}")))?;
        tensor.set_data(data.cast()).set_dtype(dtype).set_device(DLDevice::CPU);
        let read_only = !self.buffer().is_writable();
        if read_only {
            tensor.set_flags(DlpackFlags::READ_ONLY).expect("the flag says nothing of copies");
        }
        // SAFETY: the view in the context keeps the dense, row-major data alive, and the flag says
        // whether it may be written.
        let tensor = unsafe { tensor.finish() };
        if read_only && !tensor.flags().contains(DlpackFlags::READ_ONLY) {
            return Err(Error::new(
                Code::PermissionDenied,
                "the tensor is in read-only memory, which the legacy ABI of DLPack cannot say: \
                 use the versioned one",
            ));
        }
        Ok(tensor)
    }

    /// A tensor of another library on `device`: without a copy when its memory starts at a multiple
    /// of [`ALIGNMENT`] bytes and the device is of the CPU, and then kept alive until the last
    /// handle is gone; else a copy. Read-only tensors stay read-only.
    ///
    /// `tensor` is of `dlpark` 0.10.
    ///
    /// Integers lose their sign, as modules declare them.
    ///
    /// # Errors
    /// [`InvalidArgument`](Code::InvalidArgument) for a damaged descriptor;
    /// [`Unimplemented`](Code::Unimplemented) for memory that is not the host's, a layout that is
    /// not dense and row-major, and element types that IREE does not have.
    ///
    /// # Safety
    /// The data is what the descriptor says, of its length, and nobody uses it while the tensor
    /// lives but with the care that buffers ask for.
    pub unsafe fn from_dlpack<M: ManagedTensorBase + 'static>(
        device: &Device,
        tensor: Managed<M>,
    ) -> Result<Self> {
        let invalid = |error| Error::invalid(format!("a DLPack tensor: {error}"));
        let unimplemented = |what| Err(Error::new(Code::Unimplemented, what));
        let descriptor = tensor.validate().map_err(invalid)?;
        if descriptor.device() != DLDevice::CPU {
            return unimplemented(format!(
                "a DLPack tensor in the memory of device type {}: only the CPU's comes in; \
                 `Buffer::import_device` takes addresses",
                descriptor.device().device_type.0
            ));
        }
        if !descriptor.is_compact().map_err(invalid)? {
            return unimplemented(format!(
                "a DLPack tensor with strides {:?} of shape {:?}: make it contiguous first",
                descriptor.strides().unwrap_or_default(),
                descriptor.shape()
            ));
        }
        let dtype = descriptor.dtype();
        let Some(&(ty, _)) = TYPES.iter().find(|(_, known)| *known == dtype) else {
            return unimplemented(format!("a DLPack tensor of {dtype:?}"));
        };
        let shape: Vec<usize> = descriptor.shape().iter().map(|&dim| dim as usize).collect();
        let bytes = descriptor.num_bytes();
        if bytes == 0 {
            return Buffer::allocate(device, 0)?.view(&shape, ty);
        }
        // SAFETY: by the contract of this function.
        let data = unsafe { descriptor.offset_bytes_ptr() }.map_err(invalid)?.cast_mut();
        let Some(data) = NonNull::new(data) else {
            return Err(Error::invalid("a DLPack tensor without data"));
        };
        if !device.is_local() || !(data.as_ptr() as usize).is_multiple_of(ALIGNMENT) {
            let mut copy = Buffer::allocate(device, bytes)?;
            // SAFETY: by the contract of this function, the data has as many bytes.
            copy.write(0, unsafe { std::slice::from_raw_parts(data.as_ptr(), bytes) })?;
            return copy.view(&shape, ty);
        }
        let access = match tensor.flags().contains(DlpackFlags::READ_ONLY) {
            true => sys::IREE_HAL_MEMORY_ACCESS_READ,
            false => sys::IREE_HAL_MEMORY_ACCESS_ALL,
        };
        // SAFETY: by the contract of this function, for as long as the tensor is not deleted.
        unsafe { import(device, data.as_ptr(), bytes, access, Box::new(tensor))? }.view(&shape, ty)
    }
}
