//! Rows of the embedding table.

use checkpoint::architecture::Parameter;
use kernels::LANES;

use super::abi::kernel_abi;
use super::step::Steps;
use super::workspace::Place;
#[cfg(feature = "iree")]
use crate::emit::Format;
use crate::emit::Layout;

kernel_abi! {
    /// A work item looks up one row.
    Rows {
        reads {
            table,
            /// Where each block begins, bytes, u64, if blocks are compressed; else the table again.
            offsets,
        }
        updates {
            memory,
        }
        numbers {
            /// `[rows]` of i32: which rows of the table.
            which,
            /// `[rows, stride]` of f32.
            to,
            stride,
            /// Of the table.
            rows,
            columns,
        }
    }
}

impl Steps<'_> {
    /// Looks up the rows `which` in `embedding`, and multiplies them with `scale`.
    pub(super) fn embed(&mut self, embedding: &Parameter, scale: f32, (which, to): (Place, Place)) {
        // A tied table is packed for the output projection; its rows are taken from there.
        let format = self.format_of([embedding]);
        let packed = self.config.output() == Some(embedding) || format.is_quantised();
        let layout = if packed { Layout::Packed { lanes: LANES } } else { Layout::Rows };
        let table = self.matrix([embedding], layout);
        let items = self.rows.clone();
        let memory = self.memory.clone();
        let call = Rows {
            table: &table.weights,
            offsets: table.offsets_or_weights(),
            memory: &memory,
            which: which.at.into(),
            to: to.at.into(),
            stride: to.stride.into(),
            rows: table.rows.into(),
            columns: table.columns.into(),
        };
        let symbol = table.symbol(if packed { "rows" } else { "stored_rows" });
        self.update(|b| call.call(b, &symbol, &items));
        self.scale(to, table.columns, scale, None);
    }

    /// Adds the rows `which` of `embedding` to the residual stream.
    pub(super) fn add_rows(&mut self, embedding: &Parameter, which: Place) {
        let sum = self.workspace.sum;
        self.embed(embedding, 1.0, (which, sum));
        self.add_to_stream(sum);
    }
}

#[cfg(feature = "iree")]
pub(super) fn kernels(mut all: iree_rt::Kernels) -> iree_rt::Kernels {
    /// The row of the table, and where it goes.
    fn place(item: usize, of: &Rows<*mut u8, usize>) -> (usize, *mut f32) {
        let at = |place: usize| of.memory.wrapping_add(place);
        // SAFETY: the graph has a token, a position and a text for each row of a step.
        let row = unsafe { *at(of.which).cast::<i32>().add(item) };
        let row = usize::try_from(row).unwrap_or(0).min(of.rows - 1);
        (row, at(of.to).cast::<f32>().wrapping_add(item * of.stride))
    }
    for format in Format::ALL {
        let name = format.as_str();
        let packed = move |item: usize, of: Rows<*mut u8, usize>| {
            let (row, to) = place(item, &of);
            // SAFETY: the graph passes a matrix of this format that has the row, and has a place for
            // as many columns.
            unsafe {
                if format.is_quantised() {
                    let bytes = format.block_bytes(of.columns);
                    let block = of.table.add(row / LANES * bytes);
                    let block = std::slice::from_raw_parts(block, bytes);
                    let to = std::slice::from_raw_parts_mut(to, of.columns);
                    kernels::quantise::unpack_row(format, block, row % LANES, to);
                } else {
                    kernels::packed_row(format, of.table, row, of.columns, to);
                }
            }
        };
        all = all.with(format!("rows_{name}"), Rows::kernel(packed));
        if !format.is_quantised() {
            let stored = move |item: usize, of: Rows<*mut u8, usize>| {
                let (row, to) = place(item, &of);
                // SAFETY: as above, of a matrix that lies row by row.
                unsafe { kernels::stored_row(format, of.table, row, of.columns, to) };
            };
            all = all.with(format!("stored_rows_{name}"), Rows::kernel(stored));
        }
        if format.is_compressible(8) {
            let compressed = move |item: usize, of: Rows<*mut u8, usize>| {
                let (row, to) = place(item, &of);
                let Rows { table, offsets, columns, .. } = of;
                let of = kernels::Rows { weights: table, index: offsets.cast(), columns };
                // SAFETY: as above, of a matrix that is compressed, and where its blocks begin.
                unsafe { kernels::compressed_row(format, &of, row, to) };
            };
            all = all.with(format!("compressed_rows_{name}"), Rows::kernel(compressed));
        }
    }
    all
}
