//! What a product is called with.

/// The operands of one call: rows of `x` times a run of consecutive blocks of one weight matrix.
///
/// No alignment beyond that of the element types is needed; weights that start at a multiple of
/// 64 bytes are read fastest.
#[derive(Clone, Copy, Debug)]
pub struct Product {
    /// The first block of the run.
    pub weights: *const u8,
    /// For compressed weights, the byte offset of each block of the run from `weights`, which then
    /// is the matrix's first byte; not read otherwise.
    pub index: *const u64,
    /// `[rows, columns]` f32, or bfloat16 for [`Format::Bf16Rounded`](crate::Format::Bf16Rounded), dense;
    /// for integers rows of [`rounded_bytes`](crate::rounded_bytes) as [`round_row`](crate::round_row)
    /// leaves them for `used` rows together. Only these are read.
    pub x: *const u8,
    /// `[rows, stride]`; element (0, 0) is lane 0 of the run's first block.
    pub y: *mut f32,
    /// Rows of `x` and `y`.
    pub rows: usize,
    /// Rows that are wanted, at most `rows`; the others become 0.0 in `y` without being computed.
    pub used: usize,
    /// Columns of `x`, unpadded.
    pub columns: usize,
    /// Blocks in the run.
    pub blocks: usize,
    /// Elements between rows of `y`, at least `blocks * 16`.
    pub stride: usize,
}

/// A kernel for one format and instruction set.
///
/// # Safety
///
/// This CPU has the instruction set, as [`Isa::all_here`](crate::Isa::all_here) has said before; every pointer of the [`Product`] is valid for the shape that
/// its field states in the kernel's format, and nothing else accesses the `[rows, blocks * 16]`
/// elements of `y` during the call.
pub type Kernel = unsafe fn(&Product);
