//! Filling large buffers in place.

use std::fmt;
use std::ops::{Deref, DerefMut};

use iree_sys as sys;
use memmap2::MmapMut;

use crate::base::error::{Code, Error, Result};
use crate::hal::devices::device::Device;
use crate::hal::memory::buffer::Buffer;
use crate::hal::memory::import::import;

/// From this size on, memory is laid out for huge pages, bytes.
const HUGE_PAGE: usize = 2 << 20;

/// Memory for a new buffer, to be filled as a `&mut [u8]` (all zero at first), then
/// [`finish`](Self::finish)ed.
///
/// On CPU devices this is the buffer's own memory, on huge pages where the system has them: a
/// weight is packed straight into it. On others it is host memory that `finish` sends to the
/// device. Parts of the slice may be filled by several threads.
///
/// ```
/// # #[cfg(feature = "link")] fn main() -> iree_rt::Result<()> {
/// # let device = iree_rt::Instance::get()?.device("local-task")?;
/// use iree_rt::{ElementType, Upload};
///
/// let mut upload = Upload::new(&device, 4 << 20)?;
/// std::thread::scope(|scope| {
///     for (number, part) in upload.chunks_mut(1 << 20).enumerate() {
///         scope.spawn(move || part.fill(number as u8));
///     }
/// });
/// let weights = upload.finish()?.view(&[4, 1 << 20], ElementType::UI8)?;
/// assert_eq!(weights.read_range::<u8>((1 << 20) - 1..(1 << 20) + 1)?, [0, 1]);
/// # Ok(()) }
/// # #[cfg(not(feature = "link"))] fn main() {}
/// ```
pub struct Upload {
    device: Device,
    map: Part,
}

/// The aligned part of a private mapping.
struct Part {
    map: MmapMut,
    start: usize,
    length: usize,
}

impl Upload {
    /// Memory for a buffer of `bytes` bytes on `device`.
    ///
    /// # Errors
    /// [`ResourceExhausted`](Code::ResourceExhausted) when the host has no memory for it.
    pub fn new(device: &Device, bytes: usize) -> Result<Self> {
        let map = Part::new(bytes).map_err(|error| {
            Error::new(
                Code::ResourceExhausted,
                format!("allocating {bytes} bytes of host memory: {error}"),
            )
        })?;
        Ok(Self { device: device.clone(), map })
    }

    /// The buffer, holding what was written.
    ///
    /// # Errors
    /// Allocation and transfer errors of the device.
    pub fn finish(self) -> Result<Buffer> {
        let Self { device, mut map } = self;
        if device.is_local() && map.length > 0 {
            let (pointer, length) = (map.as_mut().as_mut_ptr(), map.length);
            // SAFETY: the mapping is private to the buffer, which keeps it, and moving its
            // handle moves no byte of it.
            return unsafe {
                import(&device, pointer, length, sys::IREE_HAL_MEMORY_ACCESS_ALL, Box::new(map))
            };
        }
        let mut buffer = Buffer::allocate(&device, map.length)?;
        buffer.write(0, map.as_ref())?;
        Ok(buffer)
    }
}

impl Part {
    fn new(length: usize) -> std::io::Result<Self> {
        let huge = length >= HUGE_PAGE;
        let slack = if huge { HUGE_PAGE } else { 0 };
        let total = length
            .checked_add(slack)
            .ok_or_else(|| std::io::Error::from(std::io::ErrorKind::OutOfMemory))?;
        let map = MmapMut::map_anon(total.max(1))?;
        let start = if huge { map.as_ptr().align_offset(HUGE_PAGE) } else { 0 };
        #[cfg(target_os = "linux")]
        if huge {
            // Advice: systems without huge pages refuse, and nothing is lost.
            let _ = map.advise_range(memmap2::Advice::HugePage, start, length);
        }
        Ok(Self { map, start, length })
    }
}

impl AsRef<[u8]> for Part {
    fn as_ref(&self) -> &[u8] {
        &self.map[self.start..self.start + self.length]
    }
}

impl AsMut<[u8]> for Part {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.map[self.start..self.start + self.length]
    }
}

impl Deref for Upload {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.map.as_ref()
    }
}

impl DerefMut for Upload {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.map.as_mut()
    }
}

impl fmt::Debug for Upload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Upload({} bytes to {})", self.map.length, self.device.uri())
    }
}
