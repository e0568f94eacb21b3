//! IREE's operations for what loop nests do not say (`iree_linalg_ext`).

use super::{Builder, ElementType, Value};

/// Scaled dot-product attention, as one dispatch. `maps` say which loops index an operand, as in
/// [`Generic`](super::Generic).
#[derive(Debug)]
pub struct Attention<'a> {
    /// The loops, outermost first; those that are neither in the queries nor in the result are
    /// reduced with a softmax.
    pub loops: &'a str,
    /// Queries, keys, values, and which keys a query sees (of [`ElementType::I1`]).
    pub inputs: [(&'a Value, &'a str); 4],
    /// The loops that index the result.
    pub result: &'a str,
    /// The type of its elements.
    pub element: ElementType,
    /// What scores are multiplied by, an MLIR literal.
    pub scale: &'a str,
    /// What they stay below then, as `cap * tanh(score / cap)`.
    pub cap: Option<f32>,
    /// Attributes, as MLIR writes them in braces; empty for the compiler's own tiles.
    pub attributes: &'a str,
}

/// Slices of the first dimension of a tensor, by their numbers.
#[derive(Debug)]
pub struct Gather<'a> {
    /// What slices are taken of.
    pub from: &'a Value,
    /// Which ones, i32, of any shape.
    pub indices: &'a Value,
    /// What the result is written to: the extents of the indices, then those of a slice.
    pub into: &'a Value,
}

/// Rows that are written to places of a tensor, each to one of its own.
#[derive(Debug)]
pub struct Scatter<'a> {
    /// `[rows, ..]`, of which a row is what two numbers choose of the tensor.
    pub new: &'a Value,
    /// `[rows, 2]` of i32.
    pub places: &'a Value,
    /// The tensor.
    pub into: &'a Value,
}

impl Builder {
    /// What a gather makes.
    pub fn gather(&mut self, gather: &Gather<'_>) -> Value {
        let Gather { from, indices, into } = gather;
        self.op(
            into.dims(),
            into.ty.element,
            format_args!(
                "iree_linalg_ext.gather dimension_map = [0] ins({}, {} : {}, {}) outs({} : {}) -> {}",
                from.name, indices.name, from.ty, indices.ty, into.name, into.ty, into.ty
            ),
        )
    }

    /// The tensor after a scatter.
    pub fn scatter(&mut self, scatter: &Scatter<'_>) -> Value {
        let Scatter { new, places, into } = scatter;
        let element = into.ty.element.as_str();
        self.op(
            into.dims(),
            into.ty.element,
            format_args!(
                "iree_linalg_ext.scatter dimension_map = [0, 1] unique_indices(true) ins({}, {} : {}, \
                 {}) outs({} : {}) {{
    ^bb0(%new: {element}, %old: {element}):
      iree_linalg_ext.yield %new : {element}
    }} -> {}",
                new.name, places.name, new.ty, places.ty, into.name, into.ty, into.ty
            ),
        )
    }

    /// The attention of `dims`.
    pub fn attention(&mut self, attention: &Attention<'_>, dims: &[usize]) -> Value {
        let into = self.empty_of(attention.element, dims, None);
        let scale = self.op(
            &[],
            ElementType::F32,
            format_args!("arith.constant {} : f32", attention.scale),
        );
        let [(q, qs), (k, ks), (v, vs), (seen, seens)] = attention.inputs;
        let maps: Vec<_> = [qs, ks, vs, "", seens, attention.result]
            .iter()
            .map(|map| format!("affine_map<({}) -> ({map})>", attention.loops))
            .collect();
        let attributes = match attention.attributes {
            "" => String::new(),
            attributes => format!(" {{{attributes}}}"),
        };
        let text = format!(
            "\"iree_linalg_ext.attention\"({}, {}, {}, {}, {}, {}) <{{indexing_maps = [{}], \
             operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 1>}}> ({{
    ^bb0(%score: f32):
      {}
    }}){attributes} : ({}, {}, {}, f32, {}, {}) -> {}",
            q.name,
            k.name,
            v.name,
            scale.name,
            seen.name,
            into.name,
            maps.join(", "),
            match attention.cap {
                None => "iree_linalg_ext.yield %score : f32".to_owned(),
                // Powers of the softmax are those of two: scores come here times the logarithm.
                Some(cap) => format!(
                    "%cap = arith.constant {} : f32
      %share = arith.divf %score, %cap : f32
      %bent = math.tanh %share : f32
      %capped = arith.mulf %bent, %cap : f32
      iree_linalg_ext.yield %capped : f32",
                    super::literal(cap * std::f32::consts::LOG2_E)
                ),
            },
            q.ty,
            k.ty,
            v.ty,
            seen.ty,
            into.ty,
            into.ty,
        );
        self.op(dims, attention.element, text)
    }
}
