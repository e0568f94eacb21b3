//! Short convolutions: what a row keeps goes to the pages of its sequence, then it is added up with what the rows
//! before it have left there.

use checkpoint::architecture::ShortConvolution;
#[cfg(feature = "iree")]
use kernels::KvFormat;

use super::abi::kernel_abi;
use super::step::Steps;
#[cfg(feature = "iree")]
use super::workspace::ENTRY;
use crate::emit::{Format, WeightSpec};

kernel_abi! {
    /// A work item keeps what [`TOGETHER`] rows leave.
    Keep {
        reads {}
        updates {
            memory,
            /// `[pages, 64, width / 2]`
            keys,
            /// `[pages, 64, width / 2]`
            values,
        }
        numbers {
            rows,
            /// `[rows, stride]` of f32: `b`, `c` and `x`.
            from,
            stride,
            width,
            /// `[rows]` of i32.
            slots,
        }
    }
}

kernel_abi! {
    /// A work item is an entry.
    Convolve {
        reads {
            /// Numbers of pages, i32: the tables of all sequences.
            tables,
            keys,
            values,
            /// `[width, seen]` of f32.
            taps,
        }
        updates {
            memory,
        }
        numbers {
            from,
            stride,
            /// `[rows, width]` of f32.
            to,
            /// The same in bfloat16, plus 1; or 0.
            narrow,
            width,
            /// Rows that a row sees.
            seen,
            /// Where the entries are.
            entries_at,
        }
    }
}

/// Rows of a work item of [`Keep`].
const TOGETHER: usize = 16;

impl Steps<'_> {
    /// Keeps what all rows leave, and convolves them, as products with weights of `format` take it.
    pub(super) fn convolve(&mut self, layer: usize, of: &ShortConvolution, format: Format) {
        let (width, seen) = (of.width(), of.rows());
        let [keys, values] = self.pages(layer);
        let places = self.workspace.clone();
        let from = places.qkv;
        let memory = self.memory.clone();
        let rows = self.rows.clone();
        let call = Keep {
            memory: &memory,
            keys: &keys,
            values: &values,
            rows: rows.clone(),
            from: from.at.into(),
            stride: from.stride.into(),
            width: width.into(),
            slots: places.slots.at.into(),
        };
        let items = self.b.index_ceil_div(&rows, TOGETHER);
        let symbol = |what: &str| format!("{what}_{}", self.target.kv_cache().as_str());
        let (keep, convolve) = (symbol("keep"), symbol("convolve"));
        let updated = call.call(&mut self.b, &keep, &items);
        let [memory, keys, values] = &updated[..] else { unreachable!("three are updated") };

        let tables = self.tables();
        let taps = self.weight(&WeightSpec::floats(&of.taps), 0);
        let narrow = if format == Format::Bf16Rounded { places.mixed[1].at + 1 } else { 0 };
        let call = Convolve {
            tables: &tables,
            keys,
            values,
            taps: &taps,
            memory,
            from: from.at.into(),
            stride: from.stride.into(),
            to: places.mixed[0].at.into(),
            narrow: narrow.into(),
            width: width.into(),
            seen: seen.into(),
            entries_at: places.entries.at.into(),
        };
        let items = self.entries.clone();
        self.update(|b| call.call(b, &convolve, &items));
    }
}

#[cfg(feature = "iree")]
pub(super) fn kernels(mut all: iree_rt::Kernels, isa: kernels::Isa) -> iree_rt::Kernels {
    for (name, format) in KvFormat::ALL {
        all = all
            .with(format!("keep_{name}"), keep(isa, format))
            .with(format!("convolve_{name}"), convolve(isa, format));
    }
    all
}

#[cfg(feature = "iree")]
fn keep(isa: kernels::Isa, format: KvFormat) -> iree_rt::Kernel {
    Keep::kernel(move |item: usize, of: Keep<*mut u8, usize>| {
        let at = |place: usize| of.memory.wrapping_add(place);
        let page_bytes = of.width / 2 * kernels::KV_BLOCK * format.bytes();
        for row in item * TOGETHER..of.rows.min((item + 1) * TOGETHER) {
            // SAFETY: the host has written a slot of the cache for each row of the step, no two the
            // same and none that another sequence reads; the graph has the other places; `isa` is
            // here.
            unsafe {
                let slot = *at(of.slots).cast::<i32>().add(row) as usize;
                let page = slot / kernels::KV_BLOCK * page_bytes;
                kernels::keep_product(
                    isa,
                    &kernels::KeepProduct {
                        row: at(of.from).cast::<f32>().add(row * of.stride),
                        width: of.width,
                        keys: of.keys.add(page),
                        values: of.values.add(page),
                        slot: slot % kernels::KV_BLOCK,
                        format,
                    },
                );
            }
        }
    })
}

#[cfg(feature = "iree")]
fn convolve(isa: kernels::Isa, format: KvFormat) -> iree_rt::Kernel {
    Convolve::kernel(move |item: usize, of: Convolve<*mut u8, usize>| {
        let at = |place: usize| of.memory.wrapping_add(place);
        // SAFETY: the host has written the entries, whose rows are some of the step's, and tables that
        // name a page for every 64 tokens up to those; the graph has places for all rows, all of which
        // have been kept, and no two work items have the same row; `isa` is here.
        unsafe {
            let entry = at(of.entries_at).cast::<i32>().add(item * ENTRY);
            let [first, rows, start, table] =
                [0, 1, 2, 3].map(|i| usize::try_from(*entry.add(i)).unwrap_or(0));
            for (row, position) in (first..first + rows).zip(start..) {
                let output = at(of.to).cast::<f32>().add(row * of.width);
                kernels::convolve(
                    isa,
                    &kernels::Convolve {
                        row: at(of.from).cast::<f32>().add(row * of.stride),
                        width: of.width,
                        taps: of.taps.cast(),
                        seen: of.seen,
                        keys: of.keys,
                        values: of.values,
                        pages: of.tables.cast::<i32>().add(table),
                        position,
                        output,
                        format,
                    },
                );
                if of.narrow > 0 {
                    let narrow = at(of.narrow - 1).cast::<u16>().add(row * of.width);
                    kernels::round_to_bf16(isa, output, narrow, of.width);
                }
            }
        }
    })
}
