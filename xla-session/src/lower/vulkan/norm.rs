//! RMS norms: the squares of a row are added up by some threads, and what they have by all.

use checkpoint::architecture::{Norm, QkNorm};

use super::sum::sum;
use super::{VulkanTarget, threads};
use crate::emit::builder::{Value, literal};
use crate::lower::paged::Function;

/// Threads that share the squares of a row.
const SHARES: usize = 32;

/// `%factor` of `%total`, the squares of `columns` numbers.
fn factor(columns: usize, epsilon: f64) -> String {
    format!(
        "%columns = arith.constant {} : f32
         %mean = arith.divf %total, %columns : f32
         %epsilon = arith.constant {} : f32
         %above = arith.addf %mean, %epsilon : f32
         %root = math.sqrt %above : f32
         %one = arith.constant 1.0 : f32
         %factor = arith.divf %one, %root : f32",
        literal(columns as f32),
        literal(epsilon as f32)
    )
}

impl VulkanTarget {
    pub(super) fn normed(&self, f: &mut Function<'_>, x: &Value, norm: &Norm) -> Value {
        let &[rows, columns] = x.dims() else { unreachable!("rows of columns") };
        let weight = f.vector(&norm.weight);
        let body = format!(
            "%none = arith.constant 0.0 : f32
             %end = arith.constant {columns} : index
             %by = arith.constant {SHARES} : index
             %sum = scf.for %k = %p to %end step %by iter_args(%so_far = %none) -> (f32) {{
             %x = tensor.extract {}[%m, %k] : {}
             %square = arith.mulf %x, %x : f32
             %next = arith.addf %so_far, %square : f32
             scf.yield %next : f32
             }}
             linalg.yield %sum : f32",
            x.name, x.ty
        );
        let into = f.b.empty(&[rows, SHARES], None);
        let shares = threads(f, &["m", "p"], &into, &body);
        let shares = f.kept(shares);
        let share = |i: usize| {
            format!("%term{i} = tensor.extract {}[%m, %k{i}] : {}", shares.name, shares.ty)
        };
        let body = format!(
            "{}
             {}
             %x = tensor.extract {}[%m, %c] : {}
             %stored = tensor.extract {}[%c] : {}
             %offset = arith.constant {} : f32
             %weight = arith.addf %offset, %stored : f32
             %scaled = arith.mulf %x, %factor : f32
             %normed = arith.mulf %scaled, %weight : f32
             linalg.yield %normed : f32",
            sum(SHARES, &share),
            factor(columns, norm.epsilon),
            x.name,
            x.ty,
            weight.name,
            weight.ty,
            literal(norm.offset),
        );
        let into = f.b.empty(&[rows, columns], None);
        threads(f, &["m", "c"], &into, &body)
    }

    pub(super) fn heads_normed(
        &self,
        f: &mut Function<'_>,
        x: &Value,
        heads: usize,
        norms: &QkNorm,
    ) -> Value {
        let &[rows, all, width] = x.dims() else { unreachable!("heads have 3 dims") };
        if norms.query.width() != width {
            return f.jointly_normed_heads(x, heads, norms);
        }
        let [query, key] = [&norms.query, &norms.key].map(|norm| f.vector(&norm.weight));
        let square = |i: usize| {
            format!(
                "%x{i} = tensor.extract {}[%m, %h, %k{i}] : {}
                 %term{i} = arith.mulf %x{i}, %x{i} : f32",
                x.name, x.ty
            )
        };
        let body = format!("{}linalg.yield %total : f32", sum(width, &square));
        let into = f.b.empty(&[rows, all], None);
        let squares = threads(f, &["m", "h"], &into, &body);
        let squares = f.kept(squares);
        let body = format!(
            "%total = tensor.extract {}[%m, %h] : {}
             {}
             %heads = arith.constant {heads} : index
             %is_query = arith.cmpi ult, %h, %heads : index
             %of_query = tensor.extract {}[%d] : {}
             %of_key = tensor.extract {}[%d] : {}
             %stored = arith.select %is_query, %of_query, %of_key : f32
             %offset = arith.constant {} : f32
             %weight = arith.addf %offset, %stored : f32
             %x = tensor.extract {}[%m, %h, %d] : {}
             %scaled = arith.mulf %x, %factor : f32
             %normed = arith.mulf %scaled, %weight : f32
             linalg.yield %normed : f32",
            squares.name,
            squares.ty,
            factor(width, norms.query.epsilon),
            query.name,
            query.ty,
            key.name,
            key.ty,
            literal(norms.query.offset),
            x.name,
            x.ty,
        );
        let into = f.b.empty(&[rows, all, width], None);
        let normed = threads(f, &["m", "h", "d"], &into, &body);
        f.kept(normed)
    }
}
