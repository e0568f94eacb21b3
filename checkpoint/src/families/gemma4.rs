//! Gemma 4's text model where it is dense (`modeling_gemma4.py`): as Gemma 3, but for norms whose weights lie
//! around one, scores that nothing scales, and values that are normed too. Layers without a window have heads of
//! another width, and keys that may be values too. The last layers may see keys and values of earlier ones, and
//! each may be given a part of what a second embedding has of the token.

use serde_json::Value;

use super::gemma2::{around, cap};
use super::window::alternating;
use super::{Defaults, Family, Sizes, limit};
use crate::Result;
use crate::architecture::{
    Activation, Architecture, Attention, Given, Layer, LayerInputs, Logits, Module, Norm, QkNorm,
    Rope, RopeScaling,
};
use crate::keys::Keys;

/// `configuration_gemma4.py` in transformers 5.
pub(super) const DEFAULTS: Defaults = Defaults {
    vocab_size: 262_144,
    hidden_size: 2304,
    intermediate_size: 9216,
    num_hidden_layers: 30,
    num_attention_heads: 8,
    num_key_value_heads: Some(4),
    head_dim: Some(256),
    max_position_embeddings: 131_072,
    rms_norm_eps: 1e-6,
    rope_theta: 1_000_000.0,
    tie_word_embeddings: true,
    bos_token_id: Some(2),
    eos_token_ids: &[1],
};

pub(super) static FAMILY: Family = Family {
    model_type: "gemma4_text",
    class: "Gemma4ForCausalLM",
    defaults: DEFAULTS,
    architecture: |keys, sizes| architecture(keys, sizes, 512, 256),
};

/// Of a `window` where the configuration has none, and numbers of which a layer is given so many.
pub(super) fn architecture(
    keys: &Keys,
    sizes: &Sizes,
    window: usize,
    given: usize,
) -> Result<Architecture> {
    if keys.boolean("enable_moe_block")? == Some(true) {
        return Err(keys.refuse(
            "enable_moe_block",
            "mixtures of experts of this family are not supported, only its dense models",
        ));
    }
    // "vision" is of images alone.
    if keys.string("use_bidirectional_attention")? == Some("all") {
        return Err(keys.refuse("use_bidirectional_attention", "supported are \"vision\" and null"));
    }
    let activation = Activation::read(keys, "hidden_activation", Activation::GeluTanh)?;
    let bias = keys.boolean("attention_bias")?.unwrap_or(false);
    let keys_are_values = keys.boolean("attention_k_eq_v")?.unwrap_or(false);
    let wide = keys.boolean("use_double_wide_mlp")?.unwrap_or(false);
    let logit_cap = cap(keys, "final_logit_softcapping", None)?;
    let (mut sliding, window) =
        alternating(keys, sizes, window, |layer| !(layer + 1).is_multiple_of(6))?;
    // Whatever is said of it.
    sliding[sizes.layers - 1] = false;
    let shared = shared_layers(keys, &sliding)?;
    let full = full_sizes(keys, sizes, &sliding, keys_are_values)?;
    let width = count(keys, "hidden_size_per_layer_input", limit::WIDTH, given)?;
    let model = Module::new("model");
    let inputs = match width {
        0 => None,
        width => Some(layer_inputs(keys, sizes, &model, width)?),
    };

    let architecture = sizes.decoder(ropes(keys, &full, sizes)?, |layer, index| {
        let (slides, shared) = (sliding[index], shared[index]);
        let of = if slides { sizes } else { &full };
        let mut attention = of.attention(layer, [bias; 2]);
        if keys_are_values && !slides {
            attention.qkv[2] = attention.qkv[1].clone();
        }
        let mut norms = of.qk_norm(layer);
        if shared.is_some() {
            attention.qkv.truncate(1);
            norms = QkNorm { key: None, ..norms };
        }
        let attention = Attention {
            shared,
            qk_norm: Some(norms),
            value_norm: Some(sizes.rms_norm_eps),
            ropes: Some([usize::from(slides); 2]),
            scale: 1.0,
            window: window.filter(|_| slides),
            ..attention
        };
        let times = if wide && shared.is_some() { 2 } else { 1 };
        let mlp = Sizes { intermediate_size: times * sizes.intermediate_size, ..*sizes };
        let mlp = mlp.mlp(layer, false, activation);
        Layer {
            given: (width > 0).then(|| given_to(sizes, layer, width, activation)),
            scalar: Some(layer.scalar("layer_scalar")),
            ..around(sizes, layer, attention, mlp)
        }
    });
    Ok(Architecture {
        embedding_scale: (sizes.hidden_size as f64).sqrt() as f32,
        layer_inputs: inputs,
        logits: Logits { scale: 1.0, cap: logit_cap },
        ..architecture
    })
}

/// A number that may be 0.
fn count(keys: &Keys, key: &str, max: usize, default: usize) -> Result<usize> {
    match keys.map.get(key) {
        Some(none) if none.is_null() || *none == 0 => Ok(0),
        _ => Ok(keys.size(key, max)?.unwrap_or(default)),
    }
}

/// Of each layer the one whose keys and values it sees, if that is another one: the last layer of its kind before
/// all that share.
fn shared_layers(keys: &Keys, sliding: &[bool]) -> Result<Vec<Option<usize>>> {
    const KEY: &str = "num_kv_shared_layers";
    let layers = sliding.len();
    let first = layers.saturating_sub(count(keys, KEY, limit::LAYERS, 0)?);
    let shared = |layer: usize| match layer < first {
        true => Ok(None),
        false => match (0..first).rev().find(|&it| sliding[it] == sliding[layer]) {
            Some(of) => Ok(Some(of)),
            None => Err(keys.refuse(
                KEY,
                format_args!("no layer before has the type of layer {layer} of {layers}"),
            )),
        },
    };
    (0..layers).map(shared).collect()
}

/// The sizes of layers without a window: two keys say them, or one for each layer, as transformers 5 saves them.
fn full_sizes(
    keys: &Keys,
    sizes: &Sizes,
    sliding: &[bool],
    keys_are_values: bool,
) -> Result<Sizes> {
    const LAYERS: &str = "per_layer_config";
    let of = |keys: &Keys, width: &str, heads: Option<&str>, default: usize| {
        let head_dim = keys.size(width, limit::HEAD_DIM)?.unwrap_or(default);
        if !head_dim.is_multiple_of(2) {
            return Err(keys.refuse(width, "rotary embeddings need an even head width"));
        }
        let own = heads.map(|key| keys.size(key, limit::HEADS)).transpose()?.flatten();
        let kv_heads = own.unwrap_or(sizes.kv_heads);
        if !sizes.heads.is_multiple_of(kv_heads) {
            let must = format_args!("it must divide `num_attention_heads`, {}", sizes.heads);
            return Err(keys.refuse(heads.unwrap_or_default(), must));
        }
        Ok(Sizes { head_dim, kv_heads, ..*sizes })
    };
    let Some(layers) = keys.object(LAYERS)? else {
        let heads = keys_are_values.then_some("num_global_key_value_heads");
        return of(keys, "global_head_dim", heads, 512);
    };
    let own = |layer: usize| layers.get(&layer.to_string());
    let last = own(sliding.len() - 1);
    let expected = |layer: usize| if sliding[layer] { None } else { last };
    let alike = (0..sliding.len()).all(|layer| own(layer) == expected(layer));
    match last.and_then(Value::as_object).filter(|_| alike) {
        Some(map) => {
            let own = Keys { prefix: "per_layer_config.", map, ..*keys };
            of(&own, "head_dim", Some("num_key_value_heads"), sizes.head_dim)
        }
        None => Err(keys.refuse(
            LAYERS,
            "supported is an object for each layer without a window, the same one, and for no other",
        )),
    }
}

/// Of layers without a window, and of those with one.
fn ropes(keys: &Keys, full: &Sizes, sliding: &Sizes) -> Result<Vec<Rope>> {
    let [full, sliding] =
        [full, sliding].map(|sizes| sizes.ropes_by_window(keys, "rope_local_base_freq", 10_000.0));
    let mut ropes = vec![full?.swap_remove(0), sliding?.swap_remove(1)];
    if keys.value("rope_parameters").is_none() {
        ropes[0].scaling = RopeScaling::proportional(0.25, ropes[0].width, 1.0);
    }
    Ok(ropes)
}

/// A second embedding, and what it is added to. Norms do not see what is multiplied with all that they read, but
/// for their epsilon: so neither `hidden_size^-0.5` of the projection nor `2^-0.5` of the sum is multiplied here.
fn layer_inputs(keys: &Keys, sizes: &Sizes, model: &Module, width: usize) -> Result<LayerInputs> {
    const VOCAB: &str = "vocab_size_per_layer_input";
    if !width.is_multiple_of(16) {
        return Err(keys.refuse("hidden_size_per_layer_input", "supported are multiples of 16"));
    }
    let tokens = keys.size(VOCAB, limit::VOCAB)?.unwrap_or(262_144);
    if tokens < sizes.vocab_size {
        let must = format_args!("`vocab_size` is more, {}", sizes.vocab_size);
        return Err(keys.refuse(VOCAB, must));
    }
    let (all, hidden) = (sizes.layers * width, sizes.hidden_size);
    let epsilon = sizes.rms_norm_eps * hidden as f64;
    Ok(LayerInputs {
        embedding: model.at("embed_tokens_per_layer").embedding(tokens, all),
        scale: (width as f64).sqrt() as f32,
        projection: model.linear("per_layer_model_projection", [all, hidden], false),
        norm: model.norm("per_layer_projection_norm", width, epsilon),
    })
}

fn given_to(sizes: &Sizes, layer: &Module, width: usize, activation: Activation) -> Given {
    let norm = sizes.norm(layer, "post_per_layer_input_norm");
    Given {
        gate: layer.linear("per_layer_input_gate", [width, sizes.hidden_size], false),
        activation,
        projection: layer.linear("per_layer_projection", [sizes.hidden_size, width], false),
        norm: Norm { epsilon: 2.0 * sizes.rms_norm_eps, ..norm },
    }
}
