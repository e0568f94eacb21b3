//! The graphs for NVIDIA GPUs, as far as they can be checked without one: what they compute, on the
//! CPU, and that they compile ahead of time. `cuda_code.rs` has what the compiler makes of them.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};

use xla_session::checkpoint::Checkpoint;
use xla_session::config::ModelConfig;
use xla_session::emit::{Format, WeightFormats};
use xla_session::{
    Engine, Event, InferenceSession, LoadMode, Output, Precision, Run, SessionOptions, Tuning,
    Want, compile_ahead, generate_greedy,
};

use crate::fixtures::streams::{
    self, check_by_eight_rows, check_mixed_steps, check_what_is_not_a_number,
};
use crate::fixtures::{self, Fixture, assert_close, assert_contract, assert_same_tokens};

/// Architectures that graphs are compiled for, the older one of GPUs since 2020.
const ARCHITECTURES: [&str; 2] = ["sm_80", "sm_89"];

/// The graphs of GPUs on the CPU.
fn options(precision: Precision) -> SessionOptions {
    SessionOptions {
        tuning: Tuning { cuda_graphs: true, ..Tuning::default() },
        precision,
        cache_dir: Some(fixtures::compiled()),
        ..SessionOptions::default()
    }
}

fn open(fixture: &Fixture, options: &SessionOptions) -> Box<dyn InferenceSession> {
    xla_session::open(&fixture.folder, options).unwrap().session
}

/// The one whose graphs of every number of rows tests share, as compiling them is most of what they take: tied weights,
/// windows in some layers, norms of queries and keys and on both sides of the parts.
fn of_all_rows() -> Fixture {
    fixtures::named("gemma3-older-gqa-bf16")
}

#[test]
fn every_token_equals_the_reference_as_stored() {
    let fixture = of_all_rows();
    assert_same_tokens(&fixture, open(&fixture, &options(Precision::Stored)).as_mut());
}

/// Capped scores and norms on both sides, biases and pairs of neighbours of half a head, norms behind rotations, attention
/// and MLP in parallel behind a layer norm, keys of other layers and inputs of each, norms behind the parts, queries that
/// grow with their position, MLPs without a gate, activations that have learned, layer norms with biases, an output with one; by graphs of one number of rows.
#[test]
fn every_token_of_more_models_equals_the_reference_as_stored() {
    for name in [
        "gemma2-gqa-tied-bf16",
        "glm4-gqa-biases-bf16",
        "hunyuan-alpha-tied-gqa-bf16",
        "cohere2-windows-tied-gqa-bf16",
        "gemma4-shared-inputs-gqa-bf16",
        "olmo2-gqa-bf16",
        "ministral3-yarn-gqa-bf16",
        "arcee-biases-gqa-f16",
        "starcoder2-window-gqa-bf16",
        "nemotron-gqa-bf16",
        "phi-partial-mha-f16",
        "apertus-gqa-bf16",
    ] {
        check_by_eight_rows(&fixtures::named(name), options(Precision::Stored));
    }
}

#[test]
fn every_token_equals_the_reference_in_f32() {
    let fixture = fixtures::named("llama-mha-f32");
    assert_same_tokens(&fixture, open(&fixture, &options(Precision::F32)).as_mut());
}

/// What `cargo xtask test --all` adds.
mod long {
    use super::*;

    #[test]
    #[ignore = "long: cargo xtask test --all"]
    fn every_token_of_every_fixture_equals_the_reference() {
        for fixture in fixtures::of_gpus() {
            for precision in [Precision::Stored, Precision::F32] {
                assert_same_tokens(&fixture, open(&fixture, &options(precision)).as_mut());
            }
        }
    }

    #[test]
    #[ignore = "long: cargo xtask test --all"]
    fn mixed_steps_of_every_fixture_equal_the_reference() {
        for fixture in fixtures::of_gpus() {
            for seed in 0..4 {
                check_mixed_steps(&fixture, &mut engine(&fixture, 12), seed);
            }
        }
    }

    #[test]
    #[ignore = "long: cargo xtask test --all"]
    fn what_is_not_a_number_reaches_nobody_else_among_experts() {
        check_what_is_not_a_number("mixtral-mha-f32", &options(Precision::Stored));
    }
}

#[test]
fn sinks_are_refused_and_it_is_said_what_runs_them() {
    let fixture = fixtures::named("gpt-oss-gqa-bf16");
    let error = xla_session::open(&fixture.folder, &options(Precision::Stored)).unwrap_err();
    let message = error.to_string();
    assert!(message.contains("gpt_oss") && message.contains("local-task"), "{message}");
}

/// Experts by a softmax, and by sigmoids with biases beside convolutions.
#[test]
fn every_token_of_experts_equals_the_reference() {
    for name in ["mixtral-gqa-bf16", "lfm2-moe-gqa-f16"] {
        check_by_eight_rows(&fixtures::named(name), options(Precision::Stored));
    }
}

/// A row of a step by itself, which meets its experts in another way; one of all rows, and its gate.
#[test]
fn a_row_of_experts_by_itself_equals_the_reference() {
    let mut options = options(Precision::Stored);
    options.tuning.gpu_rows = Some(1);
    let fixture = fixtures::named("qwen2-moe-shared-gqa-bf16");
    let mut session = open(&fixture, &options);
    for case in &fixture.cases[..2] {
        session.reset();
        let count = case.tokens.len();
        let generation = generate_greedy(session.as_mut(), &case.prompt, count, &[]).unwrap();
        assert_eq!(generation.tokens, case.tokens);
    }
}

#[test]
fn the_contract_holds() {
    let options = SessionOptions { context: Some(80), ..options(Precision::Stored) };
    let fixture = of_all_rows();
    assert_contract(&fixture, open(&fixture, &options).as_mut(), false);
}

fn engine(fixture: &Fixture, pages: usize) -> Engine {
    streams::engine(fixture, pages, &options(Precision::Stored))
}

#[test]
fn mixed_steps_equal_the_reference() {
    let fixture = of_all_rows();
    for seed in [1, 2] {
        check_mixed_steps(&fixture, &mut engine(&fixture, 12), seed);
    }
}

/// Eight sequences, a token of each in a step, and 32.
#[test]
fn sequences_decode_together() {
    let fixture = of_all_rows();
    let mut engine = engine(&fixture, 80);
    for together in [8, 32] {
        let cases: Vec<_> = (0..together).map(|i| &fixture.cases[i % 3]).collect();
        let mut sequences: Vec<_> = cases.iter().map(|_| engine.sequence()).collect();
        for (case, sequence) in cases.iter().zip(&mut sequences) {
            let run = Run { sequence, tokens: &case.prompt, want: Want::Token };
            assert_eq!(engine.step(&mut [run]).unwrap(), [Output::Token(case.tokens[0])]);
        }
        for at in 0..16 {
            let run = |(case, sequence)| {
                let case: &&fixtures::Case = case;
                Run { sequence, tokens: &case.tokens[at..=at], want: Want::Token }
            };
            let mut runs: Vec<_> = cases.iter().zip(&mut sequences).map(run).collect();
            let outputs = engine.step(&mut runs).unwrap();
            for (i, (case, output)) in cases.iter().zip(outputs).enumerate() {
                let expected = Output::Token(case.tokens[at + 1]);
                assert_eq!(output, expected, "sequence {i} of {together}, token {at}");
            }
        }
    }
}

/// A fork shares pages until either writes: then the device copies one.
#[test]
fn forks_go_their_own_ways() {
    let fixture = of_all_rows();
    let mut engine = engine(&fixture, 12);
    let case = &fixture.cases[1];
    let mut first = engine.sequence();
    let run = Run { sequence: &mut first, tokens: &case.prompt, want: Want::Token };
    engine.step(&mut [run]).unwrap();
    let mut second = first.fork();
    let other = [case.tokens[3], case.tokens[5]];
    let runs = &mut [
        Run { sequence: &mut first, tokens: &case.tokens[..8], want: Want::Token },
        Run { sequence: &mut second, tokens: &other, want: Want::Logits },
    ];
    let outputs = engine.step(runs).unwrap();
    assert_eq!(outputs[0], Output::Token(case.tokens[8]));
    // Either writes in this step: each has a copy of its own.
    assert_eq!(engine.statistics().copies, 2);
    let mut alone = engine.sequence();
    let whole = [&case.prompt[..], &other].concat();
    let run = Run { sequence: &mut alone, tokens: &whole, want: Want::Logits };
    let expected = engine.step(&mut [run]).unwrap();
    let (Output::Logits(actual), Output::Logits(expected)) = (&outputs[1], &expected[0]) else {
        panic!("logits were wanted");
    };
    assert_close(actual, expected, "the fork");
}

#[test]
fn a_prefix_is_found_again() {
    let fixture = of_all_rows();
    let mut engine = engine(&fixture, 12);
    let case = &fixture.cases[3];
    let mut first = engine.sequence();
    for piece in case.prompt.chunks(200) {
        engine
            .step(&mut [Run { sequence: &mut first, tokens: piece, want: Want::Nothing }])
            .unwrap();
    }
    drop(first);
    let mut again = engine.sequence();
    let held = engine.resume(&mut again, &case.prompt).unwrap();
    assert_eq!(held, 299);
    let run = Run { sequence: &mut again, tokens: &case.prompt[held..], want: Want::Logits };
    let outputs = engine.step(&mut [run]).unwrap();
    let [Output::Logits(actual)] = &outputs[..] else { panic!("{outputs:?}") };
    assert_close(actual, &case.logits, "behind the prefix");
}

#[test]
fn what_is_not_a_number_reaches_nobody_else() {
    check_what_is_not_a_number("llama-mha-f32", &options(Precision::Stored));
}

/// Graphs of prompts round activations, and others do not: what they leave is near to what rows of the others leave, where
/// a prompt begins, goes on behind other rows, ends within a page, and fills whole graphs; of one head of keys with
/// windows, and of several.
#[test]
fn prompts_on_tensor_cores_are_near_to_rows_that_round_nothing() {
    for name in ["gemma2-mqa-uncapped-f16", "gemma-gqa-bf16"] {
        check_prompts_in_bf16(name);
    }
}

fn check_prompts_in_bf16(name: &str) {
    /// Of the largest logit.
    const MOST: f32 = 0.02;
    let off = |actual: &[f32], expected: &[f32]| {
        let scale = expected.iter().fold(0f32, |max, it| max.max(it.abs()));
        let errors = actual.iter().zip(expected).map(|(a, e)| (a - e).abs() / scale);
        errors.fold(0.0, f32::max)
    };
    let fixture = fixtures::named(name);
    let mut options = options(Precision::Bf16);
    options.tuning.gpu_rows = Some(8);
    let mut engine = streams::engine(&fixture, 40, &options);
    let case = &fixture.cases[3];
    let mut logits = |pieces: &[usize]| -> Vec<f32> {
        let mut sequence = engine.sequence();
        let (mut left, mut last) = (&case.prompt[..], Vec::new());
        for &rows in pieces {
            let (piece, rest) = left.split_at(rows);
            let run = Run { sequence: &mut sequence, tokens: piece, want: Want::Logits };
            let outputs = engine.step(&mut [run]).unwrap();
            let [Output::Logits(of_last)] = &outputs[..] else { panic!("{outputs:?}") };
            (left, last) = (rest, of_last.clone());
        }
        assert!(left.is_empty());
        last
    };
    let exact = logits(&[30; 10]);
    let weights = off(&exact, &case.logits);
    assert!(weights < MOST, "{name}: weights in bf16: {weights}");
    for pieces in [&[256, 44][..], &[200, 100], &[30, 30, 40, 200], &[1, 250, 49]] {
        let distance = off(&logits(pieces), &exact);
        assert!(distance > 0.0 && distance < MOST, "{name}, {pieces:?}: {distance}");
    }

    // Behind a row of somebody else, whose table is the first.
    let (mut other, mut sequence) = (engine.sequence(), engine.sequence());
    let (begins, ends) = case.prompt.split_at(100);
    let mut beside = Vec::new();
    for (token, tokens, want) in [(0, begins, Want::Nothing), (1, ends, Want::Logits)] {
        let runs = &mut [
            Run { sequence: &mut other, tokens: &case.prompt[token..=token], want: Want::Nothing },
            Run { sequence: &mut sequence, tokens, want },
        ];
        if let [_, Output::Logits(of_last)] = &engine.step(runs).unwrap()[..] {
            beside.clone_from(of_last);
        }
    }
    let distance = off(&beside, &exact);
    assert!(distance > 0.0 && distance < MOST, "{name}, beside rows: {distance}");
}

/// Compiles every graph of `config` for `architecture`.
fn compile(config: &ModelConfig, formats: &WeightFormats, architecture: &str, name: &str) {
    let options =
        SessionOptions { cache_dir: Some(fixtures::compiled()), ..SessionOptions::default() };
    let graphs = compile_ahead(config, formats, architecture, name, &options)
        .unwrap_or_else(|e| panic!("{name} for {architecture}: {e}"));
    assert_eq!(graphs, 7, "steps of 1, 8, 32 and 256 rows, heads of 1, 8 and 32");
}

fn compile_fixture(fixture: &Fixture, precision: Precision, architecture: &str) {
    let mut config = ModelConfig::from_dir(&fixture.folder).unwrap();
    let checkpoint = Checkpoint::open(&fixture.folder, LoadMode::Mmap).unwrap();
    config.tie_word_embeddings = checkpoint.is_tied(&config).unwrap();
    let formats = WeightFormats::new(precision, &config, &checkpoint);
    compile(&config, &formats, architecture, &fixture.name);
}

/// `cuda_code.rs` has every precision, and every fixture.
#[test]
fn models_compile_ahead_of_time() {
    let fixture = fixtures::named("llama-llama3-biases-mqa-f16");
    compile_fixture(&fixture, Precision::Stored, ARCHITECTURES[1]);
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

#[test]
fn a_copied_cache_needs_no_compiler() {
    let fixture = fixtures::named("llama-mha-f32");
    let with = options(Precision::F32);
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
        // Whatever the cache has room for.
        context: Some(100),
        ..with.clone()
    };
    let error = xla_session::open(&fixture.folder, &without).unwrap_err().to_string();
    assert!(error.contains("no cache holds"), "{error}");
    for entry in fs::read_dir(fixtures::compiled()).unwrap() {
        let path = entry.unwrap().path();
        // What another test is writing goes by other names until it is whole.
        let _ = fs::copy(&path, Path::join(elsewhere.path(), path.file_name().unwrap()));
    }
    let mut session = open(&fixture, &without);
    let prompt = &fixture.cases[1].prompt;
    assert_eq!(session.prefill(prompt).unwrap().token, expected.prefill(prompt).unwrap().token);
    assert!(compiled.lock().unwrap().is_empty());
}
