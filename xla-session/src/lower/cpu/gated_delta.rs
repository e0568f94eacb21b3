//! Linear attention by the gated delta rule: each run of rows takes the states of its sequence on, a head at a time.

use checkpoint::architecture::GatedDelta;

use super::abi::kernel_abi;
use super::norm::bits;
#[cfg(feature = "iree")]
use super::norm::number;
use super::step::Steps;
#[cfg(feature = "iree")]
use super::workspace::RUN;
use crate::emit::{Format, WeightSpec};

kernel_abi! {
    /// A work item is a run and a value head.
    Recur {
        reads {
            /// `[channels, seen]` of f32.
            taps,
            /// `[value_heads]` of f32.
            decay,
            /// `[value_heads]` of f32.
            step,
            /// `[value_dim]` of f32.
            norm,
        }
        updates {
            memory,
            /// `[states, value_heads, key_dim, value_dim]` of f32.
            states,
            /// `[states, seen - 1, channels]` of f32.
            latest,
        }
        numbers {
            /// `[rows, stride]` of f32: queries, keys, values, `z`, `b` and `a`.
            from,
            stride,
            /// `[rows, value_heads * value_dim]` of f32.
            to,
            /// The same in bfloat16, plus 1; or 0.
            narrow,
            key_heads,
            value_heads,
            key_dim,
            value_dim,
            /// Whether consecutive value heads meet different key heads.
            tiled,
            /// Rows that the convolution sees.
            seen,
            /// The bits of an f32.
            epsilon,
            /// Where the runs are.
            runs_at,
        }
    }
}

impl Steps<'_> {
    /// Takes the states of all runs on, and mixes what products with weights of `format` take.
    pub(super) fn gated_delta(&mut self, layer: usize, of: &GatedDelta, format: Format) {
        let [states, latest] = self.pages(layer);
        let taps = self.weight(&WeightSpec::floats(&of.taps), 0);
        let [decay, step, norm] =
            [&of.decay, &of.step, &of.norm.weight].map(|vector| self.vector([vector]));
        debug_assert_eq!(of.norm.offset, 0.0, "the kernel adds nothing");
        let places = self.workspace.clone();
        let memory = self.memory.clone();
        let narrow = if format == Format::Bf16Rounded { places.mixed[1].at + 1 } else { 0 };
        let call = Recur {
            taps: &taps,
            decay: &decay,
            step: &step,
            norm: &norm,
            memory: &memory,
            states: &states,
            latest: &latest,
            from: places.qkv.at.into(),
            stride: places.qkv.stride.into(),
            to: places.mixed[0].at.into(),
            narrow: narrow.into(),
            key_heads: of.key_heads.into(),
            value_heads: of.value_heads.into(),
            key_dim: of.key_dim.into(),
            value_dim: of.value_dim.into(),
            tiled: usize::from(of.tiled).into(),
            seen: of.rows().into(),
            epsilon: bits(of.norm.epsilon as f32).into(),
            runs_at: places.runs.at.into(),
        };
        let runs = self.runs.clone();
        let items = self.b.index_mul(&runs, of.value_heads);
        self.update(|b| call.call(b, "recur", &items));
    }
}

#[cfg(feature = "iree")]
pub(super) fn kernels(all: iree_rt::Kernels, isa: kernels::Isa) -> iree_rt::Kernels {
    all.with("recur", Recur::kernel(move |item, of| recur(isa, item, &of)))
}

#[cfg(feature = "iree")]
fn recur(isa: kernels::Isa, item: usize, of: &Recur<*mut u8, usize>) {
    let at = |place: usize| of.memory.wrapping_add(place);
    let (run, head) = (item / of.value_heads, item % of.value_heads);
    let together = of.value_heads / of.key_heads;
    let (key_head, first) = match of.tiled {
        0 => (head / together, head.is_multiple_of(together)),
        _ => (head % of.key_heads, head < of.key_heads),
    };
    let columns = of.value_heads * of.value_dim;
    let channels = 2 * of.key_heads * of.key_dim + columns;
    let state = columns * of.key_dim;
    let latest = (of.seen - 1) * channels;
    // SAFETY: the host has written the runs, whose rows are some of the step's, no two the same; of each the
    // state that it leaves is one that nobody else has, and the one that it goes on from is whole and stays; the
    // graph has places for all rows; no two work items have the same head of a run; `isa` is here.
    unsafe {
        let numbers = at(of.runs_at).cast::<i32>().add(run * RUN);
        let [row, rows, from, to] = [0, 1, 2, 3].map(|i| usize::try_from(*numbers.add(i)).ok());
        let (row, rows, to) = (row.unwrap_or(0), rows.unwrap_or(0), to.unwrap_or(0));
        let states = of.states.cast::<f32>();
        let rows_kept = of.latest.cast::<f32>();
        let output = at(of.to).cast::<f32>().add(row * columns);
        kernels::gated_delta(
            isa,
            &kernels::GatedDelta {
                x: at(of.from).cast::<f32>().add(row * of.stride),
                stride: of.stride,
                rows,
                head,
                key_head,
                first,
                key_heads: of.key_heads,
                value_heads: of.value_heads,
                key_dim: of.key_dim,
                value_dim: of.value_dim,
                taps: of.taps.cast(),
                seen: of.seen,
                decay: of.decay.cast(),
                step: of.step.cast(),
                norm: of.norm.cast(),
                epsilon: number(of.epsilon),
                before: from.map(|from| kernels::DeltaState {
                    state: states.add(from * state),
                    latest: rows_kept.add(from * latest),
                }),
                state: states.add(to * state),
                latest: rows_kept.add(to * latest),
                output,
                output_stride: columns,
            },
        );
        if of.narrow > 0 {
            let narrow = at(of.narrow - 1).cast::<u16>().add(row * columns);
            for row in 0..rows {
                let part = row * columns + head * of.value_dim;
                kernels::round_to_bf16(isa, output.add(part), narrow.add(part), of.value_dim);
            }
        }
    }
}
