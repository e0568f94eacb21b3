//! RMS norms of rows.

use checkpoint::architecture;

use super::abi::kernel_abi;
use super::step::Steps;
use super::workspace::Place;
use crate::emit::Format;
use crate::emit::builder::{Index, Value};

kernel_abi! {
    /// A work item norms [`TOGETHER`] rows.
    Norm {
        reads {
            /// `[columns]` of f32.
            weight,
        }
        updates {
            memory,
        }
        numbers {
            rows,
            /// `[.., stride]` of f32.
            from,
            stride,
            /// Which rows: the place of their numbers, i32, plus 1; or 0: all, in order.
            which,
            /// `[rows, columns]` of f32.
            to,
            /// The same in bfloat16, plus 1; `to` is rounded to it then. Or 0.
            narrow,
            columns,
            /// The bits of an f32.
            epsilon,
        }
    }
}

/// Rows of a work item.
const TOGETHER: usize = 4;

impl Steps<'_> {
    /// Norms `rows` rows of `from`, those that `which` lists or all, to `to`, as products with weights
    /// of `format` take them.
    pub(super) fn norm(
        &mut self,
        norm: &architecture::Norm,
        rows: &Index,
        (from, which): (Place, Option<Place>),
        to: [Place; 2],
        format: Format,
    ) {
        let weight = self.vector([&norm.weight]);
        let memory = self.memory.clone();
        let narrow = if format == Format::Bf16Rounded { to[1].at + 1 } else { 0 };
        let call = Norm {
            weight: &weight,
            memory: &memory,
            rows: rows.clone(),
            from: from.at.into(),
            stride: from.stride.into(),
            which: which.map_or(0, |which| which.at + 1).into(),
            to: to[0].at.into(),
            narrow: narrow.into(),
            columns: norm.width().into(),
            epsilon: epsilon(norm).into(),
        };
        let items = self.b.index_ceil_div(rows, TOGETHER);
        self.update(|b| call.call(b, "norm", &items));
    }

    /// Writes a call that updates the workspace.
    pub(super) fn update(
        &mut self,
        call: impl FnOnce(&mut crate::emit::builder::Builder) -> Vec<Value>,
    ) {
        if let Some(memory) = call(&mut self.b).into_iter().next() {
            self.memory = memory;
        }
    }
}

/// What keeps the root of `norm` from zero: the bits of an f32, as kernels take it.
pub(super) fn epsilon(norm: &architecture::Norm) -> usize {
    (norm.epsilon as f32).to_bits() as usize
}

#[cfg(feature = "iree")]
pub(super) fn kernels(all: iree_rt::Kernels, isa: kernels::Isa) -> iree_rt::Kernels {
    let run = move |item: usize, of: Norm<*mut u8, usize>| {
        let at = |place: usize| of.memory.wrapping_add(place);
        for row in item * TOGETHER..of.rows.min((item + 1) * TOGETHER) {
            // SAFETY: the graph has these places for all rows of a step, the host has written which
            // rows of them are meant, and no two work items write the same row; `isa` is here.
            unsafe {
                let from = match of.which {
                    0 => row,
                    which => *at(which - 1).cast::<i32>().add(row) as usize,
                };
                let to = at(of.to).cast::<f32>().add(row * of.columns);
                kernels::rms_norm(
                    isa,
                    &kernels::RmsNorm {
                        x: at(of.from).cast::<f32>().add(from * of.stride),
                        weight: of.weight.cast(),
                        y: to,
                        columns: of.columns,
                        epsilon: f32::from_bits(of.epsilon as u32),
                    },
                );
                if of.narrow > 0 {
                    let narrow = at(of.narrow - 1).cast::<u16>().add(row * of.columns);
                    kernels::round_to_bf16(isa, to, narrow, of.columns);
                    for i in 0..of.columns {
                        *to.add(i) = f32::from_bits(u32::from(*narrow.add(i)) << 16);
                    }
                }
            }
        }
    };
    all.with("norm", Norm::kernel(run))
}
