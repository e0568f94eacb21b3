//! Encoders: hidden states are those of transformers, whatever else is in a step, and what an encoder cannot do is said.
//!
//! `tests/reference/make_encoders.py` makes them.

use std::path::{Path, PathBuf};

use kernels::Isa;
use serde::Deserialize;
use xla_session::batching::{Batcher, BatcherOptions, Request};
use xla_session::{
    Engine, EngineOptions, Error, Model, Output, Pooling, Precision, Run, SessionOptions, Tuning,
    Want,
};

use crate::fixtures::{self, assert_close};

#[derive(Deserialize)]
struct Reference {
    cases: Vec<Case>,
}

/// A text, and of its hidden states the first, the last and their mean.
#[derive(Deserialize)]
struct Case {
    tokens: Vec<u32>,
    /// Where a second text begins.
    second: Option<usize>,
    first: Vec<f32>,
    last: Vec<f32>,
    mean: Vec<f32>,
}

fn all() -> Vec<(String, PathBuf, Vec<Case>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/encoders");
    let mut all = Vec::new();
    for entry in folder.read_dir().unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read(path.join("reference.json")).unwrap();
        let reference: Reference = serde_json::from_slice(&text).unwrap();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        all.push((name, path, reference.cases));
    }
    all.sort_by(|a, b| a.0.cmp(&b.0));
    assert!(all.len() >= 6);
    all
}

fn options() -> SessionOptions {
    SessionOptions { cache_dir: Some(fixtures::compiled()), ..SessionOptions::default() }
}

/// Room for many texts.
fn engine(model: &Model) -> Engine {
    Engine::new(model, &EngineOptions::default().with_usual_room(model)).unwrap()
}

fn requests(cases: &[Case], pooling: Pooling) -> impl Iterator<Item = Request> {
    cases.iter().map(move |case| Request {
        prompt: case.tokens.clone(),
        pooling: Some(pooling),
        second_text: case.second,
        ..Request::default()
    })
}

/// The vector of each request, in their order.
fn vectors(engine: Engine, requests: impl Iterator<Item = Request>) -> Vec<Vec<f32>> {
    let mut batcher = Batcher::new(engine, &BatcherOptions::default()).unwrap();
    let ids: Vec<_> = requests.map(|request| batcher.submit(request).unwrap()).collect();
    let mut ended = Vec::new();
    while !batcher.is_idle() {
        ended.extend(batcher.advance(&mut |_, _| unreachable!("there are no tokens")).unwrap());
    }
    let vector = |id| ended.iter().find(|(it, _)| *it == id).and_then(|(_, it)| it.vector.clone());
    let vectors: Option<_> = ids.into_iter().map(vector).collect();
    assert_eq!(batcher.into_engine().statistics().held, 0);
    vectors.unwrap()
}

#[test]
fn hidden_states_are_those_of_transformers() {
    for (name, folder, cases) in all() {
        for isa in Isa::all_here() {
            let tuning = Tuning { isa: Some(isa), ..Tuning::default() };
            for precision in [Precision::F32, Precision::Stored] {
                let options = SessionOptions { precision, tuning: tuning.clone(), ..options() };
                let model = Model::open(&folder, &options).unwrap();
                let mut engine = engine(&model);
                let width = model.config().hidden_size;
                for case in &cases {
                    let what = format!("{name}, {isa:?}, {precision:?}, {}", case.tokens.len());
                    let mut sequence = engine.sequence();
                    sequence.set_second_text(case.second);
                    let run = Run {
                        sequence: &mut sequence,
                        tokens: &case.tokens,
                        want: Want::AllHidden,
                    };
                    let outputs = engine.step(&mut [run]).unwrap();
                    let [Output::AllHidden(states)] = &outputs[..] else { panic!("{outputs:?}") };
                    assert_close(&states[..width], &case.first, &what);
                    assert_close(&states[states.len() - width..], &case.last, &what);
                }
            }
        }
    }
}

/// All texts at once, in steps that several share, have the bits that they have alone, and the mean is that of
/// transformers. Whatever the number of threads and the precision.
#[test]
fn vectors_are_the_same_in_any_company() {
    for (name, folder, cases) in all() {
        for precision in [Precision::F32, Precision::Bf16, Precision::Int8, Precision::Int4] {
            let mut bits = Vec::new();
            for threads in [1, 2] {
                let threads = Some(threads);
                let options = SessionOptions { precision, threads, ..options() };
                let model = Model::open(&folder, &options).unwrap();
                let together = vectors(engine(&model), requests(&cases, Pooling::Mean));
                for (case, vector) in cases.iter().zip(&together) {
                    let what = format!("{name}, {precision:?}, {}", case.tokens.len());
                    let alone = requests(std::slice::from_ref(case), Pooling::Mean);
                    assert_eq!(vectors(engine(&model), alone), [&vector[..]], "{what}");
                    match precision {
                        Precision::F32 => assert_close(vector, &case.mean, &what),
                        // Matrices of 48 columns lose more than those of models.
                        Precision::Int4 => assert!(cosine(vector, &case.mean) > 0.85, "{what}"),
                        _ => assert!(cosine(vector, &case.mean) > 0.98, "{what}"),
                    }
                }
                bits.push(together);
            }
            assert_eq!(bits[0], bits[1], "{name}, {precision:?}");
        }
    }
}

fn cosine(a: &[f32], b: &[f32]) -> f32 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

#[test]
fn what_an_encoder_cannot_do_is_said() {
    let (_, folder, cases) = all().swap_remove(0);
    let model = Model::open(&folder, &options()).unwrap();
    let mut engine = engine(&model);
    let (mut sequence, tokens) = (engine.sequence(), &cases[1].tokens);
    let mut step = |engine: &mut Engine, tokens: &[u32], want| {
        let run = Run { sequence: &mut sequence, tokens, want };
        engine.step(&mut [run]).map(drop).map_err(|error| error.to_string())
    };
    for want in [Want::Token, Want::Tokens, Want::Logits, Want::AllLogits] {
        let error = step(&mut engine, tokens, want).unwrap_err();
        assert!(error.contains("an encoder") && error.contains("no tokens"), "{error}");
    }
    let long = vec![5; engine.context() + 1];
    let error = step(&mut engine, &long, Want::Hidden).unwrap_err();
    assert!(error.contains("321") && error.contains("320"), "{error}");
    step(&mut engine, tokens, Want::Hidden).unwrap();
    let error = step(&mut engine, &[5], Want::Hidden).unwrap_err();
    assert!(error.contains("runs a text at once"), "{error}");

    let mut batcher = Batcher::new(engine, &BatcherOptions::default()).unwrap();
    let request = Request { prompt: tokens.clone(), max_tokens: 3, ..Request::default() };
    let error = batcher.submit(request).unwrap_err();
    assert!(matches!(&error, Error::Unsupported(_)), "{error}");
    assert!(error.to_string().contains("embed"), "{error}");
}
