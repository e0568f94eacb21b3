//! Semaphores and fences: what they reach, fail with and wake.

use std::future::{Future, IntoFuture};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::device;
use crate::support::in_flight::{LONG, SHORT};
use iree_rt::{Code, Error, Fence, Semaphore};

struct Counting(AtomicUsize);

impl Wake for Counting {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn the_latest_waker_is_woken_and_dropped_futures_are_not() {
    let device = device("local-task");
    let (go, fence) = Fence::new(&device).unwrap();
    let counts: Vec<_> = (0..3).map(|_| Arc::new(Counting(AtomicUsize::new(0)))).collect();
    let count = |i: usize| counts[i].0.load(Ordering::SeqCst);
    let waker = |i: usize| Waker::from(counts[i].clone());
    let mut kept = Box::pin(fence.reached());
    let mut dropped = Box::pin(fence.reached());
    assert!(kept.as_mut().poll(&mut Context::from_waker(&waker(0))).is_pending());
    assert!(kept.as_mut().poll(&mut Context::from_waker(&waker(1))).is_pending());
    assert!(dropped.as_mut().poll(&mut Context::from_waker(&waker(2))).is_pending());
    drop(dropped);
    assert_eq!(Arc::strong_count(&counts[0]), 1);
    assert_eq!(Arc::strong_count(&counts[2]), 1);
    go.signal().unwrap();
    assert_eq!((count(0), count(1), count(2)), (0, 1, 0));
    let ready = kept.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(matches!(ready, Poll::Ready(Ok(()))));
    // A fence that is reached is ready at once.
    let mut again = pin!(fence.reached());
    assert!(again.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready());
}

#[test]
fn futures_are_dropped_while_their_fence_is_signalled() {
    let device = device("local-task");
    for round in 0..500 {
        let (go, fence) = Fence::new(&device).unwrap();
        let counting = Arc::new(Counting(AtomicUsize::new(0)));
        let waker = Waker::from(counting.clone());
        let futures: Vec<_> = (0..20)
            .map(|_| {
                let mut future = Box::pin(fence.reached());
                let _ = future.as_mut().poll(&mut Context::from_waker(&waker));
                future
            })
            .collect();
        drop(waker);
        let start = std::sync::Barrier::new(2);
        thread::scope(|scope| {
            scope.spawn(|| {
                start.wait();
                if round % 2 == 0 { go.signal().unwrap() } else { drop(go) }
            });
            start.wait();
            drop(futures);
        });
        // Each waker was woken or dropped, whichever came first.
        assert!(counting.0.load(Ordering::SeqCst) <= 20);
        assert_eq!(Arc::strong_count(&counting), 1);
    }
}

#[test]
fn semaphores_only_grow() {
    for uri in ["local-task", "local-sync"] {
        let device = device(uri);
        let semaphore = Semaphore::new(&device, 5).unwrap();
        assert_eq!(semaphore.value().unwrap(), 5);
        semaphore.signal(7).unwrap();
        semaphore.wait(6, None).unwrap();
        for back in [0, 6, 7] {
            assert_eq!(semaphore.signal(back).unwrap_err().code(), Code::InvalidArgument);
        }
        // Read as a failure, or as the address of one, by IREE.
        for beyond in [u64::from(i32::MAX as u32), 1 << 63, u64::MAX] {
            assert_eq!(semaphore.signal(beyond).unwrap_err().code(), Code::OutOfRange);
            assert_eq!(semaphore.fence(beyond).unwrap_err().code(), Code::OutOfRange);
            assert_eq!(semaphore.wait(beyond, None).unwrap_err().code(), Code::OutOfRange);
            assert_eq!(Semaphore::new(&device, beyond).unwrap_err().code(), Code::OutOfRange);
        }
        assert_eq!(semaphore.value().unwrap(), 7);
        let started = Instant::now();
        let late = semaphore.wait(8, Some(SHORT)).unwrap_err();
        assert_eq!(late.code(), Code::DeadlineExceeded, "{late}");
        assert!(started.elapsed() >= SHORT && started.elapsed() < LONG);
        let late = semaphore.wait(8, Some(Duration::ZERO)).unwrap_err();
        assert_eq!(late.code(), Code::DeadlineExceeded, "{late}");

        semaphore.fail(&Error::new(Code::Unavailable, "unplugged"));
        semaphore.fail(&Error::new(Code::Internal, "too late to count"));
        let failures = [
            semaphore.value().map(drop),
            semaphore.signal(9),
            semaphore.wait(7, None),
            semaphore.fence(7).unwrap().wait(Some(SHORT)),
            pollster::block_on(semaphore.fence(9).unwrap().reached()),
        ];
        for failure in failures {
            let error = failure.unwrap_err();
            assert_eq!(error.code(), Code::Unavailable, "{error}");
            assert!(error.message().contains("unplugged"), "{error}");
        }
    }
}

#[test]
fn a_failure_is_a_failure_whatever_its_code() {
    let device = device("local-task");
    // To IREE, "deferred" is not a failure but a fence that is not reached yet.
    for code in [Code::Deferred, Code::Unknown, Code::DeadlineExceeded] {
        let (signal, fence) = Fence::new(&device).unwrap();
        signal.fail(&Error::new(code, "with a code of its own"));
        for error in [fence.is_reached().unwrap_err(), fence.wait(Some(SHORT)).unwrap_err()] {
            assert!(error.message().contains("with a code of its own"), "{error}");
        }
    }
}

#[test]
fn a_wait_of_centuries_is_one_without_end() {
    let device = device("local-task");
    let most = Duration::from_nanos(i64::MAX as u64);
    for limit in [most / 3, most * 9 / 10, most - Duration::from_secs(1), most, 2 * most] {
        let (signal, fence) = Fence::new(&device).unwrap();
        thread::scope(|scope| {
            let waiting = scope.spawn(|| fence.wait(Some(limit)));
            thread::sleep(SHORT);
            signal.signal().unwrap();
            waiting.join().unwrap().unwrap_or_else(|error| panic!("{limit:?}: {error}"));
        });
    }
}

#[test]
fn dropped_semaphores_fail_what_waits_for_them() {
    let device = device("local-task");
    let semaphore = Semaphore::new(&device, 0).unwrap();
    let fence = semaphore.fence(2).unwrap();
    let other = semaphore.clone();
    semaphore.signal(1).unwrap();
    drop(semaphore);
    assert!(!fence.is_reached().unwrap());
    drop(other);
    assert_eq!(fence.is_reached().unwrap_err().code(), Code::Cancelled);

    let semaphore = Semaphore::new(&device, 0).unwrap();
    let fence = semaphore.fence(2).unwrap();
    semaphore.signal(3).unwrap();
    drop(semaphore);
    assert!(fence.is_reached().unwrap());
}

#[test]
fn joined_fences_wait_for_all_and_fail_with_one() {
    let device = device("local-task");
    let empty = Fence::join(&device, []).unwrap();
    assert!(empty.is_reached().unwrap());
    assert!(pollster::block_on(empty.into_future()).is_ok());

    let (first, a) = Fence::new(&device).unwrap();
    let (second, b) = Fence::new(&device).unwrap();
    let both = Fence::join(&device, [&a, &b, &a]).unwrap();
    first.signal().unwrap();
    assert!(a.is_reached().unwrap() && !both.is_reached().unwrap());
    thread::scope(|scope| {
        let waiting = scope.spawn(|| pollster::block_on(both.reached()));
        second.signal().unwrap();
        waiting.join().unwrap().unwrap();
    });

    let (_never, a) = Fence::new(&device).unwrap();
    let (failing, b) = Fence::new(&device).unwrap();
    let both = Fence::join(&device, [&a, &b]).unwrap();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| both.wait(Some(LONG)));
        let awaiting = scope.spawn(|| pollster::block_on(both.reached()));
        failing.fail(&Error::new(Code::Aborted, "no more"));
        for error in [waiting.join().unwrap(), awaiting.join().unwrap()].map(Result::unwrap_err) {
            assert_eq!(error.code(), Code::Aborted, "{error}");
            assert!(error.message().contains("no more"), "{error}");
        }
    });
}
