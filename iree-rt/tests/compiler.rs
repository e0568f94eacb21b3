//! The compiler, as a program and as a library.

mod support;

use std::thread;
use std::time::{Duration, Instant};

use iree_rt::{Canceller, Code, CompileLimits, CompileOptions, Compiler, Session};
use support::{OTHER, device, module};

fn both() -> [Compiler; 2] {
    let library = Compiler::find_library().unwrap();
    // SAFETY: the library of the IREE folder that this test was built with.
    [Compiler::find().unwrap(), unsafe { Compiler::library(library) }.unwrap()]
}

#[test]
fn program_and_library_make_modules_that_run() {
    for compiler in both() {
        assert!(compiler.version().contains("3.13.0"), "{compiler:?}");
        let bytes = compiler.compile(OTHER, &CompileOptions::default()).unwrap();
        let mut session =
            Session::builder(&device("local-sync")).module(module(&bytes)).build().unwrap();
        let negate = session.function("other.negate").unwrap();
        let x = session.device().buffer_view(&[4], &[1f32; 4]).unwrap();
        let out = session.call(&negate, [x]).unwrap().view(0).unwrap();
        assert_eq!(out.read::<f32>().unwrap(), [-1.; 4]);
    }
}

#[test]
fn diagnostics_say_what_and_where() {
    let source =
        "func.func @f(%a: tensor<4xf32>) -> tensor<5xf32> {\n  return %a : tensor<4xf32>\n}";
    for compiler in both() {
        let error = compiler.compile(source, &CompileOptions::default()).unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument);
        let message = error.message();
        assert!(message.contains("tensor<5xf32>"), "{message}");
        assert!(message.contains("input.mlir"), "{message}");
    }
}

#[test]
fn an_unknown_flag_is_named() {
    for compiler in both() {
        let options = CompileOptions::default().flag("--no-such-flag=1");
        let error = compiler.compile(OTHER, &options).unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument);
        assert!(error.message().contains("no-such-flag"), "{error}");
    }
}

#[test]
fn compilations_run_side_by_side() {
    for compiler in both() {
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| compiler.compile(OTHER, &CompileOptions::default()).unwrap());
            }
        });
    }
}

/// A program that takes the compiler longer than the tests wait.
fn large() -> String {
    let mut source = String::from("func.func @f(%0: tensor<64x64xf32>) -> tensor<64x64xf32> {\n");
    for i in 0..400 {
        let width = 64 + i;
        source += &format!(
            "%a{i} = stablehlo.constant dense<{i}.5> : tensor<64x{width}xf32>
             %b{i} = stablehlo.dot_general %a{i}, %a{i}, contracting_dims = [1] x [1]
                 : (tensor<64x{width}xf32>, tensor<64x{width}xf32>) -> tensor<64x64xf32>
             %{} = stablehlo.add %{i}, %b{i} : tensor<64x64xf32>\n",
            i + 1
        );
    }
    source + "return %400 : tensor<64x64xf32>\n}"
}

#[test]
fn a_compilation_ends_when_its_time_is_up() {
    let compiler = Compiler::find().unwrap();
    let limits = CompileLimits::default().timeout(Duration::from_millis(300));
    let begin = Instant::now();
    let error = compiler.compile_within(&large(), &CompileOptions::default(), &limits);
    let error = error.unwrap_err();
    assert_eq!(error.code(), Code::DeadlineExceeded, "{error}");
    assert!(error.message().contains("300ms"), "{error}");
    let elapsed = begin.elapsed();
    assert!(elapsed >= Duration::from_millis(300), "{elapsed:?}");
    assert!(elapsed < Duration::from_secs(3), "{elapsed:?}");
    // The library goes on by itself, but not for us; a small program, as it cannot be stopped.
    // SAFETY: the library of the IREE folder that this test was built with.
    let library = unsafe { Compiler::library(Compiler::find_library().unwrap()) }.unwrap();
    let limits = CompileLimits::default().timeout(Duration::ZERO);
    let error = library.compile_within(OTHER, &CompileOptions::default(), &limits).unwrap_err();
    assert_eq!(error.code(), Code::DeadlineExceeded, "{error}");
    let limits = CompileLimits::default().timeout(Duration::from_millis(2));
    let error = library.compile_within(OTHER, &CompileOptions::default(), &limits).unwrap_err();
    assert_eq!(error.code(), Code::DeadlineExceeded, "{error}");
    // And is none the worse for it.
    let limits = CompileLimits::default().timeout(Duration::from_secs(600));
    library.compile_within(OTHER, &CompileOptions::default(), &limits).unwrap();
}

#[test]
fn a_compilation_is_cancelled_from_another_thread() {
    let compiler = Compiler::find().unwrap();
    let source = large();
    let canceller = Canceller::new();
    let limits = CompileLimits::default().cancel(&canceller);
    let (error, begin) = thread::scope(|scope| {
        let compiling =
            scope.spawn(|| compiler.compile_within(&source, &CompileOptions::default(), &limits));
        thread::sleep(Duration::from_millis(300));
        assert!(!compiling.is_finished());
        let begin = Instant::now();
        canceller.cancel();
        (compiling.join().unwrap().unwrap_err(), begin)
    });
    assert!(begin.elapsed() < Duration::from_secs(2), "{:?}", begin.elapsed());
    assert_eq!(error.code(), Code::Cancelled, "{error}");
    assert!(canceller.is_cancelled());
    // Before it begins, too, and both kinds.
    for compiler in both() {
        let error = compiler.compile_within(OTHER, &CompileOptions::default(), &limits);
        assert_eq!(error.unwrap_err().code(), Code::Cancelled);
    }
}

#[test]
fn within_limits_all_is_as_without() {
    let limits = CompileLimits::default().timeout(Duration::from_secs(600));
    for compiler in both() {
        let options = CompileOptions::default();
        let bytes = compiler.compile_within(OTHER, &options, &limits).unwrap();
        assert!(bytes.len() > 100);
        let error = compiler.compile_within("nonsense", &options, &limits).unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument);
        assert!(error.message().contains("nonsense"), "{error}");
    }
}

#[test]
fn what_is_no_compiler_is_refused() {
    let error = Compiler::process("/no/such/iree-compile").unwrap_err();
    assert_eq!(error.code(), Code::NotFound);
    assert!(error.message().contains("/no/such/iree-compile"), "{error}");
    let error = Compiler::process("/bin/false").unwrap_err();
    assert!(error.message().contains("no IREE compiler"), "{error}");
    let file = tempfile::NamedTempFile::new().unwrap();
    // SAFETY: an empty file is no library.
    let error = unsafe { Compiler::library(file.path()) }.unwrap_err();
    assert!(error.message().contains("no IREE compiler library"), "{error}");
}
