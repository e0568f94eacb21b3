//! What the work items of experts do.

use kernels::LANES;

use super::super::norm::number;
use super::{Arrange, Choose, Combine, ExpertBias, ExpertProduct, Gather, RoundPlaces, TOGETHER};
use crate::emit::Format;

pub(in crate::lower::cpu) fn kernels(
    mut all: iree_rt::Kernels,
    isa: kernels::Isa,
) -> iree_rt::Kernels {
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
    let compared = |shares_of_all: &[f32], expert: usize| {
        shares_of_all[expert] + bias.map_or(0.0, |bias| bias[expert])
    };
    if of.groups > 0 {
        leave_out_groups(&of, shares_of_all, compared);
    }
    let mut total = 0.0;
    for (chosen, share) in chosen.iter_mut().zip(shares.iter_mut()) {
        // Of equal ones the first. Where the first is not a number nothing is larger, and it is chosen again
        // and again: its shares are not numbers, which then nothing hides.
        let (mut best, mut largest) = (0, compared(shares_of_all, 0));
        for expert in 1..of.experts {
            let this = compared(shares_of_all, expert);
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

/// Puts the shares of experts in other groups than a row's below all others.
fn leave_out_groups(
    of: &Choose<*mut u8, usize>,
    shares: &mut [f32],
    compared: impl Fn(&[f32], usize) -> f32,
) {
    let size = of.experts / of.groups;
    let score = |group: usize| {
        let mut largest = [f32::NEG_INFINITY; 2];
        for expert in group * size..(group + 1) * size {
            let this = compared(shares, expert);
            if this > largest[0] {
                largest = [this, largest[0]];
            } else if this.is_nan() {
                return this;
            } else {
                largest[1] = this.max(largest[1]);
            }
        }
        if of.sigmoid > 0 { largest[0] + largest[1] } else { largest[0] }
    };
    let scores: Vec<f32> = (0..of.groups).map(score).collect();
    for (group, this) in scores.iter().enumerate() {
        // Of equal ones the first; what is not a number has none before it.
        let before =
            |(other, score): (usize, &f32)| score > this || (score == this && other < group);
        if scores.iter().enumerate().filter(|it| before(*it)).count() >= of.top_groups {
            shares[group * size..(group + 1) * size].fill(f32::NEG_INFINITY);
        }
    }
}

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
