//! Decoding by itself: the same tokens, whenever it is stopped.
#![cfg(feature = "iree")]

mod fixtures;

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use fixtures::{Fixture, assert_close};
use xla_session::{Error, InferenceSession, SessionOptions, Step, Tuning};

/// Who decodes.
#[derive(Debug, Clone, Copy)]
enum By {
    /// The graphs for GPUs on the CPU.
    Gpu,
    /// The engine for CPUs.
    Cpu,
}

/// Compiled graphs are shared by the tests of one build.
fn options(by: By) -> SessionOptions {
    let cuda_graphs = matches!(by, By::Gpu);
    SessionOptions {
        cache_dir: Some(PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("compiled")),
        tuning: Tuning { cuda_graphs, ..Tuning::default() },
        ..SessionOptions::default()
    }
}

fn open(folder: &Path, options: &SessionOptions) -> Box<dyn InferenceSession> {
    xla_session::open(folder, options).unwrap().session
}

/// The tokens of `most` steps from `token` on, no more than `stop` of them.
fn decode(session: &mut dyn InferenceSession, token: u32, most: usize, stop: usize) -> Vec<u32> {
    let mut tokens = Vec::new();
    let mut on_step = |step: Step| {
        tokens.push(step.token);
        if tokens.len() == stop { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    session.decode_greedy(token, most, &mut on_step).unwrap();
    tokens
}

/// Stops, goes on token by token, by a prompt, and by itself again.
fn stop_and_go_on(fixture: &Fixture, by: By) {
    let what = |case: usize, stop: usize| format!("{} {by:?}, case {case}, {stop}", fixture.name);
    let mut session = open(&fixture.folder, &options(by));
    let session = session.as_mut();
    for (i, case) in fixture.cases.iter().enumerate() {
        let tokens = &case.tokens;
        for stop in [1, 2, 3, 5, 20] {
            session.reset();
            let first = session.prefill(&case.prompt).unwrap().token;
            let seen = decode(session, first, tokens.len() - 1, stop);
            assert_eq!(seen, tokens[1..=stop], "{}", what(i, stop));
            assert_eq!(session.position(), case.prompt.len() + stop, "{}", what(i, stop));
            let mut logits = Vec::new();
            session.read_logits(&mut logits).unwrap();
            let largest = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b]));
            assert_eq!(largest, Some(tokens[stop] as usize), "{}", what(i, stop));
            // What is fed now is written over what was decoded too far.
            let step = session.decode_step(tokens[stop]).unwrap();
            assert_eq!(step.token, tokens[stop + 1], "{}", what(i, stop));
            let step = session.prefill(&tokens[stop + 1..stop + 7]).unwrap();
            assert_eq!(step.token, tokens[stop + 7], "{}", what(i, stop));
            let rest = tokens.len() - (stop + 8);
            let seen = decode(session, step.token, rest, usize::MAX);
            assert_eq!(seen, tokens[stop + 8..], "{}", what(i, stop));
            assert_eq!(session.position(), case.prompt.len() + tokens.len() - 1);
        }
    }
}

#[test]
fn it_stops_where_the_caller_does_and_goes_on() {
    stop_and_go_on(&fixtures::named("llama-gqa-long-bf16"), By::Cpu);
    for by in [By::Cpu, By::Gpu] {
        stop_and_go_on(&fixtures::named("mistral-window-gqa-bf16"), by);
    }
}

#[test]
fn the_context_is_filled_to_the_last_token() {
    let fixture = fixtures::named("mistral-window-gqa-bf16");
    let prompt = &fixture.cases[0].prompt;
    let all = |by, stops: &[usize]| {
        let mut session = open(&fixture.folder, &options(by));
        let room = session.capabilities().context - prompt.len();
        let mut tokens = vec![session.prefill(prompt).unwrap().token];
        for &stop in stops {
            let (last, left) = (tokens[tokens.len() - 1], room + 1 - tokens.len());
            tokens.extend(decode(session.as_mut(), last, left, stop));
        }
        assert_eq!(session.position(), session.capabilities().context);
        let error = session.decode_greedy(0, 1, &mut |_| ControlFlow::Continue(()));
        assert!(matches!(error, Err(Error::ContextFull { .. })), "{error:?}");
        tokens
    };
    let expected = all(By::Cpu, &[usize::MAX]);
    assert_eq!(expected.len(), 512, "it begins with one and ends with one more than it holds");
    assert_eq!(all(By::Gpu, &[usize::MAX]), expected);
    // Around pages of 64 tokens.
    assert_eq!(all(By::Gpu, &[61, 1, 1, 1, 127, 64, 63, 2, usize::MAX]), expected);
}

#[test]
fn steps_too_far_that_are_not_numbers_do_no_harm() {
    let fixture = fixtures::named("llama-mha-f32");
    let case = &fixture.cases[1];
    let new_at = |i: &usize| {
        let token = case.tokens[*i];
        !case.prompt.contains(&token) && !case.tokens[..*i].contains(&token)
    };
    let at = (4..20).find(new_at).expect("a token that appears late");
    let poisoned = case.tokens[at];
    let folder = fixtures::with_embedding(&fixture, poisoned, f32::NAN);

    let options = SessionOptions { weights_cache: false, ..options(By::Cpu) };
    let mut session = open(folder.path(), &options);
    let first = session.prefill(&case.prompt).unwrap().token;
    // The caller stops at that token, as it would at the end of a text.
    let seen = decode(session.as_mut(), first, case.tokens.len(), at);
    assert_eq!(seen, case.tokens[1..=at]);
    assert_eq!(session.position(), case.prompt.len() + at);
    let (other, mut expected, mut logits) = (case.tokens[0], Vec::new(), Vec::new());
    let step = session.decode_step(other).unwrap();
    session.read_logits(&mut logits).unwrap();
    let mut fresh = open(&fixture.folder, &options);
    let whole = [&case.prompt[..], &case.tokens[..at], &[other]].concat();
    assert_eq!(fresh.prefill(&whole).unwrap(), step);
    fresh.read_logits(&mut expected).unwrap();
    assert_close(&logits, &expected, "after steps too far");

    // And when nobody stops it, that step fails, and those before it count.
    session.reset();
    let first = session.prefill(&case.prompt).unwrap().token;
    let mut seen = Vec::new();
    let error = session.decode_greedy(first, case.tokens.len(), &mut |step| {
        seen.push(step.token);
        ControlFlow::Continue(())
    });
    assert!(error.unwrap_err().to_string().contains("not numbers"));
    assert_eq!(seen, case.tokens[1..=at]);
    assert_eq!(session.position(), case.prompt.len() + at);
    assert_eq!(session.decode_step(other).unwrap(), step);
}

#[test]
fn a_callback_that_panics_leaves_a_session_that_works() {
    let fixture = fixtures::named("llama-gqa-long-bf16");
    let case = &fixture.cases[1];
    let mut session = open(&fixture.folder, &options(By::Cpu));
    let first = session.prefill(&case.prompt).unwrap().token;
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        session.decode_greedy(first, 30, &mut |_| panic!("as tests do")).unwrap();
    }));
    panicked.unwrap_err();
    assert_eq!(session.position(), case.prompt.len() + 1);
    let seen = decode(session.as_mut(), case.tokens[1], 20, usize::MAX);
    assert_eq!(seen, case.tokens[2..22]);
}
