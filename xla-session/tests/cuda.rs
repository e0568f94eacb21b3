//! The graphs for NVIDIA GPUs, as far as they can be checked without one: what they compute, on the
//! CPU; that they compile, and what the compiler makes of them.
#![cfg(feature = "iree")]

mod fixtures;

use std::collections::BTreeSet;
use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use fixtures::{Fixture, assert_contract, assert_same_tokens};
use iree_rt::{CompileOptions, Compiler, cuda};
use xla_session::checkpoint::Checkpoint;
use xla_session::config::ModelConfig;
use xla_session::emit::{CudaTiles, Format, Graph, Target, WeightFormats, emit};
use xla_session::{
    Backend, Event, GraphsFor, InferenceSession, LoadMode, Precision, SessionOptions, Step,
    compile_ahead,
};

/// Architectures that graphs are compiled for, the older one of GPUs since 2020.
const ARCHITECTURES: [&str; 2] = ["sm_80", "sm_89"];

/// One of each family, and one whose widths have tiles.
const SOME: [&str; 5] = [
    "llama-gqa-long-bf16",
    "llama-llama3-biases-mqa-f16",
    "mistral-window-gqa-bf16",
    "qwen2-window-untied-f16",
    "qwen3-gqa-tied-bf16",
];

/// The graphs of GPUs on the CPU.
fn options(precision: Precision) -> SessionOptions {
    SessionOptions {
        graphs: Some(GraphsFor::Cuda),
        precision,
        cache_dir: Some(shared_cache()),
        ..SessionOptions::default()
    }
}

/// Compiled graphs are shared by the tests of one build.
fn shared_cache() -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("compiled")
}

fn open(fixture: &Fixture, options: &SessionOptions) -> Box<dyn InferenceSession> {
    Backend::Iree.open(&fixture.folder, options).unwrap().session
}

#[test]
fn every_token_equals_the_reference_as_stored() {
    for name in SOME {
        let fixture = fixtures::named(name);
        assert_same_tokens(&fixture, open(&fixture, &options(Precision::Stored)).as_mut());
    }
}

#[test]
fn every_token_equals_the_reference_in_f32() {
    for name in ["llama-mha-f32", "qwen3-gqa-tied-bf16"] {
        let fixture = fixtures::named(name);
        assert_same_tokens(&fixture, open(&fixture, &options(Precision::F32)).as_mut());
    }
}

#[test]
#[ignore = "minutes; for when the lowerings change"]
fn every_token_of_every_fixture_equals_the_reference() {
    for fixture in fixtures::all() {
        for precision in [Precision::Stored, Precision::F32] {
            assert_same_tokens(&fixture, open(&fixture, &options(precision)).as_mut());
        }
    }
}

#[test]
fn the_contract_holds() {
    let options = SessionOptions { context: Some(80), ..options(Precision::Stored) };
    let fixture = fixtures::named("mistral-window-gqa-bf16");
    assert_contract(&fixture, open(&fixture, &options).as_mut());
}

/// A decode step has a function for each capacity of the cache: from one to the next the cache
/// moves, and every token is what the graphs for CPUs say.
#[test]
fn decoding_goes_on_where_the_cache_grows() {
    let fixture = fixtures::named("llama-gqa-long-bf16");
    // The smallest cache is for 1280 tokens.
    let prompt: Vec<_> = fixture.cases[3].prompt.iter().copied().cycle().take(960).collect();
    let run = |options: &SessionOptions| {
        let mut session = open(&fixture, options);
        let mut tokens = vec![session.prefill(&prompt).unwrap().token];
        let on_step = &mut |step: Step| {
            tokens.push(step.token);
            ControlFlow::Continue(())
        };
        let first = fixture.cases[0].prompt[0];
        session.decode_greedy(first, 350, on_step).unwrap();
        let mut logits = Vec::new();
        session.read_logits(&mut logits).unwrap();
        (tokens, logits)
    };
    let gpu = options(Precision::F32);
    let cpu = SessionOptions { graphs: None, ..gpu.clone() };
    let expected = run(&cpu);
    for ahead in [1, 3] {
        let (tokens, logits) = run(&SessionOptions { ahead: Some(ahead), ..gpu.clone() });
        assert_eq!(tokens, expected.0, "{ahead} steps in flight");
        for (a, b) in logits.iter().zip(&expected.1) {
            assert!((a - b).abs() < 1e-3, "{ahead} steps in flight: {a} is not {b}");
        }
    }
}

/// Compiles every graph of `config` for `architecture`.
fn compile(config: &ModelConfig, formats: &WeightFormats, architecture: &str, name: &str) {
    let options = SessionOptions { cache_dir: Some(shared_cache()), ..SessionOptions::default() };
    let graphs = compile_ahead(config, formats, architecture, name, &options)
        .unwrap_or_else(|e| panic!("{name} for {architecture}: {e}"));
    assert_eq!(graphs, 4, "the decode step and the prefills of 8, 64 and 256 rows");
}

fn compile_fixture(fixture: &Fixture, precision: Precision, architecture: &str) {
    let mut config = ModelConfig::from_dir(&fixture.folder).unwrap();
    let checkpoint = Checkpoint::open(&fixture.folder, LoadMode::Mmap).unwrap();
    config.tie_word_embeddings = checkpoint.is_tied(&config).unwrap();
    let formats = WeightFormats::new(precision, &config, &checkpoint);
    compile(&config, &formats, architecture, &fixture.name);
}

#[test]
fn every_fixture_compiles_for_gpus() {
    for fixture in fixtures::all() {
        for architecture in ARCHITECTURES {
            compile_fixture(&fixture, Precision::Stored, architecture);
        }
    }
    for precision in [Precision::F32, Precision::Int8, Precision::Int4] {
        compile_fixture(&fixtures::named(SOME[1]), precision, ARCHITECTURES[0]);
    }
}

#[test]
fn an_architecture_that_the_compiler_does_not_know_is_refused() {
    let fixture = fixtures::named("llama-mha-f32");
    let config = ModelConfig::from_dir(&fixture.folder).unwrap();
    let formats = WeightFormats::all(Format::F32);
    let folder = tempfile::tempdir().unwrap();
    let options =
        SessionOptions { cache_dir: Some(folder.path().into()), ..SessionOptions::default() };
    let error = compile_ahead(&config, &formats, "sm_90", "a", &options).unwrap_err().to_string();
    assert!(error.contains("no CUDA target `sm_90`: there are sm_60"), "{error}");
    let error = compile_ahead(&config, &formats, "sm_80", "a", &SessionOptions::default());
    assert!(error.unwrap_err().to_string().contains("cache folder"));
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

/// Every precision's formats at that shape.
fn formats_of_1b() -> [(&'static str, WeightFormats); 6] {
    let mut int4 = WeightFormats::all(Format::Int4);
    for name in ["model.embed_tokens.weight", "lm_head.weight"] {
        int4.exceptions.insert(name.into(), Format::Int6);
    }
    [
        ("bf16", WeightFormats::all(Format::Bf16)),
        ("bf16 rounded", WeightFormats::all(Format::Bf16Rounded)),
        ("f16", WeightFormats::all(Format::F16)),
        ("f32", WeightFormats::all(Format::F32)),
        ("int8", WeightFormats::all(Format::Int8)),
        ("int4", int4),
    ]
}

/// What the compiler makes of `text` with these flags beside those that sessions use.
fn compiled(text: &str, flags: &[String]) -> Vec<u8> {
    compiled_for(cuda::Target::SM_80, text, flags)
}

fn compiled_for(target: cuda::Target, text: &str, flags: &[String]) -> Vec<u8> {
    let options = target
        .flags()
        .fold(CompileOptions::for_device("cuda"), CompileOptions::flag)
        .flag("--iree-input-type=stablehlo")
        .flag("--iree-opt-level=O3");
    let options = flags.iter().fold(options, |options, flag| options.flag(flag));
    Compiler::find().unwrap().compile(text, &options).unwrap()
}

#[test]
fn prefill_compiles_at_a_real_shape_and_stores_no_weights() {
    let config = two_layers_of_1b();
    for (name, formats) in formats_of_1b() {
        for rows in [8, 64] {
            // Floats differ in nothing but the type.
            if ["f16", "f32"].contains(&name) {
                continue;
            }
            let graph = emit(&config, &formats, &Target::Cuda(CudaTiles::new()), rows);
            let kernels = kernels(&graph.text);
            assert!(kernels.len() > 8, "{name}: {rows} rows: {} kernels", kernels.len());
            // On tensor cores, where activations may be rounded.
            let mma = kernels.iter().any(|kernel| kernel.contains("mma.sync"));
            assert_eq!(mma, name == "bf16 rounded" && rows == 64, "{name}: {rows} rows");
            for kernel in &kernels {
                assert!(!kernel.contains(".local "), "{name}: {rows} rows: {kernel}");
                // Integers are loaded as vectors, and widened where they are multiplied.
                if kernel.split('(').next().unwrap().contains("_matmul_like_") {
                    assert!(kernel.contains("ld.global.nc.v4"), "{name}: {rows} rows: {kernel}");
                    assert!(!kernel.contains("ld.global.nc.s8"), "{name}: {rows} rows: {kernel}");
                    assert!(!kernel.contains("ld.global.nc.u8"), "{name}: {rows} rows: {kernel}");
                }
            }
            let flow = compiled(&graph.text, &["--compile-to=flow".into()]);
            let flow = String::from_utf8(flow).unwrap();
            assert!(made(&flow).count() > 8, "{name}: {rows} rows");
            for line in made(&flow) {
                assert!(largest(line) < SMALLEST_WEIGHT, "{name}: {rows} rows: {line}");
            }
        }
    }
}

/// The PTX of each dispatch of `text`, from its name on.
fn kernels(text: &str) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    let dump = format!("--iree-hal-dump-executable-files-to={}", folder.path().display());
    assert!(!compiled(text, &[dump]).is_empty());
    let mut kernels = Vec::new();
    for file in fs::read_dir(folder.path()).unwrap() {
        let path = file.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "ptx") {
            let text = fs::read_to_string(path).unwrap();
            kernels.extend(text.split(".visible .entry ").skip(1).map(str::to_owned));
        }
    }
    kernels
}

/// The elements of every tensor of known extents that a line of MLIR names.
fn tensors(line: &str) -> impl Iterator<Item = usize> {
    line.split("tensor<").skip(1).filter_map(|rest| {
        let (dims, _element) = rest.split_once('>')?.0.rsplit_once('x')?;
        dims.split('x').map(|dim| dim.parse::<usize>().ok()).product()
    })
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

#[test]
fn tensors_of_a_line_are_read() {
    let line =
        "%1 = flow.dispatch @a(%2) : (tensor<?x8xf32>{%3}) -> (tensor<3x4xf32>, tensor<f32>)";
    assert_eq!(tensors(line).collect::<Vec<_>>(), [12]);
}

/// A decode step takes as many dispatches as `docs/cuda.md` says, and none of them leaves a
/// tensor of the size of a weight: what is stored in fewer bits is widened where it is multiplied.
#[test]
fn a_decode_step_is_seven_dispatches_a_layer_and_stores_no_weights() {
    const PER_LAYER: usize = 7;
    const AROUND: usize = 6;
    let config = two_layers_of_1b();
    for (name, formats) in formats_of_1b() {
        let graph = emit(&config, &formats, &Target::Cuda(CudaTiles::new()), 1);
        assert!(!graph.text.contains("optimization_barrier"), "{name}");
        let flow = compiled(&graph.text, &["--compile-to=flow".into()]);
        let flow = String::from_utf8(flow).unwrap();
        assert_eq!(graph.capacities, [20, 28], "{name}");
        let body = function(&flow, "decode_step_20");
        let dispatches = made(body).filter(|line| line.contains("flow.dispatch")).count();
        let most = PER_LAYER * config.num_hidden_layers + AROUND;
        assert!(dispatches <= most && dispatches > most / 2, "{name}: {dispatches} dispatches");
        for line in made(&flow) {
            assert!(largest(line) < SMALLEST_WEIGHT, "{name}: {line}");
        }
        // One submission, nothing that the host waits for but its end, and no cache that is copied.
        let stream = compiled(&graph.text, &["--compile-to=stream".into()]);
        let stream = String::from_utf8(stream).unwrap();
        let body = function(&stream, "decode_step_28");
        assert_eq!(body.matches("stream.cmd.execute").count(), 1, "{name}");
        assert!(!body.contains("stream.async.transfer"), "{name}");
        // Nothing is allocated in a step.
        assert!(!body.contains("stream.resource.alloc"), "{name}");
        assert!(!body.contains("stream.cmd.copy"), "{name}");
    }
}

/// The public function `name` of a module.
fn function<'a>(module: &'a str, name: &str) -> &'a str {
    let start = module.find(&format!("util.func public @{name}(")).unwrap();
    let end = module[start..].find("\n  }\n").unwrap();
    &module[start..][..end]
}

/// The command buffer of a decode step is made when the program is loaded, and used for every
/// token: with the tensors of a call, and nothing else that differs from call to call.
fn assert_one_command_buffer(graph: &Graph, target: cuda::Target, what: &str) {
    let hal = compiled_for(target, &graph.text, &["--compile-to=hal".into()]);
    let hal = String::from_utf8(hal).unwrap();
    let made: Vec<_> =
        hal.lines().filter(|line| line.contains("hal.command_buffer.create")).collect();
    assert_eq!(made.len(), graph.capacities.len(), "{what}: {made:?}");
    for line in made {
        assert!(line.contains("mode(\"None\")") && line.contains("bindings("), "{what}: {line}");
    }
    for blocks in &graph.capacities {
        let body = function(&hal, &format!("decode_step_{blocks}"));
        assert!(!body.contains("hal.command_buffer."), "{what}: {blocks} blocks");
        assert!(!body.contains("hal.device.queue.alloca"), "{what}: {blocks} blocks");
        let executed = body.matches("hal.device.queue.execute.indirect").count();
        assert_eq!(executed, 1, "{what}: {blocks} blocks");
    }
}

#[test]
fn a_decode_step_is_one_command_buffer_for_all_tokens() {
    let config = two_layers_of_1b();
    let target = Target::Cuda(CudaTiles::new());
    for (name, formats) in formats_of_1b() {
        let graph = emit(&config, &formats, &target, 1);
        for sm in [cuda::Target::SM_80, cuda::Target::SM_89] {
            assert_one_command_buffer(&graph, sm, &format!("{name} for {}", sm.name()));
        }
    }
    let mut long = config;
    long.max_position_embeddings = 131_072;
    let graph = emit(&long, &WeightFormats::all(Format::Bf16), &target, 1);
    assert_eq!(graph.capacities, [20, 36, 68, 132, 260, 516, 1028, 2052]);
    assert_one_command_buffer(&graph, cuda::Target::SM_80, "the longest context");
    for fixture in fixtures::all() {
        let config = ModelConfig::from_dir(&fixture.folder).unwrap();
        let graph = emit(&config, &WeightFormats::all(Format::Bf16), &target, 1);
        assert_one_command_buffer(&graph, cuda::Target::SM_80, &fixture.name);
    }
}

/// The machine code of the products: 16 bytes a load, and nothing spilt to local memory.
#[test]
fn products_load_16_bytes_and_spill_nothing() {
    let config = two_layers_of_1b();
    for (name, formats) in formats_of_1b() {
        let graph = emit(&config, &formats, &Target::Cuda(CudaTiles::new()), 1);
        let kernels = kernels(&graph.text);
        assert!(kernels.len() > 8, "{name}: {} kernels", kernels.len());
        let mut products = 0;
        for kernel in &kernels {
            assert!(!kernel.contains(".local "), "{name}: {kernel}");
            let entry = kernel.split('(').next().unwrap();
            let columns = ["x2048_", "x8192_", "x64x32_", "x256x32_"];
            if columns.iter().any(|columns| entry.contains(columns))
                && !entry.contains("elementwise")
            {
                products += 1;
                assert!(kernel.contains("ld.global.nc.v4"), "{name}: {entry}");
                // A weight that is loaded by itself.
                assert!(!kernel.contains("ld.global.nc.s8"), "{name}: {entry}");
                assert!(!kernel.contains("ld.global.nc.u8"), "{name}: {entry}");
            }
        }
        assert!(products >= 5, "{name}: {products} products");
    }
}

#[test]
fn a_copied_cache_needs_no_compiler() {
    let fixture = fixtures::named("llama-mha-f32");
    let folder = tempfile::tempdir().unwrap();
    let with = SessionOptions { cache_dir: Some(folder.path().into()), ..options(Precision::F32) };
    let mut expected = open(&fixture, &with);
    let compiled = Arc::new(Mutex::new(BTreeSet::new()));
    let heard = compiled.clone();
    let elsewhere = tempfile::tempdir().unwrap();
    let without = SessionOptions {
        cache_dir: Some(elsewhere.path().into()),
        compiler: Some(elsewhere.path().join("no-compiler")),
        observer: Some(Arc::new(move |event| {
            if let Event::Compiling { graph } = event {
                heard.lock().unwrap().insert(graph);
            }
        })),
        ..with.clone()
    };
    let error = Backend::Iree.open(&fixture.folder, &without).err().unwrap().to_string();
    assert!(error.contains("no cache holds"), "{error}");
    for entry in fs::read_dir(folder.path()).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, Path::join(elsewhere.path(), path.file_name().unwrap())).unwrap();
    }
    let mut session = open(&fixture, &without);
    let prompt = &fixture.cases[1].prompt;
    assert_eq!(session.prefill(prompt).unwrap().token, expected.prefill(prompt).unwrap().token);
    assert!(compiled.lock().unwrap().is_empty());
}
