//! Linear layers: one concept, with a lowering for each target.

use super::builder::{Generic, Value};
use super::graph::{Layout, WeightSpec};
use super::tiles::{CpuTiles, FEW};
use super::{Emitter, Target, multiply_add};

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

    fn weight(&self) -> String {
        format!("{}.weight", self.module)
    }
}

impl Emitter<'_> {
    /// Applies projections that read the same `x`, `[rows, columns]`, in one pass over it; returns
    /// the output of each, `[rows, linear.rows]`.
    pub(super) fn linears(&mut self, x: &Value, group: &[Linear]) -> Vec<Value> {
        let (rows, columns) = (x.dims()[0], x.dims()[1]);
        let outputs = match self.target {
            Target::Portable { .. } => group
                .iter()
                .map(|linear| {
                    let weight =
                        self.matrix(&[(linear.weight(), linear.rows)], columns, Layout::Rows);
                    let weight = self.b.convert(&weight, super::ElementType::F32);
                    self.b.dot(x, &weight, [&[], &[]], [&[1], &[1]])
                })
                .collect(),
            Target::Cpu(tiles) => {
                let parts: Vec<_> = group.iter().map(|l| (l.weight(), l.rows)).collect();
                let weight = self.matrix(&parts, columns, Layout::Packed { lanes: tiles.lanes });
                let y = self.packed_product(x, &weight, &tiles.clone());
                let mut at = 0;
                group
                    .iter()
                    .map(|linear| {
                        at += linear.rows;
                        self.b.slice(&y, 1, at - linear.rows, at)
                    })
                    .collect::<Vec<_>>()
            }
        };
        let add_bias = |(linear, y): (&Linear, Value)| {
            if !linear.bias {
                return y;
            }
            let bias = self.vector(&format!("{}.bias", linear.module), linear.rows);
            let bias = self.b.broadcast(&bias, &[rows, linear.rows], &[1]);
            self.b.add(&y, &bias)
        };
        group.iter().zip(outputs).map(add_bias).collect()
    }

    /// One projection; see [`linears`](Self::linears).
    pub(super) fn linear(&mut self, x: &Value, linear: Linear) -> Value {
        self.linears(x, &[linear]).remove(0)
    }

    /// `x` `[rows, columns]` times packed weights `[blocks, columns, lanes]`, as
    /// `[rows, blocks * lanes]`.
    pub(super) fn packed_product(&mut self, x: &Value, weight: &Value, tiles: &CpuTiles) -> Value {
        let (rows, columns) = (x.dims()[0], x.dims()[1]);
        let &[blocks, _, lanes] = weight.dims() else { unreachable!("packed weights have 3 dims") };
        let element = weight.ty.element;
        let body = multiply_add(element);
        let y = if rows == 1 {
            let x = self.b.reshape(x, &[columns]);
            let zero = self.b.fill("0.0", &[blocks, lanes], None);
            self.b.generic(
                &Generic {
                    loops: "n,b,k",
                    inputs: &[(&x, "k"), (weight, "n,k,b")],
                    result: "n,b",
                    body,
                    config: Some(tiles.one_row(blocks, columns, element)),
                },
                &zero,
            )
        } else if rows <= FEW {
            let zero = self.b.fill("0.0", &[rows, blocks, lanes], None);
            self.b.generic(
                &Generic {
                    loops: "m,n,b,k",
                    inputs: &[(x, "m,k"), (weight, "n,k,b")],
                    result: "m,n,b",
                    body,
                    config: Some(tiles.few_rows(rows, blocks, columns, element)),
                },
                &zero,
            )
        } else {
            // Activations interleaved like the weights: [rows / 8, columns, 8]. Without the
            // barriers the transpose folds back into the product, which then loses its tiles.
            let x = self.b.barrier(x);
            let x = self.b.reshape(&x, &[rows / FEW, FEW, columns]);
            let x = self.b.transpose(&x, &[0, 2, 1]);
            let x = self.b.barrier(&x);
            let mut y = self.b.fill("0.0", &[rows / FEW, FEW, blocks, lanes], None);
            let step = tiles.split_columns(element);
            for low in (0..columns).step_by(step) {
                let high = columns.min(low.saturating_add(step));
                let x = self.b.slice(&x, 1, low, high);
                let weight = self.b.slice(weight, 1, low, high);
                y = self.b.generic(
                    &Generic {
                        loops: "m,i,n,b,k",
                        inputs: &[(&x, "m,k,i"), (&weight, "n,k,b")],
                        result: "m,i,n,b",
                        body,
                        config: Some(tiles.many_rows(rows, blocks, high - low, element)),
                    },
                    &y,
                );
            }
            y
        };
        self.b.reshape(&y, &[rows, blocks * lanes])
    }

    /// A weight matrix joined from `parts`, each `[rows, columns]`.
    pub(super) fn matrix(
        &mut self,
        parts: &[(String, usize)],
        columns: usize,
        layout: Layout,
    ) -> Value {
        let element = self.types.of(parts.iter().map(|(name, _)| name.as_str()));
        self.weight(WeightSpec { parts: parts.to_vec(), columns, element, layout })
    }

    /// A weight vector, widened to f32 on upload: norms and biases are small.
    pub(super) fn vector(&mut self, name: &str, rows: usize) -> Value {
        self.weight(WeightSpec {
            parts: vec![(name.into(), rows)],
            columns: 0,
            element: super::ElementType::F32,
            layout: Layout::Rows,
        })
    }
}
