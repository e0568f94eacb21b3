use super::super::LANES;
use super::super::portable::Portable;
use super::super::vector::Vector;
use super::block::{CODES, LOWERS, Place};
use super::decode::Decode;

impl Decode for Portable {
    type Uppers = [u8; 16];

    #[inline(always)]
    unsafe fn uppers(from: *const u8) -> [u8; 16] {
        // SAFETY: the caller's promise.
        unsafe { from.cast::<[u8; 16]>().read() }
    }

    #[inline(always)]
    unsafe fn pairs(group: *const u8, i: usize, uppers: [u8; 16]) -> [Self::Integers; 2] {
        // SAFETY: the caller's promise.
        let (lowers, codes) = unsafe {
            (
                group.add(i * CODES).cast::<[u8; CODES]>().read(),
                group.add(LOWERS).cast::<[u8; CODES]>().read(),
            )
        };
        [0, 1].map(|of_half| {
            std::array::from_fn(|lane| {
                let [first, second] = [0, 1].map(|column| {
                    let place = Place::of((i * 4 + of_half * 2 + column) * LANES + lane).code();
                    let code = codes[place] >> (i * 4) & 0xf;
                    u16::from_le_bytes([lowers[place], uppers[usize::from(code)]])
                });
                (u32::from(first) | u32::from(second) << 16) as i32
            })
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
