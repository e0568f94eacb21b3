//! The function around an emitted body: what a graph's caller sees.

use std::fmt::Write as _;

use super::builder::{DYNAMIC, TensorType, Value};
use super::graph::{Argument, Graph, Source};
use super::{ElementType, Emitter};

impl Emitter<'_> {
    /// The module that returns `results`.
    pub(super) fn finish(mut self, results: &[Value]) -> Graph {
        let name =
            if self.rows == 1 { "decode_step".into() } else { format!("prefill_{}", self.rows) };
        let text = if self.takes_buffer_views() {
            self.buffer_view_function(&name, results)
        } else {
            self.tensor_function(&name, results)
        };
        Graph {
            name,
            text,
            rows: self.rows,
            arguments: self.arguments,
            results: results.iter().map(|v| v.ty.clone()).collect(),
        }
    }

    /// Tensors in and out: what every StableHLO compiler takes.
    fn tensor_function(&self, name: &str, results: &[Value]) -> String {
        let arguments =
            self.arguments.iter().enumerate().map(|(i, argument)| match argument.source {
                Source::Start | Source::Last if self.is_iree() => format!("%arg{i}: i32"),
                _ => format!("%arg{i}: {}", argument.ty),
            });
        let types = list(results.iter().map(|v| v.ty.to_string()));
        format!(
            "module @model {{\n  func.func public @{name}({}) -> ({types}) {{\n{}    \
             return {} : {types}\n  }}\n}}\n",
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
    /// exports `<name>_transients_size`, which says how much). IREE's CUDA driver waits on the host
    /// where work allocates, so that nothing else would let calls run ahead of it. Prefill
    /// allocates what lies between: in scratch memory IREE lays out every layer's by itself, 0.6 GB
    /// for 256 rows of a 1B model.
    ///
    /// The two fences behind the arguments are what the call waits for and what it reaches.
    fn buffer_view_function(&mut self, name: &str, results: &[Value]) -> String {
        const VIEW: &str = "!hal.buffer_view";
        let mut imports = String::new();
        let import = |(i, argument): (usize, &Argument)| {
            if matches!(argument.source, Source::Start | Source::Last) {
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
            } else {
                let _ = writeln!(
                    exports,
                    "    %stored{i} = hal.tensor.alias wait(%wait) => {value} : {ty} to %storage{i} \
                     : {VIEW}"
                );
                value = format!("%stored{i}");
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
            "module @model {{\n  util.func public @{name}({}) -> ({views}) attributes \
             {{iree.abi.stub, iree.reflection = {{iree.abi.model = \"coarse-fences\"}}}} \
             {{\n{imports}{}{exports}    util.return {} : {views}\n  }}\n}}\n",
            list(arguments.into_iter()),
            self.b.text(),
            list((0..n).map(|i| format!("%result{i}"))),
        )
    }
}

fn list(items: impl Iterator<Item = String>) -> String {
    items.collect::<Vec<_>>().join(", ")
}
