//! IREE's operations for what loop nests do not say (`iree_linalg_ext`).

use super::{Builder, ElementType, Value};

/// Scaled dot-product attention, as one dispatch. `maps` say which loops index an operand, as in
/// [`Generic`](super::Generic).
pub struct Attention<'a> {
    /// The loops, outermost first; those that are neither in the queries nor in the result are
    /// reduced with a softmax.
    pub loops: &'a str,
    /// Queries, keys, values, and which keys a query sees (of [`ElementType::I1`]).
    pub inputs: [(&'a Value, &'a str); 4],
    /// The loops that index the result.
    pub result: &'a str,
    /// What scores are multiplied by, an MLIR literal.
    pub scale: &'a str,
    /// Attributes, as MLIR writes them in braces; empty for the compiler's own tiles.
    pub attributes: &'a str,
}

impl Builder {
    /// The attention of `dims`.
    pub fn attention(&mut self, attention: &Attention<'_>, dims: &[usize]) -> Value {
        let into = self.empty(dims, None);
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
      iree_linalg_ext.yield %score : f32
    }}){attributes} : ({}, {}, {}, f32, {}, {}) -> {}",
            q.name,
            k.name,
            v.name,
            scale.name,
            seen.name,
            into.name,
            maps.join(", "),
            q.ty,
            k.ty,
            v.ty,
            seen.ty,
            into.ty,
            into.ty,
        );
        self.op(dims, ElementType::F32, text)
    }
}
