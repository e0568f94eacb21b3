//! What a call costs beyond IREE itself: `add` on four floats, through `iree-rt` and through the C
//! API, in one run. `python.py` beside this file measures the same call of the Python bindings.
//!
//! ```text
//! cargo bench -p iree-rt --features remember-folder --bench call
//! ```

mod c_api;

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use iree_rt::{CompileOptions, Compiler, Instance, Module, Session, Tensor};

const ADD: &str = include_str!("add.mlir");
const SUM: [f32; 4] = [11., 22., 33., 44.];

fn calls(criterion: &mut Criterion) {
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
    let mut group = criterion.benchmark_group("prepared");
    group.bench_function("C", |bench| bench.iter(|| c.invoke()));
    group.bench_function("iree-rt", |bench| {
        bench.iter(|| prepared.invoke(&mut session).unwrap());
    });
    group.finish();
    assert_eq!(prepared.outputs().view(0).unwrap().read::<f32>().unwrap(), SUM);

    // Lists made for each call, the result taken out.
    let mut group = criterion.benchmark_group("single");
    group.bench_function("C", |bench| bench.iter(|| c.call()));
    group.bench_function("iree-rt", |bench| {
        bench.iter(|| {
            let out = session.call(&add, [&a, &b]).unwrap();
            black_box(out.view(0).unwrap())
        });
    });
    group.bench_function("iree-rt typed", |bench| {
        bench.iter(|| {
            let [a, b] = &tensors;
            black_box(typed.call(&mut session, (a.clone(), b.clone())).unwrap())
        });
    });
    group.finish();

    // A new argument from host memory and the result read, as a program that serves does.
    let mut group = criterion.benchmark_group("served");
    let input = [1f32, 2., 3., 4.];
    let mut out = [0f32; 4];
    group.bench_function("C", |bench| bench.iter(|| c.serve(black_box(&input), &mut out)));
    assert_eq!(std::mem::take(&mut out), SUM);
    group.bench_function("iree-rt", |bench| {
        bench.iter(|| {
            prepared.set(0, device.buffer_view(&[4], black_box(&input)).unwrap()).unwrap();
            prepared.invoke(&mut session).unwrap();
            prepared.outputs().view(0).unwrap().read_into(&mut out).unwrap();
        });
    });
    assert_eq!(out, SUM);
    group.finish();
}

criterion_group!(benches, calls);
criterion_main!(benches);
