//! How fast the kernels are, beside what the machine could do at best.
//!
//! `cargo bench -p kernels --bench kernels [-- [FORMAT | attention | delta]... [ISA] [ROWS]... [THREADSt]]`:
//! for each format and number of rows, on one and two threads (or those of `1t`), weights multiplied
//! a second, those of every row counted, bytes of weights read, and f32 operations done, over
//! matrices of the shapes of a 1B model's MLP; attention over a KV cache of its shape, in f32 and
//! f16, counting what of the cache the rows see, once; and linear attention by the gated delta rule,
//! counting what it does with the states, which it reads and writes once. Formats that can be compressed are measured so
//! too, as a model's weights are stored. With one row the bytes read are many times the caches. The
//! machine's limits, multiply-adds with the vectors of the instruction set, are measured in turn with
//! the kernels; every figure is the best of its rounds, which what else runs on the machine disturbs
//! least. The last share is that of the limit that binds.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use kernels::limits::{fma_peak, read_bandwidth, together};
use kernels::{
    Attention, DeltaState, Format, GatedDelta, Isa, KV_BLOCK, Kernel, KvFormat, LANES, Product,
    attention_for, compress, compressed_product_for, gated_delta, product_for,
};
use memmap2::MmapMut;

const ROUNDS: usize = 40;
const ROWS: [usize; 7] = [1, 2, 4, 8, 16, 64, 256];
/// `[outputs, inputs]` of consecutive matrices.
const SHAPES: [(usize, usize); 2] = [(8192, 2048), (2048, 8192)];
/// Blocks to a call.
const RUN: usize = 32;
/// Bytes of weights that one row meets.
const BYTES: usize = 256 << 20;
/// Elements between rows of a result, a power of two as in a model.
const STRIDE: usize = 8192;
/// Rows of attention, and tokens before them.
const CONTEXTS: [(usize, usize); 4] = [(1, 2047), (8, 2040), (256, 0), (256, 1792)];
/// Rows of linear attention.
const RECURRENT: [usize; 2] = [1, 256];
/// Bytes or f32 operations after which no further call of products is begun.
const SAMPLE_BYTES: usize = 32 << 20;
const SAMPLE_OPERATIONS: usize = 1 << 29;
/// f32 operations of attention, and of linear attention.
const OPERATIONS: usize = 1 << 29;

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let wanted = |name: String| words.iter().any(|word| name.eq_ignore_ascii_case(word));
    let isa = Isa::all_here().into_iter().find(|isa| wanted(format!("{isa:?}")));
    let isa = isa.unwrap_or_else(Isa::detect);
    let mut formats = Format::ALL.to_vec();
    let mut contexts = CONTEXTS.to_vec();
    let mut recurrent = RECURRENT.to_vec();
    let parts = ["attention", "delta"].map(|part| wanted(part.into()));
    if parts.contains(&true) || formats.iter().any(|format| wanted(format!("{format:?}"))) {
        formats.retain(|format| wanted(format!("{format:?}")));
        contexts.retain(|_| parts[0]);
        recurrent.retain(|_| parts[1]);
    }
    let mut rows = ROWS.to_vec();
    let asked: Vec<usize> = words.iter().filter_map(|word| word.parse().ok()).collect();
    if !asked.is_empty() {
        rows = asked;
    }

    let memory = Arc::new(memory());
    let plain = formats.iter().map(|&format| Weights::plain(&memory, format, isa));
    let compressible = formats.iter().filter(|format| format.is_compressible(SHAPES[0].1));
    let compressed = compressible.map(|&format| Weights::compressed(format, isa));
    let weights: Vec<Weights> = plain.chain(compressed).collect();
    let threads: Vec<usize> =
        [1, 2].into_iter().filter(|threads| wanted(format!("{threads}t"))).collect();
    let threads = if threads.is_empty() { vec![1, 2] } else { threads };
    for threads in threads {
        let mut limits = Vec::new();
        let mut samples = vec![vec![Vec::new(); rows.len()]; weights.len()];
        let mut attended = vec![[const { Vec::new() }; KvFormat::ALL.len()]; contexts.len()];
        let mut recurred = vec![Vec::new(); recurrent.len()];
        for _ in 0..ROUNDS {
            for (weights, samples) in weights.iter().zip(&mut samples) {
                limits.push(measure_limits(isa, threads, &memory));
                for (rows, samples) in rows.iter().zip(samples) {
                    samples.push(multiply(threads, weights, *rows));
                }
            }
            limits.push(measure_limits(isa, threads, &memory));
            for (&context, samples) in contexts.iter().zip(&mut attended) {
                for ((_, format), samples) in KvFormat::ALL.into_iter().zip(samples) {
                    samples.push(attend(threads, &memory, format, isa, context));
                }
            }
            for (&rows, samples) in recurrent.iter().zip(&mut recurred) {
                samples.push(recur(threads, isa, rows));
            }
        }

        let [bytes, flops] = best(&limits).map(|limit| limit / 1e9);
        println!("\n{isa:?}, {threads} threads: memory {bytes:.1} GB/s, FMA {flops:.1} GFLOP/s");
        let print = |what: String, rows: usize, samples: &[[f64; 2]]| {
            let [read, done] = best(samples).map(|figure| figure / 1e9);
            let share = (read / bytes).max(done / flops) * 100.0;
            println!(
                "{what:>23} {rows:>4} rows {:7.2} Gweights/s {read:6.2} GB/s {done:7.2} GFLOP/s {share:4.0}%",
                done / 2.0,
            );
        };
        for (weights, samples) in weights.iter().zip(samples) {
            for (rows, samples) in rows.iter().zip(samples) {
                print(weights.name.clone(), *rows, &samples);
            }
        }
        for ((rows, start), samples) in contexts.iter().zip(attended) {
            for ((name, _), samples) in KvFormat::ALL.iter().zip(samples) {
                print(format!("{name} @{start}"), *rows, &samples);
            }
        }
        for (rows, samples) in recurrent.iter().zip(recurred) {
            print("delta".into(), *rows, &samples);
        }
    }
}

/// The most bytes and the most operations a second.
fn best(samples: &[[f64; 2]]) -> [f64; 2] {
    [0, 1].map(|figure| samples.iter().map(|sample| sample[figure]).fold(0.0, f64::max))
}

/// Weights: bytes whose every pair and quadruple is an ordinary number of a small size, in any
/// format. A matrix may end behind [`BYTES`].
fn memory() -> MmapMut {
    let mut map = huge_pages(BYTES + (64 << 20));
    let mut state = 1u64;
    for bytes in map.as_chunks_mut::<8>().0 {
        state = next_random(state);
        *bytes = (0x3030303030303030 | state >> 32 & 0x0f0f0f0f0f0f0f0f).to_le_bytes();
    }
    map
}

fn huge_pages(bytes: usize) -> MmapMut {
    let map = MmapMut::map_anon(bytes).expect("memory for weights");
    #[cfg(target_os = "linux")]
    let _ = map.advise(memmap2::Advice::HugePage);
    map
}

fn next_random(state: u64) -> u64 {
    state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407)
}

/// Matrices of the shapes in turn, and what multiplies with them.
struct Weights {
    name: String,
    kernel: Kernel,
    memory: Arc<MmapMut>,
    matrices: Vec<Vec<Run>>,
    /// Which call is next, of all.
    next: AtomicUsize,
}

/// The blocks of a call.
struct Run {
    columns: usize,
    /// Where in the memory its weights begin, or what the index counts from.
    weights: usize,
    /// Where each block begins, if they are compressed.
    index: Vec<u64>,
    /// All that is read.
    bytes: usize,
}

impl Weights {
    fn plain(memory: &Arc<MmapMut>, format: Format, isa: Isa) -> Self {
        let mut end = 0;
        let matrices = matrices(|columns| {
            let (weights, bytes) = (end, RUN * format.block_bytes(columns));
            end += bytes;
            Run { columns, weights, index: Vec::new(), bytes }
        });
        let kernel = product_for(format, isa);
        Self {
            name: format!("{format:?}"),
            kernel,
            memory: memory.clone(),
            matrices,
            next: AtomicUsize::new(0),
        }
    }

    /// Gaussian ones; the runs of a shape are alike.
    fn compressed(format: Format, isa: Isa) -> Self {
        let mut state = 1;
        let mut uniform = || {
            state = next_random(state);
            (state >> 40) as f32 / (1 << 24) as f32 - 0.5
        };
        // Sums of so many are spread as Gaussians are, near zero too.
        let mut gaussian = || 0.02 * (0..12).map(|_| uniform()).sum::<f32>();
        let mut block = |columns| {
            let mut block = Vec::with_capacity(format.block_bytes(columns));
            for _ in 0..columns * LANES {
                let bits = gaussian().to_bits().to_le_bytes();
                block.extend(&bits[if format == Format::F32 { 0 } else { 2 }..]);
            }
            block
        };
        let runs = SHAPES.map(|(_, columns)| {
            let (mut bytes, mut index) = (Vec::new(), Vec::new());
            for _ in 0..RUN {
                index.push(bytes.len() as u64);
                compress(format, &block(columns), columns, &mut bytes);
            }
            (columns, bytes, index)
        });
        let mut memory = huge_pages(BYTES + (64 << 20));
        let mut end = 0;
        let matrices = matrices(|columns| {
            let (_, bytes, index) = runs.iter().find(|run| run.0 == columns).expect("of SHAPES");
            let (weights, bytes) = (end, bytes.as_slice());
            end += bytes.len();
            memory[weights..end].copy_from_slice(bytes);
            Run { columns, weights, index: index.clone(), bytes: bytes.len() }
        });
        let kernel = compressed_product_for(format, isa);
        Self {
            name: format!("{format:?} compressed"),
            kernel,
            memory: Arc::new(memory),
            matrices,
            next: AtomicUsize::new(0),
        }
    }
}

/// As many as [`BYTES`] hold, of the runs that `run` makes of so many columns.
fn matrices(mut run: impl FnMut(usize) -> Run) -> Vec<Vec<Run>> {
    let (mut matrices, mut bytes) = (Vec::new(), 0);
    for (outputs, columns) in SHAPES.into_iter().cycle() {
        if bytes >= BYTES {
            break;
        }
        let matrix: Vec<Run> = (0..outputs / LANES / RUN).map(|_| run(columns)).collect();
        bytes += matrix.iter().map(|run| run.bytes).sum::<usize>();
        matrices.push(matrix);
    }
    matrices
}

/// Bytes and f32 operations a second, in a time that is short beside that of a turn of threads. Calls
/// go on where those before ended, so that weights come from memory.
fn multiply(threads: usize, weights: &Weights, rows: usize) -> [f64; 2] {
    let all: Vec<&Run> = weights.matrices.iter().flatten().collect();
    let (mut calls, mut bytes, mut operations) = (Vec::new(), 0, 0);
    while calls.len() < 2 * threads || bytes < SAMPLE_BYTES && operations < SAMPLE_OPERATIONS {
        let run = all[weights.next.fetch_add(1, Relaxed) % all.len()];
        bytes += run.bytes;
        operations += 2 * rows * RUN * LANES * run.columns;
        calls.push(run);
    }

    let memory: &[u8] = &weights.memory;
    // Aligned as a device's buffers are.
    let mut x = huge_pages(rows * 8192 * size_of::<f32>());
    x.as_chunks_mut::<4>().0.fill(0.5f32.to_le_bytes());
    // What integers meet is rounded once for all of them: any integers will do.
    // Not zeros, whose pages would come one by one while time is taken.
    let results: Vec<_> = (0..threads).map(|_| Mutex::new(vec![1f32; rows * STRIDE])).collect();
    let next = AtomicUsize::new(0);
    let seconds = together(threads, |thread| {
        let mut y = results[thread].lock().expect("this thread's own");
        while let Some(run) = calls.get(next.fetch_add(1, Relaxed)) {
            let product = Product {
                weights: memory[run.weights..].as_ptr(),
                index: run.index.as_ptr(),
                x: x.as_ptr(),
                y: y.as_mut_ptr(),
                rows,
                used: rows,
                columns: run.columns,
                blocks: RUN,
                stride: STRIDE,
            };
            // SAFETY: this CPU has the instructions, and each buffer holds at least the shape
            // stated, with `y` this thread's own.
            unsafe { (weights.kernel)(&product) };
        }
        std::hint::black_box(&y);
    });
    [bytes as f64 / seconds, operations as f64 / seconds]
}

/// Bytes and f32 operations a second, of `rows` rows behind `start` tokens in as many layers as the
/// memory holds.
fn attend(
    threads: usize,
    memory: &MmapMut,
    format: KvFormat,
    isa: Isa,
    (rows, start): (usize, usize),
) -> [f64; 2] {
    const KV_HEADS: usize = 8;
    const GROUP: usize = 4;
    const WIDTH: usize = 64;
    /// Rows of a call.
    const SHARE: usize = 16;
    let blocks = (start + rows).div_ceil(KV_BLOCK);
    let page_stride = KV_HEADS * WIDTH * KV_BLOCK;
    let pages: Vec<i32> = (0..blocks as i32).collect();
    let seen: usize = (start + 1..=start + rows).sum();
    let of_layer = 4 * seen * KV_HEADS * GROUP * WIDTH;
    let layer_bytes = 2 * blocks * page_stride * format.bytes();
    let layers = (BYTES / layer_bytes).min(OPERATIONS.div_ceil(of_layer));
    let runs = rows.div_ceil(SHARE);
    let calls = layers * KV_HEADS * runs;

    let kernel = attention_for(format, isa);
    let stride = KV_HEADS * GROUP * WIDTH;
    let queries = vec![0.5f32; rows * stride];
    let next = AtomicUsize::new(0);
    let seconds = together(threads, |_| {
        let mut output = vec![0f32; SHARE * GROUP * WIDTH];
        loop {
            let call = next.fetch_add(1, Relaxed);
            if call >= calls {
                break;
            }
            let (first, head, layer) =
                (call % runs * SHARE, call / runs % KV_HEADS, call / runs / KV_HEADS);
            let share = SHARE.min(rows - first);
            let at = layer * layer_bytes + head * WIDTH * KV_BLOCK * format.bytes();
            let keys = memory[at..].as_ptr();
            let attention = Attention {
                queries: queries[first * stride..].as_ptr(),
                query_stride: stride,
                keys,
                values: keys.wrapping_add(layer_bytes / 2),
                page_stride,
                pages: pages.as_ptr(),
                output: output.as_mut_ptr(),
                output_stride: GROUP * WIDTH,
                rows: share,
                used: share,
                start: start + first,
                window: 0,
                behind: 0,
                keys_in_all: 0,
                distances: std::ptr::null(),
                distances_stride: 0,
                group: GROUP,
                width: WIDTH,
                scale: 0.125,
                cap: 0.0,
                sinks: std::ptr::null(),
            };
            // SAFETY: this CPU has the instructions, and each buffer holds at least the shape
            // stated, with `output` this thread's own; a mapping and all offsets are aligned.
            unsafe { kernel(&attention) };
        }
        std::hint::black_box(&output);
    });
    let tokens = start + rows;
    let read = layers * 2 * tokens * KV_HEADS * WIDTH * format.bytes();
    [read as f64 / seconds, (layers * of_layer) as f64 / seconds]
}

/// Bytes and f32 operations a second, of `rows` rows in layers: for one row their states are many times
/// the cache of a core.
fn recur(threads: usize, isa: Isa, rows: usize) -> [f64; 2] {
    const LAYERS: usize = 18;
    const HEADS: usize = 16;
    const WIDTH: usize = 128;
    const SEEN: usize = 4;
    const STATE: usize = HEADS * WIDTH * WIDTH;
    const CHANNELS: usize = 3 * HEADS * WIDTH;
    const LATEST: usize = (SEEN - 1) * CHANNELS;
    const STRIDE: usize = CHANNELS + HEADS * WIDTH + 2 * HEADS;
    // A product and three multiply-adds of each number of a state.
    let of_layer = 7 * rows * STATE;
    let layers = LAYERS.min(OPERATIONS.div_ceil(of_layer));
    let x: Vec<f32> = (0..rows * STRIDE).map(|i| (i % 1013) as f32 / 500.0 - 1.0).collect();
    let taps = vec![0.1f32; CHANNELS * SEEN];
    let (each, norm) = ([0.1f32; HEADS], [1f32; WIDTH]);
    // Before the rows and behind them.
    let memory = || {
        let mut memory = huge_pages(2 * (STATE + LATEST) * size_of::<f32>());
        memory.as_chunks_mut::<4>().0.fill(0.01f32.to_le_bytes());
        Mutex::new(memory)
    };
    let states: Vec<_> = (0..layers).map(|_| memory()).collect();
    let next = AtomicUsize::new(0);
    let seconds = together(threads, |_| {
        let mut output = vec![0f32; rows * HEADS * WIDTH];
        while let Some(layer) = states.get(next.fetch_add(1, Relaxed)) {
            let mut memory = layer.lock().expect("this thread's own");
            let at: *mut f32 = memory.as_mut_ptr().cast();
            let [latest, state_after, latest_after] =
                [STATE, STATE + LATEST, 2 * STATE + LATEST].map(|offset| at.wrapping_add(offset));
            for head in 0..HEADS {
                let of = GatedDelta {
                    x: x.as_ptr(),
                    stride: STRIDE,
                    rows,
                    head,
                    key_head: head,
                    first: true,
                    key_heads: HEADS,
                    value_heads: HEADS,
                    key_dim: WIDTH,
                    value_dim: WIDTH,
                    taps: taps.as_ptr(),
                    seen: SEEN,
                    decay: each.as_ptr(),
                    step: each.as_ptr(),
                    norm: norm.as_ptr(),
                    epsilon: 1e-6,
                    before: Some(DeltaState { state: at, latest }),
                    state: state_after,
                    latest: latest_after,
                    output: output.as_mut_ptr(),
                    output_stride: HEADS * WIDTH,
                };
                // SAFETY: this CPU has the instructions, and each buffer holds the shape stated, with the layer
                // and `output` this thread's own; a mapping and all offsets are aligned.
                unsafe { gated_delta(isa, &of) };
            }
        }
        std::hint::black_box(&output);
    });
    let bytes = layers * 2 * STATE * size_of::<f32>();
    [bytes as f64 / seconds, (layers * of_layer) as f64 / seconds]
}

/// Bytes a second that are only read, and f32 operations a second of registers.
fn measure_limits(isa: Isa, threads: usize, memory: &MmapMut) -> [f64; 2] {
    [read_bandwidth(isa, threads, &memory[..BYTES], 4), fma_peak(isa, threads, 1 << 22)]
}
