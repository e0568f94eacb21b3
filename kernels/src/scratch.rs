//! Memory that a thread keeps between calls: worker stacks are too small for it.

use std::cell::RefCell;

/// A cache line, the alignment of all scratch.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([f32; 16]);

thread_local! {
    static SCRATCH: RefCell<Vec<Line>> = const { RefCell::new(Vec::new()) };
}

/// Calls `with` with at least `len` f32, left from earlier calls and aligned to 64 bytes.
pub(super) fn with_scratch<T>(len: usize, with: impl FnOnce(*mut f32) -> T) -> T {
    SCRATCH.with_borrow_mut(|lines| {
        let needed = len.div_ceil(16);
        if lines.len() < needed {
            lines.resize(needed, Line([0.0; 16]));
        }
        with(lines.as_mut_ptr().cast())
    })
}
