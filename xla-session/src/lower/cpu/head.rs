//! The head: from the residual stream of some rows to their logits, or to their most likely tokens.

use checkpoint::architecture;
use kernels::LANES;

use super::abi::kernel_abi;
use super::step::{Matrix, Steps};
use super::workspace::Place;
use crate::emit::builder::Index;
use crate::emit::{Format, Layout, WeightSpec};

kernel_abi! {
    /// A work item finds the most likely token of a row.
    Pick {
        reads {}
        updates {
            memory,
        }
        numbers {
            /// `[rows, stride]` of f32.
            logits,
            stride,
            columns,
            /// `[rows]` of i32.
            to,
        }
    }
}

kernel_abi! {
    /// A work item computes what of a run of blocks may be the most likely, of each wanted row.
    Candidates {
        reads {
            weights,
            /// Where each block begins, bytes, u64, if blocks are compressed; else the weights again.
            offsets,
            /// `[blocks, 16]` of f32: what a product with a row of the sketch can be off by.
            errors,
        }
        updates {
            memory,
        }
        numbers {
            /// The wanted rows, as for `Product`.
            x,
            /// Bytes of one of them.
            x_bytes,
            wanted,
            columns,
            /// Rows of the matrix.
            rows,
            /// Blocks of a work item.
            run,
            /// Of each wanted row, i32: the row of the matrix whose product with the sketch is the largest.
            best,
            /// `[wanted, stride]` of f32: products with the sketch, which those with the weights replace.
            logits,
            stride,
        }
    }
}

impl Steps<'_> {
    /// The logits of the wanted rows, and the most likely token of each.
    pub(super) fn full_head(&mut self) {
        let places = self.workspace.clone();
        let output = self.output_matrix();
        let rows = self.rows.clone();
        self.norm_wanted(output.format);
        self.product(&output, &rows, places.last, places.logits, None);
        if let Some(bias) = &self.config.architecture.output_bias {
            self.bias(vec![bias], places.logits, 1.0);
        }
        self.pick(places.logits, places.picked, &rows);
        let architecture::Logits { scale, cap } = self.config.architecture.logits;
        self.scale(places.logits, output.rows, scale, cap);
    }

    /// The most likely token of each wanted row, by a sketch of the output projection where there is
    /// one: of the logits, those that cannot be the largest are `-inf` then.
    pub(super) fn greedy_head(&mut self) {
        let output = self.output_matrix();
        // The sketch bounds products, to which nothing is added.
        let is_bare = self.config.architecture.output_bias.is_none();
        let Some(spec) = self.sketch_of(&output).filter(|_| is_bare) else {
            return self.full_head();
        };
        let places = self.workspace.clone();
        self.norm_wanted(output.format);
        let [weights, errors] = [0, 1].map(|plane| self.weight(&spec, plane));
        let sketch =
            Matrix { weights, offsets: None, format: kernels::quantise::SKETCH, ..output.clone() };
        let rows = self.rows.clone();
        self.product(&sketch, &rows, places.last, places.logits, None);
        self.pick(places.logits, places.picked, &rows);

        let (x, x_bytes) = match output.format {
            Format::Bf16Rounded => (places.last[1], 2 * places.last[1].stride),
            _ => (places.last[0], 4 * places.last[0].stride),
        };
        let blocks = output.rows.div_ceil(LANES);
        let run = self.target.run(blocks);
        let memory = self.memory.clone();
        let call = Candidates {
            weights: &output.weights,
            offsets: output.offsets_or_weights(),
            errors: &errors,
            memory: &memory,
            x: x.at.into(),
            x_bytes: x_bytes.into(),
            wanted: rows.clone(),
            columns: output.columns.into(),
            rows: output.rows.into(),
            run: run.into(),
            best: places.picked.at.into(),
            logits: places.logits.at.into(),
            stride: places.logits.stride.into(),
        };
        let items = blocks.div_ceil(run).into();
        self.update(|b| call.call(b, &output.symbol("candidates"), &items));
        self.pick(places.logits, places.picked, &rows);
    }

    /// The wanted rows normed, as products with weights of `format` take them.
    pub(super) fn norm_wanted(&mut self, format: Format) {
        let places = self.workspace.clone();
        let rows = self.rows.clone();
        let norm = &self.config.architecture.norm;
        self.norm(norm, &rows, (places.x, Some(places.wanted)), places.last, format);
    }

    /// The most likely token of each of `rows` rows of logits.
    fn pick(&mut self, logits: Place, to: Place, rows: &Index) {
        let memory = self.memory.clone();
        let call = Pick {
            memory: &memory,
            logits: logits.at.into(),
            stride: logits.stride.into(),
            columns: self.config.vocab_size.into(),
            to: to.at.into(),
        };
        self.update(|b| call.call(b, "pick", rows));
    }

    /// The projection that gives the logits.
    fn output_matrix(&mut self) -> Matrix {
        let output = self.config.output().expect("a decoder has one");
        self.matrix([output], Layout::Packed { lanes: LANES })
    }

    /// The sketch beside the output projection; none where it would cost more than it gains.
    fn sketch_of(&self, output: &Matrix) -> Option<WeightSpec> {
        let sketched = self.target.sketches(output.format, output.rows * output.columns);
        sketched.then(|| WeightSpec {
            parts: output.parts.clone(),
            columns: output.columns,
            format: output.format.stored(),
            layout: Layout::Sketch { lanes: LANES },
        })
    }
}

#[cfg(feature = "iree")]
pub(super) fn kernels(mut all: iree_rt::Kernels, isa: kernels::Isa) -> iree_rt::Kernels {
    let pick = move |item: usize, of: Pick<*mut u8, usize>| {
        let at = |place: usize| of.memory.wrapping_add(place);
        // SAFETY: the graph has these places for all wanted rows; `isa` is here.
        unsafe {
            let logits = at(of.logits).cast::<f32>().add(item * of.stride);
            *at(of.to).cast::<i32>().add(item) = kernels::argmax(isa, logits, of.columns);
        }
    };
    all = all.with("pick", Pick::kernel(pick));
    for format in Format::ALL {
        if format.is_quantised() {
            continue;
        }
        let name = format.as_str();
        let kernel = kernels::product_for(format, isa);
        let plain = move |item: usize, of: Candidates<*mut u8, usize>| {
            // SAFETY: as `candidates` wants it.
            unsafe { candidates(kernel, format, item, &of, std::ptr::null()) };
        };
        all = all.with(format!("candidates_{name}"), Candidates::kernel(plain));
        if format.is_compressible(8) {
            let kernel = kernels::compressed_product_for(format, isa);
            let compressed = move |item: usize, of: Candidates<*mut u8, usize>| {
                // SAFETY: as `candidates` wants it; the offsets say where blocks begin.
                unsafe { candidates(kernel, format, item, &of, of.offsets.cast()) };
            };
            all = all.with(format!("compressed_candidates_{name}"), Candidates::kernel(compressed));
        }
    }
    all
}

/// What of an item's blocks may be the most likely, of each wanted row.
///
/// # Safety
///
/// The graph passes a matrix of this format, whose blocks begin at `index` if it is compressed, and the
/// errors of its sketch; it has the places of all wanted rows, in which the earlier calls have left their
/// results; no two work items have the same blocks; the kernel is for this format and CPU.
#[cfg(feature = "iree")]
unsafe fn candidates(
    kernel: kernels::Kernel,
    format: Format,
    item: usize,
    of: &Candidates<*mut u8, usize>,
    index: *const u64,
) {
    let at = |place: usize| of.memory.wrapping_add(place);
    let blocks = of.rows.div_ceil(LANES);
    let run = item * of.run..blocks.min((item + 1) * of.run);
    for wanted in 0..of.wanted {
        // SAFETY: the caller's promise. `best` says no row of the matrix where a result is not a number: then
        // none is left out.
        unsafe {
            let best = *at(of.best).cast::<i32>().add(wanted);
            let product = kernels::Product {
                weights: of.weights,
                index,
                x: at(of.x).add(wanted * of.x_bytes),
                y: at(of.logits).cast::<f32>().add(wanted * of.stride),
                rows: 1,
                used: 1,
                columns: of.columns,
                blocks,
                stride: of.stride,
            };
            kernels::candidates(
                kernel,
                format,
                &kernels::Candidates {
                    product,
                    run: run.clone(),
                    errors: of.errors.cast(),
                    best: usize::try_from(best).ok().filter(|&best| best < of.rows),
                },
            );
        }
    }
}

#[cfg(all(test, feature = "iree"))]
mod tests {
    use half::bf16;

    use super::*;

    const COLUMNS: usize = 32;
    const ROWS: usize = 200;
    const BLOCKS: usize = ROWS.div_ceil(LANES);
    const STRIDE: usize = BLOCKS * LANES;
    const WANTED: usize = 3;
    /// Blocks of a work item: of two.
    const RUN: usize = 8;

    /// Small whole numbers, whose products no format rounds.
    fn number(seed: usize, of: usize) -> f32 {
        (seed % of) as f32 - (of / 2) as f32
    }

    /// As bytes of a format of floats.
    fn bytes(format: Format, numbers: impl Iterator<Item = f32>) -> Vec<u8> {
        let narrow = |x: f32| bf16::from_f32(x).to_le_bytes().to_vec();
        let wide = |x: f32| x.to_le_bytes().to_vec();
        numbers.flat_map(|x| if format == Format::F32 { wide(x) } else { narrow(x) }).collect()
    }

    /// Each has those of its own activations and its own best row, and one that says none has all.
    #[test]
    fn each_wanted_row_has_its_candidates() {
        for format in [Format::F32, Format::Bf16Rounded] {
            let kernel = kernels::product_for(format, kernels::Isa::Portable);
            let weight = |i: usize| {
                let (block, column, lane) = (i / LANES / COLUMNS, i / LANES % COLUMNS, i % LANES);
                let row = block * LANES + lane;
                if row < ROWS {
                    number((row * COLUMNS + column).wrapping_mul(0x9e37_79b9) >> 8, 17)
                } else {
                    0.0
                }
            };
            let mut weights = bytes(format, (0..BLOCKS * COLUMNS * LANES).map(weight));
            let x = |i: usize| {
                let (wanted, column) = (i / COLUMNS, i % COLUMNS);
                [1.0, -1.0, 1.0][wanted] * number(column * (5 + wanted), 11)
            };
            let x = bytes(format, (0..WANTED * COLUMNS).map(x));
            let mut exact = [[f32::NAN; STRIDE]; WANTED];
            let whole = kernels::Product {
                weights: weights.as_ptr(),
                index: std::ptr::null(),
                x: x.as_ptr(),
                y: exact.as_mut_ptr().cast(),
                rows: WANTED,
                used: WANTED,
                columns: COLUMNS,
                blocks: BLOCKS,
                stride: STRIDE,
            };
            // SAFETY: the buffers have the shapes stated.
            unsafe { kernel(&whole) };

            // Norms are 10 at least: every product may be off by half.
            let mut errors = [0.05_f32; STRIDE];
            let sketched = exact.map(|row| row.map(|y| if y > 0.0 { y - 0.5 } else { y + 0.5 }));
            let largest = |row: &[f32; STRIDE]| {
                let of_matrix = row[..ROWS].iter().enumerate();
                of_matrix.max_by(|a, b| a.1.total_cmp(b.1)).map(|(at, _)| at as i32).unwrap()
            };
            let best = [largest(&sketched[0]), largest(&sketched[1]), kernels::NOT_A_NUMBER];
            assert_ne!(best[0], best[1]);

            let (mut memory, mut places) = (Vec::<u8>::new(), Vec::new());
            let logits = bytemuck::cast_slice(sketched.as_flattened());
            for part in [&x[..], bytemuck::cast_slice(&best), logits] {
                places.push(memory.len());
                memory.extend_from_slice(part);
            }
            // Whole words, so that they are aligned.
            let mut words = vec![0_f32; memory.len() / size_of::<f32>()];
            bytemuck::cast_slice_mut(&mut words).copy_from_slice(&memory);
            let of = Candidates {
                weights: weights.as_mut_ptr(),
                offsets: std::ptr::null_mut(),
                errors: errors.as_mut_ptr().cast(),
                memory: words.as_mut_ptr().cast(),
                x: places[0],
                x_bytes: x.len() / WANTED,
                wanted: WANTED,
                columns: COLUMNS,
                rows: ROWS,
                run: RUN,
                best: places[1],
                logits: places[2],
                stride: STRIDE,
            };
            for item in 0..BLOCKS.div_ceil(RUN) {
                // SAFETY: the places have the shapes stated, and every CPU has the instructions.
                unsafe { candidates(kernel, format, item, &of, std::ptr::null()) };
            }
            let kept = words[places[2] / size_of::<f32>()..].chunks(STRIDE).zip(&exact).map(
                |(some, all)| {
                    let of_row = || some.iter().zip(all).take(ROWS);
                    assert!(of_row().all(|(some, all)| some == all || *some == f32::NEG_INFINITY));
                    let most = all[..ROWS].iter().copied().fold(f32::NEG_INFINITY, f32::max);
                    assert!(of_row().all(|(some, all)| *all < most || some == all));
                    of_row().filter(|(some, all)| some == all).count()
                },
            );
            let kept: Vec<_> = kept.collect();
            assert!(kept[0] <= 4 * LANES && kept[1] <= 4 * LANES, "{format:?}: {kept:?}");
            assert_eq!(kept[2], ROWS, "{format:?}");
        }
    }
}
