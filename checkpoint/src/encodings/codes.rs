//! Where integers of a few bits lie in a tensor.

/// How the integers of a matrix lie in the bytes of a tensor, all little-endian.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Codes {
    pub order: Order,
    /// Whether what lies there is the matrix with rows and columns swapped.
    pub swapped: bool,
    /// Numbers (bytes of [`Order::Stream`]) from one row of the tensor to the next.
    pub stride: usize,
    pub bits: u32,
}

/// In which order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// A row is its columns' bits one after the other.
    Stream,
    /// A word of 32 bits has consecutive rows of one column, the first in the lowest bits.
    Down,
    /// A word of 32 bits has eight columns of a row, those with even numbers in its lower half.
    EvenFirst,
    /// A byte has two columns of a row, the first in its upper half.
    HighFirst,
    /// A byte each, with a sign.
    Signed,
    /// A byte each: a float of four bits of exponent and three of mantissa (OCP E4M3).
    E4m3,
}

impl Codes {
    /// Those that lie row by row, for rows of `row_bytes`.
    pub fn stream(bits: u32, row_bytes: usize) -> Self {
        Self { order: Order::Stream, swapped: false, stride: row_bytes, bits }
    }

    /// A byte each.
    pub fn bytes(order: Order, columns: usize) -> Self {
        Self { order, swapped: false, stride: columns, bits: 8 }
    }

    /// The number at `row` and `column`.
    pub fn at(self, bytes: &[u8], row: usize, column: usize) -> f32 {
        let mut out = [0.0];
        self.read(bytes, row, column, &mut out);
        out[0]
    }

    /// The numbers of row `row` from `column` on.
    pub fn read(self, bytes: &[u8], row: usize, column: usize, out: &mut [f32]) {
        let Self { bits, stride, swapped, .. } = self;
        let mask = u32::MAX >> (32 - bits);
        let word = |number: usize| u32::from_le_bytes(bytes.as_chunks().0[number]);
        let place = |i: usize| if swapped { (column + i, row) } else { (row, column + i) };
        match self.order {
            Order::Stream => each(out, |i| {
                let (row, column) = place(i);
                let bit = column * bits as usize;
                let byte = row * stride + bit / 8;
                let upper = bytes.get(byte + 1).copied().unwrap_or(0);
                (u32::from(u16::from_le_bytes([bytes[byte], upper])) >> (bit % 8) & mask) as f32
            }),
            Order::Down => {
                let of_word = (32 / bits) as usize;
                each(out, |i| {
                    let (row, column) = place(i);
                    let shift = (row % of_word) as u32 * bits;
                    (word(row / of_word * stride + column) >> shift & mask) as f32
                });
            }
            Order::EvenFirst => each(out, |i| {
                let (row, column) = place(i);
                let nibble = column % 8 / 2 + column % 2 * 4;
                (word(row * stride + column / 8) >> (4 * nibble as u32) & mask) as f32
            }),
            Order::HighFirst => each(out, |i| {
                let (row, column) = place(i);
                let both = u32::from(bytes[row * stride + column / 2]);
                (both >> (4 * (1 - column % 2)) & mask) as f32
            }),
            Order::Signed => each(out, |i| {
                let (row, column) = place(i);
                f32::from(bytes[row * stride + column] as i8)
            }),
            Order::E4m3 => each(out, |i| {
                let (row, column) = place(i);
                E4M3[usize::from(bytes[row * stride + column])]
            }),
        }
    }
}

fn each(out: &mut [f32], number: impl Fn(usize) -> f32) {
    for (i, out) in out.iter_mut().enumerate() {
        *out = number(i);
    }
}

/// What every byte is as a float of E4M3, which has no infinities.
static E4M3: [f32; 256] = {
    let mut values = [0.0; 256];
    let mut code = 0;
    while code < 256 {
        let sign = if code < 128 { 1.0 } else { -1.0 };
        let (exponent, mantissa) = (code as u32 >> 3 & 15, code as u32 & 7);
        // Of 2^-9, the smallest one.
        let unit = f32::from_bits((127 - 9) << 23);
        values[code] = match (exponent, mantissa) {
            (15, 7) => f32::NAN,
            (0, mantissa) => sign * mantissa as f32 * unit,
            (exponent, mantissa) => sign * ((8 + mantissa) << (exponent - 1)) as f32 * unit,
        };
        code += 1;
    }
    values
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_may_cross_bytes() {
        let codes = Codes::stream(3, 3);
        let bits = (0..8).fold(0u32, |bits, i| bits | i << (3 * i));
        let bytes = bits.to_le_bytes();
        for column in 0..8 {
            assert_eq!(codes.at(&bytes[..3], 0, column), column as f32);
        }
    }

    #[test]
    fn floats_of_eight_bits_are_those_of_their_standard() {
        for (code, value) in [
            (0x00, 0.0),
            (0x01, 0.001953125),
            (0x08, 0.015625),
            (0x38, 1.0),
            (0x7e, 448.0),
            (0xc4, -3.0),
        ] {
            assert_eq!(E4M3[code], value, "{code:#x}");
        }
        assert!(E4M3[0x7f].is_nan() && E4M3[0xff].is_nan());
    }
}
