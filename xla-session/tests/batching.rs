//! Many requests at once: every one has the tokens that it has alone.
#![cfg(feature = "iree")]

mod fixtures;

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Duration;

use fixtures::{SOME, WITH_STATES};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use xla_session::batching::{
    BatcherOptions, Constraint, Ended, Gap, Request, Speculate, Statistics,
};
use xla_session::sample::{Sampler, SamplerOptions};
use xla_session::scheduler::{RequestId, SchedulerOptions};
use xla_session::{
    Batcher, DraftCounts, Engine, EngineOptions, EngineSession, Error, FinishReason,
    GenerateOptions, InferenceSession, Model, NgramDrafter, Output, Pooling, Run, SessionOptions,
    Speculation, Want, generate, generate_greedy,
};

const TALES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../models/tiny-tales");

/// Compiled graphs are shared by the tests of one build.
fn open(folder: &Path) -> Model {
    let options = SessionOptions {
        cache_dir: Some(PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("compiled")),
        weights_cache: false,
        ..SessionOptions::default()
    };
    Model::open(folder, &options).unwrap()
}

/// Whose steps are the same on any machine.
fn batcher(model: &Model, pages: usize, options: &SchedulerOptions) -> Batcher {
    batcher_with(model, pages, options, Gap::Rows(64))
}

fn batcher_with(model: &Model, pages: usize, scheduler: &SchedulerOptions, gap: Gap) -> Batcher {
    let mut options = BatcherOptions::default();
    (options.scheduler, options.gap) = (scheduler.clone(), gap);
    Batcher::new(engine(model, pages), &options).unwrap()
}

fn engine(model: &Model, pages: usize) -> Engine {
    Engine::new(model, &fixtures::streams::with_pages(model, pages)).unwrap()
}

/// A batcher, and what its requests have got.
struct Desk {
    batcher: Batcher,
    tokens: HashMap<RequestId, Vec<u32>>,
    ended: HashMap<RequestId, Ended>,
}

impl Desk {
    fn new(batcher: Batcher) -> Self {
        Self { batcher, tokens: HashMap::new(), ended: HashMap::new() }
    }

    fn submit(&mut self, request: &Request) -> RequestId {
        let id = self.batcher.submit(request.clone()).unwrap();
        self.tokens.insert(id, request.answer.clone());
        id
    }

    fn step(&mut self) -> xla_session::Result<()> {
        let tokens = &mut self.tokens;
        let ended = self.batcher.advance(&mut |id, token| {
            tokens.get_mut(&id).expect("a request that was submitted").push(token.id);
            ControlFlow::Continue(())
        })?;
        for (id, it) in ended {
            assert_eq!(it.timings.tokens, self.tokens[&id].len());
            assert!(self.ended.insert(id, it).is_none(), "{id:?} ended twice");
        }
        Ok(())
    }

    /// Steps until nothing is left; returns what has been done.
    fn finish(&mut self) -> Statistics {
        while !self.batcher.is_idle() {
            self.step().unwrap();
        }
        let statistics = self.batcher.statistics();
        assert_eq!((statistics.running, statistics.waiting), (0, 0));
        assert_eq!(statistics.pages.held, 0);
        statistics
    }
}

/// What `request` gets when nothing else runs.
fn alone(model: &Model, request: &Request) -> (Vec<u32>, FinishReason) {
    let mut session = EngineSession::new(model, None).unwrap();
    let Request { prompt, max_tokens, eos, sampler, .. } = request.clone();
    let mut options = GenerateOptions { max_tokens, eos, sampler, ..Default::default() };
    let go_on = |_| ControlFlow::Continue(());
    let generation = generate(&mut session, &prompt, &mut options, go_on).unwrap();
    (generation.tokens, generation.finish_reason)
}

fn greedy(prompt: &[u32], max_tokens: usize) -> Request {
    Request { prompt: prompt.to_vec(), max_tokens, ..Request::default() }
}

/// Requests of all kinds: greedy and sampled, of several priorities, some of which begin alike.
fn requests(random: &mut ChaCha8Rng, count: usize) -> Vec<Request> {
    let mut below = |n: usize| random.next_u64() as usize % n;
    let texts: Vec<Vec<u32>> =
        (0..3).map(|_| (0..200).map(|_| 3 + below(1500) as u32).collect()).collect();
    let request = |seed| {
        let mut prompt = texts[below(3)][..[0, 70, 130, 200][below(4)]].to_vec();
        prompt.extend((0..1 + below(60)).map(|_| 3 + below(1500) as u32));
        let options = SamplerOptions {
            temperature: 1.2,
            top_k: [0, 40][below(2)],
            top_p: 0.95,
            repeat_penalty: [1.0, 1.3][below(2)],
            presence_penalty: [0.0, 0.4][below(2)],
            frequency_penalty: [0.0, 0.2][below(2)],
            logit_bias: vec![(3 + below(1500) as u32, 2.0)],
            seed,
            ..SamplerOptions::default()
        };
        Request {
            prompt,
            answer: Vec::new(),
            max_tokens: 1 + below(90),
            eos: vec![1, 2],
            sampler: (below(2) == 0).then(|| Sampler::new(options).unwrap()),
            likelihood: (below(3) == 0).then_some(3),
            prompt_likelihood: None,
            priority: below(3) as i32,
            constraint: None,
            pooling: None,
        }
    };
    (0..count as u64).map(request).collect()
}

#[test]
fn every_token_of_the_fixtures_equals_the_reference_with_all_cases_at_once() {
    for name in SOME.into_iter().chain([WITH_STATES]) {
        let fixture = fixtures::named(name);
        let model = open(&fixture.folder);
        let options = SchedulerOptions::default();
        let mut desk = Desk::new(batcher_with(&model, 20, &options, Gap::Rows(50)));
        let mut expected = Vec::new();
        for case in fixture.cases.iter().chain(&fixture.cases) {
            let id = desk.submit(&greedy(&case.prompt, case.tokens.len()));
            expected.push((id, &case.tokens));
            desk.step().unwrap();
        }
        desk.finish();
        for (id, tokens) in expected {
            assert_eq!(desk.tokens[&id], *tokens, "{name}");
            assert_eq!(desk.ended[&id].reason, FinishReason::Length);
        }
    }
}

#[test]
fn requests_at_random_times_have_the_tokens_that_they_have_alone() {
    let model = open(Path::new(TALES));
    // Pages for all; and for so few that they take them from each other.
    let (mut cancellations, mut preemptions) = (0, 0);
    for (seed, pages) in [(1, 200), (2, 11), (3, 6), (4, 6)] {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let requests = requests(&mut random, 16);
        let options =
            SchedulerOptions { rows: 100, most_running: 9, ..SchedulerOptions::default() };
        // By the clock, too, which may cut prompts as it likes.
        let gap = match seed % 2 {
            0 => Gap::Rows(40),
            _ => Gap::Time(Duration::from_micros(800)),
        };
        let mut desk = Desk::new(batcher_with(&model, pages, &options, gap));
        let (mut submitted, mut cancelled) = (Vec::new(), Vec::new());
        let mut left = requests.iter();
        while left.len() > 0 || !desk.batcher.is_idle() {
            if random.next_u64().is_multiple_of(4)
                && let Some(request) = left.next()
            {
                submitted.push((desk.submit(request), request));
            }
            // Any that has not ended, wherever it is.
            let mut going: Vec<_> = submitted.iter().map(|(id, _)| *id).collect();
            going.retain(|id| !desk.ended.contains_key(id));
            if random.next_u64().is_multiple_of(40)
                && !going.is_empty()
                && let id = going[random.next_u64() as usize % going.len()]
                && desk.batcher.cancel(id)
            {
                assert!(!desk.batcher.cancel(id));
                cancelled.push((id, desk.tokens[&id].len()));
            }
            desk.step().unwrap();
        }
        let statistics = desk.finish();
        assert!(pages < 200 || statistics.preemptions == 0, "{statistics:?}");
        assert!(statistics.pages.prefix_tokens_found > 0, "{statistics:?}");
        cancellations += cancelled.len();
        preemptions += statistics.preemptions;
        for (id, request) in submitted {
            let (tokens, reason) = alone(&model, request);
            if let Some(&(_, seen)) = cancelled.iter().find(|it| it.0 == id) {
                assert!(!desk.ended.contains_key(&id));
                assert_eq!(desk.tokens[&id], tokens[..seen], "nothing comes after the end");
                continue;
            }
            assert_eq!(desk.tokens[&id], tokens, "{request:?} in {pages} pages");
            assert_eq!(desk.ended[&id].reason, reason);
        }
    }
    // Otherwise nothing of it was tested.
    assert!(cancellations > 0 && preemptions > 0, "{cancellations} {preemptions}");
}

#[test]
fn a_common_prefix_is_run_once() {
    let model = open(Path::new(TALES));
    let mut desk = Desk::new(batcher(&model, 100, &SchedulerOptions::default()));
    let requests: Vec<_> = (0..12)
        .map(|own| {
            let prompt: Vec<u32> = (100..420).chain((0..9).map(|at| 500 + own * 20 + at)).collect();
            greedy(&prompt, 5)
        })
        .collect();
    let ids: Vec<_> = requests.iter().map(|it| desk.submit(it)).collect();
    let statistics = desk.finish();
    assert_eq!(statistics.pages.prefix_tokens_found, 11 * 320);
    // One prefix; of each request what is its own, and its answer but for the last token.
    assert_eq!(statistics.rows, 320 + 12 * (9 + 4));
    for (id, request) in ids.iter().zip(&requests) {
        assert_eq!(desk.tokens[id], alone(&model, request).0);
        let timings = desk.ended[id].timings;
        assert_eq!((timings.prompt_tokens, timings.tokens), (329, 5));
        assert_eq!(timings.cached_tokens, if *id == ids[0] { 0 } else { 320 });
        let first_token = timings.first_token.unwrap();
        assert!(timings.waited <= first_token && first_token <= timings.total);
    }
}

/// What layers keep of a sequence is found where pages end, and nothing is guessed.
#[test]
fn a_prefix_with_a_state_is_run_once() {
    let model = open(&fixtures::named(WITH_STATES).folder);
    let mut options = BatcherOptions::default();
    options.speculate = Speculate::Fixed(3);
    let mut desk = Desk::new(Batcher::new(engine(&model, 100), &options).unwrap());
    let vocab_size = model.config().vocab_size as u32;
    let common = (0..330).map(|at| at * 7 % vocab_size);
    let request = |own: u32| greedy(&common.clone().chain([own, own + 1]).collect::<Vec<_>>(), 70);
    let requests: Vec<_> = (0..4).map(request).collect();
    let ids: Vec<_> = requests.iter().map(|it| desk.submit(it)).collect();
    let statistics = desk.finish();
    assert_eq!(statistics.drafts, DraftCounts::default());
    assert_eq!(statistics.pages.prefix_tokens_found, 3 * 320);
    assert_eq!(statistics.pages.states, statistics.pages.states_available);
    for (id, request) in ids.iter().zip(&requests) {
        assert_eq!(desk.tokens[id], alone(&model, request).0);
    }
    // The next turn of a conversation: behind the last page that an answer has filled.
    let said = [&requests[0].prompt[..], &desk.tokens[&ids[0]], &[3, 4, 5]].concat();
    let next = desk.submit(&greedy(&said, 3));
    desk.finish();
    assert_eq!(desk.ended[&next].timings.cached_tokens, 384);
}

/// Few states bound how many requests run at once.
#[test]
fn requests_wait_for_states() {
    let model = open(&fixtures::named(WITH_STATES).folder);
    let mut options = EngineOptions::default().with_room(&model, 2, 400);
    options.states = Some(4);
    let engine = Engine::new(&model, &options).unwrap();
    assert_eq!(engine.most_sequences(), Some(2));
    let mut desk = Desk::new(Batcher::new(engine, &BatcherOptions::default()).unwrap());
    let requests: Vec<_> = (1..6).map(|own| greedy(&[own; 70], 9)).collect();
    let ids: Vec<_> = requests.iter().map(|it| desk.submit(it)).collect();
    desk.step().unwrap();
    assert_eq!(desk.batcher.statistics().running, 2);
    desk.finish();
    for (id, request) in ids.iter().zip(&requests) {
        assert_eq!(desk.tokens[id], alone(&model, request).0);
    }
}

/// Three tokens of the model's, then eleven of its own, and so on.
#[derive(Debug, Clone, Default)]
struct Refrain {
    taken: usize,
}

impl Refrain {
    const FREE: usize = 3;
    const FORCED: usize = 11;

    fn forced_at(at: usize) -> Option<u32> {
        let line = at % (Self::FREE + Self::FORCED);
        (line >= Self::FREE).then(|| 100 + line as u32)
    }
}

impl Constraint for Refrain {
    fn restrict(&mut self, logits: &mut [f32]) -> ControlFlow<()> {
        assert_eq!(Self::forced_at(self.taken), None, "nothing is to be chosen");
        logits[..200].fill(f32::NEG_INFINITY);
        ControlFlow::Continue(())
    }

    fn accept(&mut self, token: u32) -> ControlFlow<()> {
        assert_eq!(Self::forced_at(self.taken).unwrap_or(token), token);
        self.taken += 1;
        ControlFlow::Continue(())
    }

    fn forced(&mut self) -> Vec<u32> {
        (self.taken..).map_while(Self::forced_at).collect()
    }

    fn duplicate(&self) -> Box<dyn Constraint> {
        Box::new(self.clone())
    }
}

#[test]
fn what_is_forced_runs_as_one_piece_and_changes_no_other_token() {
    let model = open(Path::new(TALES));
    let prompt: Vec<u32> = (300..340).collect();
    let constraint: Option<Box<dyn Constraint>> = Some(Box::new(Refrain::default()));
    let sampled = SamplerOptions { temperature: 1.2, repeat_penalty: 1.3, ..Default::default() };
    let sampled = Sampler::new(SamplerOptions { seed: 5, ..sampled }).unwrap();
    let one = Request { constraint, eos: vec![1, 2], ..greedy(&prompt, 60) };
    for request in [one.clone(), Request { sampler: Some(sampled), ..one }] {
        let mut desk = Desk::new(batcher(&model, 20, &SchedulerOptions::default()));
        let id = desk.submit(&request);
        let statistics = desk.finish();
        let tokens = desk.tokens.remove(&id).unwrap();
        assert_eq!(desk.ended[&id].reason, FinishReason::Length);
        // The prompt's gives a token; of each line two free ones, and the forced ones with the next.
        assert_eq!((statistics.steps, statistics.rows), (1 + 4 * 3 + 3, 40 + 59));
        for (at, &token) in tokens.iter().enumerate() {
            match Refrain::forced_at(at) {
                Some(forced) => assert_eq!(token, forced),
                None if request.sampler.is_none() => {
                    let prompt = [&prompt, &tokens[..at]].concat();
                    let restricted = Request { prompt, max_tokens: 1, ..request.clone() };
                    let free = Request { constraint: Some(Box::new(NoMarks)), ..restricted };
                    let id = desk.submit(&free);
                    desk.finish();
                    assert_eq!(desk.tokens[&id], [token], "token {at}");
                }
                None => assert!(token >= 200),
            }
        }
        // One by one; in steps with no room for most of it; and among others who take its pages.
        let likely = Request { likelihood: Some(1), ..request.clone() };
        let few = SchedulerOptions { rows: 4, most_running: 3, ..SchedulerOptions::default() };
        for (request, options) in [(&likely, SchedulerOptions::default()), (&request, few)] {
            let mut desk = Desk::new(batcher(&model, 6, &options));
            let others = requests(&mut ChaCha8Rng::seed_from_u64(9), 4);
            let ids: Vec<_> = others.iter().map(|it| desk.submit(it)).collect();
            let id = desk.submit(request);
            desk.finish();
            assert_eq!(desk.tokens[&id], tokens);
            for (id, other) in ids.iter().zip(&others) {
                assert_eq!(desk.tokens[id], alone(&model, other).0);
            }
        }
    }
}

/// Texts that repeat themselves, of which much is guessed right, and others, of which it is not.
#[test]
fn guessed_tokens_change_no_answer() {
    let model = open(Path::new(TALES));
    let mut random = ChaCha8Rng::seed_from_u64(31);
    let mut asked = requests(&mut random, 12);
    for (at, request) in asked.iter_mut().enumerate() {
        let part: Vec<u32> = request.prompt.iter().copied().take(9 + at).collect();
        request.prompt = part.iter().copied().cycle().take(70).collect();
        request.eos.clear();
    }
    asked[3].max_tokens = 1;
    asked[4].max_tokens = 2;
    let ends: Vec<_> = asked.iter().map(|it| alone(&model, it)).collect();
    // A token of its own ends one, which may be among those that were guessed.
    asked.push(Request { eos: vec![ends[5].0[ends[5].0.len() / 2]], ..asked[5].clone() });
    let mut drafts = Vec::new();
    for (together, pages, speculate) in [
        (1, 40, Speculate::Fixed(7)),
        (3, 40, Speculate::Fixed(3)),
        (3, 7, Speculate::Fixed(5)),
        (1, 40, Speculate::Auto),
        (9, 40, Speculate::Auto),
    ] {
        let mut options = BatcherOptions::default();
        (options.speculate, options.gap) = (speculate, Gap::Rows(64));
        options.scheduler.most_running = together;
        let mut desk = Desk::new(Batcher::new(engine(&model, pages), &options).unwrap());
        let ids: Vec<_> = asked.iter().map(|it| desk.submit(it)).collect();
        let statistics = desk.finish();
        for (id, request) in ids.iter().zip(&asked) {
            let (tokens, reason) = alone(&model, request);
            assert_eq!(desk.tokens[id], tokens, "{together}: {request:?}");
            assert_eq!(desk.ended[id].reason, reason);
        }
        drafts.push(statistics.drafts);
        // A reader who goes.
        let id = desk.batcher.submit(Request { max_tokens: 80, ..asked[0].clone() }).unwrap();
        let mut left = 11;
        while !desk.batcher.is_idle() {
            let ended = desk.batcher.advance(&mut |_, _| {
                left -= 1;
                if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
            for (ended, it) in ended.unwrap() {
                assert_eq!((ended, it.timings.tokens), (id, 11));
            }
        }
        assert_eq!((left, desk.batcher.statistics().pages.held), (0, 0));
    }
    // Otherwise nothing of it was tested.
    assert!(drafts[..3].iter().all(|it| 0 < it.accepted && it.accepted < it.drafted), "{drafts:?}");
}

/// As another engine had begun them, wherever they were when it was lost.
#[test]
fn an_answer_goes_on_as_it_would_have() {
    let model = open(Path::new(TALES));
    let mut random = ChaCha8Rng::seed_from_u64(23);
    let mut requests = requests(&mut random, 16);
    for request in &mut requests[..6] {
        request.constraint = Some(Box::new(Refrain::default()));
    }
    let mut desk = Desk::new(batcher(&model, 40, &SchedulerOptions::default()));
    let ids: Vec<_> = requests.iter().map(|it| desk.submit(it)).collect();
    desk.finish();
    let mut preemptions = 0;
    for turn in 0..4 {
        let few = SchedulerOptions { rows: 20, most_running: 5, ..SchedulerOptions::default() };
        let mut other = Desk::new(batcher(&model, 8, &few));
        let resumed = ids.iter().zip(&requests).map(|(id, request)| {
            let whole = &desk.tokens[id];
            // All of it is there, too: what is lost then is only that it has ended.
            let cut = if turn == 0 { 0 } else { random.next_u64() as usize % whole.len() };
            let answer = whole[..whole.len() - cut].to_vec();
            other.submit(&Request { answer, ..request.clone() })
        });
        let resumed: Vec<_> = resumed.collect();
        preemptions += other.finish().preemptions;
        for (id, resumed) in ids.iter().zip(&resumed) {
            assert_eq!(other.tokens[resumed], desk.tokens[id]);
            assert_eq!(other.ended[resumed].reason, desk.ended[id].reason);
        }
    }
    assert!(preemptions > 0);
    let vector = Request { pooling: Some(Pooling::Last), answer: vec![5], ..greedy(&[5], 0) };
    assert!(desk.batcher.submit(vector).is_err());
}

/// Leaves out what a [`Refrain`] leaves out.
#[derive(Debug, Clone)]
struct NoMarks;

impl Constraint for NoMarks {
    fn restrict(&mut self, logits: &mut [f32]) -> ControlFlow<()> {
        logits[..200].fill(f32::NEG_INFINITY);
        ControlFlow::Continue(())
    }

    fn accept(&mut self, _: u32) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }

    fn duplicate(&self) -> Box<dyn Constraint> {
        Box::new(self.clone())
    }
}

#[test]
fn a_request_ends_by_itself_by_its_reader_and_by_the_context() {
    let model = open(Path::new(TALES));
    let mut options = EngineOptions::default();
    options.context = Some(40);
    let engine = Engine::new(&model, &options).unwrap();
    let mut desk = Desk::new(Batcher::new(engine, &BatcherOptions::default()).unwrap());
    let prompt: Vec<u32> = (100..130).collect();
    let tokens = generate_greedy(&mut EngineSession::new(&model, None).unwrap(), &prompt, 11, &[])
        .unwrap()
        .tokens;
    let ends_at = tokens[..6].iter().position(|it| *it == tokens[5]).unwrap();
    let eos = Request { eos: vec![tokens[5]], ..greedy(&prompt, 11) };
    let ids = [&eos, &greedy(&prompt, usize::MAX), &greedy(&prompt, 3), &greedy(&prompt, 0)]
        .map(|it| desk.submit(it));
    desk.finish();
    let found = ids.map(|id| (desk.ended[&id].reason, &desk.tokens[&id][..]));
    assert_eq!(
        found,
        [
            (FinishReason::Eos, &tokens[..ends_at]),
            // The last token needs no room.
            (FinishReason::Context, &tokens[..11]),
            (FinishReason::Length, &tokens[..3]),
            (FinishReason::Length, &[][..]),
        ]
    );

    desk.batcher.submit(greedy(&prompt, 9)).unwrap();
    let ended = loop {
        let ended = desk.batcher.advance(&mut |_, _| ControlFlow::Break(())).unwrap();
        if let [(_, ended)] = &ended[..] {
            break ended.clone();
        }
    };
    assert_eq!((ended.reason, ended.timings.tokens), (FinishReason::Stop, 1));
    assert!(desk.batcher.is_idle());
}

/// As the logits of all its rows at once say, beside answers that take its pages, and of prompts that the prefix
/// cache knows.
#[test]
fn tokens_of_a_prompt_are_as_likely_in_any_company() {
    let model = open(Path::new(TALES));
    let options = SchedulerOptions { rows: 100, most_running: 9, ..SchedulerOptions::default() };
    let mut random = ChaCha8Rng::seed_from_u64(6);
    let mut asked = requests(&mut random, 12);
    for request in &mut asked {
        request.prompt_likelihood = Some(2);
    }
    asked[0] = Request { prompt: vec![7], ..asked[0].clone() };
    asked[1].max_tokens = 0;
    asked[2].prompt = (0..230).map(|at| 3 + at % 700).collect();
    asked[2].priority = 1;
    let mut desk = Desk::new(batcher_with(&model, 6, &options, Gap::Rows(8)));
    for at in 0..2 {
        desk.submit(&Request { priority: 2, ..greedy(&[at + 40; 50], 150) });
    }
    desk.step().unwrap();
    let ids: Vec<_> = [&asked[..], &asked].concat().iter().map(|it| desk.submit(it)).collect();
    // The answers need the pages of the long one when it has run a part of its prompt.
    assert!(desk.finish().preemptions > 0);
    let mut engine = engine(&model, 8);
    for (at, id) in ids.iter().enumerate() {
        let request = &asked[at % asked.len()];
        let Request { prompt, max_tokens, .. } = request;
        if *max_tokens > 0 {
            assert_eq!(desk.tokens[id], alone(&model, request).0);
        }
        let mut sequence = engine.sequence();
        let run = Run { sequence: &mut sequence, tokens: prompt, want: Want::AllLogits };
        let Some(Output::AllLogits(logits)) = engine.step(&mut [run]).unwrap().pop() else {
            panic!("logits were wanted")
        };
        let found = desk.ended[id].prompt.as_ref().unwrap();
        assert_eq!(found.len(), prompt.len() - 1);
        for ((logits, &token), found) in logits.chunks_exact(1536).zip(&prompt[1..]).zip(found) {
            let most = logits.iter().copied().fold(f32::MIN, f32::max);
            let sum: f64 = logits.iter().map(|&it| f64::from(it - most).exp()).sum();
            let logprob = f64::from(logits[token as usize] - most) - sum.ln();
            assert!((f64::from(found.logprob) - logprob).abs() < 1e-4, "{found:?} {logprob}");
            assert_eq!(found.top.len(), 2);
            assert_eq!(logits[found.top[0].0 as usize], most);
        }
    }
}

/// Of its hidden states all at once, beside answers, out of pages that others take, and of prompts that the
/// prefix cache knows.
#[test]
fn a_vector_is_that_of_its_hidden_states_in_any_company() {
    let model = open(Path::new(TALES));
    let poolings = [Pooling::Last, Pooling::Mean, Pooling::Cls];
    let width = model.config().hidden_size;
    let mut random = ChaCha8Rng::seed_from_u64(5);
    let others = requests(&mut random, 18);
    let prompts: Vec<_> = requests(&mut random, 9).into_iter().map(|it| it.prompt).collect();
    let options = SchedulerOptions { rows: 100, most_running: 9, ..SchedulerOptions::default() };
    let mut submitted = Vec::new();
    let mut ended = HashMap::new();
    for pooling in poolings {
        let mut desk = Desk::new(batcher_with(&model, 6, &options, Gap::Rows(8)));
        for at in 0..2 {
            desk.submit(&greedy(&[at + 40; 50], 150));
        }
        desk.step().unwrap();
        let prompt = (0..230).map(|at| 3 + at % 700).collect();
        let request =
            Request { prompt, pooling: Some(pooling), priority: -1, ..Request::default() };
        let id = desk.submit(&request);
        // The answers need its pages when it has run a part of its prompt.
        assert!(desk.finish().preemptions > 0, "{pooling:?}");
        ended.insert(submitted.len(), desk.ended[&id].clone());
        submitted.push(request);
    }
    let mut desk = Desk::new(batcher_with(&model, 6, &options, Gap::Rows(8)));
    let mut ids = Vec::new();
    for turn in 0..2 {
        for (at, prompt) in prompts.iter().enumerate() {
            let pooling = Some(poolings[(at + turn) % 3]);
            let request = Request { prompt: prompt.clone(), pooling, ..Request::default() };
            ids.push((submitted.len(), desk.submit(&request)));
            submitted.push(request);
            desk.submit(&others[turn * 9 + at]);
        }
    }
    let statistics = desk.finish();
    assert!(statistics.pages.prefix_tokens_found > 0, "{statistics:?}");
    ended.extend(ids.into_iter().map(|(at, id)| (at, desk.ended[&id].clone())));

    let mut engine = engine(&model, 8);
    for (at, Request { prompt, pooling, .. }) in submitted.into_iter().enumerate() {
        let mut sequence = engine.sequence();
        let run = Run { sequence: &mut sequence, tokens: &prompt, want: Want::AllHidden };
        let Some(Output::AllHidden(states)) = engine.step(&mut [run]).unwrap().pop() else {
            panic!("hidden states were wanted")
        };
        let states: Vec<_> = states.chunks_exact(width).collect();
        let mean = |column: usize| {
            let sum: f64 = states.iter().map(|state| f64::from(state[column])).sum();
            (sum / states.len() as f64) as f32
        };
        let expected: Vec<f32> = match pooling.unwrap() {
            Pooling::Last => states[states.len() - 1].to_vec(),
            Pooling::Cls => states[0].to_vec(),
            Pooling::Mean => (0..width).map(mean).collect(),
        };
        let what = format!("{pooling:?} of {} tokens", prompt.len());
        assert!(ended[&at].vector.as_ref().unwrap() == &expected, "{what}");
    }
}

#[test]
fn what_cannot_run_is_refused_and_changes_nothing() {
    let model = open(Path::new(TALES));
    let mut batcher = batcher(&model, 3, &SchedulerOptions::default());
    assert!(matches!(batcher.submit(greedy(&[], 1)), Err(Error::EmptyPrompt)));
    match batcher.submit(greedy(&[5, 1536], 1)) {
        Err(Error::TokenOutOfRange { token: 1536, vocab_size: 1536 }) => {}
        other => panic!("{other:?}"),
    }
    match batcher.submit(greedy(&[5; 2049], 1)) {
        Err(Error::ContextFull { needed: 2049, context: 2048, max: 2048 }) => {}
        other => panic!("{other:?}"),
    }
    match batcher.submit(greedy(&[5; 100], 100)) {
        Err(Error::RequestTooLarge { needed: 4, total: 3 }) => {}
        other => panic!("{other:?}"),
    }
    assert!(batcher.is_idle());
    assert!(batcher.advance(&mut |_, _| unreachable!()).unwrap().is_empty());

    let mut options = BatcherOptions::default();
    options.scheduler.rows = 257;
    let error = Batcher::new(engine(&model, 3), &options).unwrap_err().to_string();
    assert!(error.contains("257 rows") && error.contains("256"), "{error}");
}

#[test]
fn pages_that_others_hold_are_an_error_and_no_endless_loop() {
    let model = open(Path::new(TALES));
    let mut desk = Desk::new(batcher(&model, 4, &SchedulerOptions::default()));
    let prompt: Vec<u32> = (100..300).collect();
    desk.submit(&greedy(&prompt, 1));
    desk.finish();
    let mut other = desk.batcher.engine().pages().table();
    assert_eq!(other.resume(&prompt), 192);
    let request = greedy(&(400..600).collect::<Vec<_>>(), 9);
    let id = desk.submit(&request);
    let error = desk.step().unwrap_err().to_string();
    assert!(error.contains("waiting requests: 1") && error.contains("3 of 4 pages"), "{error}");
    drop(other);
    desk.finish();
    assert_eq!(desk.tokens[&id], alone(&model, &request).0);
}

/// The fixture with a token whose embedding is no number: a step with it fails.
fn poisoned(token: u32) -> tempfile::TempDir {
    let fixture = fixtures::named("llama-mha-f32");
    let folder = tempfile::tempdir().unwrap();
    for file in ["config.json", "generation_config.json"] {
        if fixture.folder.join(file).exists() {
            std::fs::copy(fixture.folder.join(file), folder.path().join(file)).unwrap();
        }
    }
    let mut bytes = std::fs::read(fixture.folder.join("model.safetensors")).unwrap();
    let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let entries: serde_json::Value = serde_json::from_slice(&bytes[8..header]).unwrap();
    let embedding = &entries["model.embed_tokens.weight"];
    assert_eq!(embedding["dtype"], "F32");
    assert!(!entries["lm_head.weight"].is_null(), "its output projection stays whole");
    let number = |value: &serde_json::Value| value.as_u64().unwrap() as usize;
    let row = 4 * number(&embedding["shape"][1]);
    let at = header + number(&embedding["data_offsets"][0]) + token as usize * row;
    for value in bytes[at..at + row].chunks_exact_mut(4) {
        value.copy_from_slice(&f32::NAN.to_le_bytes());
    }
    std::fs::write(folder.path().join("model.safetensors"), bytes).unwrap();
    folder
}

#[test]
fn a_failed_step_loses_no_request() {
    let folder = poisoned(77);
    let model = open(folder.path());
    let mut desk = Desk::new(batcher(&model, 20, &SchedulerOptions::default()));
    let requests: Vec<_> = (0..5).map(|at| greedy(&[at * 3 + 1; 30], 20 + at as usize)).collect();
    let ids: Vec<_> = requests.iter().map(|it| desk.submit(it)).collect();
    for _ in 0..3 {
        desk.step().unwrap();
    }
    let bad = desk.submit(&greedy(&[4, 77, 5], 5));
    let before = (desk.tokens.clone(), desk.batcher.requests());
    for _ in 0..2 {
        let error = desk.step().unwrap_err();
        let Error::Request { request, source } = error else { panic!("{error:?}") };
        assert!(source.to_string().contains("not numbers"), "{source}");
        assert_eq!(request, bad);
        assert_eq!((desk.tokens.clone(), desk.batcher.requests()), before);
    }
    assert!(desk.batcher.cancel(bad));
    desk.finish();
    for (id, request) in ids.iter().zip(&requests) {
        let (tokens, reason) = alone(&model, request);
        assert!(!tokens.contains(&77));
        assert_eq!((&desk.tokens[id], desk.ended[id].reason), (&tokens, reason));
    }
}

#[test]
fn a_vector_that_is_not_numbers_is_an_error_of_its_request() {
    let folder = poisoned(77);
    let model = open(folder.path());
    let mut desk = Desk::new(batcher(&model, 20, &SchedulerOptions::default()));
    for pooling in [Pooling::Last, Pooling::Cls, Pooling::Mean] {
        let ask = |prompt: [u32; 3]| Request {
            prompt: prompt.to_vec(),
            pooling: Some(pooling),
            ..Request::default()
        };
        let bad = desk.submit(&ask([77, 4, 77]));
        match desk.step().unwrap_err() {
            Error::Request { request, source } => {
                assert_eq!(request, bad);
                assert!(source.to_string().contains("not numbers"), "{source}");
            }
            other => panic!("{other:?}"),
        }
        assert!(desk.batcher.cancel(bad));
        let good = desk.submit(&ask([4, 5, 6]));
        desk.finish();
        assert!(desk.ended[&good].vector.as_ref().unwrap().iter().all(|x| x.is_finite()));
    }
}

#[test]
fn what_ended_an_answer_is_told_with_how_likely_it_was() {
    let model = open(Path::new(TALES));
    let mut desk = Desk::new(batcher(&model, 20, &SchedulerOptions::default()));
    let plain = greedy(&(100..130).collect::<Vec<_>>(), 6);
    let asked = Request { likelihood: Some(2), ..plain.clone() };
    let ids = [&plain, &asked].map(|it| desk.submit(it));
    desk.finish();
    let tokens = desk.tokens[&ids[0]].clone();
    assert_eq!(desk.ended[&ids[1]].eos, None, "it was as long as it might be");
    // What comes fourth ends it now.
    let end = tokens[3];
    let before = tokens.iter().position(|it| *it == end).unwrap();
    let ends = [plain, asked].map(|it| Request { eos: vec![end], ..it });
    let ids = ends.each_ref().map(|it| desk.submit(it));
    desk.finish();
    for id in ids {
        assert_eq!(desk.tokens[&id], tokens[..before]);
        assert_eq!(desk.ended[&id].reason, FinishReason::Eos);
    }
    assert_eq!(desk.ended[&ids[0]].eos, None);
    let eos = desk.ended[&ids[1]].eos.clone().unwrap();
    let likelihood = eos.likelihood.unwrap();
    assert_eq!((eos.id, likelihood.top[0]), (end, (end, likelihood.logprob)));
    // An answer that has it is over.
    let over = Request { answer: tokens[..=before].to_vec(), ..ends[1].clone() };
    let id = desk.submit(&over);
    desk.finish();
    assert_eq!((desk.tokens[&id].len(), desk.ended[&id].reason), (before + 1, FinishReason::Eos));
}

/// Not alone, not together, neither as the likeliest nor drawn, guessed or not; they take no share of what is likely.
#[test]
fn tokens_that_a_model_must_not_generate_never_come() {
    let fixture = fixtures::named("llama-mha-f32");
    let folder = tempfile::tempdir().unwrap();
    for name in ["config.json", "model.safetensors"] {
        std::fs::copy(fixture.folder.join(name), folder.path().join(name)).unwrap();
    }
    let suppressed: Vec<u32> = (3..299).step_by(4).collect();
    let said = format!("{{\"suppress_tokens\": {suppressed:?}}}");
    std::fs::write(folder.path().join("generation_config.json"), said).unwrap();
    let model = open(folder.path());
    let case = &fixture.cases[2];
    let count = case.tokens.len();

    // What may come by the model's own logits, which have all tokens.
    let (mut session, mut logits) = (EngineSession::new(&model, None).unwrap(), Vec::new());
    let (mut new, mut expected) = (case.prompt.clone(), Vec::new());
    for _ in 0..count {
        session.logits(&new, &mut logits).unwrap();
        assert!(logits.iter().all(|logit| logit.is_finite()));
        let allowed = (0..logits.len() as u32).filter(|id| !suppressed.contains(id));
        let best = allowed.max_by(|a, b| logits[*a as usize].total_cmp(&logits[*b as usize]));
        expected.push(best.unwrap());
        new = vec![best.unwrap()];
    }
    assert_ne!(expected, case.tokens, "the likeliest token may always come");

    let sampler = |temperature: f32| {
        let options = SamplerOptions { temperature, seed: 3, ..SamplerOptions::default() };
        Some(Sampler::new(options).unwrap())
    };
    let plain = greedy(&case.prompt, count);
    let of_logits = Request { sampler: sampler(0.0), ..plain.clone() };
    let likely = Request { likelihood: Some(3), ..plain.clone() };
    let drawn = Request { sampler: sampler(3.0), ..plain.clone() };
    let as_drawn = alone(&model, &drawn).0;
    assert!(!as_drawn.iter().any(|token| suppressed.contains(token)));
    for request in [&plain, &of_logits] {
        assert_eq!(alone(&model, request).0, expected);
    }
    for sampler in [None, sampler(0.0)] {
        let speculation = Some(Speculation::fixed(NgramDrafter::default(), 3));
        let mut options =
            GenerateOptions { max_tokens: count, sampler, speculation, ..Default::default() };
        let mut session = EngineSession::new(&model, None).unwrap();
        let go_on = |_| ControlFlow::Continue(());
        let found = generate(&mut session, &case.prompt, &mut options, go_on).unwrap();
        assert_eq!(found.tokens, expected);
        assert!(found.drafts.drafted > 0);
    }
    for speculate in [Speculate::Off, Speculate::Fixed(3)] {
        let mut options = BatcherOptions::default();
        options.speculate = speculate;
        let mut desk = Desk::new(Batcher::new(engine(&model, 20), &options).unwrap());
        let ids = [&plain, &of_logits, &likely, &drawn].map(|request| desk.submit(request));
        let drafts = desk.finish().drafts;
        assert_eq!(drafts.drafted > 0, speculate != Speculate::Off);
        for (id, tokens) in ids.iter().zip([&expected, &expected, &expected, &as_drawn]) {
            assert_eq!(&desk.tokens[id], tokens, "{speculate:?}");
        }
    }

    let mut batcher = batcher(&model, 20, &SchedulerOptions::default());
    let all = Request { max_tokens: 1, likelihood: Some(logits.len()), ..plain };
    batcher.submit(all).unwrap();
    let mut likely = 0.0;
    let mut on_token = |_, token: xla_session::batching::Token| {
        for (id, it) in token.likelihood.unwrap().top {
            assert_eq!(it == f32::NEG_INFINITY, suppressed.contains(&id), "{id}: {it}");
            likely += f64::from(it).exp();
        }
        ControlFlow::Continue(())
    };
    batcher.advance(&mut on_token).unwrap();
    assert!((likely - 1.0).abs() < 1e-5, "{likely}");
}
