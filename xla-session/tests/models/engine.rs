//! Many sequences on one model: every token is the reference's, whatever else is in a step, and a step
//! that cannot be changes nothing.

use std::sync::mpsc;

use xla_session::checkpoint::{Checkpoint, LoadMode};
use xla_session::{
    Engine, EngineOptions, EngineSession, Error, InferenceSession, KvFormat, Model, Output,
    Precision, Run, Sequence, SessionOptions, Want,
};

use crate::fixtures::random::Random;
use crate::fixtures::streams::{Seen, Stream, finish, largest, step};
use crate::fixtures::{self, Case, Fixture, SOME, assert_close};

const SEED: u64 = 17;

fn options() -> SessionOptions {
    SessionOptions { cache_dir: Some(fixtures::compiled()), ..SessionOptions::default() }
}

fn open(name: &str) -> (Fixture, Model) {
    let fixture = fixtures::named(name);
    let model = Model::open(&fixture.folder, &options()).unwrap();
    (fixture, model)
}

fn engine(model: &Model, change: impl FnOnce(&mut EngineOptions)) -> Engine {
    let mut options = EngineOptions::default();
    change(&mut options);
    Engine::new(model, &options).unwrap()
}

/// An engine with so many pages.
fn engine_of(model: &Model, pages: usize, rows: usize) -> Engine {
    let mut options = fixtures::streams::with_pages(model, pages);
    options.rows = Some(rows);
    Engine::new(model, &options).unwrap()
}

/// The prompt and the answer of a case.
fn stream(sequence: Sequence, case: &Case) -> Stream {
    let tokens = [&case.prompt[..], &case.tokens].concat();
    Stream { text: case.prompt.len(), tokens, prompt: case.prompt.len(), sequence }
}

/// Tokens are those of the reference; within prompts nobody knows.
fn as_the_reference(what: &str) -> impl FnMut(&Stream, usize, Seen<'_>) {
    move |stream, at, seen| {
        if at + 1 >= stream.prompt {
            let token = match seen {
                Seen::Token(token) => token,
                Seen::Logits(logits) => largest(logits),
            };
            let prompt = stream.prompt;
            let what = format!("{what}, seed {SEED}: prompt of {prompt}, position {at}");
            assert_eq!(token, stream.tokens[at + 1], "{what}");
        }
    }
}

/// Each prompt by itself, then a token after the other.
fn alone(model: &Model, fixture: &Fixture, what: &str) {
    let mut engine = engine(model, |options| options.prefix_cache = false);
    for case in &fixture.cases {
        let mut sequence = engine.sequence();
        let (before, last) = case.prompt.split_at(case.prompt.len() - 1);
        for piece in before.chunks(engine.rows()) {
            let run = Run { sequence: &mut sequence, tokens: piece, want: Want::Nothing };
            engine.step(&mut [run]).unwrap();
        }
        let mut token = last[0];
        for expected in &case.tokens {
            let run = Run { sequence: &mut sequence, tokens: &[token], want: Want::Token };
            let output = engine.step(&mut [run]).unwrap();
            assert_eq!(output, [Output::Token(*expected)], "{what} at {}", sequence.len());
            token = *expected;
        }
    }
    assert_eq!(engine.statistics().held, 0, "{what}: all were dropped");
}

/// Eight at once.
fn together(model: &Model, fixture: &Fixture, random: &mut Random, what: &str) {
    let mut engine = engine_of(model, 24, 128);
    let cases = fixture.cases.iter().cycle().take(8);
    let streams = cases.map(|case| stream(engine.sequence(), case)).collect();
    let preempted = finish(&mut engine, streams, random, &mut as_the_reference(what));
    assert_eq!(preempted, 0, "{what}: there is room for all");
}

/// Forked in the middle, within pages and between them; some of them, the first too, are dropped later.
fn forked(model: &Model, fixture: &Fixture, random: &mut Random, what: &str) {
    let mut engine = engine_of(model, 48, 64);
    for case in [&fixture.cases[1], &fixture.cases[3]] {
        let mut streams = vec![stream(engine.sequence(), case)];
        while streams.iter().any(|stream| !stream.is_done()) {
            let at = random.below(streams.len());
            if streams.len() < 6 && random.below(8) == 0 {
                let fork = streams[at].sequence.fork();
                assert_eq!(fork.tokens(), streams[at].sequence.tokens());
                streams.push(stream(fork, case));
            } else if streams.len() > 3 && random.below(16) == 0 {
                streams.remove(at);
            } else if random.below(16) == 0 {
                let held = streams[at].sequence.len();
                streams[at].sequence.truncate(random.below(held + 1));
            }
            step(&mut engine, &mut streams, random, &mut as_the_reference(what)).unwrap();
        }
    }
    assert!(engine.statistics().copies > 0, "{what}: nothing was copied on write");
    assert_eq!(engine.statistics().held, 0, "{what}");
}

/// What an earlier sequence has left is not run again.
fn resumed(model: &Model, fixture: &Fixture, random: &mut Random, what: &str) {
    let mut engine = engine_of(model, 24, 256);
    let case = &fixture.cases[3];
    assert_eq!(case.prompt.len(), 300);
    let mut first = vec![stream(engine.sequence(), case)];
    while !first[0].is_done() {
        step(&mut engine, &mut first, random, &mut as_the_reference(what)).unwrap();
    }
    // While the first one has the pages, and when nobody does.
    let mut streams = vec![stream(engine.sequence(), case), stream(engine.sequence(), case)];
    let mut all = 0;
    for (stream, first) in streams.iter_mut().zip([Some(first), None]) {
        let found = engine.resume(&mut stream.sequence, &case.prompt).unwrap();
        match engine.has_states() {
            // The page that is not full is known once it goes.
            false => {
                let known = first.as_ref().is_none_or(|it| it[0].sequence.len() >= 320);
                assert_eq!(found, if known { 299 } else { 256 }, "{what}");
            }
            // Steps ended where they did.
            true => assert!(found <= 256 && found.is_multiple_of(64), "{what}: {found}"),
        }
        all += found;
        drop(first);
    }
    finish(&mut engine, streams, random, &mut as_the_reference(what));
    let statistics = engine.statistics();
    assert_eq!(statistics.prefix_tokens_found, all as u64, "{what}");
    assert_eq!(statistics.prefix_tokens_looked_up, 600, "{what}");
}

/// Eight that want 22 pages, of which there are 10.
fn recomputed(model: &Model, fixture: &Fixture, random: &mut Random, what: &str) {
    let mut engine = engine_of(model, 10, 96);
    let cases = fixture.cases.iter().cycle().take(8);
    let streams = cases.map(|case| stream(engine.sequence(), case)).collect();
    let preempted = finish(&mut engine, streams, random, &mut as_the_reference(what));
    assert!(preempted > 0, "{what}: nobody was preempted");
}

fn every_token(fixtures: &[Fixture], device: &str, precision: Precision) {
    let mut random = Random::new(SEED);
    for fixture in fixtures {
        let options = SessionOptions { device: Some(device.into()), precision, ..options() };
        let model = Model::open(&fixture.folder, &options).unwrap();
        let what = |way| format!("{} {way}, {device}, {}", fixture.name, precision.as_str());
        alone(&model, fixture, &what("alone"));
        together(&model, fixture, &mut random, &what("together"));
        forked(&model, fixture, &mut random, &what("forked"));
        resumed(&model, fixture, &mut random, &what("resumed"));
        recomputed(&model, fixture, &mut random, &what("recomputed"));
    }
}

#[test]
fn every_token_equals_the_reference_as_stored_on_local_task() {
    every_token(&fixtures::all(), "local-task", Precision::Stored);
}

/// What `cargo xtask test --all` adds.
mod long {
    use super::*;

    #[test]
    #[ignore = "long: cargo xtask test --all"]
    fn every_token_of_every_fixture_equals_the_reference() {
        let all = fixtures::all();
        every_token(&all, "local-task", Precision::F32);
        every_token(&all, "local-sync", Precision::Stored);
        every_token(&all, "local-sync", Precision::F32);
    }
}

#[test]
fn every_token_equals_the_reference_as_stored_on_local_sync() {
    every_token(&SOME.map(fixtures::named), "local-sync", Precision::Stored);
}

/// `xla.rs` has one of each family, by sessions.
#[test]
fn every_token_equals_the_reference_in_f32_on_local_sync() {
    let others = [fixtures::WITH_STATES, "qwen3-moe-gqa-bf16"];
    let some: Vec<_> = SOME.into_iter().chain(others).map(fixtures::named).collect();
    every_token(&some, "local-sync", Precision::F32);
}

/// All logits of one run.
fn logits(engine: &mut Engine, sequence: &mut Sequence, tokens: &[u32]) -> Vec<u32> {
    let run = Run { sequence, tokens, want: Want::AllLogits };
    let outputs = engine.step(&mut [run]).unwrap();
    let [Output::AllLogits(logits)] = &outputs[..] else { panic!("{outputs:?}") };
    logits.iter().map(|logit| logit.to_bits()).collect()
}

/// Steps that cannot be, with what their errors say. None of them changes anything: sequences go on with
/// the bits they have without.
#[test]
fn a_refused_step_changes_nothing() {
    let (fixture, model) = open("llama-gqa-long-bf16");
    let mut other = engine_of(&model, 4, 32);
    let prompt = &fixture.cases[3].prompt;
    let vocab_size = model.config().vocab_size as u32;
    let run = |bad: bool| {
        // Two sequences of 70 tokens have two pages each.
        let mut engine = engine(&model, |options| {
            options.context = Some(200);
            options.rows = Some(185);
            options.kv_bytes = Some(6 * page_bytes(&model));
        });
        let (mut a, mut b) = (engine.sequence(), engine.sequence());
        let mut foreign = other.sequence();
        let mut all = vec![logits(&mut engine, &mut a, &prompt[..70])];
        all.push(logits(&mut engine, &mut b, &prompt[100..170]));
        let mut refused = 0;
        for round in 0..3 {
            if bad {
                let mut refuse = |tokens: &[&[u32]], foreign: Option<&mut Sequence>, say: &str| {
                    let (before, held) = (engine.statistics(), [a.len(), b.len()]);
                    let mut runs: Vec<_> = [Some(&mut a), Some(&mut b), foreign]
                        .into_iter()
                        .flatten()
                        .zip(tokens)
                        .map(|(sequence, tokens)| Run { sequence, tokens, want: Want::Token })
                        .collect();
                    let error = engine.step(&mut runs).unwrap_err().to_string();
                    assert!(error.contains(say), "{error}");
                    assert_eq!(engine.statistics(), before, "{say}");
                    assert_eq!([a.len(), b.len()], held, "{say}");
                    refused += 1;
                };
                refuse(&[&[1], &[]], None, "the prompt is empty");
                refuse(&[&[], &[1]], None, "the prompt is empty");
                refuse(&[&[1, 2], &[3, vocab_size]], None, "outside the vocabulary");
                refuse(&[&[1], &[2], &[3]], Some(&mut foreign), "a sequence of another engine");
                refuse(&[&prompt[..93], &prompt[..93]], None, "a step of 186 rows: this engine");
                refuse(&[&[1], &prompt[..131]], None, "do not fit the context of 200");
                if round == 0 {
                    // Each would fit by itself.
                    let both = [&prompt[..59], &prompt[..123]];
                    refuse(&both, None, "needs 3 more pages of the KV cache and 2 are free");
                }
            }
            let tokens = &prompt[200 + 10 * round..][..10];
            all.push(logits(&mut engine, &mut a, tokens));
            all.push(logits(&mut engine, &mut b, tokens));
        }
        (all, refused)
    };
    let (expected, _) = run(false);
    let (actual, refused) = run(true);
    assert_eq!(refused, 3 * 6 + 1);
    assert!(actual == expected, "refused steps have changed what follows");
    let mut elsewhere = other.sequence();
    assert!(engine_of(&model, 4, 32).resume(&mut elsewhere, prompt).is_err(), "another engine's");
    assert_eq!(logits(&mut other, &mut elsewhere, &prompt[..1]).len(), vocab_size as usize);
}

/// Of an engine as options make it by themselves.
fn page_bytes(model: &Model) -> u64 {
    engine(model, |_| ()).page_bytes() as u64
}

/// A step fails when logits are not numbers; by then keys and values have been written.
#[test]
fn a_failed_step_leaves_every_sequence_as_it_was() {
    let fixture = fixtures::named("llama-mha-f32");
    let case = &fixture.cases[3];
    let used = |id: &u32| case.prompt.contains(id) || case.tokens.contains(id);
    let poisoned = (0..case.logits.len() as u32).find(|id| !used(id)).unwrap();
    let folder = fixtures::with_embedding(&fixture, poisoned, f32::NAN);
    let options = SessionOptions { weights_cache: false, ..options() };
    let model = Model::open(folder.path(), &options).unwrap();
    let run = |bad: bool| {
        let mut engine = engine_of(&model, 8, 256);
        let (mut a, mut b) = (engine.sequence(), engine.sequence());
        let mut all = Vec::new();
        for piece in case.prompt[..200].chunks(25) {
            if bad {
                let statistics = engine.statistics();
                for (rows, good) in [(1, 1), (70, 1), (20, 30)] {
                    let (rows, good) = (vec![poisoned; rows], &case.prompt[200..200 + good]);
                    let bad = Run { sequence: &mut a, tokens: &rows, want: Want::Token };
                    let good = Run { sequence: &mut b, tokens: good, want: Want::Logits };
                    let error = engine.step(&mut [good, bad]).unwrap_err().to_string();
                    assert!(error.contains("not numbers"), "{error}");
                    assert_eq!(engine.statistics(), statistics);
                }
                // Pages that held what is no number go to others, too.
                let mut c = engine.sequence();
                let tokens = vec![poisoned; 65];
                let run = Run { sequence: &mut c, tokens: &tokens, want: Want::Nothing };
                engine.step(&mut [run]).unwrap();
                drop(c);
                engine.pages().forget_prefixes();
            }
            all.push(logits(&mut engine, &mut a, piece));
            all.push(logits(&mut engine, &mut b, &piece[..7]));
        }
        all
    };
    assert!(run(true) == run(false), "failed steps have changed what follows");
}

/// Between two steps, and on another thread while one runs.
#[test]
fn a_dropped_sequence_takes_nothing_from_others() {
    let (fixture, model) = open("mistral-window-gqa-bf16");
    let mut random = Random::new(SEED);
    let mut engine = engine_of(&model, 32, 64);
    let (send, dropped) = mpsc::channel::<Sequence>();
    let dropper = std::thread::spawn(move || dropped.into_iter().map(drop).count());
    let mut streams: Vec<_> =
        fixture.cases.iter().map(|case| stream(engine.sequence(), case)).collect();
    let mut sent = 0;
    while streams.iter().any(|stream| !stream.is_done()) {
        let at = random.below(streams.len());
        // It shares pages with what goes on, or has some of its own.
        let mut short = streams[at].sequence.fork();
        if random.below(2) == 0 {
            short.truncate(random.below(short.len() + 1));
            let tokens = [streams[at].tokens[0]; 3];
            let run = Run { sequence: &mut short, tokens: &tokens, want: Want::Token };
            engine.step(&mut [run]).unwrap();
        }
        if random.below(3) == 0 {
            drop(short);
        } else {
            sent += 1;
            send.send(short).unwrap();
        }
        let check = &mut as_the_reference("while others are dropped");
        step(&mut engine, &mut streams, &mut random, check).unwrap();
    }
    drop(send);
    assert_eq!(dropper.join().unwrap(), sent);
    assert!(sent > 10);
    drop(streams);
    assert_eq!(engine.statistics().held, 0);
}

#[test]
fn engines_of_one_model_run_side_by_side() {
    fn is_shared<T: Send + Sync>(_: &T) {}
    let (fixture, model) = open("qwen3-gqa-tied-bf16");
    is_shared(&model);
    std::thread::scope(|scope| {
        for seed in 0..2 {
            let (model, fixture) = (&model, &fixture);
            scope.spawn(move || {
                let mut random = Random::new(SEED + seed);
                together(model, fixture, &mut random, "beside another engine");
            });
        }
    });
}

/// A pool has the pages that its bytes make, of the size that keys and values have.
#[test]
fn the_kv_cache_has_the_pages_that_its_budget_pays_for() {
    let fixture = fixtures::named("llama-gqa-long-bf16");
    for (_, format) in KvFormat::ALL {
        let options = SessionOptions { kv_cache: Some(format), ..options() };
        let model = Model::open(&fixture.folder, &options).unwrap();
        // Keys and values of 2 layers, 2 key heads of 8 elements, 64 tokens.
        let page = 2 * 2 * 2 * 8 * 64 * format.bytes() as u64;
        assert_eq!(page_bytes(&model), page);
        for (bytes, pages) in [(page, 1), (2 * page - 1, 1), (7 * page, 7)] {
            let engine = engine(&model, |options| options.kv_bytes = Some(bytes));
            let statistics = engine.statistics();
            assert_eq!((statistics.pages, statistics.free), (pages, pages));
            assert_eq!(statistics.page_tokens, 64);
        }
        let mut options = EngineOptions::default();
        options.kv_bytes = Some(page - 1);
        let error = Engine::new(&model, &options).unwrap_err().to_string();
        assert!(error.contains(&format!("a page of 64 tokens takes {page}")), "{error}");
        // All of them can be used, and no more.
        let mut engine = engine(&model, |options| options.kv_bytes = Some(2 * page));
        let mut sequence = engine.sequence();
        logits(&mut engine, &mut sequence, &fixture.cases[3].prompt[..128]);
        let run = Run { sequence: &mut sequence, tokens: &[1], want: Want::Token };
        let error = engine.step(&mut [run]).unwrap_err();
        assert!(matches!(error, Error::OutOfPages { needed: 1, free: 0 }), "{error}");
    }
    let model = Model::open(&fixture.folder, &options()).unwrap();
    // By itself a whole context, and a page to copy into.
    assert_eq!(engine(&model, |_| ()).statistics().pages, 4096 / 64 + 1);
    assert_eq!(engine(&model, |o| o.context = Some(65)).statistics().pages, 3);
}

#[test]
fn pages_that_sequences_share_count_once() {
    let (fixture, model) = open("llama-gqa-long-bf16");
    let mut engine = engine_of(&model, 32, 256);
    let prompt = &fixture.cases[3].prompt;
    let mut first = engine.sequence();
    logits(&mut engine, &mut first, &prompt[..200]);
    let held = |engine: &Engine| {
        let it = engine.statistics();
        assert_eq!(it.free + it.held + it.cached, it.pages);
        (it.held, it.shared, it.cached)
    };
    assert_eq!(held(&engine), (4, 0, 0));
    let others: Vec<_> = (0..5)
        .map(|_| {
            let mut other = engine.sequence();
            assert_eq!(engine.resume(&mut other, &prompt[..200]).unwrap(), 192);
            other
        })
        .collect();
    assert_eq!(held(&engine), (4, 3, 0), "the three full pages are there once");
    let mut others = others.into_iter();
    let mut other = others.next().unwrap();
    logits(&mut engine, &mut other, &prompt[192..200]);
    assert_eq!(held(&engine), (5, 3, 0), "it has a last page of its own");
    let fork = other.fork();
    assert_eq!(held(&engine), (5, 4, 0));
    drop((fork, others));
    assert_eq!(held(&engine), (5, 3, 0));
    drop(first);
    assert_eq!(held(&engine), (4, 0, 1), "its last page");
    drop(other);
    assert_eq!(held(&engine), (0, 0, 4), "pages wait for another prompt that begins so");
}

/// A product of the hidden state with the output projection is the logits.
#[test]
fn hidden_states_are_what_logits_are_made_of() {
    for name in ["llama-mha-f32", "gemma2-mha-f32"] {
        let (fixture, model) = open(name);
        let checkpoint = Checkpoint::open(&fixture.folder, LoadMode::Mmap).unwrap();
        let mut engine = engine(&model, |_| {});
        let config = model.config();
        let matrix = checkpoint.get(config.output().unwrap()).unwrap().to_f32();
        let logits = config.architecture.logits;
        let product = |hidden: &[f32]| -> Vec<f32> {
            let rows = matrix.chunks(config.hidden_size);
            let sums = rows.map(|row| -> f64 {
                row.iter().zip(hidden).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum()
            });
            let of = |sum: f64| match logits.cap {
                None => sum,
                Some(cap) => f64::from(cap) * (sum / f64::from(cap)).tanh(),
            };
            sums.map(|sum| of(sum * f64::from(logits.scale)) as f32).collect()
        };
        let case = &fixture.cases[1];
        let mut one = engine.sequence();
        let mut all = engine.sequence();
        let outputs = engine
            .step(&mut [
                Run { sequence: &mut one, tokens: &case.prompt, want: Want::Hidden },
                Run { sequence: &mut all, tokens: &case.prompt, want: Want::AllHidden },
            ])
            .unwrap();
        let [Output::Hidden(last), Output::AllHidden(each)] = &outputs[..] else {
            panic!("{outputs:?}")
        };
        assert_close(&product(last), &case.logits, name);
        assert_eq!(each.len(), case.prompt.len() * config.hidden_size, "{name}");
        assert!(each.ends_with(last), "{name}");
    }
}

#[test]
fn rows_of_a_session_are_those_one_by_one() {
    let fixture = fixtures::named("qwen3-gqa-tied-bf16");
    let model = Model::open(&fixture.folder, &options()).unwrap();
    let mut session = EngineSession::new(&model, None).unwrap();
    // More than one step takes.
    let prompt = fixture.cases[3].prompt.clone();
    assert!(prompt.len() > 256);
    let vocab_size = session.capabilities().vocab_size;
    let mut logits = Vec::new();
    session.all_logits(&prompt, &mut |row| logits.extend_from_slice(row)).unwrap();
    assert_eq!(logits.len(), prompt.len() * vocab_size);
    session.reset();
    let mut one = Vec::new();
    for (i, &token) in prompt.iter().enumerate() {
        session.logits(&[token], &mut one).unwrap();
        assert!(one == logits[i * vocab_size..][..vocab_size], "the bits of row {i}");
        if i % 16 == 0 {
            assert_eq!(session.truncate(i), i);
            let next = session.decode_step(token).unwrap().token as usize;
            assert!(one.iter().all(|it| *it <= one[next]), "row {i}");
        }
    }
    // Rows of the last step that are kept can be read.
    session.truncate(prompt.len() - 6);
    session.prefill(&prompt[prompt.len() - 6..]).unwrap();
    session.truncate(prompt.len() - 4);
    session.read_logits(&mut one).unwrap();
    let row = prompt.len() - 5;
    assert!(one == logits[row * vocab_size..][..vocab_size]);
    // Those of others are run again.
    session.truncate(prompt.len() - 7);
    session.read_logits(&mut one).unwrap();
    let row = prompt.len() - 8;
    assert!(one == logits[row * vocab_size..][..vocab_size]);
    session.reset();
    session.read_logits(&mut one).unwrap_err();
}

/// A session whose layers keep states goes back to where a page ended, and says so.
#[test]
fn a_session_with_states_is_cut_where_a_page_ends() {
    let fixture = fixtures::named(fixtures::WITH_STATES);
    let model = Model::open(&fixture.folder, &options()).unwrap();
    let case = &fixture.cases[3];
    assert_eq!(case.prompt.len(), 300);
    let mut session = EngineSession::new(&model, None).unwrap();
    let (mut whole, mut again) = (Vec::new(), Vec::new());
    session.logits(&case.prompt, &mut whole).unwrap();
    assert_eq!(session.truncate(300), 300);
    assert_eq!(session.truncate(299), 256);
    session.logits(&case.prompt[256..], &mut again).unwrap();
    assert!(whole == again, "other bits");
    // What follows a token whose step is gone.
    let mut fresh = EngineSession::new(&model, None).unwrap();
    fresh.logits(&case.prompt[..256], &mut whole).unwrap();
    assert_eq!(session.truncate(260), 256);
    session.read_logits(&mut again).unwrap();
    assert!(whole == again, "other bits");
    assert_eq!(session.position(), 256);
    // Which was run a page at a time.
    assert_eq!(session.truncate(255), 192);
    session.reset();
    assert_eq!(session.prefill(&case.prompt).unwrap().token, case.tokens[0]);
}

/// A session with states has room for all of its context, however the logits of a text are asked for.
#[test]
fn logits_of_all_tokens_fill_a_context_with_states() {
    let fixture = fixtures::named(fixtures::WITH_STATES);
    let model = Model::open(&fixture.folder, &options()).unwrap();
    let prompt = &fixture.cases[3].prompt[..192];
    let mut whole = Vec::new();
    let mut session = EngineSession::new(&model, Some(192)).unwrap();
    session.all_logits(prompt, &mut |row| whole.extend_from_slice(row)).unwrap();
    for held in [1, 10, 63, 64, 100] {
        let mut rest = Vec::new();
        session.reset();
        session.prefill(&prompt[..held]).unwrap();
        session.all_logits(&prompt[held..], &mut |row| rest.extend_from_slice(row)).unwrap();
        assert!(whole.ends_with(&rest), "behind {held} tokens");
        assert_eq!(rest.len() * 192, whole.len() * (192 - held));
    }
}

/// Beyond its original context the model rotates otherwise, so that it is opened for one of the two.
#[test]
fn a_longer_context_is_what_a_model_is_opened_for() {
    let (_, model) = open("phi3-longrope-mqa-f32");
    assert_eq!(Engine::new(&model, &EngineOptions::default()).unwrap().context(), 512);
    let asked = |context| {
        let mut options = EngineOptions::default();
        options.context = Some(context);
        Engine::new(&model, &options).unwrap_err().to_string()
    };
    for context in [0, 513, 4097] {
        let error = asked(context);
        assert!(error.ends_with("opened for 1 to 512, and can be for up to 4096"), "{error}");
    }
    let mut session = EngineSession::new(&model, None).unwrap();
    let error = session.prefill(&[1; 513]).unwrap_err();
    assert!(
        matches!(error, Error::ContextFull { needed: 513, context: 512, max: 4096 }),
        "{error}"
    );
    assert!(error.to_string().contains("raise the context (the model allows 4096)"), "{error}");
    let error = Error::ContextFull { needed: 9, context: 8, max: 8 }.to_string();
    assert!(error.ends_with("shorten the prompt"), "no more is allowed: {error}");
    let options = SessionOptions { context: Some(1000), ..options() };
    let fixture = fixtures::named("phi3-longrope-mqa-f32");
    let model = Model::open(&fixture.folder, &options).unwrap();
    let mut engine = Engine::new(&model, &EngineOptions::default()).unwrap();
    assert_eq!(engine.context(), 4096);
    let mut sequence = engine.sequence();
    let mut run = |tokens: &[u32]| {
        let run = Run { sequence: &mut sequence, tokens, want: Want::Token };
        engine.step(&mut [run]).map(drop)
    };
    for _ in 0..3 {
        run(&[1; 256]).unwrap();
    }
}
