//! StableHLO operations (<https://openxla.org/stablehlo/spec>).

use super::{Builder, ElementType, NEG_INF, TensorType, Value, list, literal};
use std::fmt::Display;

/// How a reduction combines.
#[derive(Debug, Clone, Copy)]
pub enum Combine {
    /// Sum, from 0.
    Add,
    /// Maximum, from -inf.
    Max,
    /// Minimum of `i32`, from the largest.
    Min,
}

impl Builder {
    /// A splat constant; `value` is an MLIR literal.
    pub fn splat(&mut self, value: impl Display, dims: &[usize], element: ElementType) -> Value {
        let ty = TensorType::new(dims, element);
        self.op(dims, element, format_args!("stablehlo.constant dense<{value}> : {ty}"))
    }

    /// A splat `f32` constant.
    pub fn splat_f32(&mut self, value: f32, dims: &[usize]) -> Value {
        self.splat(literal(value), dims, ElementType::F32)
    }

    fn binary(&mut self, name: &str, a: &Value, b: &Value) -> Value {
        debug_assert_eq!(a.ty, b.ty, "{name}");
        self.op(
            a.dims(),
            a.ty.element,
            format_args!("stablehlo.{name} {}, {} : {}", a.name, b.name, a.ty),
        )
    }

    /// Elementwise sum.
    pub fn add(&mut self, a: &Value, b: &Value) -> Value {
        self.binary("add", a, b)
    }

    /// Elementwise difference.
    pub fn sub(&mut self, a: &Value, b: &Value) -> Value {
        self.binary("subtract", a, b)
    }

    /// Elementwise product.
    pub fn mul(&mut self, a: &Value, b: &Value) -> Value {
        self.binary("multiply", a, b)
    }

    /// Elementwise quotient.
    pub fn div(&mut self, a: &Value, b: &Value) -> Value {
        self.binary("divide", a, b)
    }

    /// Elementwise smaller one.
    pub fn min(&mut self, a: &Value, b: &Value) -> Value {
        self.binary("minimum", a, b)
    }

    /// Elementwise larger one.
    pub fn max(&mut self, a: &Value, b: &Value) -> Value {
        self.binary("maximum", a, b)
    }

    /// Elementwise logical and.
    pub fn and(&mut self, a: &Value, b: &Value) -> Value {
        self.binary("and", a, b)
    }

    /// A unary StableHLO operation: "rsqrt", "exponential", "negate", "logistic".
    pub fn unary(&mut self, name: &str, a: &Value) -> Value {
        self.op(a.dims(), a.ty.element, format_args!("stablehlo.{name} {} : {}", a.name, a.ty))
    }

    /// `a / (1 + exp(-a))`.
    pub fn silu(&mut self, a: &Value) -> Value {
        let one = self.splat_f32(1.0, a.dims());
        let exp = self.unary("negate", a);
        let exp = self.unary("exponential", &exp);
        let below = self.add(&one, &exp);
        self.div(a, &below)
    }

    /// Converts the elements.
    pub fn convert(&mut self, a: &Value, element: ElementType) -> Value {
        if a.ty.element == element {
            return a.clone();
        }
        let to = TensorType::new(a.dims(), element);
        self.op(
            a.dims(),
            element,
            format_args!("stablehlo.convert {} : ({}) -> {to}", a.name, a.ty),
        )
    }

    /// Rounds to floats of so many bits. Two conversions would do the same, but compilers take them
    /// out again.
    pub fn reduce_precision(&mut self, a: &Value, exponent: u32, mantissa: u32) -> Value {
        self.op(
            a.dims(),
            a.ty.element,
            format_args!(
                "stablehlo.reduce_precision {}, format = e{exponent}m{mantissa} : {}",
                a.name, a.ty
            ),
        )
    }

    /// Broadcasts: dimension `i` of `a` becomes dimension `at[i]` of the result.
    pub fn broadcast(&mut self, a: &Value, dims: &[usize], at: &[usize]) -> Value {
        let to = TensorType::new(dims, a.ty.element);
        self.op(
            dims,
            a.ty.element,
            format_args!(
                "stablehlo.broadcast_in_dim {}, dims = {} : ({}) -> {to}",
                a.name,
                list(at),
                a.ty
            ),
        )
    }

    /// The same elements in another shape.
    pub fn reshape(&mut self, a: &Value, dims: &[usize]) -> Value {
        debug_assert_eq!(
            a.dims().iter().product::<usize>(),
            dims.iter().product::<usize>(),
            "{dims:?}"
        );
        if a.dims() == dims {
            return a.clone();
        }
        let to = TensorType::new(dims, a.ty.element);
        self.op(
            dims,
            a.ty.element,
            format_args!("stablehlo.reshape {} : ({}) -> {to}", a.name, a.ty),
        )
    }

    /// Dimension `i` of the result is dimension `order[i]` of `a`.
    pub fn transpose(&mut self, a: &Value, order: &[usize]) -> Value {
        let dims: Vec<_> = order.iter().map(|&i| a.dims()[i]).collect();
        let to = TensorType::new(&dims, a.ty.element);
        self.op(
            &dims,
            a.ty.element,
            format_args!(
                "stablehlo.transpose {}, dims = {} : ({}) -> {to}",
                a.name,
                list(order),
                a.ty
            ),
        )
    }

    /// The part of `a` from `low` up to `high` in dimension `dim`.
    pub fn slice(&mut self, a: &Value, dim: usize, low: usize, high: usize) -> Value {
        if low == 0 && high == a.dims()[dim] {
            return a.clone();
        }
        let mut dims = a.dims().to_vec();
        dims[dim] = high - low;
        let ranges: Vec<_> = a
            .dims()
            .iter()
            .enumerate()
            .map(|(i, &d)| if i == dim { format!("{low}:{high}") } else { format!("0:{d}") })
            .collect();
        let to = TensorType::new(&dims, a.ty.element);
        self.op(
            &dims,
            a.ty.element,
            format_args!("stablehlo.slice {} [{}] : ({}) -> {to}", a.name, ranges.join(", "), a.ty),
        )
    }

    /// Joins along dimension `dim`.
    pub fn concat(&mut self, parts: &[Value], dim: usize) -> Value {
        let mut dims = parts[0].dims().to_vec();
        dims[dim] = parts.iter().map(|p| p.dims()[dim]).sum();
        let names: Vec<_> = parts.iter().map(|p| p.name.as_str()).collect();
        let types: Vec<_> = parts.iter().map(|p| p.ty.to_string()).collect();
        let to = TensorType::new(&dims, parts[0].ty.element);
        self.op(
            &dims,
            parts[0].ty.element,
            format_args!(
                "stablehlo.concatenate {}, dim = {dim} : ({}) -> {to}",
                names.join(", "),
                types.join(", ")
            ),
        )
    }

    /// `a` with `zeros` zeros behind each run of its last dimension.
    pub fn pad_last(&mut self, a: &Value, zeros: usize) -> Value {
        if zeros == 0 {
            return a.clone();
        }
        let mut dims = a.dims().to_vec();
        let last = dims.len() - 1;
        dims[last] = zeros;
        let padding = self.splat_f32(0.0, &dims);
        self.concat(&[a.clone(), padding], last)
    }

    /// Combines the dimensions `over` away.
    pub fn reduce(&mut self, a: &Value, over: &[usize], how: Combine) -> Value {
        let (name, init) = match how {
            Combine::Add => ("add", "0.0"),
            Combine::Max => ("maximum", NEG_INF),
            Combine::Min => ("minimum", "2147483647"),
        };
        let init = self.splat(init, &[], a.ty.element);
        let dims: Vec<_> =
            (0..a.dims().len()).filter(|i| !over.contains(i)).map(|i| a.dims()[i]).collect();
        let to = TensorType::new(&dims, a.ty.element);
        self.op(
            &dims,
            a.ty.element,
            format_args!(
                "stablehlo.reduce({} init: {}) applies stablehlo.{name} across dimensions = {} \
                 : ({}, {}) -> {to}",
                a.name,
                init.name,
                list(over),
                a.ty,
                init.ty
            ),
        )
    }

    /// `stablehlo.dot_general`, accumulated in `f32`.
    pub fn dot(
        &mut self,
        a: &Value,
        b: &Value,
        batch: [&[usize]; 2],
        over: [&[usize]; 2],
    ) -> Value {
        let free = |v: &Value, batch: &[usize], over: &[usize]| -> Vec<usize> {
            let kept = (0..v.dims().len()).filter(|i| !batch.contains(i) && !over.contains(i));
            kept.map(|i| v.dims()[i]).collect()
        };
        let mut dims: Vec<_> = batch[0].iter().map(|&i| a.dims()[i]).collect();
        dims.extend(free(a, batch[0], over[0]));
        dims.extend(free(b, batch[1], over[1]));
        let batching = if batch[0].is_empty() {
            String::new()
        } else {
            format!("batching_dims = {} x {}, ", list(batch[0]), list(batch[1]))
        };
        let to = TensorType::new(&dims, ElementType::F32);
        self.op(
            &dims,
            ElementType::F32,
            format_args!(
                "stablehlo.dot_general {}, {}, {batching}contracting_dims = {} x {} : ({}, {}) -> {to}",
                a.name,
                b.name,
                list(over[0]),
                list(over[1]),
                a.ty,
                b.ty
            ),
        )
    }

    /// Counts along dimension `dim`.
    pub fn iota(&mut self, dims: &[usize], dim: usize) -> Value {
        let ty = TensorType::new(dims, ElementType::I32);
        self.op(dims, ElementType::I32, format_args!("stablehlo.iota dim = {dim} : {ty}"))
    }

    /// Compares elementwise; `direction` is StableHLO's ("EQ", "LE", "GT").
    pub fn compare(&mut self, direction: &str, a: &Value, b: &Value) -> Value {
        let kind = if a.ty.element == ElementType::I32 { "SIGNED" } else { "FLOAT" };
        let to = TensorType::new(a.dims(), ElementType::I1);
        self.op(
            a.dims(),
            ElementType::I1,
            format_args!(
                "stablehlo.compare {direction}, {}, {}, {kind} : ({}, {}) -> {to}",
                a.name, b.name, a.ty, b.ty
            ),
        )
    }

    /// `yes` where `predicate` holds, else `no`.
    pub fn select(&mut self, predicate: &Value, yes: &Value, no: &Value) -> Value {
        self.op(
            yes.dims(),
            yes.ty.element,
            format_args!(
                "stablehlo.select {}, {}, {} : {}, {}",
                predicate.name, yes.name, no.name, predicate.ty, yes.ty
            ),
        )
    }

    /// Rows (all of dimension 0) of `table` at `indices`, `[n]` of i32.
    pub fn gather_rows(&mut self, table: &Value, indices: &Value) -> Value {
        let (n, width) = (indices.dims()[0], table.dims()[1]);
        let indices = self.reshape(indices, &[n, 1]);
        let dims = [n, width];
        let to = TensorType::new(&dims, table.ty.element);
        self.op(
            &dims,
            table.ty.element,
            format_args!(
                "\"stablehlo.gather\"({}, {}) <{{dimension_numbers = #stablehlo.gather<\
                 offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], \
                 index_vector_dim = 1>, indices_are_sorted = false, \
                 slice_sizes = array<i64: 1, {width}>}}> : ({}, {}) -> {to}",
                table.name, indices.name, table.ty, indices.ty
            ),
        )
    }

    /// The part of `a` of extents `dims` that starts at `starts` (scalar `i32` tensors).
    pub fn dynamic_slice(&mut self, a: &Value, starts: &[Value], dims: &[usize]) -> Value {
        let names: Vec<_> = starts.iter().map(|v| v.name.as_str()).collect();
        let types: Vec<_> = starts.iter().map(|v| v.ty.to_string()).collect();
        let to = TensorType::new(dims, a.ty.element);
        self.op(
            dims,
            a.ty.element,
            format_args!(
                "stablehlo.dynamic_slice {}, {}, sizes = {} : ({}, {}) -> {to}",
                a.name,
                names.join(", "),
                list(dims),
                a.ty,
                types.join(", ")
            ),
        )
    }

    /// `a` with `update` written at `starts` (scalar `i32` tensors).
    pub fn dynamic_update_slice(&mut self, a: &Value, update: &Value, starts: &[Value]) -> Value {
        let names: Vec<_> = starts.iter().map(|v| v.name.as_str()).collect();
        let types: Vec<_> = starts.iter().map(|v| v.ty.to_string()).collect();
        self.op(
            a.dims(),
            a.ty.element,
            format_args!(
                "stablehlo.dynamic_update_slice {}, {}, {} : ({}, {}, {}) -> {}",
                a.name,
                update.name,
                names.join(", "),
                a.ty,
                update.ty,
                types.join(", "),
                a.ty
            ),
        )
    }
}
