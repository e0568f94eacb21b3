//! MLX: integers of 2 to 8 bits with a scale and a bias for each group of columns, or MXFP4.
//!
//! `weight` `[rows, words]` of u32, `scales` and `biases` `[rows, groups]`; a value is
//! `scale * q + bias`. In mode "mxfp4" there are no `biases`, and `scales` are bytes, an exponent above -127 each.
//! Embeddings may be quantised too. `config.json` has a key `quantization` with `bits`, `group_size`, `mode`, and the
//! paths of modules that have others, or none (`false`).

use serde_json::Value;

use super::codes::Codes;
use super::encoded::{Encoded, Encoding, Offset, ScaleType, Scales, Values};
use super::parts::Parts;
use super::stacked::of_all_experts;
use crate::Result;
use crate::keys::Keys;
use crate::names::of_text_model;
use crate::tensor::RowOrder;

/// What `quantization` says.
#[derive(Debug, Clone)]
pub(crate) struct Mlx {
    /// Of modules without an own entry.
    default: Sizes,
    modules: Vec<(String, Sizes)>,
}

#[derive(Debug, Clone, Copy)]
struct Sizes {
    bits: u32,
    group: usize,
    /// Whether numbers are floats with powers of two.
    mxfp4: bool,
}

impl Mlx {
    pub fn read(keys: &Keys) -> Result<Self> {
        let default = sizes(keys, None)?;
        let mut modules = Vec::new();
        for (module, value) in keys.map {
            let Value::Object(map) = value else { continue };
            let prefix = format!("{}{module}.", keys.prefix);
            let own = Keys { path: keys.path, prefix: &prefix, map, names: None };
            let module = of_all_experts(&of_text_model(module));
            modules.push((module, sizes(&own, Some(default))?));
        }
        Ok(Self { default, modules })
    }

    /// The matrix of `module`, if it is quantised.
    pub fn find(&self, parts: &Parts, module: &str, shape: [usize; 2]) -> Result<Option<Encoded>> {
        if !parts.has(module, "scales") {
            return Ok(None);
        }
        let together = of_all_experts(module);
        let own = self.modules.iter().find(|(name, _)| *name == together);
        let Sizes { bits, group, mxfp4 } = own.map_or(self.default, |(_, own)| *own);
        let [rows, columns] = shape;
        let weight = parts.find(module, "weight")?;
        let groups = parts.groups(&weight, columns, group)?;
        // Groups are whole words.
        let words = columns / 32 * bits as usize;
        let weight = parts.of(module, "weight", &["U32"], &[rows, words])?;
        let codes = Codes::stream(bits, words * 4);
        let scale_text = format!("groups of {group}");
        if mxfp4 {
            let scales = parts.of(module, "scales", &["U8"], &[rows, groups])?;
            let kind = "fp4 (E2M1)".into();
            return Ok(Some(Encoded {
                encoding: Encoding { method: "MLX", kind, scales: scale_text },
                shape,
                rows: RowOrder::Stored,
                parts: vec![weight, scales],
                values: Values {
                    codes,
                    scales: Scales { dtype: ScaleType::E8m0, rows: 1, strides: [groups, 1] },
                    offset: Offset::E2m1,
                    group,
                    order: None,
                },
            }));
        }
        let (scales, dtype) = parts.floats(module, "scales", &[rows, groups])?;
        let (biases, other) = parts.floats(module, "biases", &[rows, groups])?;
        if other != dtype {
            let what = format!("has another element type than `{}`", scales.name);
            return Err(parts.wrong(&biases, what));
        }
        Ok(Some(Encoded {
            encoding: Encoding { method: "MLX", kind: format!("int{bits}"), scales: scale_text },
            shape,
            rows: RowOrder::Stored,
            parts: vec![weight, scales, biases],
            values: Values {
                codes,
                scales: Scales::by_row(dtype, groups),
                offset: Offset::Minima { part: 2 },
                group,
                order: None,
            },
        }))
    }
}

/// What `keys` say of a module; what they do not say is as `default`.
fn sizes(keys: &Keys, default: Option<Sizes>) -> Result<Sizes> {
    let mxfp4 = match keys.string("mode")? {
        None | Some("affine") => false,
        Some("mxfp4") => true,
        Some(_) => {
            return Err(keys.refuse("mode", "supported are \"affine\" and \"mxfp4\""));
        }
    };
    let bits = keys.size("bits", 32)?.or(default.map(|it| it.bits as usize)).unwrap_or(4);
    if ![2, 3, 4, 5, 6, 8].contains(&bits) {
        return Err(keys.refuse("bits", "supported are 2, 3, 4, 5, 6 and 8"));
    }
    let group = keys.size("group_size", 1 << 20)?.or(default.map(|it| it.group)).unwrap_or(64);
    if !group.is_multiple_of(32) {
        return Err(keys.refuse("group_size", "supported are 32, 64 and 128"));
    }
    if mxfp4 && (bits, group) != (4, 32) {
        let must = "of these, supported are 4 `bits` with a `group_size` of 32";
        return Err(keys.refuse("mode", must));
    }
    Ok(Sizes { bits: bits as u32, group, mxfp4 })
}
