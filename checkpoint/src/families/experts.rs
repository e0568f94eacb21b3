//! Layers of experts.

use super::{Sizes, limit};
use crate::Result;
use crate::architecture::{Activation, Experts, FeedForward, Mlp, Module, SharedExpert, Shares};
use crate::keys::Keys;

/// Hidden sizes and widths of experts are multiples of it: experts are cut out of one matrix of them all,
/// of which kernels read so many rows at a time.
const WHOLE: usize = 16;

/// How many experts a configuration has, and how many of them a row goes through.
pub(super) struct Routing {
    pub experts: usize,
    pub top_k: usize,
    pub normalised: bool,
    /// Width of an expert.
    pub width: usize,
    /// Whether the router and all projections have biases.
    pub bias: bool,
}

impl Routing {
    /// Checks what was read: `experts` under `key`, `width` under `width_key`.
    pub fn check(&self, keys: &Keys, sizes: &Sizes, key: &str, width_key: &str) -> Result<()> {
        if self.top_k > self.experts {
            return Err(keys.refuse(
                "num_experts_per_tok",
                format_args!("there are {} experts (`{key}`)", self.experts),
            ));
        }
        if self.experts.saturating_mul(sizes.layers) > limit::ALL_EXPERTS {
            return Err(
                keys.refuse(key, format_args!("{} layers of so many are too many", sizes.layers))
            );
        }
        for (key, value) in [(width_key, self.width), ("hidden_size", sizes.hidden_size)] {
            if !value.is_multiple_of(WHOLE) {
                return Err(keys.error(format!(
                    "`{key}` is {value}: of models with experts, supported are multiples of {WHOLE}"
                )));
            }
        }
        Ok(())
    }

    /// The experts in `module`, each called by its number, with `names` of their projections and
    /// `router` as that of the router.
    pub fn experts(
        &self,
        sizes: &Sizes,
        module: &Module,
        router: &str,
        names: [&str; 3],
        activation: Activation,
    ) -> Experts {
        let all = module.at("experts");
        let expert =
            |number| sizes.mlp_of(&all.at(number), names, self.width, self.bias, activation);
        Experts {
            router: module.router(router, [self.experts, sizes.hidden_size], self.bias),
            shares: Shares::Softmax,
            experts: (0..self.experts).map(expert).collect::<Vec<Mlp>>(),
            top_k: self.top_k,
            normalised: self.normalised,
            scale: 1.0,
            shared: None,
        }
    }
}

/// What Qwen's mixtures have in common: which layers have experts, and what these are.
pub(super) struct QwenExperts {
    routing: Routing,
    /// Width of the shared expert.
    shared: Option<usize>,
    sparse: Vec<bool>,
    activation: Activation,
}

/// What the projections of an expert are called mostly.
pub(super) const NAMES: [&str; 3] = ["gate_proj", "up_proj", "down_proj"];

impl QwenExperts {
    pub fn read(
        keys: &Keys,
        sizes: &Sizes,
        defaults: Routing,
        shared: Option<usize>,
    ) -> Result<Self> {
        if keys.boolean("use_sliding_window")? == Some(true) {
            return Err(keys.refuse("use_sliding_window", "supported is false"));
        }
        let size =
            |key, max, default| Ok::<_, crate::Error>(keys.size(key, max)?.unwrap_or(default));
        // transformers 5 saves Qwen3-MoE's under the second one.
        let experts = ["num_experts", "num_local_experts"];
        let experts = experts.into_iter().find(|key| keys.value(key).is_some());
        let experts = experts.unwrap_or("num_experts");
        let routing = Routing {
            experts: size(experts, limit::EXPERTS, defaults.experts)?,
            top_k: size("num_experts_per_tok", limit::EXPERTS, defaults.top_k)?,
            normalised: keys.boolean("norm_topk_prob")?.unwrap_or(defaults.normalised),
            width: size("moe_intermediate_size", limit::WIDTH, defaults.width)?,
            bias: false,
        };
        routing.check(keys, sizes, experts, "moe_intermediate_size")?;
        let shared = match shared {
            Some(default) => Some(size("shared_expert_intermediate_size", limit::WIDTH, default)?),
            None => None,
        };
        let step = size("decoder_sparse_step", limit::LAYERS, 1)?;
        let dense = keys.numbers("mlp_only_layers")?.unwrap_or_default();
        let sparse = |layer: usize| (layer + 1).is_multiple_of(step) && !dense.contains(&layer);
        Ok(Self {
            routing,
            shared,
            sparse: (0..sizes.layers).map(sparse).collect(),
            activation: Activation::read(keys, "hidden_act", Activation::Silu)?,
        })
    }

    /// The same in every layer, for families that know no others.
    pub fn in_all_layers(mut self) -> Self {
        self.sparse.fill(true);
        self
    }

    /// What layer number `index`, which is `module`, does with each row.
    pub fn layer(&self, sizes: &Sizes, module: &Module, index: usize) -> FeedForward {
        let Self { routing, shared, activation, .. } = self;
        if !self.sparse[index] {
            return sizes.mlp(module, false, *activation);
        }
        let module = module.at("mlp");
        let shared = shared.map(|width| SharedExpert {
            mlp: sizes.mlp_of(&module.at("shared_expert"), NAMES, width, false, *activation),
            gate: Some(module.router("shared_expert_gate", [1, sizes.hidden_size], false)),
        });
        let experts = routing.experts(sizes, &module, "gate", NAMES, *activation);
        FeedForward::Experts(Box::new(Experts { shared, ..experts }))
    }
}
