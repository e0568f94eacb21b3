//! Transfers that block no thread: reads and writes as futures.

use std::future::{Future, poll_fn};
use std::ops::Range;
use std::task::{Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use bytemuck::NoUninit;
use iree_sys as sys;

use crate::base::error::Result;
use crate::hal::memory::buffer::Buffer;
use crate::hal::memory::buffer::length;
use crate::hal::memory::buffer_view::BufferView;
use crate::hal::memory::element::Element;
use crate::hal::memory::exclusive::{LOOKS, PUT_AWAY, SHORTLY};
use crate::hal::sync::host_call;

impl Buffer {
    /// Reads the bytes of `range` without blocking: see [`BufferView::read_async`].
    ///
    /// # Errors
    /// As [`read_into`](Self::read_into), and as [`subspan`](Self::subspan).
    pub fn read_async(
        &self,
        range: Range<usize>,
    ) -> impl Future<Output = Result<Vec<u8>>> + Send + use<> {
        let buffer = self.clone();
        async move {
            let length = length(&range)?;
            buffer.check_range(range.start, length, "read")?;
            transfer(buffer.clone(), move || {
                let mut bytes = vec![0; length];
                buffer.read_into(range.start, &mut bytes)?;
                Ok(bytes)
            })
            .await
        }
    }

    /// Writes `data` to the bytes from `offset` on without blocking: see
    /// [`BufferView::write_async`].
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub async fn write_async<T, D>(mut self, offset: usize, data: D) -> Result<Self>
    where
        T: NoUninit,
        D: AsRef<[T]> + Send + 'static,
    {
        self.check_write(offset, size_of_val(data.as_ref()), "write")?;
        soon(|| self.exclusive(Duration::ZERO)).await?;
        let target = Self::clone(&self);
        transfer(target, move || {
            // SAFETY: this was the only handle, and nobody has been given another.
            unsafe { self.write_unchecked(offset, data.as_ref())? };
            Ok(self)
        })
        .await
    }
}

impl BufferView {
    /// Reads all elements without blocking: a worker of the device copies them, of a GPU a thread, and wakes whoever
    /// awaits that, on any executor. (`local-sync` has no workers: polling copies them.)
    ///
    /// Nothing happens before the future is polled. Dropping it changes nothing for the tensor.
    /// Until the copy is done it is a [handle](crate::buffer#who-may-write) of the tensor, whether
    /// it was dropped or not: nobody writes what it reads.
    ///
    /// ```
    /// # #[cfg(feature = "link")] fn main() -> iree_rt::Result<()> {
    /// # let device = iree_rt::Instance::get()?.device("local-task")?;
    /// let tensor = device.buffer_view(&[3], &[1f32, 2., 3.])?;
    /// pollster::block_on(async {
    ///     let tensor = tensor.write_async(1, vec![5f32]).await?;
    ///     assert_eq!(tensor.read_async::<f32>().await?, [1., 5., 3.]);
    ///     Ok(())
    /// })
    /// # }
    /// # #[cfg(not(feature = "link"))] fn main() {}
    /// ```
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn read_async<T: Element>(&self) -> impl Future<Output = Result<Vec<T>>> + Send + use<T> {
        let view = self.clone();
        async move {
            view.check_type::<T>()?;
            transfer(view.buffer(), move || view.read()).await
        }
    }

    /// Replaces the elements from the `start`-th on by `data` without blocking, and gives the
    /// tensor back when that is done.
    ///
    /// As [`read_async`](Self::read_async), but that it takes the only handle to the tensor: so
    /// nobody reads it while it is written, also when the future is dropped, and the tensor with
    /// it.
    ///
    /// # Errors
    /// As [`write`](Self::write). The handle is dropped.
    pub async fn write_async<T, D>(mut self, start: usize, data: D) -> Result<Self>
    where
        T: Element,
        D: AsRef<[T]> + Send + 'static,
    {
        self.check_write::<T>(start, data.as_ref().len())?;
        soon(|| self.exclusive(Duration::ZERO)).await?;
        transfer(self.buffer(), move || {
            let buffer = self.buffer();
            // SAFETY: this was the only handle, and nobody has been given another.
            unsafe { buffer.write_unchecked(start * size_of::<T>(), data.as_ref())? };
            Ok(self)
        })
        .await
    }
}

/// Runs `copy`, of or to `buffer`, beside whoever awaits it.
async fn transfer<T: Send + 'static>(
    buffer: Buffer,
    copy: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let device = buffer.device().clone();
    // Memory that cannot be mapped is copied by the queue itself, for which its workers would wait.
    let waits = device.is_local() && !is_mappable(&buffer);
    drop(buffer);
    if waits { copy() } else { host_call::run(device, copy).await }
}

fn is_mappable(buffer: &Buffer) -> bool {
    // SAFETY: the buffer is live.
    let (usage, memory) = unsafe {
        let raw = buffer.raw();
        (sys::iree_hal_buffer_allowed_usage(raw), sys::iree_hal_buffer_memory_type(raw))
    };
    // As IREE's transfers ask (iree/hal/buffer_transfer.c).
    usage & sys::IREE_HAL_BUFFER_USAGE_MAPPING_SCOPED != 0
        && memory & sys::IREE_HAL_MEMORY_TYPE_HOST_VISIBLE != 0
}

/// Asks again, giving way to other tasks, until it is so, or a device has had the time to put away a
/// call that has returned.
///
/// No callback tells of a handle that goes. After a moment a thread wakes the task instead of the
/// task itself, which would keep a core busy: each time a quarter later than it is then, so that there
/// are few such threads.
async fn soon(mut ask: impl FnMut() -> Result<()>) -> Result<()> {
    let asked = Instant::now();
    let mut looks = LOOKS;
    let mut alarm: Option<(Instant, Waker)> = None;
    poll_fn(|context| {
        let answer = ask();
        let (now, waker) = (Instant::now(), context.waker());
        let waited = now - asked;
        let rang = alarm.as_ref().is_some_and(|(at, _)| *at <= now);
        looks = looks.saturating_sub(rang.into());
        if answer.is_ok() || (waited >= PUT_AWAY && looks == 0) {
            return Poll::Ready(answer);
        }
        if waited < SHORTLY {
            waker.wake_by_ref();
        } else if rang || alarm.as_ref().is_none_or(|(_, set)| !set.will_wake(waker)) {
            // Whoever waits now is woken when the one before would have been.
            let pause = match alarm.as_ref().filter(|_| !rang) {
                Some((at, _)) => *at - now,
                None => (waited / 4).min(PUT_AWAY / 10),
            };
            alarm = Some((now + pause, waker.clone()));
            let later = waker.clone();
            let wake = move || {
                thread::sleep(pause);
                later.wake();
            };
            if thread::Builder::new().name("iree-rt-alarm".into()).spawn(wake).is_err() {
                alarm = None;
                looks = looks.saturating_sub(1);
                waker.wake_by_ref();
            }
        }
        Poll::Pending
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::error::Error;

    #[test]
    fn asking_again_leaves_the_core_to_others() {
        let start = Instant::now();
        let mut asked = 0;
        let answer = pollster::block_on(soon(|| {
            asked += u32::from(start.elapsed() > 10 * SHORTLY);
            Err(Error::invalid("not yet"))
        }));
        assert!(answer.is_err() && start.elapsed() >= PUT_AWAY);
        assert!((1..2 * LOOKS).contains(&asked), "asked {asked} times");
    }

    #[test]
    fn what_is_so_later_is_found() {
        let start = Instant::now();
        let later = PUT_AWAY / 4;
        let ask = || match start.elapsed() >= later {
            true => Ok(()),
            false => Err(Error::invalid("not yet")),
        };
        pollster::block_on(soon(ask)).unwrap();
    }

    #[test]
    fn a_stalled_process_is_given_time_after_the_limit() {
        let mut asked = 0;
        let ask = || {
            asked += 1;
            if asked == 1 {
                thread::sleep(2 * PUT_AWAY);
            }
            if asked == 10 { Ok(()) } else { Err(Error::invalid("not yet")) }
        };
        pollster::block_on(soon(ask)).unwrap();
    }
}
