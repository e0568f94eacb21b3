//! A small typed builder of one MLIR function: StableHLO, and `linalg.generic` where a target
//! wants to say its own tiles.

use std::fmt::{self, Display, Write as _};

/// The element types that our graphs use, under MLIR's names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ElementType {
    /// IEEE single precision; all arithmetic is in it.
    F32,
    /// IEEE half precision (storage only).
    F16,
    /// bfloat16 (storage only).
    Bf16,
    /// Signless 32-bit integer: tokens and positions.
    I32,
    /// Predicates.
    I1,
}

impl ElementType {
    /// The name in MLIR.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::I32 => "i32",
            Self::I1 => "i1",
        }
    }

    /// Bytes of one element in a buffer.
    pub fn bytes(self) -> usize {
        match self {
            Self::F32 | Self::I32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::I1 => 1,
        }
    }
}

/// A dimension that is known only at run time.
pub const DYNAMIC: usize = usize::MAX;

/// A ranked tensor, or a scalar when `scalar` is set.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TensorType {
    /// Extents, outermost first; [`DYNAMIC`] where it is known only at run time.
    pub dims: Vec<usize>,
    /// The elements.
    pub element: ElementType,
}

impl TensorType {
    /// A tensor type.
    pub fn new(dims: &[usize], element: ElementType) -> Self {
        Self { dims: dims.to_vec(), element }
    }
}

impl Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("tensor<")?;
        for &dim in &self.dims {
            if dim == DYNAMIC { f.write_str("?x")? } else { write!(f, "{dim}x")? }
        }
        write!(f, "{}>", self.element.as_str())
    }
}

/// An SSA value that is a tensor.
#[derive(Debug, Clone)]
pub struct Value {
    /// With the leading `%`.
    pub name: String,
    /// Its type.
    pub ty: TensorType,
}

impl Value {
    /// Extents, outermost first.
    pub fn dims(&self) -> &[usize] {
        &self.ty.dims
    }
}

/// An SSA value of type `index`, or a constant; used for offsets.
#[derive(Debug, Clone)]
pub struct Index(String);

impl From<usize> for Index {
    fn from(value: usize) -> Self {
        Self(value.to_string())
    }
}

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

/// The body of a function under construction.
#[derive(Debug, Default)]
pub struct Builder {
    text: String,
    next: usize,
}

impl Builder {
    /// The operations emitted so far, one a line.
    pub fn into_text(self) -> String {
        self.text
    }

    fn fresh(&mut self) -> String {
        self.next += 1;
        format!("%{}", self.next)
    }

    /// Emits `%n = <operation>` and returns the tensor that it makes.
    pub fn op(&mut self, dims: &[usize], element: ElementType, operation: impl Display) -> Value {
        let name = self.fresh();
        let _ = writeln!(self.text, "    {name} = {operation}");
        Value { name, ty: TensorType::new(dims, element) }
    }

    fn index_op(&mut self, operation: impl Display) -> Index {
        let name = self.fresh();
        let _ = writeln!(self.text, "    {name} = {operation}");
        Index(name)
    }

    // --- StableHLO ---------------------------------------------------------------------------

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

    /// Elementwise remainder.
    pub fn rem(&mut self, a: &Value, b: &Value) -> Value {
        self.binary("remainder", a, b)
    }

    /// Elementwise logical and.
    pub fn and(&mut self, a: &Value, b: &Value) -> Value {
        self.binary("and", a, b)
    }

    /// A unary StableHLO operation: "rsqrt", "exponential", "negate", "logistic".
    pub fn unary(&mut self, name: &str, a: &Value) -> Value {
        self.op(a.dims(), a.ty.element, format_args!("stablehlo.{name} {} : {}", a.name, a.ty))
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

    /// Rows of a packed `table`, `[blocks, width, lanes]`, at `indices`, `[n]` of i32.
    pub fn gather_lanes(&mut self, table: &Value, indices: &Value) -> Value {
        let (n, width, lanes) = (indices.dims()[0], table.dims()[1], table.dims()[2]);
        let by = self.splat(lanes, &[n], ElementType::I32);
        let block = self.div(indices, &by);
        let lane = self.rem(indices, &by);
        let block = self.reshape(&block, &[n, 1]);
        let lane = self.reshape(&lane, &[n, 1]);
        let indices = self.concat(&[block, lane], 1);
        let dims = [n, width];
        let to = TensorType::new(&dims, table.ty.element);
        self.op(
            &dims,
            table.ty.element,
            format_args!(
                "\"stablehlo.gather\"({}, {}) <{{dimension_numbers = #stablehlo.gather<\
                 offset_dims = [1], collapsed_slice_dims = [0, 2], start_index_map = [0, 2], \
                 index_vector_dim = 1>, indices_are_sorted = false, \
                 slice_sizes = array<i64: 1, {width}, 1>}}> : ({}, {}) -> {to}",
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

    /// Keeps a producer from being fused into its consumer.
    pub fn barrier(&mut self, a: &Value) -> Value {
        self.op(
            a.dims(),
            a.ty.element,
            format_args!("stablehlo.optimization_barrier {} : {}", a.name, a.ty),
        )
    }

    // --- arith, tensor, linalg: what IREE takes beside StableHLO -----------------------------

    /// `scalar / by` as an index, where `scalar` is the name of an `i32` argument.
    pub fn index_div(&mut self, scalar: &str, by: usize) -> Index {
        self.index_arith("divui", scalar, by)
    }

    /// `scalar % by` as an index, where `scalar` is the name of an `i32` argument.
    pub fn index_rem(&mut self, scalar: &str, by: usize) -> Index {
        self.index_arith("remui", scalar, by)
    }

    fn index_arith(&mut self, op: &str, scalar: &str, by: usize) -> Index {
        let by = self.index_op(format_args!("arith.constant {by} : i32"));
        let it = self.index_op(format_args!("arith.{op} {scalar}, {} : i32", by.0));
        self.index_op(format_args!("arith.index_cast {} : i32 to index", it.0))
    }

    /// An `i32` argument as an index.
    pub fn index_cast(&mut self, scalar: &str) -> Index {
        self.index_op(format_args!("arith.index_cast {scalar} : i32 to index"))
    }

    /// `a` with `part` written at `offsets`.
    pub fn insert(&mut self, part: &Value, a: &Value, offsets: &[Index]) -> Value {
        self.op(
            a.dims(),
            a.ty.element,
            format_args!(
                "tensor.insert_slice {} into {}{} {} : {} into {}",
                part.name,
                a.name,
                indices(offsets),
                window(part.dims()),
                part.ty,
                a.ty
            ),
        )
    }

    /// The part of `a` of extents `dims` that starts at `offsets`.
    pub fn extract(&mut self, a: &Value, offsets: &[Index], dims: &[usize]) -> Value {
        let to = TensorType::new(dims, a.ty.element);
        self.op(
            dims,
            a.ty.element,
            format_args!(
                "tensor.extract_slice {}{} {} : {} to {to}",
                a.name,
                indices(offsets),
                window(dims),
                a.ty
            ),
        )
    }

    /// A tensor of `dims` filled with `value` (an MLIR literal); the extents that are dynamic are
    /// those of dimension 0 of `like`.
    pub fn fill(&mut self, value: &str, dims: &[usize], like: Option<&Value>) -> Value {
        let element = ElementType::F32;
        let empty = self.empty(dims, like);
        let scalar = self.index_op(format_args!("arith.constant {value} : f32")).0;
        self.op(
            dims,
            element,
            format_args!(
                "linalg.fill ins({scalar} : f32) outs({} : {}) -> {}",
                empty.name, empty.ty, empty.ty
            ),
        )
    }

    /// An uninitialised `f32` tensor; see [`fill`](Self::fill).
    pub fn empty(&mut self, dims: &[usize], like: Option<&Value>) -> Value {
        let ty = TensorType::new(dims, ElementType::F32);
        let extent = match like.filter(|_| dims.contains(&DYNAMIC)) {
            Some(like) => {
                let zero = self.index_op("arith.constant 0 : index");
                self.index_op(format_args!("tensor.dim {}, {} : {}", like.name, zero.0, like.ty)).0
            }
            None => String::new(),
        };
        self.op(dims, ElementType::F32, format_args!("tensor.empty({extent}) : {ty}"))
    }

    /// A `linalg.generic` with one result.
    pub fn generic(&mut self, generic: &Generic<'_>, into: &Value) -> Value {
        let maps: Vec<_> = generic
            .inputs
            .iter()
            .map(|(_, map)| *map)
            .chain([generic.result])
            .map(|map| format!("affine_map<({}) -> ({map})>", generic.loops))
            .collect();
        let mut kept = vec![];
        for l in generic.loops.split(',') {
            kept.push(if generic.result.split(',').any(|r| r == l) {
                "\"parallel\""
            } else {
                "\"reduction\""
            });
        }
        let names: Vec<_> = generic.inputs.iter().map(|(v, _)| v.name.as_str()).collect();
        let types: Vec<_> = generic.inputs.iter().map(|(v, _)| v.ty.to_string()).collect();
        let arguments: Vec<_> = generic
            .inputs
            .iter()
            .enumerate()
            .map(|(i, (v, _))| format!("%in{i}: {}, ", v.ty.element.as_str()))
            .collect();
        let config = match &generic.config {
            Some(config) => format!(" attrs = {{compilation_info = {config}}}"),
            None => String::new(),
        };
        let mut text = format!(
            "linalg.generic {{indexing_maps = [{}], iterator_types = [{}]}} ins({} : {}) \
             outs({} : {}){config} {{\n    ^bb0({}%acc: {}):\n",
            maps.join(", "),
            kept.join(", "),
            names.join(", "),
            types.join(", "),
            into.name,
            into.ty,
            arguments.concat(),
            into.ty.element.as_str(),
        );
        for line in generic.body.lines() {
            let _ = writeln!(text, "      {}", line.trim());
        }
        let _ = write!(text, "    }} -> {}", into.ty);
        self.op(into.dims(), into.ty.element, text)
    }
}

/// A loop nest over tensors; loops that do not index the result are reductions.
pub struct Generic<'a> {
    /// The loops, outermost first: "n,b,k".
    pub loops: &'a str,
    /// Operands with the loops that index them; `%in0`, `%in1`, … in the body.
    pub inputs: &'a [(&'a Value, &'a str)],
    /// The loops that index the result; `%acc` in the body is what was there before.
    pub result: &'a str,
    /// The body's operations, one a line, ending in `linalg.yield`.
    pub body: &'a str,
    /// An `#iree_codegen.compilation_info` attribute.
    pub config: Option<String>,
}

/// Minus infinity as an MLIR `f32` literal.
pub const NEG_INF: &str = "0xFF800000";

/// The exact MLIR literal of `value`.
pub fn literal(value: f32) -> String {
    format!("0x{:08X}", value.to_bits())
}

fn list(items: &[usize]) -> String {
    let items: Vec<_> = items.iter().map(usize::to_string).collect();
    format!("[{}]", items.join(", "))
}

fn indices(items: &[Index]) -> String {
    let items: Vec<_> = items.iter().map(|i| i.0.as_str()).collect();
    format!("[{}]", items.join(", "))
}

fn window(dims: &[usize]) -> String {
    format!("{} {}", list(dims), list(&vec![1; dims.len()]))
}
