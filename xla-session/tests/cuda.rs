//! The graphs for NVIDIA GPUs, without one: what they compute, on the CPU.
#![cfg(feature = "iree")]

mod fixtures;

use std::path::PathBuf;

use fixtures::{Fixture, assert_contract, assert_same_tokens};
use xla_session::{Backend, GraphsFor, InferenceSession, Precision, SessionOptions};

fn options(precision: Precision) -> SessionOptions {
    SessionOptions {
        graphs: Some(GraphsFor::Cuda),
        precision,
        cache_dir: Some(PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("compiled")),
        ..SessionOptions::default()
    }
}

fn open(fixture: &Fixture, options: &SessionOptions) -> Box<dyn InferenceSession> {
    Backend::Iree.open(&fixture.folder, options).unwrap().session
}

fn every_token(precision: Precision) {
    for fixture in fixtures::all() {
        assert_same_tokens(&fixture, open(&fixture, &options(precision)).as_mut());
    }
}

#[test]
fn every_token_equals_the_reference_as_stored() {
    every_token(Precision::Stored);
}

#[test]
fn every_token_equals_the_reference_in_f32() {
    every_token(Precision::F32);
}

#[test]
fn the_contract_holds() {
    let options = SessionOptions { context: Some(80), ..options(Precision::Stored) };
    let fixture = fixtures::named("mistral-window-gqa-bf16");
    assert_contract(&fixture, open(&fixture, &options).as_mut());
}
