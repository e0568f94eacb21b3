//! How rotary embeddings are said in `config.json`: as `rope_theta` and `rope_scaling` (older; it wins
//! when both are there), or as `rope_parameters` (newer).

use std::sync::LazyLock;

use serde_json::{Map, Value};

use super::{Sizes, limit};
use crate::Result;
use crate::keys::Keys;
use crate::rope::{Rope, RopeScaling, Temperature};

const OBJECTS: [(&str, &str); 2] =
    [("rope_parameters", "rope_parameters."), ("rope_scaling", "rope_scaling.")];

impl Sizes {
    /// The rope of all layers, of whole heads.
    pub fn rope(&self, config: &Keys) -> Result<Rope> {
        for keys in [config, &flat(config)?] {
            if keys.positive("partial_rotary_factor")?.is_some_and(|factor| factor != 1.0) {
                return Err(keys.refuse("partial_rotary_factor", "supported is 1.0"));
            }
        }
        self.partial_rope(config, 1.0)
    }

    /// The rope of all layers, of that part of each head that `partial_rotary_factor` says.
    pub fn partial_rope(&self, config: &Keys, default: f64) -> Result<Rope> {
        let keys = flat(config)?;
        let outer = config.positive("partial_rotary_factor")?;
        let factor = keys.positive("partial_rotary_factor")?.or(outer).unwrap_or(default);
        let width = (self.head_dim as f64 * factor) as usize;
        if !width.is_multiple_of(2) || !(2..=self.head_dim).contains(&width) {
            return Err(keys.refuse(
                "partial_rotary_factor",
                format_args!("of a head of {} an even part has to be rotated", self.head_dim),
            ));
        }
        let theta = config.positive("rope_theta")?.unwrap_or(self.rope_theta);
        self.rope_of(width, config, &keys, theta)
    }

    /// The ropes of layers that see everything, and of those with a window: `rope_parameters` has an
    /// object for each; in the older form `rope_scaling` is for the former, and the base of the latter
    /// is under `local_key`, by default `local`.
    pub fn ropes_by_window(&self, config: &Keys, local_key: &str, local: f64) -> Result<Vec<Rope>> {
        let nested = config.object("rope_parameters")?.filter(|it| !it.is_empty());
        let global = config.positive("rope_theta")?.unwrap_or(self.rope_theta);
        let local = config.positive(local_key)?.unwrap_or(local);
        let nothing = Map::new();
        let of = |map, prefix| Keys { path: config.path, prefix, map, names: config.names };
        let whole = |keys: &Keys, theta| self.rope_of(self.head_dim, config, keys, theta);
        let Some(nested) = nested else {
            let scaling = config.object("rope_scaling")?.unwrap_or(&nothing);
            let full = whole(&of(scaling, "rope_scaling."), global)?;
            return Ok(vec![full, whole(&of(&nothing, ""), local)?]);
        };
        let keys = of(nested, "rope_parameters.");
        let read = |key, prefix, theta| {
            let map = keys.object(key)?.unwrap_or(&nothing);
            whole(&of(map, prefix), theta)
        };
        if nested.keys().any(|key| !["full_attention", "sliding_attention"].contains(&&**key)) {
            return Err(config.refuse(
                "rope_parameters",
                "this family has an object for \"full_attention\" and one for \"sliding_attention\"",
            ));
        }
        Ok(vec![
            read("full_attention", "rope_parameters.full_attention.", global)?,
            read("sliding_attention", "rope_parameters.sliding_attention.", local)?,
        ])
    }

    /// The same, of a base that a fixed `alpha` of the type "dynamic" stretches (NTK-aware scaling).
    pub fn stretched_rope(&self, config: &Keys) -> Result<Rope> {
        let keys = flat(config)?;
        let kind = keys.string("rope_type")?.or(keys.string("type")?);
        let Some(alpha) = keys.positive("alpha")?.filter(|_| kind == Some("dynamic")) else {
            return self.rope(config);
        };
        let base = keys.positive("rope_theta")?.or(config.positive("rope_theta")?);
        let width = self.head_dim as f64;
        let theta = base.unwrap_or(self.rope_theta) * alpha.powf(width / (width - 2.0));
        if !theta.is_finite() {
            return Err(keys.refuse("alpha", format_args!("it makes a base of {theta}")));
        }
        Ok(Rope {
            theta,
            scaling: RopeScaling::None,
            width: self.head_dim,
            interleaved: false,
            positions: self.max_position_embeddings,
            temperature: None,
        })
    }

    /// What `keys` say, where `width` dimensions of a head are rotated.
    fn rope_of(&self, width: usize, config: &Keys, keys: &Keys, theta: f64) -> Result<Rope> {
        let positions = self.max_position_embeddings;
        let theta = keys.positive("rope_theta")?.unwrap_or(theta);
        let scaling = scaling(config, keys, self)?;
        if let RopeScaling::LongRope { short_factor, .. } = &scaling
            && short_factor.len() != width / 2
        {
            return Err(keys.error(format!(
                "`{}short_factor` has {} numbers, but {width} dimensions of a head are rotated, which have {} \
                 frequencies",
                keys.prefix,
                short_factor.len(),
                width / 2
            )));
        }
        Ok(Rope { theta, scaling, width, interleaved: false, positions, temperature: None })
    }

    /// How scores grow with the position of their query, if they do.
    pub fn temperature(&self, config: &Keys) -> Result<Option<Temperature>> {
        const BETA: &str = "llama_4_scaling_beta";
        let keys = flat(config)?;
        if keys.value(BETA).is_some_and(|beta| beta.as_f64() == Some(0.0)) {
            return Ok(None);
        }
        let Some(beta) = keys.positive(BETA)? else { return Ok(None) };
        let original_max_position_embeddings = original(config, &keys, self)?;
        Ok(Some(Temperature { beta, original_max_position_embeddings }))
    }
}

/// What DeepSeek's models multiply scores with where their rope is stretched.
pub(super) fn stretched_scores(config: &Keys) -> Result<f64> {
    let keys = flat(config)?;
    let kind = keys.string("rope_type")?.or(keys.string("type")?);
    let Some(all) = not_zero(&keys, "mscale_all_dim")? else { return Ok(1.0) };
    if matches!(kind, None | Some("default")) {
        return Ok(1.0);
    }
    let factor = keys.positive("factor")?;
    let factor = factor
        .ok_or_else(|| keys.refuse("factor", "beside `mscale_all_dim` there has to be a number"))?;
    Ok(mscale(factor, all).powi(2))
}

/// How much a stretch by `factor` multiplies, of which `by` says how much.
fn mscale(factor: f64, by: f64) -> f64 {
    if factor <= 1.0 { 1.0 } else { 0.1 * by * factor.ln() + 1.0 }
}

/// A positive number. As in Python, 0 is none: Mistral Medium 3.5 says so.
fn not_zero(keys: &Keys, key: &str) -> Result<Option<f64>> {
    match keys.value(key).and_then(Value::as_f64) {
        Some(0.0) => Ok(None),
        _ => keys.positive(key),
    }
}

/// The context that a model was trained with at first.
fn original(config: &Keys, keys: &Keys, sizes: &Sizes) -> Result<usize> {
    Ok(said_original(config, keys)?.unwrap_or(sizes.max_position_embeddings))
}

fn said_original(config: &Keys, keys: &Keys) -> Result<Option<usize>> {
    let key = "original_max_position_embeddings";
    // Where both say it, transformers takes the outer one.
    let outer = config.size(key, limit::POSITIONS)?;
    Ok(outer.or(keys.size(key, limit::POSITIONS)?))
}

/// The context that YaRN makes of the original one, where a configuration says what it was: who adds YaRN as
/// model cards of Qwen tell leaves `max_position_embeddings` as it is.
pub(super) fn stretched_context(config: &Keys) -> Result<Option<usize>> {
    // Families whose layers rotate differently say so under other keys.
    let Ok(keys) = flat(config) else { return Ok(None) };
    let kind = keys.string("rope_type")?.or(keys.string("type")?);
    let said = said_original(config, &keys)?.zip(keys.positive("factor")?);
    let longer = |(original, factor)| (original as f64 * factor) as usize;
    Ok(said.filter(|_| kind == Some("yarn")).map(longer).map(|it| it.min(limit::POSITIONS)))
}

/// The object that says how all layers rotate; empty where there is none.
fn flat<'a>(config: &Keys<'a>) -> Result<Keys<'a>> {
    static NOTHING: LazyLock<Map<String, Value>> = LazyLock::new(Map::new);
    let mut keys = Keys { path: config.path, prefix: "", map: &NOTHING, names: config.names };
    for (key, prefix) in OBJECTS {
        if let Some(map) = config.object(key)?.filter(|map| !map.is_empty()) {
            keys = Keys { prefix, map, ..keys };
        }
    }
    match keys.map.iter().find(|(_, value)| value.is_object()) {
        None => Ok(keys),
        Some((layer_type, _)) => Err(keys
            .refuse(layer_type, "rotary parameters that differ between layers are not supported")),
    }
}

fn scaling(config: &Keys, keys: &Keys, sizes: &Sizes) -> Result<RopeScaling> {
    let required = |key| {
        keys.positive(key)?.ok_or_else(|| keys.refuse(key, "this rope type needs a number here"))
    };
    let positions = sizes.max_position_embeddings;
    let original = || original(config, keys, sizes);
    let stretched = |original| positions as f64 / original as f64;
    let type_key = if keys.value("rope_type").is_some() { "rope_type" } else { "type" };
    Ok(match keys.string(type_key)? {
        // Of a text alone, all three of a token's positions are its place.
        None | Some("default" | "mrope") => RopeScaling::None,
        // It grows with a text that is longer than `max_position_embeddings`, which none is here.
        Some("dynamic") if keys.value("alpha").is_none() => RopeScaling::None,
        Some("linear") => RopeScaling::Linear { factor: required("factor")? },
        Some("llama3") => {
            let low_freq_factor = required("low_freq_factor")?;
            let high_freq_factor = required("high_freq_factor")?;
            if high_freq_factor <= low_freq_factor {
                return Err(keys.refuse(
                    "high_freq_factor",
                    format_args!("it must be above `low_freq_factor`, {low_freq_factor}"),
                ));
            }
            RopeScaling::Llama3 {
                factor: required("factor")?,
                low_freq_factor,
                high_freq_factor,
                original_max_position_embeddings: original()?,
            }
        }
        Some("proportional") => {
            let part = keys.positive("partial_rotary_factor")?.unwrap_or(1.0).min(1.0);
            let factor = keys.positive("factor")?.unwrap_or(1.0);
            RopeScaling::proportional(part, sizes.head_dim, factor)
        }
        Some("yarn") => {
            let original = original()?;
            let factor = keys.positive("factor")?.unwrap_or_else(|| stretched(original));
            let scale = |by| mscale(factor, by);
            let attention_factor = match (
                keys.positive("attention_factor")?,
                not_zero(keys, "mscale")?,
                not_zero(keys, "mscale_all_dim")?,
            ) {
                (Some(factor), ..) => factor,
                (None, Some(by), Some(all)) => scale(by) / scale(all),
                _ => scale(1.0),
            };
            RopeScaling::Yarn {
                factor,
                beta_fast: keys.positive("beta_fast")?.unwrap_or(32.0),
                beta_slow: keys.positive("beta_slow")?.unwrap_or(1.0),
                truncate: keys.boolean("truncate")?.unwrap_or(true),
                attention_factor,
                original_max_position_embeddings: original,
            }
        }
        Some("longrope" | "su") => {
            let original = original()?;
            let factor = keys.positive("factor")?.unwrap_or_else(|| stretched(original));
            let attention_factor = keys.positive("attention_factor")?.unwrap_or_else(|| {
                let more = factor.ln() / (original as f64).ln();
                if factor <= 1.0 { 1.0 } else { (1.0 + more).sqrt() }
            });
            let divisors = |key| {
                let divisors = keys.positives(key)?.unwrap_or_default();
                if divisors.is_empty() {
                    return Err(keys.refuse(key, "this rope type needs a list of numbers here"));
                }
                Ok(divisors.into_iter().map(|it| it as f32).collect::<Vec<_>>())
            };
            let (short_factor, long_factor) = (divisors("short_factor")?, divisors("long_factor")?);
            if short_factor.len() != long_factor.len() {
                return Err(keys.error(format!(
                    "`{0}short_factor` has {1} numbers and `{0}long_factor` {2}",
                    keys.prefix,
                    short_factor.len(),
                    long_factor.len()
                )));
            }
            RopeScaling::LongRope {
                short_factor,
                long_factor,
                attention_factor,
                original_max_position_embeddings: original,
            }
        }
        Some(_) => {
            return Err(keys.refuse(
                type_key,
                "supported are \"default\", \"linear\", \"llama3\", \"yarn\", \"longrope\" and \
                 \"proportional\"",
            ));
        }
    })
}
