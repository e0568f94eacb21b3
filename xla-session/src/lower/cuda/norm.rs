//! Norms of the heads of queries and keys.

use checkpoint::architecture::{Attention, QkNorm};

use super::CudaTiles;
use crate::emit::builder::{Combine, Generic, Value, literal};
use crate::lower::paged::{Function, weight_of_head};

impl CudaTiles {
    /// `x`, `[rows, queries, keys and values, head_dim]`, each of the queries normed with their norm, and the
    /// others with that of keys, but for values that have a norm: else nobody reads them here, and to leave them
    /// out would be a copy.
    pub(super) fn heads_normed(
        &self,
        f: &mut Function<'_>,
        x: &Value,
        attention: &Attention,
        norms: &QkNorm,
    ) -> Value {
        let heads = attention.heads;
        let &[rows, all, width] = x.dims() else { unreachable!("heads have 3 dims") };
        if norms.query.width() != width {
            return f.jointly_normed_heads(x, heads, norms);
        }
        let key = norms.key.as_ref().unwrap_or(&norms.query);
        let [query, key] = [&norms.query, key].map(|norm| f.vector(&norm.weight));
        let square = f.b.mul(x, x);
        let sum = f.b.reduce(&square, &[2], Combine::Add);
        let columns = f.b.splat_f32(width as f32, &[rows, all]);
        let mean = f.b.div(&sum, &columns);
        let eps = f.b.splat_f32(norms.query.epsilon as f32, &[rows, all]);
        let mean = f.b.add(&mean, &eps);
        let factor = f.b.unary("rsqrt", &mean);
        let offset = literal(norms.query.offset);
        let body = format!(
            "%head = linalg.index 1 : index
             %queries = arith.constant {heads} : index
             %is_query = arith.cmpi ult, %head, %queries : index
             %own = arith.select %is_query, %in2, %in3 : f32
             %offset = arith.constant {offset} : f32
             {}
             %scaled = arith.mulf %in0, %in1 : f32
             %normed = arith.mulf %scaled, %weight : f32
             linalg.yield %normed : f32",
            weight_of_head("%head", attention)
        );
        let nest = Generic {
            loops: "r,h,d",
            inputs: &[(x, "r,h,d"), (&factor, "r,h"), (&query, "d"), (&key, "d")],
            result: "r,h,d",
            body: &body,
            config: None,
        };
        let into = f.b.empty(&[rows, all, width], None);
        let normed = f.b.generic(&nest, &into);
        f.kept(normed)
    }
}
