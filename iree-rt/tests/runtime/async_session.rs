//! Sessions on threads of their own.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use crate::support::session;
use iree_rt::{AsyncSession, Code, Outputs, Result, Session, Value};

/// Long enough for a machine under load, and no longer than a test may take.
const LONG: Duration = Duration::from_secs(30);

fn step(by: i32) -> impl FnOnce(&mut Session) -> Result<Outputs> + Send {
    move |session| {
        let step = session.function("kinds.step")?;
        session.call(&step, [Value::I32(by)])
    }
}

fn count(outputs: &Result<Outputs>) -> i32 {
    outputs.as_ref().unwrap().view(0).unwrap().read::<i32>().unwrap()[0]
}

/// Keeps the session's thread from going on until the sender is dropped.
fn hold(session: &AsyncSession) -> (mpsc::Sender<()>, iree_rt::Running<()>) {
    let (go, wait) = mpsc::channel::<()>();
    let (begun, began) = mpsc::channel();
    let running = session.run(move |_| {
        begun.send(()).unwrap();
        let _ = wait.recv_timeout(LONG);
    });
    began.recv_timeout(LONG).unwrap();
    (go, running)
}

#[test]
fn an_executor_goes_on_while_a_session_works() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    for uri in ["local-sync", "local-task"] {
        runtime.block_on(async {
            let session = session(uri).into_async().unwrap();
            let (go, held) = hold(&session);
            let last = session.run(step(5));
            let other = async {
                tokio::time::sleep(Duration::from_millis(5)).await;
                drop(go);
            };
            let (last, (), ()) = tokio::join!(last, held, other);
            assert_eq!(count(&last), 5);
        });
    }
}

#[test]
fn jobs_are_done_in_order_from_all_threads() {
    let session = session("local-sync").into_async().unwrap();
    let total: i32 = thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let session = session.clone();
                scope.spawn(move || {
                    let counts: Vec<_> =
                        (0..25).map(|_| count(&pollster::block_on(session.run(step(1))))).collect();
                    assert!(counts.is_sorted());
                    counts.len() as i32
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert_eq!(count(&pollster::block_on(session.run(step(0)))), total);
}

#[test]
fn a_job_that_nobody_awaits_any_more_is_not_begun() {
    let session = session("local-sync").into_async().unwrap();
    let (go, held) = hold(&session);
    drop(session.run(step(100)));
    let counted = session.run(step(1));
    // Whoever has a future gets its result, also when the handles are gone.
    drop(session);
    drop(go);
    pollster::block_on(held);
    assert_eq!(count(&pollster::block_on(counted)), 1);
}

#[test]
fn panics_and_errors_reach_who_awaits() {
    let session = session("local-sync").into_async().unwrap();
    let panicking = session.run(|_| panic!("in a job"));
    let payload = catch_unwind(AssertUnwindSafe(|| pollster::block_on(panicking))).unwrap_err();
    assert_eq!(payload.downcast_ref(), Some(&"in a job"));
    let missing = session.run(|session| session.function("kinds.nothing").map(drop));
    assert_eq!(pollster::block_on(missing).unwrap_err().code(), Code::NotFound);
    session.canceller().cancel();
    let error = pollster::block_on(session.run(step(1))).unwrap_err();
    assert_eq!(error.code(), Code::Cancelled);
    session.canceller().reset();
    assert_eq!(count(&pollster::block_on(session.run(step(1)))), 1);
    assert_eq!(session.device().uri(), "local-sync");
}

#[test]
fn results_that_panic_when_they_are_dropped_do_no_harm() {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("bomb");
        }
    }
    let session = session("local-sync").into_async().unwrap();
    let (begun, began) = mpsc::channel();
    let (go, wait) = mpsc::channel::<()>();
    let unwanted = session.run(move |_| {
        begun.send(()).unwrap();
        let _ = wait.recv_timeout(LONG);
        Bomb
    });
    began.recv_timeout(LONG).unwrap();
    drop(unwanted);
    drop(go);
    assert_eq!(count(&pollster::block_on(session.run(step(1)))), 1);
}

#[test]
fn a_job_may_drop_the_last_handle() {
    let session = session("local-task").into_async().unwrap();
    let handle = Arc::new(Mutex::new(Some(session.clone())));
    let taken = handle.clone();
    let (go, held) = hold(&session);
    let last = session.run(move |session| {
        drop(taken.lock().unwrap().take());
        session.modules().len()
    });
    drop((session, go));
    assert_eq!(pollster::block_on(last), 1);
    pollster::block_on(held);
    assert!(handle.lock().unwrap().is_none());
}
