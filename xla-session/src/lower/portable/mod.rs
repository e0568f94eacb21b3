//! Plain StableHLO for any compiler: static shapes, the checkpoint's own layouts, one sequence whose
//! cache is given to a call and comes back from it.

mod argmax;
mod attention;
mod convolution;
mod experts;
mod export;
mod graph;
mod kv_cache;
mod latent;
mod linear;
mod model;
mod rope;

pub use export::export;
pub use graph::{Argument, Graph, Source};

use checkpoint::architecture::Layer;
use checkpoint::config::ModelConfig;

use crate::emit::builder::{Builder, ElementType, TensorType, Value};
use crate::emit::{WeightFormats, WeightSpec};

/// Whether there are graphs of a model, else why not.
pub fn supports(config: &ModelConfig) -> Result<(), String> {
    let unsupported = |layer: &Layer| {
        layer.mixer.state().is_some()
            || layer.attention().is_some_and(|it| it.gated || it.has_norms_of_each_head())
    };
    if let Some(part) = super::of_encoders(&config.architecture) {
        return Err(format!(
            "there is no plain StableHLO of models with {part} ({}) yet",
            config.family.model_type()
        ));
    }
    if config.architecture.layers.iter().any(unsupported) {
        return Err(format!(
            "there is no plain StableHLO of models with gates or norms of each head or states of sequences ({}) yet",
            config.family.model_type()
        ));
    }
    Ok(())
}

/// Emits the graph of a model that is [supported](supports), for calls of `rows` tokens on a cache of `capacity`: `decode_step` for one,
/// `prefill_<rows>` for more.
pub fn emit(config: &ModelConfig, formats: &WeightFormats, capacity: usize, rows: usize) -> Graph {
    let name = if rows == 1 { "decode_step".into() } else { format!("prefill_{rows}") };
    let mut emitter = Emitter::new(config, formats, capacity, rows);
    let results = emitter.model();
    let text = format!("module @model {{\n{}}}\n", emitter.function(&name, &results));
    let results = results.into_iter().map(|value| value.ty).collect();
    Graph { name, text, rows, arguments: emitter.arguments, results }
}

struct Emitter<'a> {
    config: &'a ModelConfig,
    formats: &'a WeightFormats,
    capacity: usize,
    rows: usize,
    b: Builder,
    arguments: Vec<Argument>,
    start: Value,
    last: Value,
}

impl<'a> Emitter<'a> {
    fn new(
        config: &'a ModelConfig,
        formats: &'a WeightFormats,
        capacity: usize,
        rows: usize,
    ) -> Self {
        let scalar = Value { name: String::new(), ty: TensorType::new(&[], ElementType::I32) };
        let mut emitter = Self {
            config,
            formats,
            capacity,
            rows,
            b: Builder::default(),
            arguments: Vec::new(),
            start: scalar.clone(),
            last: scalar,
        };
        emitter.start = emitter.argument(Source::Start, &[], ElementType::I32);
        emitter.last = emitter.argument(Source::Last, &[], ElementType::I32);
        emitter
    }

    /// The argument for `source`, added at first use.
    fn argument(&mut self, source: Source, dims: &[usize], element: ElementType) -> Value {
        let ty = TensorType::new(dims, element);
        let at = self.arguments.iter().position(|a| a.source == source).unwrap_or_else(|| {
            self.arguments.push(Argument { ty: ty.clone(), source });
            self.arguments.len() - 1
        });
        Value { name: format!("%arg{at}"), ty }
    }

    fn weight(&mut self, spec: WeightSpec) -> Value {
        let TensorType { dims, element } = spec.ty();
        self.argument(Source::Weight(spec), &dims, element)
    }

    /// The function around the model.
    fn function(&self, name: &str, results: &[Value]) -> String {
        let list = |items: Vec<String>| items.join(", ");
        let arguments = self.arguments.iter().enumerate();
        let arguments = list(arguments.map(|(i, it)| format!("%arg{i}: {}", it.ty)).collect());
        let types = list(results.iter().map(|v| v.ty.to_string()).collect());
        let names = list(results.iter().map(|v| v.name.clone()).collect());
        format!(
            "  func.func public @{name}({arguments}) -> ({types}) {{\n{}    return {names} : \
             {types}\n  }}\n",
            self.b.text()
        )
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::emit::Format;

    #[test]
    fn graphs_hold_stablehlo_only() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
        let config = ModelConfig::from_dir(&folder.join("mistral-window-gqa-bf16")).unwrap();
        let formats = WeightFormats::all(Format::Bf16);
        for rows in [1, 32] {
            let graph = emit(&config, &formats, 512, rows);
            for line in graph.text.lines().filter(|line| line.contains(" = ")) {
                let op = line.split(" = ").nth(1).unwrap_or_default().trim_start_matches('"');
                assert!(op.starts_with("stablehlo."), "{line}");
            }
            assert!(!graph.text.contains('?'), "a dynamic extent");
        }
    }

    #[test]
    fn matrices_of_integers_are_widened() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
        for model in ["mistral-window-gqa-bf16", "qwen3-moe-gqa-bf16"] {
            let config = ModelConfig::from_dir(&folder.join(model)).unwrap();
            for format in [Format::Int8, Format::Int6, Format::Int4, Format::Nested4, Format::Q4K] {
                let graph = emit(&config, &WeightFormats::all(format), 512, 8);
                let mut matrices = 0;
                for Argument { ty, source } in &graph.arguments {
                    let Source::Weight(spec) = source else { continue };
                    matrices += usize::from(spec.columns > 0);
                    let rank = if spec.columns > 0 { 2 } else { 1 };
                    let is = (ty.dims.len(), ty.element);
                    assert_eq!(is, (rank, ElementType::F32), "{model}, {format:?}: {spec:?}");
                }
                assert!(matrices > 2);
            }
        }
    }
}
