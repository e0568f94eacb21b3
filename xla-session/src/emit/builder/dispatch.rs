//! Dispatches that are written out: what is in one is the graph's choice, not the compiler's.

use std::fmt::Write as _;

use super::{Builder, DYNAMIC, Index, TensorType, Value, list};

/// A dispatch that calls a kernel which the device was given, on memory that it updates in place.
pub struct Call<'a> {
    /// Its symbol.
    pub symbol: &'a str,
    /// What it reads.
    pub reads: &'a [&'a Value],
    /// What it reads and writes, from here on under the names that [`Builder::call`] returns.
    pub updates: &'a [&'a Value],
    /// What it is told after them; the number of the work item comes first.
    pub numbers: &'a [Index],
    /// How often it is called; calls run in any order and at the same time.
    pub items: &'a Index,
}

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
    /// Calls a kernel; returns what it updates, as it is then.
    pub fn call(&mut self, call: &Call<'_>) -> Vec<Value> {
        let Call { symbol, reads, updates, numbers, items } = *call;
        let (items, count) = (self.materialise(items), updates.len());
        let tensors: Vec<_> = reads.iter().chain(updates).collect();
        // Extents come behind the tensors, then the numbers.
        let extent =
            |b: &mut Self, value: &Value| value.dims().contains(&DYNAMIC).then(|| b.extent(value));
        let extents: Vec<_> = tensors.iter().map(|value| extent(self, value)).collect();
        let typed = |value: &Value, extent: &Option<String>| match extent {
            Some(extent) => format!("{}{{{extent}}}", value.ty),
            None => value.ty.to_string(),
        };
        let numbers: Vec<_> = numbers.iter().map(|number| self.materialise(number)).collect();
        let scalars: Vec<_> = extents.iter().flatten().chain(&numbers).collect();
        let operands = tensors.iter().map(|value| &value.name).chain(scalars.iter().copied());
        let types = (tensors.iter().zip(&extents).map(|(value, extent)| typed(value, extent)))
            .chain(scalars.iter().map(|_| "index".into()));
        let tied =
            updates.iter().zip(&extents[reads.len()..]).map(|(value, extent)| match extent {
                Some(extent) => format!("{}{{{extent}}}", value.name),
                None => value.name.clone(),
            });
        let access = |at: usize| if at < reads.len() { "readonly" } else { "readwrite" };
        let inside = (tensors.iter().enumerate())
            .map(|(at, value)| format!("%t{at}: {}", tensor_access(access(at), &value.ty)))
            .chain((0..scalars.len()).map(|at| format!("%s{at}: index")));
        let name = self.fresh();
        let _ = writeln!(
            self.text,
            "    {name}:{count} = flow.dispatch.workgroups[{items}]({}) : ({}) -> ({}) =\n        \
             ({}) {{",
            join(operands.cloned()),
            join(types),
            join(tied),
            join(inside),
        );

        let mut next = 0..;
        let places: Vec<_> = extents
            .iter()
            .map(|extent| extent.as_ref().and_then(|_| next.next()).map(|at| format!("%s{at}")))
            .collect();
        for (at, (value, extent)) in tensors.iter().zip(&places).enumerate() {
            let (ty, of) = (&value.ty, tensor_access(access(at), &value.ty));
            let mut from = format!("%t{at}");
            if let Some(extent) = extent {
                let _ = writeln!(
                    self.text,
                    "      %tied{at} = flow.dispatch.tie_shape %t{at} : {of}{{{extent}}}"
                );
                from = format!("%tied{at}");
            }
            let _ = writeln!(
                self.text,
                "      %v{at} = iree_tensor_ext.dispatch.tensor.load {from}, {} : {of}{} -> {ty}",
                all_of(ty, extent.as_deref()),
                extent.as_ref().map_or(String::new(), |extent| format!("{{{extent}}}")),
            );
        }
        let (read, updated): (Vec<_>, Vec<_>) =
            (0..tensors.len()).partition(|&at| at < reads.len());
        let values = |places: &[usize]| join(places.iter().map(|at| format!("%v{at}")));
        let types_of = |places: &[usize]| join(places.iter().map(|&at| tensors[at].ty.to_string()));
        let ins = match read.is_empty() {
            true => String::new(),
            false => format!("ins({} : {}) ", values(&read), types_of(&read)),
        };
        let first = scalars.len() - numbers.len();
        let told = (first..scalars.len()).map(|at| format!(", %s{at}")).collect::<String>();
        let _ = writeln!(
            self.text,
            "      %item = flow.dispatch.workgroup.id[0] : index
      %made:{count} = iree_codegen.ukernel.generic \"{symbol}\" {ins}outs({} : {}) (%item{told} : \
             index{}) strided_dims([{}]) -> {}",
            values(&updated),
            types_of(&updated),
            ", index".repeat(numbers.len()),
            vec!["[]"; tensors.len()].join(", "),
            types_of(&updated),
        );
        for (i, at) in updated.into_iter().enumerate() {
            let (ty, extent) = (&tensors[at].ty, places[at].as_deref());
            let to = if extent.is_some() { format!("%tied{at}") } else { format!("%t{at}") };
            let _ = writeln!(
                self.text,
                "      iree_tensor_ext.dispatch.tensor.store %made#{i}, {to}, {} : {ty} -> {}{}",
                all_of(ty, extent),
                tensor_access("readwrite", ty),
                extent.map_or(String::new(), |extent| format!("{{{extent}}}")),
            );
        }
        self.text += "      flow.return
    } count(%items: index) -> (index, index, index) {
      %one = arith.constant 1 : index
      flow.return %items, %one, %one : index, index, index
    }\n";
        let result = |(i, value): (usize, &&Value)| Value {
            name: format!("{name}#{i}"),
            ty: value.ty.clone(),
        };
        updates.iter().enumerate().map(result).collect()
    }

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

/// The slice that is all of a tensor, whose first extent `extent` names where it is not known.
fn all_of(ty: &TensorType, extent: Option<&str>) -> String {
    let size = |&dim: &usize| match (dim, extent) {
        (DYNAMIC, Some(extent)) => extent.to_owned(),
        (dim, _) => dim.to_string(),
    };
    let sizes = join(ty.dims.iter().map(size));
    let [zeros, ones] = [0, 1].map(|n| list(&vec![n; ty.dims.len()]));
    format!("offsets = {zeros}, sizes = [{sizes}], strides = {ones}")
}

fn join(items: impl Iterator<Item = String>) -> String {
    items.collect::<Vec<_>>().join(", ")
}
