//! The memory behind the pages of the KV cache, and what tells it from that of other processes.

use std::fmt::Debug;
use std::time::UNIX_EPOCH;

use iree_rt::{Buffer, Device};

use super::{Found, iree, weights};
use crate::Result;
use crate::cache::Key;
use crate::emit::WeightSpec;
use crate::pages::PageCopy;

/// What tells the pages of a model with the weights `specs` from those of all others: everything that their
/// bits depend on but the tokens. `how` is what its steps depend on beside the processor; how many threads
/// run them is nothing of that. `None` where the system does not say when the model's files, or this
/// program's, were last changed.
pub(super) fn identity(found: &Found, specs: &[WeightSpec], how: &dyn Debug) -> Option<Key> {
    let program = std::env::current_exe().ok()?.metadata().ok()?;
    let built = program.modified().ok()?.duration_since(UNIX_EPOCH).ok()?;
    let codes: Vec<_> = found.machine.codes.iter().map(|it| it.name.as_str()).collect();
    let parts = [
        "pages".into(),
        format!("{} {} {}", iree_rt::IREE_VERSION, program.len(), built.as_nanos()),
        format!("{:?}", found.config),
        weights::key(&found.checkpoint, specs)?.to_string(),
        // What is rounded to bf16 meets the bytes that `stored` meets, and other activations.
        format!("{:?}", found.formats),
        format!("{codes:?} {how:?}"),
    ];
    Some(Key::of(parts.iter().map(String::as_bytes)))
}

/// Memory of pages: of each as many bytes as of any other.
pub(super) struct Pages {
    pub buffer: Buffer,
    page_bytes: usize,
}

impl Pages {
    /// Room for `pages` pages of `page_bytes` bytes.
    pub fn allocate(device: &Device, pages: usize, page_bytes: usize) -> iree_rt::Result<Self> {
        Ok(Self { buffer: Buffer::allocate(device, pages * page_bytes)?, page_bytes })
    }

    /// Copies a page of each of `all`, which are an executor's, which has no step in flight.
    pub fn copy<'a>(all: impl IntoIterator<Item = &'a Self>, copy: PageCopy) -> Result<()> {
        for Self { buffer, page_bytes } in all {
            let [from, to] = [copy.from, copy.to].map(|page| page as usize * page_bytes);
            // SAFETY: nobody but the executor has them, and no step of it is in flight: nobody reads a page
            // that was just taken.
            let copied = unsafe { buffer.copy_from_unchecked(to, buffer, from, *page_bytes) };
            copied.map_err(iree("copying a page of the KV cache"))?;
        }
        Ok(())
    }

    /// Fills `data` with page `page` of each of `all`.
    pub fn read<'a>(
        all: impl IntoIterator<Item = &'a Self>,
        page: u32,
        mut data: &mut [u8],
    ) -> Result<()> {
        for Self { buffer, page_bytes } in all {
            let (part, rest) = data.split_at_mut(*page_bytes);
            let read = buffer.read_into(page as usize * page_bytes, part);
            read.map_err(iree("reading a page of the KV cache"))?;
            data = rest;
        }
        Ok(())
    }

    /// Fills page `page` of each of `all` with `data`. They are an executor's, which has no step in flight.
    pub fn write<'a>(
        all: impl IntoIterator<Item = &'a Self>,
        page: u32,
        mut data: &[u8],
    ) -> Result<()> {
        for Self { buffer, page_bytes } in all {
            let (part, rest) = data.split_at(*page_bytes);
            // SAFETY: nobody but the executor has them, and no step of it is in flight.
            let written = unsafe { buffer.write_unchecked(page as usize * page_bytes, part) };
            written.map_err(iree("writing a page of the KV cache"))?;
            data = rest;
        }
        Ok(())
    }
}
