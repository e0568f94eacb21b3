//! The compiler, as a program and as a library.

mod support;

use std::thread;

use iree_rt::{Code, CompileOptions, Compiler, Session};
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
        let out = session.call(&negate, [x.into()]).unwrap().buffer_view(0).unwrap();
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
