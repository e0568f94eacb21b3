//! Any model folder with a `reference.json`.
//!
//! `tests/reference/reference_1b.py FOLDER --compare` makes one of the full Llama-3.2-1B shape
//! and runs this.

use std::path::PathBuf;

use xla_session::SessionOptions;

use crate::fixtures::{Fixture, assert_same_tokens};

#[test]
#[ignore = "needs a model in REFERENCE_MODEL"]
fn every_token_equals_the_reference() {
    let folder = std::env::var_os("REFERENCE_MODEL")
        .expect("REFERENCE_MODEL: set it to a model folder with a reference.json");
    let fixture = Fixture::read(PathBuf::from(folder));
    let context = fixture.cases.iter().map(|c| c.prompt.len() + c.tokens.len()).max();
    let options = SessionOptions { context, ..SessionOptions::default() };
    let mut opened = xla_session::open(&fixture.folder, &options).unwrap();
    assert_same_tokens(&fixture, opened.session.as_mut());
}
