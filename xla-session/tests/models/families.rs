//! What an architecture says is what the graph for CPUs does, also where no family of today says it.

use std::path::Path;

use xla_session::Precision;
use xla_session::checkpoint::architecture::Mixer;
use xla_session::checkpoint::{Checkpoint, LoadMode};
use xla_session::config::ModelConfig;
use xla_session::emit::WeightFormats;
use xla_session::kernels::Isa;
use xla_session::lower::cpu::{self, CpuTarget, Program, Source};
use xla_session::lower::paged;

use crate::fixtures;

/// The biases of the first layer in the order of their calls, each with what is beside it in the same
/// call, and the graph.
fn biases(config: &ModelConfig, checkpoint: &Checkpoint) -> (Vec<Vec<String>>, Program) {
    let formats = WeightFormats::new(Precision::Stored, config, checkpoint);
    let program = cpu::program(config, &formats, &CpuTarget::new(Isa::Portable, 1), 8, 1);
    let body = program.functions[Program::BODY].as_ref().unwrap().arguments.iter();
    let biases = body.filter_map(|argument| match &argument.source {
        Source::Weight(spec, _) => spec
            .parts
            .iter()
            .map(|(name, _)| name.strip_prefix("model.layers.0.self_attn.")?.strip_suffix(".bias"))
            .map(|name| name.map(str::to_owned))
            .collect(),
        _ => None,
    });
    (biases.collect(), program)
}

#[test]
fn a_bias_of_some_projections_alone_is_added_at_their_columns() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures/llama-linear-attention-bias-bf16");
    let mut config = ModelConfig::from_dir(&folder).unwrap();
    let checkpoint = Checkpoint::open(&folder, LoadMode::Mmap).unwrap();
    let (all, unchanged) = biases(&config, &checkpoint);
    assert_eq!(all, [vec!["q_proj", "k_proj", "v_proj"], vec!["o_proj"]]);

    let Mixer::Attention(attention) = &mut config.architecture.layers[0].mixer else { panic!() };
    attention.qkv[1].bias = None;
    let (some, program) = biases(&config, &checkpoint);
    assert_eq!(some, [["q_proj"], ["v_proj"], ["o_proj"]]);
    let before = (config.num_attention_heads + config.num_key_value_heads) * config.head_dim;
    let values = program.workspace.qkv.at + before * size_of::<f32>();
    let values = format!("arith.constant {values} : i32");
    assert!(program.text.contains(&values) && !unchanged.text.contains(&values));
}

/// Latent attention also where no layer has experts too.
#[test]
fn gpus_say_what_they_refuse_and_what_runs_it() {
    for (name, layers, part) in [
        ("deepseek-v3-moe-groups-bf16", 1, "latent attention"),
        ("qwen3-5-gqa-bf16", usize::MAX, "states of sequences"),
        ("gpt-oss-gqa-bf16", usize::MAX, "attention sinks"),
        ("cohere-head-norms-gqa-bf16", usize::MAX, "norms of each head by itself"),
    ] {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name);
        let mut config = ModelConfig::from_dir(&folder).unwrap();
        config.architecture.layers.truncate(layers);
        let message = paged::supports(&config).unwrap_err();
        assert!(message.contains(part) && message.contains("local-task"), "{name}: {message}");
    }
}

/// `cargo xtask gpu-check` leaves these out of what it makes for GPUs.
#[test]
fn gpus_refuse_the_fixtures_that_are_listed() {
    let listed: Vec<_> = include_str!("../../../xtask/src/gpu_check/on_cpus.txt").lines().collect();
    let run: Vec<_> = fixtures::of_gpus().into_iter().map(|it| it.name).collect();
    let all = fixtures::all().into_iter().map(|it| it.name);
    let refused: Vec<_> = all.filter(|name| !run.contains(name)).collect();
    assert_eq!(refused, listed);
}
