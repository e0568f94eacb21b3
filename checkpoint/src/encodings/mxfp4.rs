//! MXFP4 as gpt-oss has its experts: floats of four bits, 32 of a row with a power of two.
//!
//! `blocks` `[rows, columns / 32, 16]` of U8, of which each byte has two neighbours, the first one in its
//! lower half; `scales` `[rows, columns / 32]` of U8, an exponent above -127. A value is
//! `2^(scale - 127) * float`.

use super::codes::Codes;
use super::encoded::{Encoded, Encoding, Offset, ScaleType, Scales, Values};
use super::parts::Parts;
use crate::Result;

/// Columns that share a scale.
const GROUP: usize = 32;

/// The matrix of `module`, if it is quantised.
pub(super) fn find(parts: &Parts, module: &str, shape: [usize; 2]) -> Result<Option<Encoded>> {
    if !parts.has(module, "blocks") {
        return Ok(None);
    }
    let [rows, columns] = shape;
    let blocks = parts.find(module, "blocks")?;
    let groups = parts.groups(&blocks, columns, GROUP)?;
    let blocks = parts.of(module, "blocks", &["U8"], &[rows, groups, GROUP / 2])?;
    let scales = parts.of(module, "scales", &["U8"], &[rows, groups])?;
    Ok(Some(Encoded {
        encoding: Encoding {
            method: "MXFP4",
            kind: "fp4 (E2M1)".into(),
            scales: format!("groups of {GROUP}"),
        },
        shape,
        rows: blocks.entry.rows,
        parts: vec![blocks, scales],
        values: Values {
            codes: Codes::stream(4, columns / 2),
            scales: Scales { dtype: ScaleType::E8m0, rows: 1, strides: [groups, 1] },
            offset: Offset::E2m1,
            group: GROUP,
            order: None,
        },
    }))
}
