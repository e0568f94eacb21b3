//! Norms: the squares of a row are added up by some threads, and what they have by all; so is what is added up for
//! the mean of a row, where that is taken off first.

use checkpoint::architecture::{Attention, Norm, QkNorm};

use super::VulkanTarget;
use crate::emit::builder::{Value, literal};
use crate::lower::paged::{Function, sum, threads, weight_of_head};

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

/// What each of some threads adds up of a row of `x`, `[rows, SHARES]`: of `%x` the `%term` that `term` writes.
fn shares(f: &mut Function<'_>, x: &Value, term: &str) -> Value {
    let &[rows, columns] = x.dims() else { unreachable!("rows of columns") };
    let body = format!(
        "%none = arith.constant 0.0 : f32
         %end = arith.constant {columns} : index
         %by = arith.constant {SHARES} : index
         %sum = scf.for %k = %p to %end step %by iter_args(%so_far = %none) -> (f32) {{
         %x = tensor.extract {}[%m, %k] : {}
         {term}
         %next = arith.addf %so_far, %term : f32
         scf.yield %next : f32
         }}
         linalg.yield %sum : f32",
        x.name, x.ty
    );
    let into = f.b.empty(&[rows, SHARES], None);
    let shares = threads(f, &["m", "p"], &into, &body);
    f.kept(shares)
}

/// `%total` of row `%m`: the sum of what all threads have.
fn total(shares: &Value) -> String {
    let Value { name, ty } = shares;
    sum(SHARES, &|i| format!("%term{i} = tensor.extract {name}[%m, %k{i}] : {ty}"))
}

impl VulkanTarget {
    pub(super) fn normed(&self, f: &mut Function<'_>, x: &Value, norm: &Norm) -> Value {
        let &[rows, columns] = x.dims() else { unreachable!("rows of columns") };
        let weight = f.vector(&norm.weight);
        let moved = norm.bias.as_ref().map(|bias| {
            let bias = f.vector(bias);
            format!(
                "%bias = tensor.extract {}[%c] : {}
                 %moved = arith.addf %normed, %bias : f32",
                bias.name, bias.ty
            )
        });
        let result = if moved.is_some() { "%moved" } else { "%normed" };
        let moved = moved.unwrap_or_default();
        let centred = norm.centred.then(|| self.centred(f, x));
        let x = centred.as_ref().unwrap_or(x);
        let shares = shares(f, x, "%term = arith.mulf %x, %x : f32");
        let body = format!(
            "{}
             {}
             %x = tensor.extract {}[%m, %c] : {}
             %stored = tensor.extract {}[%c] : {}
             %offset = arith.constant {} : f32
             %weight = arith.addf %offset, %stored : f32
             %scaled = arith.mulf %x, %factor : f32
             %normed = arith.mulf %scaled, %weight : f32
             {moved}
             linalg.yield {result} : f32",
            total(&shares),
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

    /// `x` less the mean of each row.
    fn centred(&self, f: &mut Function<'_>, x: &Value) -> Value {
        let &[rows, columns] = x.dims() else { unreachable!("rows of columns") };
        let shares = shares(f, x, "%term = arith.addf %x, %none : f32");
        let body = format!(
            "{}
             %columns = arith.constant {} : f32
             %mean = arith.divf %total, %columns : f32
             %x = tensor.extract {}[%m, %c] : {}
             %less = arith.subf %x, %mean : f32
             linalg.yield %less : f32",
            total(&shares),
            literal(columns as f32),
            x.name,
            x.ty,
        );
        let into = f.b.empty(&[rows, columns], None);
        let less = threads(f, &["m", "c"], &into, &body);
        f.kept(less)
    }

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
        let square = |i: &str| {
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
             %own = arith.select %is_query, %of_query, %of_key : f32
             %offset = arith.constant {} : f32
             {}
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
            weight_of_head("%h", attention),
            x.name,
            x.ty,
        );
        let into = f.b.empty(&[rows, all, width], None);
        let normed = threads(f, &["m", "h", "d"], &into, &body);
        f.kept(normed)
    }
}
