//! The emitter: a model's `config.json` in, StableHLO text out.
//!
//! [`emit`] writes one function for calls of a fixed number of rows (tokens): one row is the
//! decode step, more are a prefill chunk. The model ([`model`](self)) is written once; what a
//! [`Target`] wants differently (layouts of weights and cache, tiles) is decided inside the
//! concept that it concerns.

mod argmax;
mod attention;
pub mod builder;
mod export;
mod graph;
mod kv_cache;
mod linear;
mod model;
mod norm;
mod rope;
mod tiles;

use std::collections::BTreeMap;
use std::fmt::Write as _;

pub use builder::ElementType;
use builder::{Builder, DYNAMIC, TensorType, Value};
pub use export::export;
pub use graph::{Argument, Graph, Layout, Source, WeightSpec};
pub use kv_cache::KV_BLOCK;
pub use tiles::CpuTiles;

use crate::checkpoint::{Checkpoint, Dtype};
use crate::config::ModelConfig;

/// Who will compile the graph.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Target {
    /// Any StableHLO compiler: plain operations, static shapes, the checkpoint's own layouts.
    Portable {
        /// Tokens that the KV cache holds.
        capacity: usize,
    },
    /// IREE for the CPU.
    Cpu(CpuTiles),
}

/// The element types that weights have in device memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WeightTypes {
    /// The type of every matrix that is not an exception.
    pub default: ElementType,
    /// Matrices of another type, by tensor name.
    pub exceptions: BTreeMap<String, ElementType>,
}

impl WeightTypes {
    /// As the checkpoint stores them.
    pub fn stored(config: &ModelConfig, checkpoint: &Checkpoint) -> Self {
        let mut types = Self::all(ElementType::F32);
        for tensor in config.tensors() {
            if let Some(dtype) = checkpoint.dtype(&tensor.name) {
                types.exceptions.insert(tensor.name, dtype.into());
            }
        }
        types
    }

    /// Every matrix has this type.
    pub fn all(element: ElementType) -> Self {
        Self { default: element, exceptions: BTreeMap::new() }
    }

    /// The type of a matrix that joins `tensors`: theirs, or f32 when they differ.
    fn of<'a>(&self, tensors: impl Iterator<Item = &'a str>) -> ElementType {
        let mut types =
            tensors.map(|name| self.exceptions.get(name).copied().unwrap_or(self.default));
        let first = types.next().unwrap_or(self.default);
        if types.all(|t| t == first) { first } else { ElementType::F32 }
    }
}

impl From<Dtype> for ElementType {
    fn from(dtype: Dtype) -> Self {
        match dtype {
            Dtype::F32 => Self::F32,
            Dtype::F16 => Self::F16,
            Dtype::BF16 => Self::Bf16,
        }
    }
}

/// Emits the graph for calls of `rows` tokens: `decode_step` for one, `prefill_<rows>` for more.
///
/// `rows` is 1, 8, or a multiple of 16 that divides or is a multiple of [`KV_BLOCK`].
pub fn emit(config: &ModelConfig, types: &WeightTypes, target: &Target, rows: usize) -> Graph {
    let scalar =
        |name: &str| Value { name: name.into(), ty: TensorType::new(&[], ElementType::I32) };
    let mut emitter = Emitter {
        config,
        types,
        target,
        rows,
        b: Builder::default(),
        arguments: Vec::new(),
        start: scalar(""),
        last: scalar(""),
    };
    emitter.start = emitter.argument(Source::Start, &[], ElementType::I32);
    emitter.last = emitter.argument(Source::Last, &[], ElementType::I32);
    let results = emitter.model();
    emitter.finish(&results)
}

struct Emitter<'a> {
    config: &'a ModelConfig,
    types: &'a WeightTypes,
    target: &'a Target,
    rows: usize,
    b: Builder,
    arguments: Vec<Argument>,
    start: Value,
    last: Value,
}

impl Emitter<'_> {
    fn is_iree(&self) -> bool {
        !matches!(self.target, Target::Portable { .. })
    }

    /// Positions that the rope tables hold.
    fn positions(&self) -> usize {
        match self.target {
            Target::Portable { capacity } => *capacity,
            Target::Cpu(_) => DYNAMIC,
        }
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

    fn finish(self, results: &[Value]) -> Graph {
        let name =
            if self.rows == 1 { "decode_step".into() } else { format!("prefill_{}", self.rows) };
        let scalars = self.is_iree();
        let arguments: Vec<_> = self
            .arguments
            .iter()
            .enumerate()
            .map(|(i, argument)| match argument.source {
                Source::Start | Source::Last if scalars => format!("%arg{i}: i32"),
                _ => format!("%arg{i}: {}", argument.ty),
            })
            .collect();
        let types: Vec<_> = results.iter().map(|v| v.ty.to_string()).collect();
        let names: Vec<_> = results.iter().map(|v| v.name.as_str()).collect();
        let mut text = String::new();
        let _ = write!(
            text,
            "module @model {{\n  func.func public @{name}({}) -> ({types}) {{\n{}    \
             return {} : {types}\n  }}\n}}\n",
            arguments.join(", "),
            self.b.into_text(),
            names.join(", "),
            types = types.join(", "),
        );
        Graph {
            name,
            text,
            rows: self.rows,
            arguments: self.arguments,
            results: results.iter().map(|v| v.ty.clone()).collect(),
        }
    }
}

/// The body of a product: `acc + in0 * in1`, `in1` widened from how it is stored.
const fn multiply_add(stored: ElementType) -> &'static str {
    match stored {
        ElementType::F16 => {
            "%wide = arith.extf %in1 : f16 to f32
             %product = arith.mulf %in0, %wide : f32
             %sum = arith.addf %acc, %product : f32
             linalg.yield %sum : f32"
        }
        ElementType::Bf16 => {
            "%wide = arith.extf %in1 : bf16 to f32
             %product = arith.mulf %in0, %wide : f32
             %sum = arith.addf %acc, %product : f32
             linalg.yield %sum : f32"
        }
        _ => {
            "%product = arith.mulf %in0, %in1 : f32
             %sum = arith.addf %acc, %product : f32
             linalg.yield %sum : f32"
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn fixture(name: &str) -> ModelConfig {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name);
        ModelConfig::from_dir(&folder).expect(name)
    }

    #[test]
    fn portable_graphs_hold_stablehlo_only() {
        let config = fixture("mistral-window-gqa-bf16");
        let types = WeightTypes::all(ElementType::Bf16);
        for rows in [1, 32] {
            let graph = emit(&config, &types, &Target::Portable { capacity: 512 }, rows);
            for line in graph.text.lines().filter(|line| line.contains(" = ")) {
                let op = line.split(" = ").nth(1).unwrap_or_default().trim_start_matches('"');
                assert!(op.starts_with("stablehlo."), "{line}");
            }
            assert!(!graph.text.contains('?'), "a dynamic extent");
        }
    }

    #[test]
    fn decode_and_prefill_share_every_weight() {
        let config = fixture("qwen3-gqa-tied-bf16");
        let types = WeightTypes::all(ElementType::Bf16);
        let weights = |rows| -> Vec<_> {
            let graph = emit(&config, &types, &Target::Cpu(CpuTiles::default()), rows);
            let specs = graph.arguments.into_iter().filter_map(|argument| match argument.source {
                Source::Weight(spec) => Some(spec),
                _ => None,
            });
            specs.collect()
        };
        let decode = weights(1);
        // Per layer: q/k/v, o, gate/up, down, two norms and the norms of q and k.
        assert_eq!(decode.len(), 8 * config.num_hidden_layers + 2);
        for rows in [8, 32, 256] {
            assert_eq!(weights(rows), decode, "{rows} rows");
        }
    }

    #[test]
    fn a_group_of_differing_types_is_widened() {
        let mut types = WeightTypes::all(ElementType::Bf16);
        types.exceptions.insert("k".into(), ElementType::F16);
        assert_eq!(types.of(["q", "v"].into_iter()), ElementType::Bf16);
        assert_eq!(types.of(["q", "k", "v"].into_iter()), ElementType::F32);
    }
}
