//! Drafts of a smaller model: every answer is that without.

use std::path::Path;

use xla_session::batching::{BatcherOptions, Gap, Request, Speculate};
use xla_session::sample::{Sampler, SamplerOptions};
use xla_session::scheduler::SchedulerOptions;
use xla_session::{Batcher, Model, Precision, SessionOptions};

use super::{Desk, TALES, alone, engine, greedy, open, requests};
use crate::fixtures::{self, SOME, WITH_STATES};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;

/// A model again, that says nearly the same.
fn in_int4(folder: &Path, context: Option<usize>) -> Model {
    let options = SessionOptions {
        precision: Precision::Int4,
        context,
        cache_dir: Some(fixtures::compiled()),
        weights_cache: false,
        ..SessionOptions::default()
    };
    Model::open(folder, &options).unwrap()
}

fn drafting(model: &Model, pages: usize, speculate: Speculate, draft: &Model) -> Desk {
    let mut options = BatcherOptions::default();
    options.scheduler =
        SchedulerOptions { rows: 100, most_running: 9, ..SchedulerOptions::default() };
    (options.gap, options.speculate) = (Gap::Rows(40), speculate);
    let batcher = Batcher::new(engine(model, pages), &options).unwrap();
    Desk::new(batcher.with_draft_model(draft).unwrap())
}

#[test]
fn answers_are_those_without_whatever_a_smaller_model_drafts() {
    let (model, small) = (open(Path::new(TALES)), in_int4(Path::new(TALES), None));
    let mut requests = requests(&mut ChaCha8Rng::seed_from_u64(31), 14);
    for request in &mut requests {
        request.eos.clear();
    }
    let expected: Vec<_> = requests.iter().map(|it| alone(&model, it)).collect();
    let short = in_int4(Path::new(TALES), Some(70));
    // With memory for all, for so few that requests take it from each other, and a draft model whose context is too short
    // for most.
    for (pages, speculate, draft) in [
        (200, Speculate::Fixed(3), &small),
        (200, Speculate::Auto, &small),
        (11, Speculate::Fixed(5), &small),
        (200, Speculate::Fixed(2), &short),
    ] {
        let mut desk = drafting(&model, pages, speculate, draft);
        let ids: Vec<_> = requests.iter().map(|it| desk.submit(it)).collect();
        let drafts = desk.finish().drafts;
        for (id, (tokens, reason)) in ids.iter().zip(&expected) {
            assert_eq!(desk.tokens[id], *tokens, "{pages} pages, {speculate:?}");
            assert_eq!(desk.ended[id].reason, *reason);
        }
        match speculate {
            Speculate::Fixed(_) => assert!(drafts.drafted > 50, "{drafts:?}"),
            _ => assert!(drafts.drafted > 0),
        }
        // Most are right, of the sampled ones too.
        assert!(2 * drafts.accepted > drafts.drafted, "{pages} pages, {speculate:?}: {drafts:?}");
    }
}

/// Half of what a model of random weights drafts in int4 is wrong.
#[test]
fn every_token_of_the_fixtures_equals_the_reference_with_right_and_wrong_drafts() {
    for name in SOME {
        let fixture = fixtures::named(name);
        let (model, small) = (open(&fixture.folder), in_int4(&fixture.folder, None));
        let mut desk = drafting(&model, 100, Speculate::Fixed(7), &small);
        let asked = |case: &fixtures::Case| greedy(&case.prompt, case.tokens.len());
        let ids: Vec<_> = fixture.cases.iter().map(|it| desk.submit(&asked(it))).collect();
        let drafts = desk.finish().drafts;
        for (id, case) in ids.iter().zip(&fixture.cases) {
            assert_eq!(desk.tokens[id], case.tokens, "{name}");
        }
        assert!(0 < drafts.accepted && drafts.accepted < drafts.drafted, "{name}: {drafts:?}");
    }
}

/// A prompt is read piece by piece, and answers are drafted behind it.
#[test]
fn a_long_prompt_is_read_in_pieces() {
    let (model, small) = (open(Path::new(TALES)), in_int4(Path::new(TALES), None));
    let mut desk = drafting(&model, 200, Speculate::Fixed(4), &small);
    let prompt: Vec<u32> = (0..400).map(|at| 3 + at * 7919 % 1500).collect();
    let request = Request { prompt, max_tokens: 60, ..Request::default() };
    let id = desk.submit(&request);
    let drafts = desk.finish().drafts;
    assert_eq!(desk.tokens[&id], alone(&model, &request).0);
    // The first ten tokens come while 40 rows of it are read beside each.
    assert!((40..=4 * 50).contains(&drafts.drafted), "{drafts:?}");
}

/// A sampler draws the same numbers for drafts and for what they are compared with.
#[test]
fn a_model_that_drafts_for_itself_is_always_right() {
    let model = open(Path::new(TALES));
    for sampled in [false, true] {
        let options = SamplerOptions {
            temperature: 1.0,
            presence_penalty: 0.5,
            repeat_penalty: 1.2,
            seed: 9,
            ..SamplerOptions::default()
        };
        let mut desk = drafting(&model, 200, Speculate::Fixed(4), &model);
        let request = Request {
            prompt: vec![0],
            max_tokens: 61,
            sampler: sampled.then(|| Sampler::new(options).unwrap()),
            ..Request::default()
        };
        let id = desk.submit(&request);
        let statistics = desk.finish();
        assert_eq!(desk.tokens[&id], alone(&model, &request).0);
        assert_eq!(statistics.drafts.drafted, statistics.drafts.accepted);
        // One token of the prompt's step, and five of each one behind it.
        assert_eq!((statistics.steps, statistics.drafts.accepted), (1 + 12, 48));
    }
}

#[test]
fn another_vocabulary_and_states_are_refused() {
    let model = open(Path::new(TALES));
    let refused = |name: &str| {
        let small = open(&fixtures::named(name).folder);
        let batcher = Batcher::new(engine(&model, 20), &BatcherOptions::default()).unwrap();
        let error = batcher.with_draft_model(&small).unwrap_err().to_string();
        (error, small.config().vocab_size)
    };
    let (error, size) = refused("llama-mha-f32");
    let sizes = [size, model.config().vocab_size];
    assert!(sizes.iter().all(|size| error.contains(&size.to_string())), "{error}");
    let (error, _) = refused(WITH_STATES);
    assert!(error.contains("states"), "{error}");
}
