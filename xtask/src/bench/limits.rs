//! What the machine could do at best: bytes read from memory and multiplications a second.
//!
//! Single tokens are bound by the first (weights are read once a token), prompts by the
//! second.

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use memmap2::MmapMut;
use pulp::{Arch, Simd, WithSimd};

use super::sample::Limits;

/// Measures both with `threads` threads, for `format`.
///
/// # Errors
///
/// There is no memory to read.
pub fn measure(format: &'static str, threads: usize, quick: bool) -> Result<Limits> {
    let (bytes, repetitions) = if quick { (1 << 30, 3) } else { (2 << 30, 6) };
    Ok(Limits {
        format,
        threads,
        bytes_per_second: read_bandwidth(threads, bytes, repetitions)?,
        flops: fma_peak(threads, Duration::from_millis(if quick { 200 } else { 1000 })),
    })
}

/// Bytes that one stream reads before the next one's turn.
const RUN: usize = 128 << 10;
const LINE: usize = 64;

/// The best of all numbers of streams and all repetitions, in bytes a second.
fn read_bandwidth(threads: usize, bytes: usize, repetitions: usize) -> Result<f64> {
    let mut memory = MmapMut::map_anon(bytes).context("no memory to measure its bandwidth with")?;
    #[cfg(target_os = "linux")]
    let _ = memory.advise(memmap2::Advice::HugePage);
    let share = bytes / threads / (16 * RUN) * (16 * RUN);
    thread::scope(|scope| {
        for part in memory.chunks_exact_mut(share).take(threads) {
            scope.spawn(|| part.fill(1));
        }
    });
    let mut best = 0f64;
    for streams in [1, 4, 8, 16] {
        for _ in 0..repetitions {
            let seconds = together(threads, |thread| {
                let part = &memory[thread * share..][..share];
                std::hint::black_box(Arch::new().dispatch(|| sum(part, streams)));
            });
            best = best.max((share * threads) as f64 / seconds);
        }
    }
    Ok(best)
}

/// Adds everything up, line by line from `streams` places in turn.
#[inline(always)]
fn sum(memory: &[u8], streams: usize) -> u64 {
    let mut sums = [0u64; LINE / 8];
    for block in memory.chunks_exact(streams * RUN) {
        for line in (0..RUN).step_by(LINE) {
            for stream in 0..streams {
                let at = stream * RUN + line;
                let words: &[u64] = bytemuck::cast_slice(&block[at..at + LINE]);
                for (sum, word) in sums.iter_mut().zip(words) {
                    *sum = sum.wrapping_add(*word);
                }
            }
        }
    }
    sums.iter().fold(0, |all, sum| all.wrapping_add(*sum))
}

/// Float32 operations a second when nothing but fused multiply-adds on registers run.
fn fma_peak(threads: usize, time: Duration) -> f64 {
    let arch = Arch::new();
    let mut iterations = 1 << 16;
    loop {
        let seconds = together(threads, |_| {
            std::hint::black_box(arch.dispatch(MultiplyAdd { iterations }));
        });
        if seconds * 2.0 >= time.as_secs_f64() {
            let lanes = arch.dispatch(Lanes);
            return (threads * iterations * ACCUMULATORS * lanes * 2) as f64 / seconds;
        }
        iterations *= 2;
    }
}

/// Enough to hide the latency of one (4 cycles, two a cycle), few enough for 16 registers.
const ACCUMULATORS: usize = 12;

struct MultiplyAdd {
    iterations: usize,
}

impl WithSimd for MultiplyAdd {
    type Output = f32;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> f32 {
        let factor = simd.splat_f32s(std::hint::black_box(0.999_9));
        let term = simd.splat_f32s(std::hint::black_box(1e-4));
        let mut sums = [simd.splat_f32s(1.0); ACCUMULATORS];
        for _ in 0..self.iterations {
            for sum in &mut sums {
                *sum = simd.mul_add_e_f32s(*sum, factor, term);
            }
        }
        sums.into_iter().map(|sum| simd.reduce_sum_f32s(sum)).sum()
    }
}

struct Lanes;

impl WithSimd for Lanes {
    type Output = usize;

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) -> usize {
        S::F32_LANES
    }
}

/// Seconds from the common start of `threads` threads until the last is done with `work`.
fn together(threads: usize, work: impl Fn(usize) + Sync) -> f64 {
    let barrier = Barrier::new(threads);
    let (work, barrier) = (&work, &barrier);
    let times = thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|thread| {
                scope.spawn(move || {
                    barrier.wait();
                    let start = Instant::now();
                    work(thread);
                    (start, Instant::now())
                })
            })
            .collect();
        let join = |worker: thread::ScopedJoinHandle<'_, _>| {
            worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        workers.into_iter().map(join).collect::<Vec<(Instant, Instant)>>()
    });
    let start = times.iter().map(|(start, _)| *start).min();
    let end = times.iter().map(|(_, end)| *end).max();
    start.zip(end).map_or(0.0, |(start, end)| (end - start).as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_read_once_whatever_the_streams() {
        let words: Vec<u64> = (0..16 * RUN as u64 / 8 * 2).collect();
        let expected: u64 = words.iter().sum();
        for streams in [1, 4, 8, 16] {
            assert_eq!(sum(bytemuck::cast_slice(&words), streams), expected);
        }
    }

    #[test]
    fn the_multiplications_are_done() {
        // sum = 0.9999 sum + 0.0001 stays at its fixed point, 1.
        let sum = Arch::new().dispatch(MultiplyAdd { iterations: 1000 });
        let lanes = Arch::new().dispatch(Lanes);
        assert!((sum - (ACCUMULATORS * lanes) as f32).abs() < 0.1 * lanes as f32, "{sum}");
        assert!(lanes >= 1);
    }
}
