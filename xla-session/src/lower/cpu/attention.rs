//! Attention: a row's keys and values go to the pages of its sequence, then its queries meet all that
//! lie there.

use checkpoint::architecture::{Attention, QkNorm};
#[cfg(feature = "iree")]
use kernels::KvFormat;

use super::abi::kernel_abi;
use super::norm::bits;
#[cfg(feature = "iree")]
use super::norm::number;
use super::program::Number;
use super::step::Steps;
#[cfg(feature = "iree")]
use super::workspace::ENTRY;
use crate::emit::builder::Value;
use crate::emit::{Format, WeightSpec};

kernel_abi! {
    /// A work item norms the queries, keys and values of one row, in runs of as many as their norms are wide.
    HeadNorm {
        reads {
            /// `[query_width]` of f32, or as many for each head.
            queries,
            /// `[key_width]` of f32, or as many for each head; anything where there are no keys.
            keys,
        }
        updates {
            memory,
        }
        numbers {
            /// `[rows, stride]` of f32: queries, keys, values.
            qkv,
            stride,
            /// Of all queries of a row, of all keys, and of values that are normed.
            query_columns,
            key_columns,
            value_columns,
            query_width,
            key_width,
            value_width,
            /// The bits of an f32.
            epsilon,
            /// Of queries and keys; values have no weight: the bits of an f32.
            offset,
            value_epsilon,
            /// Whether the mean is taken off queries and keys first, and whether each head has weights of its own.
            centred,
            of_each,
        }
    }
}

kernel_abi! {
    /// A work item rotates and stores [`TOGETHER`] rows, which often share a page.
    Append {
        reads {}
        updates {
            memory,
            /// `[pages, kv_heads, width, 64]`
            keys,
            /// `[pages, kv_heads, 64, width]`
            values,
        }
        numbers {
            rows,
            qkv,
            stride,
            heads,
            kv_heads,
            width,
            /// `[rows, rotated / 2]` of f32, as the three others.
            query_cos,
            query_sin,
            key_cos,
            key_sin,
            /// Elements of a head that are rotated.
            rotated,
            /// Whether neighbours are a pair.
            interleaved,
            /// `[rows]` of i32.
            slots,
        }
    }
}

kernel_abi! {
    /// A work item is an entry, a key head and some of the queries that share it.
    Attend {
        reads {
            /// Numbers of pages, i32: the tables of all sequences.
            tables,
            keys,
            values,
            /// `[heads]` of f32; anything where there are none.
            sinks,
        }
        updates {
            memory,
        }
        numbers {
            qkv,
            stride,
            /// `[rows, heads * width]` of f32.
            to,
            /// The same in bfloat16, plus 1; or 0.
            narrow,
            heads,
            kv_heads,
            width,
            /// What scores are multiplied with, and what they stay below or 0: the bits of an f32.
            scale,
            cap,
            /// Latest keys that a row sees, or 0: all.
            window,
            /// Keys behind itself that a row sees.
            behind,
            /// Whether there are sinks.
            sunk,
            /// `[heads, distances_stride]` of f32, plus 1: what is added to scores, the distance 0 in the middle; or 0.
            distances,
            distances_stride,
            /// How many entries there are, and where.
            entries,
            entries_at,
            /// Queries of a row that are taken together.
            share,
        }
    }
}

/// More keys than there are.
const ALL: usize = u32::MAX as usize;

/// Rows of a work item of [`Append`].
const TOGETHER: usize = 16;

impl Steps<'_> {
    /// Norms queries and keys, and values where they are.
    fn head_norms(&mut self, norm: &QkNorm, attention: &Attention) {
        let QkNorm { query, key, .. } = norm;
        let key = key.as_ref().unwrap_or(query);
        debug_assert_eq!(query.epsilon, key.epsilon, "the kernel takes one");
        debug_assert_eq!(query.offset, key.offset, "the kernel takes one");
        debug_assert_eq!(query.centred, key.centred, "the kernel takes one");
        debug_assert!(query.bias.is_none() && key.bias.is_none(), "the kernel takes none");
        let of_each = query.is_of_each_head();
        let [queries, keys] = [query, key].map(|norm| match of_each {
            true => self.weight(&WeightSpec::floats(&norm.weight), 0),
            false => self.vector([&norm.weight]),
        });
        let own = attention.own_kv_heads() * attention.head_dim;
        let values = attention.value_norm.map_or(0, |_| own);
        let qkv = self.workspace.qkv;
        let memory = self.memory.clone();
        let call = HeadNorm {
            queries: &queries,
            keys: &keys,
            memory: &memory,
            qkv: qkv.at.into(),
            stride: qkv.stride.into(),
            query_columns: (attention.heads * attention.head_dim).into(),
            key_columns: own.into(),
            value_columns: values.into(),
            query_width: query.width().into(),
            key_width: key.width().into(),
            value_width: attention.head_dim.into(),
            epsilon: bits(query.epsilon as f32).into(),
            offset: bits(query.offset).into(),
            value_epsilon: bits(attention.value_norm.unwrap_or(0.0) as f32).into(),
            centred: usize::from(query.centred).into(),
            of_each: usize::from(of_each).into(),
        };
        let rows = self.rows.clone();
        self.update(|b| call.call(b, "head_norm", &rows));
    }

    /// Rotates the queries and keys of all rows by `ropes`, and adds their keys and values to the pages
    /// `[keys, values]`, which it returns.
    fn append(
        &mut self,
        [keys, values]: &[Value; 2],
        attention: &Attention,
        ropes: Option<[usize; 2]>,
    ) -> [Value; 2] {
        let &Attention { heads, head_dim: width, .. } = attention;
        let kv_heads = attention.own_kv_heads();
        let ropes = ropes.map(|at| (at, &self.config.architecture.ropes[at[1]]));
        let (at, rotated, interleaved) =
            ropes.map_or(([0; 2], 0, false), |(at, rope)| (at, rope.width, rope.interleaved));
        let [of_queries, of_keys] = at.map(|at| self.workspace.angles[at]);
        let (qkv, slots) = (self.workspace.qkv, self.workspace.slots);
        let memory = self.memory.clone();
        let rows = self.rows.clone();
        let call = Append {
            memory: &memory,
            keys,
            values,
            rows: rows.clone(),
            qkv: qkv.at.into(),
            stride: qkv.stride.into(),
            heads: heads.into(),
            kv_heads: kv_heads.into(),
            width: width.into(),
            query_cos: of_queries[0].at.into(),
            query_sin: of_queries[1].at.into(),
            key_cos: of_keys[0].at.into(),
            key_sin: of_keys[1].at.into(),
            rotated: rotated.into(),
            interleaved: usize::from(interleaved).into(),
            slots: slots.at.into(),
        };
        let items = self.b.index_ceil_div(&rows, TOGETHER);
        let append = format!("append_{}", self.target.kv_cache().as_str());
        let updated = call.call(&mut self.b, &append, &items);
        let [memory, keys, values] = &updated[..] else { unreachable!("three are updated") };
        self.memory = memory.clone();
        [keys.clone(), values.clone()]
    }

    /// Norms and rotates the queries and keys of all rows, and adds their keys and values to the cache; then
    /// the queries attend, as products with weights of `format` take what they mix.
    pub(super) fn attend(&mut self, layer: usize, attention: &Attention, format: Format) {
        let &Attention { heads, kv_heads, head_dim: width, window, scale, cap, .. } = attention;
        let &Attention { ropes, both_ways, .. } = attention;
        if let Some(latent) = &attention.latent {
            self.expand(attention, latent);
        }
        if attention.gated {
            self.split_gates(attention);
        }
        debug_assert!(attention.qk_norm.is_some() || attention.value_norm.is_none());
        debug_assert!(!attention.gated || attention.latent.is_none(), "no family has both");
        // Nothing is added to those of another layer.
        let layer = attention.shared.unwrap_or(layer);
        let mut pages = self.pages(layer);
        let mut ropes = ropes;
        if let Some(norm) = &attention.qk_norm {
            if norm.rotated {
                // One kernel rotates and adds: keys are added once more when they are normed.
                pages = self.append(&pages, attention, ropes.take());
            }
            self.head_norms(norm, attention);
        }
        pages = self.append(&pages, attention, ropes);
        let [keys, values] = &pages;
        let places = self.workspace.clone();
        let (qkv, memory) = (places.qkv, self.memory.clone());

        let tables = self.tables();
        let sinks = attention.sinks.as_ref().map(|sinks| self.vector([sinks]));
        // What is gated is not final yet, nor what has more columns than are read.
        let wider = places.latent.as_ref().zip(attention.latent.as_ref());
        let wider = wider.map(|(at, of)| (at.heads, of.value_dim)).filter(|(_, it)| *it < width);
        let narrow = format == Format::Bf16Rounded && !attention.gated && wider.is_none();
        let narrow = if narrow { places.mixed[1].at + 1 } else { 0 };
        let to = wider.map_or(places.mixed[0], |(to, _)| to);
        let call = Attend {
            tables: &tables,
            keys,
            values,
            sinks: sinks.as_ref().unwrap_or(&tables),
            memory: &memory,
            qkv: qkv.at.into(),
            stride: qkv.stride.into(),
            to: to.at.into(),
            narrow: narrow.into(),
            heads: heads.into(),
            kv_heads: kv_heads.into(),
            width: width.into(),
            scale: bits(scale).into(),
            cap: bits(cap.unwrap_or(0.0)).into(),
            // A wider one sees all that there is.
            window: window.map_or(0, |it| it.min(ALL)).into(),
            behind: if both_ways { window.map_or(ALL, |it| (it - 1).min(ALL)) } else { 0 }.into(),
            sunk: usize::from(sinks.is_some()).into(),
            distances: self
                .config
                .architecture
                .distances
                .as_ref()
                .map_or(0, |_| places.distances.at + 1)
                .into(),
            distances_stride: places.distances.stride.into(),
            entries: self.entries.clone(),
            entries_at: places.entries.at.into(),
            share: self.number(Number::Share(kv_heads)),
        };
        let items = self.number(Number::AttentionItems(kv_heads));
        let attend = format!("attend_{}", self.target.kv_cache().as_str());
        self.update(|b| call.call(b, &attend, &items));
        if let Some((from, value_width)) = wider {
            self.narrow(attention, value_width, from, format);
        }
        if attention.gated {
            self.gate_heads(attention, format);
        }
        self.updated.insert(layer, pages);
    }
}

#[cfg(feature = "iree")]
pub(super) fn kernels(mut all: iree_rt::Kernels, isa: kernels::Isa) -> iree_rt::Kernels {
    let norm = move |item: usize, of: HeadNorm<*mut u8, usize>| {
        let row = of.memory.wrapping_add(of.qkv).cast::<f32>().wrapping_add(item * of.stride);
        let [epsilon, offset] = [of.epsilon, of.offset].map(number);
        let behind = row.wrapping_add(of.query_columns);
        let own = ([epsilon, offset], of.centred > 0);
        let queries = (row, of.query_columns, of.query_width, of.queries, own);
        let keys = (behind, of.key_columns, of.key_width, of.keys, own);
        let values = behind.wrapping_add(of.key_columns);
        let plain = ([number(of.value_epsilon), 1.0], false);
        let values = (values, of.value_columns, of.value_width, std::ptr::null_mut(), plain);
        for (first, all, columns, weight, ([epsilon, offset], centred)) in [queries, keys, values] {
            for at in (0..all).step_by(columns) {
                let x = first.wrapping_add(at);
                let weight = weight.cast::<f32>();
                let weight = if of.of_each > 0 && !weight.is_null() {
                    weight.wrapping_add(at)
                } else {
                    weight
                };
                let norm = kernels::Norm {
                    x,
                    weight,
                    bias: std::ptr::null(),
                    y: x,
                    columns,
                    epsilon,
                    offset,
                    centred,
                    add: false,
                };
                // SAFETY: the graph has a place for queries, keys and values of all rows of a step, and a
                // weight for each column of a norm that has some, which divides them, or for each of all heads'; an
                // item has its row to itself; `isa` is here.
                unsafe { kernels::norm(isa, &norm) };
            }
        }
    };
    all = all.with("head_norm", HeadNorm::kernel(norm));
    for (name, format) in KvFormat::ALL {
        all = all
            .with(format!("append_{name}"), append(isa, format))
            .with(format!("attend_{name}"), attend(isa, format));
    }
    all
}

#[cfg(feature = "iree")]
fn append(isa: kernels::Isa, format: KvFormat) -> iree_rt::Kernel {
    Append::kernel(move |item: usize, of: Append<*mut u8, usize>| {
        let at = |place: usize| of.memory.wrapping_add(place);
        let page_bytes = of.kv_heads * of.width * kernels::KV_BLOCK * format.bytes();
        for row in item * TOGETHER..of.rows.min((item + 1) * TOGETHER) {
            // SAFETY: the host has written a slot of the cache for each row of the step, no two the
            // same and none that another sequence reads; the graph has the other places; `isa` is
            // here.
            unsafe {
                let slot = *at(of.slots).cast::<i32>().add(row) as usize;
                let page = slot / kernels::KV_BLOCK * page_bytes;
                let angle =
                    |place: usize| at(place).cast_const().cast::<f32>().add(row * of.rotated / 2);
                kernels::rotate_append(
                    isa,
                    &kernels::RotateAppend {
                        row: at(of.qkv).cast::<f32>().add(row * of.stride),
                        cos: [of.query_cos, of.key_cos].map(angle),
                        sin: [of.query_sin, of.key_sin].map(angle),
                        rotated: of.rotated,
                        interleaved: of.interleaved > 0,
                        heads: of.heads,
                        kv_heads: of.kv_heads,
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
fn attend(isa: kernels::Isa, format: KvFormat) -> iree_rt::Kernel {
    let kernel = kernels::attention_for(format, isa);
    Attend::kernel(move |item: usize, of: Attend<*mut u8, usize>| {
        let at = |place: usize| of.memory.wrapping_add(place);
        let group = of.heads / of.kv_heads;
        let shares = group.div_ceil(of.share);
        // Consecutive items share keys and values, if their rows are of one sequence.
        let (entry, item) = (item % of.entries, item / of.entries);
        let (member, kv_head) = (item % shares * of.share, item / shares);
        let group = of.share.min(group - member);
        // SAFETY: the host has written the entries, whose rows are some of the step's, and tables that
        // name a page for every 64 tokens of each sequence behind the step; the graph has places for all rows, and no two
        // work items write the same queries of a row; the kernel is for this CPU.
        unsafe {
            let entry = at(of.entries_at).cast::<i32>().add(entry * ENTRY);
            let [row, rows, start, table, keys_in_all] =
                [0, 1, 2, 3, 4].map(|i| usize::try_from(*entry.add(i)).unwrap_or(0));
            let first = kv_head * (of.heads / of.kv_heads) + member;
            let query = first * of.width;
            let head = kv_head * of.width * kernels::KV_BLOCK * format.bytes();
            let columns = of.heads * of.width;
            let to = row * columns + query;
            let output = at(of.to).cast::<f32>().add(to);
            kernel(&kernels::Attention {
                queries: at(of.qkv).cast::<f32>().add(row * of.stride + query),
                query_stride: of.stride,
                keys: of.keys.add(head),
                values: of.values.add(head),
                page_stride: of.kv_heads * of.width * kernels::KV_BLOCK,
                pages: of.tables.cast::<i32>().add(table),
                output,
                output_stride: columns,
                rows,
                used: rows,
                start,
                window: of.window,
                behind: of.behind,
                keys_in_all,
                group,
                width: of.width,
                scale: number(of.scale),
                cap: number(of.cap),
                distances: match of.distances {
                    0 => std::ptr::null(),
                    place => {
                        let middle = first * of.distances_stride + of.distances_stride / 2;
                        at(place - 1).cast_const().cast::<f32>().add(middle)
                    }
                },
                distances_stride: of.distances_stride,
                sinks: match of.sunk {
                    0 => std::ptr::null(),
                    _ => of.sinks.cast::<f32>().add(first),
                },
            });
            if of.narrow > 0 {
                let narrow = at(of.narrow - 1).cast::<u16>().add(to);
                for row in 0..rows {
                    let (from, to) = (output.add(row * columns), narrow.add(row * columns));
                    kernels::round_to_bf16(isa, from, to, group * of.width);
                }
            }
        }
    })
}
