//! Attention by way of fewer numbers: queries, keys and values are made of them, and lie then as those of any other.

use checkpoint::architecture::{Attention, Latent, Linear};

use super::abi::kernel_abi;
use super::step::Steps;
use super::workspace::Place;
use crate::emit::Format;

kernel_abi! {
    /// A work item puts the queries, keys and values of a row where attention has them: of each head the columns that
    /// turn first, and zeros behind values that are narrower.
    Arrange {
        reads {}
        updates {
            memory,
        }
        numbers {
            /// `[rows, query_stride]` of f32: of each head the columns that turn last.
            queries,
            query_stride,
            /// `[rows, stride]` of f32: of each head its key, without columns that turn, and its value.
            keys_values,
            stride,
            /// `[rows, turning_stride]` of f32: the columns of all keys that turn.
            turning,
            turning_stride,
            heads,
            plain,
            rotated,
            value_width,
            /// `[rows, to_stride]` of f32.
            to,
            to_stride,
        }
    }
}

kernel_abi! {
    /// A work item leaves out of a row what is behind narrower values.
    Narrow {
        reads {}
        updates {
            memory,
        }
        numbers {
            /// `[rows, heads * width]` of f32.
            from,
            heads,
            width,
            value_width,
            /// `[rows, heads * value_width]` of f32.
            to,
            /// The same in bfloat16, plus 1; or 0.
            narrow,
        }
    }
}

impl Steps<'_> {
    /// Makes queries, keys and values of what the layer's first projections gave.
    pub(super) fn expand(&mut self, attention: &Attention, latent: &Latent) {
        let Latent { queries, norm, expand, rotated, value_dim } = latent;
        let places = self.workspace.clone();
        let Some(at) = &places.latent else { unreachable!("there are places for it") };
        let inputs = at.inputs;
        let behind =
            |columns: usize| Place { at: inputs.at + columns * size_of::<f32>(), ..inputs };
        let first = attention.qkv[0].outputs();
        let mut made = |norm, linear: &Linear, from: Place, to: Place| {
            let rows = self.rows.clone();
            let format = self.format_of([&linear.weight]);
            let normed = at.normed.map(|place| Place { stride: linear.inputs(), ..place });
            self.norm(norm, &rows, (from, None), normed, format);
            self.linears(&[linear], normed, to, None);
        };
        let of_queries = match queries {
            Some((norm, linear)) => {
                made(norm, linear, inputs, at.heads);
                at.heads
            }
            None => inputs,
        };
        made(norm, expand, behind(first), at.keys_values);
        let turning = behind(first + norm.width());
        let memory = self.memory.clone();
        let call = Arrange {
            memory: &memory,
            queries: of_queries.at.into(),
            query_stride: of_queries.stride.into(),
            keys_values: at.keys_values.at.into(),
            stride: at.keys_values.stride.into(),
            turning: turning.at.into(),
            turning_stride: turning.stride.into(),
            heads: attention.heads.into(),
            plain: (attention.head_dim - rotated).into(),
            rotated: (*rotated).into(),
            value_width: (*value_dim).into(),
            to: places.qkv.at.into(),
            to_stride: places.qkv.stride.into(),
        };
        let rows = self.rows.clone();
        self.update(|b| call.call(b, "arrange_latent", &rows));
    }

    /// What heads mixed at `from`, without what is behind narrower values, as products with weights of `format` take
    /// it.
    pub(super) fn narrow(
        &mut self,
        attention: &Attention,
        value_width: usize,
        from: Place,
        format: Format,
    ) {
        let to = self.workspace.mixed;
        let narrow = if format == Format::Bf16Rounded { to[1].at + 1 } else { 0 };
        let memory = self.memory.clone();
        let call = Narrow {
            memory: &memory,
            from: from.at.into(),
            heads: attention.heads.into(),
            width: attention.head_dim.into(),
            value_width: value_width.into(),
            to: to[0].at.into(),
            narrow: narrow.into(),
        };
        let rows = self.rows.clone();
        self.update(|b| call.call(b, "narrow_heads", &rows));
    }
}

#[cfg(feature = "iree")]
pub(super) fn kernels(all: iree_rt::Kernels, isa: kernels::Isa) -> iree_rt::Kernels {
    let arrange = |row: usize, of: Arrange<*mut u8, usize>| {
        let Arrange { heads, plain, rotated, value_width, .. } = of;
        let (width, rest) = (plain + rotated, plain + value_width);
        let at = |place: usize, stride: usize| {
            of.memory.wrapping_add(place).cast::<f32>().wrapping_add(row * stride)
        };
        // SAFETY: the graph has these places for all rows of a step, of which it writes the last one alone, which is no
        // part of the others; an item has its row to itself.
        let (queries, keys_values, turning, to) = unsafe {
            (
                std::slice::from_raw_parts(at(of.queries, of.query_stride), heads * width),
                std::slice::from_raw_parts(at(of.keys_values, of.stride), heads * rest),
                std::slice::from_raw_parts(at(of.turning, of.turning_stride), rotated),
                std::slice::from_raw_parts_mut(at(of.to, of.to_stride), 3 * heads * width),
            )
        };
        let (to_queries, to) = to.split_at_mut(heads * width);
        let (to_keys, to_values) = to.split_at_mut(heads * width);
        for (query, to) in queries.chunks_exact(width).zip(to_queries.chunks_exact_mut(width)) {
            to[..rotated].copy_from_slice(&query[plain..]);
            to[rotated..].copy_from_slice(&query[..plain]);
        }
        let to = to_keys.chunks_exact_mut(width).zip(to_values.chunks_exact_mut(width));
        for (of_head, (key, value)) in keys_values.chunks_exact(rest).zip(to) {
            key[..rotated].copy_from_slice(turning);
            key[rotated..].copy_from_slice(&of_head[..plain]);
            value[..value_width].copy_from_slice(&of_head[plain..]);
            value[value_width..].fill(0.0);
        }
    };
    let narrow = move |row: usize, of: Narrow<*mut u8, usize>| {
        let Narrow { heads, width, value_width, .. } = of;
        let at = |place: usize| of.memory.wrapping_add(place);
        let columns = heads * value_width;
        // SAFETY: the graph has these places for all rows of a step, and an item has its row to itself; `isa` is here.
        unsafe {
            let from = at(of.from).cast::<f32>().add(row * heads * width);
            let to = at(of.to).cast::<f32>().add(row * columns);
            for head in 0..heads {
                let (from, to) = (from.add(head * width), to.add(head * value_width));
                to.copy_from_nonoverlapping(from, value_width);
            }
            if of.narrow > 0 {
                let narrow = at(of.narrow - 1).cast::<u16>().add(row * columns);
                kernels::round_to_bf16(isa, to, narrow, columns);
            }
        }
    };
    all.with("arrange_latent", Arrange::kernel(arrange))
        .with("narrow_heads", Narrow::kernel(narrow))
}
