//! Pages of the KV cache as bytes, for other processes.

use std::fmt::Debug;
use std::time::UNIX_EPOCH;

use iree_rt::Buffer;

use super::{Found, iree, weights};
use crate::Result;
use crate::cache::Key;
use crate::emit::WeightSpec;

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

/// Fills `data` with page `page` of `buffers`, which have `bytes` bytes of each page.
pub(super) fn read<'a>(
    buffers: impl IntoIterator<Item = &'a Buffer>,
    bytes: usize,
    page: u32,
    data: &mut [u8],
) -> Result<()> {
    for (buffer, data) in buffers.into_iter().zip(data.chunks_exact_mut(bytes)) {
        let read = buffer.read_into(page as usize * bytes, data);
        read.map_err(iree("reading a page of the KV cache"))?;
    }
    Ok(())
}

/// Fills page `page` of `buffers` with `data`. They are an executor's, which has no step in flight.
pub(super) fn write<'a>(
    buffers: impl IntoIterator<Item = &'a Buffer>,
    bytes: usize,
    page: u32,
    data: &[u8],
) -> Result<()> {
    for (buffer, data) in buffers.into_iter().zip(data.chunks_exact(bytes)) {
        // SAFETY: nobody but the executor has them, and no step of it is in flight.
        let written = unsafe { buffer.write_unchecked(page as usize * bytes, data) };
        written.map_err(iree("writing a page of the KV cache"))?;
    }
    Ok(())
}
