//! GPTQ: integers with a scale and a zero for each group of columns, as AutoGPTQ and GPTQModel write
//! them.
//!
//! `qweight` `[columns * bits / 32, rows]` of i32, `qzeros` `[groups, rows * bits / 32]` of i32, `scales`
//! `[groups, rows]`, and `g_idx` `[columns]` with the group of each column, which act-order
//! (`desc_act`) mixes. A value is `scale * (q - zero)`; the first version of the format
//! (`checkpoint_format` "gptq") stores zeros less one.

use serde_json::Value;

use super::codes::{Codes, Order};
use super::encoded::{Encoded, Encoding, Offset, Scales, Values};
use super::parts::Parts;
use crate::Result;
use crate::keys::Keys;
use crate::tensor::RowOrder;

/// What `quantization_config` says.
#[derive(Debug, Clone)]
pub(crate) struct Gptq {
    bits: u32,
    /// `None`: one for all columns.
    group: Option<usize>,
    /// What stored zeros lack.
    add: f32,
}

impl Gptq {
    pub fn read(keys: &Keys) -> Result<Self> {
        let bits = match keys.size("bits", 32)? {
            Some(bits @ (2 | 4 | 8)) => bits as u32,
            _ => return Err(keys.refuse("bits", "supported are 2, 4 and 8")),
        };
        // Modules that "-:" names are plain, which is seen by their tensors; what is empty changes nothing.
        let own = |(module, value): (&String, &Value)| {
            !module.starts_with("-:") && value.as_object().is_none_or(|own| !own.is_empty())
        };
        if keys.object("dynamic")?.is_some_and(|map| map.iter().any(own)) {
            return Err(keys
                .refuse("dynamic", "modules with bits and groups of their own are not supported"));
        }
        let add = match keys.string("checkpoint_format")?.or(keys.string("format")?) {
            None | Some("gptq") => 1.0,
            Some("gptq_v2") => 0.0,
            Some(_) => {
                let key = if keys.value("checkpoint_format").is_some() {
                    "checkpoint_format"
                } else {
                    "format"
                };
                return Err(keys.refuse(key, "supported are \"gptq\" and \"gptq_v2\""));
            }
        };
        Ok(Self { bits, group: group_size(keys)?, add })
    }

    /// The matrix of `module`, if it is quantised.
    pub fn find(&self, parts: &Parts, module: &str, shape: [usize; 2]) -> Result<Option<Encoded>> {
        if !parts.has(module, "qweight") {
            return Ok(None);
        }
        let [rows, columns] = shape;
        let bits = self.bits as usize;
        let weight = parts.find(module, "qweight")?;
        let group = self.group.unwrap_or(columns);
        // The last group may be short.
        let groups = columns.div_ceil(group);
        for (size, what) in [(rows, "rows"), (columns, "columns")] {
            if !(size * bits).is_multiple_of(32) {
                let what = format!("belongs to a matrix of {size} {what}, which fill no words");
                return Err(parts.wrong(&weight, what));
            }
        }
        let weight = parts.of(module, "qweight", &["I32", "U32"], &[columns * bits / 32, rows])?;
        let words = rows * bits / 32;
        let zeros = parts.of(module, "qzeros", &["I32", "U32"], &[groups, words])?;
        let (scales, dtype) = parts.floats(module, "scales", &[groups, rows])?;
        let mut found = vec![weight, scales, zeros];
        let mut order = None;
        if parts.has(module, "g_idx") {
            found.push(parts.of(module, "g_idx", &["I32"], &[columns])?);
            order = Some(3);
        }
        Ok(Some(Encoded {
            encoding: Encoding {
                method: "GPTQ",
                kind: format!("int{bits}"),
                scales: format!("groups of {group}"),
            },
            shape,
            rows: RowOrder::Stored,
            parts: found,
            values: Values {
                codes: Codes { order: Order::Down, swapped: true, stride: rows, bits: self.bits },
                scales: Scales { dtype: dtype.into(), rows: 1, strides: [1, rows] },
                offset: Offset::Zeros {
                    part: 2,
                    codes: Codes::stream(self.bits, words * 4),
                    add: self.add,
                },
                group,
                order,
            },
        }))
    }
}

/// `group_size`, where -1 is one for all columns.
pub(super) fn group_size(keys: &Keys) -> Result<Option<usize>> {
    match keys.value("group_size") {
        None => Ok(Some(128)),
        Some(value) if value.as_i64() == Some(-1) => Ok(None),
        Some(_) => keys.size("group_size", 1 << 20),
    }
}
