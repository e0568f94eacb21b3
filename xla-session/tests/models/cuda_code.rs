//! What the compiler makes of the graphs for NVIDIA GPUs: dispatches, command buffers, machine code.
//! A graph is compiled once, and every phase of that looked at.

use std::fs;
use std::path::Path;

use iree_rt::{CompileLimits, CompileOptions, Compiler, InputType, OptLevel, cuda};
use xla_session::checkpoint::Checkpoint;
use xla_session::config::ModelConfig;
use xla_session::emit::{Format, WeightFormats};
use xla_session::lower::cuda::{self as lower, CudaTiles};
use xla_session::lower::paged::Graph;
use xla_session::{LoadMode, Precision};

use crate::fixtures::{self, Fixture};

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
            .input_type(InputType::StableHlo)
            .opt_level(OptLevel::O3)
            .verify(false)
            .flag(format!("--dump-compilation-phases-to={to}"))
            .flag(format!("--iree-hal-dump-executable-binaries-to={to}"));
        let (compiler, limits) = (Compiler::find().unwrap(), CompileLimits::default());
        // As many tests as there are cores compile beside it.
        let limits = limits.single_thread(true);
        let code = compiler.compile_within(&graph.text, &options, &limits).unwrap();
        assert!(!code.is_empty());
        let phase = |name: &str| {
            let files = texts(folder.path(), &format!(".{name}.mlir"));
            assert_eq!(files.len(), 1, "{name}");
            files.concat()
        };
        let [flow, stream, hal] = ["flow", "stream", "hal"].map(phase);
        let ptx = texts(folder.path(), ".ptx");
        let kernels = ptx.iter().flat_map(|text| text.split(".visible .entry ").skip(1));
        let kernels: Vec<_> = kernels.map(str::to_owned).collect();
        for kernel in &kernels {
            assert!(!begins_where_unsigned_ones_do(kernel), "{}: {kernel}", graph.name);
        }
        Self { flow, stream, hal, kernels }
    }
}

/// Whether a minimum or maximum of signed integers among threads begins at -1 or at 0, as the compiler
/// (3.13.0) writes those of StableHLO: on an H100 every token was -1. (A number that is kept above 0 beside
/// a shuffle would be taken for one.)
fn begins_where_unsigned_ones_do(kernel: &str) -> bool {
    let begins = |line: &str| {
        let line = line.trim();
        line.starts_with("min.s32") && line.ends_with(", -1;")
            || line.starts_with("max.s32") && line.ends_with(", 0;")
    };
    kernel.contains("shfl.sync") && kernel.lines().any(begins)
}

/// The files in `folder` whose names end so.
fn texts(folder: &Path, end: &str) -> Vec<String> {
    let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let wanted = paths.filter(|path| path.to_str().unwrap().ends_with(end));
    wanted.map(|path| fs::read_to_string(path).unwrap()).collect()
}

/// The graph of a step for NVIDIA GPUs.
fn step(config: &ModelConfig, formats: &WeightFormats, rows: usize) -> Graph {
    lower::step(config, formats, &CudaTiles::new(), rows)
}

/// That of a head.
fn head(config: &ModelConfig, formats: &WeightFormats, rows: usize) -> Graph {
    lower::head(config, formats, &CudaTiles::new(), rows)
}

/// Two layers of Llama-3.2-1B, a model with tiles for everything.
fn two_layers_of_1b() -> ModelConfig {
    layers(2, 2048, 8192)
}

/// Layers like those of Llama-3.2-1B, of other widths.
fn layers(number: usize, hidden: usize, intermediate: usize) -> ModelConfig {
    let heads = hidden / 64;
    let kv_heads = if heads.is_multiple_of(4) { heads / 4 } else { heads / 3 };
    let folder = tempfile::tempdir().unwrap();
    let config = serde_json::json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 128_256,
        "hidden_size": hidden, "intermediate_size": intermediate, "num_hidden_layers": number,
        "num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": 64,
        "max_position_embeddings": 131_072, "rms_norm_eps": 1e-5, "rope_theta": 500_000.0,
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
fn a_token_in_bf16() {
    check_one_row(&WeightFormats::all(Format::Bf16), &ARCHITECTURES);
}

#[test]
fn a_token_in_int8() {
    check_one_row(&WeightFormats::all(Format::Int8), &ARCHITECTURES[..1]);
}

#[test]
fn a_token_in_int4() {
    check_one_row(&int4(), &ARCHITECTURES[1..]);
}

/// A step of one row, and its head.
fn check_one_row(formats: &WeightFormats, targets: &[cuda::Target]) {
    let config = two_layers_of_1b();
    for &target in targets {
        let compiled = check(&step(&config, formats, 1), target, 7, 1, &config);
        assert_products_load_16_bytes_and_spill_nothing(&compiled.kernels, 4, target.name());
        assert_attention_gathers_pages_where_it_reads_them(&compiled.kernels, target.name());
        let compiled = check(&head(&config, formats, 1), target, 0, 6, &config);
        assert_products_load_16_bytes_and_spill_nothing(&compiled.kernels, 1, target.name());
    }
}

#[test]
fn eight_tokens_in_bf16() {
    check_rows(&WeightFormats::all(Format::Bf16), 8);
}

#[test]
fn thirty_two_tokens_in_int4() {
    check_rows(&int4(), 32);
}

/// A step of several rows, and its head.
fn check_rows(formats: &WeightFormats, rows: usize) {
    let config = two_layers_of_1b();
    let target = cuda::Target::SM_80;
    for graph in [step(&config, formats, rows), head(&config, formats, rows)] {
        let is_step = graph.name.starts_with("step");
        let (per_layer, around) = if is_step { (10, 1) } else { (0, 7) };
        let compiled = check(&graph, target, per_layer, around, &config);
        if is_step {
            assert_attention_gathers_pages_where_it_reads_them(&compiled.kernels, &graph.name);
        }
        let mut products = 0;
        for kernel in &compiled.kernels {
            assert!(!kernel.contains(".local "), "{}: {kernel}", graph.name);
            // Each activation meets several weights, and each weight several rows.
            if kernel.split('(').next().unwrap().contains("_matmul_like_") {
                products += 1;
                assert!(kernel.contains("shfl.sync"), "{}: {kernel}", graph.name);
                let multiplied = kernel.matches("fma.rn.f32").count();
                assert!(multiplied >= 8 * 4 * 4, "{}: {kernel}", graph.name);
            }
        }
        // Layers share theirs.
        assert_eq!(products, if is_step { 5 } else { 1 }, "{}", graph.name);
    }
}

/// 576 columns, SmolLM2's, are 18 groups: fewer at once, and still each weight is for all rows.
#[test]
fn products_of_odd_numbers_of_groups_have_tiles() {
    let config = layers(1, 576, 1536);
    for formats in [WeightFormats::all(Format::Int8), int4()] {
        let compiled = Compiled::new(&step(&config, &formats, 8), cuda::Target::SM_80);
        let is_product = |kernel: &&String| kernel.split('(').next().unwrap().contains("x18x32_");
        let products: Vec<_> = compiled.kernels.iter().filter(is_product).collect();
        assert!(products.len() >= 3, "{} products", products.len());
        for kernel in products {
            assert!(kernel.matches("fma.rn.f32").count() >= 8 * 4, "{kernel}");
        }
    }
}

/// A layer like those of Qwen3-30B-A3B, with fewer experts and heads.
fn layer_of_experts() -> ModelConfig {
    let folder = tempfile::tempdir().unwrap();
    let config = serde_json::json!({
        "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "vocab_size": 4096,
        "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 1,
        "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 64,
        "num_experts": 64, "num_experts_per_tok": 8, "moe_intermediate_size": 768,
        "norm_topk_prob": true, "max_position_embeddings": 40_960, "rms_norm_eps": 1e-6,
        "rope_theta": 1e6, "tie_word_embeddings": false, "hidden_act": "silu",
    });
    fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    ModelConfig::from_dir(folder.path()).unwrap()
}

/// A step of a mixture: weights of the experts that rows have chosen are loaded through their numbers, 16 bytes at
/// a time, as many for a row by itself as without numbers, and nobody copies them.
fn check_experts(formats: &WeightFormats, rows: usize) {
    let config = layer_of_experts();
    let graph = step(&config, formats, rows);
    let target = cuda::Target::SM_80;
    let compiled = match rows {
        1 => check(&graph, target, 11, 1, &config),
        ..=32 => check(&graph, target, 19, 1, &config),
        _ => Compiled::new(&graph, target),
    };
    // The smallest matrix here.
    for line in made(&compiled.flow) {
        assert!(largest(line) < 64 * 768 * 2048, "{line}");
    }
    // One row has gate and up in one dispatch.
    let (least, sums) = if rows == 1 { (2, 8) } else { (3, 2 * 8) };
    let mut products = 0;
    for kernel in &compiled.kernels {
        assert!(!kernel.contains(".local "), "{kernel}");
        let entry = kernel.split('(').next().unwrap();
        let of_experts = ["x768x2048x", "x2048x768x", "x768x64x32x", "x2048x24x32x"];
        let by_blocks = ["x768x2048_", "x2048x768_", "x768x64x32_", "x2048x24x32_"];
        let is_product =
            of_experts.iter().any(|it| entry.contains("_gather_64") && entry.contains(it))
                || by_blocks.iter().any(|it| entry.contains("_matmul_like_") && entry.contains(it));
        if is_product {
            products += 1;
            assert!(kernel.contains("ld.global.nc.v4"), "{entry}");
            assert!(!kernel.contains("ld.global.nc.s8"), "{entry}");
            assert!(!kernel.contains("ld.global.nc.u8"), "{entry}");
            assert!(kernel.contains("shfl.sync"), "{entry}");
            assert!(kernel.matches("fma.rn.f32").count() >= sums, "{entry}: {kernel}");
        }
    }
    assert_eq!(products, least, "{} kernels", compiled.kernels.len());
}

#[test]
fn a_token_of_experts_in_bf16() {
    check_experts(&WeightFormats::all(Format::Bf16), 1);
}

#[test]
fn eight_tokens_of_experts_in_int4() {
    check_experts(&int4(), 8);
}

/// Compiles a graph that is one command buffer, of as many dispatches as `docs/cuda.md` says.
fn check(
    graph: &Graph,
    target: cuda::Target,
    per_layer: usize,
    around: usize,
    config: &ModelConfig,
) -> Compiled {
    let what = format!("{} for {}", graph.name, target.name());
    assert!(!graph.text.contains("optimization_barrier"));
    let compiled = Compiled::new(graph, target);
    let dispatches = made(&compiled.flow).filter(|line| line.contains("flow.dispatch")).count();
    let most = per_layer * config.num_hidden_layers + around;
    assert!(dispatches <= most && dispatches > most / 2, "{what}: {dispatches} dispatches");
    assert_stores_no_weights(&compiled.flow, &what);
    assert_one_command_buffer(&compiled, graph, &what);
    assert!(!compiled.stream.contains("stream.cmd.copy"), "{what}");
    compiled
}

/// No dispatch leaves a tensor of the size of a weight: what is stored in fewer bits is widened
/// where it is multiplied.
fn assert_stores_no_weights(flow: &str, what: &str) {
    assert!(made(flow).count() > 3, "{what}");
    for line in made(flow) {
        assert!(largest(line) < SMALLEST_WEIGHT, "{what}: {line}");
    }
}

/// One submission, nothing that the host waits for but its end, no cache that is copied and nothing that
/// is allocated. Its command buffer is made when the program is loaded, and used for every call: with
/// the tensors of the call, and nothing else that differs from call to call.
fn assert_one_command_buffer(compiled: &Compiled, graph: &Graph, what: &str) {
    let body = function(&compiled.stream, &graph.name);
    assert_eq!(body.matches("stream.cmd.execute").count(), 1, "{what}");
    for op in ["stream.async.transfer", "stream.resource.alloc"] {
        assert!(!body.contains(op), "{what}: {op}");
    }
    let hal = &compiled.hal;
    let made: Vec<_> =
        hal.lines().filter(|line| line.contains("hal.command_buffer.create")).collect();
    assert_eq!(made.len(), 1, "{what}: {made:?}");
    for line in made {
        assert!(line.contains("mode(\"None\")") && line.contains("bindings("), "{what}: {line}");
    }
    let body = function(hal, &graph.name);
    assert!(!body.contains("hal.command_buffer."), "{what}");
    assert!(!body.contains("hal.device.queue.alloca"), "{what}");
    assert_eq!(body.matches("hal.device.queue.execute.indirect").count(), 1, "{what}");
}

/// The machine code of the products: 16 bytes a load, and nothing spilt to local memory.
fn assert_products_load_16_bytes_and_spill_nothing(kernels: &[String], least: usize, what: &str) {
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
    assert!(products >= least, "{what}: {products} products");
}

#[test]
fn a_prompt_in_bf16() {
    check_prompt(&WeightFormats::all(Format::Bf16), false);
}

/// On tensor cores, where activations may be rounded.
#[test]
fn a_prompt_in_bf16_rounded() {
    check_prompt(&WeightFormats::all(Format::Bf16Rounded), true);
}

/// Where rows are of one sequence, attention is on them too. Each product has the tiles that give a GPU enough
/// workgroups.
#[test]
fn a_prompt_of_one_sequence_in_bf16_rounded() {
    let formats = WeightFormats::all(Format::Bf16Rounded);
    let graph = lower::prompt(&two_layers_of_1b(), &formats, &CudaTiles::new(), 256);
    let compiled = Compiled::new(&graph, cuda::Target::SM_80);
    let multiplied = |part: &str| -> Vec<_> {
        let has = |kernel: &&String| kernel.split('(').next().unwrap().contains(part);
        let kernels = compiled.kernels.iter().filter(has);
        let mut counts: Vec<_> = kernels.map(|it| it.matches("mma.sync").count()).collect();
        counts.sort_unstable();
        counts
    };
    // 64 tokens and 64 columns for 16 queries.
    assert_eq!(multiplied("attention"), [2 * 8 * 4]);
    // 32 by 16, 32 by 32 and 64 by 64 results of a warp, the larger ones of half as many columns: down projection and
    // that of attention, queries and keys and values, gate and up projection.
    assert_eq!(multiplied("_matmul_like_"), [2 * 2 * 8, 2 * 2 * 8, 2 * 4 * 8, 4 * 8 * 4]);
    for kernel in &compiled.kernels {
        assert!(!kernel.contains(".local "), "{kernel}");
    }
}

/// Older tensor cores do not multiply bf16, and experts are not on them.
#[test]
fn graphs_of_prompts_are_for_tensor_cores() {
    let formats = WeightFormats::all(Format::Bf16Rounded);
    let graphs = |config: &ModelConfig, tiles: &CudaTiles| {
        let graphs = lower::graphs(config, &formats, tiles);
        let on_tensor_cores = graphs.iter().filter(|it| it.text.contains("NV_MMA_SYNC")).count();
        (graphs.iter().filter(|it| it.of_prompt).count(), on_tensor_cores)
    };
    let (dense, new) = (two_layers_of_1b(), CudaTiles::new());
    assert_eq!(graphs(&dense, &new), (2, 3));
    assert_eq!(graphs(&dense, &new.clone().with_tensor_cores(false)), (0, 0));
    let mixture = ModelConfig::from_dir(&fixtures::named("qwen3-moe-gqa-bf16").folder).unwrap();
    assert_eq!(graphs(&mixture, &new).0, 0);
}

/// One that was compiled ahead serves sessions beyond a model's original context too.
#[test]
fn graphs_are_those_of_any_context() {
    let folder = fixtures::named("phi3-longrope-mqa-f32").folder;
    let formats = WeightFormats::all(Format::F32);
    let graphs = |context| {
        let config = ModelConfig::from_dir(&folder).unwrap().with_context(context);
        let graphs = lower::graphs(&config, &formats, &CudaTiles::new());
        (config.max_position_embeddings, graphs.into_iter().map(|it| it.text).collect::<Vec<_>>())
    };
    let [(short, of_short), (long, of_long)] = [None, Some(1000)].map(graphs);
    assert!(short < long && of_short == of_long, "{short} {long}");
}

#[test]
fn a_prompt_in_int4() {
    check_prompt(&int4(), false);
}

fn check_prompt(formats: &WeightFormats, on_tensor_cores: bool) {
    let config = two_layers_of_1b();
    let compiled = Compiled::new(&step(&config, formats, 256), cuda::Target::SM_80);
    let kernels = &compiled.kernels;
    assert!(kernels.len() > 8, "{} kernels", kernels.len());
    let mma = kernels.iter().any(|kernel| kernel.contains("mma.sync"));
    assert_eq!(mma, on_tensor_cores);
    let mut products = 0;
    for kernel in kernels {
        assert!(!kernel.contains(".local "), "{kernel}");
        // Integers are loaded as vectors, and widened where they are multiplied.
        if kernel.split('(').next().unwrap().contains("_matmul_like_") {
            products += 1;
            assert!(kernel.contains("ld.global.nc.v4"), "{kernel}");
            assert!(!kernel.contains("ld.global.nc.s8"), "{kernel}");
            assert!(!kernel.contains("ld.global.nc.u8"), "{kernel}");
        }
    }
    // On tensor cores gate and up projection are one kernel.
    assert!(products >= if on_tensor_cores { 4 } else { 5 }, "{products} products");
    // Activations of 256 rows are larger than a matrix of this model; the MLP's are not.
    for line in made(&compiled.flow) {
        assert!(largest(line) < 2048 * 8192, "{line}");
    }
}

/// Attention loads keys and values through the tables 16 bytes at a time, and copies none of them.
fn assert_attention_gathers_pages_where_it_reads_them(kernels: &[String], what: &str) {
    let is_attention = |kernel: &&String| kernel.split('(').next().unwrap().contains("attention");
    let attention: Vec<_> = kernels.iter().filter(is_attention).collect();
    assert_eq!(attention.len(), 1, "{what}");
    assert!(attention[0].contains("ld.global.nc.v4"), "{what}: {}", attention[0]);
    assert!(!attention[0].contains(".local "), "{what}");
}

/// Biases; keys of other layers and inputs of each, norms of queries and keys; convolutions; windows,
/// norms on both sides, capped scores; norms of all queries together; experts, and one of all rows with its gate.
#[test]
fn models_of_odd_shapes_are_one_command_buffer() {
    for name in [
        "llama-llama3-biases-mqa-f16",
        "gemma4-shared-inputs-gqa-bf16",
        "lfm2-older-tied-gqa-bf16",
        "gemma2-gqa-tied-bf16",
        "olmo2-gqa-bf16",
        "qwen2-moe-shared-gqa-bf16",
    ] {
        check_fixture(&fixtures::named(name), cuda::Target::SM_80, &[1]);
    }
}

/// Compiles graphs of a fixture; those of few rows are one command buffer for all steps.
fn check_fixture(fixture: &Fixture, target: cuda::Target, all_rows: &[usize]) {
    let mut config = ModelConfig::from_dir(&fixture.folder).unwrap();
    let checkpoint = Checkpoint::open(&fixture.folder, LoadMode::Mmap).unwrap();
    config.tie_word_embeddings = checkpoint.is_tied(&config).unwrap();
    let formats = WeightFormats::new(Precision::Stored, &config, &checkpoint);
    for &rows in all_rows {
        let mut graphs = vec![step(&config, &formats, rows)];
        if lower::HEAD_ROWS.contains(&rows) {
            graphs.push(head(&config, &formats, rows));
        }
        for graph in graphs {
            let what = format!("{}, {}, {}", fixture.name, graph.name, target.name());
            let compiled = Compiled::new(&graph, target);
            assert!(!compiled.kernels.is_empty(), "{what}");
            if rows <= 32 {
                assert_one_command_buffer(&compiled, &graph, &what);
            }
        }
    }
}

/// What `cargo xtask test --all` adds.
mod long {
    use super::*;

    /// With heads of every width that has them, on every architecture, one head of keys or as many as of queries.
    #[test]
    #[ignore = "long: cargo xtask test --all"]
    fn prompts_of_one_sequence_compile_for_gpus() {
        let formats = WeightFormats::all(Format::Bf16Rounded);
        for (width, heads, kv_heads) in [(16, 8, 1), (32, 8, 8), (64, 4, 2)] {
            let folder = tempfile::tempdir().unwrap();
            let config = serde_json::json!({
                "architectures": ["MistralForCausalLM"], "model_type": "mistral", "vocab_size": 512,
                "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 1,
                "num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": width,
                "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "rope_theta": 1e4,
                "sliding_window": 100, "tie_word_embeddings": true, "hidden_act": "silu",
            });
            fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
            let config = ModelConfig::from_dir(folder.path()).unwrap();
            for target in ARCHITECTURES {
                for rows in lower::PROMPT_ROWS {
                    let graph = lower::prompt(&config, &formats, &CudaTiles::new(), rows);
                    eprintln!("{width}, {heads}, {kv_heads}, {rows} rows");
                    let compiled = Compiled::new(&graph, target);
                    let is_attention =
                        |it: &&String| it.split('(').next().unwrap().contains("attention");
                    let attention = compiled.kernels.iter().find(is_attention).unwrap();
                    assert!(attention.contains("mma.sync"), "{width}: {attention}");
                    assert!(!attention.contains(".local "), "{width}: {attention}");
                }
            }
        }
    }

    #[test]
    #[ignore = "long: cargo xtask test --all"]
    fn every_graph_of_every_fixture_compiles_for_each_architecture() {
        for fixture in fixtures::of_gpus() {
            for target in ARCHITECTURES {
                check_fixture(&fixture, target, &lower::STEP_ROWS);
            }
        }
    }

    #[test]
    #[ignore = "long: cargo xtask test --all"]
    fn tokens_in_every_format() {
        let formats = [Format::Bf16Rounded, Format::Int8, Format::F16, Format::F32];
        for formats in formats.map(WeightFormats::all).into_iter().chain([int4()]) {
            check_one_row(&formats, &ARCHITECTURES);
        }
        for formats in [WeightFormats::all(Format::F32), WeightFormats::all(Format::Int8), int4()] {
            for rows in [8, 32] {
                check_rows(&formats, rows);
            }
        }
        check_prompt(&WeightFormats::all(Format::Int8), false);
    }

    #[test]
    #[ignore = "long: cargo xtask test --all"]
    fn steps_of_experts_in_every_format() {
        for formats in [WeightFormats::all(Format::Bf16), WeightFormats::all(Format::Int8), int4()]
        {
            for rows in lower::STEP_ROWS {
                check_experts(&formats, rows);
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
