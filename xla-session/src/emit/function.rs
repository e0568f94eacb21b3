//! The function around an emitted body: what a graph's caller sees.

use std::fmt::Write as _;

use super::Emitter;
use super::builder::{DYNAMIC, Value};
use super::graph::{Graph, Source};

impl Emitter<'_> {
    /// The module that returns `results`.
    pub(super) fn finish(self, results: &[Value]) -> Graph {
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

    /// Buffer views in and out, with the imports and exports written out. IREE adds them to a
    /// function of tensors by calling it from a wrapper; but a function that calls kernels is not
    /// inlined there, and that call copies every argument, weights and cache too.
    fn buffer_view_function(&self, name: &str, results: &[Value]) -> String {
        const VIEW: &str = "!hal.buffer_view";
        let mut imports = String::new();
        let arguments = self.arguments.iter().enumerate().map(|(i, argument)| {
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
                "    %arg{i} = hal.tensor.import %view{i} : {VIEW} -> {ty}{extents}"
            );
            format!("%view{i}: {VIEW}")
        });
        let arguments = list(arguments);
        let mut exports = String::new();
        for (i, result) in results.iter().enumerate() {
            let (value, ty) = (&result.name, &result.ty);
            let mut extents = String::new();
            if ty.dims.contains(&DYNAMIC) {
                let _ = writeln!(
                    exports,
                    "    %first{i} = arith.constant 0 : index
    %size{i} = tensor.dim {value}, %first{i} : {ty}"
                );
                extents = format!("{{%size{i}}}");
            }
            let _ = writeln!(
                exports,
                "    %result{i} = hal.tensor.export {value} : {ty}{extents} -> {VIEW}"
            );
        }
        let views = list(results.iter().map(|_| VIEW.to_owned()));
        format!(
            "module @model {{\n  util.func public @{name}({arguments}) -> ({views}) \
             attributes {{iree.abi.stub}} {{\n{imports}{}{exports}    \
             util.return {} : {views}\n  }}\n}}\n",
            self.b.text(),
            list((0..results.len()).map(|i| format!("%result{i}"))),
        )
    }
}

fn list(items: impl Iterator<Item = String>) -> String {
    items.collect::<Vec<_>>().join(", ")
}
