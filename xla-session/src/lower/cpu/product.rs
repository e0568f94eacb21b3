//! Products of rows with packed weights.

use checkpoint::architecture::{Linear, Parameter};
use kernels::LANES;

use super::abi::kernel_abi;
use super::norm::bits;
#[cfg(feature = "iree")]
use super::norm::number;
use super::step::{Matrix, Steps};
use super::workspace::Place;
use crate::emit::builder::Index;
use crate::emit::{Format, Layout};

kernel_abi! {
    /// A work item multiplies all rows with a run of blocks.
    Product {
        reads {
            weights,
            /// Where each block begins, bytes, u64, if blocks are compressed; else the weights again.
            offsets,
        }
        updates {
            memory,
        }
        numbers {
            rows,
            /// `[rows, columns]` of f32, or of bfloat16 for [`Format::Bf16Rounded`]; for integers what
            /// [`Round`] leaves.
            x,
            /// `[rows, stride]` of f32.
            y,
            stride,
            columns,
            /// Of the matrix.
            blocks,
            /// Blocks of a work item.
            run,
            /// What results are added to as well, as `y`, plus 1; or 0.
            add,
            /// What they are multiplied with there: the bits of an f32.
            scale,
        }
    }
}

kernel_abi! {
    /// A work item rounds [`TOGETHER`] rows for products with integers.
    Round {
        reads {}
        updates {
            memory,
        }
        numbers {
            rows,
            /// `[rows, columns]` of f32.
            x,
            columns,
            /// `[rows, kernels::rounded_bytes(columns)]`
            to,
        }
    }
}

kernel_abi! {
    /// A work item adds a vector to one row.
    Bias {
        reads {
            /// `[columns]` of f32.
            bias,
        }
        updates {
            memory,
        }
        numbers {
            /// `[rows, stride]` of f32.
            to,
            stride,
            columns,
            /// What it is multiplied with: the bits of an f32.
            scale,
        }
    }
}

/// Rows of a work item of [`Round`].
const TOGETHER: usize = 4;

impl Steps<'_> {
    /// Multiplies `rows` rows at `x` with `matrix`, to `y`, and adds that times a number to `add`.
    pub(super) fn product(
        &mut self,
        matrix: &Matrix,
        rows: &Index,
        x: [Place; 2],
        y: Place,
        add: Option<(Place, f32)>,
    ) {
        let x = match matrix.format {
            Format::Bf16Rounded => x[1],
            format if format.is_quantised() => self.rounded(format, rows, x[0], matrix.columns),
            _ => x[0],
        };
        let blocks = matrix.rows.div_ceil(LANES);
        let run = self.target.run(blocks);
        debug_assert!(
            y.stride >= blocks * LANES && add.is_none_or(|(add, _)| add.stride == y.stride)
        );
        let (add, scale) = add.map_or((0, 0), |(add, scale)| (add.at + 1, bits(scale)));
        let memory = self.memory.clone();
        let call = Product {
            weights: &matrix.weights,
            offsets: matrix.offsets_or_weights(),
            memory: &memory,
            rows: rows.clone(),
            x: x.at.into(),
            y: y.at.into(),
            stride: y.stride.into(),
            columns: matrix.columns.into(),
            blocks: blocks.into(),
            run: run.into(),
            add: add.into(),
            scale: scale.into(),
        };
        let items = blocks.div_ceil(run).into();
        self.update(|b| call.call(b, &matrix.symbol("product"), &items));
    }

    /// The runs of `group` that are one matrix: of one format, or all, which are widened then, where the
    /// outputs of a run do not fill blocks.
    fn alike<'l, 'p>(&self, group: &'l [&'p Linear]) -> Vec<&'l [&'p Linear]> {
        let format = |linear: &Linear| self.format_of([&linear.weight]);
        let runs: Vec<_> = group.chunk_by(|a, b| format(a) == format(b)).collect();
        let fills = |run: &&[&Linear]| {
            run.iter().map(|linear| linear.outputs()).sum::<usize>().is_multiple_of(LANES)
        };
        match runs[..runs.len() - 1].iter().all(fills) {
            true => runs,
            false => vec![group],
        }
    }

    /// Where `rows` rows of `columns` at `x` are once they are rounded, until the next are.
    fn rounded(&mut self, format: Format, rows: &Index, x: Place, columns: usize) -> Place {
        let to = self.workspace.rounded;
        let memory = self.memory.clone();
        let call = Round {
            memory: &memory,
            rows: rows.clone(),
            x: x.at.into(),
            columns: columns.into(),
            to: to.at.into(),
        };
        let items = self.b.index_ceil_div(rows, TOGETHER);
        self.update(|b| call.call(b, &format!("round_{}", format.as_str()), &items));
        to
    }

    /// Projections that read the same rows: their outputs lie side by side in `y`, with biases; or they are
    /// added to `add` times a number, biases too. Neighbours of one format are one pass over the rows.
    pub(super) fn linears(
        &mut self,
        group: &[&Linear],
        x: [Place; 2],
        y: Place,
        add: Option<(Place, f32)>,
    ) {
        let rows = self.rows.clone();
        let mut before = 0;
        for alike in self.alike(group) {
            let weights = alike.iter().map(|linear| &linear.weight);
            let matrix = self.matrix(weights, Layout::Packed { lanes: LANES });
            let behind = |place: Place| Place { at: place.at + before * size_of::<f32>(), ..place };
            let add = add.map(|(place, scale)| (behind(place), scale));
            self.product(&matrix, &rows, x, behind(y), add);
            before += matrix.rows;
        }
        let (to, scale) = add.unwrap_or((y, 1.0));
        let mut before = 0;
        // Not all of a group need have one: neighbours that do are added by one call.
        for some in group.chunk_by(|a, b| a.bias.is_some() == b.bias.is_some()) {
            let columns: usize = some.iter().map(|linear| linear.outputs()).sum();
            let biases: Vec<_> = some.iter().filter_map(|linear| linear.bias.as_ref()).collect();
            if !biases.is_empty() {
                let to = Place { at: to.at + before * size_of::<f32>(), ..to };
                self.bias(biases, to, scale);
            }
            before += columns;
        }
    }

    /// Adds `biases`, which lie side by side, times `scale` to all rows at `to`.
    pub(super) fn bias(&mut self, biases: Vec<&Parameter>, to: Place, scale: f32) {
        let columns: usize = biases.iter().map(|it| it.elements()).sum();
        let (bias, memory, rows) = (self.vector(biases), self.memory.clone(), self.rows.clone());
        let call = Bias {
            bias: &bias,
            memory: &memory,
            to: to.at.into(),
            stride: to.stride.into(),
            columns: columns.into(),
            scale: bits(scale).into(),
        };
        self.update(|b| call.call(b, "bias", &rows));
    }
}

#[cfg(feature = "iree")]
pub(super) fn kernels(mut all: iree_rt::Kernels, isa: kernels::Isa) -> iree_rt::Kernels {
    /// One work item.
    ///
    /// # Safety
    ///
    /// The graph passes a matrix of this format, whose blocks begin at `index` if it is compressed, and
    /// places for all rows of a step; no two work items have the same blocks; the kernel is for this format and CPU.
    unsafe fn run(
        kernel: kernels::Kernel,
        format: Format,
        item: usize,
        of: &Product<*mut u8, usize>,
        index: *const u64,
    ) {
        let at = |place: usize| of.memory.wrapping_add(place);
        let first = item * of.run;
        let (weights, index) = match index.is_null() {
            true => (of.weights.wrapping_add(first * format.block_bytes(of.columns)), index),
            false => (of.weights, index.wrapping_add(first)),
        };
        let blocks = of.run.min(of.blocks - first);
        let y = at(of.y).cast::<f32>().wrapping_add(first * LANES);
        let product = kernels::Product {
            weights,
            index,
            x: at(of.x),
            y,
            rows: of.rows,
            used: of.rows,
            columns: of.columns,
            blocks,
            stride: of.stride,
        };
        // SAFETY: the caller's promise.
        unsafe {
            kernel(&product);
            if of.add > 0 {
                let scale = number(of.scale);
                let sum = at(of.add - 1).cast::<f32>().wrapping_add(first * LANES);
                for row in 0..of.rows {
                    let (y, sum) = (y.add(row * of.stride), sum.add(row * of.stride));
                    for i in 0..blocks * LANES {
                        *sum.add(i) += scale * *y.add(i);
                    }
                }
            }
        }
    }
    for format in Format::ALL {
        let name = format.as_str();
        let kernel = kernels::product_for(format, isa);
        let plain = move |item: usize, of: Product<*mut u8, usize>| {
            // SAFETY: as `run` wants it.
            unsafe { run(kernel, format, item, &of, std::ptr::null()) };
        };
        all = all.with(format!("product_{name}"), Product::kernel(plain));
        if format.is_quantised() {
            let round = move |item: usize, of: Round<*mut u8, usize>| {
                let at = |place: usize| of.memory.wrapping_add(place);
                for row in item * TOGETHER..of.rows.min((item + 1) * TOGETHER) {
                    let x = at(of.x).cast::<f32>().wrapping_add(row * of.columns);
                    let to = at(of.to).wrapping_add(row * kernels::rounded_bytes(of.columns));
                    // SAFETY: the graph has these places for all rows of a step, and no two work
                    // items have the same row; `isa` is here.
                    unsafe { kernels::round_row(isa, format, of.rows, x, of.columns, to) };
                }
            };
            all = all.with(format!("round_{name}"), Round::kernel(round));
        }
        if format.is_compressible(8) {
            let kernel = kernels::compressed_product_for(format, isa);
            let compressed = move |item: usize, of: Product<*mut u8, usize>| {
                // SAFETY: as `run` wants it; the offsets say where blocks begin.
                unsafe { run(kernel, format, item, &of, of.offsets.cast()) };
            };
            all = all.with(format!("compressed_product_{name}"), Product::kernel(compressed));
        }
    }
    let bias = |item: usize, of: Bias<*mut u8, usize>| {
        let to = of.memory.wrapping_add(of.to).cast::<f32>().wrapping_add(item * of.stride);
        // SAFETY: the graph has a place for all rows of a step, and a bias for each column.
        unsafe {
            for i in 0..of.columns {
                *to.add(i) += number(of.scale) * *of.bias.cast::<f32>().add(i);
            }
        }
    };
    all.with("bias", Bias::kernel(bias))
}
