//! Models on a device of Vulkan: lavapipe is one that needs no GPU (Debian: `apt install
//! mesa-vulkan-drivers`). Where there is none, tests say SKIPPED and why, and the same graphs are run on
//! the CPU.

use xla_session::{
    Engine, EngineOptions, Model, Output, Precision, Run, SessionOptions, Tuning, Want,
};

use crate::fixtures::streams::{
    check_by_eight_rows, check_mixed_steps, check_what_is_not_a_number, engine,
};
use crate::fixtures::{self, assert_contract, assert_same_tokens};

/// The graphs of devices of Vulkan on the CPU.
fn on_the_cpu(precision: Precision) -> SessionOptions {
    SessionOptions {
        tuning: Tuning { vulkan_graphs: true, ..Tuning::default() },
        precision,
        cache_dir: Some(fixtures::compiled()),
        ..SessionOptions::default()
    }
}

/// On the first device of Vulkan; `None` where there is none, which is said.
fn on_the_device(precision: Precision) -> Option<SessionOptions> {
    if let Err(error) =
        iree_rt::vulkan::available().and_then(|()| iree_rt::vulkan::Gpu::at("vulkan").map(drop))
    {
        println!("SKIPPED: {error}");
        return None;
    }
    let device = Some("vulkan".into());
    Some(SessionOptions { device, tuning: Tuning::default(), ..on_the_cpu(precision) })
}

/// Experts with one of all rows and its gate, short convolutions, layers without positions: what a device may do in a way
/// of its own, or `cuda.rs` does not have. What else models are made of is the same for both, and there.
#[test]
fn models_of_more_parts_equal_the_reference_as_stored() {
    let Some(options) = on_the_device(Precision::Stored) else { return };
    for name in ["qwen2-moe-shared-gqa-bf16", "lfm2-older-tied-gqa-bf16", "granite4-nope-mqa-f16"] {
        check_by_eight_rows(&fixtures::named(name), options.clone());
    }
}

/// Weights of either kind of 16 bits, widened as they are packed; capped scores and norms on both sides, half of a head
/// turned by one of two tables.
#[test]
fn fixtures_of_fewer_bits_equal_the_reference_in_f32() {
    let Some(options) = on_the_device(Precision::F32) else { return };
    for name in ["gemma2-gqa-tied-bf16", "phi3-longrope-partial-gqa-f16"] {
        check_by_eight_rows(&fixtures::named(name), options.clone());
    }
}

fn check(name: &str, options: &SessionOptions) {
    let fixture = fixtures::named(name);
    let mut session = xla_session::open(&fixture.folder, options).unwrap().session;
    assert_same_tokens(&fixture, session.as_mut());
}

/// The one whose graphs of every number of rows tests share, as compiling them is most of what they take: tied weights,
/// windows in some layers, norms of queries and keys and on both sides of the parts.
const OF_ALL_ROWS: &str = "gemma3-older-gqa-bf16";

#[test]
fn every_token_equals_the_reference_as_stored() {
    let Some(options) = on_the_device(Precision::Stored) else { return };
    check(OF_ALL_ROWS, &options);
}

#[test]
fn the_graphs_are_right_on_the_cpu_too() {
    for name in ["llama-gqa-long-bf16", "stablelm-biases-mha-f16"] {
        check_by_eight_rows(&fixtures::named(name), on_the_cpu(Precision::Stored));
    }
}

/// What `cargo xtask test --all` adds.
mod long {
    use super::*;

    #[test]
    #[ignore = "long: cargo xtask test --all"]
    fn every_token_of_every_fixture_equals_the_reference() {
        for precision in [Precision::Stored, Precision::F32] {
            let Some(options) = on_the_device(precision) else { return };
            for fixture in fixtures::of_gpus() {
                println!("{} {precision:?}", fixture.name);
                check(&fixture.name, &options);
            }
        }
    }

    #[test]
    #[ignore = "long: cargo xtask test --all"]
    fn every_fixture_of_fewer_bits_equals_the_reference_in_f32() {
        let Some(options) = on_the_device(Precision::F32) else { return };
        for fixture in fixtures::of_gpus().iter().filter(|it| !it.name.ends_with("-f32")) {
            check_by_eight_rows(fixture, options.clone());
        }
    }

    #[test]
    #[ignore = "long: cargo xtask test --all"]
    fn mixed_steps_of_more_models_equal_the_reference() {
        let Some(options) = on_the_device(Precision::Stored) else { return };
        for name in ["mistral-window-gqa-bf16", "phi3-longrope-partial-gqa-f16", "olmo2-gqa-bf16"] {
            let fixture = fixtures::named(name);
            for seed in 0..3 {
                check_mixed_steps(&fixture, &mut engine(&fixture, 12, &options), seed);
            }
        }
    }
}

#[test]
fn the_contract_holds() {
    let Some(options) = on_the_device(Precision::Stored) else { return };
    let options = SessionOptions { context: Some(80), ..options };
    let fixture = fixtures::named(OF_ALL_ROWS);
    let mut session = xla_session::open(&fixture.folder, &options).unwrap().session;
    assert_contract(&fixture, session.as_mut(), false);
}

#[test]
fn mixed_steps_equal_the_reference() {
    let Some(options) = on_the_device(Precision::Stored) else { return };
    let fixture = fixtures::named(OF_ALL_ROWS);
    check_mixed_steps(&fixture, &mut engine(&fixture, 12, &options), 1);
}

/// A fork shares pages until either writes: then the device copies one.
#[test]
fn forks_go_their_own_ways() {
    let Some(options) = on_the_device(Precision::Stored) else { return };
    let fixture = fixtures::named(OF_ALL_ROWS);
    let mut engine = engine(&fixture, 12, &options);
    let case = &fixture.cases[1];
    let mut first = engine.sequence();
    let run = Run { sequence: &mut first, tokens: &case.prompt, want: Want::Token };
    engine.step(&mut [run]).unwrap();
    let mut second = first.fork();
    let runs = &mut [
        Run { sequence: &mut first, tokens: &case.tokens[..8], want: Want::Token },
        Run { sequence: &mut second, tokens: &case.tokens[..4], want: Want::Token },
    ];
    let outputs = engine.step(runs).unwrap();
    assert_eq!(outputs, [Output::Token(case.tokens[8]), Output::Token(case.tokens[4])]);
    // Either writes in this step: each has a copy of its own.
    assert_eq!(engine.statistics().copies, 2);
}

#[test]
fn what_is_not_a_number_reaches_nobody_else() {
    let Some(options) = on_the_device(Precision::Stored) else { return };
    check_what_is_not_a_number("llama-mha-f32", &options);
}

#[test]
fn sinks_are_refused_and_it_is_said_what_runs_them() {
    let fixture = fixtures::named("gpt-oss-gqa-bf16");
    let error = xla_session::open(&fixture.folder, &on_the_cpu(Precision::Stored)).unwrap_err();
    let message = error.to_string();
    assert!(message.contains("gpt_oss") && message.contains("local-task"), "{message}");
}

#[test]
fn more_than_the_device_has_is_refused_before_anything_is_made() {
    let Some(options) = on_the_device(Precision::Stored) else { return };
    let fixture = fixtures::named("llama-mha-f32");
    let model = Model::open(&fixture.folder, &options).unwrap();
    let mut some = EngineOptions::default();
    some.kv_bytes = Some(1 << 50);
    let error = Engine::new(&model, &some).unwrap_err().to_string();
    assert!(error.contains("pages of 64 tokens") && !error.contains('\n'), "{error}");
}
