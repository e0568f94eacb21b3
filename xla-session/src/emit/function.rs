//! The function around an emitted body: what a graph's caller sees.

use std::fmt::Write as _;

use super::builder::{DYNAMIC, Index, TensorType, Value};
use super::graph::{Argument, Source};
use super::{ElementType, Emitter, Target};

/// One function of a module.
pub(super) struct Function {
    pub text: String,
    pub arguments: Vec<Argument>,
    pub results: Vec<TensorType>,
}

/// Results that go to memory of the caller: the token and the logits; the others are caches, which
/// are updated in place.
const ANSWERS: usize = 2;

/// Where a value in [`Source::Kept`] begins: a multiple of this, bytes.
const ALIGNMENT: usize = 256;

impl Emitter<'_> {
    /// The function `name`, which runs the model.
    pub(super) fn function(mut self, name: &str) -> Function {
        let results = self.model();
        let text = if let Target::Cuda(_) = self.target {
            self.buffer_view_function(name, &results)
        } else {
            self.tensor_function(name, &results)
        };
        let results = results.into_iter().map(|value| value.ty).collect();
        Function { text, arguments: self.arguments, results }
    }

    /// `value`, where a dispatch ends: of a graph with a reusable command buffer in memory of its
    /// own. What the compiler places itself lies in memory of a length that is known only at run
    /// time ([`Source::Scratch`]), and a command buffer that names it is made anew for each call.
    pub(super) fn kept(&mut self, value: Value) -> Value {
        if self.capacity.is_none() {
            return value;
        }
        let memory = self.kept_memory(value.ty.bytes());
        self.stored(&value, &format!("{memory} : !hal.buffer"))
    }

    /// The logits, in the caller's memory as soon as they are there: the argmax reads them there.
    pub(super) fn answered(&mut self, logits: Value) -> Value {
        match self.capacity {
            None => logits,
            Some(_) => {
                assert_eq!(
                    logits.dims(),
                    [self.config.vocab_size],
                    "where the caller's memory ends"
                );
                self.stored(&logits, "%storage1 : !hal.buffer_view")
            }
        }
    }

    /// `parts`, one behind the other along `dim`; each a result of its own, that is written to its
    /// place, where the graph chose it.
    pub(super) fn joined(&mut self, parts: &[Value], dim: usize) -> Value {
        if self.capacity.is_none() {
            return self.b.concat(parts, dim);
        }
        let mut ty = parts[0].ty.clone();
        ty.dims[dim] = parts.iter().map(|part| part.dims()[dim]).sum();
        let memory = self.kept_memory(ty.bytes());
        let import = format!("hal.tensor.import wait(%wait) => {memory} : !hal.buffer -> {ty}");
        let mut whole = self.b.op(&ty.dims, ty.element, import);
        let mut at = 0;
        for part in parts {
            let mut offsets = vec![Index::from(0); ty.dims.len()];
            offsets[dim] = at.into();
            whole = self.b.insert(part, &whole, &offsets);
            at += part.dims()[dim];
        }
        whole
    }

    fn stored(&mut self, value: &Value, memory: &str) -> Value {
        let Value { name, ty } = value;
        let place = format_args!("hal.tensor.alias wait(%wait) => {name} : {ty} to {memory}");
        self.b.op(&ty.dims, ty.element, place)
    }

    /// The name of a buffer of `bytes` bytes.
    fn kept_memory(&mut self, bytes: usize) -> String {
        let at = self.kept;
        self.kept = (at + bytes).next_multiple_of(ALIGNMENT);
        self.b.part_of_buffer("%kept", at, bytes)
    }

    /// Tensors in and out: what every StableHLO compiler takes.
    fn tensor_function(&self, name: &str, results: &[Value]) -> String {
        let arguments =
            self.arguments.iter().enumerate().map(|(i, argument)| match argument.source {
                ref source if source.is_scalar() && self.is_iree() => format!("%arg{i}: i32"),
                _ => format!("%arg{i}: {}", argument.ty),
            });
        let types = list(results.iter().map(|v| v.ty.to_string()));
        format!(
            "  func.func public @{name}({}) -> ({types}) {{\n{}    return {} : {types}\n  }}\n",
            list(arguments),
            self.b.text(),
            list(results.iter().map(|v| v.name.clone())),
        )
    }

    /// Buffer views in and out, with what IREE would add to a function of tensors written out.
    ///
    /// IREE adds it by calling the function from a wrapper; but a function that calls kernels is
    /// not inlined there, and that call copies every argument, weights and cache too. And written
    /// out, a decode step allocates nothing: the token and the logits go to memory of the caller
    /// ([`Source::Result`]), what lies between to its scratch memory ([`Source::Scratch`]; IREE
    /// exports `<name>_transients_size`, which says how much) or, on a GPU, to places that the graph
    /// chose ([`kept`](Self::kept)). IREE's CUDA driver waits on the host where work allocates, so
    /// that nothing else would let calls run ahead of it. Prefill
    /// allocates what lies between: in scratch memory IREE lays out every layer's by itself, 0.6 GB
    /// for 256 rows of a 1B model.
    ///
    /// The two fences behind the arguments are what the call waits for and what it reaches.
    fn buffer_view_function(&mut self, name: &str, results: &[Value]) -> String {
        const VIEW: &str = "!hal.buffer_view";
        let mut imports = String::new();
        let import = |(i, argument): (usize, &Argument)| {
            if argument.source.is_scalar() {
                return format!("%arg{i}: i32");
            }
            let mut extents = String::new();
            if argument.ty.dims.contains(&DYNAMIC) {
                let _ = writeln!(
                    imports,
                    "    %extent{i} = hal.buffer_view.dim<%view{i} : {VIEW}>[0] : index"
                );
                extents = format!("{{%extent{i}}}");
            }
            let ty = &argument.ty;
            let _ = writeln!(
                imports,
                "    %arg{i} = hal.tensor.import wait(%wait) => %view{i} : {VIEW} -> {ty}{extents}"
            );
            format!("%view{i}: {VIEW}")
        };
        let mut arguments: Vec<_> = self.arguments.iter().enumerate().map(import).collect();
        // What a GPU's decode step does not place itself, if there is anything, goes there too.
        let scratch = self.rows == 1;
        let mut exports = String::new();
        let mut values = Vec::new();
        for (i, result) in results.iter().enumerate() {
            let (mut value, ty) = (result.name.clone(), &result.ty);
            let mut extents = String::new();
            if ty.dims.contains(&DYNAMIC) {
                let _ = writeln!(
                    exports,
                    "    %first{i} = arith.constant 0 : index
    %size{i} = tensor.dim {value}, %first{i} : {ty}"
                );
                extents = format!("{{%size{i}}}");
            }
            if i < ANSWERS {
                if self.capacity.is_none() || i == 0 {
                    let _ = writeln!(
                        exports,
                        "    %stored{i} = hal.tensor.alias wait(%wait) => {value} : {ty} to \
                         %storage{i} : {VIEW}"
                    );
                    value = format!("%stored{i}");
                }
                arguments.push(format!("%storage{i}: {VIEW}"));
                self.arguments.push(Argument { ty: ty.clone(), source: Source::Result(i) });
            }
            if scratch {
                let _ = writeln!(
                    exports,
                    "    %value{i} = hal.tensor.transients {value} : {ty}{extents} from %scratch : \
                     {VIEW}"
                );
                value = format!("%value{i}");
            }
            values.push(value);
        }
        if scratch {
            let ty = TensorType::new(&[DYNAMIC], ElementType::I8);
            self.arguments.push(Argument { ty, source: Source::Scratch });
            arguments.push(format!("%scratch: {VIEW}"));
        }
        if self.capacity.is_some() {
            let ty = TensorType::new(&[self.kept], ElementType::I8);
            self.arguments.push(Argument { ty, source: Source::Kept });
            arguments.push(format!("%kept_view: {VIEW}"));
            let _ = writeln!(
                imports,
                "    %kept = hal.buffer_view.buffer<%kept_view : {VIEW}> : !hal.buffer"
            );
        }
        arguments.extend(["%wait: !hal.fence".into(), "%signal: !hal.fence".into()]);

        let n = results.len();
        let _ = writeln!(
            exports,
            "    %ready:{n} = hal.tensor.barrier join({} : {}) => %signal : !hal.fence",
            list(values.into_iter()),
            list(results.iter().map(|result| result.ty.to_string())),
        );
        for (i, result) in results.iter().enumerate() {
            let ty = &result.ty;
            let extents =
                if ty.dims.contains(&DYNAMIC) { format!("{{%size{i}}}") } else { String::new() };
            let _ = writeln!(
                exports,
                "    %result{i} = hal.tensor.export %ready#{i} : {ty}{extents} -> {VIEW}"
            );
        }
        let views = list(results.iter().map(|_| VIEW.to_owned()));
        format!(
            "  util.func public @{name}({}) -> ({views}) attributes \
             {{iree.abi.stub, iree.reflection = {{iree.abi.model = \"coarse-fences\"}}}} \
             {{\n{imports}{}{exports}    util.return {} : {views}\n  }}\n",
            list(arguments.into_iter()),
            self.b.text(),
            list((0..n).map(|i| format!("%result{i}"))),
        )
    }
}

fn list(items: impl Iterator<Item = String>) -> String {
    items.collect::<Vec<_>>().join(", ")
}
