//! The emitter: a model's `config.json` in, StableHLO text out.
//!
//! [`emit`] writes one function for calls of a fixed number of rows (tokens): one row is the
//! decode step, more are a prefill chunk. The model ([`model`](self)) is written once; what a
//! [`Target`] wants differently (layouts of weights and cache, tiles) is decided inside the
//! concept that it concerns.

mod argmax;
mod attention;
pub mod builder;
mod cuda;
mod export;
mod function;
mod graph;
mod kv_cache;
mod linear;
mod model;
mod norm;
mod rope;
mod rows;

use std::collections::BTreeMap;

pub use builder::ElementType;
use builder::{Builder, DYNAMIC, TensorType, Value};
pub use cuda::CudaTiles;
pub use export::export;
use function::Function;
pub use graph::{Argument, Graph, Layout, Source, WeightSpec};

use checkpoint::architecture::Role;
use checkpoint::config::ModelConfig;
use checkpoint::{Checkpoint, Dtype};
pub use kernels::{Format, KV_BLOCK, KvFormat};

use crate::Precision;

/// Who will compile the graph.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Target {
    /// Any StableHLO compiler: plain operations, static shapes, the checkpoint's own layouts.
    Portable {
        /// Tokens that the KV cache holds.
        capacity: usize,
    },
    /// IREE for an NVIDIA GPU.
    Cuda(CudaTiles),
}

/// The formats of a model's matrices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WeightFormats {
    /// The format of every matrix that is not an exception.
    pub default: Format,
    /// Matrices in another format, by tensor name.
    pub exceptions: BTreeMap<String, Format>,
}

impl WeightFormats {
    /// Those of `precision`. The token embedding and the output projection decide the most: beside
    /// int4 they are int6, which is nearly as good as int8 there. In other precisions they are as
    /// all matrices are.
    pub fn new(precision: Precision, config: &ModelConfig, checkpoint: &Checkpoint) -> Self {
        match precision {
            Precision::Stored => Self::stored(config, checkpoint),
            Precision::F32 => Self::all(Format::F32),
            Precision::Bf16 => Self::all(Format::Bf16Rounded),
            Precision::Int8 => Self::all(Format::Int8),
            Precision::Int4 => {
                let mut formats = Self::all(Format::Int4);
                let matrices = config.architecture.parameters();
                for it in matrices.filter(|it| matches!(it.role, Role::Embedding | Role::Output)) {
                    formats.exceptions.insert(it.name.clone(), Format::Int6);
                }
                formats
            }
        }
    }

    /// As the checkpoint stores them.
    fn stored(config: &ModelConfig, checkpoint: &Checkpoint) -> Self {
        let mut formats = Self::all(Format::F32);
        for tensor in config.tensors() {
            if let Some(dtype) = checkpoint.dtype(&tensor.name) {
                formats.exceptions.insert(tensor.name.clone(), stored_format(dtype));
            }
        }
        formats
    }

    /// Every matrix in this format.
    pub fn all(format: Format) -> Self {
        Self { default: format, exceptions: BTreeMap::new() }
    }

    /// The format of a matrix that joins `tensors`: theirs, or f32 when they differ.
    pub(crate) fn of<'a>(&self, tensors: impl Iterator<Item = &'a str>) -> Format {
        let mut formats =
            tensors.map(|name| self.exceptions.get(name).copied().unwrap_or(self.default));
        let first = formats.next().unwrap_or(self.default);
        if formats.all(|it| it == first) { first } else { Format::F32 }
    }
}

/// The format of weights that stay as they are.
fn stored_format(dtype: Dtype) -> Format {
    match dtype {
        Dtype::F32 => Format::F32,
        Dtype::F16 => Format::F16,
        Dtype::BF16 => Format::Bf16,
    }
}

/// Emits the graph for calls of `rows` tokens: `decode_step` for one, `prefill_<rows>` for more.
///
/// `rows` is 1, 8, or a multiple of 16 that divides or is a multiple of [`KV_BLOCK`].
///
/// On a GPU the decode step is a function for each of several capacities of the KV cache
/// ([`Graph::capacities`]), in one module, as the compiler makes a command buffer only once where
/// every extent is known.
pub fn emit(config: &ModelConfig, formats: &WeightFormats, target: &Target, rows: usize) -> Graph {
    let name = if rows == 1 { "decode_step".into() } else { format!("prefill_{rows}") };
    let function =
        |name: &str, capacity| Emitter::new(config, formats, target, rows, capacity).function(name);
    let capacities = match target {
        Target::Cuda(_) if rows == 1 => kv_cache::capacities(config),
        _ => Vec::new(),
    };
    let mut functions: Vec<_> = capacities
        .iter()
        .map(|&blocks| function(&format!("{name}_{blocks}"), Some(blocks)))
        .collect();
    if functions.is_empty() {
        functions.push(function(&name, None));
    }
    let text: String = functions.iter().map(|function| function.text.as_str()).collect();
    let Function { arguments, results, .. } = functions.pop().expect("there is one");
    let text = format!("module @model {{\n{text}}}\n");
    Graph { name, text, rows, capacities, arguments, results }
}

struct Emitter<'a> {
    config: &'a ModelConfig,
    formats: &'a WeightFormats,
    target: &'a Target,
    rows: usize,
    b: Builder,
    arguments: Vec<Argument>,
    start: Value,
    last: Value,
    /// Blocks of the KV cache, where the function is for one capacity: then the position lies in
    /// memory, and so does what dispatches leave, at places that the graph chose.
    capacity: Option<usize>,
    /// Bytes of [`Source::Kept`] in use.
    kept: usize,
}

impl<'a> Emitter<'a> {
    fn new(
        config: &'a ModelConfig,
        formats: &'a WeightFormats,
        target: &'a Target,
        rows: usize,
        capacity: Option<usize>,
    ) -> Self {
        let scalar = Value { name: String::new(), ty: TensorType::new(&[], ElementType::I32) };
        let mut emitter = Self {
            config,
            formats,
            target,
            rows,
            b: Builder::default(),
            arguments: Vec::new(),
            start: scalar.clone(),
            last: scalar,
            capacity,
            kept: 0,
        };
        if capacity.is_some() {
            emitter.start = emitter.argument(Source::Position, &[], ElementType::I32);
        } else {
            emitter.start = emitter.argument(Source::Start, &[], ElementType::I32);
            emitter.last = emitter.argument(Source::Last, &[], ElementType::I32);
        }
        emitter
    }
}

impl Emitter<'_> {
    fn is_iree(&self) -> bool {
        !matches!(self.target, Target::Portable { .. })
    }

    /// Positions that the rope tables hold.
    fn positions(&self) -> usize {
        match self.target {
            Target::Portable { capacity } => *capacity,
            Target::Cuda(_) => self.capacity.map_or(DYNAMIC, |blocks| blocks * KV_BLOCK),
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
        let formats = WeightFormats::all(Format::Bf16);
        for rows in [1, 32] {
            let graph = emit(&config, &formats, &Target::Portable { capacity: 512 }, rows);
            for line in graph.text.lines().filter(|line| line.contains(" = ")) {
                let op = line.split(" = ").nth(1).unwrap_or_default().trim_start_matches('"');
                assert!(op.starts_with("stablehlo."), "{line}");
            }
            assert!(!graph.text.contains('?'), "a dynamic extent");
        }
    }

    #[test]
    fn a_group_of_differing_types_is_widened() {
        let mut formats = WeightFormats::all(Format::Bf16);
        formats.exceptions.insert("k".into(), Format::F16);
        assert_eq!(formats.of(["q", "v"].into_iter()), Format::Bf16);
        assert_eq!(formats.of(["q", "k", "v"].into_iter()), Format::F32);
    }
}
