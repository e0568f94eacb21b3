//! The one vector type that the algorithm knows: sixteen f32, a column of a block.

/// Sixteen f32 in the registers of one instruction set, sixteen i32, and the tables that depend on
/// how many registers there are.
///
/// # Safety
///
/// Every method needs a CPU with the instruction set, and pointers valid for the elements named.
/// All but the last three are `#[inline(always)]`, to be compiled with the instruction set enabled
/// in [`enter`](Vector::enter).
pub(super) trait Vector: Copy {
    /// Sixteen i32, or sixteen pairs of i16, in whatever order suits [`add_products`](Vector::add_products).
    type Integers: Copy;
    /// Rows of `x` in the largest tile.
    const ROWS: usize;
    /// Rows of `x` that an instruction takes.
    const TOGETHER: usize = 1;
    /// For tiles of one to four rows the fewest bits of a weight with which they wait for memory: the CPU's own
    /// prefetching is then the faster one, and ours takes its places in the queue to the L1 cache. Others multiply for
    /// longer than it takes to read what comes next.
    const WAITING: [usize; 4] = [usize::MAX; 4];

    unsafe fn splat(value: f32) -> Self;
    unsafe fn load(from: *const f32) -> Self;
    unsafe fn store(self, to: *mut f32);
    unsafe fn mul(self, by: Self) -> Self;
    /// `self * by + plus`.
    unsafe fn mul_add(self, by: Self, plus: Self) -> Self;
    unsafe fn add(self, other: Self) -> Self;
    /// The larger of each two, `other` where one is not a number.
    unsafe fn max(self, other: Self) -> Self;
    /// The largest of the sixteen.
    unsafe fn largest(self) -> f32;
    /// 2 to the power of each whole number in -126..=127, given plus `1.5 * 2^23`; 0 for -127.
    unsafe fn power_of_two(self) -> Self;
    unsafe fn load_bf16(from: *const u8) -> Self;
    unsafe fn load_f16(from: *const u8) -> Self;
    unsafe fn load_u8(from: *const u8) -> Self;
    #[inline(always)]
    unsafe fn load_i8(from: *const u8) -> Self {
        // SAFETY: the caller's promise.
        unsafe { Self::from_i32(Self::widen_i8(from)) }
    }
    unsafe fn prefetch(at: *const u8);
    /// Whether this CPU is faster with our prefetching, also of what [waits](Vector::WAITING).
    #[inline(always)]
    fn is_helped() -> bool {
        false
    }
    /// Prefetches weights of so many `bits` each that `rows` rows meet together, unless these [wait](Vector::WAITING) and
    /// are [not helped](Vector::is_helped).
    #[inline(always)]
    unsafe fn prefetch_weights(at: *const u8, bits: usize, rows: usize) {
        if !(1..=4).contains(&rows) || bits < Self::WAITING[rows - 1] || Self::is_helped() {
            // SAFETY: the caller's promise.
            unsafe { Self::prefetch(at) }
        }
    }
    /// The same value, which the compiler must have here before it does anything that follows.
    /// Loads that it moves ahead would take the registers that hold sums.
    unsafe fn pin(self) -> Self;

    unsafe fn splat_i32(value: i32) -> Self::Integers;
    /// Of sixteen words of four i8 each the second and the fourth, or the first and the third, as pairs.
    unsafe fn pairs_i8(from: *const u8, odd: bool) -> Self::Integers;
    /// The bits `mask` of sixteen u32 that were shifted right by `shift`, or left where it is negative, as
    /// pairs; it is a constant after inlining, and no bit of the mask is one of the other half of a word.
    unsafe fn bits(from: *const u8, shift: isize, mask: i32) -> Self::Integers;
    /// Sixteen words.
    unsafe fn load_i32(from: *const u8) -> Self::Integers;
    unsafe fn store_i32(integers: Self::Integers, to: *mut u8);
    /// Each i16 less that of `other`.
    unsafe fn subtract_pairs(pairs: Self::Integers, other: Self::Integers) -> Self::Integers;
    /// Each i16 times the number of its lane among `by`, of which there are the low 16 bits.
    unsafe fn multiply_pairs(pairs: Self::Integers, by: Self::Integers) -> Self::Integers;
    unsafe fn or(a: Self::Integers, b: Self::Integers) -> Self::Integers;
    /// Each i16, which is below 16, replaced by a byte of `table`.
    #[inline(always)]
    unsafe fn look_up(pairs: Self::Integers, table: &[u8; 16]) -> Self::Integers {
        let mut words = [0u32; 16];
        // SAFETY: the caller's promise; there is room for sixteen words.
        unsafe {
            Self::store_i32(pairs, words.as_mut_ptr().cast());
            for word in &mut words {
                let of = |index: u32| u32::from(table[index as usize & 15]);
                *word = of(*word) | of(*word >> 16) << 16;
            }
            Self::load_i32(words.as_ptr().cast())
        }
    }
    /// Adds to each sum both products of its two pairs.
    unsafe fn add_products(
        sums: Self::Integers,
        pairs: Self::Integers,
        x: Self::Integers,
    ) -> Self::Integers;
    unsafe fn from_i32(integers: Self::Integers) -> Self;
    /// The bits `mask` of sixteen u32 that were shifted right by `shift`, as i32.
    #[inline(always)]
    unsafe fn numbers(from: *const u8, shift: usize, mask: i32) -> Self::Integers {
        // SAFETY: the caller's promise.
        unsafe { Self::bits(from, shift as isize, mask) }
    }
    /// Sixteen i8, as i32.
    unsafe fn widen_i8(from: *const u8) -> Self::Integers;
    /// Sums of i32, which wrap around.
    unsafe fn add_i32(a: Self::Integers, b: Self::Integers) -> Self::Integers;
    /// Products of i32, which wrap around.
    unsafe fn multiply_i32(a: Self::Integers, b: Self::Integers) -> Self::Integers;
    /// As [`pin`](Vector::pin).
    unsafe fn pin_i32(integers: Self::Integers) -> Self::Integers;

    /// Runs a tile of one row, with as many blocks at a time as the registers hold.
    unsafe fn run_one<T: Tile<Self>>(tile: &T);
    /// As [`run_one`](Vector::run_one), of `rows` rows, `1..=ROWS`.
    unsafe fn run<T: Tile<Self>>(rows: usize, tile: &T);
    /// Runs `job` with the instruction set enabled.
    unsafe fn enter<J: Job<Self>>(job: &J);
}

/// What is compiled for each instruction set.
pub(super) trait Job<V: Vector> {
    /// # Safety
    ///
    /// As for [`Vector`].
    unsafe fn run(&self);
}

/// Rows of `x` times a run of blocks.
pub(super) trait Tile<V: Vector>: Copy {
    /// Most blocks of a run.
    const BLOCKS: usize = usize::MAX;

    /// Blocks of the run.
    fn blocks(&self) -> usize;

    /// Multiplies `M` rows with `R` blocks from `block` on, each `step` behind the one before.
    ///
    /// # Safety
    ///
    /// As for [`Vector`], every pointer being valid for the shapes stated.
    unsafe fn multiply<const R: usize, const M: usize>(&self, block: usize, step: usize);

    /// Multiplies `M` rows with the blocks from `block` on, of which there are few.
    ///
    /// # Safety
    ///
    /// As for [`multiply`](Tile::multiply).
    #[inline(always)]
    unsafe fn rest<const M: usize>(&self, block: usize) {
        for block in block..self.blocks() {
            // SAFETY: the caller's promise.
            unsafe { self.multiply::<1, M>(block, 1) }
        }
    }
}
