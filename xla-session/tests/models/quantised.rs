//! int8 and int4 against a model of the format: the same weights, rounded by
//! [`kernels::quantise`] and stored as f32.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use kernels::quantise::{pack_block, unpack_row};
use kernels::{Format, LANES};
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use xla_session::checkpoint::Checkpoint;
use xla_session::config::ModelConfig;
use xla_session::kernels::Isa;
use xla_session::{InferenceSession, KvFormat, LoadMode, Precision, SessionOptions, Tuning};

use crate::fixtures;

/// `weights`, `[rows, columns]`, as `format` stores them.
fn rounded(format: Format, weights: &[f32], columns: usize) -> Vec<f32> {
    let mut out = vec![0.0; weights.len()];
    for (rows, out) in weights.chunks(LANES * columns).zip(out.chunks_mut(LANES * columns)) {
        let rows: Vec<_> = rows.chunks(columns).collect();
        let mut block = vec![0; format.block_bytes(columns)];
        pack_block(format, &rows, &mut block);
        for (lane, out) in out.chunks_mut(columns).enumerate() {
            unpack_row(format, &block, lane, out);
        }
    }
    out
}

/// The formats of a precision: of the token embedding, the output projection and the ends of the layers,
/// and of the rest.
type Formats = [Format; 2];

/// As the kernels of CPUs have them, or everything else.
fn formats(precision: Precision, kernels: bool) -> Formats {
    match precision {
        Precision::Int8 | Precision::W8a8 => [Format::Int8; 2],
        Precision::Int4 if kernels => [Format::Int6, Format::Nested4],
        Precision::Int4 => [Format::Int8, Format::Int4],
        _ => unreachable!("{precision:?} does not round"),
    }
}

/// Writes the model in `from` to `to` as f32, its matrices rounded as `formats` round them.
fn write_rounded(from: &Path, to: &Path, [outer, inner]: Formats) {
    fs::copy(from.join("config.json"), to.join("config.json")).unwrap();
    let config = ModelConfig::from_dir(from).unwrap();
    let checkpoint = Checkpoint::open(from, LoadMode::Mmap).unwrap();
    let tensors: Vec<_> = checkpoint
        .tensors()
        .map(|listed| {
            let tensor = checkpoint.tensor(listed.name, listed.shape).unwrap();
            let weights = tensor.to_f32();
            let weights = match listed.shape {
                // What decides where rows go is never rounded.
                [_, _] if listed.name.ends_with(".mlp.gate.weight") => weights,
                [_, columns] => {
                    let name = listed.name;
                    let ends = ["model.embed_tokens.weight", "lm_head.weight"].contains(&name);
                    let last = config.num_hidden_layers - 1;
                    let ends = ends
                        || name.starts_with("model.layers.0.self_attn.")
                        || [0, last]
                            .iter()
                            .any(|i| name.starts_with(&format!("model.layers.{i}.mlp.down")));
                    let format = if ends { outer } else { inner };
                    rounded(format, &weights, *columns)
                }
                _ => weights,
            };
            let bytes: Vec<u8> = weights.iter().flat_map(|weight| weight.to_le_bytes()).collect();
            (listed.name.to_owned(), listed.shape.to_vec(), bytes)
        })
        .collect();
    assert!(tensors.len() > 9 * config.num_hidden_layers);
    let views = tensors.iter().map(|(name, shape, bytes)| {
        (name, TensorView::new(Dtype::F32, shape.clone(), bytes).unwrap())
    });
    // Tests run at the same time, and files of one moment are told apart by their headers only.
    let made_for = HashMap::from([("rounded to".to_owned(), format!("{outer:?}, {inner:?}"))]);
    safetensors::serialize_to_file(views, Some(made_for), &to.join("model.safetensors")).unwrap();
}

/// With a KV cache in f32: what weights lose is what is looked at.
fn open(folder: &Path, precision: Precision, tuning: Tuning) -> Box<dyn InferenceSession> {
    open_on(None, folder, precision, tuning)
}

fn open_on(
    device: Option<String>,
    folder: &Path,
    precision: Precision,
    tuning: Tuning,
) -> Box<dyn InferenceSession> {
    let options = SessionOptions {
        device,
        precision,
        tuning,
        kv_cache: Some(KvFormat::F32),
        cache_dir: Some(fixtures::compiled()),
        context: Some(512),
        ..Default::default()
    };
    xla_session::open(folder, &options).unwrap().session
}

/// With the kernels of CPUs.
fn open_kernels(folder: &Path, precision: Precision, isa: Isa) -> Box<dyn InferenceSession> {
    open(folder, precision, Tuning { isa: Some(isa), ..Tuning::default() })
}

/// With the graphs of GPUs, which call no kernel.
fn open_graphs(folder: &Path, precision: Precision) -> Box<dyn InferenceSession> {
    open(folder, precision, Tuning { cuda_graphs: true, ..Tuning::default() })
}

/// With those of Vulkan, on a device of it where there is one.
fn open_vulkan(folder: &Path, precision: Precision) -> Box<dyn InferenceSession> {
    let available =
        iree_rt::vulkan::available().and_then(|()| iree_rt::vulkan::Gpu::at("vulkan").map(drop));
    match available {
        Ok(()) => open_on(Some("vulkan".into()), folder, precision, Tuning::default()),
        Err(error) => {
            println!("SKIPPED on a device, and run on the CPU: {error}");
            open(folder, precision, Tuning { vulkan_graphs: true, ..Tuning::default() })
        }
    }
}

/// The logits after `prompt` and after one more token.
fn logits(session: &mut dyn InferenceSession, prompt: &[u32]) -> [Vec<f32>; 2] {
    session.reset();
    let mut after = [Vec::new(), Vec::new()];
    session.prefill(prompt).unwrap();
    session.read_logits(&mut after[0]).unwrap();
    session.decode_step(prompt[0]).unwrap();
    session.read_logits(&mut after[1]).unwrap();
    after
}

fn error(actual: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(actual.len(), expected.len());
    let scale = expected.iter().fold(0f32, |max, it| max.max(it.abs()));
    actual.iter().zip(expected).map(|(a, e)| (a - e).abs() / scale).fold(0.0, f32::max)
}

/// As [`error`], the root of the mean square.
fn root_mean_square(actual: &[f32], expected: &[f32]) -> f32 {
    let scale = expected.iter().fold(0f32, |max, it| max.max(it.abs()));
    let squares = actual.iter().zip(expected).map(|(a, e)| ((a - e) / scale).powi(2));
    (squares.sum::<f32>() / expected.len() as f32).sqrt()
}

/// Of the largest logit: what activations of eight bits cost, and what that is on average. What int4's weights cost is ten
/// times as much: no fixture was trained.
const BYTE_ACTIVATIONS: [f32; 2] = [4e-2, 1.5e-2];

/// Compares kernels of integers with those of f32 on the model of the rounded weights, whose activations
/// are not rounded. (One product is compared with the format's arithmetic in f64, to 3e-6, by the tests
/// of the kernels.)
fn check(name: &str, precision: Precision) {
    let [bound, average] = match precision {
        Precision::W8a8 | Precision::Int4 => BYTE_ACTIVATIONS,
        _ => [fixtures::ACTIVATIONS; 2],
    };
    let fixture = fixtures::named(name);
    let mut exact = open_kernels(&fixture.folder, Precision::F32, Isa::detect());
    let folder = tempfile::tempdir().unwrap();
    write_rounded(&fixture.folder, folder.path(), formats(precision, true));
    let mut model = open_kernels(folder.path(), Precision::F32, Isa::detect());
    let all = Isa::all_here().into_iter();
    let mut all: Vec<_> =
        all.map(|isa| (isa, open_kernels(&fixture.folder, precision, isa), 0f32)).collect();
    for case in &fixture.cases {
        let expected = logits(&mut *model, &case.prompt);
        let exact = logits(&mut *exact, &case.prompt);
        for (isa, rounded, farthest) in &mut all {
            let actual = logits(&mut **rounded, &case.prompt);
            for i in 0..2 {
                let off = error(&actual[i], &expected[i]);
                let tokens = case.prompt.len();
                let what = format!("{name} {precision:?}, {isa:?}: {tokens} + {i}");
                assert!(off <= bound, "{what}: {off:e}");
                let off = root_mean_square(&actual[i], &expected[i]);
                assert!(off <= average, "{what}: {off:e} on average");
                *farthest = farthest.max(error(&actual[i], &exact[i]));
            }
        }
    }
    for (isa, _, farthest) in all {
        let what = format!("{name} {precision:?}, {isa:?}");
        // Eight bits of a weight cost less than those of activations.
        let least = if precision == Precision::W8a8 { fixtures::ACTIVATIONS } else { bound };
        assert!(farthest > 2.0 * least, "{what}: nothing was rounded");
    }
}

/// Tied and not, biases, norms of queries and keys, widths that are no whole groups.
const NAMES: [&str; 2] = ["llama-llama3-biases-mqa-f16", "qwen3-gqa-tied-bf16"];

#[test]
fn int8_computes_as_the_format_says() {
    for name in NAMES {
        check(name, Precision::Int8);
    }
}

#[test]
fn w8a8_computes_as_the_format_says() {
    for name in NAMES {
        check(name, Precision::W8a8);
    }
}

#[test]
fn int4_computes_as_the_format_says() {
    for name in NAMES {
        check(name, Precision::Int4);
    }
}

/// What `cargo xtask test --all` adds.
mod long {
    use super::*;

    const MORE: [&str; 2] = ["llama-linear-attention-bias-bf16", "llama-mha-f32"];

    #[test]
    #[ignore = "long: cargo xtask test --all"]
    fn more_models_compute_as_the_formats_say() {
        for name in MORE {
            for precision in [Precision::Int8, Precision::Int4] {
                check(name, precision);
            }
        }
        check_gpus("llama-linear-attention-bias-bf16", Precision::Int8, Graphs::Cuda);
        check_gpus("qwen3-gqa-tied-bf16", Precision::Int8, Graphs::Cuda);
        check_gpus("qwen3-gqa-tied-bf16", Precision::Int4, Graphs::Cuda);
    }

    #[test]
    #[ignore = "long: cargo xtask test --all"]
    fn experts_on_gpus_compute_with_the_rounded_weights() {
        check_gpus("qwen3-moe-gqa-bf16", Precision::Int8, Graphs::Cuda);
        check_gpus("qwen3-moe-gqa-bf16", Precision::Int4, Graphs::Cuda);
        check_gpus("qwen3-moe-gqa-bf16", Precision::Int8, Graphs::Vulkan);
    }

    #[test]
    #[ignore = "long: cargo xtask test --all"]
    fn vulkan_computes_with_the_rounded_weights() {
        check_gpus("qwen3-gqa-tied-bf16", Precision::Int8, Graphs::Vulkan);
        check_gpus("llama-linear-attention-bias-bf16", Precision::Int4, Graphs::Vulkan);
    }
}

/// Whose graphs.
#[derive(Debug, Clone, Copy)]
enum Graphs {
    Cuda,
    Vulkan,
}

/// The graphs of GPUs round no activations, so that they compute what the model of the rounded
/// weights does. What is int6 to the kernels of CPUs is int8 there.
fn check_gpus(name: &str, precision: Precision, of: Graphs) {
    let fixture = fixtures::named(name);
    let folder = tempfile::tempdir().unwrap();
    write_rounded(&fixture.folder, folder.path(), formats(precision, false));
    let mut model = open_kernels(folder.path(), Precision::F32, Isa::detect());
    let mut graphs = match of {
        Graphs::Cuda => open_graphs(&fixture.folder, precision),
        Graphs::Vulkan => open_vulkan(&fixture.folder, precision),
    };
    for case in &fixture.cases {
        let expected = logits(&mut *model, &case.prompt);
        let actual = logits(&mut *graphs, &case.prompt);
        for (actual, expected) in actual.iter().zip(&expected) {
            let off = error(actual, expected);
            let what = format!("{name} {precision:?}, {of:?}: {} tokens", case.prompt.len());
            assert!(off <= 1e-5, "{what}: {off:e}");
        }
    }
}

#[test]
fn gpus_compute_with_the_rounded_weights() {
    // Of which the embeddings are int8.
    check_gpus("llama-linear-attention-bias-bf16", Precision::Int4, Graphs::Cuda);
}
