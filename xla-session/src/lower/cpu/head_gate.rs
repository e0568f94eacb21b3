//! Gates of attention's heads: they come beside the queries, and what the heads give is multiplied with their sigmoids.

use checkpoint::architecture::Attention;

use super::abi::kernel_abi;
use super::step::Steps;
use crate::emit::Format;

kernel_abi! {
    /// A work item takes the gates of a row from between its queries to behind its values.
    Split {
        reads {}
        updates {
            memory,
        }
        numbers {
            /// `[rows, stride]` of f32.
            qkv,
            stride,
            heads,
            width,
            /// Keys and values of a row.
            rest,
        }
    }
}

kernel_abi! {
    /// A work item is a row.
    GateHeads {
        reads {}
        updates {
            memory,
        }
        numbers {
            /// `[rows, stride]` of f32, from the gates of the first row on.
            gates,
            stride,
            /// `[rows, columns]` of f32.
            mixed,
            /// The same in bfloat16, plus 1; or 0.
            narrow,
            columns,
        }
    }
}

impl Steps<'_> {
    /// Puts queries, keys and values as attention without gates has them, and gates behind them.
    pub(super) fn split_gates(&mut self, of: &Attention) {
        let qkv = self.workspace.qkv;
        let memory = self.memory.clone();
        let call = Split {
            memory: &memory,
            qkv: qkv.at.into(),
            stride: qkv.stride.into(),
            heads: of.heads.into(),
            width: of.head_dim.into(),
            rest: (2 * of.kv_heads * of.head_dim).into(),
        };
        let rows = self.rows.clone();
        self.update(|b| call.call(b, "split_gates", &rows));
    }

    /// Gates what the heads gave, as products with weights of `format` take it.
    pub(super) fn gate_heads(&mut self, of: &Attention, format: Format) {
        let places = self.workspace.clone();
        let memory = self.memory.clone();
        let narrow = if format == Format::Bf16Rounded { places.mixed[1].at + 1 } else { 0 };
        let before = (of.heads + 2 * of.kv_heads) * of.head_dim;
        let call = GateHeads {
            memory: &memory,
            gates: (places.qkv.at + before * size_of::<f32>()).into(),
            stride: places.qkv.stride.into(),
            mixed: places.mixed[0].at.into(),
            narrow: narrow.into(),
            columns: (of.heads * of.head_dim).into(),
        };
        let rows = self.rows.clone();
        self.update(|b| call.call(b, "gate_heads", &rows));
    }
}

#[cfg(feature = "iree")]
pub(super) fn kernels(all: iree_rt::Kernels, isa: kernels::Isa) -> iree_rt::Kernels {
    let split = |item: usize, of: Split<*mut u8, usize>| {
        let row = of.memory.wrapping_add(of.qkv).cast::<f32>().wrapping_add(item * of.stride);
        // SAFETY: the graph has a place for what all projections of a row give, and an item has its row to
        // itself.
        unsafe { kernels::split_gates(row, of.heads, of.width, of.rest) };
    };
    let gate = move |item: usize, of: GateHeads<*mut u8, usize>| {
        let at = |place: usize| of.memory.wrapping_add(place);
        // SAFETY: the graph has these places for all rows of a step, and an item has its row to itself; `isa`
        // is here.
        unsafe {
            let gates = at(of.gates).cast::<f32>().add(item * of.stride);
            let mixed = at(of.mixed).cast::<f32>().add(item * of.columns);
            kernels::gate_by_sigmoid(isa, mixed, gates, of.columns);
            if of.narrow > 0 {
                let narrow = at(of.narrow - 1).cast::<u16>().add(item * of.columns);
                kernels::round_to_bf16(isa, mixed, narrow, of.columns);
            }
        }
    };
    all.with("split_gates", Split::kernel(split)).with("gate_heads", GateHeads::kernel(gate))
}
