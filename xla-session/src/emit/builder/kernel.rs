//! Calls of kernels that the device was given.
//!
//! A kernel is an export of an executable that the compiler did not make (`iree_rt::Kernels`), so that all it has to do
//! is to schedule the dispatches: no code is generated, and what comes of it is for any CPU.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Write as _};

use super::{Builder, DYNAMIC, ElementType, Index, TensorType, Value, join};

/// A dispatch that calls a kernel, on memory that it updates in place.
#[derive(Debug)]
pub struct Call<'a> {
    /// Its name.
    pub symbol: &'a str,
    /// What it reads: bytes.
    pub reads: &'a [&'a Value],
    /// What it reads and writes, from here on under the names that [`Builder::call`] returns.
    pub updates: &'a [&'a Value],
    /// What it is told beside them, as constants of 32 bits.
    pub numbers: &'a [Index],
    /// How often it is called; calls run in any order and at the same time.
    pub items: &'a Index,
}

/// The kernels that are called, by their names: a `hal.executable`.
#[derive(Debug, Clone, Default)]
pub struct Executable(BTreeMap<String, Layout>);

/// What a kernel is called with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Layout {
    reads: usize,
    updates: usize,
    numbers: usize,
}

impl Builder {
    /// Calls a kernel; returns what it updates, as it is then.
    pub fn call(&mut self, call: &Call<'_>) -> Vec<Value> {
        let Call { symbol, reads, updates, numbers, items } = *call;
        let layout = Layout { reads: reads.len(), updates: updates.len(), numbers: numbers.len() };
        let items = self.materialise(items);
        let tensors: Vec<_> = reads.iter().chain(updates).collect();
        let extents: Vec<_> = tensors.iter().map(|it| self.unknown_extent(it)).collect();
        let numbers: Vec<_> = numbers.iter().map(|number| self.word(number)).collect();
        let operands = tensors.iter().map(|value| &value.name).chain(&numbers);
        let types = (tensors.iter().zip(&extents))
            .map(|(value, extent)| format!("{}{extent}", value.ty))
            .chain(numbers.iter().map(|_| "i32".into()));
        let tied = (updates.iter().zip(&extents[reads.len()..]))
            .map(|(value, extent)| format!("{}{extent}", value.name));
        let name = self.fresh();
        let _ = writeln!(
            self.text,
            "    {name}:{} = flow.dispatch @{EXECUTABLE}::@{VARIANT}::@{symbol}[{items}]({}) : ({}) -> ({})",
            updates.len(),
            join(operands.cloned()),
            join(types),
            join(tied),
        );
        self.executable.add(symbol.to_owned(), layout);
        let result = |(i, value): (usize, &&Value)| Value {
            name: format!("{name}#{i}"),
            ty: value.ty.clone(),
        };
        updates.iter().enumerate().map(result).collect()
    }

    /// The extent of bytes, to be written behind their type or name, if the type does not say it.
    fn unknown_extent(&mut self, value: &Value) -> String {
        let TensorType { dims, element } = &value.ty;
        assert!(
            dims.len() == 1 && *element == ElementType::I8,
            "kernels take bytes, not {}",
            value.ty
        );
        match dims[0] {
            DYNAMIC => format!("{{{}}}", self.extent(value)),
            _ => String::new(),
        }
    }
}

/// What the executable is called, and the one form that it has.
const EXECUTABLE: &str = "kernels";
const VARIANT: &str = "rust";

impl Executable {
    /// Adds what `other` has.
    pub fn extend(&mut self, other: Self) {
        other.0.into_iter().for_each(|(symbol, layout)| self.add(symbol, layout));
    }

    fn add(&mut self, symbol: String, layout: Layout) {
        let known = *self.0.entry(symbol).or_insert(layout);
        assert_eq!(known, layout, "a kernel in two forms");
    }
}

/// Its format is that of `iree_rt::Kernels`. The compiler's backend of SPIR-V is the one that passes on what it did not
/// make, whatever it is.
impl Display for Executable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "  hal.executable private @{EXECUTABLE} {{
    hal.executable.variant public @{VARIANT} target(<\"vulkan-spirv\", \"kernels:{}\">) \
             objects([#hal.executable.object<{{path = \"kernels\", data = dense<0> : vector<4xi8>}}>]) {{",
            self.0.keys().map(String::as_str).collect::<Vec<_>>().join(","),
        )?;
        for (ordinal, (symbol, layout)) in self.0.iter().enumerate() {
            writeln!(
                f,
                "      hal.executable.export public @{symbol} ordinal({ordinal}) layout({layout}) \
                 count(%device: !hal.device, %items: index) -> (index, index, index) {{
        %one = arith.constant 1 : index
        hal.return %items, %one, %one : index, index, index
      }}"
            )?;
        }
        writeln!(f, "    }}\n  }}")
    }
}

impl Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reads = (0..self.reads).map(|_| "#hal.pipeline.binding<storage_buffer, ReadOnly>");
        let updates = (0..self.updates).map(|_| "#hal.pipeline.binding<storage_buffer>");
        let bindings = join(reads.chain(updates).map(str::to_owned));
        write!(f, "#hal.pipeline.layout<constants = {}, bindings = [{bindings}]>", self.numbers)
    }
}
