//! FP8 as DeepSeek V3 and Qwen3 have it: floats of eight bits with a scale for each block of rows and
//! columns.
//!
//! `weight` `[rows, columns]` of F8_E4M3, `weight_scale_inv` `[rows / 128, columns / 128]`, rounded up,
//! where `weight_block_size` is `[128, 128]`, one where it is null; or `weight_scale`, one or one for each
//! row. A value is `scale * q`.

use super::codes::{Codes, Order};
use super::compressed_tensors::scales;
use super::encoded::{Encoded, Encoding, Offset, Scales, Values};
use super::parts::Parts;
use crate::Result;
use crate::keys::Keys;
use crate::tensor::RowOrder;

/// What `quantization_config` says.
#[derive(Debug, Clone)]
pub(crate) struct Fp8 {
    block: Option<[usize; 2]>,
}

impl Fp8 {
    pub fn read(keys: &Keys) -> Result<Self> {
        if keys.string("fmt")?.is_some_and(|it| !["e4m3", "float8_e4m3fn"].contains(&it)) {
            return Err(keys.refuse("fmt", "supported is \"e4m3\""));
        }
        Ok(Self { block: block(keys, "weight_block_size")? })
    }

    /// The matrix of `module`, if it is quantised.
    pub fn find(&self, parts: &Parts, module: &str, shape: [usize; 2]) -> Result<Option<Encoded>> {
        let in_blocks = parts.has(module, "weight_scale_inv");
        if !in_blocks && !parts.has(module, "weight_scale") {
            return Ok(None);
        }
        let [rows, columns] = shape;
        let weight = parts.of(module, "weight", &["F8_E4M3"], &shape)?;
        let (scale, scales, group, text) = match (in_blocks, self.block) {
            (true, Some([high, wide])) => {
                let blocks = [rows.div_ceil(high), columns.div_ceil(wide)];
                let (scale, dtype) = parts.floats(module, "weight_scale_inv", &blocks)?;
                let scales = Scales { dtype: dtype.into(), rows: high, strides: [blocks[1], 1] };
                (scale, scales, wide, format!("blocks of {high} x {wide}"))
            }
            (true, None) => {
                let scale = parts.find(module, "weight_scale_inv")?;
                if scale.entry.shape.iter().product::<usize>() != 1 {
                    let what = "needs `weight_block_size` in `quantization_config` of config.json, \
                                which is not there";
                    return Err(parts.wrong(&scale, what.into()));
                }
                // Ministral 3's.
                scales(parts, module, "weight_scale_inv", shape, None)?
            }
            (false, _) => scales(parts, module, "weight_scale", shape, None)?,
        };
        Ok(Some(Encoded {
            encoding: Encoding { method: "FP8", kind: "fp8 (E4M3)".into(), scales: text },
            shape,
            rows: RowOrder::Stored,
            parts: vec![weight, scale],
            values: Values {
                codes: Codes::bytes(Order::E4m3, columns),
                scales,
                offset: Offset::Middle(0.0),
                group,
                order: None,
            },
        }))
    }
}

/// Rows and columns of a block: a list of two sizes.
pub(super) fn block(keys: &Keys, key: &str) -> Result<Option<[usize; 2]>> {
    let Some(value) = keys.value(key) else { return Ok(None) };
    let size = |value: &serde_json::Value| {
        value.as_u64().and_then(|n| usize::try_from(n).ok()).filter(|n| (1..=1 << 20).contains(n))
    };
    let sizes: Option<Vec<_>> = value.as_array().and_then(|it| it.iter().map(size).collect());
    match sizes.as_deref() {
        Some(&[high, wide]) => Ok(Some([high, wide])),
        _ => Err(keys.refuse(key, "expected rows and columns of a block")),
    }
}
