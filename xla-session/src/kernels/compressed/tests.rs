use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use super::block::HEADER;
use super::*;

const FORMATS: [Format; 3] = [Format::F32, Format::Bf16, Format::Bf16Rounded];

/// Bell-shaped around 0: as weights are.
fn normal(rng: &mut ChaCha8Rng) -> f32 {
    let uniform = |rng: &mut ChaCha8Rng| (f64::from(rng.next_u32()) + 0.5) / 2f64.powi(32);
    let (a, b) = (uniform(rng), uniform(rng));
    (0.02 * (-2.0 * a.ln()).sqrt() * (b * std::f64::consts::TAU).cos()) as f32
}

/// A packed block of the weights that have these bits as f32, column by column.
fn packed(format: Format, bits: &[u32]) -> Vec<u8> {
    match format {
        Format::F32 => bits.iter().flat_map(|bits| bits.to_le_bytes()).collect(),
        _ => bits.iter().flat_map(|bits| ((bits >> 16) as u16).to_le_bytes()).collect(),
    }
}

/// Compresses and checks that all comes back. The stored size as a part of the packed one.
fn round_trip(format: Format, bits: &[u32]) -> f64 {
    let columns = bits.len() / LANES;
    let block = packed(format, bits);
    let mut stored = vec![7; HEADER];
    compress(format, &block, columns, &mut stored);
    assert!(stored.len().is_multiple_of(HEADER));
    let stored = &stored[HEADER..];
    assert!(stored.len() <= most_bytes(format, columns));
    let mut back = vec![0; block.len()];
    decompress(format, stored, columns, &mut back);
    assert!(back == block, "{format:?}");
    stored.len() as f64 / block.len() as f64
}

#[test]
fn all_bits_come_back() {
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    for format in FORMATS {
        let every_bf16: Vec<u32> = (0..1 << 16).map(|bits| bits << 16 | bits).collect();
        assert!(round_trip(format, &every_bf16) > 1.0, "plain");
        let random: Vec<u32> = (0..1 << 16).map(|_| rng.next_u32()).collect();
        round_trip(format, &random);
        for columns in [8, 16, 24, 2048] {
            let mut bits: Vec<u32> =
                (0..columns * LANES).map(|_| normal(&mut rng).to_bits()).collect();
            round_trip(format, &bits);
            // One lane far larger, one of subnormals, one without low halves.
            for column in bits.chunks_mut(LANES) {
                column[3] = (f32::from_bits(column[3]) * 1e20).to_bits();
                column[4] &= 0x807f_ffff;
                column[5] &= 0xffff_0000;
            }
            for (at, special) in
                [f32::NAN, f32::INFINITY, -0.0, f32::MAX, -1e-30].iter().enumerate()
            {
                bits[at * 7] = special.to_bits();
            }
            round_trip(format, &bits);
        }
        round_trip(format, &[0; 8 * LANES]);
        round_trip(format, &[f32::NAN.to_bits(); 8 * LANES]);
    }
}

#[test]
fn weights_become_a_quarter_smaller() {
    let mut rng = ChaCha8Rng::seed_from_u64(2);
    let bits: Vec<u32> = (0..2048 * LANES).map(|_| normal(&mut rng).to_bits()).collect();
    let upper: Vec<u32> = bits.iter().map(|bits| bits & 0xffff_0000).collect();
    for (format, bits, size) in [
        (Format::Bf16, &bits, 12.0 / 16.0),
        (Format::F32, &bits, 28.0 / 32.0),
        (Format::F32, &upper, 12.0 / 32.0),
    ] {
        let stored = round_trip(format, bits);
        assert!((size..size + 0.01).contains(&stored), "{format:?}: {stored}");
    }
}
