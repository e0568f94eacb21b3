//! Many requests at once: every one has the tokens that it has alone.

mod chosen;
mod drafts;
mod faults;
mod likelihood;
mod worker;

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::time::Duration;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use xla_session::batching::{
    BatcherOptions, Constraint, Ended, Gap, Request, Speculate, Statistics,
};
use xla_session::sample::{Sampler, SamplerOptions};
use xla_session::scheduler::{RequestId, SchedulerOptions};
use xla_session::{
    Batcher, DraftCounts, Engine, EngineOptions, EngineSession, Error, FinishReason,
    GenerateOptions, InferenceSession, Model, Output, Pooling, Run, SessionOptions, Want, generate,
    generate_greedy,
};

use crate::fixtures::{self, SOME, WITH_STATES};

const TALES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../models/tiny-tales");

fn open(folder: &Path) -> Model {
    let options = SessionOptions {
        cache_dir: Some(fixtures::compiled()),
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
            second_text: None,
            written: None,
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
