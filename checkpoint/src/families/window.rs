//! Windows of attention, by layer.

use crate::Result;
use crate::keys::Keys;

/// What `layer_types` says of each layer: `window` where it slides, `None` where it sees everything.
/// `None` where there is no such key.
pub(super) fn layer_types(
    config: &Keys,
    layers: usize,
    window: Option<usize>,
) -> Result<Option<Vec<Option<usize>>>> {
    let Some(types) = config.strings("layer_types")? else { return Ok(None) };
    if types.len() != layers {
        return Err(config.error(format!(
            "`layer_types` has {} entries for {layers} layers (`num_hidden_layers`)",
            types.len()
        )));
    }
    let of = |layer_type: &str| match layer_type {
        "full_attention" => Ok(None),
        "sliding_attention" if window.is_some() => Ok(window),
        "sliding_attention" => Err(config.refuse(
            "layer_types",
            "\"sliding_attention\" needs `sliding_window` (and, for Qwen, `use_sliding_window`)",
        )),
        _ => Err(config
            .refuse("layer_types", "supported are \"full_attention\" and \"sliding_attention\"")),
    };
    types.into_iter().map(of).collect::<Result<_>>().map(Some)
}
