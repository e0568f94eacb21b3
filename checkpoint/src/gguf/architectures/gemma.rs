//! Gemma's.

use serde_json::{Value as Json, json};

use super::super::keys::{Keys, NORMS_ARE_WHOLE};
use super::window_pattern;
use crate::families::limit;

pub(super) fn gemma1(keys: &mut Keys) -> Result<(), String> {
    keys.config.insert(NORMS_ARE_WHOLE.into(), json!(true));
    Ok(())
}

/// What scores are divided by the root of: the width of a head, but for the largest models, whose
/// number of layers llama.cpp knows them by.
///
/// Returns whether there is a window.
fn gemma(keys: &mut Keys, layers_of_27b: u64) -> bool {
    let number = |key: &str| keys.config.get(key).and_then(Json::as_u64);
    let per_head = match (number("hidden_size"), number("num_attention_heads")) {
        (Some(width), Some(heads)) => width.checked_div(heads),
        _ => None,
    };
    let width = match number("num_hidden_layers") {
        Some(layers) if layers == layers_of_27b => per_head,
        _ => number("head_dim"),
    };
    keys.put("query_pre_attn_scalar", "attention.key_length", width.map(Json::from));
    keys.config.insert(NORMS_ARE_WHOLE.into(), json!(true));
    keys.copy("final_logit_softcapping", "final_logit_softcapping");
    keys.copy_window()
}

pub(super) fn gemma2(keys: &mut Keys) -> Result<(), String> {
    gemma(keys, 46);
    keys.copy("attn_logit_softcapping", "attn_logit_softcapping");
    Ok(())
}

pub(super) fn gemma3(keys: &mut Keys) -> Result<(), String> {
    if gemma(keys, 62) {
        window_pattern(keys);
    } else {
        // The converter leaves the key out of a model that sees everything, which then has one rope: Rnj-1.
        let layers = keys.config["num_hidden_layers"].as_u64().and_then(|it| it.try_into().ok());
        let types = vec!["full_attention"; layers.unwrap_or(0).min(limit::LAYERS)];
        keys.put("layer_types", "attention.sliding_window", Some(json!(types)));
    }
    keys.copy("rope_local_base_freq", "rope.freq_base_swa");
    if keys.own("rope.freq_base").is_none() {
        keys.put("rope_theta", "rope.freq_base", Some(json!(1_000_000.0)));
    }
    Ok(())
}

/// EmbeddingGemma's.
pub(super) fn embedding(keys: &mut Keys) -> Result<(), String> {
    gemma3(keys)?;
    keys.config.insert("use_bidirectional_attention".into(), json!(true));
    Ok(())
}

/// What differs between layers is a list of all of them, or has two keys.
pub(super) fn gemma4(keys: &mut Keys) -> Result<(), String> {
    const PATTERN: &str = "attention.sliding_window_pattern";
    window_pattern(keys);
    let Some(Json::Array(sliding)) = keys.own(PATTERN) else {
        return Err("`gemma4.attention.sliding_window_pattern` is no list of layers".into());
    };
    let full = |layer: &usize| sliding[*layer] != Json::Bool(true);
    let layers = 0..sliding.len();
    let mut of_kinds = |ours: [&str; 2], theirs: &str| {
        let Some(Json::Array(own)) = keys.own(theirs) else { return Ok(()) };
        for (ours, kind) in ours.into_iter().zip([false, true]) {
            let mut of = layers.clone().filter(|it| full(it) == kind).map(|it| own.get(it));
            let first = of.next().flatten();
            if of.any(|it| it != first) {
                return Err(format!("`gemma4.{theirs}` differs between layers of one kind"));
            }
            keys.put(ours, theirs, first.cloned());
        }
        Ok(())
    };
    let heads = ["num_key_value_heads", "num_global_key_value_heads"];
    of_kinds(heads, "attention.head_count_kv")?;

    keys.required("sliding_window", "attention.sliding_window")?;
    keys.required("global_head_dim", "attention.key_length")?;
    keys.required("head_dim", "attention.key_length_swa")?;
    keys.required("hidden_size_per_layer_input", "embedding_length_per_layer_input")?;
    keys.copy("num_kv_shared_layers", "attention.shared_kv_layers");
    keys.copy("final_logit_softcapping", "final_logit_softcapping");

    // Layers that share keys may have MLPs that are twice as wide.
    const WIDTH: &str = "feed_forward_length";
    if let Some(Json::Array(widths)) = keys.own(WIDTH) {
        let width = widths.first().and_then(Json::as_u64).unwrap_or(0);
        let shared = keys.config.get("num_kv_shared_layers").and_then(Json::as_u64).unwrap_or(0);
        let wide = widths.last().is_some_and(|last| *last != width);
        let first = widths.len().saturating_sub(shared as usize);
        let expected =
            |layer: usize| if wide && layer >= first { width.saturating_mul(2) } else { width };
        if widths.iter().enumerate().any(|(layer, own)| *own != expected(layer)) {
            return Err(format!(
                "`gemma4.{WIDTH}` differs otherwise than by layers that share keys, twice as wide"
            ));
        }
        keys.put("intermediate_size", WIDTH, Some(json!(width)));
        keys.put("use_double_wide_mlp", WIDTH, Some(json!(wide)));
    }

    let has = |keys: &Keys, layer: usize, part: &str| {
        keys.has(&format!("model.layers.{layer}.self_attn.{part}.weight"))
    };
    let first = layers.clone().find(|it| full(it));
    let as_values = first.is_some_and(|it| has(keys, it, "k_proj") && !has(keys, it, "v_proj"));
    keys.config.insert("attention_k_eq_v".into(), json!(as_values));
    let rows = keys.rows("model.embed_tokens_per_layer.weight");
    keys.put(
        "vocab_size_per_layer_input",
        "embedding_length_per_layer_input",
        rows.map(Json::from),
    );

    // Divisors of the frequencies of layers without a window: those that do not turn have one without end.
    const FACTORS: &str = "rope_freqs.weight";
    let factors = keys
        .vector(FACTORS)?
        .ok_or("tensor `rope_freqs.weight` is missing: the file is damaged")?;
    let turning = factors.iter().take_while(|it| **it == 1.0).count();
    if factors[turning..].iter().any(|it| *it < 1e20) {
        return Err(format!(
            "tensor `{FACTORS}` has other divisors than 1 and, behind these, 1e30"
        ));
    }
    let theta = keys.own("rope.freq_base").unwrap_or(json!(1_000_000.0));
    let of_windows = keys.own("rope.freq_base_swa").unwrap_or(json!(10_000.0));
    let ropes = json!({
        "full_attention": {
            "rope_type": "proportional",
            "rope_theta": theta,
            "partial_rotary_factor": turning as f64 / factors.len() as f64,
        },
        "sliding_attention": {"rope_type": "default", "rope_theta": of_windows},
    });
    keys.config.remove("rope_theta");
    keys.config.insert("rope_parameters".into(), ropes);
    Ok(())
}
