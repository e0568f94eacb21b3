//! `--precision bf16` against a model of it in f64: matrices rounded to bfloat16, and what they
//! are multiplied with.

use std::collections::HashMap;
use std::path::Path;

use half::bf16;
use xla_session::checkpoint::Checkpoint;
use xla_session::config::ModelConfig;
use xla_session::kernels::Isa;
use xla_session::{InferenceSession, KvFormat, LoadMode, Precision, SessionOptions, Tuning};

use crate::fixtures;

/// Plain Llamas: without biases, norms of queries and keys, and windows. One has f32 weights and
/// an odd number of columns.
const NAMES: [&str; 2] = ["llama-mha-f32", "llama-gqa-long-bf16"];

/// A Llama in f64, one token at a time.
struct Model {
    config: ModelConfig,
    weights: HashMap<String, Vec<f64>>,
    rounds: bool,
    /// Keys and values of each layer.
    caches: Vec<[Vec<Vec<f64>>; 2]>,
}

impl Model {
    fn open(folder: &Path, rounds: bool) -> Self {
        let checkpoint = Checkpoint::open(folder, LoadMode::Mmap).unwrap();
        let weights = checkpoint.tensors().map(|tensor| {
            let weights = checkpoint.tensor(tensor.name, tensor.shape).unwrap().to_f32();
            let rounds = rounds && tensor.shape.len() == 2;
            let weights = weights.into_iter().map(|weight| rounded(rounds, weight)).collect();
            (tensor.name.to_owned(), weights)
        });
        let weights = weights.collect();
        Self { config: ModelConfig::from_dir(folder).unwrap(), weights, rounds, caches: vec![] }
    }

    fn weights(&self, name: &str) -> &[f64] {
        &self.weights[&format!("{name}.weight")]
    }

    fn linear(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let x: Vec<f64> = x.iter().map(|&x| rounded(self.rounds, x as f32)).collect();
        self.weights(name).chunks(x.len()).map(|row| dot(row, &x)).collect()
    }

    fn norm(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let mean = dot(x, x) / x.len() as f64 + self.config.rms_norm_eps;
        x.iter().zip(self.weights(name)).map(|(x, w)| x / mean.sqrt() * w).collect()
    }

    /// Rotates each head of `x`, at `position`.
    fn rope(&self, x: &[f64], position: usize) -> Vec<f64> {
        let tables = self.config.rope().tables(position..position + 1);
        let half = self.config.head_dim / 2;
        let rotate = |head: &[f64]| -> Vec<f64> {
            let turned = |i: usize| {
                let (cos, sin) = (f64::from(tables.cos[i % half]), f64::from(tables.sin[i % half]));
                head[i] * cos + if i < half { -head[i + half] } else { head[i - half] } * sin
            };
            (0..2 * half).map(turned).collect()
        };
        x.chunks(2 * half).flat_map(rotate).collect()
    }

    /// The logits after one more token.
    fn step(&mut self, token: u32) -> Vec<f64> {
        let c = self.config.clone();
        let (width, hidden) = (c.head_dim, c.hidden_size);
        let mut x =
            self.weights("model.embed_tokens")[token as usize * hidden..][..hidden].to_vec();
        for layer in 0..c.num_hidden_layers {
            let name = |name: &str| format!("model.layers.{layer}.{name}");
            let h = self.norm(&name("input_layernorm"), &x);
            let position = self.caches[layer][0].len();
            let q = self.rope(&self.linear(&name("self_attn.q_proj"), &h), position);
            let k = self.rope(&self.linear(&name("self_attn.k_proj"), &h), position);
            let v = self.linear(&name("self_attn.v_proj"), &h);
            self.caches[layer][0].push(k);
            self.caches[layer][1].push(v);
            let [k, v] = &self.caches[layer];
            let shared = c.num_attention_heads / c.num_key_value_heads;
            let mut mixed = vec![0.0; q.len()];
            for (head, mixed) in mixed.chunks_mut(width).enumerate() {
                let q = &q[head * width..][..width];
                let at = head / shared * width..(head / shared + 1) * width;
                let score = |k: &Vec<f64>| (dot(q, &k[at.clone()]) / (width as f64).sqrt()).exp();
                let scores: Vec<f64> = k.iter().map(score).collect();
                let sum: f64 = scores.iter().sum();
                for (score, v) in scores.iter().zip(v) {
                    for (mixed, v) in mixed.iter_mut().zip(&v[at.clone()]) {
                        *mixed += score / sum * v;
                    }
                }
            }
            add(&mut x, &self.linear(&name("self_attn.o_proj"), &mixed));
            let h = self.norm(&name("post_attention_layernorm"), &x);
            let gate = self.linear(&name("mlp.gate_proj"), &h);
            let up = self.linear(&name("mlp.up_proj"), &h);
            let h: Vec<_> =
                gate.iter().zip(up).map(|(g, up)| g / (1.0 + (-g).exp()) * up).collect();
            add(&mut x, &self.linear(&name("mlp.down_proj"), &h));
        }
        let x = self.norm("model.norm", &x);
        self.linear("lm_head", &x)
    }

    fn logits(&mut self, tokens: &[u32]) -> Vec<f32> {
        self.caches = vec![[vec![], vec![]]; self.config.num_hidden_layers];
        let logits = tokens.iter().map(|&token| self.step(token)).last().unwrap();
        logits.into_iter().map(|it| it as f32).collect()
    }
}

fn rounded(rounds: bool, it: f32) -> f64 {
    if rounds { bf16::from_f32(it).into() } else { it.into() }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn add(x: &mut [f64], h: &[f64]) {
    for (x, h) in x.iter_mut().zip(h) {
        *x += h;
    }
}

/// With a KV cache in f32: what that in f16 loses is looked at in `kv_cache.rs`.
fn open(folder: &Path, tuning: Tuning) -> Box<dyn InferenceSession> {
    let options = SessionOptions {
        precision: Precision::Bf16,
        tuning,
        kv_cache: Some(KvFormat::F32),
        cache_dir: Some(fixtures::compiled()),
        context: Some(512),
        ..Default::default()
    };
    xla_session::open(folder, &options).unwrap().session
}

/// The logits after `prompt`, its last `single` tokens one by one.
fn logits(session: &mut dyn InferenceSession, prompt: &[u32], single: usize) -> Vec<f32> {
    let (first, rest) = prompt.split_at(prompt.len() - single);
    session.reset();
    if !first.is_empty() {
        session.prefill(first).unwrap();
    }
    for &token in rest {
        session.decode_step(token).unwrap();
    }
    let mut logits = Vec::new();
    session.read_logits(&mut logits).unwrap();
    logits
}

/// The largest distance of a logit, of the largest logit.
fn error(actual: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(actual.len(), expected.len());
    let scale = expected.iter().fold(0f32, |max, it| max.max(it.abs()));
    actual.iter().zip(expected).map(|(a, e)| (a - e).abs() / scale).fold(0.0, f32::max)
}

#[test]
fn bf16_computes_as_the_format_says() {
    /// Of the largest logit: what lies close to the middle of two steps is rounded either way.
    const MOST: f32 = 5e-4;
    for name in NAMES {
        let fixture = fixtures::named(name);
        let mut exact = Model::open(&fixture.folder, false);
        let mut model = Model::open(&fixture.folder, true);
        // Graphs for GPUs round no activations: they compute another model.
        let mut all: Vec<_> = Isa::all_here()
            .into_iter()
            .map(|isa| {
                let tuning = Tuning { isa: Some(isa), ..Tuning::default() };
                (isa.as_str(), open(&fixture.folder, tuning))
            })
            .collect();
        for case in fixture.cases.iter().filter(|case| case.prompt.len() < 100) {
            let tokens = case.prompt.len();
            let exact = exact.logits(&case.prompt);
            assert!(error(&exact, &case.logits) < 1e-4, "{name}: this is another model");
            let model = model.logits(&case.prompt);
            let rounding = error(&model, &exact);
            assert!(rounding > 4.0 * MOST, "{name}, {tokens} tokens: {rounding:e} by rounding");
            for (what, session) in &mut all {
                for single in [0, tokens.min(2) - 1] {
                    let off = error(&logits(session.as_mut(), &case.prompt, single), &model);
                    assert!(
                        off <= MOST,
                        "{name}, {tokens} tokens, {single} alone, {what}: {off:e}"
                    );
                }
            }
        }
    }
}
