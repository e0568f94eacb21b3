//! What the compiler makes of the graphs for NVIDIA GPUs: dispatches, command buffers, machine code.
//! A graph is compiled once, and every phase of that looked at.
#![cfg(feature = "iree")]

mod fixtures;

use std::fs;
use std::path::Path;

use fixtures::SOME;
use iree_rt::{CompileOptions, Compiler, cuda};
use xla_session::checkpoint::Checkpoint;
use xla_session::config::ModelConfig;
use xla_session::emit::{CudaTiles, Format, Graph, Target, WeightFormats, emit};
use xla_session::{LoadMode, Precision};

/// The older one is of GPUs since 2020.
const ARCHITECTURES: [cuda::Target; 2] = [cuda::Target::SM_80, cuda::Target::SM_89];

/// A graph after the phases of its compilation.
struct Compiled {
    flow: String,
    stream: String,
    hal: String,
    /// The PTX of each dispatch, from its name on.
    kernels: Vec<String>,
}

impl Compiled {
    /// With the flags that sessions use.
    fn new(graph: &Graph, target: cuda::Target) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let to = folder.path().display();
        let options = target
            .flags()
            .fold(CompileOptions::for_device("cuda"), CompileOptions::flag)
            .flag("--iree-input-type=stablehlo")
            .flag("--iree-opt-level=O3")
            .flag(format!("--dump-compilation-phases-to={to}"))
            .flag(format!("--iree-hal-dump-executable-binaries-to={to}"));
        assert!(!Compiler::find().unwrap().compile(&graph.text, &options).unwrap().is_empty());
        let phase = |name: &str| {
            let files = texts(folder.path(), &format!(".{name}.mlir"));
            assert_eq!(files.len(), 1, "{name}");
            files.concat()
        };
        let [flow, stream, hal] = ["flow", "stream", "hal"].map(phase);
        let ptx = texts(folder.path(), ".ptx");
        let kernels = ptx.iter().flat_map(|text| text.split(".visible .entry ").skip(1));
        Self { flow, stream, hal, kernels: kernels.map(str::to_owned).collect() }
    }
}

/// The files in `folder` whose names end so.
fn texts(folder: &Path, end: &str) -> Vec<String> {
    let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let wanted = paths.filter(|path| path.to_str().unwrap().ends_with(end));
    wanted.map(|path| fs::read_to_string(path).unwrap()).collect()
}

/// A graph for NVIDIA GPUs.
fn graph(config: &ModelConfig, formats: &WeightFormats, rows: usize) -> Graph {
    emit(config, formats, &Target::Cuda(CudaTiles::new()), rows)
}

/// Two layers of Llama-3.2-1B, a model with tiles for everything; of a shorter context, for which a
/// decode step has two functions.
fn two_layers_of_1b() -> ModelConfig {
    let folder = tempfile::tempdir().unwrap();
    let config = serde_json::json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 128_256,
        "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 2,
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64,
        "max_position_embeddings": 1536, "rms_norm_eps": 1e-5, "rope_theta": 500_000.0,
        "tie_word_embeddings": true, "hidden_act": "silu",
    });
    fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    ModelConfig::from_dir(folder.path()).unwrap()
}

/// int4 with int6 around it, as sessions have it.
fn int4() -> WeightFormats {
    let mut formats = WeightFormats::all(Format::Int4);
    for name in ["model.embed_tokens.weight", "lm_head.weight"] {
        formats.exceptions.insert(name.into(), Format::Int6);
    }
    formats
}

#[test]
fn a_decode_step_in_bf16() {
    check_decode_step(&WeightFormats::all(Format::Bf16));
}

#[test]
fn a_decode_step_in_bf16_rounded() {
    check_decode_step(&WeightFormats::all(Format::Bf16Rounded));
}

#[test]
fn a_decode_step_in_f16() {
    check_decode_step(&WeightFormats::all(Format::F16));
}

#[test]
fn a_decode_step_in_f32() {
    check_decode_step(&WeightFormats::all(Format::F32));
}

#[test]
fn a_decode_step_in_int8() {
    check_decode_step(&WeightFormats::all(Format::Int8));
}

#[test]
fn a_decode_step_in_int4() {
    check_decode_step(&int4());
}

fn check_decode_step(formats: &WeightFormats) {
    let config = two_layers_of_1b();
    let graph = graph(&config, formats, 1);
    assert!(!graph.text.contains("optimization_barrier"));
    assert_eq!(graph.capacities, [20, 28]);
    for target in ARCHITECTURES {
        let compiled = Compiled::new(&graph, target);
        assert_few_dispatches(&compiled.flow, &config, target.name());
        assert_stores_no_weights(&compiled.flow, target.name());
        assert_one_submission(&compiled.stream, target.name());
        assert_one_command_buffer(&compiled, &graph, target.name());
        assert_products_load_16_bytes_and_spill_nothing(&compiled.kernels, target.name());
    }
}

/// As many dispatches as `docs/cuda.md` says.
fn assert_few_dispatches(flow: &str, config: &ModelConfig, what: &str) {
    const PER_LAYER: usize = 7;
    const AROUND: usize = 6;
    let body = function(flow, "decode_step_20");
    let dispatches = made(body).filter(|line| line.contains("flow.dispatch")).count();
    let most = PER_LAYER * config.num_hidden_layers + AROUND;
    assert!(dispatches <= most && dispatches > most / 2, "{what}: {dispatches} dispatches");
}

/// No dispatch leaves a tensor of the size of a weight: what is stored in fewer bits is widened
/// where it is multiplied.
fn assert_stores_no_weights(flow: &str, what: &str) {
    assert!(made(flow).count() > 8, "{what}");
    for line in made(flow) {
        assert!(largest(line) < SMALLEST_WEIGHT, "{what}: {line}");
    }
}

/// One submission, nothing that the host waits for but its end, and no cache that is copied.
fn assert_one_submission(stream: &str, what: &str) {
    let body = function(stream, "decode_step_28");
    assert_eq!(body.matches("stream.cmd.execute").count(), 1, "{what}");
    assert!(!body.contains("stream.async.transfer"), "{what}");
    // Nothing is allocated in a step.
    assert!(!body.contains("stream.resource.alloc"), "{what}");
    assert!(!body.contains("stream.cmd.copy"), "{what}");
}

/// The command buffer of a decode step is made when the program is loaded, and used for every
/// token: with the tensors of a call, and nothing else that differs from call to call.
fn assert_one_command_buffer(compiled: &Compiled, graph: &Graph, what: &str) {
    let hal = &compiled.hal;
    let made: Vec<_> =
        hal.lines().filter(|line| line.contains("hal.command_buffer.create")).collect();
    assert_eq!(made.len(), graph.capacities.len(), "{what}: {made:?}");
    for line in made {
        assert!(line.contains("mode(\"None\")") && line.contains("bindings("), "{what}: {line}");
    }
    for blocks in &graph.capacities {
        let body = function(hal, &format!("decode_step_{blocks}"));
        assert!(!body.contains("hal.command_buffer."), "{what}: {blocks} blocks");
        assert!(!body.contains("hal.device.queue.alloca"), "{what}: {blocks} blocks");
        let executed = body.matches("hal.device.queue.execute.indirect").count();
        assert_eq!(executed, 1, "{what}: {blocks} blocks");
    }
}

/// The machine code of the products: 16 bytes a load, and nothing spilt to local memory.
fn assert_products_load_16_bytes_and_spill_nothing(kernels: &[String], what: &str) {
    assert!(kernels.len() > 8, "{what}: {} kernels", kernels.len());
    let mut products = 0;
    for kernel in kernels {
        assert!(!kernel.contains(".local "), "{what}: {kernel}");
        let entry = kernel.split('(').next().unwrap();
        let columns = ["x2048_", "x8192_", "x64x32_", "x256x32_"];
        if columns.iter().any(|columns| entry.contains(columns)) && !entry.contains("elementwise") {
            products += 1;
            assert!(kernel.contains("ld.global.nc.v4"), "{what}: {entry}");
            // A weight that is loaded by itself.
            assert!(!kernel.contains("ld.global.nc.s8"), "{what}: {entry}");
            assert!(!kernel.contains("ld.global.nc.u8"), "{what}: {entry}");
        }
    }
    assert!(products >= 5, "{what}: {products} products");
}

// Floats differ in nothing but the type.

#[test]
fn a_prefill_in_bf16() {
    check_prefill(&WeightFormats::all(Format::Bf16), &[]);
}

/// On tensor cores, where activations may be rounded.
#[test]
fn a_prefill_in_bf16_rounded() {
    check_prefill(&WeightFormats::all(Format::Bf16Rounded), &[64]);
}

#[test]
fn a_prefill_in_int8() {
    check_prefill(&WeightFormats::all(Format::Int8), &[]);
}

#[test]
fn a_prefill_in_int4() {
    check_prefill(&int4(), &[]);
}

/// `on_tensor_cores` are the rows for which products run there.
fn check_prefill(formats: &WeightFormats, on_tensor_cores: &[usize]) {
    let config = two_layers_of_1b();
    for rows in [8, 64] {
        let compiled = Compiled::new(&graph(&config, formats, rows), cuda::Target::SM_80);
        let kernels = &compiled.kernels;
        assert!(kernels.len() > 8, "{rows} rows: {} kernels", kernels.len());
        let mma = kernels.iter().any(|kernel| kernel.contains("mma.sync"));
        assert_eq!(mma, on_tensor_cores.contains(&rows), "{rows} rows");
        for kernel in kernels {
            assert!(!kernel.contains(".local "), "{rows} rows: {kernel}");
            // Integers are loaded as vectors, and widened where they are multiplied.
            if kernel.split('(').next().unwrap().contains("_matmul_like_") {
                assert!(kernel.contains("ld.global.nc.v4"), "{rows} rows: {kernel}");
                assert!(!kernel.contains("ld.global.nc.s8"), "{rows} rows: {kernel}");
                assert!(!kernel.contains("ld.global.nc.u8"), "{rows} rows: {kernel}");
            }
        }
        assert_stores_no_weights(&compiled.flow, &format!("{rows} rows"));
    }
}

#[test]
fn a_decode_step_of_the_longest_context_is_one_command_buffer_too() {
    let mut config = two_layers_of_1b();
    config.max_position_embeddings = 131_072;
    let graph = graph(&config, &WeightFormats::all(Format::Bf16), 1);
    assert_eq!(graph.capacities, [20, 36, 68, 132, 260, 516, 1028, 2052]);
    let compiled = Compiled::new(&graph, cuda::Target::SM_80);
    assert_one_command_buffer(&compiled, &graph, "131072 tokens");
}

#[test]
fn every_llama_compiles() {
    check_fixtures("llama", 5, cuda::Target::SM_80, false);
}

#[test]
fn every_mistral_compiles() {
    check_fixtures("mistral", 3, cuda::Target::SM_80, false);
}

#[test]
fn every_qwen2_compiles() {
    check_fixtures("qwen2", 2, cuda::Target::SM_80, false);
}

#[test]
fn every_qwen3_compiles() {
    check_fixtures("qwen3", 4, cuda::Target::SM_80, false);
}

/// Compiles graphs of the fixtures of a family, of which there are at least `least`; their decode
/// steps are one command buffer for all tokens.
fn check_fixtures(family: &str, least: usize, target: cuda::Target, all_rows: bool) {
    let prefix = format!("{family}-");
    let fixtures = fixtures::all().into_iter().filter(|it| it.name.starts_with(&prefix));
    let mut checked = 0;
    for fixture in fixtures {
        let mut config = ModelConfig::from_dir(&fixture.folder).unwrap();
        let checkpoint = Checkpoint::open(&fixture.folder, LoadMode::Mmap).unwrap();
        config.tie_word_embeddings = checkpoint.is_tied(&config).unwrap();
        let formats = WeightFormats::new(Precision::Stored, &config, &checkpoint);
        let all_rows = all_rows || SOME.contains(&fixture.name.as_str());
        for &rows in if all_rows { &[1, 8, 64, 256][..] } else { &[1, 64] } {
            let what = format!("{}, {rows} rows, {}", fixture.name, target.name());
            let graph = graph(&config, &formats, rows);
            let compiled = Compiled::new(&graph, target);
            assert!(!compiled.kernels.is_empty(), "{what}");
            if rows == 1 {
                assert_one_command_buffer(&compiled, &graph, &what);
            }
        }
        checked += 1;
    }
    assert!(checked >= least, "{checked} fixtures of {family}");
}

/// What `cargo xtask test --all` adds.
mod long {
    use super::*;

    #[test]
    #[ignore = "long: cargo xtask test --all"]
    fn every_graph_of_every_fixture_compiles_for_each_architecture() {
        for (family, least) in [("llama", 5), ("mistral", 3), ("qwen2", 2), ("qwen3", 4)] {
            for target in ARCHITECTURES {
                check_fixtures(family, least, target, true);
            }
        }
    }
}

/// The elements of every tensor of known extents that a line of MLIR names.
fn tensors(line: &str) -> impl Iterator<Item = usize> {
    line.split("tensor<").skip(1).filter_map(|rest| {
        let (dims, _element) = rest.split_once('>')?.0.rsplit_once('x')?;
        dims.split('x').map(|dim| dim.parse::<usize>().ok()).product()
    })
}

#[test]
fn tensors_of_a_line_are_read() {
    let line =
        "%1 = flow.dispatch @a(%2) : (tensor<?x8xf32>{%3}) -> (tensor<3x4xf32>, tensor<f32>)";
    assert_eq!(tensors(line).collect::<Vec<_>>(), [12]);
}

/// Elements of the attention's output projection in [`two_layers_of_1b`], the smallest matrix.
const SMALLEST_WEIGHT: usize = 2048 * 2048;

/// The lines of `flow` that make a tensor.
fn made(flow: &str) -> impl Iterator<Item = &str> {
    flow.lines().filter(|line| {
        ["dispatch ", "tensor.clone ", "tensor.splat ", "tensor.transfer "]
            .iter()
            .any(|op| line.contains(&format!("= flow.{op}")))
    })
}

/// Elements of the largest tensor that a line makes.
fn largest(line: &str) -> usize {
    let (_, results) = line.rsplit_once("->").unwrap();
    tensors(results).max().unwrap_or(0)
}

/// The public function `name` of a module.
fn function<'a>(module: &'a str, name: &str) -> &'a str {
    let start = module.find(&format!("util.func public @{name}(")).unwrap();
    let end = module[start..].find("\n  }\n").unwrap();
    &module[start..][..end]
}
