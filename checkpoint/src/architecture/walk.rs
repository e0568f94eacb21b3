//! All parameters of a model, in the order in which a token meets them.

use std::iter::once;

use super::{
    Architecture, Attention, Experts, FeedForward, GatedDelta, Given, Latent, Layer, LayerInputs,
    Linear, Mixer, Mlp, Norm, Parameter, ShortConvolution,
};

impl Architecture {
    /// Every parameter, [`output`](Self::output) too, in the order in which a token meets them.
    pub fn parameters(&self) -> impl Iterator<Item = &Parameter> {
        once(&self.embedding)
            .chain(self.positions.iter().map(|it| &it.embedding))
            .chain(&self.texts)
            .chain(norm(&self.embedding_norm))
            .chain(self.distances.iter().map(|it| &it.scores))
            .chain(self.layer_inputs.iter().flat_map(LayerInputs::parameters))
            .chain(self.layers.iter().flat_map(Layer::parameters))
            .chain(self.norm.parameters())
            .chain(&self.output)
            .chain(&self.output_bias)
    }

    /// The matrices whose rounding is felt the most: what all layers are given is made by, the first layer's mixer, as all others
    /// carry its errors on, and what the first and the last MLP add, the latter right before the logits. Of
    /// tiny-tales in four bits they have an eighth of the layers' weights and make two thirds of the
    /// divergence (docs/quality.md).
    pub fn ends(&self) -> impl Iterator<Item = &Linear> {
        let mixer = self.layers.first().into_iter().flat_map(|layer| layer.mixer.matrices());
        let down = self.layers.first().into_iter().chain(self.layers.iter().skip(1).last());
        let down = down.filter_map(|layer| match &layer.mlp {
            FeedForward::Mlp(mlp) => Some(&mlp.down),
            FeedForward::Experts(_) => None,
        });
        let given = self.layer_inputs.iter().map(|it| &it.projection);
        given.chain(mixer).chain(down)
    }

    /// Every norm, in that order.
    pub fn norms(&self) -> impl Iterator<Item = &Norm> {
        let inputs = self.layer_inputs.iter().map(|it| &it.norm);
        self.embedding_norm
            .iter()
            .chain(inputs)
            .chain(self.layers.iter().flat_map(Layer::norms))
            .chain([&self.norm])
    }
}

impl LayerInputs {
    fn parameters(&self) -> impl Iterator<Item = &Parameter> {
        once(&self.embedding).chain(self.projection.parameters()).chain(self.norm.parameters())
    }
}

impl Layer {
    fn parameters(&self) -> impl Iterator<Item = &Parameter> {
        let Self { input_norm, mixer, mixer_norm, mlp_norm, mlp, output_norm, .. } = self;
        norm(input_norm)
            .chain(mixer.parameters())
            .chain(norm(mixer_norm))
            .chain(norm(mlp_norm))
            .chain(mlp.parameters())
            .chain(norm(output_norm))
            .chain(self.given.iter().flat_map(Given::parameters))
            .chain(&self.scalar)
    }

    fn norms(&self) -> impl Iterator<Item = &Norm> {
        let Self { input_norm, mixer_norm, mlp_norm, output_norm, .. } = self;
        let heads = self.attention().and_then(|it| it.qk_norm.as_ref());
        let heads = heads.into_iter().flat_map(|it| once(&it.query).chain(&it.key));
        let heads = heads.chain(self.gated_delta().map(|it| &it.norm));
        let heads = heads.chain(self.mixer.latent().into_iter().flat_map(Latent::norms));
        let behind = mixer_norm.iter().chain(mlp_norm).chain(output_norm);
        let given = self.given.iter().map(|it| &it.norm);
        input_norm.iter().chain(heads).chain(behind).chain(given)
    }
}

impl Given {
    fn parameters(&self) -> impl Iterator<Item = &Parameter> {
        let Self { gate, projection, norm, .. } = self;
        gate.parameters().chain(projection.parameters()).chain(norm.parameters())
    }
}

/// The parameter of a norm that may not be there.
fn norm(norm: &Option<Norm>) -> impl Iterator<Item = &Parameter> {
    norm.iter().flat_map(Norm::parameters)
}

impl Norm {
    pub(super) fn parameters(&self) -> impl Iterator<Item = &Parameter> {
        once(&self.weight).chain(&self.bias)
    }
}

impl Mixer {
    fn parameters(&self) -> Box<dyn Iterator<Item = &Parameter> + '_> {
        match self {
            Self::Attention(attention) => Box::new(attention.parameters()),
            Self::ShortConvolution(of) => {
                let ShortConvolution { input, taps, output } = &**of;
                Box::new(input.parameters().chain([taps]).chain(output.parameters()))
            }
            Self::GatedDelta(of) => {
                let GatedDelta { inputs, taps, decay, step, norm, output, .. } = &**of;
                let own = [taps, decay, step, &norm.weight];
                let inputs = inputs.iter().flat_map(Linear::parameters);
                Box::new(inputs.chain(own).chain(output.parameters()))
            }
        }
    }
}

impl Attention {
    fn parameters(&self) -> impl Iterator<Item = &Parameter> {
        let norms = self.qk_norm.iter().flat_map(|it| once(&it.query).chain(&it.key));
        let norms = norms.flat_map(Norm::parameters);
        let before = once(None).chain(self.qkv.iter().map(Some));
        // Keys that are values too are named once.
        let qkv = self.qkv.iter().zip(before).filter(|(it, before)| Some(*it) != *before);
        let qkv = qkv.flat_map(|(it, _)| it.parameters());
        let latent = self.latent.iter().flat_map(|it| it.parameters());
        qkv.chain(latent).chain(norms).chain(&self.sinks).chain(self.output.parameters())
    }
}

impl FeedForward {
    fn parameters(&self) -> Box<dyn Iterator<Item = &Parameter> + '_> {
        match self {
            Self::Mlp(mlp) => Box::new(mlp.parameters()),
            Self::Experts(experts) => {
                let Experts { router, shares, experts, shared, .. } = &**experts;
                let router = router.parameters().chain(shares.bias());
                let shared = shared.iter().flat_map(|it| {
                    it.mlp.parameters().chain(it.gate.iter().flat_map(Linear::parameters))
                });
                let experts = experts.iter().flat_map(Mlp::parameters);
                Box::new(router.chain(experts).chain(shared))
            }
        }
    }
}

impl Mlp {
    fn parameters(&self) -> impl Iterator<Item = &Parameter> {
        let up = self.gate_up.iter().flat_map(Linear::parameters);
        up.chain(&self.learned).chain(self.down.parameters())
    }
}

impl Linear {
    pub(super) fn parameters(&self) -> impl Iterator<Item = &Parameter> {
        once(&self.weight).chain(&self.bias)
    }
}
