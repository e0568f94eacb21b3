//! What IREE takes beside StableHLO: slices at run-time offsets (`tensor`, `arith`) and loop nests
//! with their own tiles (`linalg`).

use std::fmt::{Display, Write as _};

use super::{Builder, DYNAMIC, ElementType, TensorType, Value, list};

/// An SSA value of type `index`, or a constant; used for offsets.
#[derive(Debug, Clone)]
pub struct Index(String);

impl From<usize> for Index {
    fn from(value: usize) -> Self {
        Self(value.to_string())
    }
}

/// A loop nest over tensors; loops that do not index the result are reductions.
#[derive(Debug)]
pub struct Generic<'a> {
    /// The loops, outermost first: "n,b,k".
    pub loops: &'a str,
    /// Operands with the loops that index them; `%in0`, `%in1`, … in the body.
    pub inputs: &'a [(&'a Value, &'a str)],
    /// The loops that index the result; `%acc` in the body is what was there before (`%acc0`,
    /// `%acc1`, … where there are several results).
    pub result: &'a str,
    /// The body's operations, one a line, ending in `linalg.yield`.
    pub body: &'a str,
    /// An `#iree_codegen.compilation_info` attribute.
    pub config: Option<String>,
}

impl Builder {
    /// An element of a tensor of one dimension.
    pub fn element_at(&mut self, a: &Value, index: &Index) -> Value {
        let index = self.materialise(index);
        let Value { name, ty } = a;
        self.op(&[], ty.element, format_args!("tensor.extract {name}[{index}] : {ty}"))
    }

    /// The first `count` elements of `a`, which has one dimension.
    pub fn first(&mut self, a: &Value, count: &Index) -> Value {
        let count = self.materialise(count);
        let Value { name, ty } = a;
        let first = TensorType::new(&[DYNAMIC], ty.element);
        self.op(
            &first.dims,
            ty.element,
            format_args!("tensor.extract_slice {name}[0] [{count}] [1] : {ty} to {first}"),
        )
    }

    /// The name of `bytes` bytes of a buffer, from `at` on.
    pub fn part_of_buffer(&mut self, buffer: &str, at: usize, bytes: usize) -> String {
        let [at, bytes] = [at, bytes].map(|n| self.materialise(&n.into()));
        self.index_op(format_args!(
            "hal.buffer.subspan<{buffer} : !hal.buffer>[{at}, {bytes}] : !hal.buffer"
        ))
        .0
    }

    /// The extent of the first dimension.
    pub(super) fn extent(&mut self, a: &Value) -> String {
        let zero = self.index_op("arith.constant 0 : index");
        self.index_op(format_args!("tensor.dim {}, {} : {}", a.name, zero.0, a.ty)).0
    }

    /// The SSA value of `index`.
    pub(super) fn materialise(&mut self, index: &Index) -> String {
        match index.0.parse::<usize>() {
            Ok(value) => self.index_op(format_args!("arith.constant {value} : index")).0,
            Err(_) => index.0.clone(),
        }
    }

    /// The SSA value of `index` as an `i32`, the bits of which are those of an unsigned one.
    pub(super) fn word(&mut self, index: &Index) -> String {
        let op = match index.0.parse::<usize>() {
            Ok(value) => {
                let word = u32::try_from(value).expect("numbers of a call fit 32 bits");
                format!("arith.constant {} : i32", word.cast_signed())
            }
            Err(_) => format!("arith.index_castui {} : index to i32", index.0),
        };
        let name = self.fresh();
        let _ = writeln!(self.text, "    {name} = {op}");
        name
    }

    /// `index` times `by`.
    pub fn index_mul(&mut self, index: &Index, by: usize) -> Index {
        let (index, by) = (self.materialise(index), self.materialise(&by.into()));
        self.index_op(format_args!("arith.muli {index}, {by} : index"))
    }

    /// The name of the index `name` divided by `by`, rounded down.
    pub fn index_div(&mut self, name: &str, by: usize) -> String {
        let by = self.materialise(&by.into());
        self.index_op(format_args!("arith.divui {name}, {by} : index")).0
    }

    /// `index` divided by `by`, rounded up.
    pub fn index_ceil_div(&mut self, index: &Index, by: usize) -> Index {
        let (index, by) = (self.materialise(index), self.materialise(&by.into()));
        self.index_op(format_args!("arith.ceildivui {index}, {by} : index"))
    }

    /// The smaller one of an index and a number.
    pub fn index_min(&mut self, index: &Index, most: usize) -> Index {
        let most = self.materialise(&most.into());
        let index = self.materialise(index);
        self.index_op(format_args!("arith.minsi {index}, {most} : index"))
    }

    pub(super) fn index_op(&mut self, operation: impl Display) -> Index {
        let name = self.fresh();
        let _ = writeln!(self.text, "    {name} = {operation}");
        Index(name)
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

    /// An `f32` tensor of `dims` filled with `value` (an MLIR literal); the extents that are dynamic
    /// are those of dimension 0 of `like`.
    pub fn fill(&mut self, value: &str, dims: &[usize], like: Option<&Value>) -> Value {
        self.fill_of(ElementType::F32, value, dims, like)
    }

    /// A tensor of such elements; see [`fill`](Self::fill).
    pub fn fill_of(
        &mut self,
        element: ElementType,
        value: &str,
        dims: &[usize],
        like: Option<&Value>,
    ) -> Value {
        let empty = self.empty_of(element, dims, like);
        let ty = element.as_str();
        let scalar = self.index_op(format_args!("arith.constant {value} : {ty}")).0;
        self.op(
            dims,
            element,
            format_args!(
                "linalg.fill ins({scalar} : {ty}) outs({} : {}) -> {}",
                empty.name, empty.ty, empty.ty
            ),
        )
    }

    /// An uninitialised `f32` tensor; see [`fill`](Self::fill).
    pub fn empty(&mut self, dims: &[usize], like: Option<&Value>) -> Value {
        self.empty_of(ElementType::F32, dims, like)
    }

    /// An uninitialised tensor of these elements; see [`fill`](Self::fill).
    pub fn empty_of(
        &mut self,
        element: ElementType,
        dims: &[usize],
        like: Option<&Value>,
    ) -> Value {
        let ty = TensorType::new(dims, element);
        let extent = match like.filter(|_| dims.contains(&DYNAMIC)) {
            Some(like) => self.extent(like),
            None => String::new(),
        };
        self.op(dims, element, format_args!("tensor.empty({extent}) : {ty}"))
    }

    /// An uninitialised tensor of these elements, whose one dynamic extent is `extent`.
    pub fn empty_with(&mut self, element: ElementType, dims: &[usize], extent: &Index) -> Value {
        let extent = self.materialise(extent);
        let ty = TensorType::new(dims, element);
        self.op(dims, element, format_args!("tensor.empty({extent}) : {ty}"))
    }

    /// A `linalg.generic` with one result.
    pub fn generic(&mut self, generic: &Generic<'_>, into: &Value) -> Value {
        let text = linalg_generic(generic, &[into]);
        self.op(into.dims(), into.ty.element, text)
    }

    /// A `linalg.generic` with as many results as `into` has values, all of one type.
    pub fn generics(&mut self, generic: &Generic<'_>, into: &[&Value]) -> Vec<Value> {
        if let [into] = into {
            return vec![self.generic(generic, into)];
        }
        let name = self.fresh();
        let count = into.len();
        let text = linalg_generic(generic, into);
        let _ = writeln!(self.text, "    {name}:{count} = {text}");
        let result = |(i, into): (usize, &&Value)| Value {
            name: format!("{name}#{i}"),
            ty: into.ty.clone(),
        };
        into.iter().enumerate().map(result).collect()
    }
}

fn linalg_generic(generic: &Generic<'_>, into: &[&Value]) -> String {
    let results = into.iter().map(|_| generic.result);
    let maps: Vec<_> = generic
        .inputs
        .iter()
        .map(|(_, map)| *map)
        .chain(results)
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
    let names = |values: &mut dyn Iterator<Item = &Value>| {
        values.map(|v| v.name.as_str()).collect::<Vec<_>>().join(", ")
    };
    let types = |values: &mut dyn Iterator<Item = &Value>| {
        values.map(|v| v.ty.to_string()).collect::<Vec<_>>().join(", ")
    };
    let inputs = || generic.inputs.iter().map(|(v, _)| *v);
    let outputs = || into.iter().copied();
    let ins = match generic.inputs {
        [] => String::new(),
        _ => format!("ins({} : {}) ", names(&mut inputs()), types(&mut inputs())),
    };
    let mut arguments: Vec<_> =
        inputs().enumerate().map(|(i, v)| format!("%in{i}: {}", v.ty.element.as_str())).collect();
    arguments.extend(outputs().enumerate().map(|(i, v)| {
        let number = if into.len() == 1 { String::new() } else { i.to_string() };
        format!("%acc{number}: {}", v.ty.element.as_str())
    }));
    let config = match &generic.config {
        Some(config) => format!(" attrs = {{compilation_info = {config}}}"),
        None => String::new(),
    };
    let mut text = format!(
        "linalg.generic {{indexing_maps = [{}], iterator_types = [{}]}} {ins}outs({} : {}){config} \
         {{\n    ^bb0({}):\n",
        maps.join(", "),
        kept.join(", "),
        names(&mut outputs()),
        types(&mut outputs()),
        arguments.join(", "),
    );
    for line in generic.body.lines() {
        let _ = writeln!(text, "      {}", line.trim());
    }
    let types = types(&mut outputs());
    let _ = match into.len() {
        1 => write!(text, "    }} -> {types}"),
        _ => write!(text, "    }} -> ({types})"),
    };
    text
}

fn indices(items: &[Index]) -> String {
    let items: Vec<_> = items.iter().map(|i| i.0.as_str()).collect();
    format!("[{}]", items.join(", "))
}

fn window(dims: &[usize]) -> String {
    format!("{} {}", list(dims), list(&vec![1; dims.len()]))
}
