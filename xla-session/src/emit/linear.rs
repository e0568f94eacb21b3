//! Linear layers: one concept, with a lowering for each target.

use kernels::LANES;

use super::builder::{Index, Kernel, TensorType, Value};
use super::graph::{Layout, Source, WeightSpec};
use super::tiles::CpuTiles;
use super::{ElementType, Emitter, Format, Target};

/// A weight matrix of the graph.
pub(super) struct Matrix {
    /// As [`WeightSpec::ty`] has it.
    pub weights: Value,
    /// As [`WeightSpec::scales`] has them, where they have a tensor of their own.
    pub scales: Option<Value>,
    /// As [`WeightSpec::blocks`] has them.
    pub offsets: Option<Value>,
    /// How it is stored, and what meets it.
    pub format: Format,
    pub rows: usize,
    pub columns: usize,
}

impl Matrix {
    /// The kernel that does `what` with it.
    pub fn symbol(&self, what: &str) -> String {
        let suffix = if self.offsets.is_some() { "_compressed" } else { "" };
        format!("{what}_{}{suffix}", self.format.as_str())
    }
}

/// One projection `y = x Wᵀ (+ b)`, as the checkpoint names it.
#[derive(Debug, Clone)]
pub struct Linear {
    /// The module: "model.layers.0.self_attn.q_proj".
    pub module: String,
    /// Its outputs.
    pub rows: usize,
    /// Whether it has a bias.
    pub bias: bool,
}

impl Linear {
    /// A projection.
    pub fn new(module: impl Into<String>, rows: usize, bias: bool) -> Self {
        Self { module: module.into(), rows, bias }
    }

    pub(super) fn weight(&self) -> String {
        format!("{}.weight", self.module)
    }
}

impl Emitter<'_> {
    /// Applies projections that read the same `x`, `[rows, columns]`, in one pass over it; returns
    /// their outputs side by side, `[rows, sum of linear.rows]`.
    pub(super) fn linears(&mut self, x: &Value, group: &[Linear]) -> Value {
        let columns = x.dims()[1];
        let y = match self.target {
            Target::Portable { .. } => {
                let outputs: Vec<_> = group
                    .iter()
                    .map(|linear| {
                        let part = (linear.weight(), linear.rows);
                        let weight = self.matrix(&[part], columns, Layout::Rows);
                        let x = self.rounded(x, weight.format);
                        let weight = self.b.convert(&weight.weights, ElementType::F32);
                        self.b.dot(&x, &weight, [&[], &[]], [&[1], &[1]])
                    })
                    .collect();
                self.b.concat(&outputs, 1)
            }
            Target::Cpu(_) => {
                let parts: Vec<_> = group.iter().map(|l| (l.weight(), l.rows)).collect();
                let weight = self.matrix(&parts, columns, Layout::Packed { lanes: LANES });
                let y = self.cpu_product(x, &weight);
                let width = group.iter().map(|linear| linear.rows).sum();
                self.b.slice(&y, 1, 0, width)
            }
            Target::Cuda(tiles) => self.joined_rows(x, None, group, tiles),
        };
        self.biased(y, group)
    }

    /// [`linears`](Self::linears) of `x`, RMS-normed with the weight `norm`.
    pub(super) fn normed_linears(&mut self, x: &Value, norm: &Value, group: &[Linear]) -> Value {
        match self.target {
            Target::Cuda(tiles) => {
                let y = self.joined_rows(x, Some(norm), group, tiles);
                self.biased(y, group)
            }
            _ => {
                let x = self.rms_norm(x, norm);
                self.linears(&x, group)
            }
        }
    }

    /// Two projections of as many outputs of `x`, RMS-normed with the weight `norm`, each by
    /// itself.
    pub(super) fn normed_pair(&mut self, x: &Value, norm: &Value, pair: [Linear; 2]) -> [Value; 2] {
        match self.target {
            Target::Cuda(tiles) => self.row_pair(x, norm, &pair, tiles),
            _ => {
                let outputs = pair[0].rows;
                let both = self.normed_linears(x, norm, &pair);
                [0, outputs].map(|low| self.b.slice(&both, 1, low, low + outputs))
            }
        }
    }

    /// `y`, the outputs of `group` side by side, with their biases.
    pub(super) fn biased(&mut self, y: Value, group: &[Linear]) -> Value {
        let &[rows, width] = y.dims() else { unreachable!("rows of outputs") };
        if group.iter().all(|linear| !linear.bias) {
            return y;
        }
        let biases: Vec<_> = group
            .iter()
            .map(|linear| match linear.bias {
                true => self.vector(&format!("{}.bias", linear.module), linear.rows),
                false => self.b.splat_f32(0.0, &[linear.rows]),
            })
            .collect();
        let bias = match &biases[..] {
            [bias] => bias.clone(),
            biases => self.joined(biases, 0),
        };
        let bias = self.b.broadcast(&bias, &[rows, width], &[1]);
        self.b.add(&y, &bias)
    }

    /// One projection; see [`linears`](Self::linears).
    pub(super) fn linear(&mut self, x: &Value, linear: Linear) -> Value {
        self.linears(x, &[linear])
    }

    /// `x` `[rows, columns]` times a matrix as CPUs have it; its rows, with the padding of the last
    /// block where it has blocks: `[rows, blocks * lanes]`.
    pub(super) fn cpu_product(&mut self, x: &Value, matrix: &Matrix) -> Value {
        let Target::Cpu(tiles) = self.target else { unreachable!("a CPU's layout") };
        if tiles.kernels {
            let rows = x.dims()[0];
            let used = if rows == 1 { 1.into() } else { self.used_of(rows) };
            self.called_product(&matrix.symbol("product"), x, used, matrix, tiles)
        } else {
            self.generated_product(x, matrix, tiles)
        }
    }

    /// `x`, rounded if weights of `format` want it.
    pub(super) fn rounded(&mut self, x: &Value, format: Format) -> Value {
        if format == Format::Bf16Rounded { self.b.reduce_precision(x, 8, 7) } else { x.clone() }
    }

    /// `x` as a kernel for weights of `format` takes it.
    pub(super) fn operand(&mut self, x: &Value, format: Format) -> Value {
        match format {
            Format::Bf16Rounded => self.b.convert(x, ElementType::Bf16),
            _ => x.clone(),
        }
    }

    /// By our kernels, of the first `used` rows: work items are runs of blocks, and a kernel
    /// finds its own.
    pub(super) fn called_product(
        &mut self,
        symbol: &str,
        x: &Value,
        used: Index,
        matrix: &Matrix,
        tiles: &CpuTiles,
    ) -> Value {
        let rows = x.dims()[0];
        let blocks = matrix.rows.div_ceil(LANES);
        let run = tiles.run(blocks);
        let x = self.operand(x, matrix.format);
        let mut inputs = vec![&matrix.weights];
        inputs.extend(&matrix.offsets);
        inputs.push(&x);
        self.b.kernel(
            &Kernel {
                symbol,
                inputs: &inputs,
                scalars: &[run.into(), blocks.into(), rows.into(), used, matrix.columns.into()],
                work_items: blocks.div_ceil(run),
            },
            &[rows, blocks * LANES],
        )
    }

    /// A weight matrix joined from `parts`, each `[rows, columns]`.
    pub(super) fn matrix(
        &mut self,
        parts: &[(String, usize)],
        columns: usize,
        layout: Layout,
    ) -> Matrix {
        let format = self.formats.of(parts.iter().map(|(name, _)| name.as_str()));
        let layout = self.layout(layout, format, columns);
        let format = match (format, layout) {
            // Six bits lie in words of several lanes; row by row eight take their place.
            (Format::Int6, Layout::Rows) => Format::Int8,
            (format, _) => format,
        };
        let parts = parts.to_vec();
        let spec = WeightSpec { parts, columns, format: format.stored(), layout };
        let mut number = 0;
        let mut beside = |ty: TensorType| {
            number += 1;
            self.argument(Source::Beside(spec.clone(), number), &ty.dims, ty.element)
        };
        let scales = spec.scales().map(&mut beside);
        let offsets = spec.blocks().map(beside);
        let rows = spec.rows();
        Matrix { weights: self.weight(spec), scales, offsets, format, rows, columns }
    }

    /// What lies so in place of `layout`: where kernels read packed floats they are compressed, and
    /// where none read packed integers these are in rows.
    fn layout(&self, layout: Layout, format: Format, columns: usize) -> Layout {
        let (Layout::Packed { lanes }, Target::Cpu(tiles)) = (layout, self.target) else {
            return layout;
        };
        if tiles.compressed() && format.is_compressible(columns) {
            Layout::Compressed { lanes }
        } else if format.is_quantised() && !tiles.kernels {
            Layout::Rows
        } else {
            layout
        }
    }

    /// A weight vector, widened to f32 on upload: norms and biases are small.
    pub(super) fn vector(&mut self, name: &str, rows: usize) -> Value {
        self.weight(WeightSpec {
            parts: vec![(name.into(), rows)],
            columns: 0,
            format: Format::F32,
            layout: Layout::Rows,
        })
    }
}
