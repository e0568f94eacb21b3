//! What a CPU does at best, for benchmarks to hold kernels against: bytes that it reads, and multiply-adds of its widest
//! vectors.

use std::cell::Cell;
use std::hint::black_box;
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::Instant;

use crate::dispatch::enter;
use crate::vector::{Job, Vector};
use crate::{Isa, LANES};

/// Bytes that each of the streams has side by side.
const RUN: usize = 128 << 10;
/// Bytes that one stream reads before the next one's turn: eight lines, which CPUs' own prefetching follows better than
/// single ones.
const PIECE: usize = 512;
/// Words of eight bytes that are added side by side: those of a line.
const WORDS: usize = 8;
/// The most vectors that are added to in turn: those of a tile of kernels, which hide what an addition takes.
const SUMS: usize = 8;

/// Bytes of `memory` that so many `threads` read in a second, each its share from `streams` places in turn.
///
/// # Panics
///
/// No thread can be started, or this CPU has no `isa`.
pub fn read_bandwidth(isa: Isa, threads: usize, memory: &[u8], streams: usize) -> f64 {
    let share = memory.len() / threads / (streams * RUN) * (streams * RUN);
    let seconds = together(threads, |thread| {
        let part = &memory[thread * share..][..share];
        black_box(sum(isa, part, streams));
    });
    (share * threads) as f64 / seconds
}

/// f32 operations that so many `threads` do in a second when nothing but multiply-adds on registers run, `turns` of each.
///
/// # Panics
///
/// No thread can be started, or this CPU has no `isa`.
pub fn fma_peak(isa: Isa, threads: usize, turns: usize) -> f64 {
    let operations = AtomicUsize::new(0);
    let seconds = together(threads, |_| {
        let (sum, done) = multiply_add(isa, turns);
        black_box(sum);
        operations.fetch_add(done, Relaxed);
    });
    operations.into_inner() as f64 / seconds
}

/// Seconds from the common start of `threads` threads, each with its number, until the last is done with `work`.
///
/// # Panics
///
/// No thread can be started, or `work` panics.
pub fn together(threads: usize, work: impl Fn(usize) + Sync) -> f64 {
    let barrier = Barrier::new(threads);
    let (work, barrier) = (&work, &barrier);
    let times: Vec<(Instant, Instant)> = thread::scope(|scope| {
        let worker = |thread| {
            scope.spawn(move || {
                barrier.wait();
                let start = Instant::now();
                work(thread);
                (start, Instant::now())
            })
        };
        let workers: Vec<_> = (0..threads).map(worker).collect();
        let join = |worker: thread::ScopedJoinHandle<'_, _>| {
            worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        workers.into_iter().map(join).collect()
    });
    let start = times.iter().map(|(start, _)| *start).min();
    let end = times.iter().map(|(_, end)| *end).max();
    start.zip(end).map_or(0.0, |(start, end)| (end - start).as_secs_f64())
}

/// As [`enter`], for jobs that want nothing else.
macro_rules! run {
    ($isa:expr, $job:expr) => {{
        assert!(Isa::all_here().contains(&$isa), "this CPU has no {}", $isa.as_str());
        // SAFETY: the CPU has the instructions, and the job is safe.
        unsafe { enter($isa, $job) }
    }};
}

/// The sum of `memory`'s words of eight bytes, which are read in pieces of eight lines from `streams` places in turn,
/// 128 KiB from each before the next so many. What does not fill all streams at the end is not read.
///
/// # Panics
///
/// This CPU has no `isa`.
pub fn sum(isa: Isa, memory: &[u8], streams: usize) -> u64 {
    let all = Cell::new(0);
    run!(isa, &Sum { memory, streams, all: &all });
    all.into_inner()
}

/// The sum of numbers that began as zeros and were multiplied by 0.9999 and had 0.0001 added so often, and the f32
/// operations that it took.
///
/// # Panics
///
/// This CPU has no `isa`.
pub fn multiply_add(isa: Isa, turns: usize) -> (f32, usize) {
    let done = Cell::new((0.0, 0));
    run!(isa, &MultiplyAdd { turns, done: &done });
    done.into_inner()
}

struct Sum<'a> {
    memory: &'a [u8],
    streams: usize,
    all: &'a Cell<u64>,
}

impl<V: Vector> Job<V> for Sum<'_> {
    #[inline(always)]
    unsafe fn run(&self) {
        let mut sums = [0u64; WORDS];
        for block in self.memory.chunks_exact(self.streams * RUN) {
            for piece in (0..RUN).step_by(PIECE) {
                for stream in 0..self.streams {
                    let words = block[stream * RUN + piece..][..PIECE].as_chunks::<8>().0;
                    for line in words.as_chunks::<WORDS>().0 {
                        for (sum, word) in sums.iter_mut().zip(line) {
                            *sum = sum.wrapping_add(u64::from_ne_bytes(*word));
                        }
                    }
                }
            }
        }
        self.all.set(sums.iter().fold(0, |all, sum| all.wrapping_add(*sum)));
    }
}

struct MultiplyAdd<'a> {
    turns: usize,
    done: &'a Cell<(f32, usize)>,
}

impl<V: Vector> Job<V> for MultiplyAdd<'_> {
    #[inline(always)]
    unsafe fn run(&self) {
        // SAFETY: the caller's promise; what is stored has the length that is stated.
        unsafe {
            let factor = V::splat(black_box(0.999_9));
            let term = V::splat(black_box(1e-4));
            let mut sums = [V::splat(0.0); SUMS];
            for _ in 0..self.turns {
                for sum in &mut sums[..V::ROWS] {
                    *sum = sum.mul_add(factor, term).pin();
                }
            }
            let mut all = 0.0;
            for sum in &sums[..V::ROWS] {
                let mut lanes = [0.0f32; LANES];
                sum.store(lanes.as_mut_ptr());
                all += lanes.iter().sum::<f32>();
            }
            self.done.set((all, self.turns * V::ROWS * LANES * 2));
        }
    }
}
