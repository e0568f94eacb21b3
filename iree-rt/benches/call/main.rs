//! What a call costs beyond IREE itself: `add` on four floats, through `iree-rt` and through the C
//! API, in one run. `python.py` beside this file measures the same call of the Python bindings.
//!
//! ```text
//! cargo bench -p iree-rt --features remember-folder --bench call
//! ```

mod c_api;

use std::hint::black_box;
use std::time::Instant;

use iree_rt::{CompileOptions, Compiler, Instance, Module, Session, Tensor};

const ADD: &str = include_str!("add.mlir");
const SUM: [f32; 4] = [11., 22., 33., 44.];

/// Rounds of a hundredth of a second each.
const ROUNDS: usize = 301;

/// Prints what a call takes: the median of the rounds, and where nine tenths of them are.
fn measure<T>(name: &str, mut call: impl FnMut() -> T) {
    let mut round = |calls: u32| {
        let begun = Instant::now();
        for _ in 0..calls {
            black_box(call());
        }
        begun.elapsed().as_secs_f64() / f64::from(calls)
    };
    // Found while caches and clocks warm up.
    let mut calls = 1;
    while round(calls) * f64::from(calls) < 1e-2 {
        calls *= 2;
    }
    let mut rounds: Vec<_> = (0..ROUNDS).map(|_| round(calls) * 1e9).collect();
    rounds.sort_by(f64::total_cmp);
    let [low, median, high] = [5, 50, 95].map(|percent| rounds[ROUNDS * percent / 100]);
    println!("{name:24} {median:8.1} ns ({low:.1} to {high:.1})");
}

fn main() {
    let vmfb = Compiler::find().unwrap().compile(ADD, &CompileOptions::default()).unwrap();
    let mut c = c_api::Add::new(&vmfb);
    let device = Instance::get().unwrap().device("local-sync").unwrap();
    // SAFETY: compiled just now for the CPU of this machine.
    let module = unsafe { Module::from_bytes(&vmfb).unwrap() };
    let mut session = Session::builder(&device).module(module).build().unwrap();
    let a = device.buffer_view(&[4], &[1f32, 2., 3., 4.]).unwrap();
    let b = device.buffer_view(&[4], &[10f32, 20., 30., 40.]).unwrap();
    let add = session.function("gate.add").unwrap();
    let typed = session.typed::<(Tensor<f32>, Tensor<f32>), Tensor<f32>>("gate.add").unwrap();
    let tensors = [&a, &b].map(|view| Tensor::try_from(view.clone()).unwrap());
    let mut prepared = session.prepare(&add).unwrap();
    prepared.set(0, &a).unwrap();
    prepared.set(1, &b).unwrap();

    // Arguments set once, the result left where it is.
    measure("prepared, C", || c.invoke());
    measure("prepared, iree-rt", || prepared.invoke(&mut session).unwrap());
    assert_eq!(prepared.outputs().view(0).unwrap().read::<f32>().unwrap(), SUM);

    // Lists made for each call, the result taken out.
    measure("single, C", || c.call());
    measure("single, iree-rt", || session.call(&add, [&a, &b]).unwrap().view(0).unwrap());
    measure("single, iree-rt typed", || {
        let [a, b] = &tensors;
        typed.call(&mut session, (a.clone(), b.clone())).unwrap()
    });

    // A new argument from host memory and the result read, as a program that serves does.
    let input = [1f32, 2., 3., 4.];
    let mut out = [0f32; 4];
    measure("served, C", || c.serve(black_box(&input), &mut out));
    assert_eq!(std::mem::take(&mut out), SUM);
    measure("served, iree-rt", || {
        prepared.set(0, device.buffer_view(&[4], black_box(&input)).unwrap()).unwrap();
        prepared.invoke(&mut session).unwrap();
        prepared.outputs().view(0).unwrap().read_into(&mut out).unwrap();
    });
    assert_eq!(out, SUM);
}
