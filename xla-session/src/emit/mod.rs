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
mod generated;
mod graph;
mod kv_cache;
mod linear;
mod model;
mod norm;
mod rope;
mod rows;
mod sketch;
mod tiles;

use std::collections::BTreeMap;

pub use builder::ElementType;
use builder::{Builder, DYNAMIC, Index, TensorType, Value};
pub use cuda::CudaTiles;
pub use export::export;
use function::Function;
pub use graph::{Argument, Graph, Layout, Source, WeightSpec};
pub use tiles::CpuTiles;

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
    /// IREE for the CPU.
    Cpu(CpuTiles),
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
                for name in ["model.embed_tokens.weight", "lm_head.weight"] {
                    formats.exceptions.insert(name.into(), Format::Int6);
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
                formats.exceptions.insert(tensor.name, stored_format(dtype));
            }
        }
        formats
    }

    /// Every matrix in this format.
    pub fn all(format: Format) -> Self {
        Self { default: format, exceptions: BTreeMap::new() }
    }

    /// The format of a matrix that joins `tensors`: theirs, or f32 when they differ.
    fn of<'a>(&self, tensors: impl Iterator<Item = &'a str>) -> Format {
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
    /// Rows of the call before those that are being computed.
    first: usize,
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
            first: 0,
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

    fn calls_kernels(&self) -> bool {
        matches!(self.target, Target::Cpu(tiles) if tiles.kernels)
    }

    /// Whether the function takes buffer views, for which it imports and exports what it takes.
    fn takes_buffer_views(&self) -> bool {
        self.calls_kernels() || matches!(self.target, Target::Cuda(_))
    }

    /// Whether producers are kept from their consumers by barriers, where together they need more
    /// stack than a dispatch has; on a GPU a barrier splits the command buffer.
    fn has_barriers(&self) -> bool {
        matches!(self.target, Target::Cpu(_))
    }

    /// Positions that the rope tables hold.
    fn positions(&self) -> usize {
        match self.target {
            Target::Portable { capacity } => *capacity,
            Target::Cpu(_) | Target::Cuda(_) => {
                self.capacity.map_or(DYNAMIC, |blocks| blocks * KV_BLOCK)
            }
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

    /// Rows of this call that are not padding.
    fn used(&mut self) -> Index {
        let last = self.b.index_cast(&self.last.name);
        self.b.index_next(&last)
    }

    /// Those of them among the `rows` that are being computed.
    fn used_of(&mut self, rows: usize) -> Index {
        let used = self.used();
        if rows == self.rows { used } else { self.b.index_within(&used, self.first, rows) }
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
    use kernels::Isa;

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
    fn decode_and_prefill_share_every_weight() {
        let config = fixture("qwen3-gqa-tied-bf16");
        let formats = WeightFormats::all(Format::Bf16);
        let weights = |rows| -> Vec<_> {
            let graph =
                emit(&config, &formats, &Target::Cpu(CpuTiles::new(Isa::detect(), 2)), rows);
            let specs = graph.arguments.into_iter().filter_map(|argument| match argument.source {
                Source::Weight(spec) => Some(spec),
                _ => None,
            });
            specs.collect()
        };
        let decode = weights(1);
        // Per layer: q/k/v, o, gate/up, down, two norms and the norms of q and k.
        assert_eq!(decode.len(), 8 * config.num_hidden_layers + 2);
        for rows in [8, 64, 256] {
            assert_eq!(weights(rows), decode, "{rows} rows");
        }
    }

    #[test]
    fn exact_graphs_have_nothing_of_f16_and_no_halves() {
        let config = fixture("llama-mha-f32");
        let of = |format, kv| {
            let tiles = CpuTiles::new(Isa::detect(), 2).with_kernels(true).with_kv_cache(kv);
            emit(&config, &WeightFormats::all(format), &Target::Cpu(tiles), 256)
        };
        let exact = of(Format::F32, KvFormat::F32);
        assert!(!exact.text.contains("f16"));
        assert!(exact.text.contains("\"attention\""));
        let rounded = of(Format::F32, KvFormat::F16);
        assert!(rounded.text.contains("\"attention_f16\""));
        assert!(!rounded.text.contains("\"attention\""));
        let products = |graph: &Graph, format: &str| graph.text.matches(format).count();
        let layers = config.num_hidden_layers;
        // q/k/v, output, gate and up, down, and the logits; the two of the MLP in two pieces.
        assert_eq!(products(&exact, "\"product_f32"), 4 * layers + 1);
        let int8 = of(Format::Int8, KvFormat::F16);
        assert_eq!(products(&int8, "\"product_int8"), 6 * layers + 1);
    }

    #[test]
    fn output_projections_of_floats_are_sketched() {
        for name in ["qwen3-gqa-tied-bf16", "llama-mha-f32"] {
            let config = fixture(name);
            let of = |format, kernels, from| {
                let tiles = CpuTiles::new(Isa::detect(), 2).with_kernels(kernels);
                let target = Target::Cpu(tiles.with_split_from(from));
                let graph = emit(&config, &WeightFormats::all(format), &target, 8);
                let told = graph.arguments.iter().any(|it| it.source == Source::AllLogits);
                let sketches = graph.arguments.iter().filter(|argument| {
                    matches!(&argument.source, Source::Weight(spec) if spec.errors().is_some())
                });
                let count = |what| graph.text.matches(what).count();
                (told, sketches.count(), ["\"candidates_", "\"product_int6\""].map(count))
            };
            let weights = config.vocab_size * config.hidden_size;
            for format in [Format::F32, Format::Bf16, Format::Bf16Rounded, Format::F16] {
                assert_eq!(of(format, true, weights), (true, 1, [1, 1]), "{format:?}");
                assert_eq!(of(format, true, weights + 1), (false, 0, [0, 0]), "{format:?}");
                assert_eq!(of(format, false, 0), (false, 0, [0, 0]), "{format:?}");
            }
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
