//! What a model's graph is: its text, and where each argument of its functions comes from.

use std::fmt::Write as _;

use checkpoint::config::ModelConfig;

use super::step::Steps;
use super::target::CpuTarget;
use super::workspace::Workspace;
use crate::emit::builder::{DYNAMIC, Executable};
use crate::emit::{Format, WeightFormats, WeightSpec};

/// A module: [`BODY`](Self::BODY), [`HEAD`](Self::HEAD), [`GREEDY`](Self::GREEDY) and
/// [`HIDDEN`](Self::HIDDEN).
#[derive(Debug, Clone)]
pub struct Program {
    /// The MLIR module, `@model`.
    pub text: String,
    /// Its functions; those of logits only where the model makes some.
    pub functions: [Option<Function>; 4],
    /// Where they keep what they leave to each other.
    pub workspace: Workspace,
}

/// A function. It takes buffers of bytes and i32 numbers, then a fence to wait for and one to reach.
#[derive(Debug, Clone)]
pub struct Function {
    /// Its name.
    pub name: &'static str,
    /// Its arguments, in order.
    pub arguments: Vec<Argument>,
}

/// One argument of a function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Argument {
    /// Where its value comes from.
    pub source: Source,
    /// Bytes of it; [`DYNAMIC`] where any number will do.
    pub bytes: usize,
}

/// Where an argument's value comes from.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Source {
    /// The [`Workspace`].
    Workspace,
    /// Numbers of pages, i32: the tables of all sequences of the step, one behind the other.
    Tables,
    /// The pages of a layer's keys, or its states.
    Keys(usize),
    /// The pages of a layer's values, or of each state the latest rows.
    Values(usize),
    /// A plane of a weight.
    Weight(WeightSpec, usize),
    /// A number of each call.
    Number(Number),
}

/// What a call is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Number {
    /// Rows of the step; of the head the wanted ones.
    Rows,
    /// Runs of rows of one sequence that the step is cut into.
    Entries,
    /// Work items of attention with so many key heads.
    AttentionItems(usize),
    /// Queries of a row that share one of so many key heads and are taken together.
    Share(usize),
    /// Runs of rows of one sequence, where layers keep states.
    Runs,
}

impl Program {
    /// From tokens to the residual stream behind the last layer.
    pub const BODY: usize = 0;
    /// From wanted rows of that to all their logits and most likely tokens.
    pub const HEAD: usize = 1;
    /// From wanted rows to their most likely tokens.
    pub const GREEDY: usize = 2;
    /// From wanted rows to what the last norm makes of them.
    pub const HIDDEN: usize = 3;

    /// Every weight that some function takes, once.
    pub fn weights(&self) -> Vec<WeightSpec> {
        let mut specs = Vec::new();
        let functions = self.functions.iter().flatten();
        for argument in functions.flat_map(|function| &function.arguments) {
            if let Source::Weight(spec, _) = &argument.source
                && !specs.contains(spec)
            {
                specs.push(spec.clone());
            }
        }
        specs
    }
}

/// Most rows of a step; of an encoder, which takes a text at once, as many as its longest text has, if there are not more than
/// these.
const ROWS: usize = 256;
const ROWS_OF_ENCODERS: usize = 8192;

/// Most rows of a step of this model: of a wide encoder fewer than its context.
pub fn most_rows(config: &ModelConfig) -> usize {
    if !config.architecture.is_encoder() {
        return ROWS;
    }
    let mut rows = config.max_position_embeddings.clamp(ROWS, ROWS_OF_ENCODERS);
    while rows > ROWS && supports(config, rows, 1).is_err() {
        rows = ROWS.max(rows / 2);
    }
    rows
}

/// Whether a model can be [emitted](program) for steps of so many rows: what the calls of a step leave to each other has
/// to lie within 4 GiB.
pub fn supports(config: &ModelConfig, rows: usize, head_rows: usize) -> Result<(), String> {
    let Workspace { bytes, .. } = Workspace::new(config, rows, head_rows);
    match u32::try_from(bytes) {
        Ok(_) => Ok(()),
        Err(_) => Err(format!(
            "a step of {rows} rows of this model works on {bytes} bytes beside weights and pages, of \
             which there is room for 4 GiB; look at the sizes in its configuration"
        )),
    }
}

/// Emits a model that is [supported](supports) for steps of at most `rows` rows, of which the head takes at most `head_rows` at a
/// time.
pub fn program(
    config: &ModelConfig,
    formats: &WeightFormats,
    target: &CpuTarget,
    rows: usize,
    head_rows: usize,
) -> Program {
    type Write = fn(&mut Steps<'_>);
    let workspace = Workspace::new(config, rows, head_rows);
    let (mut text, mut executable) = (String::new(), Executable::default());
    let write: [(&'static str, Write); 4] = [
        ("body", |steps| steps.body()),
        ("head", |steps| steps.full_head()),
        ("greedy", |steps| steps.greedy_head()),
        ("hidden", |steps| steps.norm_wanted(Format::F32)),
    ];
    let makes_tokens = config.architecture.makes_tokens();
    let functions = write.map(|(name, write)| {
        if !makes_tokens && matches!(name, "head" | "greedy") {
            return None;
        }
        let mut steps = Steps::new(config, formats, target, &workspace);
        write(&mut steps);
        text += &function(name, &steps);
        executable.extend(steps.b.executable);
        Some(Function { name, arguments: steps.arguments })
    });
    // For the CPU of whatever machine: there is nothing that the compiler could generate code for.
    let device = "#hal.device.target<\"local\", [#hal.executable.target<\"vulkan-spirv\", \"kernels:\">]> : !hal.device";
    let attributes = format!("attributes {{hal.device.targets = [{device}]}}");
    let text = format!("module @model {attributes} {{\n{executable}{text}}}\n");
    Program { text, functions, workspace }
}

/// The function around calls that were written: buffer views in, and the workspace out.
///
/// That is written out, as the phase of the compiler that would write it is left out.
fn function(name: &str, steps: &Steps<'_>) -> String {
    const VIEW: &str = "!hal.buffer_view";
    let (mut arguments, mut imports) = (Vec::new(), String::new());
    for (at, Argument { source, bytes }) in steps.arguments.iter().enumerate() {
        if let Source::Number(_) = source {
            arguments.push(format!("%number{at}: i32"));
            continue;
        }
        arguments.push(format!("%view{at}: {VIEW}"));
        let (mut dim, mut extent) = (bytes.to_string(), String::new());
        if *bytes == DYNAMIC {
            dim = "?".into();
            extent = format!("{{%extent{at}}}");
            let _ = writeln!(
                imports,
                "    %extent{at} = hal.buffer_view.dim<%view{at} : {VIEW}>[0] : index"
            );
        }
        let _ = writeln!(
            imports,
            "    %memory{at} = hal.tensor.import wait(%wait) => %view{at} : {VIEW} -> \
             tensor<{dim}xi8>{extent}"
        );
    }
    let (memory, ty) = (&steps.memory.name, &steps.memory.ty);
    format!(
        "  util.func public @{name}({}, %wait: !hal.fence, %signal: !hal.fence) -> {VIEW} attributes \
         {{iree.abi.stub, iree.reflection = {{iree.abi.model = \"coarse-fences\"}}}} {{
{imports}{}    %ready = hal.tensor.barrier join({memory} : {ty}) => %signal : !hal.fence
    %result = hal.tensor.export %ready : {ty} -> {VIEW}
    util.return %result : {VIEW}
  }}
",
        arguments.join(", "),
        steps.b.text(),
    )
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use kernels::{Format, Isa, KvFormat};

    use super::*;

    fn fixture(name: &str) -> ModelConfig {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name);
        ModelConfig::from_dir(&folder).expect(name)
    }

    fn of(config: &ModelConfig, format: Format, target: &CpuTarget) -> Program {
        program(config, &WeightFormats::all(format), target, 256, 64)
    }

    fn target() -> CpuTarget {
        CpuTarget::new(Isa::detect(), 2)
    }

    /// How often a kernel is called.
    fn calls(program: &Program, symbol: &str) -> usize {
        program.text.matches(&format!("flow.dispatch @kernels::@rust::@{symbol}[")).count()
    }

    #[test]
    fn kernels_are_written_once_for_all_layers() {
        let all = fixture("llama-mha-f32");
        let mut one = all.clone();
        one.architecture.layers.truncate(1);
        let [all, one] = [&all, &one].map(|config| of(config, Format::F32, &target()).text);
        let [written, called] = ["hal.executable.export", "flow.dispatch @"]
            .map(|what| [&all, &one].map(|text| text.matches(what).count()));
        assert_eq!(written[0], written[1]);
        assert!(called[0] > called[1] && called[0] > written[0], "{called:?} {written:?}");
    }

    /// What was compiled on one machine is for all.
    #[test]
    fn the_graph_is_the_same_for_all_instructions() {
        for name in ["llama-mha-f32", "qwen3-5-gqa-bf16", "qwen3-moe-gqa-bf16"] {
            let config = fixture(name);
            for format in [Format::F32, Format::Bf16Rounded, Format::Int8, Format::Int4] {
                let graph = |isa| of(&config, format, &CpuTarget::new(isa, 2)).text;
                #[cfg(target_arch = "x86_64")]
                let others = [
                    Isa::Avx2,
                    Isa::AvxVnni,
                    Isa::Avx512,
                    Isa::Avx512Vnni,
                    Isa::Avx512Bf16,
                    Isa::Amx,
                ];
                #[cfg(not(target_arch = "x86_64"))]
                let others = Isa::all_here();
                for isa in others {
                    assert!(graph(isa) == graph(Isa::Portable), "{name}, {format:?}, {isa:?}");
                }
            }
        }
    }

    #[cfg(feature = "iree")]
    #[test]
    fn every_kernel_that_is_called_is_there() {
        let known: Vec<_> = Isa::all_here().into_iter().map(crate::lower::cpu::kernels).collect();
        let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
        let mut models = 0;
        let folders = ["fixtures", "encoders"].map(|it| tests.join(it).read_dir().unwrap());
        for fixture in folders.into_iter().flatten() {
            let Ok(config) = ModelConfig::from_dir(&fixture.unwrap().path()) else { continue };
            models += 1;
            for (format, kv) in [
                (Format::F32, KvFormat::F32),
                (Format::Bf16, KvFormat::F32),
                (Format::Bf16Rounded, KvFormat::F16),
                (Format::Int8, KvFormat::F16),
                (Format::Int4, KvFormat::F16),
            ] {
                let text = of(&config, format, &target().with_kv_cache(kv)).text;
                let (_, names) = text.split_once("target(<\"vulkan-spirv\", \"kernels:").unwrap();
                for name in names.split_once('"').unwrap().0.split(',') {
                    let all = known.iter().all(|known| known.names().any(|it| it == name));
                    assert!(all, "{name}, {format:?}");
                }
            }
        }
        assert!(models > 50, "{models}");
    }

    #[test]
    fn a_step_that_is_too_large_is_refused() {
        let mut config = fixture("llama-mha-f32");
        supports(&config, 256, 64).unwrap();
        config.vocab_size = 1 << 24;
        let error = supports(&config, 256, 64).unwrap_err();
        assert!(error.contains("room for 4 GiB"), "{error}");
    }

    #[test]
    fn exact_graphs_have_nothing_of_f16() {
        let config = fixture("llama-mha-f32");
        let exact = of(&config, Format::F32, &target());
        assert!(!exact.text.contains("f16"));
        let rounded = of(&config, Format::F32, &target().with_kv_cache(KvFormat::F16));
        for (graph, has, lacks) in [(&exact, "f32", "f16"), (&rounded, "f16", "f32")] {
            for what in ["append", "attend"] {
                let count = |of| calls(graph, &format!("{what}_{of}"));
                assert_eq!(count(has), config.num_hidden_layers, "{what}");
                assert_eq!(count(lacks), 0, "{what}");
            }
        }
    }

    #[test]
    fn each_matrix_is_multiplied_with_once() {
        let config = fixture("qwen3-gqa-tied-bf16");
        for format in [Format::Int8, Format::F32, Format::Bf16Rounded] {
            let program = of(&config, format, &target().with_compression(false));
            let product = format!("product_{}", format.as_str());
            // q/k/v, output, gate and up, down; and the logits, for themselves and for tokens alone.
            let layers = config.num_hidden_layers;
            assert_eq!(calls(&program, &product), 4 * layers + 2, "{format:?}");
            // These, two norms, and the norms of queries and keys; the tied matrix and the last norm.
            assert_eq!(program.weights().len(), 8 * layers + 2, "{format:?}");
        }
    }

    #[test]
    fn only_output_projections_of_floats_are_sketched() {
        for name in ["qwen3-gqa-tied-bf16", "llama-mha-f32"] {
            let config = fixture(name);
            let sketched = |format: Format, from| {
                let target = target().with_compression(false).with_sketch_from(from);
                let program = of(&config, format, &target);
                let sketches = program.weights().into_iter().filter(|it| it.errors().is_some());
                let candidates = format!("candidates_{}", format.as_str());
                let count = |symbol| calls(&program, symbol);
                (sketches.count(), [candidates.as_str(), "product_int6"].map(count))
            };
            let weights = config.vocab_size * config.hidden_size;
            for format in [Format::F32, Format::Bf16, Format::Bf16Rounded, Format::F16] {
                assert_eq!(sketched(format, weights), (1, [1, 1]), "{name} {format:?}");
                assert_eq!(sketched(format, weights + 1), (0, [0, 0]), "{name} {format:?}");
            }
            for format in [Format::Int8, Format::Int4] {
                assert_eq!(sketched(format, 0), (0, [0, 0]), "{name} {format:?}");
            }
        }
    }
}
