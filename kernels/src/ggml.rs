//! Rows of ggml's block types in the order of [products](crate::product()): the same integers and the
//! same scales, to the bit.
//!
//! A row is its blocks one after the other, as GGUF files have it: of 32 columns, or super-blocks of
//! 256. Matrices of quantised folders, whose scales lie in tensors of their own, come as two more types
//! of the same kind: two f16 (a scale, and a minimum or a zero with its sign turned), then the integers
//! of each 32 columns as Q4_1 has them.

use std::ops::Range;

use half::f16;

use crate::format::{Format, GROUP, Integers, LANES};
use crate::quantise::{place, placed};

/// Columns of a super-block.
const SUPER: usize = 256;

/// What [`GROUP`] columns of a row have: integers as they are stored, minima and middles not regarded, and
/// scales in one of the forms that [`pack_rows`] states.
#[derive(Default)]
struct Group {
    integers: [u8; GROUP],
    /// f16: the scale, and the minimum; where there are `nested` ones, their units.
    scales: [f16; 2],
    nested: [u8; 2],
}

impl Format {
    /// Bytes of a row of `columns` columns in a GGUF file; none for formats that are no type of ggml's.
    ///
    /// # Panics
    ///
    /// When columns do not fill blocks.
    pub fn ggml_row_bytes(self, columns: usize) -> Option<usize> {
        let (block, bytes) = match self {
            Self::F32 | Self::Bf16 | Self::Bf16Rounded | Self::F16 => return None,
            Self::Int8Rounded | Self::Int6 | Self::Nested4 => return None,
            Self::Int8 => (GROUP, 34),
            Self::Int4 => (GROUP, 18),
            Self::Q4_1 => (GROUP, 20),
            Self::Q5_0 => (GROUP, 22),
            Self::Q5_1 => (GROUP, 24),
            Self::Q4K => (SUPER, 144),
            Self::Q5K => (SUPER, 176),
            Self::Q6K => (SUPER, 210),
            Self::Affine4 => (2 * GROUP, 36),
            Self::Zeroed4 => (4 * GROUP, 68),
            Self::Q2K => (SUPER, 84),
            Self::Q3K => (SUPER, 110),
            Self::Iq4Nl => (GROUP, 18),
            Self::Iq4Xs => (SUPER, 136),
            Self::Mxfp4 => (GROUP, 17),
        };
        assert!(columns.is_multiple_of(block), "{columns} columns of {self:?}");
        Some(columns / block * bytes)
    }
}

/// Packs up to [`LANES`] rows of `columns` columns as a GGUF file has them to a block of `format`;
/// missing rows become zeros.
///
/// A block is groups of 32 columns, each its weights and then its scales, `[16]` or more. Weights of
/// four, six and eight bits lie as [`pack_block`](crate::quantise::pack_block) has them, without what it
/// adds to them; of five bits there are four words of nibbles and one word of each lane whose bits `i` and
/// `16 + i` are the fifth ones of the columns of pair `i`; of two bits two words, in whose halves pairs have
/// two bits each, and of three bits one more, as of five. Behind them lie
///
/// - Q4_0, Q5_0, Q8_0: `[16]` f16.
/// - Q4_1, Q5_1: `[2, 16]` f16: scales, minima.
/// - Q4_K, Q5_K: `[2, 16]` u8: scales, minima; before each eight groups `[2, 16]` f16: what these are
///   multiplied with, that of minima negative.
/// - of folders: nothing; before each two or four groups `[2, 16]` f16.
/// - Q6_K: `[2, 16]` i8: scales of each half; before each eight groups `[16]` f16.
/// - Q2_K: `[2, 16]` u8: of each half the scale, and the minimum above it; before each eight groups
///   `[2, 16]` f16, as of Q4_K.
/// - Q3_K: nothing; before each eight groups `[16]` f16 and `[3, 16]` u32, of each four bits a group: the low
///   bits of the scales of first halves, those of second halves, and the two high ones of both.
/// - IQ4_NL: `[16]` f16; IQ4_XS: `[16]` i8, before each eight groups `[16]` f16; MXFP4: `[16]` u8, exponents.
///   Four bits are numbers of levels.
///
/// # Panics
///
/// When the format is no type of ggml's, or rows or the block have another size.
pub fn pack_rows(format: Format, columns: usize, rows: &[&[u8]], block: &mut [u8]) {
    let bytes = format.ggml_row_bytes(columns);
    let integers = format.integers().filter(|_| bytes.is_some()).expect("a type of ggml's");
    assert!(rows.len() <= LANES, "{} rows in a block of {LANES}", rows.len());
    assert!(rows.iter().all(|row| Some(row.len()) == bytes), "bytes of a row");
    assert_eq!(block.len(), format.block_bytes(columns), "bytes of a block");
    for (lane, row) in rows.iter().enumerate() {
        for number in 0..columns / GROUP {
            let group = group(format, row, number);
            let [head, weights, own] = parts(integers, number);
            place(integers.bits, &mut block[weights], lane, &group.integers);
            let (scales, nested) = match (format, integers.together) {
                (Format::Mxfp4, _) => (0..0, own),
                (Format::Q3K, _) => {
                    let (scales, words) = halves_and_words(head);
                    let words = block[words].as_chunks_mut::<4>().0;
                    for (which, bits) in fours_of(group.nested).into_iter().enumerate() {
                        let word = &mut words[which * LANES + lane];
                        let bits = bits << (4 * (number % 8));
                        *word = (u32::from_le_bytes(*word) | bits).to_le_bytes();
                    }
                    (scales, 0..0)
                }
                (_, 1) => (own, 0..0),
                _ => (head, own),
            };
            let scales = block[scales].as_chunks_mut::<{ 2 * LANES }>().0;
            for (to, scale) in scales.iter_mut().zip(group.scales) {
                to.as_chunks_mut().0[lane] = scale.to_le_bytes();
            }
            let nested = block[nested].as_chunks_mut::<LANES>().0;
            for (to, scale) in nested.iter_mut().zip(group.nested) {
                to[lane] = scale;
            }
        }
    }
}

/// Row `lane` of what [`pack_rows`] packed, as f32: the values that ggml has, to the bit.
///
/// # Panics
///
/// As [`pack_rows`], and when `lane` is none.
pub fn unpack_row(format: Format, block: &[u8], lane: usize, row: &mut [f32]) {
    assert!(lane < LANES, "row {lane} of a block of {LANES}");
    assert_eq!(block.len(), format.block_bytes(row.len()), "bytes of a block");
    let integers = format.integers().expect("integers");
    let middle = if integers.minima { 0 } else { 1 << (integers.bits - 1) };
    for (number, row) in row.chunks_mut(GROUP).enumerate() {
        let [head, weights, own] = parts(integers, number);
        let half = |at: Range<usize>, i: usize| {
            let halves = block[at].as_chunks::<{ 2 * LANES }>().0.get(i);
            halves.map_or(0.0, |of| f16::from_le_bytes(of.as_chunks().0[lane]).to_f32())
        };
        let byte = |i: usize| block[own.clone()][i * LANES + lane];
        // Of each half of the group.
        let (scales, minima) = match format {
            Format::Nested4 | Format::Q4K | Format::Q5K => {
                let scale = half(head.clone(), 0) * f32::from(byte(0));
                ([scale; 2], [half(head, 1) * f32::from(byte(1)); 2])
            }
            Format::Q6K => {
                let unit = half(head, 0);
                ([0, 1].map(|i| unit * f32::from(byte(i) as i8)), [0.0; 2])
            }
            Format::Q2K => {
                let [scale, minimum] = [0, 1].map(|i| half(head.clone(), i));
                let bytes = [0, 1].map(byte);
                (
                    bytes.map(|byte| scale * f32::from(byte & 15)),
                    bytes.map(|byte| minimum * f32::from(byte >> 4)),
                )
            }
            Format::Q3K => {
                let (unit, words) = halves_and_words(head);
                let words = block[words].as_chunks().0;
                let bits = |which: usize| {
                    u32::from_le_bytes(words[which * LANES + lane]) >> (4 * (number % 8)) & 15
                };
                let of = |i: usize| (bits(i) | (bits(2) >> (2 * i) & 3) << 4) as i32 - 32;
                ([0, 1].map(|i| half(unit.clone(), 0) * of(i) as f32), [0.0; 2])
            }
            Format::Iq4Xs => ([half(head, 0) * f32::from(byte(0) as i8); 2], [0.0; 2]),
            Format::Mxfp4 => ([half_power(byte(0)); 2], [0.0; 2]),
            Format::Affine4 => ([half(head.clone(), 0); 2], [half(head, 1); 2]),
            Format::Zeroed4 => {
                let scale = half(head.clone(), 0);
                ([scale; 2], [scale * half(head, 1); 2])
            }
            _ => ([half(own.clone(), 0); 2], [half(own, 1); 2]),
        };
        for (column, weight) in row.iter_mut().enumerate() {
            let stored = placed(integers.bits, &block[weights.clone()], lane, column);
            let integer = match (format.levels(), format) {
                (Some(levels), _) => i32::from(levels[stored as usize]),
                (None, format) if format.stored() == Format::Int8 => i32::from(stored as i8),
                _ => stored as i32 - middle,
            };
            let part = 2 * column / GROUP;
            let product = scales[part] * integer as f32;
            *weight = if integers.minima { product + minima[part] } else { product };
        }
    }
}

/// Where the head, the weights and the scales of a group of a block are.
fn parts(integers: Integers, number: usize) -> [Range<usize>; 3] {
    let Integers { together, head, .. } = integers;
    let first = number / together * (head + together * integers.group());
    let weights = first + head + number % together * integers.group();
    let scales = weights + integers.weights();
    [first..first + head, weights..scales, scales..scales + integers.scales]
}

/// Of a head of [`Format::Q3K`] the f16, and the words behind them.
fn halves_and_words(head: Range<usize>) -> (Range<usize>, Range<usize>) {
    let words = head.start + 2 * LANES;
    (head.start..words, words..head.end)
}

/// The four bits of each word of [`Format::Q3K`], of the scales of both halves of a group.
fn fours_of([first, second]: [u8; 2]) -> [u32; 3] {
    [first & 15, second & 15, first >> 4 | second >> 4 << 2].map(u32::from)
}

/// `2^(exponent - 128)`, of which the two smallest are subnormal.
fn half_power(exponent: u8) -> f32 {
    f32::from_bits(match exponent {
        0 | 1 => 0x0020_0000 << exponent,
        _ => u32::from(exponent - 1) << 23,
    })
}

/// Group `number` of a row as ggml has it (`ggml-common.h` and `ggml-quants.c` of ggml).
fn group(format: Format, row: &[u8], number: usize) -> Group {
    let half = |bytes: &[u8], at: usize| f16::from_le_bytes([bytes[at], bytes[at + 1]]);
    let block = |bytes: usize, groups: usize| &row[number / groups * bytes..][..bytes];
    // The first sixteen columns are low nibbles.
    let nibbles = |of: &[u8]| {
        std::array::from_fn(|i| if i < GROUP / 2 { of[i] & 15 } else { of[i - GROUP / 2] >> 4 })
    };
    match format {
        Format::Int8 => {
            let block = block(34, 1);
            let integers = std::array::from_fn(|i| block[2 + i]);
            Group { integers, scales: [half(block, 0), f16::ZERO], ..Group::default() }
        }
        Format::Int4 => {
            let block = block(18, 1);
            let scales = [half(block, 0), f16::ZERO];
            Group { integers: nibbles(&block[2..]), scales, ..Group::default() }
        }
        Format::Q4_1 => {
            let block = block(20, 1);
            let scales = [half(block, 0), half(block, 2)];
            Group { integers: nibbles(&block[4..]), scales, ..Group::default() }
        }
        Format::Affine4 | Format::Zeroed4 => {
            let groups = if format == Format::Affine4 { 2 } else { 4 };
            let block = block(4 + groups * GROUP / 2, groups);
            let integers = nibbles(&block[4 + number % groups * GROUP / 2..]);
            let scales = [half(block, 0), half(block, 2)];
            Group { integers, scales, ..Group::default() }
        }
        Format::Q5_0 | Format::Q5_1 => {
            let minima = format == Format::Q5_1;
            let (block, at) = if minima { (block(24, 1), 4) } else { (block(22, 1), 2) };
            let mut integers: [u8; GROUP] = nibbles(&block[at + 4..]);
            for (i, integer) in integers.iter_mut().enumerate() {
                *integer |= (block[at + i / 8] >> (i % 8) & 1) << 4;
            }
            let minimum = if minima { half(block, 2) } else { f16::ZERO };
            Group { integers, scales: [half(block, 0), minimum], ..Group::default() }
        }
        Format::Q4K | Format::Q5K => {
            let fifth = format == Format::Q5K;
            let block = block(if fifth { 176 } else { 144 }, 8);
            let (i, packed) = (number % 8, &block[4..16]);
            // Six bits each; the upper two of the last four lie above the first four.
            let nested = match i {
                0..4 => [packed[i] & 63, packed[i + 4] & 63],
                _ => {
                    let low = packed[i + 4];
                    [low & 15 | packed[i - 4] >> 6 << 4, low >> 4 | packed[i] >> 6 << 4]
                }
            };
            let low = &block[if fifth { 48 } else { 16 }..][i / 2 * 32..][..32];
            let mut integers: [u8; GROUP] = std::array::from_fn(|l| low[l] >> (4 * (i % 2)) & 15);
            if fifth {
                for (l, integer) in integers.iter_mut().enumerate() {
                    *integer |= (block[16 + l] >> i & 1) << 4;
                }
            }
            Group { integers, scales: [half(block, 0), -half(block, 2)], nested }
        }
        Format::Q6K => {
            let block = block(210, 8);
            // Each half of a super-block has its low bits in two times 32 bytes, and in 32 more two bits
            // of each of its four groups.
            let i = number % 8;
            let (low, high) = (&block[i / 4 * 64..], &block[128 + i / 4 * 32..]);
            let integers = std::array::from_fn(|l| {
                let low = low[i % 2 * 32 + l] >> (4 * (i % 4 / 2)) & 15;
                low | (high[l] >> (2 * (i % 4)) & 3) << 4
            });
            let nested = [block[192 + 2 * i], block[193 + 2 * i]];
            Group { integers, scales: [half(block, 208), f16::ZERO], nested }
        }
        Format::Q2K => {
            let block = block(84, 8);
            let (i, integers) = (number % 8, two_bits(&block[16..80], number % 8));
            let nested = [block[2 * i], block[2 * i + 1]];
            Group { integers, scales: [half(block, 80), -half(block, 82)], nested }
        }
        Format::Q3K => {
            let block = block(110, 8);
            let i = number % 8;
            let mut integers = two_bits(&block[32..96], i);
            for (l, integer) in integers.iter_mut().enumerate() {
                *integer |= (block[l] >> i & 1) << 2;
            }
            // Of sixteen scales of six bits each: the low four of two in a byte, the high two of four.
            let packed = &block[96..108];
            let nested = [2 * i, 2 * i + 1].map(|part| {
                let low = packed[part % 8] >> (part / 8 * 4) & 15;
                low | (packed[8 + part % 4] >> (part / 4 * 2) & 3) << 4
            });
            Group { integers, scales: [half(block, 108), f16::ZERO], nested }
        }
        Format::Iq4Nl => {
            let block = block(18, 1);
            let scales = [half(block, 0), f16::ZERO];
            Group { integers: nibbles(&block[2..]), scales, ..Group::default() }
        }
        Format::Iq4Xs => {
            let block = block(136, 8);
            let i = number % 8;
            let high = u16::from_le_bytes([block[2], block[3]]) >> (2 * i) & 3;
            let low = block[4 + i / 2] >> (i % 2 * 4) & 15;
            let scale = (low | (high as u8) << 4) as i8 - 32;
            let integers = nibbles(&block[8 + 16 * i..]);
            Group { integers, scales: [half(block, 0), f16::ZERO], nested: [scale as u8, 0] }
        }
        Format::Mxfp4 => {
            let block = block(17, 1);
            let integers = nibbles(&block[1..]);
            Group { integers, nested: [block[0], 0], ..Group::default() }
        }
        _ => unreachable!("{format:?} is no type of ggml's"),
    }
}

/// Group `number` of a super-block of integers of two bits: 32 bytes have four groups.
fn two_bits(of: &[u8], number: usize) -> [u8; GROUP] {
    std::array::from_fn(|l| of[number / 4 * 32 + l] >> (2 * (number % 4)) & 3)
}
