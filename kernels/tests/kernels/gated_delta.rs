//! Linear attention by the gated delta rule.

use kernels::{DeltaState, GatedDelta, Isa, gated_delta};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use crate::weights::random;

const EPSILON: f32 = 1e-5;

#[derive(Clone, Copy, Debug)]
struct Shape {
    key_heads: usize,
    value_heads: usize,
    key_dim: usize,
    value_dim: usize,
    seen: usize,
    rows: usize,
    /// Whether neighbours meet different key heads.
    tiled: bool,
}

const PLAIN: Shape = Shape {
    key_heads: 2,
    value_heads: 2,
    key_dim: 16,
    value_dim: 32,
    seen: 4,
    rows: 70,
    tiled: false,
};

impl Shape {
    fn channels(&self) -> usize {
        2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim
    }

    fn columns(&self) -> usize {
        self.value_heads * self.value_dim
    }

    /// Those that the head meets, and whether it is the first.
    fn key_head(&self, head: usize) -> (usize, bool) {
        let group = self.value_heads / self.key_heads;
        match self.tiled {
            true => (head % self.key_heads, head < self.key_heads),
            false => (head / group, head.is_multiple_of(group)),
        }
    }
}

/// What is computed with.
struct Case {
    shape: Shape,
    stride: usize,
    output_stride: usize,
    x: Vec<f32>,
    taps: Vec<f32>,
    decay: Vec<f32>,
    step: Vec<f32>,
    norm: Vec<f32>,
}

/// What rows give and leave.
struct Results<T> {
    /// `[rows, value_heads * value_dim]`
    output: Vec<T>,
    state: Vec<T>,
    latest: Vec<T>,
}

impl Results<f32> {
    fn bits(&self) -> Vec<u32> {
        let all = [&self.output, &self.state, &self.latest];
        all.into_iter().flatten().map(|it| it.to_bits()).collect()
    }
}

impl Case {
    fn new(shape: Shape, rng: &mut ChaCha8Rng) -> Self {
        let Shape { value_heads, value_dim, seen, rows, .. } = shape;
        let stride = shape.channels() + shape.columns() + 2 * value_heads + 3;
        let mut draw = |len: usize, size: f32| (0..len).map(|_| size * random(rng)).collect();
        let mut x: Vec<f32> = draw(rows * stride, 3.0);
        for row in x.chunks_mut(stride) {
            row[stride - 3..].fill(f32::NAN);
        }
        // A step whose exponential f32 does not hold, in a state that becomes less slowly.
        x[stride + shape.channels() + shape.columns() + value_heads] = 100.0;
        let mut decay: Vec<f32> = draw(value_heads, 3.0);
        decay[0] = -4.0;
        Self {
            shape,
            stride,
            output_stride: shape.columns() + 5,
            x,
            taps: draw(shape.channels() * seen, 1.0),
            decay,
            step: draw(value_heads, 2.0),
            norm: draw(value_dim, 2.0),
        }
    }

    /// One head of some rows, which write to `results`.
    fn head(
        &self,
        isa: Isa,
        head: usize,
        rows: std::ops::Range<usize>,
        before: Option<&Results<f32>>,
        results: &mut Results<f32>,
    ) {
        let Shape { key_heads, value_heads, key_dim, value_dim, seen, .. } = self.shape;
        let (key_head, first) = self.shape.key_head(head);
        let of = GatedDelta {
            x: self.x[rows.start * self.stride..].as_ptr(),
            stride: self.stride,
            rows: rows.len(),
            head,
            key_head,
            first,
            key_heads,
            value_heads,
            key_dim,
            value_dim,
            taps: self.taps.as_ptr(),
            seen,
            decay: self.decay.as_ptr(),
            step: self.step.as_ptr(),
            norm: self.norm.as_ptr(),
            epsilon: EPSILON,
            before: before
                .map(|it| DeltaState { state: it.state.as_ptr(), latest: it.latest.as_ptr() }),
            state: results.state.as_mut_ptr(),
            latest: results.latest.as_mut_ptr(),
            output: results.output[rows.start * self.output_stride..].as_mut_ptr(),
            output_stride: self.output_stride,
        };
        // SAFETY: this CPU has the instructions, and all are as long as the shape says.
        unsafe { gated_delta(isa, &of) };
    }

    /// NaN in all that rows have to write.
    fn unwritten(&self) -> Results<f32> {
        let Shape { value_heads, key_dim, value_dim, seen, rows, .. } = self.shape;
        Results {
            output: vec![f32::NAN; rows * self.output_stride],
            state: vec![f32::NAN; value_heads * key_dim * value_dim],
            latest: vec![f32::NAN; (seen - 1) * self.shape.channels()],
        }
    }

    /// Runs of `cuts` rows, one after the other.
    fn run(&self, isa: Isa, cuts: &[usize]) -> Results<f32> {
        let mut output = self.unwritten().output;
        let mut before = None;
        let mut start = 0;
        for rows in cuts {
            let mut results = Results { output, ..self.unwritten() };
            for head in 0..self.shape.value_heads {
                self.head(isa, head, start..start + rows, before.as_ref(), &mut results);
            }
            start += rows;
            output = std::mem::take(&mut results.output);
            before = Some(results);
        }
        let mut written = Vec::new();
        for row in output.chunks(self.output_stride) {
            let (columns, others) = row.split_at(self.shape.columns());
            written.extend_from_slice(columns);
            assert!(others.iter().all(|it| it.is_nan()), "columns behind those of the heads");
        }
        Results { output: written, ..before.expect("a run") }
    }

    /// As it is defined, in f64.
    fn expected(&self) -> Results<f64> {
        let Shape { key_heads, value_heads, key_dim, value_dim, seen, rows, .. } = self.shape;
        let channels = self.shape.channels();
        let x = |row: usize, column: usize| f64::from(self.x[row * self.stride + column]);
        let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
        let convolved = |row: usize, column: usize| {
            let taps = &self.taps[column * seen..][..seen];
            let terms = taps.iter().rev().zip((0..=row).rev());
            let sum: f64 = terms.map(|(tap, row)| f64::from(*tap) * x(row, column)).sum();
            sum * sigmoid(sum)
        };
        let of_length_one = |row: usize, first: usize| {
            let x: Vec<f64> = (first..first + key_dim).map(|at| convolved(row, at)).collect();
            let length = (x.iter().map(|x| x * x).sum::<f64>() + 1e-6).sqrt();
            x.into_iter().map(|x| x / length).collect::<Vec<f64>>()
        };
        let mut output = vec![0.0; rows * value_heads * value_dim];
        let mut states = vec![0.0; value_heads * key_dim * value_dim];
        for (head, state) in states.chunks_mut(key_dim * value_dim).enumerate() {
            let (key_head, _) = self.shape.key_head(head);
            for row in 0..rows {
                let query = of_length_one(row, key_head * key_dim);
                let key = of_length_one(row, (key_heads + key_head) * key_dim);
                let b = x(row, channels + self.shape.columns() + head);
                let a = x(row, channels + self.shape.columns() + value_heads + head);
                let step = (a + f64::from(self.step[head])).exp().ln_1p();
                let decay = (-f64::from(self.decay[head]).exp() * step).exp();
                let mut y = vec![0.0; value_dim];
                for (column, y) in y.iter_mut().enumerate() {
                    let places = || (0..key_dim).map(|i| i * value_dim + column);
                    places().for_each(|at| state[at] *= decay);
                    let known: f64 = places().zip(&key).map(|(at, k)| state[at] * k).sum();
                    let value = 2 * key_heads * key_dim + head * value_dim + column;
                    let delta = (convolved(row, value) - known) * sigmoid(b);
                    places().zip(&key).for_each(|(at, k)| state[at] += k * delta);
                    *y = places().zip(&query).map(|(at, q)| state[at] * q).sum::<f64>()
                        / (key_dim as f64).sqrt();
                }
                let mean = y.iter().map(|y| y * y).sum::<f64>() / value_dim as f64;
                for (column, y) in y.into_iter().enumerate() {
                    let at = head * value_dim + column;
                    let z = x(row, channels + at);
                    output[row * value_heads * value_dim + at] = y
                        / (mean + f64::from(EPSILON)).sqrt()
                        * f64::from(self.norm[column])
                        * z
                        * sigmoid(z);
                }
            }
        }
        let missing = (seen - 1).saturating_sub(rows);
        let mut latest = vec![0.0; missing * channels];
        for row in rows - (seen - 1 - missing)..rows {
            latest.extend((0..channels).map(|column| x(row, column)));
        }
        Results { output, state: states, latest }
    }
}

#[test]
fn rows_match_f64_wherever_they_are_cut() {
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let shapes = [
        PLAIN,
        Shape { value_heads: 4, rows: 37, ..PLAIN },
        Shape { value_heads: 4, value_dim: 24, key_dim: 20, rows: 33, tiled: true, ..PLAIN },
        Shape { key_heads: 1, value_heads: 3, key_dim: 65, value_dim: 8, seen: 3, ..PLAIN },
        Shape { key_heads: 1, value_heads: 1, value_dim: 56, seen: 1, rows: 3, ..PLAIN },
        Shape { key_heads: 1, key_dim: 128, value_dim: 128, rows: 7, ..PLAIN },
        Shape { seen: 6, rows: 2, ..PLAIN },
    ];
    for shape in shapes {
        let case = Case::new(shape, &mut rng);
        let expected = case.expected();
        let mut cuts = Vec::new();
        let mut left = shape.rows;
        while left > 0 {
            cuts.push(1 + rng.next_u32() as usize % left);
            left -= cuts.last().expect("the one just drawn");
        }
        for isa in Isa::all_here() {
            let results = case.run(isa, &[shape.rows]);
            for (what, results, expected) in [
                ("output", &results.output, &expected.output),
                ("state", &results.state, &expected.state),
                ("latest", &results.latest, &expected.latest),
            ] {
                assert_eq!(results.len(), expected.len(), "{isa:?} {shape:?} {what}");
                for (at, (&y, &expected)) in results.iter().zip(expected).enumerate() {
                    let error = (f64::from(y) - expected).abs();
                    assert!(
                        error <= 2e-5 * (1.0 + expected.abs()),
                        "{isa:?} {shape:?} {what} {at}: {y} {expected}"
                    );
                }
            }
            for cuts in [&vec![1; shape.rows], &cuts] {
                let cut = case.run(isa, cuts).bits();
                assert!(cut == results.bits(), "{isa:?} {shape:?}: other numbers, cut at {cuts:?}");
            }
        }
    }
}

#[test]
fn only_the_first_head_leaves_queries_and_keys() {
    let shape = Shape { key_heads: 1, rows: 5, ..PLAIN };
    let case = Case::new(shape, &mut ChaCha8Rng::seed_from_u64(2));
    for isa in Isa::all_here() {
        let mut results = case.unwritten();
        case.head(isa, 1, 0..shape.rows, None, &mut results);
        let written = 2 * shape.key_dim + shape.value_dim..shape.channels();
        for row in results.latest.chunks(shape.channels()) {
            for (column, it) in row.iter().enumerate() {
                assert_eq!(it.is_nan(), !written.contains(&column), "{isa:?} column {column}");
            }
        }
    }
}
