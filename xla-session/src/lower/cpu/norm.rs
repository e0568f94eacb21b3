//! Norms of rows, and rows where there is none.

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
            /// The same; anything where there is none.
            bias,
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
            /// `[rows, to_stride]` of f32.
            to,
            to_stride,
            /// `[rows, columns]` in bfloat16, plus 1; `to` is rounded to it then. Or 0.
            narrow,
            columns,
            /// The bits of an f32.
            epsilon,
            /// What is added to the weight: the bits of an f32.
            offset,
            /// Whether the mean is taken off first.
            centred,
            /// Whether there is a bias.
            biased,
            /// Whether it is added to what is there.
            add,
        }
    }
}

kernel_abi! {
    /// A work item copies [`TOGETHER`] rows.
    Copy {
        reads {}
        updates {
            memory,
        }
        numbers {
            rows,
            /// `[rows, stride]` of f32.
            from,
            stride,
            /// `[rows, to_stride]` of f32.
            to,
            to_stride,
            /// As of [`Norm`].
            narrow,
            columns,
            /// Whether it is added to what is there.
            add,
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
        from: (Place, Option<Place>),
        to: [Place; 2],
        format: Format,
    ) {
        let narrow = if format == Format::Bf16Rounded { to[1].at + 1 } else { 0 };
        self.norm_to(norm, rows, from, (to[0], narrow), false);
    }

    /// Norms `rows` rows of `from` and adds them to those at `to`.
    pub(super) fn add_normed(
        &mut self,
        norm: &architecture::Norm,
        rows: &Index,
        from: Place,
        to: Place,
    ) {
        self.norm_to(norm, rows, (from, None), (to, 0), true);
    }

    /// All rows of the residual stream, normed if there is a norm, as products with weights of `format`
    /// take them; the stream itself too, where the norm is of it.
    pub(super) fn normed(
        &mut self,
        norm: Option<&architecture::Norm>,
        norms_stream: bool,
        format: Format,
    ) {
        let (rows, from, to) = (self.rows.clone(), self.workspace.x, self.workspace.normed);
        match norm {
            Some(norm) if norms_stream => self.norm_stream(norm),
            Some(norm) => return self.norm(norm, &rows, (from, None), to, format),
            None => {}
        }
        let narrow = if format == Format::Bf16Rounded { to[1].at + 1 } else { 0 };
        self.copy(from, to[0], narrow, false);
    }

    /// Norms all rows of the residual stream where they are.
    pub(super) fn norm_stream(&mut self, norm: &architecture::Norm) {
        let (rows, x) = (self.rows.clone(), self.workspace.x);
        self.norm_to(norm, &rows, (x, None), (x, 0), false);
    }

    /// Adds all rows at `from`, as wide as the residual stream, to it.
    pub(super) fn add_to_stream(&mut self, from: Place) {
        self.copy(from, self.workspace.x, 0, true);
    }

    /// Copies all rows, as wide as the residual stream, or adds them to what is there.
    fn copy(&mut self, from: Place, to: Place, narrow: usize, add: bool) {
        let (memory, rows) = (self.memory.clone(), self.rows.clone());
        let call = Copy {
            memory: &memory,
            rows: rows.clone(),
            from: from.at.into(),
            stride: from.stride.into(),
            to: to.at.into(),
            to_stride: to.stride.into(),
            narrow: narrow.into(),
            columns: self.config.hidden_size.into(),
            add: usize::from(add).into(),
        };
        let items = self.b.index_ceil_div(&rows, TOGETHER);
        self.update(|b| call.call(b, "copy", &items));
    }

    fn norm_to(
        &mut self,
        norm: &architecture::Norm,
        rows: &Index,
        (from, which): (Place, Option<Place>),
        (to, narrow): (Place, usize),
        add: bool,
    ) {
        let weight = self.vector([&norm.weight]);
        let bias = norm.bias.as_ref().map(|bias| self.vector([bias]));
        let memory = self.memory.clone();
        let call = Norm {
            weight: &weight,
            bias: bias.as_ref().unwrap_or(&weight),
            memory: &memory,
            rows: rows.clone(),
            from: from.at.into(),
            stride: from.stride.into(),
            which: which.map_or(0, |which| which.at + 1).into(),
            to: to.at.into(),
            to_stride: to.stride.into(),
            narrow: narrow.into(),
            columns: norm.width().into(),
            epsilon: bits(norm.epsilon as f32).into(),
            offset: bits(norm.offset).into(),
            centred: usize::from(norm.centred).into(),
            biased: usize::from(bias.is_some()).into(),
            add: usize::from(add).into(),
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

/// A number as kernels take it.
pub(super) fn bits(number: f32) -> usize {
    number.to_bits() as usize
}

/// The number that [`bits`] wrote.
#[cfg(feature = "iree")]
pub(super) fn number(bits: usize) -> f32 {
    f32::from_bits(bits as u32)
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
                let to = at(of.to).cast::<f32>().add(row * of.to_stride);
                kernels::norm(
                    isa,
                    &kernels::Norm {
                        x: at(of.from).cast::<f32>().add(from * of.stride),
                        weight: of.weight.cast(),
                        bias: match of.biased {
                            0 => std::ptr::null(),
                            _ => of.bias.cast(),
                        },
                        y: to,
                        columns: of.columns,
                        epsilon: number(of.epsilon),
                        offset: number(of.offset),
                        centred: of.centred > 0,
                        add: of.add > 0,
                    },
                );
                if of.narrow > 0 {
                    narrowed(isa, to, at(of.narrow - 1).cast::<u16>(), row, of.columns);
                }
            }
        }
    };
    let copy = move |item: usize, of: Copy<*mut u8, usize>| {
        let at = |place: usize| of.memory.wrapping_add(place);
        for row in item * TOGETHER..of.rows.min((item + 1) * TOGETHER) {
            // SAFETY: the graph has these places for all rows of a step, and no two work items write
            // the same row; `isa` is here.
            unsafe {
                let from = at(of.from).cast::<f32>().add(row * of.stride);
                let to = at(of.to).cast::<f32>().add(row * of.to_stride);
                if of.add > 0 {
                    for i in 0..of.columns {
                        *to.add(i) += *from.add(i);
                    }
                } else {
                    to.copy_from_nonoverlapping(from, of.columns);
                }
                if of.narrow > 0 {
                    narrowed(isa, to, at(of.narrow - 1).cast::<u16>(), row, of.columns);
                }
            }
        }
    };
    all.with("norm", Norm::kernel(run)).with("copy", Copy::kernel(copy))
}

/// Rounds what `row` is at `row_at`, and writes it as bfloat16 to its row of `narrow` too.
///
/// # Safety
///
/// There are as many columns at `row_at` and in the row of `narrow`, which nothing else accesses; `isa` is
/// here.
#[cfg(feature = "iree")]
unsafe fn narrowed(
    isa: kernels::Isa,
    row_at: *mut f32,
    narrow: *mut u16,
    row: usize,
    columns: usize,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let narrow = narrow.add(row * columns);
        kernels::round_to_bf16(isa, row_at, narrow, columns);
        for i in 0..columns {
            *row_at.add(i) = f32::from_bits(u32::from(*narrow.add(i)) << 16);
        }
    }
}
