//! Many sessions on many threads at once: made, called, handed over and dropped.
//!
//! Meant for ThreadSanitizer and AddressSanitizer as much as for itself: `cargo xtask sanitize`.

mod support;

use std::sync::mpsc;
use std::thread;

use iree_rt::{BufferView, Call, CompileOptions, Device, Module, Session};
use support::{BOTH_CPU_DEVICES, OTHER, compile, device, kinds, module};

/// More than there are cores, so that they meet in the middle of things.
const THREADS: usize = 6;
const ROUNDS: usize = 12;
const CALLS: usize = 20;

fn open(device: &Device, module: &Module) -> Session {
    Session::builder(device).module(module.clone()).build().unwrap()
}

fn four(device: &Device, value: f32) -> BufferView {
    device.buffer_view(&[4], &[value; 4]).unwrap()
}

/// `a + b`, called `CALLS` times with another `b`.
fn add_up(session: &mut Session, start: f32) {
    let add = session.function("kinds.add").unwrap();
    let mut call = session.prepare(&add).unwrap();
    call.set(0, four(session.device(), start)).unwrap();
    for step in 0..CALLS {
        call.set(1, four(session.device(), step as f32)).unwrap();
        call.invoke(session).unwrap();
        let sum = call.outputs().view(0).unwrap();
        assert_eq!(sum.read::<f32>().unwrap(), [start + step as f32; 4]);
    }
}

#[test]
fn sessions_on_one_device() {
    for uri in BOTH_CPU_DEVICES {
        let (device, module) = (device(uri), module(kinds()));
        thread::scope(|scope| {
            for thread in 0..THREADS {
                let (device, module) = (&device, &module);
                scope.spawn(move || {
                    for round in 0..ROUNDS {
                        let mut session = open(device, module);
                        add_up(&mut session, (thread * ROUNDS + round) as f32);
                    }
                });
            }
        });
    }
}

#[test]
fn devices_modules_and_sessions_of_their_own() {
    for uri in BOTH_CPU_DEVICES {
        thread::scope(|scope| {
            for thread in 0..THREADS {
                scope.spawn(move || {
                    for _ in 0..ROUNDS / 4 {
                        let mut session = open(&device(uri), &module(kinds()));
                        add_up(&mut session, thread as f32);
                    }
                });
            }
        });
    }
}

/// Executables in IREE's portable bytecode have a VM of their own, in the same process.
#[test]
fn bytecode_runs_while_devices_are_opened() {
    let options = CompileOptions::empty()
        .flag("--iree-hal-target-device=local")
        .flag("--iree-hal-local-target-device-backends=vmvx");
    let bytes = compile(OTHER, &options);
    for uri in BOTH_CPU_DEVICES {
        thread::scope(|scope| {
            for thread in 0..THREADS {
                let bytes = &bytes;
                scope.spawn(move || {
                    for _ in 0..ROUNDS / 4 {
                        let mut session = open(&device(uri), &module(bytes));
                        let negate = session.function("other.negate").unwrap();
                        let x = four(session.device(), thread as f32);
                        for _ in 0..CALLS {
                            let out = session.call(&negate, [&x]).unwrap();
                            let y = out.view(0).unwrap().read::<f32>().unwrap();
                            assert_eq!(y, [-(thread as f32); 4]);
                        }
                    }
                });
            }
        });
    }
}

/// The last handle of a device, a module or a session goes on whatever thread comes last.
#[test]
fn handles_dropped_on_other_threads() {
    for uri in BOTH_CPU_DEVICES {
        let (send, receive) = mpsc::channel::<(Call, Session, BufferView)>();
        thread::scope(|scope| {
            for thread in 0..THREADS {
                let send = send.clone();
                scope.spawn(move || {
                    for _ in 0..ROUNDS / 4 {
                        let mut session = open(&device(uri), &module(kinds()));
                        let add = session.function("kinds.add").unwrap();
                        let mut call = session.prepare(&add).unwrap();
                        call.set(0, four(session.device(), thread as f32)).unwrap();
                        call.set(1, four(session.device(), 1.)).unwrap();
                        call.invoke(&mut session).unwrap();
                        let sum = call.outputs().view(0).unwrap();
                        send.send((call, session, sum)).unwrap();
                    }
                });
            }
            drop(send);
            scope.spawn(move || {
                for (at, (mut call, mut session, sum)) in receive.iter().enumerate() {
                    call.invoke(&mut session).unwrap();
                    let again = call.outputs().view(0).unwrap();
                    match at % 3 {
                        0 => drop((call, session)),
                        1 => drop((session, call)),
                        _ => thread::spawn(move || drop(call)).join().unwrap(),
                    }
                    let sum = sum.read::<f32>().unwrap();
                    assert_eq!(sum, again.read::<f32>().unwrap());
                    assert!(sum[0] >= 1. && sum[0] <= THREADS as f32, "{sum:?}");
                }
            });
        });
    }
}

#[test]
fn one_tensor_read_and_passed_by_many() {
    for uri in BOTH_CPU_DEVICES {
        let (device, module) = (device(uri), module(kinds()));
        let shared = four(&device, 5.);
        thread::scope(|scope| {
            for _ in 0..THREADS {
                let (device, module, shared) = (&device, &module, &shared);
                scope.spawn(move || {
                    let mut session = open(device, module);
                    let add = session.function("kinds.add").unwrap();
                    for _ in 0..CALLS {
                        let out = session.call(&add, (shared, shared)).unwrap();
                        let sum = out.view(0).unwrap().read::<f32>().unwrap();
                        assert_eq!(sum, [10.; 4]);
                        assert_eq!(shared.clone().read::<f32>().unwrap(), [5.; 4]);
                    }
                });
            }
        });
    }
}

/// A call that fails on one thread is no matter to the others.
#[test]
fn errors_stay_where_they_are() {
    let (device, module) = (device("local-task"), module(kinds()));
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (device, module) = (&device, &module);
            scope.spawn(move || {
                let mut session = open(device, module);
                let any = session.function("kinds.double_any").unwrap();
                for round in 0..ROUNDS {
                    // Every other thread passes the wrong shape.
                    let columns = if thread % 2 == 0 { 2 } else { 3 };
                    let data = vec![round as f32; columns];
                    let x = device.buffer_view(&[1, columns], &data).unwrap();
                    let result = session.call(&any, [x]);
                    assert_eq!(result.is_ok(), columns == 2, "{result:?}");
                    assert!(session.function("kinds.nothing").is_err());
                }
                add_up(&mut session, 1.);
            });
        }
    });
}
