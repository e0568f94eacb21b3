//! bitsandbytes: four bits that name one of sixteen floats, NF4 or FP4, or integers of eight bits.
//!
//! Four bits: `weight` `[rows * columns / 2, 1]` of U8, the matrix row by row, of each byte the upper half
//! first; `weight.quant_map` `[16]` of F32, what they name; `weight.absmax`, one scale for each block of
//! (usually) 64 weights: F32, or U8, whose values are `weight.nested_quant_map` `[256]` times one of
//! `weight.nested_absmax` for each 256 of them, plus an offset. Sizes, that offset and the type that values are
//! rounded to are JSON in the bytes of `weight.quant_state.bitsandbytes__nf4` (`…__fp4`). A value is
//! `scale * float`, rounded.
//!
//! Eight bits: `weight` `[rows, columns]` of I8, `SCB` `[rows]` of F32; a value is `scale * q / 127`, the
//! last a product with the f32 next to 1 / 127. That the largest activations are multiplied in another way
//! (`llm_int8_threshold`) is not applied.

use serde::Deserialize;

use super::codes::{Codes, Order};
use super::encoded::{Encoded, Encoding, Offset, Part, ScaleType, Scales, Values};
use super::parts::Parts;
use crate::Result;
use crate::tensor::RowOrder;

/// What the library divides eight bits by.
const PART_OF_127: f32 = 7.874_016e-3;

/// What is said of a matrix of four bits.
#[derive(Deserialize)]
struct State {
    blocksize: usize,
    dtype: String,
    nested_blocksize: Option<usize>,
    nested_offset: Option<f32>,
}

/// The matrix of `module`, if it is quantised.
pub(super) fn find(parts: &Parts, module: &str, shape: [usize; 2]) -> Result<Option<Encoded>> {
    if parts.has(module, "SCB") {
        return eight_bits(parts, module, shape).map(Some);
    }
    let of_kind = |kind: &str| format!("weight.quant_state.bitsandbytes__{kind}");
    match ["nf4", "fp4"].into_iter().find(|kind| parts.has(module, &of_kind(kind))) {
        Some(kind) => {
            let state = parts.find(module, &of_kind(kind))?;
            four_bits(parts, module, shape, kind, state).map(Some)
        }
        None => Ok(None),
    }
}

fn four_bits(
    parts: &Parts,
    module: &str,
    [rows, columns]: [usize; 2],
    kind: &str,
    state: Part,
) -> Result<Encoded> {
    let said: State = serde_json::from_slice(&parts.bytes(&state)?)
        .map_err(|e| parts.wrong(&state, format!("is not what bitsandbytes writes: {e}")))?;
    let rounded = match said.dtype.as_str() {
        "bfloat16" => ScaleType::BF16,
        "float16" => ScaleType::F16,
        "float32" => ScaleType::F32,
        other => {
            let what = format!("names {other:?}: expected bfloat16, float16 or float32");
            return Err(parts.wrong(&state, what));
        }
    };
    let across = said.blocksize > 0 && (rows * columns).is_multiple_of(said.blocksize);
    if across && !columns.is_multiple_of(said.blocksize) {
        let what = format!("is of blocks of {}, which run across rows: not read", said.blocksize);
        return Err(parts.wrong(&state, what));
    }
    let groups = parts.groups(&state, columns, said.blocksize)?;
    let weight = parts.find(module, "weight")?;
    if columns % 2 == 1 {
        return Err(parts.wrong(&weight, "has rows of an odd number of columns".into()));
    }
    let weight = parts.of(module, "weight", &["U8"], &[rows * columns / 2, 1])?;
    let blocks = rows * groups;
    let absmax = parts.of(module, "weight.absmax", &["U8", "F32"], &[blocks])?;
    let table = parts.of(module, "weight.quant_map", &["F32"], &[16])?;
    let nested = absmax.entry.dtype_name == "U8";
    let mut found = vec![weight, absmax, table, state];
    let mut dtype = ScaleType::F32;
    if nested {
        let (Some(together @ 1..), Some(add)) = (said.nested_blocksize, said.nested_offset) else {
            let what =
                "lacks `nested_blocksize` or `nested_offset`, which scales in eight bits need";
            return Err(parts.wrong(&found[3], what.into()));
        };
        let factors = [blocks.div_ceil(together)];
        found.push(parts.of(module, "weight.nested_quant_map", &["F32"], &[256])?);
        found.push(parts.of(module, "weight.nested_absmax", &["F32"], &factors)?);
        dtype = ScaleType::Nested { table: 4, factors: 5, together, add };
    }
    let scales = if nested { ", scales in eight bits" } else { "" };
    Ok(Encoded {
        encoding: Encoding {
            method: "bitsandbytes",
            kind: kind.into(),
            scales: format!("groups of {}{scales}", said.blocksize),
        },
        shape: [rows, columns],
        rows: RowOrder::Stored,
        parts: found,
        values: Values {
            codes: Codes { order: Order::HighFirst, swapped: false, stride: columns / 2, bits: 4 },
            scales: Scales { dtype, rows: 1, strides: [groups, 1] },
            offset: Offset::Table { part: 2, rounded },
            group: said.blocksize,
            order: None,
        },
    })
}

fn eight_bits(parts: &Parts, module: &str, [rows, columns]: [usize; 2]) -> Result<Encoded> {
    let weight = parts.of(module, "weight", &["I8"], &[rows, columns])?;
    let scales = parts.of(module, "SCB", &["F32"], &[rows])?;
    let mut found = vec![weight, scales];
    // How GPUs of old had the integers; in files they are always row by row.
    if parts.has(module, "weight_format") {
        let format = parts.find(module, "weight_format")?;
        if parts.bytes(&format)?.iter().any(|byte| *byte != 0) {
            return Err(parts.wrong(&format, "is not 0 (rows): save the model again".into()));
        }
        found.push(format);
    }
    Ok(Encoded {
        encoding: Encoding {
            method: "bitsandbytes",
            kind: "int8".into(),
            scales: "a scale for each row".into(),
        },
        shape: [rows, columns],
        rows: RowOrder::Stored,
        parts: found,
        values: Values {
            codes: Codes::bytes(Order::Signed, columns),
            scales: Scales { dtype: ScaleType::F32, rows: 1, strides: [1, 1] },
            offset: Offset::Factor(PART_OF_127),
            group: columns,
            order: None,
        },
    })
}
