//! Layers of experts.

use super::{Sizes, limit};
use crate::Result;
use crate::architecture::{
    Activation, Experts, FeedForward, Groups, Mlp, Module, SharedExpert, Shares,
};
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
            groups: None,
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

/// No layer of Qwen's mixtures has a window.
pub(super) fn no_windows(keys: &Keys) -> Result<()> {
    match keys.boolean("use_sliding_window")? {
        Some(true) => Err(keys.refuse("use_sliding_window", "supported is false")),
        _ => Ok(()),
    }
}

impl QwenExperts {
    pub fn read(
        keys: &Keys,
        sizes: &Sizes,
        defaults: Routing,
        shared: Option<usize>,
    ) -> Result<Self> {
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

    /// The same in the layers that `mlp_layer_types` says, if it is there.
    pub fn by_layer_types(mut self, keys: &Keys) -> Result<Self> {
        by_layer_types(keys, &mut self.sparse)?;
        Ok(self)
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

/// What DeepSeek's mixtures and those after them have in common: layers without experts before those with some, beside
/// which there is one for all rows.
pub(super) struct DeepSeekExperts {
    routing: Routing,
    groups: Option<Groups>,
    sigmoids: bool,
    scale: f32,
    /// Width of the shared expert.
    shared: usize,
    /// Which layers have experts.
    sparse: Vec<bool>,
    activation: Activation,
}

/// What they are where a configuration is silent.
pub(super) struct DeepSeekDefaults {
    pub routing: Routing,
    /// Whether experts are chosen by sigmoids and a bias; else by a softmax.
    pub sigmoids: bool,
    /// Groups, and how many of them are chosen; `None` where no key says so.
    pub groups: Option<[usize; 2]>,
    pub scale: f64,
    /// How many experts are as wide as the shared one.
    pub shared: usize,
    /// The first layers, which have none.
    pub dense: usize,
}

impl DeepSeekExperts {
    pub fn read(keys: &Keys, sizes: &Sizes, defaults: DeepSeekDefaults) -> Result<Self> {
        let size =
            |key, max, default| Ok::<_, crate::Error>(keys.size(key, max)?.unwrap_or(default));
        // transformers knows it by all three.
        let counts = ["n_routed_experts", "num_local_experts", "num_experts"];
        let count = counts.into_iter().find(|key| keys.value(key).is_some()).unwrap_or(counts[0]);
        let of = defaults.routing;
        let routing = Routing {
            experts: size(count, limit::EXPERTS, of.experts)?,
            top_k: size("num_experts_per_tok", limit::EXPERTS, of.top_k)?,
            normalised: keys.boolean("norm_topk_prob")?.unwrap_or(of.normalised),
            width: size("moe_intermediate_size", limit::WIDTH, of.width)?,
            bias: false,
        };
        routing.check(keys, sizes, count, "moe_intermediate_size")?;
        if keys.size("moe_layer_freq", limit::LAYERS)?.is_some_and(|every| every != 1) {
            return Err(keys.refuse("moe_layer_freq", "supported is 1, experts in all layers"));
        }
        let shared = size("n_shared_experts", limit::EXPERTS, defaults.shared)?;
        let dense = keys.count("first_k_dense_replace", limit::LAYERS)?.unwrap_or(defaults.dense);
        Ok(Self {
            groups: match defaults.groups {
                Some(defaults) => groups(keys, &routing, count, defaults)?,
                None => None,
            },
            sigmoids: defaults.sigmoids,
            scale: keys.positive("routed_scaling_factor")?.unwrap_or(defaults.scale) as f32,
            shared: routing.width * shared,
            sparse: (0..sizes.layers).map(|layer| layer >= dense).collect(),
            activation: Activation::read(keys, "hidden_act", Activation::Silu)?,
            routing,
        })
    }

    /// The same in the layers that `mlp_layer_types` says, if it is there.
    pub fn by_layer_types(mut self, keys: &Keys) -> Result<Self> {
        by_layer_types(keys, &mut self.sparse)?;
        Ok(self)
    }

    /// What layer number `index`, which is `module`, does with each row.
    pub fn layer(&self, sizes: &Sizes, module: &Module, index: usize) -> FeedForward {
        let &Self { ref routing, groups, sigmoids, scale, shared, activation, .. } = self;
        if !self.sparse[index] {
            return sizes.mlp(module, false, activation);
        }
        let module = module.at("mlp");
        let of_all = module.at("shared_experts");
        let mlp = sizes.mlp_of(&of_all, NAMES, shared, false, activation);
        let bias = || module.at("gate").bias("e_score_correction_bias", routing.experts);
        let experts = Experts {
            shares: match sigmoids {
                true => Shares::Sigmoid { bias: Some(bias()), floor: 1e-20 },
                false => Shares::Softmax,
            },
            groups,
            scale,
            shared: Some(SharedExpert { mlp, gate: None }),
            ..routing.experts(sizes, &module, "gate", NAMES, activation)
        };
        FeedForward::Experts(Box::new(experts))
    }
}

/// Which layers are `sparse`, as `mlp_layer_types` says, if it is there.
fn by_layer_types(keys: &Keys, sparse: &mut [bool]) -> Result<()> {
    const KEY: &str = "mlp_layer_types";
    let Some(types) = keys.strings(KEY)? else { return Ok(()) };
    let known = types.iter().all(|it| ["dense", "sparse"].contains(it));
    if types.len() != sparse.len() || !known {
        let layers = sparse.len();
        let must = format_args!("one of \"dense\" and \"sparse\" for each of {layers} layers");
        return Err(keys.refuse(KEY, must));
    }
    for (sparse, said) in sparse.iter_mut().zip(types) {
        *sparse = said == "sparse";
    }
    Ok(())
}

/// The groups of experts, of whose number `count` is the key, where a row's are not in all of them.
fn groups(
    keys: &Keys,
    routing: &Routing,
    count: &str,
    defaults: [usize; 2],
) -> Result<Option<Groups>> {
    let [all, of_a_row] = ["n_group", "topk_group"];
    for key in [all, of_a_row] {
        if keys.map.get(key).is_some_and(|it| it.is_null()) {
            return Err(keys.refuse(key, "this family needs a number here"));
        }
    }
    let size =
        |key, default| Ok::<_, crate::Error>(keys.size(key, limit::EXPERTS)?.unwrap_or(default));
    let groups = Groups { count: size(all, defaults[0])?, chosen: size(of_a_row, defaults[1])? };
    if groups.chosen == groups.count {
        return Ok(None);
    }
    let experts = routing.experts;
    if groups.chosen > groups.count {
        return Err(
            keys.refuse(of_a_row, format_args!("there are {} groups (`{all}`)", groups.count))
        );
    }
    if !experts.is_multiple_of(groups.count) || experts / groups.count < 2 {
        let must =
            format_args!("{experts} experts (`{count}`) are not so many groups of at least two");
        return Err(keys.refuse(all, must));
    }
    let most = experts / groups.count * groups.chosen;
    if routing.top_k > most {
        let must = format_args!(
            "{} of {} groups (`{of_a_row}`) have {most} experts",
            groups.chosen, groups.count
        );
        return Err(keys.refuse("num_experts_per_tok", must));
    }
    Ok(Some(groups))
}
