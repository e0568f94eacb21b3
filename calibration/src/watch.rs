//! Who watches a run, and may end it.

use std::ops::ControlFlow;

use crate::{Error, Result};

/// Of the weights of a layer's matrices: how many were rounded since the last time, which may be none.
pub type Watch<'a> = &'a mut dyn FnMut(u64) -> ControlFlow<()>;

/// Goes on, unless who watches wants no more of it.
pub(crate) fn go_on(watch: Watch, rounded: u64) -> Result<()> {
    if watch(rounded).is_break() { Err(Error::Stopped) } else { Ok(()) }
}
