//! The gate of an MLP, or what goes up where there is none.

use checkpoint::architecture::{Activation, Parameter};

use super::abi::kernel_abi;
use super::norm::bits;
#[cfg(feature = "iree")]
use super::norm::number;
use super::step::Steps;
use super::workspace::Place;
use crate::emit::Format;
use crate::emit::builder::Index;

kernel_abi! {
    /// A work item takes [`PART`] elements of a row.
    Gate {
        reads {}
        updates {
            memory,
        }
        numbers {
            /// `[rows, stride]` of f32: the gate, or up where there is none.
            from,
            stride,
            /// `[rows, up_stride]` of f32, plus 1: up, where there is a gate; or 0.
            up,
            up_stride,
            /// `[rows, columns]` of f32.
            to,
            /// The same in bfloat16, plus 1; or 0.
            narrow,
            columns,
            /// Of [`Activation::Clamped`]: the bits of f32.
            alpha,
            limit,
        }
    }
}

kernel_abi! {
    /// As [`Gate`], of [`Activation::Xielu`].
    Xielu {
        reads {
            /// `[4]` of f32: what it has learned.
            learned,
        }
        updates {
            memory,
        }
        numbers {
            from,
            stride,
            to,
            narrow,
            columns,
        }
    }
}

/// Elements of a work item.
const PART: usize = 2048;

impl Steps<'_> {
    /// Gates `rows` rows of `columns` columns, those of up by those of the gate, or up alone where there is none, as
    /// products with weights of `format` take them; the activation with what it has learned.
    pub(super) fn gate(
        &mut self,
        (activation, learned): (Activation, &[Parameter]),
        rows: &Index,
        (from, up): (Place, Option<Place>),
        to: [Place; 2],
        columns: usize,
        format: Format,
    ) {
        let (symbol, [alpha, limit]) = match activation {
            Activation::Silu => ("gate_silu", [0.0; 2]),
            Activation::GeluTanh => ("gate_gelu_tanh", [0.0; 2]),
            Activation::Gelu => ("gate_gelu", [0.0; 2]),
            Activation::Clamped { alpha, limit } => ("gate_clamped", [alpha, limit]),
            Activation::ReluSquared => ("relu_squared", [0.0; 2]),
            Activation::Xielu => ("xielu", [0.0; 2]),
        };
        let memory = self.memory.clone();
        let narrow = if format == Format::Bf16Rounded { to[1].at + 1 } else { 0 };
        let call = Gate {
            memory: &memory,
            from: from.at.into(),
            stride: from.stride.into(),
            up: up.map_or(0, |up| up.at + 1).into(),
            up_stride: up.map_or(0, |up| up.stride).into(),
            to: to[0].at.into(),
            narrow: narrow.into(),
            columns: columns.into(),
            alpha: bits(alpha).into(),
            limit: bits(limit).into(),
        };
        let items = self.b.index_mul(rows, columns.div_ceil(PART));
        if activation != Activation::Xielu {
            return self.update(|b| call.call(b, symbol, &items));
        }
        debug_assert!(up.is_none(), "no family has both");
        let learned = self.vector(learned);
        let Gate { memory, from, stride, to, narrow, columns, .. } = call;
        let call = Xielu { learned: &learned, memory, from, stride, to, narrow, columns };
        self.update(|b| call.call(b, symbol, &items));
    }
}

#[cfg(feature = "iree")]
pub(super) fn kernels(all: iree_rt::Kernels, isa: kernels::Isa) -> iree_rt::Kernels {
    let kernel = |activation| Gate::kernel(move |item, of| run(isa, activation, item, of));
    let clamped = move |item: usize, of: Gate<*mut u8, usize>| {
        let [alpha, limit] = [of.alpha, of.limit].map(number);
        run(isa, kernels::Activation::Clamped { alpha, limit }, item, of);
    };
    let xielu = move |item: usize, of: Xielu<*mut u8, usize>| {
        // SAFETY: the graph passes four numbers.
        let [a, b, beta, epsilon] = unsafe { *of.learned.cast::<[f32; 4]>() };
        let soft = |x: f32| x.max(0.0) + (-x.abs()).exp().ln_1p();
        let (positive, negative) = (soft(a), beta + soft(b));
        let activation = kernels::Activation::Xielu { positive, negative, beta, epsilon };
        let Xielu { memory, from, stride, to, narrow, columns, .. } = of;
        let of = Gate {
            memory,
            from,
            stride,
            up: 0,
            up_stride: 0,
            to,
            narrow,
            columns,
            alpha: 0,
            limit: 0,
        };
        run(isa, activation, item, of);
    };
    all.with("gate_silu", kernel(kernels::Activation::Silu))
        .with("gate_gelu_tanh", kernel(kernels::Activation::GeluTanh))
        .with("gate_gelu", kernel(kernels::Activation::Gelu))
        .with("gate_clamped", Gate::kernel(clamped))
        .with("relu_squared", kernel(kernels::Activation::ReluSquared))
        .with("xielu", Xielu::kernel(xielu))
}

#[cfg(feature = "iree")]
fn run(isa: kernels::Isa, activation: kernels::Activation, item: usize, of: Gate<*mut u8, usize>) {
    let parts = of.columns.div_ceil(PART);
    let (row, first) = (item / parts, item % parts * PART);
    let len = PART.min(of.columns - first);
    let at = |place: usize| of.memory.wrapping_add(place);
    // SAFETY: the graph has these places for all rows of a step, and no two work items write the
    // same part of a row; `isa` is here.
    unsafe {
        let gate = at(of.from).cast::<f32>().add(row * of.stride + first);
        let to = row * of.columns + first;
        let y = at(of.to).cast::<f32>().add(to);
        let up = match of.up {
            0 => std::ptr::null(),
            up => at(up - 1).cast_const().cast::<f32>().add(row * of.up_stride + first),
        };
        kernels::gate(isa, &kernels::Gate { activation, gate, up, y, len });
        if of.narrow > 0 {
            let narrow = at(of.narrow - 1).cast::<u16>().add(to);
            kernels::round_to_bf16(isa, y, narrow, len);
        }
    }
}
