//! Dispatches that are written out: what is in one is the graph's choice, not the compiler's.

use std::fmt::Write as _;

use super::{Builder, TensorType, Value, join, list};

/// Memory of a length that only the caller of a function knows: bytes outside of dispatches; inside, a
/// tensor that reaches further than anybody will look.
#[derive(Debug, Clone)]
pub struct Memory {
    /// The SSA name, a `tensor<?xi8>`.
    pub name: String,
    /// The name of its length.
    pub bytes: String,
    /// What it is inside of dispatches.
    pub ty: TensorType,
}

/// A dispatch that is being written.
#[derive(Debug)]
pub struct Workgroups {
    name: String,
    /// What it reads, inside.
    pub reads: Vec<Value>,
    /// The name of the memory inside, and its access.
    memory: (String, String),
    ty: TensorType,
    /// The name, type and tensor of what the result is written to; `None` where it is the memory.
    target: Option<(String, String, TensorType)>,
}

impl Builder {
    /// Begins a dispatch that reads `reads` and `memory` and makes a tensor;
    /// [`end_reading`](Self::end_reading) ends it. What lies between sees nothing but the values inside.
    /// Its loops may depend on what is in memory: out of dispatches of other forms the compiler moves
    /// arithmetic on scalars, and the load of a scalar with it, to the host.
    pub fn begin_reading(
        &mut self,
        reads: &[&Value],
        memory: &Memory,
        makes: TensorType,
    ) -> Workgroups {
        self.begin_workgroups(reads, memory, Some(makes))
    }

    /// The same of a dispatch that updates `memory`; [`end_updating`](Self::end_updating) ends it.
    pub fn begin_updating(&mut self, reads: &[&Value], memory: &Memory) -> Workgroups {
        self.begin_workgroups(reads, memory, None)
    }

    fn begin_workgroups(
        &mut self,
        reads: &[&Value],
        memory: &Memory,
        makes: Option<TensorType>,
    ) -> Workgroups {
        let name = self.fresh();
        let inside: Vec<_> = reads
            .iter()
            .map(|value| (self.fresh(), tensor_access("readonly", &value.ty)))
            .collect();
        let access = if makes.is_some() { "readonly" } else { "readwrite" };
        let of_memory = (self.fresh(), tensor_access(access, &memory.ty));
        let target = makes.map(|ty| (self.fresh(), tensor_access("writeonly", &ty), ty));
        let Memory { name: outside, bytes, .. } = memory;
        let result = match &target {
            Some((_, _, ty)) => ty.to_string(),
            None => format!("{outside}{{{bytes}}}"),
        };
        let arguments = inside.iter().chain([&of_memory]).map(|(name, ty)| (name, ty));
        let arguments = arguments.chain(target.iter().map(|(name, ty, _)| (name, ty)));
        let _ = writeln!(
            self.text,
            "    {name} = flow.dispatch.workgroups({}) : ({}) -> ({result}) =\n        ({}) {{",
            join(reads.iter().map(|value| value.name.clone()).chain([outside.clone()])),
            join(
                reads
                    .iter()
                    .map(|value| value.ty.to_string())
                    .chain([format!("tensor<?xi8>{{{bytes}}}")])
            ),
            join(arguments.map(|(name, ty)| format!("{name}: {ty}"))),
        );
        let mut loaded = Vec::new();
        for ((inside, ty), value) in inside.iter().zip(reads) {
            loaded.push(self.op(
                value.dims(),
                value.ty.element,
                format_args!(
                    "iree_tensor_ext.dispatch.tensor.load {inside}, {} : {ty} -> {}",
                    whole(value.dims()),
                    value.ty
                ),
            ));
        }
        Workgroups { name, reads: loaded, memory: of_memory, ty: memory.ty.clone(), target }
    }

    /// `value`, with which the dispatch that makes it ends.
    pub fn apart(&mut self, value: &Value) -> Value {
        let Value { name, ty } = value;
        let text = format_args!("iree_tensor_ext.compute_barrier.start {name} : {ty} -> {ty}");
        self.op(&ty.dims, ty.element, text)
    }

    /// All of the memory of a dispatch.
    pub fn memory_of(&mut self, dispatch: &Workgroups) -> Value {
        let dims = &dispatch.ty.dims;
        self.part_of_memory(dispatch, &vec![0; dims.len()], dims, dims)
    }

    /// A part of the memory of a dispatch, of extents `sizes` from `offsets` on; in the result, of
    /// extents `dims`, some of one may be left out.
    pub fn part_of_memory(
        &mut self,
        dispatch: &Workgroups,
        offsets: &[usize],
        sizes: &[usize],
        dims: &[usize],
    ) -> Value {
        let (name, access) = &dispatch.memory;
        let element = dispatch.ty.element;
        self.op(
            dims,
            element,
            format_args!(
                "iree_tensor_ext.dispatch.tensor.load {name}, offsets = {}, sizes = {}, strides = \
                 {} : {access} -> {}",
                list(offsets),
                list(sizes),
                list(&vec![1; sizes.len()]),
                TensorType::new(dims, element)
            ),
        )
    }

    /// Ends a dispatch that makes `result`.
    ///
    /// # Panics
    ///
    /// When it updates memory.
    pub fn end_reading(&mut self, dispatch: Workgroups, result: &Value) -> Value {
        let Workgroups { name, target, .. } = dispatch;
        let (target, access, ty) = target.expect("the dispatch makes a tensor");
        self.end_workgroups(result, &target, &access);
        Value { name, ty }
    }

    /// Ends a dispatch that updates `memory` to `result`; returns it as it is then.
    pub fn end_updating(
        &mut self,
        dispatch: Workgroups,
        result: &Value,
        memory: &Memory,
    ) -> Memory {
        let Workgroups { name, memory: (target, access), .. } = dispatch;
        self.end_workgroups(result, &target, &access);
        Memory { name, ..memory.clone() }
    }

    fn end_workgroups(&mut self, result: &Value, target: &str, access: &str) {
        let _ = writeln!(
            self.text,
            "    iree_tensor_ext.dispatch.tensor.store {}, {target}, {} : {} -> {access}
    flow.return
    }} count() -> (index, index, index) {{
      %x, %y, %z = iree_tensor_ext.dispatch.workgroup_count_from_slice()
      flow.return %x, %y, %z : index, index, index
    }}",
            result.name,
            whole(result.dims()),
            result.ty,
        );
    }
}

fn tensor_access(access: &str, ty: &TensorType) -> String {
    format!("!iree_tensor_ext.dispatch.tensor<{access}:{ty}>")
}

/// The slice that is all of a tensor.
fn whole(dims: &[usize]) -> String {
    let [zeros, ones] = [0, 1].map(|n| list(&vec![n; dims.len()]));
    format!("offsets = {zeros}, sizes = {}, strides = {ones}", list(dims))
}
