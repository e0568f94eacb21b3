//! A prepared call, invoked again and again, takes no more memory than the first times.
//!
//! Counts the process's host allocations, so this program has one test.

mod support;

use std::future::Future;
use std::task::{Context, Waker};

use iree_rt::{Call, CompileOptions, Session};
use iree_sys::allocator::usage;
use support::session;

/// Allocations of `times` steps, each with a new scalar and a result read.
fn run(call: &mut Call, session: &mut Session, times: usize) -> usize {
    let before = usage().allocations;
    let mut out = [0i32];
    for _ in 0..times {
        call.set(0, 1).unwrap();
        call.invoke(session).unwrap();
        call.outputs().view(0).unwrap().read_into(&mut out).unwrap();
    }
    usage().allocations - before
}

/// The same with calls in flight, each of which waits for the one before; a future of each is
/// polled and dropped.
fn run_async(session: &mut Session, times: usize) {
    let negate = session.function("other.negate").unwrap();
    let mut call = session.prepare(&negate).unwrap();
    call.set(0, session.device().buffer_view(&[4], &[1f32; 4]).unwrap()).unwrap();
    let mut last = call.invoke_async(session, None).unwrap();
    for _ in 0..times {
        let next = call.invoke_async(session, Some(last.fence())).unwrap();
        let mut dropped = Box::pin(next.fence().reached());
        let _ = dropped.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        pollster::block_on(std::mem::replace(&mut last, next)).unwrap();
    }
    last.wait(None).unwrap();
}

/// Whether `calls` take memory for good: IREE's pools grow by blocks of some kilobytes when a call starts while a worker
/// still puts away the ones before, as on a machine that others keep busy, and then stay; a leak of `limit` bytes in all
/// comes back every time.
fn leak(limit: isize, mut calls: impl FnMut()) -> Option<isize> {
    let mut grown = 0;
    for _ in 0..5 {
        let before = usage().bytes;
        calls();
        grown = usage().bytes - before;
        if grown < limit {
            return None;
        }
    }
    Some(grown)
}

#[test]
fn repeated_calls_allocate_no_more_than_the_first_ones() {
    for uri in ["local-sync", "local-task"] {
        let mut session = session(uri);
        let step = session.function("kinds.step").unwrap();
        let mut call = session.prepare(&step).unwrap();
        run(&mut call, &mut session, 100);
        let mut calls = 100;
        let leak = leak(32 * 1100, || {
            let few = run(&mut call, &mut session, 100);
            let many = run(&mut call, &mut session, 1000);
            calls += 1100;
            // What IREE allocates for a submission it frees again: the same for each call.
            assert!(many <= few * 11, "{uri}: {few} allocations in 100 calls, {many} in 1000");
            println!("{uri}: {} allocations a call", many as f64 / 1000.);
        });
        assert_eq!(leak, None, "{uri}: bytes more after each 1100 calls");
        assert_eq!(call.outputs().view(0).unwrap().read::<i32>().unwrap(), [calls]);
    }
    let options = CompileOptions::default().flag("--iree-execution-model=async-external");
    let module = support::module(&support::compile(support::OTHER, &options));
    let device = support::device("local-task");
    let mut session = Session::builder(&device).module(module).build().unwrap();
    run_async(&mut session, 100);
    let leak = leak(32 * 1000, || run_async(&mut session, 1000));
    assert_eq!(leak, None, "bytes more after each 1000 calls in flight");
}
