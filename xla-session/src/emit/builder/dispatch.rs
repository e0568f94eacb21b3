//! Dispatches that are written out: what is in one is the graph's choice, not the compiler's.

use std::fmt::Write as _;

use super::{Builder, DYNAMIC, ElementType, Index, TensorType, Value, list};

/// A dispatch that calls a kernel which the device was given.
pub struct Kernel<'a> {
    /// Its symbol.
    pub symbol: &'a str,
    /// What it reads.
    pub inputs: &'a [&'a Value],
    /// What it is told after them and the result; the number of the work item comes first.
    pub scalars: &'a [Index],
    /// How often it is called; calls run in any order and at the same time.
    pub work_items: usize,
}

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

/// A dispatch that is being written.
pub struct Workgroups {
    name: String,
    /// What it reads, inside.
    pub reads: Vec<Value>,
    /// What it updates, inside.
    pub updates: Vec<Value>,
    /// The name, type and tensor of what each result is written to.
    targets: Vec<(String, String, TensorType)>,
}

impl Builder {
    /// The `f32` tensor of `dims` that `kernel` writes, every element of it by one work item.
    pub fn kernel(&mut self, kernel: &Kernel<'_>, dims: &[usize]) -> Value {
        let ty = TensorType::new(dims, ElementType::F32);
        let scalars: Vec<_> = kernel.scalars.iter().map(|index| self.materialise(index)).collect();
        let names: Vec<_> = kernel.inputs.iter().map(|v| v.name.as_str()).collect();
        let types: Vec<_> = kernel.inputs.iter().map(|v| v.ty.to_string()).collect();
        let strides = vec!["[]"; kernel.inputs.len() + 1];
        let mut text = format!(
            "flow.dispatch.region -> ({ty}) {{
      %into = tensor.empty() : {ty}
      %item = flow.dispatch.workgroup.id[0] : index
      %result = iree_codegen.ukernel.generic \"{}\" ins({} : {}) outs(%into : {ty}) (%item",
            kernel.symbol,
            names.join(", "),
            types.join(", "),
        );
        for scalar in &scalars {
            let _ = write!(text, ", {scalar}");
        }
        let _ = write!(
            text,
            " : index{}) strided_dims([{}]) -> {ty}
      flow.return %result : {ty}
    }} count() -> (index, index, index) {{
      %items = arith.constant {} : index
      %one = arith.constant 1 : index
      flow.return %items, %one, %one : index, index, index
    }}",
            ", index".repeat(scalars.len()),
            strides.join(", "),
            kernel.work_items,
        );
        self.op(dims, ElementType::F32, text)
    }

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

    /// One dispatch of what `body` makes: `into` with something inserted, each.
    pub fn dispatch<const N: usize>(
        &mut self,
        into: [&Value; N],
        body: impl FnOnce(&mut Self) -> [Value; N],
    ) -> [Value; N] {
        let types = into.map(|value| match value.dims().contains(&DYNAMIC) {
            true => format!("{}{{{}}}", value.ty, self.extent(value)),
            false => value.ty.to_string(),
        });
        let name = self.fresh();
        let _ = writeln!(
            self.text,
            "    {name}:{N} = flow.dispatch.region -> ({}) {{",
            types.join(", ")
        );
        let results = body(self);
        let (names, types) = (
            results.each_ref().map(|value| value.name.as_str()),
            results.each_ref().map(|value| value.ty.to_string()),
        );
        let _ = writeln!(
            self.text,
            "      flow.return {} : {}\n    }}",
            names.join(", "),
            types.join(", ")
        );
        std::array::from_fn(|i| Value { name: format!("{name}#{i}"), ty: into[i].ty.clone() })
    }

    /// Begins a dispatch that reads from memory what its loops and slices depend on: unlike
    /// [`dispatch`](Self::dispatch), out of which the compiler moves arithmetic on scalars, and the
    /// load of a scalar with it, to the host. [`end_workgroups`](Self::end_workgroups) ends it; what
    /// lies between sees nothing but the values inside. All extents are known.
    pub fn begin_workgroups(
        &mut self,
        reads: &[&Value],
        updates: &[&Value],
        makes: &[TensorType],
    ) -> Workgroups {
        let count = updates.len() + makes.len();
        let name = self.fresh();
        let mut operands: Vec<(String, &Value, String)> = Vec::new();
        for (access, values) in [("readonly", reads), ("readwrite", updates)] {
            for value in values {
                operands.push((self.fresh(), value, tensor_access(access, &value.ty)));
            }
        }
        let made: Vec<_> =
            makes.iter().map(|ty| (self.fresh(), tensor_access("writeonly", ty))).collect();
        let join = |items: Vec<String>| items.join(", ");
        let results = join(
            updates
                .iter()
                .map(|value| value.name.clone())
                .chain(makes.iter().map(ToString::to_string))
                .collect(),
        );
        let _ = writeln!(
            self.text,
            "    {name}:{count} = flow.dispatch.workgroups({}) : ({}) -> ({results}) =\n        \
             ({}) {{",
            join(operands.iter().map(|(_, value, _)| value.name.clone()).collect()),
            join(operands.iter().map(|(_, value, _)| value.ty.to_string()).collect()),
            join(
                operands
                    .iter()
                    .map(|(inside, _, ty)| format!("{inside}: {ty}"))
                    .chain(made.iter().map(|(inside, ty)| format!("{inside}: {ty}")))
                    .collect()
            ),
        );
        let mut loaded = Vec::new();
        for (inside, value, ty) in &operands {
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
        let updated = loaded.split_off(reads.len());
        let targets = operands
            .into_iter()
            .skip(reads.len())
            .map(|(inside, value, ty)| (inside, ty, value.ty.clone()));
        let made =
            made.into_iter().zip(makes).map(|((inside, ty), made)| (inside, ty, made.clone()));
        Workgroups { name, reads: loaded, updates: updated, targets: targets.chain(made).collect() }
    }

    /// Ends a dispatch whose results, the updated ones first, are `results` inside.
    pub fn end_workgroups(&mut self, dispatch: Workgroups, results: &[Value]) -> Vec<Value> {
        for (value, (target, access, _)) in results.iter().zip(&dispatch.targets) {
            let _ = writeln!(
                self.text,
                "    iree_tensor_ext.dispatch.tensor.store {}, {target}, {} : {} -> {access}",
                value.name,
                whole(value.dims()),
                value.ty,
            );
        }
        self.text += "    flow.return
    } count() -> (index, index, index) {
      %x, %y, %z = iree_tensor_ext.dispatch.workgroup_count_from_slice()
      flow.return %x, %y, %z : index, index, index
    }\n";
        let Workgroups { name, targets, .. } = dispatch;
        let result = |(i, (_, _, ty))| Value { name: format!("{name}#{i}"), ty };
        targets.into_iter().enumerate().map(result).collect()
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
