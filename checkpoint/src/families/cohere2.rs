//! Command R7B and Command A (`modeling_cohere2.py`): Command R where three of four layers have a window, and the
//! fourth does not rotate.

use super::cohere::decoder;
use super::window::alternating;
use super::{Defaults, Family, Sizes, limit};
use crate::Result;
use crate::architecture::{Architecture, Attention};
use crate::keys::Keys;

pub(super) static FAMILY: Family = Family {
    model_type: "cohere2",
    class: "Cohere2ForCausalLM",
    // `configuration_cohere2.py` in transformers 5.
    defaults: Defaults { rope_theta: 10_000.0, ..super::cohere::FAMILY.defaults },
    architecture,
};

fn architecture(keys: &Keys, sizes: &Sizes) -> Result<Architecture> {
    let pattern = keys.size("sliding_window_pattern", limit::LAYERS)?.unwrap_or(4);
    let (sliding, window) =
        alternating(keys, sizes, 4096, |layer| !(layer + 1).is_multiple_of(pattern))?;
    decoder(keys, sizes, |_, attention, index| Attention {
        ropes: attention.ropes.filter(|_| sliding[index]),
        window: window.filter(|_| sliding[index]),
        ..attention
    })
}
