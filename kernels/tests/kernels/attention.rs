//! Attention over the blocks of a KV cache.

use kernels::{Attention, Isa, KV_BLOCK, KvFormat, attention_for};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;

use crate::weights::random;

/// `values` as a cache of `format` stores them, and what is read there.
fn stored(format: KvFormat, values: &[f32]) -> (Vec<u8>, Vec<f32>) {
    match format {
        KvFormat::F32 => (bytemuck::cast_slice(values).to_vec(), values.to_vec()),
        KvFormat::F16 => {
            let halves: Vec<_> = values.iter().map(|&value| half::f16::from_f32(value)).collect();
            let read = halves.iter().map(|half| half.to_f32()).collect();
            (bytemuck::cast_slice(&halves).to_vec(), read)
        }
    }
}

/// One shape of a call among other heads, whose memory must stay as it was.
#[derive(Clone, Copy, Debug)]
struct Case {
    kv_heads: usize,
    head: usize,
    group: usize,
    width: usize,
    rows: usize,
    used: usize,
    start: usize,
    window: usize,
    /// Keys behind itself that a row sees, of as many behind the last row.
    behind: usize,
    more: usize,
    /// The largest of what is added to scores by distance; 0 for nothing.
    apart: f32,
    /// Factor of the queries: scores far apart.
    size: f32,
    /// What products are multiplied with; 0 for one over the root of the width.
    scale: f32,
    cap: f32,
    /// The largest of the sinks; 0 for none.
    sinks: f32,
}

const PLAIN: Case = Case {
    kv_heads: 2,
    head: 1,
    group: 4,
    width: 64,
    rows: 1,
    used: 1,
    start: 0,
    window: 0,
    behind: 0,
    more: 0,
    apart: 0.0,
    size: 1.0,
    scale: 0.0,
    cap: 0.0,
    sinks: 0.0,
};

impl Case {
    /// Attends in every format on every instruction set, and compares with f64.
    fn check(self, rng: &mut ChaCha8Rng) {
        for (_, format) in KvFormat::ALL {
            self.check_format(format, rng);
        }
    }

    fn check_format(self, format: KvFormat, rng: &mut ChaCha8Rng) {
        const GUARD: f32 = 1234.5;
        let Self { kv_heads, head, group, width, rows, used, start, window, .. } = self;
        let Self { size, scale, cap, behind, more, .. } = self;
        let scale = if scale == 0.0 { 1.0 / (width as f32).sqrt() } else { scale };
        let heads = kv_heads * group;
        let (query_stride, output_stride) = (heads * width + 3, heads * width);
        let queries: Vec<_> = (0..rows * query_stride).map(|_| size * random(rng)).collect();
        let tokens = start + used + more;
        let blocks = tokens.div_ceil(KV_BLOCK);
        let page_stride = kv_heads * width * KV_BLOCK;
        // Anywhere in the cache, and not in order.
        let pages: Vec<i32> = (0..blocks as i32).map(|block| (block * 5 + 3) % 1021).collect();
        let last = pages.iter().max().map_or(0, |&page| page as usize);
        // What no row may see is not a number: it would spread.
        let mut keys = vec![f32::NAN; (last + 1) * page_stride];
        let mut values = keys.clone();
        let key_at = |head: usize, token: usize, i: usize| {
            let (block, slot) = (token / KV_BLOCK, token % KV_BLOCK);
            pages[block] as usize * page_stride + (head * width + i) * KV_BLOCK + slot
        };
        let value_at = |head: usize, token: usize, i: usize| {
            let (block, slot) = (token / KV_BLOCK, token % KV_BLOCK);
            pages[block] as usize * page_stride + (head * KV_BLOCK + slot) * width + i
        };
        let oldest = if window == 0 { 0 } else { (start + 1).saturating_sub(window) };
        let newest = (start + used + behind).min(tokens);
        for token in oldest..newest {
            for i in 0..width {
                keys[key_at(head, token, i)] = random(rng);
                values[value_at(head, token, i)] = random(rng);
            }
        }

        let ((stored_keys, keys), (stored_values, values)) =
            (stored(format, &keys), stored(format, &values));
        let at = head * width * KV_BLOCK * format.bytes();
        // Whole blocks before and behind.
        let reach = 2 * (blocks + 1) * KV_BLOCK;
        let apart: Vec<_> = (0..heads * reach).map(|_| self.apart * random(rng)).collect();
        let sinks: Vec<_> = (0..heads).map(|_| self.sinks * random(rng)).collect();

        for isa in Isa::all_here() {
            let mut output = vec![GUARD; rows * output_stride];
            let first = head * group * width;
            let attention = Attention {
                queries: queries[first..].as_ptr(),
                query_stride,
                keys: stored_keys[at..].as_ptr(),
                values: stored_values[at..].as_ptr(),
                page_stride,
                pages: pages.as_ptr(),
                output: output[first..].as_mut_ptr(),
                output_stride,
                rows,
                used,
                start,
                window,
                behind,
                keys_in_all: tokens,
                distances: match self.apart {
                    0.0 => std::ptr::null(),
                    _ => apart[head * group * reach..][reach / 2..].as_ptr(),
                },
                distances_stride: reach,
                group,
                width,
                scale,
                cap,
                sinks: match self.sinks {
                    0.0 => std::ptr::null(),
                    _ => sinks[head * group..].as_ptr(),
                },
            };
            // SAFETY: this CPU has the instructions, and the buffers have the shapes stated.
            unsafe { attention_for(format, isa)(&attention) };

            for row in 0..rows {
                for h in 0..heads {
                    let computed = &output[row * output_stride + h * width..][..width];
                    let what = format!("{isa:?} {format:?} {self:?} row {row} head {h}");
                    if h / group != head {
                        assert!(computed.iter().all(|&it| it == GUARD), "{what}: another head");
                        continue;
                    }
                    if row >= used {
                        assert!(computed.iter().all(|&it| it == 0.0), "{what}: padding");
                        continue;
                    }
                    let own = start + row + 1;
                    let end = (own + behind).min(tokens);
                    let from = if window == 0 { 0 } else { own.saturating_sub(window) };
                    let query = &queries[row * query_stride + h * width..][..width];
                    let score = |token: usize| -> f64 {
                        let key = |i| f64::from(keys[key_at(head, token, i)]);
                        let product = |i: usize| f64::from(query[i]) * key(i);
                        let score = (0..width).map(product).sum::<f64>() * f64::from(scale);
                        let cap = f64::from(cap);
                        let score = if cap == 0.0 { score } else { cap * (score / cap).tanh() };
                        let distance = reach / 2 + token - (own - 1);
                        score + f64::from(apart[h * reach + distance])
                    };
                    let scores: Vec<_> = (from..end).map(score).collect();
                    let sink = if self.sinks == 0.0 { f32::NEG_INFINITY } else { sinks[h] };
                    let largest = scores.iter().copied().fold(f64::from(sink), f64::max);
                    let weights: Vec<_> = scores.iter().map(|it| (it - largest).exp()).collect();
                    let sum = weights.iter().sum::<f64>() + (f64::from(sink) - largest).exp();
                    for (i, &computed) in computed.iter().enumerate() {
                        let value = |token| f64::from(values[value_at(head, token, i)]);
                        let terms = (from..end).zip(&weights).map(|(token, w)| w * value(token));
                        let expected = terms.sum::<f64>() / sum;
                        let error = (f64::from(computed) - expected).abs();
                        // Scores as large as 50 are off by a few of their last bits.
                        let most = 2e-6 * f64::from(size).max(1.0);
                        assert!(error <= most, "{what}: {computed}, not {expected} ({error:e})");
                    }
                }
            }
        }
    }
}

#[test]
fn odd_shapes_match_f64() {
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    for width in [1, 7, 16, 50, 64, 80, 96, 128] {
        for group in [1, 2, 3, 4, 7] {
            for (rows, used, start) in [(1, 1, 0), (1, 1, 150), (8, 5, 64), (8, 8, 60), (20, 19, 3)]
            {
                Case { width, group, rows, used, start, ..PLAIN }.check(&mut rng);
            }
        }
    }
    Case { kv_heads: 1, head: 0, group: 12, width: 33, ..PLAIN }.check(&mut rng);
    Case { kv_heads: 5, head: 3, group: 1, rows: 9, used: 9, ..PLAIN }.check(&mut rng);
}

#[test]
fn every_start_around_a_block_matches_f64() {
    let mut rng = ChaCha8Rng::seed_from_u64(2);
    for start in 0..=130 {
        Case { start, width: 16, ..PLAIN }.check(&mut rng);
        Case { start, width: 16, rows: 8, used: 7, ..PLAIN }.check(&mut rng);
    }
    Case { width: 32, rows: 200, used: 190, start: 63, ..PLAIN }.check(&mut rng);
}

#[test]
fn windows_match_f64_and_leave_older_keys_alone() {
    let mut rng = ChaCha8Rng::seed_from_u64(3);
    for window in [1, 2, 15, 16, 17, 63, 64, 65, 100, 1000] {
        for (rows, used, start) in [(1, 1, 0), (1, 1, 64), (1, 1, 200), (16, 13, 130), (70, 70, 5)]
        {
            Case { window, rows, used, start, width: 24, ..PLAIN }.check(&mut rng);
        }
    }
}

#[test]
fn keys_behind_a_row_match_f64_and_others_are_left_alone() {
    let mut rng = ChaCha8Rng::seed_from_u64(12);
    for (behind, more) in [(1, 0), (1, 5), (15, 3), (64, 100), (63, 63), (1000, 0), (1000, 300)] {
        for (rows, used, start) in [(1, 1, 0), (1, 1, 64), (16, 13, 130), (70, 70, 0)] {
            let case = Case { behind, more, rows, used, start, width: 24, ..PLAIN };
            case.check(&mut rng);
            Case { window: behind + 1, ..case }.check(&mut rng);
            Case { apart: 3.0, ..case }.check(&mut rng);
            Case { apart: 3.0, group: 1, cap: 5.0, ..case }.check(&mut rng);
        }
    }
}

#[test]
fn sinks_match_f64() {
    let mut rng = ChaCha8Rng::seed_from_u64(11);
    // Among the scores, far above them, and far below.
    for sinks in [1.0, 40.0, -40.0, 1000.0] {
        for (rows, used, start) in [(1, 1, 0), (1, 1, 200), (16, 13, 130), (70, 70, 5)] {
            for group in [1, 3, 8] {
                let case = Case { sinks, group, rows, used, start, width: 24, ..PLAIN };
                case.check(&mut rng);
                Case { window: 20, ..case }.check(&mut rng);
            }
        }
    }
}

#[test]
fn scores_far_apart_match_f64() {
    let mut rng = ChaCha8Rng::seed_from_u64(4);
    for size in [0.0, 10.0, 100.0, 1000.0] {
        Case { size, start: 300, ..PLAIN }.check(&mut rng);
        Case { size, rows: 8, used: 8, start: 100, window: 90, ..PLAIN }.check(&mut rng);
    }
}

#[test]
fn scaled_and_capped_scores_match_f64() {
    let mut rng = ChaCha8Rng::seed_from_u64(6);
    for (scale, cap) in [(0.3, 0.0), (0.0625, 50.0), (1.0, 50.0), (0.5, 2.0)] {
        Case { scale, cap, start: 300, ..PLAIN }.check(&mut rng);
        Case { scale, cap, rows: 8, used: 7, start: 100, window: 90, width: 24, ..PLAIN }
            .check(&mut rng);
    }
}

#[test]
fn rows_that_are_all_padding_are_cleared() {
    Case { rows: 8, used: 0, start: 64, ..PLAIN }.check(&mut ChaCha8Rng::seed_from_u64(5));
}

/// Halves of every kind, signed, subnormal and the largest, are what is multiplied.
#[test]
fn halves_of_any_size_are_widened() {
    let sizes = [0.0, 6e-8, 5e-6, -6.1e-5, 1.0, -0.333, 2049.0, 65504.0, -65504.0];
    for isa in Isa::all_here() {
        for size in sizes {
            let value = half::f16::from_f32(size);
            let keys = vec![half::f16::ZERO; 16 * KV_BLOCK];
            let values = vec![value; 16 * KV_BLOCK];
            let (queries, mut output) = ([1f32; 16], [f32::NAN; 16]);
            let attention = Attention {
                queries: queries.as_ptr(),
                query_stride: 16,
                keys: keys.as_ptr().cast(),
                values: values.as_ptr().cast(),
                page_stride: 16 * KV_BLOCK,
                pages: &0,
                output: output.as_mut_ptr(),
                output_stride: 16,
                rows: 1,
                used: 1,
                start: 40,
                window: 0,
                behind: 0,
                keys_in_all: 0,
                distances: std::ptr::null(),
                distances_stride: 0,
                group: 1,
                width: 16,
                scale: 0.25,
                cap: 0.0,
                sinks: std::ptr::null(),
            };
            // SAFETY: this CPU has the instructions, and the buffers have the shapes stated.
            unsafe { attention_for(KvFormat::F16, isa)(&attention) };
            // 41 weights of 1/41 each.
            let most = value.to_f32().abs() * 1e-6;
            assert!(
                output.iter().all(|it| (it - value.to_f32()).abs() <= most),
                "{isa:?}: {value} became {output:?}"
            );
        }
    }
}

#[test]
fn what_is_not_finite_is_not_hidden() {
    let places = [(0, f32::NAN), (0, f32::INFINITY), (1, f32::NAN), (2, f32::NAN), (2, 1e6)];
    for (isa, (_, format)) in
        Isa::all_here().into_iter().flat_map(|isa| KvFormat::ALL.map(|format| (isa, format)))
    {
        for (place, value) in places {
            let mut data = [vec![1f32; 64], vec![1f32; 64 * KV_BLOCK], vec![1f32; 64 * KV_BLOCK]];
            data[place][5] = value;
            let [queries, keys, values] = data;
            let ((keys, _), (values, _)) = (stored(format, &keys), stored(format, &values));
            let mut output = vec![0f32; 64];
            let attention = Attention {
                queries: queries.as_ptr(),
                query_stride: 64,
                keys: keys.as_ptr(),
                values: values.as_ptr(),
                page_stride: 64 * KV_BLOCK,
                pages: &0,
                output: output.as_mut_ptr(),
                output_stride: 64,
                rows: 1,
                used: 1,
                start: 40,
                window: 0,
                behind: 0,
                keys_in_all: 0,
                distances: std::ptr::null(),
                distances_stride: 0,
                group: 1,
                width: 64,
                scale: 0.125,
                cap: 0.0,
                sinks: std::ptr::null(),
            };
            // SAFETY: this CPU has the instructions, and the buffers have the shapes stated.
            unsafe { attention_for(format, isa)(&attention) };
            let hidden = output[5].is_finite();
            // What is too large for a half is infinite there, not for f32.
            let held = format == KvFormat::F32 && value.is_finite();
            assert_eq!(hidden, held, "{isa:?} {format:?}: {value} in {place} gave {}", output[5]);
        }
    }
}

/// Neither the keys and values of later tokens, nor of those that a window has left behind.
#[test]
fn what_a_row_does_not_see_leaves_its_bits_alone() {
    const WIDTH: usize = 24;
    const TOKENS: usize = 2 * KV_BLOCK;
    let mut rng = ChaCha8Rng::seed_from_u64(7);
    for (isa, (_, format)) in
        Isa::all_here().into_iter().flat_map(|isa| KvFormat::ALL.map(|format| (isa, format)))
    {
        for (group, window, start) in [(1, 0, 58), (3, 0, 60), (7, 0, 63), (2, 4, 61), (8, 70, 100)]
        {
            let rows = 6;
            let row = group * WIDTH;
            let [queries, keys, values] = [rows * row, TOKENS * WIDTH, TOKENS * WIDTH]
                .map(|len| -> Vec<f32> { (0..len).map(|_| random(&mut rng)).collect() });
            let run = |keys: &[f32], values: &[f32]| {
                let ((keys, _), (values, _)) = (stored(format, keys), stored(format, values));
                let mut output = vec![0f32; rows * row];
                let attention = Attention {
                    queries: queries.as_ptr(),
                    query_stride: row,
                    keys: keys.as_ptr(),
                    values: values.as_ptr(),
                    page_stride: WIDTH * KV_BLOCK,
                    pages: [0, 1].as_ptr(),
                    output: output.as_mut_ptr(),
                    output_stride: row,
                    rows,
                    used: rows,
                    start,
                    window,
                    behind: 0,
                    keys_in_all: 0,
                    distances: std::ptr::null(),
                    distances_stride: 0,
                    group,
                    width: WIDTH,
                    scale: 0.125,
                    cap: 0.0,
                    sinks: std::ptr::null(),
                };
                // SAFETY: this CPU has the instructions, and the buffers have the shapes stated.
                unsafe { attention_for(format, isa)(&attention) };
                output
            };
            let clean = run(&keys, &values);
            let oldest = if window == 0 { start } else { start + 1 - window };
            for token in oldest..start + rows {
                let (mut odd_keys, mut odd_values) = (keys.clone(), values.clone());
                let (block, slot) = (token / KV_BLOCK, token % KV_BLOCK);
                for i in 0..WIDTH {
                    odd_keys[(block * WIDTH + i) * KV_BLOCK + slot] = f32::INFINITY;
                    odd_values[token * WIDTH + i] = f32::INFINITY;
                }
                for odd in [run(&odd_keys, &values), run(&keys, &odd_values)] {
                    for (at, (odd, clean)) in odd.chunks(row).zip(clean.chunks(row)).enumerate() {
                        let end = start + at;
                        let sees = token <= end && (window == 0 || token + window > end);
                        let same = odd.iter().zip(clean).all(|(a, b)| a.to_bits() == b.to_bits());
                        let what = format!("{isa:?} {format:?} {group} {window}: {token} in {end}");
                        assert_eq!(same, !sees, "{what}");
                    }
                }
            }
        }
    }
}

/// As many scores as fit beside one of 0.
const SCORES: usize = KV_BLOCK - 1;

/// The weights of `scores`, which are not positive, as attention computes them, over that of 0.
///
/// `near` are numbers close to them. Each key has a column of the values, in which the first key takes
/// away what is near: the rest is exact, and so is the first column, the share of a weight of 1.
fn weights(isa: Isa, scores: &[f32; SCORES], near: &[f32; SCORES]) -> [f64; SCORES] {
    let mut queries = [0f32; KV_BLOCK];
    queries[0] = 1.0;
    let mut keys = [[0f32; KV_BLOCK]; KV_BLOCK];
    keys[0][1..].copy_from_slice(scores);
    let mut values = [[0f32; KV_BLOCK]; KV_BLOCK];
    for (i, row) in values.iter_mut().enumerate() {
        row[i] = 1.0;
    }
    for (value, near) in values[0][1..].iter_mut().zip(near) {
        *value = -near;
    }
    let mut output = [f32::NAN; KV_BLOCK];
    let attention = Attention {
        queries: queries.as_ptr(),
        query_stride: KV_BLOCK,
        keys: keys.as_ptr().cast(),
        values: values.as_ptr().cast(),
        page_stride: KV_BLOCK * KV_BLOCK,
        pages: &0,
        output: output.as_mut_ptr(),
        output_stride: KV_BLOCK,
        rows: 1,
        used: 1,
        start: SCORES,
        window: 0,
        behind: 0,
        keys_in_all: 0,
        distances: std::ptr::null(),
        distances_stride: 0,
        group: 1,
        width: KV_BLOCK,
        scale: 1.0,
        cap: 0.0,
        sinks: std::ptr::null(),
    };
    // SAFETY: this CPU has the instructions, and the buffers have the shapes stated.
    unsafe { attention_for(KvFormat::F32, isa)(&attention) };
    let [share, rest @ ..] = output.map(f64::from);
    std::array::from_fn(|i| f64::from(near[i]) + rest[i] / share)
}

#[test]
fn exponentials_are_right_to_the_last_bits() {
    const STEP: f32 = 87.3 / (1 << 20) as f32;
    for first in (0..1 << 20).step_by(SCORES) {
        let numbers: [f32; SCORES] =
            std::array::from_fn(|i| -((first + i).min(1 << 20) as f32) * STEP);
        let expected = numbers.map(|x| f64::from(x).exp());
        for isa in Isa::all_here() {
            let powers = weights(isa, &numbers, &expected.map(|power| power as f32));
            for ((x, power), expected) in numbers.iter().zip(powers).zip(expected) {
                let error = (power - expected).abs() / expected;
                // An ulp is 6e-8 to 1.2e-7 of a number.
                assert!(error <= 1.3e-7, "{isa:?}: {x} is off by {error:e}");
            }
        }
    }
    let mut edges = [0.0; SCORES];
    edges[..4].copy_from_slice(&[-88.0, -1000.0, -1e30, f32::NEG_INFINITY]);
    let mut powers = [1.0; SCORES];
    powers[..4].fill(0.0);
    for isa in Isa::all_here() {
        assert_eq!(weights(isa, &edges, &[0.0; SCORES]), powers, "{isa:?}");
        let nan = weights(isa, &[f32::NAN; SCORES], &[0.0; SCORES]);
        assert!(nan.iter().all(|weight| weight.is_nan()), "{isa:?}");
    }
}
