//! Weights in a coarse and a fine part.

use super::*;

const FORMATS: [Format; 2] = [Format::Int8, Format::Int6];

/// Weights and their parts.
struct Split {
    whole: Weights,
    coarse: Vec<u8>,
    fine: Vec<u8>,
    norms: Vec<f32>,
}

impl Split {
    fn new(whole: Weights) -> Self {
        let Weights { format, columns, .. } = whole;
        let (mut coarse, mut fine, mut norms) = (Vec::new(), Vec::new(), Vec::new());
        for block in whole.bytes.chunks(format.block_bytes(columns)) {
            let mut high = vec![0; Format::Int4.block_bytes(columns)];
            let mut low = vec![0; LANES * format.fine_row_bytes(columns)];
            let mut of_block = [0.0; LANES];
            quantise::split_block(format, block, columns, &mut high, &mut low, &mut of_block);
            coarse.extend(high);
            fine.extend(low);
            norms.extend(of_block);
        }
        Self { whole, coarse, fine, norms }
    }

    fn product(&self, kernel: Kernel, weights: &[u8], x: &[f32]) -> Vec<f32> {
        let outputs = self.whole.blocks * LANES;
        let mut y = vec![f32::NAN; outputs];
        let product = Product {
            weights: weights.as_ptr(),
            index: std::ptr::null(),
            x: x.as_ptr().cast(),
            y: y.as_mut_ptr(),
            rows: 1,
            used: 1,
            columns: self.whole.columns,
            blocks: self.whole.blocks,
            stride: outputs,
        };
        // SAFETY: this CPU has the instructions, and the buffers have the shapes stated.
        unsafe { kernel(&product) };
        y
    }

    fn coarse(&self, isa: Isa, x: &[f32]) -> Vec<f32> {
        self.product(coarse_for(self.whole.format, isa), &self.coarse, x)
    }
}

#[test]
fn the_coarse_part_matches_f64() {
    let mut rng = ChaCha8Rng::seed_from_u64(21);
    for format in FORMATS {
        for (columns, blocks) in [(1, 1), (32, 9), (40, 3), (577, 2), (2048, 4)] {
            let split = Split::new(Weights::random(format, columns, blocks, &mut rng));
            let x: Vec<f32> = (0..columns).map(|_| random(&mut rng)).collect();
            let rounded = split.whole.rounded(&x);
            let steps = f64::from(1 << format.fine_bits());
            // What the middle of the groups adds to a weight of each scale.
            let middles = x.chunks(GROUP).zip(rounded.chunks(GROUP));
            let middles: Vec<f64> = middles
                .map(|(x, rounded)| {
                    let largest = x.iter().fold(0f32, |most, x| most.max(x.abs()));
                    let scale = f64::from(largest / (127.0 * 257.0));
                    let sum: f64 = rounded.iter().map(|x| (x / scale).round()).sum();
                    (sum * (steps - 1.0) / (2.0 * steps)).floor() * scale
                })
                .collect();
            for isa in Isa::all_here() {
                let y = split.coarse(isa, &x);
                let blocks = split.coarse.chunks(Format::Int4.block_bytes(columns));
                for (block, y) in blocks.zip(y.chunks(LANES)) {
                    for (lane, &y) in y.iter().enumerate() {
                        let mut row = vec![0.0; columns];
                        quantise::unpack_row(Format::Int4, block, lane, &mut row);
                        let (mut sum, mut size) = (0.0, 0.0);
                        let groups = block.chunks(Format::Int4.group_bytes());
                        let scales = groups.map(|group| {
                            let scales = group[group.len() - SCALES..].as_chunks().0;
                            f64::from(f16::from_le_bytes(scales[lane]))
                        });
                        let middles =
                            middles.iter().zip(scales).map(|(middle, scale)| middle * scale);
                        let products = row.iter().zip(&rounded).map(|(&w, x)| f64::from(w) * x);
                        for term in products.chain(middles) {
                            sum += steps * term;
                            size += steps * term.abs();
                        }
                        let error = (f64::from(y) - sum).abs();
                        assert!(
                            error <= 3e-6 * size,
                            "{isa:?} {format:?} columns {columns}: {y}, not {sum}"
                        );
                    }
                }
            }
        }
    }
}

impl Split {
    /// Refines runs of `run` rows.
    fn refine(&self, isa: Isa, x: &[f32], coarse: &[f32], run: usize, all: bool) -> Vec<f32> {
        let Weights { format, columns, .. } = self.whole;
        let row_bytes = format.fine_row_bytes(columns);
        let best = (0..coarse.len()).filter(|&row| !coarse[row].is_nan());
        let best = best.max_by(|&a, &b| coarse[a].total_cmp(&coarse[b])).unwrap_or(0);
        let mut y = vec![f32::NAN; coarse.len()];
        for (number, y) in y.chunks_mut(run).enumerate() {
            let first = number * run;
            let refine = Refine {
                fine: self.fine[first * row_bytes..].as_ptr(),
                norms: self.norms[first..].as_ptr(),
                coarse: coarse[first..].as_ptr(),
                x: x.as_ptr(),
                best_fine: self.fine[best * row_bytes..].as_ptr(),
                best_coarse: coarse[best],
                all,
                y: y.as_mut_ptr(),
                rows: y.len(),
                columns,
            };
            // SAFETY: this CPU has the instructions, and the buffers have the shapes stated.
            unsafe { refine_for(format, isa)(&refine) };
        }
        y
    }

    /// Refines all rows and only those that may win, on every instruction set; returns the largest
    /// share of rows that were refined.
    fn check(&self, x: &[f32], what: &str) -> f64 {
        let mut share = 0_f64;
        for isa in Isa::all_here() {
            let what = format!("{isa:?} {:?} {what}", self.whole.format);
            let coarse = self.coarse(isa, x);
            let all = self.refine(isa, x, &coarse, 1500, true);
            for run in [coarse.len(), 48] {
                let some = self.refine(isa, x, &coarse, run, false);
                let refined = count_kept(&all, &some, &what);
                share = share.max(refined as f64 / all.len() as f64);
            }
        }
        share
    }
}

fn split_of(
    format: Format,
    columns: usize,
    rows: usize,
    mut weight: impl FnMut(usize) -> f32,
) -> Split {
    let rows = (0..rows).map(|row| (0..columns).map(|_| weight(row)).collect());
    Split::new(Weights::new(format, columns, rows.collect()))
}

#[test]
fn both_parts_match_f64_and_the_whole() {
    let mut rng = ChaCha8Rng::seed_from_u64(22);
    for format in FORMATS {
        for (columns, blocks) in [(1, 1), (32, 9), (40, 3), (512, 2), (577, 2), (2048, 4)] {
            let split = Split::new(Weights::random(format, columns, blocks, &mut rng));
            let x: Vec<f32> = (0..columns).map(|_| random(&mut rng)).collect();
            let rounded = split.whole.rounded(&x);
            for isa in Isa::all_here() {
                let whole = split.product(product_for(format, isa), &split.whole.bytes, &x);
                let parts = split.refine(isa, &x, &split.coarse(isa, &x), 20, true);
                for (row, (&part, &whole)) in parts.iter().zip(&whole).enumerate() {
                    let (mut sum, mut size) = (0.0, 0.0);
                    for (x, &w) in rounded.iter().zip(&split.whole.rows[row]) {
                        sum += x * f64::from(w);
                        size += (x * f64::from(w)).abs();
                    }
                    for expected in [sum, f64::from(whole)] {
                        let error = (f64::from(part) - expected).abs();
                        assert!(
                            error <= 3e-6 * size,
                            "{isa:?} {format:?} columns {columns} row {row}: {part}, not {expected}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn the_largest_product_is_never_dropped() {
    for seed in 0..3 {
        let mut rng = ChaCha8Rng::seed_from_u64(100 + seed);
        for format in FORMATS {
            for (columns, rows) in [(1, 16), (40, 160), (300, 1200), (1100, 160), (2048, 48)] {
                let x: Vec<f32> = (0..columns).map(|_| normal(&mut rng)).collect();
                let check = |name, split: Split| {
                    split.check(&x, &format!("{name} [{rows}, {columns}]"));
                };
                check("normal", split_of(format, columns, rows, |_| normal(&mut rng)));
                check("uniform", split_of(format, columns, rows, |_| random(&mut rng)));
                let largest = rows / 3;
                let size = |row| if row == largest { 1e5 } else { 0.1 };
                check(
                    "one large",
                    split_of(format, columns, rows, |row| size(row) * random(&mut rng)),
                );
                let sizes: Vec<f32> = (0..rows).map(|_| random(&mut rng).powi(6)).collect();
                check(
                    "unequal",
                    split_of(format, columns, rows, |row| sizes[row] * random(&mut rng)),
                );
                // Nearly the same rows, whose products differ in the last digits.
                let mut column = 0;
                let alike = |row| {
                    column = (column + 1) % columns;
                    x[column].sin() + 1e-3 * random(&mut rng) * (row % 5) as f32
                };
                check("alike", split_of(format, columns, rows, alike));
            }
        }
    }
}

/// Rows are looked at in pieces of 4096.
#[test]
fn the_largest_may_be_in_any_piece() {
    const ROWS: usize = 9008;
    let mut rng = ChaCha8Rng::seed_from_u64(31);
    for format in FORMATS {
        let x: Vec<f32> = (0..40).map(|_| normal(&mut rng)).collect();
        for largest in [3, 4095, 4096, 6000, 8192, ROWS - 1] {
            // Nearer to the activations than any other, which are not far from them.
            let mut column = 0;
            let split = split_of(format, 40, ROWS, |row| {
                let size = if row == largest { 1.0 } else { 0.97 };
                column = (column + 1) % 40;
                size * x[column] + 0.02 * random(&mut rng)
            });
            let x: Vec<f32> = (0..40).map(|i| x[(i + 1) % 40]).collect();
            split.check(&x, &format!("{largest} of {ROWS}"));
            let negative: Vec<f32> = x.iter().map(|x| -x).collect();
            split.check(&negative, &format!("-x, {largest} of {ROWS}"));
        }
    }
}

#[test]
fn every_row_of_a_tie_is_refined() {
    let mut rng = ChaCha8Rng::seed_from_u64(23);
    for format in FORMATS {
        let same: Vec<f32> = (0..700).map(|_| normal(&mut rng)).collect();
        let x: Vec<f32> = (0..700).map(|_| normal(&mut rng)).collect();
        let negative: Vec<f32> = x.iter().map(|x| -x).collect();
        let zeros = vec![0.0; 700];
        for (name, x) in [("x", &x), ("-x", &negative), ("0", &zeros)] {
            let rows = vec![same.clone(); 80];
            let share = Split::new(Weights::new(format, 700, rows)).check(x, name);
            assert_eq!(share, 1.0, "{format:?} {name}");
        }
        let share = split_of(format, 700, 80, |_| 0.0).check(&x, "zeros");
        assert_eq!(share, 1.0, "{format:?}");
        // Tiny activations, whose products are flushed or nearly so.
        let split = split_of(format, 700, 80, |_| normal(&mut rng));
        for size in [1e-20, 1e-30, 1e-34, 1e-38, 1e-44, 1e20, 1e30] {
            let x: Vec<f32> = x.iter().map(|x| x * size).collect();
            split.check(&x, &format!("x {size:e}"));
        }
    }
}

#[test]
fn most_rows_are_dropped() {
    let mut rng = ChaCha8Rng::seed_from_u64(24);
    for format in FORMATS {
        // The bound grows with the columns, the largest product with the rows.
        for (columns, most_at_first) in [(512, 0.2), (2048, 0.8)] {
            let split = split_of(format, columns, 2048, |_| normal(&mut rng));
            let x: Vec<f32> = (0..columns).map(|_| normal(&mut rng)).collect();
            let share = split.check(&x, "normal");
            assert!(share < 0.02, "{format:?} {columns}: {share}");

            // Those of whose fine part anything is read.
            let coarse = split.coarse(Isa::Portable, &x);
            let y = split.refine(Isa::Portable, &x, &coarse, 2048, true);
            let most = y.iter().fold(f32::NEG_INFINITY, |most, y| most.max(*y));
            let norm = x.iter().map(|x| x * x).sum::<f32>().sqrt();
            let bounds = coarse.iter().zip(&split.norms).map(|(coarse, of)| coarse + norm * of);
            let share = bounds.filter(|bound| *bound >= most).count() as f64 / 2048.0;
            assert!(share < most_at_first, "{format:?} {columns}: {share}");
        }
    }
}

/// A row whose fine part is all along the activations has all that the bound allows. It wins by
/// little over one whose coarse part is far larger.
#[test]
fn a_row_that_has_all_that_its_norm_allows_wins() {
    const COLUMNS: usize = 2048;
    for format in FORMATS {
        // Half as many steps as the fine part has, and what keeps the scale of a group at 1.
        let (middle, largest) = match format {
            Format::Int8 => (7.5, 127.0),
            _ => (1.5, -32.0),
        };
        for chunks in [0..4, 0..1, 2..4, 3..4] {
            // As often 1 as -1, but for the first column of each group.
            let sign = |column: usize| match column % GROUP {
                0 => 1.0_f32,
                _ => [1.0, -1.0][(column + column / GROUP) % 2],
            };
            let x: Vec<f32> = (0..COLUMNS)
                .map(|column| {
                    let seen = chunks.contains(&(column / CHUNK));
                    if seen { sign(column).copysign(sign(column) * largest) } else { 0.0 }
                })
                .collect();
            let row = |weight: &dyn Fn(usize) -> f32| -> Vec<f32> {
                let first = |column: usize| column.is_multiple_of(GROUP);
                (0..COLUMNS).map(|at| if first(at) { largest } else { weight(at) }).collect()
            };
            let steps = |column: usize| {
                let larger = column * 49 % 100 < 49;
                if larger { middle + 0.5 } else { middle - 0.5 }
            };
            let mut rows = vec![row(&|_| 0.0); 64];
            rows[11] = row(&|column| steps(column) * x[column].signum());
            rows[50] = row(&|column| if x[column] > 0.0 { 2.0 * middle } else { 0.0 });
            let split = Split::new(Weights::new(format, COLUMNS, rows.clone()));
            assert_eq!(split.whole.rows, rows, "{format:?}");
            for isa in Isa::all_here() {
                let coarse = split.coarse(isa, &x);
                let y = split.refine(isa, &x, &coarse, 64, true);
                assert!(coarse[11] > 1.3 * coarse[50], "{:?}", (coarse[11], coarse[50]));
                let gain = y[50] / y[11];
                assert!(gain > 1.0 && gain < 1.006, "{gain}");
            }
            split.check(&x, "tight");
        }
    }
}

#[test]
fn what_is_not_finite_is_not_hidden() {
    let mut rng = ChaCha8Rng::seed_from_u64(25);
    for format in FORMATS {
        let split = split_of(format, 600, 64, |_| normal(&mut rng));
        let poisoned = {
            let mut rows = split.whole.rows.clone();
            rows[20][590] = f32::NAN;
            Split::new(Weights::new(format, 600, rows))
        };
        for isa in Isa::all_here() {
            let mut x: Vec<f32> = (0..600).map(|_| normal(&mut rng)).collect();
            let y = poisoned.refine(isa, &x, &poisoned.coarse(isa, &x), 64, false);
            assert!(y[20].is_nan(), "{isa:?} {format:?}");
            assert_eq!(y.iter().filter(|y| y.is_nan()).count(), 1);
            assert!(y.contains(&f32::NEG_INFINITY) && y.iter().any(|y| y.is_finite()));
            for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                x[70] = value;
                let coarse = split.coarse(isa, &x);
                let all = split.refine(isa, &x, &coarse, 64, true);
                assert!(all.iter().all(|y| !y.is_finite()), "{isa:?} {format:?} {value}: {all:?}");
                let some = split.refine(isa, &x, &coarse, 64, false);
                for (all, some) in all.iter().zip(&some) {
                    assert!(all == some || all.is_nan() && some.is_nan(), "{all} {some}");
                }
            }
        }
    }
}
