//! What the machine could do at best: bytes read from memory and multiplications a second.
//!
//! Single tokens are bound by the first (weights are read once a token), prompts by the
//! second.

use std::time::{Duration, Instant};
use std::{iter, thread};

use anyhow::{Context, Result};
use kernels::{Isa, limits};
use memmap2::MmapMut;

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

/// The best of all numbers of streams and all repetitions, in bytes a second.
fn read_bandwidth(threads: usize, bytes: usize, repetitions: usize) -> Result<f64> {
    let mut memory = MmapMut::map_anon(bytes).context("no memory to measure its bandwidth with")?;
    #[cfg(target_os = "linux")]
    let _ = memory.advise(memmap2::Advice::HugePage);
    thread::scope(|scope| {
        for part in memory.chunks_mut(bytes.div_ceil(threads)) {
            scope.spawn(|| part.fill(1));
        }
    });
    let isa = Isa::detect();
    let of = |streams| limits::read_bandwidth(isa, threads, &memory, streams);
    let all = [1, 4, 8, 16].into_iter().flat_map(|streams| iter::repeat_n(streams, repetitions));
    Ok(all.map(of).fold(0.0, f64::max))
}

/// Float32 operations a second when nothing but fused multiply-adds on registers run.
fn fma_peak(threads: usize, time: Duration) -> f64 {
    let mut turns = 1 << 16;
    loop {
        let start = Instant::now();
        let peak = limits::fma_peak(Isa::detect(), threads, turns);
        if start.elapsed() * 2 >= time {
            return peak;
        }
        turns *= 2;
    }
}
