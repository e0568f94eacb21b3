//! A prepared call, invoked again and again, takes no more memory than the first times.
//!
//! Counts the process's host allocations, so this program has one test.

mod support;

use iree_rt::{Call, Session};
use iree_sys::allocator::usage;
use support::session;

/// Allocations of `times` steps, each with a new scalar and a result read.
fn run(call: &mut Call, session: &mut Session, times: usize) -> usize {
    let before = usage().allocations;
    let mut out = [0i32];
    for _ in 0..times {
        call.set(0, 1).unwrap();
        call.invoke(session).unwrap();
        call.output_view(0).unwrap().read_into(&mut out).unwrap();
    }
    usage().allocations - before
}

#[test]
fn repeated_calls_allocate_no_more_than_the_first_ones() {
    for uri in ["local-sync", "local-task"] {
        let mut session = session(uri);
        let step = session.function("kinds.step").unwrap();
        let mut call = session.prepare(&step).unwrap();
        run(&mut call, &mut session, 100);
        let live = usage();
        let few = run(&mut call, &mut session, 100);
        let many = run(&mut call, &mut session, 1000);
        let grown = usage().bytes.saturating_sub(live.bytes);
        // A call may start while a worker still puts away the last one: IREE's pools then grow by a
        // block, once (8352 bytes, no more after 34000 calls). A leak of 32 bytes a call is more.
        assert!(grown < 32 * 1100, "{uri}: {grown} bytes more after 1100 calls");
        // What IREE allocates for a submission it frees again: the same for each call.
        assert!(many <= few * 11, "{uri}: {few} allocations in 100 calls, {many} in 1000");
        assert_eq!(call.output_view(0).unwrap().read::<i32>().unwrap(), [1200]);
        println!("{uri}: {} allocations a call", many as f64 / 1000.);
    }
}
