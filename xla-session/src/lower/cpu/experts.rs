//! Mixtures of experts: rows go to the experts that they chose, and meet no other weights.
//!
//! The rows of a step are copied once for each expert that they chose, in the order of the experts, so that
//! the rows of one lie together and are multiplied as those of any matrix are. What came of them is added up
//! in the order of the experts, whatever else is in the step.

use checkpoint::architecture::{Experts, Linear, Mlp, Shares};
use kernels::LANES;

use super::abi::kernel_abi;
use super::norm::bits;
use super::step::{Matrix, Steps};
use super::workspace::Place;
use crate::emit::builder::Index;
use crate::emit::{Format, Layout};

#[cfg(feature = "iree")]
mod work_items;
#[cfg(feature = "iree")]
pub(super) use work_items::kernels;

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
            /// Groups of experts, and how many of them a row's are in; 0 where they may be in all.
            groups,
            top_groups,
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
        let Experts {
            router,
            shares,
            experts,
            top_k,
            groups,
            normalised,
            scale: of_shares,
            shared,
        } = experts;
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
            groups: groups.map_or(0, |groups| groups.count).into(),
            top_groups: groups.map_or(0, |groups| groups.chosen).into(),
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
        self.gate(
            (activation, &[]),
            &places,
            (at.gate_up, Some(behind)),
            at.gated,
            wide,
            down.format,
        );
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
