//! Rows that are multiplied with a number, and kept below another one.

use checkpoint::architecture::Parameter;

use super::abi::kernel_abi;
use super::norm::bits;
#[cfg(feature = "iree")]
use super::norm::number;
use super::step::Steps;
use super::workspace::Place;

kernel_abi! {
    /// A work item takes [`PART`] elements of a row.
    Scale {
        reads {}
        updates {
            memory,
        }
        numbers {
            /// `[rows, stride]` of f32.
            x,
            stride,
            columns,
            /// The bits of an f32.
            factor,
            /// The bits of an f32; 0 for no limit.
            cap,
        }
    }
}

kernel_abi! {
    /// A work item takes [`PART`] elements of a row.
    ScaleBy {
        reads {
            /// `[1]` of f32.
            factor,
        }
        updates {
            memory,
        }
        numbers {
            /// `[rows, stride]` of f32.
            x,
            stride,
            columns,
        }
    }
}

/// Elements of a work item.
const PART: usize = 4096;

impl Steps<'_> {
    /// Multiplies all rows of `columns` columns with `factor`, and caps them.
    pub(super) fn scale(&mut self, x: Place, columns: usize, factor: f32, cap: Option<f32>) {
        if factor == 1.0 && cap.is_none() {
            return;
        }
        let memory = self.memory.clone();
        let call = Scale {
            memory: &memory,
            x: x.at.into(),
            stride: x.stride.into(),
            columns: columns.into(),
            factor: bits(factor).into(),
            cap: bits(cap.unwrap_or(0.0)).into(),
        };
        let rows = self.rows.clone();
        let items = self.b.index_mul(&rows, columns.div_ceil(PART));
        self.update(|b| call.call(b, "scale", &items));
    }

    /// Multiplies all rows of `columns` columns with a number that the model has.
    pub(super) fn scale_by(&mut self, factor: &Parameter, x: Place, columns: usize) {
        let factor = self.vector([factor]);
        let memory = self.memory.clone();
        let call = ScaleBy {
            factor: &factor,
            memory: &memory,
            x: x.at.into(),
            stride: x.stride.into(),
            columns: columns.into(),
        };
        let rows = self.rows.clone();
        let items = self.b.index_mul(&rows, columns.div_ceil(PART));
        self.update(|b| call.call(b, "scale_by", &items));
    }
}

#[cfg(feature = "iree")]
pub(super) fn kernels(all: iree_rt::Kernels, isa: kernels::Isa) -> iree_rt::Kernels {
    let run = move |item: usize, of: Scale<*mut u8, usize>| {
        let parts = of.columns.div_ceil(PART);
        let (row, first) = (item / parts, item % parts * PART);
        let x = of.memory.wrapping_add(of.x).cast::<f32>().wrapping_add(row * of.stride + first);
        let len = PART.min(of.columns - first);
        let of = kernels::Scale { x, len, factor: number(of.factor), cap: number(of.cap) };
        // SAFETY: the graph has a place for all rows of a step, and no two work items have the same part
        // of a row; `isa` is here.
        unsafe { kernels::scale(isa, &of) };
    };
    let run_by = move |item: usize, of: ScaleBy<*mut u8, usize>| {
        let ScaleBy { factor, memory, x, stride, columns } = of;
        // SAFETY: the graph passes a vector of one number.
        let factor = unsafe { factor.cast::<f32>().read() };
        run(item, Scale { memory, x, stride, columns, factor: bits(factor), cap: 0 });
    };
    all.with("scale", Scale::kernel(run)).with("scale_by", ScaleBy::kernel(run_by))
}
