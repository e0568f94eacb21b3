//! Signals: what makes a fence of the host's reached.

use std::fmt;

use crate::base::error::{Code, Error, Result};
use crate::hal::devices::device::Device;
use crate::hal::sync::fence::Fence;
use crate::hal::sync::timeline::Timeline;

impl Fence {
    /// A fence for work of `device` that is reached when the host says so.
    ///
    /// # Errors
    /// When memory runs out.
    pub fn new(device: &Device) -> Result<(Signal, Self)> {
        let timeline = Timeline::new(device, 0)?;
        let fence = timeline.fence(1)?;
        Ok((Signal { timeline, settled: false }, fence))
    }
}

/// What makes a [`Fence`] reached, once; made by [`Fence::new`].
///
/// Dropped unused, it fails the fence with [`Code::Cancelled`].
#[must_use = "dropping it fails the fence"]
pub struct Signal {
    timeline: Timeline,
    settled: bool,
}

impl Signal {
    /// The fence is reached.
    ///
    /// # Errors
    /// None in practice.
    pub fn signal(mut self) -> Result<()> {
        self.settled = true;
        self.timeline.signal(1)
    }

    /// The fence fails: what waits for it, and what waits for that, fails with `error` too.
    pub fn fail(mut self, error: &Error) {
        self.settled = true;
        self.timeline.fail(error);
    }
}

impl Drop for Signal {
    fn drop(&mut self) {
        if !self.settled {
            let why = "the signal of a fence was dropped, so that it cannot be reached";
            self.timeline.fail(&Error::new(Code::Cancelled, why));
        }
    }
}

impl fmt::Debug for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Signal")
    }
}
