use super::super::LANES;
use super::super::portable::Portable;
use super::super::vector::Vector;
use super::decode::Decode;

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
    unsafe fn column(pair: Self::Integers, lows: Option<Self::Integers>, i: usize) -> Self {
        let lows = lows.unwrap_or([0; LANES]);
        let column: [f32; LANES] = std::array::from_fn(|lane| {
            let (pair, lows) = (pair[lane] as u32, lows[lane] as u32);
            f32::from_bits(match i {
                0 => pair << 16 | lows & 0xffff,
                _ => pair & 0xffff_0000 | lows >> 16,
            })
        });
        // SAFETY: sixteen of them.
        unsafe { Self::load(column.as_ptr()) }
    }
}
