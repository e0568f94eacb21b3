//! Calls of kernels that the device was given.
//!
//! What a dispatch does is written once for each list of sizes that a kernel is called with, all of them in one
//! executable. Written where it is called, the compiler would have to find out which are equal, and would run all of
//! its passes for each that is left: a graph of two layers took 1.2 times as long to compile, one of thirty 1.5.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Write as _};

use super::dispatch::tensor_access;
use super::{Builder, DYNAMIC, ElementType, Index, TensorType, Value, join};

/// A dispatch that calls a kernel, on memory that it updates in place.
#[derive(Debug)]
pub struct Call<'a> {
    /// Its symbol.
    pub symbol: &'a str,
    /// What it reads: bytes.
    pub reads: &'a [&'a Value],
    /// What it reads and writes, from here on under the names that [`Builder::call`] returns.
    pub updates: &'a [&'a Value],
    /// What it is told after them; the number of the work item comes first.
    pub numbers: &'a [Index],
    /// How often it is called; calls run in any order and at the same time.
    pub items: &'a Index,
}

/// The kernels that are called, each with every list of sizes it is called with: a `flow.executable`.
#[derive(Debug, Clone, Default)]
pub struct Executable(BTreeMap<String, Entry>);

/// A kernel, and sizes that it is called with.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    symbol: String,
    /// Bytes of what it reads, then of what it updates; [`DYNAMIC`] where that is not known.
    tensors: Vec<usize>,
    reads: usize,
    numbers: usize,
}

impl Builder {
    /// Calls a kernel; returns what it updates, as it is then.
    pub fn call(&mut self, call: &Call<'_>) -> Vec<Value> {
        let Call { symbol, reads, updates, numbers, items } = *call;
        let tensors: Vec<_> = reads.iter().chain(updates).collect();
        let entry = Entry {
            symbol: symbol.to_owned(),
            tensors: tensors.iter().map(|value| bytes(&value.ty)).collect(),
            reads: reads.len(),
            numbers: numbers.len(),
        };
        let items = self.materialise(items);
        let extents: Vec<_> =
            tensors.iter().map(|it| (bytes(&it.ty) == DYNAMIC).then(|| self.extent(it))).collect();
        let numbers: Vec<_> = numbers.iter().map(|number| self.materialise(number)).collect();
        let scalars: Vec<_> = extents.iter().flatten().chain(&numbers).collect();
        let operands = tensors.iter().map(|value| &value.name).chain(scalars.iter().copied());
        let types = (tensors.iter().zip(&extents))
            .map(|(value, extent)| format!("{}{}", value.ty, braced(extent.as_deref())))
            .chain(scalars.iter().map(|_| "index".into()));
        let tied = (updates.iter().zip(&extents[reads.len()..]))
            .map(|(value, extent)| format!("{}{}", value.name, braced(extent.as_deref())));
        let name = self.fresh();
        let _ = writeln!(
            self.text,
            "    {name}:{} = flow.dispatch @{}::@{}[{items}]({}) : ({}) -> ({})",
            updates.len(),
            Executable::NAME,
            entry.name(),
            join(operands.cloned()),
            join(types),
            join(tied),
        );
        self.executable.add(entry);
        let result = |(i, value): (usize, &&Value)| Value {
            name: format!("{name}#{i}"),
            ty: value.ty.clone(),
        };
        updates.iter().enumerate().map(result).collect()
    }
}

impl Executable {
    const NAME: &str = "kernels";

    /// Adds what `other` has.
    pub fn extend(&mut self, other: Self) {
        other.0.into_values().for_each(|entry| self.add(entry));
    }

    fn add(&mut self, entry: Entry) {
        let before = self.0.insert(entry.name(), entry.clone());
        debug_assert!(before.is_none_or(|it| it == entry), "{} in two forms", entry.symbol);
    }
}

impl Display for Executable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "  flow.executable private @{} {{", Self::NAME)?;
        for name in self.0.keys() {
            writeln!(
                f,
                "    flow.executable.export public @{name} workgroups(%items: index) -> (index, index, index) {{
      %one = arith.constant 1 : index
      flow.return %items, %one, %one : index, index, index
    }}"
            )?;
        }
        writeln!(f, "    builtin.module {{")?;
        self.0.values().try_for_each(|entry| write!(f, "{entry}"))?;
        writeln!(f, "    }}\n  }}")
    }
}

impl Entry {
    /// The symbol, and how many bytes each tensor has: `x` where that is not known.
    fn name(&self) -> String {
        let bytes = |&bytes: &usize| match bytes {
            DYNAMIC => "_x".to_owned(),
            bytes => format!("_{bytes}"),
        };
        format!("{}{}", self.symbol, self.tensors.iter().map(bytes).collect::<String>())
    }
}

/// The function of an entry: its tensors, their extents where these are not known, then the numbers.
impl Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { symbol, tensors, reads, numbers } = self;
        let tensors: Vec<_> =
            tensors.iter().map(|&bytes| TensorType::new(&[bytes], ElementType::I8)).collect();
        let access = |at: usize| {
            tensor_access(if at < *reads { "readonly" } else { "readwrite" }, &tensors[at])
        };
        let mut next = 0..;
        let extents: Vec<_> = tensors
            .iter()
            .map(|ty| (bytes(ty) == DYNAMIC).then(|| next.next()).flatten())
            .map(|at| at.map(|at| format!("%s{at}")))
            .collect();
        let first = extents.iter().flatten().count();
        let arguments = (0..tensors.len()).map(|at| format!("%t{at}: {}", access(at)));
        let scalars = (0..first + numbers).map(|at| format!("%s{at}: index"));
        writeln!(f, "      func.func @{}({}) {{", self.name(), join(arguments.chain(scalars)))?;

        let all_of = |ty: &TensorType, extent: Option<&str>| {
            let size = extent.map_or_else(|| ty.dims[0].to_string(), str::to_owned);
            format!("offsets = [0], sizes = [{size}], strides = [1]")
        };
        let prefix = |at: usize| if extents[at].is_some() { "tied" } else { "t" };
        for (at, (ty, extent)) in tensors.iter().zip(&extents).enumerate() {
            let (of, extent) = (access(at), extent.as_deref());
            if let Some(extent) = extent {
                writeln!(
                    f,
                    "        %tied{at} = flow.dispatch.tie_shape %t{at} : {of}{{{extent}}}"
                )?;
            }
            writeln!(
                f,
                "        %v{at} = iree_tensor_ext.dispatch.tensor.load %{}{at}, {} : {of}{} -> {ty}",
                prefix(at),
                all_of(ty, extent),
                braced(extent),
            )?;
        }
        let values = |places: std::ops::Range<usize>| join(places.map(|at| format!("%v{at}")));
        let types = |tensors: &[TensorType]| join(tensors.iter().map(TensorType::to_string));
        let ins = match reads {
            0 => String::new(),
            &reads => format!("ins({} : {}) ", values(0..reads), types(&tensors[..reads])),
        };
        let updated = types(&tensors[*reads..]);
        // Not `flow.dispatch.workgroup.id`: of several functions of an executable the compiler leaves it in one only
        // (3.13).
        writeln!(
            f,
            "        %item = stream.dispatch.workgroup.id[0] : index
        %made:{} = iree_codegen.ukernel.generic \"{symbol}\" {ins}outs({} : {updated}) (%item{} : index{}) \
             strided_dims([{}]) -> {updated}",
            tensors.len() - reads,
            values(*reads..tensors.len()),
            (first..first + numbers).map(|at| format!(", %s{at}")).collect::<String>(),
            ", index".repeat(*numbers),
            vec!["[]"; tensors.len()].join(", "),
        )?;
        for at in *reads..tensors.len() {
            let (ty, extent) = (&tensors[at], extents[at].as_deref());
            writeln!(
                f,
                "        iree_tensor_ext.dispatch.tensor.store %made#{}, %{}{at}, {} : {ty} -> {}{}",
                at - reads,
                prefix(at),
                all_of(ty, extent),
                access(at),
                braced(extent),
            )?;
        }
        writeln!(f, "        return\n      }}")
    }
}

/// Bytes of what a kernel is called with.
fn bytes(ty: &TensorType) -> usize {
    debug_assert!(
        ty.dims.len() == 1 && ty.element == ElementType::I8,
        "kernels take bytes, not {ty}"
    );
    ty.dims[0]
}

/// The extent behind a type or a value whose own is not known.
fn braced(extent: Option<&str>) -> String {
    extent.map_or_else(String::new, |extent| format!("{{{extent}}}"))
}
