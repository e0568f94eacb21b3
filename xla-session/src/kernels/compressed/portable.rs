use super::super::LANES;
use super::super::portable::Portable;
use super::super::vector::Vector;
use super::decode::Decode;

/// The vector of these bits.
#[inline(always)]
unsafe fn floats(bits: [u32; LANES]) -> Portable {
    // SAFETY: sixteen of them.
    unsafe { Portable::load(bits.map(f32::from_bits).as_ptr()) }
}

impl Decode for Portable {
    type Exponents = [u8; 16];
    type Codes = [u32; LANES];

    #[inline(always)]
    unsafe fn exponents(from: *const u8) -> [u8; 16] {
        // SAFETY: the caller's promise.
        unsafe { from.cast::<[u8; 16]>().read() }
    }

    #[inline(always)]
    unsafe fn codes(from: *const u8) -> [u32; LANES] {
        // SAFETY: the caller's promise.
        unsafe { from.cast::<[u32; LANES]>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn pair(
        mantissas: *const u8,
        codes: [u32; LANES],
        i: usize,
        exponents: [u8; 16],
    ) -> Self::Integers {
        // SAFETY: the caller's promise.
        let mantissas = unsafe { mantissas.cast::<[[u8; 2]; LANES]>().read() };
        std::array::from_fn(|lane| {
            let [first, second] = [0, 1].map(|column| {
                let code = codes[lane] >> (16 * column + 4 * i) & 0xf;
                let mantissa = u32::from(mantissas[lane][column]);
                (mantissa & 0x80) << 8 | u32::from(exponents[code as usize]) << 7 | mantissa & 0x7f
            });
            (first | second << 16) as i32
        })
    }

    #[inline(always)]
    unsafe fn load_words(from: *const u8) -> Self::Integers {
        // SAFETY: the caller's promise.
        unsafe { from.cast::<[i32; LANES]>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn store_words(words: Self::Integers, to: *mut u8) {
        // SAFETY: the caller's promise.
        unsafe { to.cast::<[i32; LANES]>().write_unaligned(words) }
    }

    #[inline(always)]
    unsafe fn widen(pair: Self::Integers) -> [Self; 2] {
        // SAFETY: the caller's promise.
        unsafe {
            let pair = pair.map(|word| word as u32);
            [floats(pair.map(|word| word << 16)), floats(pair.map(|word| word & 0xffff_0000))]
        }
    }

    #[inline(always)]
    unsafe fn widen_with(pair: Self::Integers, lows: Self::Integers) -> [Self; 2] {
        // SAFETY: the caller's promise.
        unsafe {
            let join = |lane: usize| (pair[lane] as u32, lows[lane] as u32);
            let first = std::array::from_fn(|lane| {
                let (upper, low) = join(lane);
                upper << 16 | low & 0xffff
            });
            let second = std::array::from_fn(|lane| {
                let (upper, low) = join(lane);
                upper & 0xffff_0000 | low >> 16
            });
            [floats(first), floats(second)]
        }
    }
}
