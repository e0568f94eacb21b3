//! What is added to scores by how far a key is from its query, spread over the distances that there are, once for all layers.

use checkpoint::architecture::Distances;
#[cfg(feature = "iree")]
use checkpoint::architecture::bucket;

use super::abi::kernel_abi;
use super::step::Steps;
use crate::emit::WeightSpec;

kernel_abi! {
    /// A work item is a head: what is added to its scores at each distance.
    Spread {
        reads {
            /// `[buckets, heads]` of f32.
            scores,
        }
        updates {
            memory,
        }
        numbers {
            /// `[heads, stride]` of f32, of which the middle is of the distance 0.
            to,
            stride,
            heads,
            buckets,
            /// Where the last bucket begins.
            most,
        }
    }
}

impl Steps<'_> {
    /// What is added to scores, at each distance.
    pub(super) fn spread(&mut self, distances: &Distances) {
        let scores = self.weight(&WeightSpec::floats(&distances.scores), 0);
        let (memory, place) = (self.memory.clone(), self.workspace.distances);
        let [buckets, heads] = distances.scores.shape[..] else { unreachable!("it has two") };
        let call = Spread {
            scores: &scores,
            memory: &memory,
            to: place.at.into(),
            stride: place.stride.into(),
            heads: heads.into(),
            buckets: buckets.into(),
            most: distances.most.into(),
        };
        self.update(|b| call.call(b, "spread_distances", &heads.into()));
    }
}

#[cfg(feature = "iree")]
pub(super) fn kernels(all: iree_rt::Kernels) -> iree_rt::Kernels {
    let spread = move |head: usize, of: Spread<*mut u8, usize>| {
        let at = |place: usize| of.memory.wrapping_add(place);
        let middle = of.stride / 2;
        // SAFETY: the graph has a row of so many for each head, and passes a score for each bucket and head; no two work items
        // have the same head.
        unsafe {
            let to = at(of.to).cast::<f32>().add(head * of.stride);
            for place in 0..of.stride {
                let distance = place as isize - middle as isize;
                let bucket = bucket(distance, of.buckets, of.most);
                *to.add(place) = *of.scores.cast::<f32>().add(bucket * of.heads + head);
            }
        }
    };
    all.with("spread_distances", Spread::kernel(spread))
}
