//! How a block is stored, and the way there and back.
//!
//! A block is 64 bytes of header and a body, padded to a multiple of 64 bytes.
//!
//! ```text
//! header  0  [16] u8  the upper byte of each code; that of code 0 is 0
//!        16  u32      escapes
//!        20  u8       kind of the body
//! body, kind 0 (plain): the packed block
//! body, kind 1 (upper): for each 8 columns
//!          [2, 4, 2, 4, 2] u8  lower bytes: halves of four columns, quarters of the lanes, pairs
//!                              of columns, lanes, columns of a pair
//!          [4, 2, 4, 2] u8     codes of both halves: low nibbles are the first one's
//!       then the escapes: u32 column * 16 + lane, u32 bits of the weight as f32
//! body, kind 2 (whole): as kind 1, but for each 8 columns there follow
//!          [4, 16, 2] u16      low halves of f32, by pairs of columns
//! ```
//!
//! A weight's upper byte is its sign and seven bits of its exponent, of which a block has hardly more
//! than fifteen; the lower byte has the last bit of the exponent, and the mantissa of a bfloat16. So a
//! table look-up finds upper bytes, which are put beside the lower ones: vectors of bytes do that in
//! quarters of 16 bytes, which is why they are stored so.
//!
//! Upper halves of f32 are bfloat16, so that kind 1 also holds f32 without low halves. A weight
//! whose upper byte has no code is 0 in the body and stands among the escapes.

use super::super::{Format, LANES};

/// Bytes of the header, and what lengths are multiples of.
pub const HEADER: usize = 64;

/// Columns that share words of codes.
pub const GROUP: usize = 8;

/// Weights of them.
const WEIGHTS: usize = GROUP * LANES;

/// Bytes of [`GROUP`] columns: lower ones, codes, of which there are as many as of lower ones of a half, and low halves.
pub const LOWERS: usize = WEIGHTS;
pub const CODES: usize = WEIGHTS / 2;
pub const LOWS: usize = WEIGHTS * 2;

/// How a body is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// As [`Format`] has it.
    Plain,
    /// 12 bits a weight.
    Upper,
    /// 28 bits a weight.
    Whole,
}

impl Kind {
    /// Bytes of [`GROUP`] columns where they are compressed.
    pub const fn group_bytes(self) -> usize {
        match self {
            Self::Plain => 0,
            Self::Upper => LOWERS + CODES,
            Self::Whole => LOWERS + CODES + LOWS,
        }
    }
}

/// A weight whose upper byte has no code.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Escape {
    place: u32,
    bits: u32,
}

impl Escape {
    pub fn column(self) -> usize {
        self.place as usize / LANES
    }

    pub fn lane(self) -> usize {
        self.place as usize % LANES
    }

    /// As f32.
    pub fn bits(self) -> u32 {
        self.bits
    }
}

/// A stored block.
#[derive(Clone, Copy)]
pub struct Block(*const u8);

impl Block {
    /// # Safety
    ///
    /// `at` is valid for a block that [`compress`] wrote, for as long as this is used.
    pub unsafe fn new(at: *const u8) -> Self {
        Self(at)
    }

    pub fn kind(self) -> Kind {
        // SAFETY: within the header.
        match unsafe { *self.0.add(20) } {
            0 => Kind::Plain,
            1 => Kind::Upper,
            _ => Kind::Whole,
        }
    }

    /// Sixteen, by code.
    pub fn uppers(self) -> *const u8 {
        self.0
    }

    pub fn body(self) -> *const u8 {
        self.0.wrapping_add(HEADER)
    }

    /// Those of a block of so many columns that is not plain, in the order of columns.
    pub fn escapes(self, columns: usize) -> Escapes {
        // SAFETY: within the header.
        let count = unsafe { self.0.add(16).cast::<u32>().read_unaligned() };
        let groups = columns / GROUP * self.kind().group_bytes();
        let next = self.body().wrapping_add(groups).cast::<Escape>();
        Escapes { next, end: next.wrapping_add(count as usize), columns }
    }
}

/// The escapes of a block.
#[derive(Clone, Copy)]
pub struct Escapes {
    next: *const Escape,
    end: *const Escape,
    columns: usize,
}

impl Escapes {
    /// Those from a column on.
    #[cfg(target_arch = "x86_64")]
    pub fn from(self, column: usize) -> Self {
        let len = (self.end as usize - self.next as usize) / size_of::<Escape>();
        let (mut from, mut to) = (0, len);
        while from < to {
            let middle = from + (to - from) / 2;
            // SAFETY: there are so many behind the groups.
            match unsafe { self.next.add(middle).read_unaligned() }.column() < column {
                true => from = middle + 1,
                false => to = middle,
            }
        }
        Self { next: self.next.wrapping_add(from), ..self }
    }

    /// Those in front of a column; the others stay.
    pub fn before(&mut self, column: usize) -> Self {
        let mut those = *self;
        while { *self }.next().is_some_and(|escape| escape.column() < column) {
            self.next();
        }
        those.end = self.next;
        those
    }
}

impl Iterator for Escapes {
    type Item = Escape;

    fn next(&mut self) -> Option<Escape> {
        while self.next < self.end {
            // SAFETY: there are so many behind the groups.
            let escape = unsafe { self.next.read_unaligned() };
            self.next = self.next.wrapping_add(1);
            // The place of a damaged one may be no column of the activations.
            if escape.column() < self.columns {
                return Some(escape);
            }
        }
        None
    }
}

/// Largest size of a stored block: plain, with its header.
pub fn most_bytes(format: Format, columns: usize) -> usize {
    HEADER + format.block_bytes(columns).next_multiple_of(HEADER)
}

/// Appends one compressed block to `out`, whose length then is a multiple of 64 if it was.
///
/// `block` is a packed block as [`Format::F32`] or [`Format::Bf16`] has it, `columns` a multiple of
/// 8. Every bit of it comes back, whatever the values are; one that would not become smaller is
/// stored plain.
///
/// # Panics
///
/// If the format is another one, or `block` not of this size.
pub fn compress(format: Format, block: &[u8], columns: usize, out: &mut Vec<u8>) {
    assert_eq!(block.len(), format.block_bytes(columns), "a packed block");
    assert!(columns.is_multiple_of(GROUP), "whole groups of columns");
    let groups = || block.chunks_exact(format.block_bytes(GROUP)).map(|group| load(format, group));

    // One table would have its most frequent counts wait for each other.
    let mut counts = [[0u32; 256]; 4];
    let mut lows = 0;
    for bits in groups() {
        for four in bits.as_chunks::<4>().0 {
            for (counts, &bits) in counts.iter_mut().zip(four) {
                counts[upper(bits)] += 1;
                lows |= bits as u16;
            }
        }
    }
    let count = |upper: usize| counts.iter().map(|counts| counts[upper]).sum::<u32>() as usize;
    let mut others: Vec<usize> = (1..256).filter(|&upper| count(upper) > 0).collect();
    others.sort_by_key(|&upper| std::cmp::Reverse(count(upper)));
    others.truncate(15);
    let coded = count(0) + others.iter().map(|&upper| count(upper)).sum::<usize>();
    let escapes = columns * LANES - coded;
    let kind = if lows == 0 { Kind::Upper } else { Kind::Whole };
    let body = columns / GROUP * kind.group_bytes() + escapes * size_of::<Escape>();
    if escapes > columns * LANES / FEW || body >= block.len() {
        out.resize(out.len() + HEADER, 0);
        out.extend(block);
        out.resize(out.len().next_multiple_of(HEADER), 0);
        return;
    }

    let mut header = [0; HEADER];
    let mut codes = [NO_CODE; 256];
    codes[0] = 0;
    for (code, &upper) in (1..).zip(&others) {
        header[usize::from(code)] = upper as u8;
        codes[upper] = code;
    }
    header[16..20].copy_from_slice(&(escapes as u32).to_le_bytes());
    header[20] = if kind == Kind::Upper { 1 } else { 2 };
    out.reserve(HEADER + body.next_multiple_of(HEADER));
    out.extend(header);
    let mut escaped = Vec::with_capacity(escapes * size_of::<Escape>());
    for (group, mut bits) in groups().enumerate() {
        let mut coded = bits.map(|bits| codes[upper(bits)]);
        if coded.iter().fold(0, |all, code| all | code) >= NO_CODE {
            for (i, (bits, code)) in bits.iter_mut().zip(&mut coded).enumerate() {
                if *code == NO_CODE {
                    escaped.extend(((group * WEIGHTS + i) as u32).to_le_bytes());
                    escaped.extend(bits.to_le_bytes());
                    (*bits, *code) = (0, 0);
                }
            }
        }
        let mut lowers = [0; LOWERS];
        let mut nibbles = [0; CODES];
        for (i, (bits, code)) in bits.into_iter().zip(coded).enumerate() {
            let place = Place::of(i);
            lowers[place.lower()] = (bits >> 16) as u8;
            nibbles[place.code()] |= code << place.shift();
        }
        out.extend(lowers);
        out.extend(nibbles);
        if kind == Kind::Whole {
            let mut lows = [0u16; WEIGHTS];
            for (i, bits) in bits.into_iter().enumerate() {
                lows[Place::of(i).low()] = bits as u16;
            }
            out.extend(lows.map(u16::to_le_bytes).as_flattened());
        }
    }
    out.extend(escaped);
    out.resize(out.len().next_multiple_of(HEADER), 0);
}

/// The packed block that [`compress`] was given.
///
/// # Panics
///
/// If `compressed` is too short for what it says, or `block` not of this size.
pub fn decompress(format: Format, compressed: &[u8], columns: usize, block: &mut [u8]) {
    assert_eq!(block.len(), format.block_bytes(columns), "a packed block");
    // SAFETY: only the header is read through it, which the slice below checks to be there.
    let kind = { unsafe { Block::new(compressed[..HEADER].as_ptr()) }.kind() };
    let (header, body) = compressed.split_at(HEADER);
    let (groups, escapes) = match kind {
        Kind::Plain => return block.copy_from_slice(&body[..block.len()]),
        kind => body.split_at(columns / GROUP * kind.group_bytes()),
    };
    let mut put = |i: usize, bits: u32| match format {
        Format::F32 => block[i * 4..][..4].copy_from_slice(&bits.to_le_bytes()),
        _ => block[i * 2..][..2].copy_from_slice(&bits.to_le_bytes()[2..]),
    };
    for (group, from) in groups.chunks_exact(kind.group_bytes()).enumerate() {
        let (lowers, rest) = from.split_at(LOWERS);
        let (nibbles, lows) = rest.split_at(CODES);
        for i in 0..WEIGHTS {
            let place = Place::of(i);
            let code = nibbles[place.code()] >> place.shift() & 0xf;
            let [upper, lower] = [header[usize::from(code)], lowers[place.lower()]];
            let [low, high] = lows.as_chunks().0.get(place.low()).copied().unwrap_or_default();
            put(group * WEIGHTS + i, u32::from_le_bytes([low, high, lower, upper]));
        }
    }
    let word = |at: usize| -> u32 { u32::from_le_bytes(std::array::from_fn(|i| escapes[at + i])) };
    let count = u32::from_le_bytes(std::array::from_fn(|i| header[16 + i])) as usize;
    for escape in 0..count {
        put(word(escape * 8) as usize, word(escape * 8 + 4));
    }
}

/// One weight of so many may be an escape: each costs as much time as a hundred others.
const FEW: usize = 100;

const NO_CODE: u8 = 16;

/// Sign and upper seven bits of the exponent of an f32.
fn upper(bits: u32) -> usize {
    (bits >> 24) as usize
}

/// Where a weight of eight columns is stored.
#[derive(Clone, Copy)]
pub struct Place {
    column: usize,
    lane: usize,
}

impl Place {
    /// Of weight `i`, a column's lanes being together.
    pub fn of(i: usize) -> Self {
        Self { column: i / LANES, lane: i % LANES }
    }

    /// Of the lower bytes.
    pub fn lower(self) -> usize {
        self.column / 4 * CODES + self.code()
    }

    /// Of the bytes of codes.
    pub fn code(self) -> usize {
        let Self { column, lane } = self;
        (lane / 4) * 16 + (column / 2 % 2) * 8 + (lane % 4) * 2 + column % 2
    }

    /// By how many bits its code is shifted.
    pub fn shift(self) -> usize {
        self.column / 4 * 4
    }

    /// Of the low halves.
    pub fn low(self) -> usize {
        (self.column / 2) * 2 * LANES + self.lane * 2 + self.column % 2
    }
}

/// Eight columns of a packed block as f32.
fn load(format: Format, group: &[u8]) -> [u32; WEIGHTS] {
    let mut bits = [0; WEIGHTS];
    match format {
        Format::F32 => {
            for (bits, &word) in bits.iter_mut().zip(group.as_chunks().0) {
                *bits = u32::from_le_bytes(word);
            }
        }
        Format::Bf16 | Format::Bf16Rounded => {
            for (bits, &word) in bits.iter_mut().zip(group.as_chunks().0) {
                *bits = u32::from(u16::from_le_bytes(word)) << 16;
            }
        }
        other => panic!("{other:?} has no bfloat16 in it"),
    }
    bits
}
