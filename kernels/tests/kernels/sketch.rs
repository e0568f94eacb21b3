//! Floats beside a sketch of them.

use half::bf16;
use kernels::{
    Candidates, Format, GROUP, Isa, LANES, Product, candidates, compressed_product_for,
    product_for, quantise,
};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;

use crate::weights::{Weights, normal, random, rounded};

const FORMATS: [Format; 4] = [Format::F32, Format::Bf16, Format::Bf16Rounded, Format::F16];

/// Weights, plain and compressed where they can be, and their sketch.
struct Sketched {
    whole: Weights,
    compressed: Option<(Vec<u8>, Vec<u64>)>,
    sketch: Vec<u8>,
    errors: Vec<f32>,
}

impl Sketched {
    fn new(whole: Weights) -> Self {
        let compressed = whole.compressed();
        let (mut sketch, mut errors) = (Vec::new(), Vec::new());
        for rows in whole.rows.chunks(LANES) {
            let rows: Vec<&[f32]> = rows.iter().map(Vec::as_slice).collect();
            let mut block = vec![0xa5; quantise::SKETCH.block_bytes(whole.columns)];
            let mut of_block = [f32::NAN; LANES];
            quantise::sketch_block(&rows, &mut block, &mut of_block);
            sketch.extend(block);
            errors.extend(of_block);
        }
        Self { whole, compressed, sketch, errors }
    }

    /// Of normally distributed weights, or whatever else.
    fn of(
        format: Format,
        columns: usize,
        rows: usize,
        mut weight: impl FnMut(usize) -> f32,
    ) -> Self {
        let rows = (0..rows).map(|row| (0..columns).map(|_| weight(row)).collect());
        Self::new(Weights::new(format, columns, rows.collect()))
    }

    /// Activations as f32, and as the format takes them.
    fn operand(&self, x: &[f32]) -> (Vec<f32>, Vec<u8>) {
        let rounded = |x: &f32| match self.whole.format {
            Format::Bf16Rounded => bf16::from_f32(*x).to_f32(),
            _ => *x,
        };
        (x.iter().map(rounded).collect(), self.whole.bytes_of(x, Isa::Portable, 1))
    }

    /// The whole matrix and these activations.
    fn product(&self, compressed: bool, x: &[u8], y: &mut [f32]) -> Product {
        let (weights, index) = match &self.compressed {
            Some((bytes, index)) if compressed => (bytes.as_ptr(), index.as_ptr()),
            _ => (self.whole.bytes.as_ptr(), std::ptr::null()),
        };
        Product {
            weights,
            index,
            x: x.as_ptr(),
            y: y.as_mut_ptr(),
            rows: 1,
            used: 1,
            columns: self.whole.columns,
            blocks: self.whole.blocks,
            stride: self.whole.blocks * LANES,
        }
    }

    /// Products with the sketch.
    fn sketched(&self, isa: Isa, x: &[f32]) -> Vec<f32> {
        let mut y = vec![f32::NAN; self.errors.len()];
        let bytes = rounded(quantise::SKETCH, isa, 1, x, self.whole.columns);
        let product =
            Product { weights: self.sketch.as_ptr(), ..self.product(false, &bytes, &mut y) };
        // SAFETY: this CPU has the instructions, and the buffers have the shapes stated.
        unsafe { product_for(quantise::SKETCH, isa)(&product) };
        y
    }

    /// Checks on every instruction set that the sketch is as near as it says, and what is computed by
    /// it, from a good row on and from another; returns the largest share of rows that a good one
    /// leaves.
    fn check(&self, x: &[f32], what: &str) -> f64 {
        let Weights { format, blocks, .. } = self.whole;
        let (x, bytes) = self.operand(x);
        let norm = x.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>().sqrt();
        let mut share = 0_f64;
        for isa in Isa::all_here() {
            let sketched = self.sketched(isa, &x);
            let best = (0..sketched.len()).filter(|&row| !sketched[row].is_nan());
            let best = best.max_by(|&a, &b| sketched[a].total_cmp(&sketched[b]));
            for compressed in [false, true] {
                if compressed && self.compressed.is_none() {
                    continue;
                }
                let what = format!("{isa:?} {format:?} {what}, compressed: {compressed}");
                let kernel = match compressed {
                    true => compressed_product_for(format, isa),
                    false => product_for(format, isa),
                };
                let mut all = vec![f32::NAN; sketched.len()];
                // SAFETY: this CPU has the instructions, and the buffers have the shapes stated.
                unsafe { kernel(&self.product(compressed, &bytes, &mut all)) };
                for (row, ((&all, &sketched), &error)) in
                    all.iter().zip(&sketched).zip(&self.errors).enumerate()
                {
                    let off = (f64::from(all) - f64::from(sketched)).abs();
                    let most = f64::from(error) * (norm + 1e-20) + 1e-25;
                    assert!(
                        off <= most || norm.is_nan() || norm > 1e28 || error.is_nan(),
                        "{what}: row {row} is off by {off}, not {most}"
                    );
                }
                for (run, best) in
                    [(blocks, None), (blocks, best), (3, best), (blocks, best.map(|_| 0))]
                {
                    let mut some = sketched.clone();
                    for first in (0..blocks).step_by(run) {
                        let of = Candidates {
                            product: self.product(compressed, &bytes, &mut some),
                            run: first..blocks.min(first + run),
                            errors: self.errors.as_ptr(),
                            best,
                        };
                        // SAFETY: as above.
                        unsafe { candidates(kernel, format, &of) };
                    }
                    let kept = count_kept(&all, &some, &what);
                    match best {
                        None => assert_eq!(kept, all.len(), "{what}"),
                        Some(0) => {}
                        Some(_) => share = share.max(kept as f64 / all.len() as f64),
                    }
                }
            }
        }
        share
    }
}

/// Compares all products with those that may be the largest: the others are negative infinity there,
/// and less than the largest. How many there are.
fn count_kept(all: &[f32], some: &[f32], what: &str) -> usize {
    let most = all.iter().fold(f32::NEG_INFINITY, |most, y| most.max(*y));
    let mut kept = 0;
    for (row, (all, some)) in all.iter().zip(some).enumerate() {
        if *some == f32::NEG_INFINITY && *all != *some {
            assert!(*all < most, "{what}: row {row} of {all} is left out");
        } else {
            assert_eq!(all.to_bits(), some.to_bits(), "{what}: row {row}");
            kept += 1;
        }
    }
    assert!(kept > 0, "{what}");
    kept
}

#[test]
fn the_largest_product_is_never_left_out() {
    for seed in 0..2 {
        let mut rng = ChaCha8Rng::seed_from_u64(200 + seed);
        for format in FORMATS {
            for (columns, rows) in [(1, 16), (40, 160), (300, 400), (577, 48), (2048, 48)] {
                let x: Vec<f32> = (0..columns).map(|_| normal(&mut rng)).collect();
                let check = |name, sketched: Sketched| {
                    sketched.check(&x, &format!("{name} [{rows}, {columns}]"));
                };
                check("normal", Sketched::of(format, columns, rows, |_| normal(&mut rng)));
                check("uniform", Sketched::of(format, columns, rows, |_| random(&mut rng)));
                let largest = rows / 3;
                let size = |row| if row == largest { 1e3 } else { 0.1 };
                check(
                    "one large",
                    Sketched::of(format, columns, rows, |row| size(row) * random(&mut rng)),
                );
                let sizes: Vec<f32> = (0..rows).map(|_| random(&mut rng).powi(6)).collect();
                check(
                    "unequal",
                    Sketched::of(format, columns, rows, |row| sizes[row] * random(&mut rng)),
                );
                // Of which a sketch holds hardly any: one weight of each group is far larger.
                check(
                    "lone weights",
                    Sketched::of(format, columns, rows, |_| random(&mut rng).powi(31)),
                );
                // Nearly the same rows, whose products differ in the last digits.
                let mut column = 0;
                let alike = |row| {
                    column = (column + 1) % columns;
                    x[column].sin() + 1e-3 * random(&mut rng) * (row % 5) as f32
                };
                check("alike", Sketched::of(format, columns, rows, alike));
            }
        }
    }
}

#[test]
fn every_row_of_a_tie_is_computed() {
    let mut rng = ChaCha8Rng::seed_from_u64(33);
    for format in FORMATS {
        let same: Vec<f32> = (0..704).map(|_| normal(&mut rng)).collect();
        let x: Vec<f32> = (0..704).map(|_| normal(&mut rng)).collect();
        let negative: Vec<f32> = x.iter().map(|x| -x).collect();
        for (name, x) in [("x", &x), ("-x", &negative), ("0", &vec![0.0; 704])] {
            let rows = vec![same.clone(); 80];
            let share = Sketched::new(Weights::new(format, 704, rows)).check(x, name);
            assert_eq!(share, 1.0, "{format:?} {name}");
        }
        let zeros = Sketched::of(format, 704, 80, |_| 0.0);
        assert_eq!(zeros.check(&x, "zeros"), 1.0, "{format:?}");
        // Tiny activations, whose products are flushed or nearly so, and large ones; and weights.
        let normals = Sketched::of(format, 704, 80, |_| normal(&mut rng));
        for size in [1e-20, 1e-30, 1e-34, 1e-38, 1e-44, 1e20, 1e30] {
            let x: Vec<f32> = x.iter().map(|x| x * size).collect();
            normals.check(&x, &format!("x {size:e}"));
        }
        for size in [1e-5, 1e-8, 1e-38, 1e-42, 1e4, 1e6] {
            let sized = Sketched::of(format, 704, 80, |_| size * normal(&mut rng));
            sized.check(&x, &format!("weights {size:e}"));
        }
    }
}

/// Of weights that a sketch holds as they are, only activations are rounded: all but one to nothing.
#[test]
fn rounded_activations_are_allowed_for() {
    const STEPS: f32 = 127.0 * 257.0;
    for format in [Format::F32, Format::Bf16, Format::F16] {
        let sketched = Sketched::of(format, 32, 16, |_| -1.0);
        let mut x = vec![0.5; 32];
        x[0] = STEPS;
        assert!(sketched.sketched(Isa::detect(), &x).iter().all(|&y| y == -STEPS));
        sketched.check(&x, "half a step");
    }
}

#[test]
fn most_blocks_are_left_out() {
    let mut rng = ChaCha8Rng::seed_from_u64(34);
    for format in FORMATS {
        let sketched = Sketched::of(format, 512, 2048, |_| normal(&mut rng));
        let x: Vec<f32> = (0..512).map(|_| normal(&mut rng)).collect();
        let share = sketched.check(&x, "normal");
        assert!(share < 0.1, "{format:?}: {share}");
    }
}

/// A row whose weights lie as far from its sketch as they can, and all along the activations. It wins
/// by little over one of which the sketch holds more.
#[test]
fn a_row_that_has_all_that_its_error_allows_wins() {
    const COLUMNS: usize = 2048;
    for format in FORMATS {
        // The first weight of each group keeps its scale at 1: the sketch has whole numbers.
        let first = |column: usize| column.is_multiple_of(GROUP);
        let x: Vec<f32> = (0..COLUMNS)
            .map(|column| match (first(column), (column / GROUP + column) % 2) {
                (true, _) => 0.0,
                (_, 0) => 1.0,
                _ => -1.0,
            })
            .collect();
        let row = |weight: &dyn Fn(usize) -> f32| -> Vec<f32> {
            (0..COLUMNS).map(|at| if first(at) { -32.0 } else { weight(at) }).collect()
        };
        let mut rows = vec![row(&|_| 0.0); 64];
        // Of as many columns one, or nearly a half in each; a half is rounded to an even number.
        rows[11] = row(&|at| if at * 45 % 100 < 45 { x[at] } else { 0.0 });
        rows[50] = row(&|at| 0.484_375 * x[at]);
        let sketched = Sketched::new(Weights::new(format, COLUMNS, rows));
        for isa in Isa::all_here() {
            let y = sketched.sketched(isa, &x);
            assert!(y[50] < 0.1 * y[11], "{format:?}: {} {}", y[50], y[11]);
        }
        let (_, bytes) = sketched.operand(&x);
        let mut y = vec![0.0; 64];
        // SAFETY: every CPU has these instructions, and the buffers have the shapes stated.
        unsafe { product_for(format, Isa::Portable)(&sketched.product(false, &bytes, &mut y)) };
        assert!(y[50] > y[11], "{format:?}: {} {}", y[50], y[11]);
        assert!(sketched.check(&x, "tight") < 1.0);
    }
}

#[test]
fn what_is_not_finite_is_not_hidden() {
    let mut rng = ChaCha8Rng::seed_from_u64(35);
    for format in FORMATS {
        let rows: Vec<Vec<f32>> =
            (0..64).map(|_| (0..600).map(|_| normal(&mut rng)).collect()).collect();
        let x: Vec<f32> = (0..600).map(|_| normal(&mut rng)).collect();
        for value in [f32::NAN, f32::INFINITY, 1e30] {
            let mut rows = rows.clone();
            rows[20][590] = value;
            let poisoned = Sketched::new(Weights::new(format, 600, rows));
            assert!(poisoned.errors[20].is_nan(), "{format:?} {value}");
            assert!(poisoned.sketched(Isa::detect(), &x)[20].is_nan(), "{format:?} {value}");
            poisoned.check(&x, &format!("a weight {value}"));
        }
        let finite = Sketched::new(Weights::new(format, 600, rows));
        for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut x = x.clone();
            x[70] = value;
            assert!(finite.sketched(Isa::detect(), &x).iter().all(|y| !y.is_finite()));
            finite.check(&x, &format!("x {value}"));
        }
    }
}
