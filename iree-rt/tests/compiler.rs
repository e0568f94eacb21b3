//! The compiler, as a program and as a library.

mod support;

use std::fs;
#[cfg(unix)]
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use iree_rt::{
    Canceller, Code, CompileLimits, CompileOptions, Compiler, InputType, OptLevel, Session, Source,
};
use support::{OTHER, device, module};

fn both() -> [Compiler; 2] {
    let library = Compiler::find_library().unwrap();
    // SAFETY: the library of the IREE folder that this test was built with.
    [Compiler::find().unwrap(), unsafe { Compiler::library(library) }.unwrap()]
}

/// Runs what was made of `OTHER`.
fn negates(bytes: &[u8]) {
    let mut session =
        Session::builder(&device("local-sync")).module(module(bytes)).build().unwrap();
    let negate = session.function("other.negate").unwrap();
    let x = session.device().buffer_view(&[4], &[1f32; 4]).unwrap();
    let out = session.call(&negate, [x]).unwrap().view(0).unwrap();
    assert_eq!(out.read::<f32>().unwrap(), [-1.; 4]);
}

#[test]
fn program_and_library_make_modules_that_run() {
    for compiler in both() {
        assert!(compiler.version().contains("3.13.0"), "{compiler:?}");
        negates(&compiler.compile(OTHER, &CompileOptions::default()).unwrap());
    }
}

/// IREE starts its linker by a shell.
#[cfg(target_os = "linux")]
#[test]
fn a_compiler_in_a_folder_with_a_space_in_its_name_links() {
    let found = Compiler::find().unwrap().path().canonicalize().unwrap();
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let place = folder.path().join("it's a folder");
    fs::create_dir(&place).unwrap();
    for name in ["iree-compile", "iree-lld", "libIREECompiler.so"] {
        // It looks for its linker where it lies itself, whatever links lead to it.
        let (from, to) = (found.with_file_name(name), place.join(name));
        fs::hard_link(&from, &to).or_else(|_| fs::copy(&from, &to).map(drop)).unwrap();
    }
    let compiler = Compiler::process(place.join("iree-compile")).unwrap();
    negates(&compiler.compile(OTHER, &CompileOptions::default()).unwrap());
}

/// `OTHER` as MLIR bytecode: what the compiler makes of it before it does anything.
fn bytecode() -> Vec<u8> {
    let options = CompileOptions::empty().flag("--compile-to=input").flag("--emit-mlir-bytecode");
    Compiler::find().unwrap().compile(OTHER, &options).unwrap()
}

#[test]
fn bytes_and_files_make_what_text_makes() {
    let bytecode = bytecode();
    assert!(bytecode.starts_with(b"ML\xefR"), "{:?}", &bytecode[..8]);
    let folder = tempfile::tempdir().unwrap();
    let (text_file, bytecode_file) = (folder.path().join("a.mlir"), folder.path().join("b.mlirbc"));
    fs::write(&text_file, OTHER).unwrap();
    fs::write(&bytecode_file, &bytecode).unwrap();
    let (options, limits) = (CompileOptions::default(), CompileLimits::default());
    for compiler in both() {
        for source in [
            Source::from(OTHER.as_bytes()),
            Source::from(&bytecode),
            Source::from(&text_file),
            Source::from(bytecode_file.as_path()),
        ] {
            negates(&compiler.compile(source.clone(), &options).unwrap());
            negates(&compiler.compile_within(source, &options, &limits).unwrap());
        }
    }
}

#[test]
fn files_are_named_in_errors() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("model.mlir");
    fs::write(&file, "nonsense").unwrap();
    let none = folder.path().join("none.mlir");
    let options = CompileOptions::default();
    for compiler in both() {
        let error = compiler.compile(&file, &options).unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument);
        assert!(error.message().contains("model.mlir:1:1"), "{error}");
        let error = compiler.compile(&none, &options).unwrap_err();
        assert_eq!(error.code(), Code::NotFound);
        assert!(error.message().contains("none.mlir"), "{error}");
        // A name where text belongs.
        let error = compiler.compile(file.to_str().unwrap(), &options).unwrap_err();
        assert!(error.message().contains("give it as `Path::new"), "{error}");
        // What only begins like bytecode.
        let error = compiler.compile(&bytecode()[..100], &options).unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument, "{error}");
    }
}

#[test]
fn an_operator_of_onnx_that_is_not_supported_is_named() {
    let source = "func.func @main(%a: !torch.vtensor<[4],f32>) -> !torch.vtensor<[4],f32>
        attributes {torch.onnx_meta.opset_version = 17 : si64} {
      %0 = torch.operator \"onnx.NoSuch\"(%a)
          : (!torch.vtensor<[4],f32>) -> !torch.vtensor<[4],f32>
      return %0 : !torch.vtensor<[4],f32>
    }";
    for compiler in both() {
        for options in
            [CompileOptions::default(), CompileOptions::default().input_type(InputType::Onnx)]
        {
            let error = compiler.compile(source, &options).unwrap_err();
            assert_eq!(error.code(), Code::InvalidArgument);
            let message = error.message();
            assert!(message.contains("the ONNX operator NoSuch"), "{message}");
            assert!(message.contains("input.mlir:3"), "{message}");
        }
    }
}

#[test]
fn options_are_taken_by_the_compiler_and_once() {
    let options = CompileOptions::default()
        .opt_level(OptLevel::O3)
        .opt_level(OptLevel::O2)
        .data_tiling(false)
        .fast()
        .input_type(InputType::Auto)
        .async_external()
        .target_cpu("generic");
    let count = |name: &str| options.flags.iter().filter(|flag| flag.starts_with(name)).count();
    assert_eq!(count("--iree-opt-level="), 1);
    assert_eq!(count("--iree-opt-data-tiling="), 1);
    assert_eq!(count("--iree-llvmcpu-target-cpu="), 1);
    let mut all = vec![options];
    all.extend(
        [OptLevel::O0, OptLevel::O1, OptLevel::O2, OptLevel::O3]
            .map(|level| CompileOptions::default().opt_level(level)),
    );
    all.extend(
        [InputType::Auto, InputType::None, InputType::StableHlo]
            .map(|input_type| CompileOptions::default().input_type(input_type)),
    );
    // A function that is none of any dialect.
    let source = "func.func @f(%a: i32) -> i32 { return %a : i32 }";
    // SAFETY: the library of the IREE folder that this test was built with.
    let compiler = unsafe { Compiler::library(Compiler::find_library().unwrap()) }.unwrap();
    for options in all {
        compiler.compile(source, &options).unwrap_or_else(|e| panic!("{options:?}: {e}"));
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

/// More products than the compiler gets done while the tests wait, on any machine.
const ENDLESS: usize = 4000;

/// A program that takes the compiler a quarter of a second, or so, for each of its products.
fn large(products: usize) -> String {
    let mut source = String::from("func.func @f(%0: tensor<64x64xf32>) -> tensor<64x64xf32> {\n");
    for i in 0..products {
        let width = 64 + i;
        source += &format!(
            "%a{i} = stablehlo.constant dense<{i}.5> : tensor<64x{width}xf32>
             %b{i} = stablehlo.dot_general %a{i}, %a{i}, contracting_dims = [1] x [1]
                 : (tensor<64x{width}xf32>, tensor<64x{width}xf32>) -> tensor<64x64xf32>
             %{} = stablehlo.add %{i}, %b{i} : tensor<64x64xf32>\n",
            i + 1
        );
    }
    source + &format!("return %{products} : tensor<64x64xf32>\n}}")
}

#[test]
fn a_compilation_ends_when_its_time_is_up() {
    let compiler = Compiler::find().unwrap();
    let limits = CompileLimits::default().timeout(Duration::from_millis(300));
    let begin = Instant::now();
    let error = compiler.compile_within(&large(ENDLESS), &CompileOptions::default(), &limits);
    let error = error.unwrap_err();
    assert_eq!(error.code(), Code::DeadlineExceeded, "{error}");
    assert!(error.message().contains("300ms"), "{error}");
    let elapsed = begin.elapsed();
    assert!(elapsed >= Duration::from_millis(300), "{elapsed:?}");
    assert!(elapsed < Duration::from_secs(60), "{elapsed:?}");
    // The library goes on by itself, but not for us; some seconds of it, as it cannot be stopped.
    // SAFETY: the library of the IREE folder that this test was built with.
    let library = unsafe { Compiler::library(Compiler::find_library().unwrap()) }.unwrap();
    let limits = CompileLimits::default().timeout(Duration::ZERO);
    let error = library.compile_within(OTHER, &CompileOptions::default(), &limits).unwrap_err();
    assert_eq!(error.code(), Code::DeadlineExceeded, "{error}");
    let limits = CompileLimits::default().timeout(Duration::from_millis(2));
    let error = library.compile_within(&large(12), &CompileOptions::default(), &limits);
    let error = error.unwrap_err();
    assert_eq!(error.code(), Code::DeadlineExceeded, "{error}");
    // And is none the worse for it.
    let limits = CompileLimits::default().timeout(Duration::from_secs(600));
    library.compile_within(OTHER, &CompileOptions::default(), &limits).unwrap();
}

#[test]
fn a_compilation_is_cancelled_from_another_thread() {
    let compiler = Compiler::find().unwrap();
    let source = large(ENDLESS);
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
    assert!(begin.elapsed() < Duration::from_secs(60), "{:?}", begin.elapsed());
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
    let limits = CompileLimits::default().timeout(Duration::from_secs(600)).single_thread(true);
    for compiler in both() {
        let options = CompileOptions::default();
        negates(&compiler.compile_within(OTHER, &options, &limits).unwrap());
        let error = compiler.compile_within("nonsense", &options, &limits).unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument);
        assert!(error.message().contains("nonsense"), "{error}");
    }
}

#[test]
fn warnings_are_told_though_it_compiles() {
    let limits = CompileLimits::default();
    // For what CPU is not said.
    let unsaid = CompileOptions::empty()
        .flag("--iree-hal-target-device=local")
        .flag("--iree-hal-local-target-device-backends=llvm-cpu");
    for compiler in both() {
        let compiled = compiler.compile_with_diagnostics(OTHER, &unsaid, &limits).unwrap();
        let told = &compiled.diagnostics;
        assert!(told.contains("warning") && told.contains("generic CPU"), "{compiler:?}: {told}");
        negates(&compiled.module);
        let quiet = CompileOptions::default();
        let compiled = compiler.compile_with_diagnostics(OTHER, &quiet, &limits).unwrap();
        assert_eq!(compiled.diagnostics, "", "{compiler:?}");
    }
}

/// By a program that makes of its source what it was told. Another process writes it: this one, whose
/// threads start others, could not run what it has open.
#[cfg(unix)]
#[test]
fn the_program_is_told_to_work_on_one_thread() {
    const ECHO: &str = r#"#!/bin/sh
        [ "$1" = --version ] && echo "version 0" && exit
        told="$*"
        while [ "$1" != -o ]; do shift; done
        echo "$told" > "$2""#;
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("iree-compile");
    let mut write = Command::new("sh");
    write.args(["-c", r#"echo "$1" > "$0" && chmod +x "$0""#]).arg(&program).arg(ECHO);
    assert!(write.status().unwrap().success());
    let compiler = Compiler::process(program).unwrap();
    let told = |single| {
        let limits = CompileLimits::default().single_thread(single);
        let options = CompileOptions::empty().flag("--a").verify(false);
        String::from_utf8(compiler.compile_within(OTHER, &options, &limits).unwrap()).unwrap()
    };
    assert!(told(false).starts_with("--a --verify=false -o"), "{}", told(false));
    let single = told(true);
    assert!(single.starts_with("--a --verify=false --mlir-disable-threading -o"), "{single}");
}

#[test]
fn sources_are_checked_where_the_work_of_passes_is_not() {
    let unverified = CompileOptions::default().verify(true).verify(false);
    let wrong = "func.func @f() -> i32 {
      %0 = arith.constant 1 : i64
      return %0 : i64
    }";
    for compiler in both() {
        negates(&compiler.compile(OTHER, &unverified).unwrap());
        let error = compiler.compile(wrong, &unverified).unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument);
        assert!(error.message().contains("return operand 0 ('i64')"), "{error}");
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
