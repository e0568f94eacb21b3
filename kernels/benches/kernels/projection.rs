//! The output projection of a greedy step, of a 1B model's shape: the whole product, or the coarse
//! part of the weights and then what the fine part adds to rows that may win.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use kernels::quantise::{pack_block, split_block};
use kernels::{
    Format, Isa, Kernel, LANES, Product, Refine, RefineKernel, coarse_for, product_for, refine_for,
};
use memmap2::MmapMut;

use super::{ROUNDS, RUN, huge_pages, next_random, together};

const OUTPUTS: usize = 128_256;
const COLUMNS: usize = 2048;
/// Rows to a call that refines.
const REFINED_RUN: usize = 8192;

/// Matrices of one format, normally distributed, and their parts.
struct Projection {
    format: Format,
    whole: MmapMut,
    coarse: MmapMut,
    fine: MmapMut,
    norms: Vec<f32>,
    x: Vec<f32>,
}

/// Prints the milliseconds of each way, medians of rounds that take turns.
pub fn measure(format: Format, isa: Isa) {
    let projection = Projection::new(format);
    let (whole, coarse) = (product_for(format, isa), coarse_for(format, isa));
    let refine = refine_for(format, isa);
    for threads in [1, 2] {
        let mut samples = [const { Vec::new() }; 4];
        let mut refined = 0;
        for _ in 0..ROUNDS {
            let (seconds, _) = projection.multiply(threads, whole, &projection.whole, format);
            samples[0].push(seconds);
            let (seconds, logits) =
                projection.multiply(threads, coarse, &projection.coarse, Format::Int4);
            samples[1].push(seconds);
            let (seconds, y) = projection.refine(threads, refine, &logits, false);
            samples[2].push(seconds);
            refined = y.iter().filter(|y| **y > f32::NEG_INFINITY).count();
            let (seconds, _) = projection.refine(threads, refine, &logits, true);
            samples[3].push(seconds);
        }
        let [whole, coarse, some, all] = samples.map(|mut samples| {
            samples.sort_unstable_by(f64::total_cmp);
            samples[samples.len() / 2] * 1e3
        });
        println!(
            "{isa:?}, {threads} threads, {format:?} [{OUTPUTS}, {COLUMNS}]: whole {whole:.2} ms; \
             coarse {coarse:.2} ms, and rows that may win {some:.2} ms ({refined} in the end), and \
             all rows {all:.2} ms",
        );
    }
}

impl Projection {
    fn new(format: Format) -> Self {
        let mut state = 1;
        let mut random = || {
            state = next_random(state);
            (state >> 40) as f32 / (1 << 24) as f32 - 0.5
        };
        // Sums of so many are spread as Gaussians are.
        let gaussians: Vec<f32> =
            (0..1 << 16).map(|_| 0.02 * (0..12).map(|_| random()).sum::<f32>()).collect();
        let mut gaussian = || {
            state = next_random(state);
            gaussians[(state >> 48) as usize]
        };
        let [block_bytes, coarse_bytes] =
            [format, Format::Int4].map(|format| format.block_bytes(COLUMNS));
        let fine_bytes = LANES * format.fine_row_bytes(COLUMNS);
        let blocks = OUTPUTS / LANES;
        let mut projection = Self {
            format,
            whole: huge_pages(blocks * block_bytes),
            coarse: huge_pages(blocks * coarse_bytes),
            fine: huge_pages(blocks * fine_bytes),
            norms: vec![0.0; OUTPUTS],
            x: (0..COLUMNS).map(|_| gaussian()).collect(),
        };
        let Self { whole, coarse, fine, norms, .. } = &mut projection;
        let parts = whole.chunks_mut(block_bytes).zip(coarse.chunks_mut(coarse_bytes));
        let parts = parts.zip(fine.chunks_mut(fine_bytes)).zip(norms.as_chunks_mut().0);
        for (((whole, coarse), fine), norms) in parts {
            let weights: Vec<f32> = (0..LANES * COLUMNS).map(|_| gaussian()).collect();
            let rows: Vec<&[f32]> = weights.chunks(COLUMNS).collect();
            pack_block(format, &rows, whole);
            split_block(format, whole, COLUMNS, coarse, fine, norms);
        }
        projection
    }

    /// Seconds and the products with blocks that are stored as `format`.
    fn multiply(
        &self,
        threads: usize,
        kernel: Kernel,
        weights: &[u8],
        format: Format,
    ) -> (f64, Vec<f32>) {
        let block_bytes = format.block_bytes(COLUMNS);
        self.runs(threads, RUN * LANES, |first, y| {
            let product = Product {
                weights: weights[first / LANES * block_bytes..].as_ptr(),
                index: std::ptr::null(),
                x: self.x.as_ptr().cast(),
                y: y.as_mut_ptr(),
                rows: 1,
                used: 1,
                columns: COLUMNS,
                blocks: y.len() / LANES,
                stride: y.len(),
            };
            // SAFETY: this CPU has the instructions, and each buffer holds the shape stated.
            unsafe { kernel(&product) };
        })
    }

    /// Seconds and the products.
    fn refine(
        &self,
        threads: usize,
        kernel: RefineKernel,
        coarse: &[f32],
        all: bool,
    ) -> (f64, Vec<f32>) {
        let row_bytes = self.format.fine_row_bytes(COLUMNS);
        let best = (0..OUTPUTS).max_by(|&a, &b| coarse[a].total_cmp(&coarse[b]));
        let best = best.expect("there are rows");
        self.runs(threads, REFINED_RUN, |first, y| {
            let refine = Refine {
                fine: self.fine[first * row_bytes..].as_ptr(),
                norms: self.norms[first..].as_ptr(),
                coarse: coarse[first..].as_ptr(),
                x: self.x.as_ptr(),
                best_fine: self.fine[best * row_bytes..].as_ptr(),
                best_coarse: coarse[best],
                all,
                y: y.as_mut_ptr(),
                rows: y.len(),
                columns: COLUMNS,
            };
            // SAFETY: as above.
            unsafe { kernel(&refine) };
        })
    }

    /// Calls `work` with the first row and the products of each run of so many rows.
    fn runs(
        &self,
        threads: usize,
        rows: usize,
        work: impl Fn(usize, &mut [f32]) + Sync,
    ) -> (f64, Vec<f32>) {
        // Not zeros, whose pages would come one by one while time is taken.
        let mut y = vec![1f32; OUTPUTS];
        let runs: Vec<_> = y.chunks_mut(rows).map(std::sync::Mutex::new).collect();
        let next = AtomicUsize::new(0);
        let seconds = together(threads, |_| {
            loop {
                let number = next.fetch_add(1, Relaxed);
                let Some(run) = runs.get(number) else { break };
                work(number * rows, &mut run.lock().expect("no run is taken twice"));
            }
        });
        drop(runs);
        (seconds, y)
    }
}
