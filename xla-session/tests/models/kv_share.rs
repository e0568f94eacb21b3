//! Pages that another process has left: what follows is, to the bit, what follows without them.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use xla_session::batching::{BatcherOptions, Gap, Request, Speculate};
use xla_session::{
    Batcher, Engine, EngineOptions, KvFormat, KvShare, Model, Output, Precision, Run, Sequence,
    SessionOptions, Tuning, Want,
};

use crate::fixtures::random::Random;
use crate::fixtures::{self, Fixture};

const PAGE: usize = 64;

fn open(fixture: &Fixture, change: impl FnOnce(&mut SessionOptions)) -> Model {
    let mut options =
        SessionOptions { cache_dir: Some(fixtures::compiled()), ..SessionOptions::default() };
    change(&mut options);
    Model::open(&fixture.folder, &options).unwrap()
}

/// As another process has it: nothing of it is in memory.
fn engine(model: &Model, folder: Option<&Path>, pages: usize) -> Engine {
    let mut options = EngineOptions::default();
    options.kv_bytes = Some((pages * model.page_bytes()) as u64);
    options.share = folder.map(KvShare::new);
    Engine::new(model, &options).unwrap()
}

/// Runs what `sequence` lacks of `prompt`, in pieces of `rows`; the bits of the logits after it.
fn logits(engine: &mut Engine, sequence: &mut Sequence, prompt: &[u32], rows: usize) -> Vec<u32> {
    while sequence.len() + rows < prompt.len() {
        let tokens = &prompt[sequence.len()..][..rows];
        engine.step(&mut [Run { sequence, tokens, want: Want::Nothing }]).unwrap();
    }
    let tokens = &prompt[sequence.len()..];
    let mut outputs = engine.step(&mut [Run { sequence, tokens, want: Want::Logits }]).unwrap();
    match outputs.pop() {
        Some(Output::Logits(logits)) => logits.into_iter().map(f32::to_bits).collect(),
        output => panic!("{output:?}"),
    }
}

/// How many tokens of `prompt` are found in `folder`, and what follows.
fn found(model: &Model, folder: &Path, prompt: &[u32]) -> (usize, Vec<u32>) {
    let mut engine = engine(model, Some(folder), 8);
    let mut sequence = engine.sequence();
    let found = engine.resume(&mut sequence, prompt).unwrap();
    assert_eq!(sequence.tokens(), &prompt[..found]);
    let after = logits(&mut engine, &mut sequence, prompt, 256);
    drop(sequence);
    assert_eq!(engine.statistics().held, 0);
    (found, after)
}

fn prompt(fixture: &Fixture) -> &[u32] {
    let prompt = &fixture.cases[3].prompt;
    assert_eq!(prompt.len(), 300);
    prompt
}

fn files(folder: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(folder).unwrap().map(|it| it.unwrap().path()).collect()
}

#[test]
fn pages_outlive_an_engine_to_the_bit() {
    for name in fixtures::SOME {
        let fixture = fixtures::named(name);
        for kv_cache in [KvFormat::F32, KvFormat::F16] {
            let model = open(&fixture, |options| options.kv_cache = Some(kv_cache));
            let folder = tempfile::tempdir().unwrap();
            let prompt = prompt(&fixture);
            let mut first = engine(&model, Some(folder.path()), 8);
            let mut sequence = first.sequence();
            let computed = logits(&mut first, &mut sequence, prompt, 50);
            let mut alone = engine(&model, None, 8);
            let mut other = alone.sequence();
            assert_eq!(computed, logits(&mut alone, &mut other, prompt, 256), "{name}");
            assert!(alone.share_statistics().is_none());
            drop((sequence, first));

            assert_eq!(files(folder.path()).len(), 300 / PAGE, "{name}");
            assert_eq!(found(&model, folder.path(), prompt), (256, computed.clone()), "{name}");
            // The last token is always run.
            assert_eq!(found(&model, folder.path(), &prompt[..256]).0, 192, "{name}");
        }
    }
}

/// Those that are found in memory, too: after a restart they are what is asked first.
#[test]
fn pages_that_are_used_are_the_last_to_go() {
    let fixture = fixtures::named("llama-mha-f32");
    let model = open(&fixture, |_| ());
    let folder = tempfile::tempdir().unwrap();
    let prompt = prompt(&fixture);
    let mut first = engine(&model, Some(folder.path()), 8);
    let mut sequence = first.sequence();
    logits(&mut first, &mut sequence, prompt, 64);
    drop((sequence, first));
    let pages = files(folder.path());
    let long_ago = SystemTime::now() - Duration::from_secs(3600);
    let age = || {
        for path in &pages {
            let file = std::fs::File::options().append(true).open(path).unwrap();
            file.set_modified(long_ago).unwrap();
        }
    };
    let used = || {
        let modified = pages.iter().map(|path| path.metadata().unwrap().modified().unwrap());
        modified.filter(|it| *it > long_ago).count()
    };
    age();
    let mut second = engine(&model, Some(folder.path()), 8);
    let mut sequence = second.sequence();
    assert_eq!(second.resume(&mut sequence, prompt).unwrap(), 256);
    // A thread notes it.
    let start = Instant::now();
    while used() < 4 {
        assert!(start.elapsed() < Duration::from_secs(60), "{} are used", used());
        std::thread::sleep(Duration::from_millis(1));
    }
    drop(sequence);
    age();
    let mut sequence = second.sequence();
    assert_eq!(second.resume(&mut sequence, &prompt[..200]).unwrap(), 192);
    drop((sequence, second));
    assert_eq!(used(), 3);
}

/// Whatever was guessed beside them.
#[test]
fn pages_of_tokens_that_were_taken_back_are_not_kept() {
    let fixture = fixtures::named("llama-mha-f32");
    let model = open(&fixture, |_| ());
    let folder = tempfile::tempdir().unwrap();
    let mut options = BatcherOptions::default();
    options.speculate = Speculate::Fixed(7);
    let mut batcher = Batcher::new(engine(&model, Some(folder.path()), 8), &options).unwrap();
    // Everything in it has come before, so that something is guessed at each step.
    let prompt = |length: usize| -> Vec<_> {
        prompt(&fixture)[..8].iter().copied().cycle().take(length).collect()
    };
    batcher.submit(Request { prompt: prompt(100), max_tokens: 100, ..Request::default() }).unwrap();
    while !batcher.is_idle() {
        batcher.advance(&mut |_, _| ControlFlow::Continue(())).unwrap();
    }
    let drafts = batcher.statistics().drafts;
    assert!(drafts.accepted + 20 < drafts.drafted, "most are wrong: {drafts:?}");
    drop(batcher);
    // The last token of the answer is not run.
    assert_eq!(files(folder.path()).len(), 199 / PAGE);

    // Those of an answer that ends among wrong guesses, neither.
    let mut beyond = 0;
    for (length, end) in (8..13).flat_map(|it| (2..129 - 8 * it).map(move |end| (8 * it, end))) {
        let folder = tempfile::tempdir().unwrap();
        let mut batcher = Batcher::new(engine(&model, Some(folder.path()), 8), &options).unwrap();
        let prompt = prompt(length);
        batcher.submit(Request { prompt, max_tokens: 100, ..Request::default() }).unwrap();
        let (mut tokens, mut rows) = (0, 0);
        while !batcher.is_idle() {
            let (before, run) = (length + tokens - 1, batcher.statistics().rows);
            let ends = &mut |_, _| {
                tokens += 1;
                if tokens == end { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            };
            batcher.advance(ends).unwrap();
            rows = before + (batcher.statistics().rows - run) as usize;
        }
        drop(batcher);
        // The last token of the answer is not run.
        let whole = length + end - 1;
        beyond += usize::from(whole < 2 * PAGE && rows >= 2 * PAGE && length + 1 < rows);
        assert_eq!(files(folder.path()).len(), whole / PAGE, "{length} {end}");
    }
    assert!(beyond > 0, "no guess has filled a page");
}

#[test]
fn pages_of_gpu_graphs_are_kept_too() {
    // Whose graphs other tests have compiled, or will find.
    let fixture = fixtures::named("gemma3-older-gqa-bf16");
    let tuning = Tuning { cuda_graphs: true, ..Tuning::default() };
    let model = open(&fixture, |options| options.tuning = tuning);
    let folder = tempfile::tempdir().unwrap();
    let prompt = prompt(&fixture);
    let computed = found(&model, folder.path(), prompt);
    assert_eq!(computed.0, 0);
    let (found, after) = found(&model, folder.path(), prompt);
    assert_eq!(found, 256);
    let [after, computed] =
        [after, computed.1].map(|bits| bits.into_iter().map(f32::from_bits).collect::<Vec<_>>());
    fixtures::assert_close(&after, &computed, "behind pages of the folder");
}

#[test]
fn what_is_not_the_same_is_not_found() {
    let fixture = fixtures::named("qwen3-gqa-tied-bf16");
    let folder = tempfile::tempdir().unwrap();
    let text = prompt(&fixture);
    let model = open(&fixture, |_| ());
    let computed = found(&model, folder.path(), text).1;
    type Change = fn(&mut SessionOptions);
    let changes: [Change; 4] = [
        |options| options.precision = Precision::Int8,
        |options| options.kv_cache = Some(KvFormat::F16),
        // The bytes of the weights are the same.
        |options| (options.precision, options.kv_cache) = (Precision::Bf16, Some(KvFormat::F32)),
        |options| options.tuning.isa = Some(xla_session::kernels::Isa::Portable),
    ];
    for change in changes {
        let other = open(&fixture, change);
        assert_eq!(found(&other, folder.path(), text).0, 0);
    }
    // Other weights of the same shapes, in a copy of the folder.
    let copy = tempfile::tempdir().unwrap();
    for path in files(&fixture.folder) {
        std::fs::copy(&path, copy.path().join(path.file_name().unwrap())).unwrap();
    }
    let weights = copy.path().join("model.safetensors");
    let mut bytes = std::fs::read(&weights).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&weights, bytes).unwrap();
    let other = open(&Fixture::read(copy.path().to_owned()), |_| ());
    assert_eq!(found(&other, folder.path(), text).0, 0);
    // How many threads there are changes nothing.
    let other = open(&fixture, |options| options.threads = Some(3));
    assert_eq!(found(&other, folder.path(), text), (256, computed));
}

#[test]
fn a_damaged_page_and_those_behind_it_are_computed_again() {
    let fixture = fixtures::named("llama-mha-f32");
    let model = open(&fixture, |_| ());
    let folder = tempfile::tempdir().unwrap();
    let prompt = prompt(&fixture);
    let computed = found(&model, folder.path(), prompt).1;
    let before = files(folder.path());
    let mut kept = Vec::new();
    for path in &before {
        let mut bytes = std::fs::read(path).unwrap();
        bytes[100] ^= 1;
        std::fs::write(path, bytes).unwrap();
        let (tokens, after) = found(&model, folder.path(), prompt);
        assert_eq!(after, computed);
        kept.push(tokens);
        let mut now = files(folder.path());
        now.sort();
        let mut whole = before.clone();
        whole.sort();
        assert_eq!(now, whole, "it was made again");
        assert_eq!(found(&model, folder.path(), prompt), (256, computed.clone()));
    }
    kept.sort();
    assert_eq!(kept, [0, 64, 128, 192]);
}

/// Also where the ones behind it are found, and its own is in memory.
#[test]
fn a_page_that_has_gone_missing_is_kept_again() {
    let fixture = fixtures::named("llama-mha-f32");
    let model = open(&fixture, |_| ());
    let folder = tempfile::tempdir().unwrap();
    let prompt = prompt(&fixture);
    found(&model, folder.path(), &prompt[..PAGE]);
    let of_first = files(folder.path());
    found(&model, folder.path(), &prompt[..2 * PAGE]);
    let all = files(folder.path());
    let of_second: Vec<_> = all.iter().filter(|it| !of_first.contains(it)).collect();
    assert_eq!((of_first.len(), of_second.len()), (1, 1));
    found(&model, folder.path(), prompt);
    assert_eq!(files(folder.path()).len(), 4);

    let mut second = engine(&model, Some(folder.path()), 8);
    let mut sequence = second.sequence();
    assert_eq!(second.resume(&mut sequence, &prompt[..2 * PAGE + 1]).unwrap(), 2 * PAGE);
    drop(sequence);
    std::fs::remove_file(of_second[0]).unwrap();
    let mut sequence = second.sequence();
    assert_eq!(second.resume(&mut sequence, prompt).unwrap(), 4 * PAGE);
    assert_eq!(files(folder.path()).len(), 3);
    logits(&mut second, &mut sequence, prompt, 256);
    drop((sequence, second));
    assert!(of_second[0].exists());
}

#[test]
fn a_sequence_keeps_what_it_has_and_takes_what_there_is_room_for() {
    let fixture = fixtures::named("llama-mha-f32");
    let model = open(&fixture, |_| ());
    let folder = tempfile::tempdir().unwrap();
    let prompt = prompt(&fixture);
    let computed = found(&model, folder.path(), prompt).1;

    // It ends within a page.
    let mut engine_of_8 = engine(&model, Some(folder.path()), 8);
    let mut sequence = engine_of_8.sequence();
    logits(&mut engine_of_8, &mut sequence, &prompt[..100], 256);
    assert_eq!(engine_of_8.resume(&mut sequence, prompt).unwrap(), 256);
    assert_eq!(logits(&mut engine_of_8, &mut sequence, prompt, 256), computed);
    // It has all that there is.
    assert_eq!(engine_of_8.resume(&mut sequence, prompt).unwrap(), 299);
    let counts = engine_of_8.share_statistics().unwrap();
    assert_eq!((counts.tokens_looked_up, counts.tokens_found), (236 + 44, 192));
    assert_eq!((counts.kept, counts.lost, counts.damaged), (0, 0, 0));

    let mut engine_of_3 = engine(&model, Some(folder.path()), 3);
    let mut sequence = engine_of_3.sequence();
    assert_eq!(engine_of_3.resume(&mut sequence, prompt).unwrap(), 192);
    let mut other = engine_of_3.sequence();
    assert_eq!(engine_of_3.resume(&mut other, &prompt[..200]).unwrap(), 192, "the same pages");
    drop(sequence);
    assert_eq!(other.tokens(), &prompt[..192]);
}

#[test]
fn requests_find_what_other_processes_have_run() {
    let fixture = fixtures::named("qwen3-gqa-tied-bf16");
    let model = open(&fixture, |_| ());
    let folder = tempfile::tempdir().unwrap();
    let mut random = Random::new(5);
    let texts: Vec<Vec<u32>> =
        (0..3).map(|_| (0..200).map(|_| random.below(90) as u32).collect()).collect();
    let mut answers: HashMap<Vec<u32>, Vec<u32>> = HashMap::new();
    for round in 0..3 {
        let engine = engine(&model, Some(folder.path()), 64);
        let mut batcher = Batcher::new(engine, &BatcherOptions::default()).unwrap();
        let mut running = HashMap::new();
        for text in &texts {
            for length in [60, 130, 200] {
                let prompt = text[..length].to_vec();
                let request =
                    Request { prompt: prompt.clone(), max_tokens: 70, ..Request::default() };
                running.insert(batcher.submit(request).unwrap(), (prompt, Vec::new()));
            }
        }
        while !batcher.is_idle() {
            let step = batcher.advance(&mut |id, token| {
                running.get_mut(&id).unwrap().1.push(token.id);
                ControlFlow::Continue(())
            });
            step.unwrap();
        }
        for (prompt, answer) in running.into_values() {
            assert_eq!(*answers.entry(prompt).or_insert(answer.clone()), answer, "round {round}");
        }
        let counts = batcher.statistics().share.unwrap();
        // Three pages of each text, which all that begin so share in memory.
        assert_eq!(counts.tokens_found, if round == 0 { 0 } else { 3 * 3 * PAGE as u64 });
        assert_eq!((counts.lost, counts.damaged), (0, 0));
    }
}

#[test]
fn streams_go_on_while_pages_are_read() {
    let fixture = fixtures::named("qwen3-gqa-tied-bf16");
    let model = open(&fixture, |_| ());
    let folder = tempfile::tempdir().unwrap();
    let long = Request { prompt: prompt(&fixture).to_vec(), max_tokens: 5, ..Request::default() };
    let short = Request { prompt: vec![5, 6, 7], max_tokens: 60, ..Request::default() };
    let mut options = BatcherOptions::default();
    // Of pages one before each step.
    options.gap = Gap::Rows(64);
    let mut answers = Vec::new();
    for turn in 0..2 {
        let engine = engine(&model, Some(folder.path()), 16);
        let mut batcher = Batcher::new(engine, &options).unwrap();
        let mut tokens: HashMap<_, Vec<u32>> = HashMap::new();
        let mut ended = HashMap::new();
        let mut step = |batcher: &mut Batcher, tokens: &mut HashMap<_, Vec<u32>>| {
            let step = batcher.advance(&mut |id, token| {
                tokens.entry(id).or_default().push(token.id);
                ControlFlow::Continue(())
            });
            ended.extend(step.unwrap());
        };
        let stream = batcher.submit(short.clone()).unwrap();
        step(&mut batcher, &mut tokens);
        let other = batcher.submit(long.clone()).unwrap();
        let mut found = Vec::new();
        while !tokens.contains_key(&other) {
            let before = tokens[&stream].len();
            step(&mut batcher, &mut tokens);
            assert_eq!(tokens[&stream].len(), before + 1);
            found.push(batcher.statistics().share.unwrap().tokens_found);
        }
        if turn == 1 {
            // It starts in one step, reads in four, and runs what is left in the last of these.
            assert_eq!(found, [0, 0, 0, 0, 256]);
        }
        while !batcher.is_idle() {
            step(&mut batcher, &mut tokens);
        }
        assert_eq!(ended[&other].timings.cached_tokens, turn * 256);
        answers.push([tokens[&stream].clone(), tokens[&other].clone()]);
    }
    assert_eq!(answers[0], answers[1]);
}

#[test]
fn states_of_sequences_are_not_kept_for_others() {
    let model = open(&fixtures::named(fixtures::WITH_STATES), |_| ());
    let folder = tempfile::tempdir().unwrap();
    let mut options = EngineOptions::default();
    options.share = Some(KvShare::new(folder.path()));
    let error = Engine::new(&model, &options).unwrap_err().to_string();
    assert!(error.contains("keep states"), "{error}");
}
