//! Windows of attention, by layer.

use super::Sizes;
use crate::Result;
use crate::keys::Keys;

/// Whether each layer has a window, as `layer_types` says; `None` where there is no such key.
pub(super) fn sliding_layers(config: &Keys, layers: usize) -> Result<Option<Vec<bool>>> {
    let Some(types) = config.strings("layer_types")? else { return Ok(None) };
    if types.len() != layers {
        return Err(config.error(format!(
            "`layer_types` has {} entries for {layers} layers (`num_hidden_layers`)",
            types.len()
        )));
    }
    let of = |layer_type: &str| match layer_type {
        "full_attention" => Ok(false),
        "sliding_attention" => Ok(true),
        _ => Err(config
            .refuse("layer_types", "supported are \"full_attention\" and \"sliding_attention\"")),
    };
    types.into_iter().map(of).collect::<Result<_>>().map(Some)
}

/// What `layer_types` says of each layer: `window` where it slides, `None` where it sees everything.
/// `None` where there is no such key.
pub(super) fn layer_types(
    config: &Keys,
    layers: usize,
    window: Option<usize>,
) -> Result<Option<Vec<Option<usize>>>> {
    let Some(sliding) = sliding_layers(config, layers)? else { return Ok(None) };
    if sliding.contains(&true) && window.is_none() {
        return Err(config.refuse(
            "layer_types",
            "\"sliding_attention\" needs `sliding_window` (and, for Qwen, `use_sliding_window`)",
        ));
    }
    Ok(Some(sliding.into_iter().map(|sliding| window.filter(|_| sliding)).collect()))
}

/// The window of each layer, where some have one: those that `layer_types` says, else those from `max_window_layers` on,
/// which is `default` where the key is absent.
pub(super) fn last_layers(
    config: &Keys,
    sizes: &Sizes,
    enabled: bool,
    default: usize,
) -> Result<Vec<Option<usize>>> {
    let window = match config.size("sliding_window", usize::MAX)? {
        _ if !enabled => None,
        // An explicit null is none.
        None if config.map.contains_key("sliding_window") => None,
        window => Some(window.unwrap_or(4096)),
    };
    let first = config.count("max_window_layers", usize::MAX)?.unwrap_or(default);
    let windows = match layer_types(config, sizes.layers, window)? {
        Some(windows) => windows,
        None => (0..sizes.layers).map(|layer| window.filter(|_| layer >= first)).collect(),
    };
    Ok(windows.into_iter().map(|window| sizes.window(window)).collect())
}

/// Which layers have a window: those that `layer_types` says, else those that `default` does; and that
/// window, which is `default_window` where the key is absent.
pub(super) fn alternating(
    config: &Keys,
    sizes: &Sizes,
    default_window: usize,
    default: impl Fn(usize) -> bool,
) -> Result<(Vec<bool>, Option<usize>)> {
    let sliding = match sliding_layers(config, sizes.layers)? {
        Some(sliding) => sliding,
        None => (0..sizes.layers).map(default).collect(),
    };
    let window = match config.size("sliding_window", usize::MAX)? {
        // An explicit null is none.
        None if config.map.contains_key("sliding_window") => None,
        window => Some(window.unwrap_or(default_window)),
    };
    Ok((sliding, sizes.window(window)))
}
