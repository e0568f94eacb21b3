//! Requests of many threads, on a batcher that has its own.

use std::pin::pin;
use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::time::Instant;

use xla_session::batching::{Answer, Listener, Piece, Token, Worker};

use super::*;

fn worker(pages: usize) -> (Model, Worker) {
    let model = open(Path::new(TALES));
    let batcher = batcher(&model, pages, &SchedulerOptions::default());
    (model, Worker::start(batcher, "tales").unwrap())
}

/// All tokens, and the end.
fn whole(answer: Answer) -> (Vec<u32>, Ended) {
    let (mut tokens, mut ended) = (Vec::new(), None);
    for piece in answer {
        assert!(ended.is_none(), "nothing follows the end");
        match piece.unwrap() {
            Piece::Token(token) => tokens.push(token.id),
            Piece::Ended(it) => ended = Some(it),
        }
    }
    (tokens, ended.expect("an answer ends"))
}

/// Until it is so.
fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Has steps take so long that a test gets back to an answer before its end, whatever keeps it.
#[derive(Debug, Clone)]
struct Slow;

impl Constraint for Slow {
    fn restrict(&mut self, _: &mut [f32]) -> ControlFlow<()> {
        std::thread::sleep(Duration::from_millis(50));
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
fn requests_of_many_threads_have_the_tokens_that_they_have_alone() {
    let (model, worker) = worker(200);
    let requests = requests(&mut ChaCha8Rng::seed_from_u64(5), 12);
    let expected: Vec<_> = requests.iter().map(|it| alone(&model, it)).collect();
    std::thread::scope(|scope| {
        for (request, expected) in requests.into_iter().zip(&expected) {
            let worker = &worker;
            scope.spawn(move || {
                let (tokens, ended) = whole(worker.submit(request));
                assert_eq!((&tokens, ended.reason), (&expected.0, expected.1));
                assert_eq!(ended.timings.tokens, tokens.len());
            });
        }
    });
    let statistics = worker.statistics();
    assert_eq!((statistics.running, statistics.pages.held), (0, 0));
    assert!(statistics.steps > 0 && worker.is_alive());
}

#[test]
fn answers_are_awaited_and_are_streams() {
    let (model, worker) = worker(20);
    let request = greedy(&[5, 6, 7], 12);
    let expected = alone(&model, &request).0;
    let mut answer = worker.submit(request.clone());
    let awaited = pollster::block_on(async {
        let mut tokens = Vec::new();
        while let Some(progress) = answer.recv().await {
            if let Piece::Token(token) = progress.unwrap() {
                tokens.push(token.id);
            }
        }
        assert!(answer.recv().await.is_none());
        tokens
    });
    assert_eq!(awaited, expected);

    let mut answer = pin!(worker.submit(request));
    let mut streamed = Vec::new();
    pollster::block_on(async {
        use futures_core::Stream;
        while let Some(progress) = std::future::poll_fn(|it| answer.as_mut().poll_next(it)).await {
            if let Piece::Token(token) = progress.unwrap() {
                streamed.push(token.id);
            }
        }
    });
    assert_eq!(streamed, expected);
}

#[test]
fn what_cannot_run_is_told_and_what_nobody_waits_for_ends() {
    let (model, worker) = worker(40);
    let mut refused = worker.submit(greedy(&[], 1));
    assert!(matches!(refused.blocking_recv(), Some(Err(Error::EmptyPrompt))));
    assert!(refused.blocking_recv().is_none());

    let long = Request { constraint: Some(Box::new(Slow)), ..greedy(&[5, 6, 7], 2000) };
    let mut answer = worker.submit(long.clone());
    assert!(matches!(answer.blocking_recv(), Some(Ok(Piece::Token(_)))));
    drop(answer);
    wait_for("a dropped answer has no pages", || worker.statistics().pages.held == 0);

    let mut answer = worker.submit(long.clone());
    assert!(matches!(answer.blocking_recv(), Some(Ok(Piece::Token(_)))));
    worker.cut_off();
    assert!(matches!((&mut answer).into_iter().last(), Some(Err(Error::Stopped))));
    let mut late = worker.submit(greedy(&[5], 1));
    assert!(matches!(late.blocking_recv(), Some(Err(Error::Stopped))));
    assert!(worker.is_alive());

    let batcher = batcher(&model, 40, &SchedulerOptions::default());
    let worker = Worker::start(batcher, "tales").unwrap();
    let mut answer = worker.submit(long);
    assert!(matches!(answer.blocking_recv(), Some(Ok(Piece::Token(_)))));
    drop(worker);
    assert!(matches!(answer.into_iter().last(), Some(Err(Error::Stopped))));
}

#[test]
fn a_request_that_makes_no_numbers_ends_alone() {
    let folder = super::faults::poisoned(77);
    let model = open(folder.path());
    let worker =
        Worker::start(batcher(&model, 20, &SchedulerOptions::default()), "poisoned").unwrap();
    let good = greedy(&[4; 30], 20);
    let answer = worker.submit(good.clone());
    match worker.submit(greedy(&[4, 77, 5], 5)).blocking_recv() {
        Some(Err(Error::NotNumbers { .. })) => {}
        other => panic!("{other:?}"),
    }
    assert_eq!(whole(answer).0, alone(&model, &good).0);
    assert!(worker.is_alive());
    assert_eq!(worker.statistics().failures, 0);
}

/// Says what it hears, and ends the others with the first that ends where it is `strict`.
struct Talks {
    said: Sender<String>,
    strict: bool,
}

impl Listener for Talks {
    fn accepted(&mut self) -> ControlFlow<()> {
        self.said.send("accepted".into()).unwrap();
        ControlFlow::Continue(())
    }

    fn token(&mut self, index: usize, _: Token, step: u64) -> ControlFlow<()> {
        assert!(step > 0);
        self.said.send(format!("token of {index}")).unwrap();
        ControlFlow::Continue(())
    }

    fn ended(&mut self, index: usize, _: Ended) -> ControlFlow<()> {
        self.said.send(format!("end of {index}")).unwrap();
        if self.strict { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    fn failed(&mut self, error: Error) {
        self.said.send(error.to_string()).unwrap();
    }
}

#[test]
fn requests_that_belong_together_run_or_end_together() {
    let (_, worker) = worker(40);
    let hear = |requests: Vec<Request>, strict| {
        let (said, heard) = mpsc::channel();
        worker.submit_all(requests, Box::new(Talks { said, strict }));
        // Until the listener is dropped.
        heard.iter().collect::<Vec<_>>()
    };
    let refused = hear(vec![greedy(&[5], 3), greedy(&[], 3)], false);
    assert_eq!(refused, [Error::EmptyPrompt.to_string()]);

    let heard = hear(vec![greedy(&[5], 3), greedy(&[6], 1)], false);
    assert_eq!(heard[0], "accepted");
    let count = |what: &str| heard.iter().filter(|it| *it == what).count();
    assert_eq!((count("token of 0"), count("token of 1")), (3, 1));
    assert_eq!((count("end of 0"), count("end of 1")), (1, 1));

    let heard = hear(vec![greedy(&[5], 2000), greedy(&[6], 2)], true);
    assert_eq!(heard.iter().filter(|it| it.starts_with("end")).collect::<Vec<_>>(), ["end of 1"]);
    wait_for("the others have no pages", || worker.statistics().pages.held == 0);
}

/// Has the worker that steps it, and tells when it is gone.
struct Owner {
    worker: Option<Arc<Worker>>,
    gone: Sender<()>,
}

impl Listener for Owner {
    fn token(&mut self, _: usize, _: Token, _: u64) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }

    fn ended(&mut self, _: usize, _: Ended) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }

    fn failed(&mut self, _: Error) {}
}

impl Drop for Owner {
    fn drop(&mut self) {
        drop(self.worker.take());
        self.gone.send(()).unwrap();
    }
}

#[test]
fn a_listener_may_have_the_last_handle_of_its_worker() {
    let (_, worker) = worker(40);
    let worker = Arc::new(worker);
    let (gone, is_gone) = mpsc::channel();
    let owner = Owner { worker: Some(worker.clone()), gone };
    worker.submit_all(vec![greedy(&[5], 3)], Box::new(owner));
    drop(worker);
    // It would be left after this time.
    is_gone.recv_timeout(Worker::LAST_STEP / 2).unwrap();
}

#[test]
fn requests_are_given_up_where_steps_fail_and_run_again_where_they_do_not() {
    let model = open(Path::new(TALES));
    let mut desk = Desk::new(batcher(&model, 4, &SchedulerOptions::default()));
    let prompt: Vec<u32> = (100..300).collect();
    desk.submit(&greedy(&prompt, 1));
    desk.finish();
    // No step fits while others have the pages.
    let mut other = desk.batcher.engine().pages().table();
    assert_eq!(other.resume(&prompt), 192);
    let worker = Worker::start(desk.batcher, "held").unwrap();
    let request = greedy(&(400..600).collect::<Vec<_>>(), 9);
    for (failures, is_alive) in [(3, true), (6, false)] {
        match worker.submit(request.clone()).blocking_recv() {
            Some(Err(Error::StepsFailed { times, source })) => {
                assert_eq!(times, failures);
                assert!(source.to_string().contains("no step fits"), "{source}");
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(worker.is_alive(), is_alive);
    }
    assert_eq!(worker.statistics().failures, 6);
    drop(other);
    assert_eq!(whole(worker.submit(request.clone())).0, alone(&model, &request).0);
    assert!(worker.is_alive());
}
