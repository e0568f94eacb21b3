//! The gate of an MLP, or what goes up where there is none.

use checkpoint::architecture::Activation;

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
            /// `[rows, stride]` of f32: gate, and up behind it; or up alone.
            from,
            stride,
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

/// Elements of a work item.
const PART: usize = 2048;

impl Steps<'_> {
    /// Gates `rows` rows of `columns` columns at `from`, up behind them if there is a gate, as products with
    /// weights of `format` take them.
    pub(super) fn gate(
        &mut self,
        activation: Activation,
        rows: &Index,
        from: Place,
        to: [Place; 2],
        columns: usize,
        format: Format,
    ) {
        let symbol = symbol(activation);
        let [alpha, limit] = match activation {
            Activation::Silu | Activation::GeluTanh | Activation::ReluSquared => [0.0; 2],
            Activation::Clamped { alpha, limit } => [alpha, limit],
        };
        let memory = self.memory.clone();
        let narrow = if format == Format::Bf16Rounded { to[1].at + 1 } else { 0 };
        let call = Gate {
            memory: &memory,
            from: from.at.into(),
            stride: from.stride.into(),
            to: to[0].at.into(),
            narrow: narrow.into(),
            columns: columns.into(),
            alpha: bits(alpha).into(),
            limit: bits(limit).into(),
        };
        let items = self.b.index_mul(rows, columns.div_ceil(PART));
        self.update(|b| call.call(b, symbol, &items));
    }
}

fn symbol(activation: Activation) -> &'static str {
    match activation {
        Activation::Silu => "gate_silu",
        Activation::GeluTanh => "gate_gelu_tanh",
        Activation::Clamped { .. } => "gate_clamped",
        Activation::ReluSquared => "relu_squared",
    }
}

#[cfg(feature = "iree")]
pub(super) fn kernels(all: iree_rt::Kernels, isa: kernels::Isa) -> iree_rt::Kernels {
    let kernel = |activation| Gate::kernel(move |item, of| run(isa, activation, item, of));
    let clamped = move |item: usize, of: Gate<*mut u8, usize>| {
        let [alpha, limit] = [of.alpha, of.limit].map(number);
        run(isa, kernels::Activation::Clamped { alpha, limit }, item, of);
    };
    all.with("gate_silu", kernel(kernels::Activation::Silu))
        .with("gate_gelu_tanh", kernel(kernels::Activation::GeluTanh))
        .with("gate_clamped", Gate::kernel(clamped))
        .with("relu_squared", kernel(kernels::Activation::ReluSquared))
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
        let behind = if activation == kernels::Activation::ReluSquared { 0 } else { of.columns };
        let up = gate.add(behind);
        kernels::gate(isa, &kernels::Gate { activation, gate, up, y, len });
        if of.narrow > 0 {
            let narrow = at(of.narrow - 1).cast::<u16>().add(to);
            kernels::round_to_bf16(isa, y, narrow, len);
        }
    }
}
