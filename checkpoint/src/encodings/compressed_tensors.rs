//! compressed-tensors, the format of llm-compressor and vLLM: integers of four and eight bits, and floats
//! of eight, with scales for a tensor, a row, a group of columns, or a block.
//!
//! - "pack-quantized": `weight_packed` `[rows, words]` of i32, less their middle; `weight_shape`;
//! - "int-quantized", "float-quantized", "naive-quantized": `weight` of i8 or F8_E4M3;
//!
//! beside them `weight_scale`, for asymmetric ones `weight_zero_point`, and `weight_g_idx` with the group
//! of each column where act-order mixed them. A value is `scale * (q - zero)`. Which modules are quantised
//! is read from the tensors that are there, so that `targets` and `ignore` of the configuration need no
//! look.

use super::codes::{Codes, Order};
use super::encoded::{Encoded, Encoding, Offset, Part, Scales, Values};
use super::fp8;
use super::parts::Parts;
use crate::Result;
use crate::keys::{Keys, shown};
use crate::tensor::RowOrder;

/// Formats of weights that are read here.
const FORMATS: [&str; 5] =
    ["pack-quantized", "int-quantized", "float-quantized", "naive-quantized", "dense"];

/// What `quantization_config` says.
#[derive(Debug, Clone)]
pub(crate) struct CompressedTensors {
    /// Rows and columns of a block of floats that share a scale, where that is the strategy.
    block: Option<[usize; 2]>,
    /// Bits of packed integers, of the groups of modules that have any.
    bits: Vec<u32>,
}

impl CompressedTensors {
    pub fn read(keys: &Keys) -> Result<Self> {
        let mut read = Self { block: None, bits: Vec::new() };
        // Of groups, one by one, where they differ.
        if keys.string("format")? != Some("mixed-precision") {
            format(keys)?;
        }
        for key in ["transform_config", "sparsity_config"] {
            let Some(map) = keys.object(key)?.filter(|map| !map.is_empty()) else { continue };
            if map.get("format").is_none_or(|format| format != "dense") {
                return Err(keys
                    .refuse(key, "weights that are also transformed or sparse are not supported"));
            }
        }
        for (name, group) in keys.object("config_groups")?.into_iter().flatten() {
            let prefix = format!("{}config_groups.{name}.", keys.prefix);
            let Some(map) = group.as_object() else {
                return Err(
                    keys.error(format!("`{prefix}` is {}: expected an object", shown(group)))
                );
            };
            let group = Keys { path: keys.path, prefix: &prefix, map, names: None };
            format(&group)?;
            let Some(map) = group.object("weights")? else { continue };
            let prefix = format!("{prefix}weights.");
            let weights = Keys { path: keys.path, prefix: &prefix, map, names: None };
            let bits = weights.size("num_bits", 32)?.unwrap_or(8);
            match (weights.string("type")?.unwrap_or("int"), bits) {
                ("int", 2 | 4 | 8) => read.bits.push(bits as u32),
                ("float", 8) => {}
                ("int", _) => return Err(weights.refuse("num_bits", "supported are 2, 4 and 8")),
                ("float", _) => return Err(weights.refuse("num_bits", "supported is 8 for floats")),
                _ => return Err(weights.refuse("type", "supported are \"int\" and \"float\"")),
            }
            if let Some(block) = fp8::block(&weights, "block_structure")? {
                if read.block.is_some_and(|other| other != block) {
                    return Err(weights.refuse("block_structure", "another group has another one"));
                }
                read.block = Some(block);
            }
        }
        read.bits.sort_unstable();
        read.bits.dedup();
        Ok(read)
    }

    /// The matrix of `module`, if it is quantised.
    pub fn find(&self, parts: &Parts, module: &str, shape: [usize; 2]) -> Result<Option<Encoded>> {
        if !parts.has(module, "weight_packed") && !parts.has(module, "weight_scale") {
            return Ok(None);
        }
        let [rows, columns] = shape;
        let (weight, codes, kind) = self.codes(parts, module, shape)?;
        let is_float = codes.order == Order::E4m3;
        let (scale, scales, group, text) =
            scales(parts, module, "weight_scale", shape, self.block)?;
        let mut found = vec![weight, scale];
        let groups = columns.div_ceil(group);
        let mut offset = Offset::Middle(match codes.order {
            Order::Stream => (1u32 << (codes.bits - 1)) as f32,
            _ => 0.0,
        });
        if parts.has(module, "weight_zero_point") && !is_float {
            let (zeros, codes) = match codes.order {
                Order::Stream => {
                    let words = (rows * codes.bits as usize).div_ceil(32);
                    let zeros =
                        parts.of(module, "weight_zero_point", &["I32"], &[words, groups])?;
                    let (order, bits) = (Order::Down, codes.bits);
                    (zeros, Codes { order, swapped: true, stride: groups, bits })
                }
                _ => {
                    let zeros = parts.of(module, "weight_zero_point", &["I8"], &[rows, groups])?;
                    (zeros, Codes { swapped: true, ..Codes::bytes(Order::Signed, groups) })
                }
            };
            if scales.strides[0] == 0 || scales.rows > 1 {
                let what = "belongs to rows that share a scale, which is not supported".into();
                return Err(parts.wrong(&zeros, what));
            }
            offset = Offset::Zeros { part: found.len(), codes, add: 0.0 };
            found.push(zeros);
        }
        let mut order = None;
        if parts.has(module, "weight_g_idx") {
            order = Some(found.len());
            found.push(parts.of(module, "weight_g_idx", &["I32"], &[columns])?);
        }
        let encoding = Encoding { method: "compressed-tensors", kind, scales: text };
        let values = Values { codes, scales, offset, group, order };
        Ok(Some(Encoded { encoding, shape, rows: RowOrder::Stored, parts: found, values }))
    }

    /// The tensor of a matrix' numbers, how they lie, and what they are.
    fn codes(
        &self,
        parts: &Parts,
        module: &str,
        shape: [usize; 2],
    ) -> Result<(Part, Codes, String)> {
        let [rows, columns] = shape;
        if !parts.has(module, "weight_packed") {
            return match parts.find(module, "weight")?.entry.dtype_name.as_str() {
                "I8" => {
                    let weight = parts.of(module, "weight", &["I8"], &shape)?;
                    Ok((weight, Codes::bytes(Order::Signed, columns), "int8".into()))
                }
                _ => {
                    let weight = parts.of(module, "weight", &["F8_E4M3", "I8"], &shape)?;
                    Ok((weight, Codes::bytes(Order::E4m3, columns), "fp8 (E4M3)".into()))
                }
            };
        }
        // The file says of how many bits they are: one of those that the configuration has.
        let packed = parts.find(module, "weight_packed")?;
        let words = |bits: u32| columns.div_ceil(32 / bits as usize);
        let fits = |bits: &&u32| packed.entry.shape == [rows, words(**bits)];
        let default = self.bits.first().copied().unwrap_or(4);
        let bits = self.bits.iter().find(fits).copied().unwrap_or(default);
        let packed = parts.of(module, "weight_packed", &["I32"], &[rows, words(bits)])?;
        Ok((packed, Codes::stream(bits, words(bits) * 4), format!("int{bits}")))
    }
}

/// `format`, if it is there and supported.
fn format(keys: &Keys) -> Result<()> {
    match keys.string("format")? {
        Some(format) if !FORMATS.contains(&format) => {
            Err(keys.refuse("format", format_args!("supported are {}", FORMATS.join(", "))))
        }
        _ => Ok(()),
    }
}

/// The scales `name` of `module`: the tensor, how it lies, how many columns share a scale, and that in words.
pub(super) fn scales(
    parts: &Parts,
    module: &str,
    name: &str,
    [rows, columns]: [usize; 2],
    block: Option<[usize; 2]>,
) -> Result<(Part, Scales, usize, String)> {
    let part = parts.find(module, name)?;
    let shape = part.entry.shape.clone();
    let (part, dtype) = parts.floats(module, name, &shape)?;
    if let Some([high, wide]) = block
        && shape == [rows.div_ceil(high), columns.div_ceil(wide)]
    {
        let scales =
            Scales { dtype: dtype.into(), rows: high, strides: [columns.div_ceil(wide), 1] };
        return Ok((part, scales, wide, format!("blocks of {high} x {wide}")));
    }
    match shape[..] {
        [] | [1] | [1, 1] => {
            let scales = Scales { dtype: dtype.into(), rows: 1, strides: [0, 0] };
            Ok((part, scales, columns, "one scale".into()))
        }
        [n] | [n, 1] if n == rows => {
            Ok((part, Scales::by_row(dtype, 1), columns, "a scale for each row".into()))
        }
        [n, groups] if n == rows && groups > 0 && columns.is_multiple_of(groups) => {
            let group = columns / groups;
            Ok((part, Scales::by_row(dtype, groups), group, format!("groups of {group}")))
        }
        _ => Err(parts.misshapen(&part, &[rows, 1])),
    }
}
