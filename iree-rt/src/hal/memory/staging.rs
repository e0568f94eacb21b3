//! Filling large buffers of any device piece by piece.

use std::fmt;
use std::ops::Range;

use iree_sys as sys;

use crate::base::error::{Code, Error, Result};
use crate::base::status::check;
use crate::hal::devices::device::Device;
use crate::hal::memory::buffer::{Buffer, Memory};
use crate::hal::memory::mapping::Mapping;
use crate::hal::sync::fence::Fence;
use crate::hal::sync::timeline::Timeline;

/// Bytes that are sent at a time, at least, but at the end.
const PIECE: usize = 16 << 20;

/// How many pieces there are: one is written while the others are on their way.
const PIECES: usize = 3;

/// Places in a piece have the remainder of their place in the buffer: alignment holds in both.
const ALIGNMENT: usize = 4096;

/// A new buffer of a device that is filled from its first byte to its last, through a little
/// memory of the host that the device reads by itself (pinned, on GPUs): while it copies one piece,
/// the next is written.
///
/// Where the device's memory is the host's, an [`Upload`](crate::Upload) needs no copy.
///
/// ```
/// # #[cfg(feature = "link")] fn main() -> iree_rt::Result<()> {
/// # let device = iree_rt::Instance::get()?.device("local-task")?;
/// let mut staging = iree_rt::Staging::new(&device, 12)?;
/// staging.next(4)?.copy_from_slice(&[1, 2, 3, 4]);
/// staging.next(8)?[7] = 5;
/// let buffer = staging.finish()?;
/// let mut bytes = [0; 12];
/// buffer.read_into(0, &mut bytes)?;
/// assert_eq!(bytes, [1, 2, 3, 4, 0, 0, 0, 0, 0, 0, 0, 5]);
/// # Ok(()) }
/// # #[cfg(not(feature = "link"))] fn main() {}
/// ```
pub struct Staging {
    target: Buffer,
    pieces: [Option<Piece>; PIECES],
    /// The one that is written.
    current: usize,
    /// Bytes handed out.
    filled: usize,
    /// Why a piece was not sent: the buffer has a hole for ever.
    failed: Option<Error>,
}

/// Memory of the host, on its way to the bytes `covers` of the target, or being written.
struct Piece {
    /// While it is written; dropped before the buffer.
    mapping: Option<Mapping>,
    memory: Buffer,
    covers: Range<usize>,
    /// Reached when the device has copied it.
    copied: Option<Fence>,
}

impl Staging {
    /// A buffer of `bytes` bytes on `device`, to be filled.
    ///
    /// # Errors
    /// [`ResourceExhausted`](Code::ResourceExhausted) when the device has no memory for it.
    pub fn new(device: &Device, bytes: usize) -> Result<Self> {
        let target = Buffer::allocate(device, bytes)?;
        Ok(Self { target, pieces: [const { None }; PIECES], current: 0, filled: 0, failed: None })
    }

    /// The place of the next `bytes` bytes, all zero. What was handed out before may be sent now.
    ///
    /// # Errors
    /// [`OutOfRange`](Code::OutOfRange) past the end; errors of copies that were sent, and of one
    /// that could not be, each time; [`ResourceExhausted`](Code::ResourceExhausted) when there is no
    /// memory for the piece.
    pub fn next(&mut self, bytes: usize) -> Result<&mut [u8]> {
        self.target.check_range(self.filled, bytes, "write")?;
        let fits = |piece: &Piece| piece.place(self.filled) + bytes <= piece.memory.byte_len();
        if !self.pieces[self.current].as_ref().is_some_and(|it| it.mapping.is_some() && fits(it)) {
            self.send()?;
            self.open(bytes)?;
        }
        let piece = self.pieces[self.current].as_mut().expect("opened just now");
        let start = piece.place(self.filled);
        self.filled += bytes;
        piece.covers.end = self.filled;
        let mapping = piece.mapping.as_mut().expect("opened just now");
        let place = &mut mapping.bytes_mut()[start..start + bytes];
        place.fill(0);
        Ok(place)
    }

    /// The buffer, when all of it is there.
    ///
    /// # Errors
    /// [`FailedPrecondition`](Code::FailedPrecondition) when it was not filled to its end; errors
    /// of copies that were sent, or could not be.
    pub fn finish(mut self) -> Result<Buffer> {
        if self.filled != self.target.byte_len() {
            let (filled, bytes) = (self.filled, self.target.byte_len());
            let what = format!("{filled} of {bytes} bytes of a buffer were filled");
            return Err(Error::new(Code::FailedPrecondition, what));
        }
        self.send()?;
        for piece in self.pieces.iter().flatten() {
            piece.wait()?;
        }
        Ok(self.target.clone())
    }

    /// Makes the next piece ready for `bytes` bytes or more.
    fn open(&mut self, bytes: usize) -> Result<()> {
        self.current = (self.current + 1) % PIECES;
        let slot = &mut self.pieces[self.current];
        if let Some(piece) = slot {
            piece.wait()?;
        }
        let needed = bytes + self.filled % ALIGNMENT;
        if slot.as_ref().is_none_or(|piece| piece.memory.byte_len() < needed) {
            *slot = None;
            let most = self.target.byte_len() - self.filled + self.filled % ALIGNMENT;
            let size = needed.max(PIECE.min(most));
            let memory = Buffer::allocate_in(self.target.device(), size, Memory::Host)?;
            *slot = Some(Piece { memory, covers: 0..0, mapping: None, copied: None });
        }
        let piece = slot.as_mut().expect("made just now");
        piece.covers = self.filled..self.filled;
        piece.copied = None;
        // SAFETY: nobody else has a handle of the memory, and the device has copied it.
        piece.mapping = Some(unsafe { Mapping::of(&piece.memory)? });
        Ok(())
    }

    /// Lets the device copy the piece that was being written, if there is one. Where that failed
    /// once it fails again: what was written is gone.
    fn send(&mut self) -> Result<()> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let sent = self.queue_copy();
        self.failed = sent.as_ref().err().cloned();
        sent
    }

    fn queue_copy(&mut self) -> Result<()> {
        let Some(piece) = &mut self.pieces[self.current] else { return Ok(()) };
        if piece.mapping.take().is_none() || piece.covers.is_empty() {
            return Ok(());
        }
        let device = self.target.device();
        let copied = Timeline::new(device, 0)?;
        let fence = copied.fence(1)?;
        let (mut semaphores, mut values) = ([copied.raw()], [1u64]);
        // SAFETY: device, buffers and semaphore are live; both ranges are inside. The device's
        // queue retains the buffers until it is done; until then, this holds them too.
        check(unsafe {
            sys::iree_hal_device_queue_copy(
                device.raw(),
                u64::MAX, // IREE_HAL_QUEUE_AFFINITY_ANY
                sys::iree_hal_semaphore_list_t::default(),
                sys::iree_hal_semaphore_list_t {
                    count: 1,
                    semaphores: semaphores.as_mut_ptr(),
                    payload_values: values.as_mut_ptr(),
                },
                piece.memory.raw(),
                piece.covers.start % ALIGNMENT,
                self.target.raw(),
                piece.covers.start,
                piece.covers.len(),
                0,
            )
        })
        .map_err(|error| error.context("copying a piece of a buffer"))?;
        piece.copied = Some(fence);
        Ok(())
    }
}

impl Piece {
    /// Where in the piece the byte `at` of the target is.
    fn place(&self, at: usize) -> usize {
        self.covers.start % ALIGNMENT + at - self.covers.start
    }

    fn wait(&self) -> Result<()> {
        self.copied.as_ref().map_or(Ok(()), |copied| copied.wait(None))
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        // What is on its way is read and written by the device.
        for piece in self.pieces.iter().flatten() {
            let _ = piece.wait();
        }
    }
}

impl fmt::Debug for Staging {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Staging({} bytes filled of {:?})", self.filled, self.target)
    }
}
