//! Mixtures of experts: rows go to the experts that they chose, and meet no other weights.
//!
//! The rows of a step are copied once for each expert that they chose, in the order of the experts, so that
//! the rows of one lie together and are multiplied as those of any matrix are. What came of them is added up
//! in the order of the experts, whatever else is in the step.

use checkpoint::architecture::{Experts, Linear, Mlp, Shares};
use kernels::LANES;

use super::abi::kernel_abi;
use super::norm::bits;
#[cfg(feature = "iree")]
use super::norm::number;
use super::step::{Matrix, Steps};
use super::workspace::Place;
use crate::emit::builder::Index;
use crate::emit::{Format, Layout};

kernel_abi! {
    /// A work item chooses the experts of a row, and sorts them.
    Choose {
        reads {
            /// `[experts]` of f32, if it is `biased`; else any weight.
            bias,
        }
        updates {
            memory,
        }
        numbers {
            /// `[rows, stride]` of f32: what the router gave; overwritten.
            logits,
            stride,
            experts,
            top_k,
            /// Whether shares are sigmoids, not a softmax.
            sigmoid,
            /// Whether `bias` is added where experts are chosen.
            biased,
            /// Whether shares are divided by their sum.
            normalised,
            /// What is added to that: the bits of an f32.
            floor,
            /// What shares are multiplied with then: the bits of an f32.
            scale,
            /// `[rows, top_k]` of i32.
            chosen,
            /// `[rows, top_k]` of f32.
            shares,
        }
    }
}

kernel_abi! {
    /// The one work item gives each pair of a row and an expert its place.
    Arrange {
        reads {}
        updates {
            memory,
        }
        numbers {
            rows,
            experts,
            top_k,
            chosen,
            /// `[experts + 1]` of i32: where the places of each expert begin.
            begins,
            /// `[1 + experts]` of i32: how many experts have rows, then which.
            active,
            /// `[rows * top_k]` of i32: the row of each place.
            origins,
            /// `[rows * top_k]` of i32: the expert of each place.
            owners,
            /// `[rows, top_k]` of i32: the places of a row, in the order of the experts.
            slots,
        }
    }
}

kernel_abi! {
    /// A work item copies the rows of [`TOGETHER`] places.
    Gather {
        reads {}
        updates {
            memory,
        }
        numbers {
            places,
            origins,
            /// `[rows, bytes]`
            from,
            /// `[places, bytes]`
            to,
            bytes,
        }
    }
}

kernel_abi! {
    /// A work item rounds the rows of [`TOGETHER`] places for products with integers.
    RoundPlaces {
        reads {}
        updates {
            memory,
        }
        numbers {
            places,
            owners,
            begins,
            /// `[places, columns]` of f32.
            x,
            columns,
            /// `[places, kernels::rounded_bytes(columns)]`
            to,
        }
    }
}

kernel_abi! {
    /// A work item multiplies all rows of an expert with a run of its blocks.
    ExpertProduct {
        reads {
            weights,
            /// Where each block begins, bytes, u64, if blocks are compressed; else the weights again.
            offsets,
        }
        updates {
            memory,
        }
        numbers {
            begins,
            active,
            /// `[places, x_bytes]`
            x,
            x_bytes,
            /// `[places, stride]` of f32.
            y,
            stride,
            columns,
            /// Of an expert.
            blocks,
            /// Blocks of a work item.
            run,
        }
    }
}

kernel_abi! {
    /// A work item adds to a place the bias of its expert.
    ExpertBias {
        reads {
            /// `[experts, columns]` of f32.
            bias,
        }
        updates {
            memory,
        }
        numbers {
            owners,
            /// `[places, stride]` of f32.
            to,
            stride,
            columns,
        }
    }
}

kernel_abi! {
    /// A work item adds to a row what its experts made of it.
    Combine {
        reads {}
        updates {
            memory,
        }
        numbers {
            /// `[places, from_stride]` of f32.
            from,
            from_stride,
            top_k,
            slots,
            shares,
            /// What the shared expert made, `[rows, shared_stride]` of f32, plus 1; or 0.
            shared,
            shared_stride,
            /// What is put through a sigmoid and multiplied with it, `[rows, gate_stride]` of f32, plus 1; or 0.
            gate,
            gate_stride,
            /// `[rows, to_stride]` of f32.
            to,
            to_stride,
            columns,
            /// What all of it is multiplied with: the bits of an f32.
            scale,
        }
    }
}

/// Places of a work item.
const TOGETHER: usize = 4;

impl Steps<'_> {
    /// Adds to the residual stream what experts make of it, times `scale`; it is normed.
    pub(super) fn experts(&mut self, experts: &Experts, scale: f32) {
        let Experts { router, shares, experts, top_k, normalised, scale: of_shares, shared } =
            experts;
        let workspace = self.workspace.clone();
        let Some(at) = &workspace.experts else { unreachable!("there are places for experts") };
        let normed = workspace.normed;
        let (rows, places) = (self.rows.clone(), self.b.index_mul(&self.rows.clone(), *top_k));

        if let Some(shared) = shared {
            self.mlp_of_all(&shared.mlp, at.shared, None);
            if let Some(gate) = &shared.gate {
                self.linears(&[gate], normed, at.shared_gate, None);
            }
        }

        self.linears(&[router], normed, at.logits, None);
        let bias = match shares.bias() {
            Some(bias) => self.vector([bias]),
            None => self.matrix([&router.weight], Layout::Packed { lanes: LANES }).weights,
        };
        let memory = self.memory.clone();
        let call = Choose {
            bias: &bias,
            memory: &memory,
            logits: at.logits.at.into(),
            stride: at.logits.stride.into(),
            experts: experts.len().into(),
            top_k: (*top_k).into(),
            sigmoid: usize::from(matches!(shares, Shares::Sigmoid { .. })).into(),
            biased: usize::from(shares.bias().is_some()).into(),
            normalised: usize::from(*normalised).into(),
            floor: bits(shares.floor()).into(),
            scale: bits(*of_shares).into(),
            chosen: at.chosen.at.into(),
            shares: at.shares.at.into(),
        };
        self.update(|b| call.call(b, "choose_experts", &rows));
        let memory = self.memory.clone();
        let call = Arrange {
            memory: &memory,
            rows: rows.clone(),
            experts: experts.len().into(),
            top_k: (*top_k).into(),
            chosen: at.chosen.at.into(),
            begins: at.begins.at.into(),
            active: at.active.at.into(),
            origins: at.origins.at.into(),
            owners: at.owners.at.into(),
            slots: at.slots.at.into(),
        };
        self.update(|b| call.call(b, "arrange_experts", &1.into()));

        let projection = |which: usize| {
            experts.iter().map(move |mlp| match which {
                2 => &mlp.down.weight,
                which => &mlp.gate_up[which].weight,
            })
        };
        let packed = Layout::Packed { lanes: LANES };
        let [gate, up, down] = [0, 1, 2].map(|which| self.matrix(projection(which), packed));
        let narrow = gate.format == Format::Bf16Rounded || up.format == Format::Bf16Rounded;
        for (which, bytes) in [(0, 4), (1, 2)].into_iter().take(1 + usize::from(narrow)) {
            let memory = self.memory.clone();
            let call = Gather {
                memory: &memory,
                places: places.clone(),
                origins: at.origins.at.into(),
                from: normed[which].at.into(),
                to: at.x[which].at.into(),
                bytes: (normed[which].stride * bytes).into(),
            };
            let items = self.b.index_ceil_div(&places, TOGETHER);
            self.update(|b| call.call(b, "gather_places", &items));
        }
        let wide = experts[0].down.inputs();
        let behind = Place { at: at.gate_up.at + wide * size_of::<f32>(), ..at.gate_up };
        for (matrix, to) in [(&gate, at.gate_up), (&up, behind)] {
            self.expert_product(matrix, experts.len(), *top_k, at.x, to);
        }
        for (which, to) in [(0, at.gate_up), (1, behind)] {
            self.expert_bias(experts.iter().map(|mlp| &mlp.gate_up[which]), &places, to);
        }
        let activation = experts[0].activation;
        self.gate((activation, &[]), &places, [at.gate_up, behind], at.gated, wide, down.format);
        self.expert_product(&down, experts.len(), *top_k, at.gated, at.out);
        self.expert_bias(experts.iter().map(|mlp| &mlp.down), &places, at.out);

        let gate = shared.as_ref().and_then(|shared| shared.gate.as_ref());
        let memory = self.memory.clone();
        let call = Combine {
            memory: &memory,
            from: at.out.at.into(),
            from_stride: at.out.stride.into(),
            top_k: (*top_k).into(),
            slots: at.slots.at.into(),
            shares: at.shares.at.into(),
            shared: shared.as_ref().map_or(0, |_| at.shared.at + 1).into(),
            shared_stride: at.shared.stride.into(),
            gate: gate.map_or(0, |_| at.shared_gate.at + 1).into(),
            gate_stride: at.shared_gate.stride.into(),
            to: workspace.x.at.into(),
            to_stride: workspace.x.stride.into(),
            columns: self.config.hidden_size.into(),
            scale: bits(scale).into(),
        };
        self.update(|b| call.call(b, "combine_experts", &rows));
    }

    /// Adds to the rows at `to` the bias of each one's expert, where `projections`, of which each expert has
    /// one, have biases.
    fn expert_bias<'p>(
        &mut self,
        projections: impl Iterator<Item = &'p Linear> + Clone,
        places: &Index,
        to: Place,
    ) {
        let biases: Vec<_> = projections.filter_map(|linear| linear.bias.as_ref()).collect();
        let [first, ..] = &biases[..] else { return };
        let columns = first.shape[0];
        let bias = self.vector(biases);
        let owners = self.workspace.experts.as_ref().map_or(0, |at| at.owners.at);
        let memory = self.memory.clone();
        let call = ExpertBias {
            bias: &bias,
            memory: &memory,
            owners: owners.into(),
            to: to.at.into(),
            stride: to.stride.into(),
            columns: columns.into(),
        };
        self.update(|b| call.call(b, "expert_bias", places));
    }

    /// The format of what rows meet first of experts.
    pub(super) fn experts_format(&self, experts: &Experts) -> Format {
        let first =
            |mlp: &'_ Mlp| mlp.gate_up.iter().map(|linear| linear.weight.name.clone()).collect();
        let names: Vec<Vec<String>> = experts.experts.iter().map(first).collect();
        self.formats.of(names.iter().flatten().map(String::as_str))
    }

    /// Multiplies the rows at `x`, each with its own one of the experts that `matrix` joins.
    fn expert_product(
        &mut self,
        matrix: &Matrix,
        experts: usize,
        top_k: usize,
        x: [Place; 2],
        y: Place,
    ) {
        let at = self.workspace.experts.clone().expect("there are places for experts");
        let places = self.b.index_mul(&self.rows.clone(), top_k);
        let columns = matrix.columns;
        let (x, x_bytes) = match matrix.format {
            Format::Bf16Rounded => (x[1], 2 * columns),
            format if format.is_quantised() => {
                let memory = self.memory.clone();
                let call = RoundPlaces {
                    memory: &memory,
                    places: places.clone(),
                    owners: at.owners.at.into(),
                    begins: at.begins.at.into(),
                    x: x[0].at.into(),
                    columns: columns.into(),
                    to: at.rounded.at.into(),
                };
                let items = self.b.index_ceil_div(&places, TOGETHER);
                let symbol = format!("round_places_{}", format.as_str());
                self.update(|b| call.call(b, &symbol, &items));
                (at.rounded, kernels::rounded_bytes(columns))
            }
            _ => (x[0], 4 * columns),
        };
        let blocks = matrix.rows / experts / LANES;
        debug_assert_eq!(blocks * LANES * experts, matrix.rows, "experts are whole blocks");
        // Of a single row all work items together are about as many as of any matrix.
        let run = self.target.run(blocks * top_k).min(blocks);
        let most = self.b.index_min(&places, experts);
        let items = self.b.index_mul(&most, blocks.div_ceil(run));
        let memory = self.memory.clone();
        let call = ExpertProduct {
            weights: &matrix.weights,
            offsets: matrix.offsets_or_weights(),
            memory: &memory,
            begins: at.begins.at.into(),
            active: at.active.at.into(),
            x: x.at.into(),
            x_bytes: x_bytes.into(),
            y: y.at.into(),
            stride: y.stride.into(),
            columns: columns.into(),
            blocks: blocks.into(),
            run: run.into(),
        };
        self.update(|b| call.call(b, &matrix.symbol("expert_product"), &items));
    }
}

#[cfg(feature = "iree")]
pub(super) fn kernels(mut all: iree_rt::Kernels, isa: kernels::Isa) -> iree_rt::Kernels {
    let gather = |item: usize, of: Gather<*mut u8, usize>| {
        for place in item * TOGETHER..of.places.min((item + 1) * TOGETHER) {
            // SAFETY: the graph has these places, whose origins are rows of the step, and no two work
            // items write the same.
            unsafe {
                let row = *of.memory.add(of.origins).cast::<i32>().add(place) as usize;
                let from = of.memory.add(of.from + row * of.bytes);
                let to = of.memory.add(of.to + place * of.bytes);
                to.copy_from_nonoverlapping(from, of.bytes);
            }
        }
    };
    let bias = |place: usize, of: ExpertBias<*mut u8, usize>| {
        // SAFETY: the graph has these places, whose owners are experts, of which each has a bias for each
        // column; a work item has its place to itself.
        unsafe {
            let owner = *of.memory.add(of.owners).cast::<i32>().add(place) as usize;
            let bias = of.bias.cast::<f32>().add(owner * of.columns);
            let to = of.memory.add(of.to).cast::<f32>().add(place * of.stride);
            for i in 0..of.columns {
                *to.add(i) += *bias.add(i);
            }
        }
    };
    all = all
        .with("expert_bias", ExpertBias::kernel(bias))
        .with("choose_experts", Choose::kernel(choose))
        .with("arrange_experts", Arrange::kernel(arrange))
        .with("gather_places", Gather::kernel(gather))
        .with("combine_experts", Combine::kernel(combine));
    for format in Format::ALL {
        let name = format.as_str();
        let kernel = kernels::product_for(format, isa);
        let plain = move |item: usize, of: ExpertProduct<*mut u8, usize>| {
            // SAFETY: as `product` wants it.
            unsafe { product(kernel, format, item, &of, std::ptr::null()) };
        };
        all = all.with(format!("expert_product_{name}"), ExpertProduct::kernel(plain));
        if format.is_compressible(8) {
            let kernel = kernels::compressed_product_for(format, isa);
            let compressed = move |item: usize, of: ExpertProduct<*mut u8, usize>| {
                // SAFETY: as `product` wants it; the offsets say where blocks begin.
                unsafe { product(kernel, format, item, &of, of.offsets.cast()) };
            };
            let symbol = format!("compressed_expert_product_{name}");
            all = all.with(symbol, ExpertProduct::kernel(compressed));
        }
        if format.is_quantised() {
            let round = move |item: usize, of: RoundPlaces<*mut u8, usize>| {
                let at = |place: usize| of.memory.wrapping_add(place);
                for place in item * TOGETHER..of.places.min((item + 1) * TOGETHER) {
                    let x = at(of.x).cast::<f32>().wrapping_add(place * of.columns);
                    let to = at(of.to).wrapping_add(place * kernels::rounded_bytes(of.columns));
                    // SAFETY: the graph has these places, whose owners are experts, and no two work
                    // items have the same one; `isa` is here.
                    unsafe {
                        let owner = *at(of.owners).cast::<i32>().add(place) as usize;
                        let begins = at(of.begins).cast::<i32>().add(owner);
                        let rows = (*begins.add(1) - *begins) as usize;
                        kernels::round_row(isa, format, rows, x, of.columns, to);
                    }
                }
            };
            all = all.with(format!("round_places_{name}"), RoundPlaces::kernel(round));
        }
    }
    all
}

#[cfg(feature = "iree")]
fn choose(row: usize, of: Choose<*mut u8, usize>) {
    let at = |place: usize| of.memory.wrapping_add(place);
    // SAFETY: the graph has these places for all rows of a step, and a bias for each expert where it says so; a
    // work item has its row to itself.
    let (bias, shares_of_all, chosen, shares) = unsafe {
        let logits = at(of.logits).cast::<f32>().add(row * of.stride);
        let first = row * of.top_k;
        (
            (of.biased > 0).then(|| std::slice::from_raw_parts(of.bias.cast::<f32>(), of.experts)),
            std::slice::from_raw_parts_mut(logits, of.experts),
            std::slice::from_raw_parts_mut(at(of.chosen).cast::<i32>().add(first), of.top_k),
            std::slice::from_raw_parts_mut(at(of.shares).cast::<f32>().add(first), of.top_k),
        )
    };
    let mut sum = 1.0;
    if of.sigmoid > 0 {
        shares_of_all.iter_mut().for_each(|share| *share = 1.0 / (1.0 + (-*share).exp()));
    } else {
        let largest = shares_of_all.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        sum = 0.0;
        for share in shares_of_all.iter_mut() {
            *share = (*share - largest).exp();
            sum += *share;
        }
    }
    let mut total = 0.0;
    for (chosen, share) in chosen.iter_mut().zip(shares.iter_mut()) {
        // Of equal ones the first. Where the first is not a number nothing is larger, and it is chosen again
        // and again: its shares are not numbers, which then nothing hides.
        let compared =
            |expert: usize| shares_of_all[expert] + bias.map_or(0.0, |bias| bias[expert]);
        let (mut best, mut largest) = (0, compared(0));
        for expert in 1..of.experts {
            let this = compared(expert);
            if this > largest {
                (best, largest) = (expert, this);
            }
        }
        *chosen = best as i32;
        *share = shares_of_all[best] / sum;
        total += *share;
        // Below every share, whatever its bias.
        shares_of_all[best] = f32::NEG_INFINITY;
    }
    if of.normalised > 0 {
        total += number(of.floor);
        shares.iter_mut().for_each(|share| *share /= total);
    }
    shares.iter_mut().for_each(|share| *share *= number(of.scale));
    // In the order of the experts: a few elements.
    for end in 1..chosen.len() {
        for i in (0..end).rev() {
            if chosen[i] <= chosen[i + 1] {
                break;
            }
            chosen.swap(i, i + 1);
            shares.swap(i, i + 1);
        }
    }
}

#[cfg(feature = "iree")]
fn arrange(_: usize, of: Arrange<*mut u8, usize>) {
    let places = of.rows * of.top_k;
    // SAFETY: the graph has these places for all rows of a step, and this is the only work item.
    let [chosen, begins, active, origins, owners, slots] = unsafe {
        [
            (of.chosen, places),
            (of.begins, of.experts + 1),
            (of.active, of.experts + 1),
            (of.origins, places),
            (of.owners, places),
            (of.slots, places),
        ]
        .map(|(at, len)| std::slice::from_raw_parts_mut(of.memory.add(at).cast::<i32>(), len))
    };
    begins.fill(0);
    for &expert in &*chosen {
        begins[expert as usize + 1] += 1;
    }
    active[0] = 0;
    for expert in 0..of.experts {
        if begins[expert + 1] > 0 {
            active[0] += 1;
            active[active[0] as usize] = expert as i32;
        }
        begins[expert + 1] += begins[expert];
    }
    // Where the next row of each expert goes: in the place of where it begins, which is put right below.
    for (pair, &expert) in chosen.iter().enumerate() {
        let next = &mut begins[expert as usize];
        slots[pair] = *next;
        origins[*next as usize] = (pair / of.top_k) as i32;
        owners[*next as usize] = expert;
        *next += 1;
    }
    begins.copy_within(0..of.experts, 1);
    begins[0] = 0;
}

#[cfg(feature = "iree")]
fn combine(row: usize, of: Combine<*mut u8, usize>) {
    let at = |place: usize| of.memory.wrapping_add(place);
    // SAFETY: the graph has these places for all rows of a step; a work item has its row to itself.
    unsafe {
        let rows = |place: usize, stride: usize, row: usize| {
            let first = at(place).cast::<f32>().add(row * stride);
            std::slice::from_raw_parts(first, of.columns)
        };
        let to = at(of.to).cast::<f32>().add(row * of.to_stride);
        let to = std::slice::from_raw_parts_mut(to, of.columns);
        let first = row * of.top_k;
        let slots = std::slice::from_raw_parts(at(of.slots).cast::<i32>().add(first), of.top_k);
        let shares = std::slice::from_raw_parts(at(of.shares).cast::<f32>().add(first), of.top_k);
        let shared = (of.shared > 0).then(|| {
            let share = match of.gate {
                0 => 1.0,
                gate => {
                    1.0 / (1.0 + (-*at(gate - 1).cast::<f32>().add(row * of.gate_stride)).exp())
                }
            };
            (share, rows(of.shared - 1, of.shared_stride, row))
        });
        let scale = number(of.scale);
        const PART: usize = 256;
        for begin in (0..of.columns).step_by(PART) {
            let part = begin..of.columns.min(begin + PART);
            let mut sums = [0.0; PART];
            for (&slot, &share) in slots.iter().zip(shares) {
                let from = &rows(of.from, of.from_stride, slot as usize)[part.clone()];
                for (sum, value) in sums.iter_mut().zip(from) {
                    *sum += share * value;
                }
            }
            if let Some((share, from)) = shared {
                for (sum, value) in sums.iter_mut().zip(&from[part.clone()]) {
                    *sum += share * value;
                }
            }
            for (to, sum) in to[part].iter_mut().zip(sums) {
                *to += scale * sum;
            }
        }
    }
}

/// One work item of a product.
///
/// # Safety
///
/// The graph passes a matrix of this format, whose blocks begin at `index` if it is compressed, of as many
/// experts as there are, and the places of a step, whose lists earlier calls have written; no two work items
/// have the same blocks; the kernel is for this format and CPU.
#[cfg(feature = "iree")]
unsafe fn product(
    kernel: kernels::Kernel,
    format: Format,
    item: usize,
    of: &ExpertProduct<*mut u8, usize>,
    index: *const u64,
) {
    let at = |place: usize| of.memory.wrapping_add(place);
    let runs = of.blocks.div_ceil(of.run);
    let (which, run) = (item / runs, item % runs);
    // SAFETY: the caller's promise.
    unsafe {
        let active = at(of.active).cast::<i32>();
        if which >= *active as usize {
            return;
        }
        let expert = *active.add(1 + which) as usize;
        let begins = at(of.begins).cast::<i32>().add(expert);
        let (first, end) = (*begins as usize, *begins.add(1) as usize);
        let block = run * of.run;
        let of_matrix = expert * of.blocks + block;
        let (weights, index) = if index.is_null() {
            (of.weights.add(of_matrix * format.block_bytes(of.columns)), index)
        } else {
            (of.weights, index.add(of_matrix))
        };
        kernel(&kernels::Product {
            weights,
            index,
            x: at(of.x + first * of.x_bytes),
            y: at(of.y).cast::<f32>().add(first * of.stride + block * LANES),
            rows: end - first,
            used: end - first,
            columns: of.columns,
            blocks: of.run.min(of.blocks - block),
            stride: of.stride,
        });
    }
}
