//! The one vector type that the algorithm knows: sixteen f32, a column of a block.

use super::format::{StoredFormat, Widen};
use super::tile::Tile;

/// Sixteen f32 in the registers of one instruction set, and the tables that depend on how many
/// registers there are.
///
/// # Safety
///
/// Every method needs a CPU with the instruction set, and pointers valid for the sixteen
/// elements named. All are `#[inline(always)]`, to be compiled with the instruction set enabled
/// in the function that they end up in; [`run`](Vector::run) and [`widen`](Vector::widen) are
/// those functions.
pub(super) trait Vector: Copy {
    /// Rows of `x` in the largest tile.
    const ROWS: usize;
    /// Up to this many rows, integers are widened in registers for each tile; above, once into
    /// panels.
    const FEW: usize;
    /// Columns of a panel, a multiple of 32.
    const PANEL_COLUMNS: usize;
    /// Blocks that are widened together.
    const PANEL_BLOCKS: usize;
    /// Whether [`nibble`](Vector::nibble) leaves nibbles where they are.
    const NIBBLES_IN_PLACE: bool;

    unsafe fn splat(value: f32) -> Self;
    unsafe fn load(from: *const f32) -> Self;
    unsafe fn store(self, to: *mut f32);
    unsafe fn mul(self, by: Self) -> Self;
    /// `self * by + plus`.
    unsafe fn mul_add(self, by: Self, plus: Self) -> Self;
    unsafe fn load_bf16(from: *const u8) -> Self;
    unsafe fn load_f16(from: *const u8) -> Self;
    unsafe fn load_i8(from: *const u8) -> Self;
    /// Nibble `i`, a constant after inlining, of sixteen u32: `q`, or in place
    /// `(q + 8) / nibble_factor(i)`.
    unsafe fn nibble(from: *const u8, i: usize) -> Self;
    unsafe fn prefetch(at: *const u8);
    /// The same value, which the compiler must have here before it does anything that follows.
    /// Loads that it moves ahead would take the registers that hold sums.
    unsafe fn pin(self) -> Self;

    /// Runs [`Tile::run`] for `rows` rows, `1..=ROWS`, with as many blocks at a time as the
    /// registers hold.
    unsafe fn run<F: StoredFormat>(rows: usize, tile: &Tile);
    /// Runs [`Widen::run`].
    unsafe fn widen<F: StoredFormat>(widen: &Widen);
}

/// What a nibble left in place must be multiplied with. The top one is always shifted down,
/// which spares a sign.
#[inline(always)]
pub(super) const fn nibble_factor(i: usize) -> f32 {
    if i == 7 { 1.0 } else { 1.0 / (1 << (4 * i)) as f32 }
}
