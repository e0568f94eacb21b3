//! AWQ in the layout that AutoAWQ calls "gemm": integers of four bits with a scale and a zero for each
//! group of columns.
//!
//! `qweight` `[columns, rows / 8]` of i32, `qzeros` `[groups, rows / 8]` of i32, `scales`
//! `[groups, rows]`. A word has eight rows, in the order 0 2 4 6 1 3 5 7 from its lowest bits on. A value
//! is `scale * (q - zero)`.

use super::codes::{Codes, Order};
use super::encoded::{Encoded, Encoding, Offset, Scales, Values};
use super::gptq::group_size;
use super::parts::Parts;
use crate::Result;
use crate::keys::Keys;
use crate::tensor::RowOrder;

/// What `quantization_config` says.
#[derive(Debug, Clone)]
pub(crate) struct Awq {
    /// `None`: one for all columns.
    group: Option<usize>,
}

impl Awq {
    pub fn read(keys: &Keys) -> Result<Self> {
        let bits = if keys.value("bits").is_some() { "bits" } else { "w_bit" };
        if keys.size(bits, 32)?.is_some_and(|bits| bits != 4) {
            return Err(keys.refuse(bits, "supported is 4"));
        }
        if keys.string("version")?.is_some_and(|it| !it.eq_ignore_ascii_case("gemm")) {
            return Err(keys.refuse("version", "supported is \"gemm\""));
        }
        if keys.boolean("zero_point")? == Some(false) {
            return Err(keys.refuse("zero_point", "supported is true"));
        }
        Ok(Self { group: group_size(keys)? })
    }

    /// The matrix of `module`, if it is quantised.
    pub fn find(&self, parts: &Parts, module: &str, shape: [usize; 2]) -> Result<Option<Encoded>> {
        if !parts.has(module, "qweight") {
            return Ok(None);
        }
        let [rows, columns] = shape;
        let weight = parts.find(module, "qweight")?;
        let group = self.group.unwrap_or(columns);
        let groups = parts.groups(&weight, columns, group)?;
        if !rows.is_multiple_of(8) {
            let what = format!("belongs to a matrix of {rows} rows, which fill no words");
            return Err(parts.wrong(&weight, what));
        }
        let words = rows / 8;
        let weight = parts.of(module, "qweight", &["I32", "U32"], &[columns, words])?;
        let zeros = parts.of(module, "qzeros", &["I32", "U32"], &[groups, words])?;
        let (scales, dtype) = parts.floats(module, "scales", &[groups, rows])?;
        let codes = Codes { order: Order::EvenFirst, swapped: false, stride: words, bits: 4 };
        Ok(Some(Encoded {
            encoding: Encoding {
                method: "AWQ",
                kind: "int4".into(),
                scales: format!("groups of {group}"),
            },
            shape,
            rows: RowOrder::Stored,
            parts: vec![weight, scales, zeros],
            values: Values {
                codes: Codes { swapped: true, ..codes },
                scales: Scales { dtype: dtype.into(), rows: 1, strides: [1, rows] },
                offset: Offset::Zeros { part: 2, codes, add: 0.0 },
                group,
                order: None,
            },
        }))
    }
}
