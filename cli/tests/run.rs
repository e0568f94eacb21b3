//! `iree-llm run`: any module, values of every kind, and what the C tool prints.

#![cfg(feature = "iree")]

mod support;

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use iree_rt::{CompileOptions, Compiler, ParameterIndex};
use support::{fails, json, program, succeeds};

const MODULE: &str = "
module @kinds {
  util.global private mutable @count = 0 : i32
  func.func @add(%a: tensor<4xf32>, %b: tensor<4xf32>) -> tensor<4xf32> {
    %0 = stablehlo.add %a, %b : tensor<4xf32>
    return %0 : tensor<4xf32>
  }
  func.func @mixed(%a: i32, %b: f32, %c: tensor<2x2xi32>, %d: i64, %e: f64)
      -> (i32, f32, tensor<2x2xi32>, i64, f64) {
    %0 = arith.addi %a, %a : i32
    %1 = arith.addf %b, %b : f32
    %2 = stablehlo.add %c, %c : tensor<2x2xi32>
    return %0, %1, %2, %d, %e : i32, f32, tensor<2x2xi32>, i64, f64
  }
  func.func @types(%a: tensor<2xf16>, %b: tensor<2xbf16>, %c: tensor<3xi1>, %d: tensor<f64>,
                   %e: tensor<2xi8>)
      -> (tensor<2xf16>, tensor<2xbf16>, tensor<3xi1>, tensor<f64>, tensor<2xi8>) {
    %0 = stablehlo.add %a, %a : tensor<2xf16>
    %1 = stablehlo.add %b, %b : tensor<2xbf16>
    %2 = stablehlo.not %c : tensor<3xi1>
    %3 = stablehlo.add %d, %d : tensor<f64>
    %4 = stablehlo.add %e, %e : tensor<2xi8>
    return %0, %1, %2, %3, %4
        : tensor<2xf16>, tensor<2xbf16>, tensor<3xi1>, tensor<f64>, tensor<2xi8>
  }
  func.func @any(%a: tensor<?x3xf32>) -> tensor<?x3xf32> {
    %0 = stablehlo.negate %a : tensor<?x3xf32>
    return %0 : tensor<?x3xf32>
  }
  func.func @nothing() {
    return
  }
}";

const ONE: &str = "
module @one {
  func.func @negate(%a: tensor<2xf32>) -> tensor<2xf32> {
    %0 = stablehlo.negate %a : tensor<2xf32>
    return %0 : tensor<2xf32>
  }
}";

/// Takes weights from the scope `model`, and `bias` from none.
const WEIGHTS: &str = r#"
module @weights {
  util.global private @a = #flow.parameter.named<"model"::"a"> : tensor<2xf32>
  util.global private @b = #flow.parameter.named<"model"::"b"> : tensor<2xf32>
  util.global private @bias = #flow.parameter.named<"bias"> : tensor<2xf32>
  func.func @apply(%x: tensor<2xf32>) -> (tensor<2xf32>, tensor<2xf32>) {
    %a = util.global.load @a : tensor<2xf32>
    %b = util.global.load @b : tensor<2xf32>
    %bias = util.global.load @bias : tensor<2xf32>
    %0 = stablehlo.multiply %x, %a : tensor<2xf32>
    %1 = stablehlo.add %0, %bias : tensor<2xf32>
    %2 = stablehlo.multiply %x, %b : tensor<2xf32>
    return %1, %2 : tensor<2xf32>, tensor<2xf32>
  }
}"#;

/// What `iree-import-onnx` writes: no reflection, and two forms of the function when it is compiled.
const ONNX: &str = r#"
module {
  func.func @main_graph(%arg0: !torch.vtensor<[?],f32>) -> !torch.vtensor<[?],f32>
      attributes {torch.onnx_meta.ir_version = 9 : si64, torch.onnx_meta.opset_version = 17 : si64} {
    %0 = torch.operator "onnx.Neg"(%arg0) : (!torch.vtensor<[?],f32>) -> !torch.vtensor<[?],f32>
    return %0 : !torch.vtensor<[?],f32>
  }
}"#;

/// A folder with `kinds.vmfb`, `one.vmfb`, `weights.vmfb` and `onnx.vmfb`, which all tests of a build share.
fn modules() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        // Or else the compiler makes f32 of f64.
        let options = CompileOptions::default().flag("--iree-input-demote-f64-to-f32=false");
        let onnx = CompileOptions::default().flag("--iree-input-type=onnx");
        let compiler = Compiler::find().unwrap();
        let modules = [
            ("kinds", MODULE, &options),
            ("one", ONE, &options),
            ("weights", WEIGHTS, &options),
            ("onnx", ONNX, &onnx),
        ];
        let mut hasher = DefaultHasher::new();
        (compiler.version(), format!("{modules:?}")).hash(&mut hasher);
        let name = format!("run-modules-{:016x}", hasher.finish());
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::create_dir_all(&folder).unwrap();
        for (name, source, options) in modules {
            let path = folder.join(name).with_extension("vmfb");
            if path.exists() {
                continue;
            }
            let bytes = compiler.compile(source, options).unwrap();
            // Renamed into place: a test in another process may be reading it.
            let file = tempfile::NamedTempFile::new_in(&folder).unwrap();
            std::fs::write(file.path(), bytes).unwrap();
            file.persist(path).unwrap();
        }
        folder
    })
}

fn module(name: &str) -> String {
    modules().join(name).with_extension("vmfb").to_str().unwrap().to_owned()
}

/// A command line: the module, the function, and `rest`.
fn line<'a>(module: &'a str, function: &'a str, rest: &[&'a str]) -> Vec<&'a str> {
    [&["run", "-m", module, "-f", function], rest].concat()
}

fn path(folder: &tempfile::TempDir, name: &str) -> String {
    folder.path().join(name).to_str().unwrap().to_owned()
}

/// Command lines of function and flags that both programs take.
const SAME: &[(&str, &[&str])] = &[
    ("add", &["--input=4xf32=1,2,3,4", "--input=4xf32=10"]),
    ("add", &["--input=4xf32=[1.5 -2.25 nan][inf]", "--input=4xf32"]),
    ("add", &["--input=4xf32=1e10 1e-10 123456789 0.1", "--input=4xf32=0"]),
    (
        "mixed",
        &[
            "--input=3",
            "--input=2.5",
            "--input=2x2xi32=[[1 2][3 4]]",
            "--input=-5",
            "--input=1e300",
        ],
    ),
    (
        "mixed",
        &["--input=0x10", "--input=-1e-9", "--input=2x2xi32", "--input=(null)", "--input=1e20"],
    ),
    (
        "types",
        &[
            "--input=2xf16=1 0.1",
            "--input=2xbf16=3.14 -1",
            "--input=3xi1=01 00 01",
            "--input=f64=0.1",
            "--input=2xi8=-100 100",
        ],
    ),
    ("any", &["--input=2x3xf32=1 2 3 4 5 6"]),
    ("any", &["--input=2x3xf32=7", "--output_max_element_count=4"]),
    ("nothing", &[]),
    ("add", &["--input=4xf32=1", "--input=4xf32=2", "--expected_output=4xf32=3"]),
    ("add", &["--input=4xf32=1", "--input=4xf32=2", "--expected_output=4xf32=3.00005"]),
    ("add", &["--input=4xf32=1", "--input=4xf32=2", "--output=-"]),
    ("add", &["--input=4xf32=1", "--input=4xf32=2", "--output="]),
];

/// What the C tool printed for [`SAME`].
#[test]
fn results_are_printed_as_the_c_tool_does() {
    let kinds = module("kinds");
    let printed: String =
        SAME.iter().map(|(function, rest)| succeeds(&line(&kinds, function, rest))).collect();
    assert_eq!(printed, include_str!("run.txt"));
}

/// With `IREE_RUN_MODULE` naming the program of `pip install iree-base-runtime==3.13.0`.
#[test]
fn the_c_tool_prints_the_same() {
    let Some(tool) = std::env::var_os("IREE_RUN_MODULE") else {
        eprintln!("not tested: set IREE_RUN_MODULE to the iree-run-module of PyPI");
        return;
    };
    let kinds = module("kinds");
    for (function, rest) in SAME {
        let output = Command::new(&tool)
            .args([format!("--module={kinds}"), format!("--function={function}")])
            .args(*rest)
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        let theirs = String::from_utf8(output.stdout).unwrap();
        assert_eq!(succeeds(&line(&kinds, function, rest)), theirs, "{function} {rest:?}");
    }
    // And the same files.
    let folder = tempfile::tempdir().unwrap();
    let file = path(&folder, "types.npy");
    // bf16 has no name in NumPy, and the C tool does not write it.
    let outputs: Vec<_> = ["@", "", "+", "+", "+"]
        .map(|mode| format!("--output={mode}{}", if mode.is_empty() { "" } else { &file }))
        .into();
    let (function, inputs) = SAME[5];
    let output = Command::new(&tool)
        .args([format!("--module={kinds}"), format!("--function={function}")])
        .args(inputs)
        .args(&outputs)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let theirs = std::fs::read(&file).unwrap();
    let mut ours = line(&kinds, function, inputs);
    ours.extend(outputs.iter().map(String::as_str));
    succeeds(&ours);
    assert_eq!(std::fs::read(&file).unwrap(), theirs);
}

#[test]
fn values_come_from_files_and_go_to_files() {
    let folder = tempfile::tempdir().unwrap();
    let (sum, raw, both) =
        (path(&folder, "sum.npy"), path(&folder, "b.bin"), path(&folder, "two.npy"));
    std::fs::write(&raw, [1f32, 2., 3., 4.].map(f32::to_ne_bytes).concat()).unwrap();
    let kinds = module("kinds");
    let binary = format!("4xf32=@{raw}");
    let to = |mode: char, path: &str| format!("{mode}{path}");
    let add = |a: &str, b: &str, out: &str| {
        succeeds(&line(&kinds, "add", &["-i", a, "-i", b, "-o", out]))
    };
    assert_eq!(add(&binary, "4xf32=10", &to('@', &sum)), "EXEC @add\n");
    // 11 12 13 14, then twice that, in one file; then both are added.
    let saved = to('@', &sum);
    add(&saved, "4xf32=0", &to('@', &both));
    add(&saved, &saved, &to('+', &both));
    let (first, next, all) = (to('@', &both), to('+', &both), to('*', &both));
    assert_eq!(add(&first, &next, "-"), "EXEC @add\nhal.buffer_view\n4xf32=33 36 39 42\n");
    assert_eq!(
        succeeds(&line(&kinds, "add", &["-i", &all])),
        "EXEC @add\nresult[0]: hal.buffer_view\n4xf32=33 36 39 42\n"
    );
    // Raw bytes out, and what was expected from a file.
    add(&saved, "4xf32=0", &to('@', &raw));
    let expected = [11f32, 12., 13., 14.].map(f32::to_ne_bytes).concat();
    assert_eq!(std::fs::read(&raw).unwrap(), expected);
    let compared = line(&kinds, "add", &["-i", &binary, "-i", "4xf32", "-e", &saved]);
    assert!(succeeds(&compared).contains("[SUCCESS]"));
}

#[test]
fn scalars_go_to_files_and_come_from_them() {
    let folder = tempfile::tempdir().unwrap();
    let file = path(&folder, "scalars.npy");
    let (first, next) = (format!("@{file}"), format!("+{file}"));
    let kinds = module("kinds");
    let inputs = ["-i", "3", "-i", "2.5", "-i", "2x2xi32=1", "-i", "7", "-i", "1"];
    let mut write = line(&kinds, "mixed", &inputs);
    for output in [&first, &next, &next, &next, &next] {
        write.extend(["-o", output.as_str()]);
    }
    succeeds(&write);
    let all = format!("*{file}");
    let text = succeeds(&line(&kinds, "mixed", &["-i", &all]));
    assert!(text.contains("i32=12") && text.contains("f32=10"), "{text}");
    assert!(text.contains("i64=7") && text.contains("f64=1"), "{text}");
    let wrong = ["-i", &first, "-i", &first, "-i", "2x2xi32", "-i", "7", "-i", "1"];
    let message = fails(1, &line(&kinds, "mixed", &wrong));
    assert!(message.contains("scalars.npy holds i32, and f32 is needed"), "{message}");
}

#[test]
fn outputs_are_checked_before_the_call_and_one_that_fails_keeps_none_of_the_others() {
    let folder = tempfile::tempdir().unwrap();
    let [old, new] = ["old", "new"].map(|name| path(&folder, name));
    let [to_old, to_new] = [&old, &new].map(|path| format!("@{path}"));
    std::fs::write(&old, "before").unwrap();
    let kinds = module("kinds");
    let inputs = ["-i", "3", "-i", "2.5", "-i", "2x2xi32=1", "-i", "7", "-i", "1"];
    let outputs = |all: [&str; 5]| {
        let flags = all.map(|spec| format!("--output={spec}"));
        let flags: Vec<_> = inputs.into_iter().chain(flags.iter().map(String::as_str)).collect();
        line(&kinds, "mixed", &flags).iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let unchanged = || {
        assert_eq!(std::fs::read_to_string(&old).unwrap(), "before");
        assert!(!Path::new(&new).exists());
    };
    for wrong in ["wrong", "@/nowhere/file"] {
        let line = outputs([&to_old, &to_new, wrong, "-", "-"]);
        let message = fails(1, &line.iter().map(String::as_str).collect::<Vec<_>>());
        assert!(message.contains(&wrong.replace('@', "")), "{message}");
        unchanged();
    }
    // Of a call that fails nothing is written.
    for to in [&to_old, &to_new] {
        fails(1, &line(&kinds, "add", &["-i", "4xf32", "-i", "4xi32", "-o", to]));
        unchanged();
    }
    if Path::new("/dev/full").exists() {
        let line = outputs(["-", "@/dev/full", &to_old, &to_new, "-"]);
        let run = program(&line.iter().map(String::as_str).collect::<Vec<_>>()).assert().code(1);
        let output = run.get_output();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "EXEC @mixed\ni32=6\nf64=1\n");
        let message = String::from_utf8_lossy(&output.stderr);
        assert!(message.starts_with("error: result[1]: /dev/full"), "{message}");
        assert_eq!(std::fs::read(&old).unwrap(), [2i32; 4].map(i32::to_ne_bytes).concat());
        assert_eq!(std::fs::read(&new).unwrap(), 7i64.to_ne_bytes());
    }
}

#[test]
fn npy_keeps_types_that_numpy_has_no_name_for() {
    let folder = tempfile::tempdir().unwrap();
    let files: Vec<_> =
        (0..5).map(|at| format!("@{}", path(&folder, &format!("{at}.npy")))).collect();
    let kinds = module("kinds");
    let mut write = line(&kinds, "types", SAME[5].1);
    for file in &files {
        write.extend(["-o", file.as_str()]);
    }
    succeeds(&write);
    let mut read = line(&kinds, "types", &[]);
    for file in &files {
        read.extend(["-i", file.as_str()]);
    }
    let text = succeeds(&read);
    for expected in
        ["2xf16=4 0.399902", "2xbf16=12.5625 -4", "3xi1=01 00 01", "f64=0.4", "2xi8=112 -112"]
    {
        assert!(text.contains(expected), "{expected} in {text}");
    }
}

/// Archives of two floats by name, of each format: `a` and `b` alone, both, and `bias`.
fn archives(folder: &tempfile::TempDir) -> [String; 4] {
    let write = |name: &str, bytes: &[u8]| {
        let path = path(folder, name);
        std::fs::write(&path, bytes).unwrap();
        path
    };
    let floats = |values: &[f32]| values.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<_>>();

    let header = r#"{"b":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;
    let header = [&(header.len() as u64).to_le_bytes(), header.as_bytes()].concat();
    let safetensors = [header, floats(&[7., 8.])].concat();

    // One tensor and nothing about it; its name, one dimension of two, F32, at 0; aligned to 32.
    let mut gguf = [&b"GGUF"[..], &3u32.to_le_bytes(), &1u64.to_le_bytes(), &[0; 8]].concat();
    gguf.extend([&1u64.to_le_bytes(), &b"a"[..], &1u32.to_le_bytes()].concat());
    gguf.extend([&2u64.to_le_bytes()[..], &[0; 4], &[0; 8]].concat());
    gguf.resize(gguf.len().next_multiple_of(32), 0);
    gguf.extend(floats(&[10., 100.]));

    let (both, bias) = (path(folder, "both.irpa"), path(folder, "bias.irpa"));
    let index = ParameterIndex::new().unwrap();
    index.add("a", &[10f32, 100.], b"").unwrap();
    index.add("b", &[7f32, 8.], b"").unwrap();
    index.write_archive(&both).unwrap();
    let index = ParameterIndex::new().unwrap();
    index.add_splat("bias", 0.5f32, 8, b"").unwrap();
    index.write_archive(&bias).unwrap();
    [write("a.gguf", &gguf), write("b.safetensors", &safetensors), both, bias]
}

/// As the C tool, if there is one, prints them.
#[test]
fn parameters_come_from_archives() {
    let folder = tempfile::tempdir().unwrap();
    let [a, b, both, bias] = archives(&folder);
    let scoped = |path: &str| format!("--parameters=model={path}");
    let bias = format!("--parameters={bias}");
    let weights = module("weights");
    let expected = "EXEC @apply\nresult[0]: hal.buffer_view\n2xf32=10.5 200.5\n\
                    result[1]: hal.buffer_view\n2xf32=7 16\n";
    for files in [vec![scoped(&both), bias.clone()], vec![bias.clone(), scoped(&a), scoped(&b)]] {
        for mode in [None, Some("file"), Some("preload")] {
            let mut rest = vec!["--input=2xf32=1 2".to_owned()];
            rest.extend(files.iter().cloned());
            rest.extend(mode.map(|mode| format!("--parameter_mode={mode}")));
            let rest: Vec<_> = rest.iter().map(String::as_str).collect();
            assert_eq!(succeeds(&line(&weights, "apply", &rest)), expected, "{rest:?}");
            let Some(tool) = std::env::var_os("IREE_RUN_MODULE") else { continue };
            let output = Command::new(tool)
                .args([format!("--module={weights}"), "--function=apply".into()])
                .args(&rest)
                .output()
                .unwrap();
            assert!(output.status.success(), "{output:?}");
            assert_eq!(String::from_utf8(output.stdout).unwrap(), expected, "{rest:?}");
        }
    }
}

#[test]
fn what_is_wrong_with_parameters_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let [a, b, both, bias] = archives(&folder);
    let weights = module("weights");
    let says = |files: &[&str], expected: &str| {
        let mut rest = vec!["--input=2xf32"];
        rest.extend(files.iter().flat_map(|file| ["--parameters", file]));
        let message = fails(1, &line(&weights, "apply", &rest));
        assert!(message.contains(expected), "{message}");
    };
    let scoped = |path: &str| format!("model={path}");
    says(&[], "give --parameters [SCOPE=]FILE: ");
    says(&[], "a module takes parameters");
    says(&[&scoped(&a), &bias], "no parameter found in index with key 'b'");
    says(&[&scoped(&both)], "no provider registered that handles scopes like ''");
    says(&[&scoped(&both), &scoped(&b), &bias], "b.safetensors: the index has a parameter `b`");
    says(&["model=/no/such.irpa"], "/no/such.irpa");
    says(&["model.bin"], ".irpa, .gguf and .safetensors");
    std::fs::write(&a, b"GGUF and no more").unwrap();
    says(&[&scoped(&a)], "a.gguf");
}

#[test]
fn the_function_is_found() {
    let (kinds, one) = (module("kinds"), module("one"));
    let negated = "EXEC @negate\nresult[0]: hal.buffer_view\n2xf32=-1 -1\n";
    assert_eq!(succeeds(&["run", "-m", &one, "-i", "2xf32=1"]), negated);
    let two = ["run", "-m", &one, "-m", &kinds];
    let full = [&two[..], &["-f", "one.negate", "-i", "2xf32=1"]].concat();
    assert_eq!(succeeds(&full), negated);
    assert!(succeeds(&[&two[..], &["-f", "nothing"]].concat()).contains("EXEC @nothing"));
    let bytes = std::fs::read(&one).unwrap();
    let mut piped = program(&["run", "-m", "-", "-i", "2xf32=1"]);
    let output = piped.write_stdin(bytes).assert().success().get_output().stdout.clone();
    assert_eq!(String::from_utf8(output).unwrap(), negated);

    let several = fails(1, &["run", "-m", &kinds]);
    assert!(several.contains("--function: add, mixed"), "{several}");
    let unknown = fails(1, &["run", "-m", &kinds, "-f", "subtract"]);
    assert!(unknown.contains("`kinds.add`"), "{unknown}");
}

/// Two forms of one function are one.
#[test]
fn the_only_function_of_an_onnx_model_is_found() {
    let onnx = module("onnx");
    let out = succeeds(&["run", "-m", &onnx, "-i", "2xf32=1 -2"]);
    assert_eq!(out, "EXEC @main_graph\nresult[0]: hal.buffer_view\n2xf32=-1 2\n");
    let out = succeeds(&["inspect", &onnx]);
    assert_eq!(out, "module @module\n  @main_graph(ref) -> (ref)  [async]\n");
    let out = succeeds(&["inspect", &module("one")]);
    assert_eq!(out, "module @one\n  @negate(tensor<2xf32>) -> (tensor<2xf32>)\n");
}

#[test]
fn a_folder_is_no_module() {
    let folder = modules().to_str().unwrap();
    let message = fails(1, &["run", "-m", folder, "-f", "add"]);
    assert!(message.contains("a folder, not an IREE module (.vmfb)"), "{message}");
}

#[test]
fn a_result_that_differs_fails() {
    let kinds = module("kinds");
    let differs = |rest: &[&str]| {
        let arguments = [&["-i", "4xf32=1", "-i", "4xf32=2"], rest].concat();
        let output = program(&line(&kinds, "add", &arguments)).assert().code(1);
        String::from_utf8(output.get_output().stdout.clone()).unwrap()
    };
    let text = differs(&["-e", "4xf32=3 3 3 4"]);
    for expected in [
        "[FAILED] result[0]: element at index 3 (3) does not match the expected (4)",
        "  expected:\n4xf32=3 3 3 4\n  actual:\n4xf32=3 3 3 3\n",
    ] {
        assert!(text.contains(expected), "{text}");
    }
    assert!(differs(&["-e", "4xf32=3.00005", "--exact"]).contains("[FAILED]"));
    let zero = ["-i", "4xf32=-0", "-i", "4xf32=-0", "-e", "4xf32=0"];
    assert!(succeeds(&line(&kinds, "add", &zero)).contains("[SUCCESS]"));
    program(&line(&kinds, "add", &[&zero[..], &["--exact"]].concat())).assert().code(1);
    assert!(differs(&["-e", "4xf32=3.1", "--atol", "0.01"]).contains("[FAILED]"));
    assert!(differs(&["-e", "5xf32=3"]).contains("it is 4xf32, and 5xf32 was expected"));
    let near = ["-i", "4xf32=1", "-i", "4xf32=2", "-e", "4xf32=3.1", "--atol", "0.2"];
    assert!(succeeds(&line(&kinds, "add", &near)).contains("[SUCCESS]"));
    // Scalars too, which the C tool takes for another type; and a result that does not matter.
    let scalars = |first: &str| {
        let inputs = ["-i", "3", "-i", "2.5", "-i", "2x2xi32=1", "-i", "7", "-i", "1"];
        let expected = ["-e", first, "-e", "5", "-e", "(ignored)", "-e", "7", "-e", "1"];
        let arguments = [inputs, expected].concat();
        program(&line(&kinds, "mixed", &arguments)).assert().get_output().status.code()
    };
    assert_eq!((scalars("6"), scalars("7")), (Some(0), Some(1)));
}

#[test]
fn what_is_wrong_says_which_input() {
    let kinds = module("kinds");
    let says = |inputs: &[&str], expected: &str| {
        let flags: Vec<_> = inputs.iter().flat_map(|input| ["-i", input]).collect();
        let message = fails(1, &line(&kinds, "add", &flags));
        assert!(message.starts_with("error: ") && message.contains(expected), "{message}");
    };
    says(&["4xf32=1"], "1 value(s) given by --input, and the function has 2: tensor<4xf32>");
    says(&["4xf32=1,2,3", "4xf32"], "--input 4xf32=1,2,3");
    says(&["4xf32=1,2,3", "4xf32"], "3 elements where 4xf32 has 4");
    says(&["4xf32", "4xi32"], "argument 1 of `kinds.add`");
    says(&["4xf32", "7"], "`7` is no element type");
    says(&["@/no/such.npy", "4xf32"], "/no/such.npy");
    says(&["@no.txt", "4xf32"], "only .npy files tell shape and type");
    let folder = tempfile::tempdir().unwrap();
    let short = path(&folder, "short");
    std::fs::write(&short, [0; 7]).unwrap();
    says(&[&format!("4xf32=@{short}"), "4xf32"], "16 bytes wanted, and only 7 are left");
    std::fs::write(&short, "no module").unwrap();
    assert!(fails(1, &["run", "-m", &short]).contains("not an IREE module"));
    assert!(fails(1, &["run", "-m", &kinds, "--device", "nowhere"]).contains("nowhere"));
    let good = ["-i", "4xf32", "-i", "4xf32"];
    let output = [&good[..], &["-o", "file.npy"]].concat();
    assert!(fails(1, &line(&kinds, "add", &output)).contains("give - (print)"));
    fails(1, &line(&kinds, "add", &[&good[..], &["-o", "-", "-o", "-"]].concat()));
    for flags in [["--json", "-i=1"], ["--rtol=1", "-i=1"], ["--benchmark", "-o=-"]] {
        fails(2, &line(&kinds, "add", &flags));
    }
}

#[test]
fn benchmarks() {
    let kinds = module("kinds");
    let flags = ["-i", "4xf32=1", "-i", "4xf32=2", "--benchmark", "--iterations", "50"];
    let text = succeeds(&line(&kinds, "add", &flags));
    for expected in
        ["function     kinds.add on local-task\n", "calls        50\n", "median", "p99", "calls/s"]
    {
        assert!(text.contains(expected), "{text}");
    }
    let flags = [&flags[..], &["--json", "--device", "local-sync"]].concat();
    let report = json(&line(&kinds, "add", &flags));
    assert_eq!(
        (&report["function"], &report["device"]),
        (&"kinds.add".into(), &"local-sync".into())
    );
    assert_eq!(report["iterations"], 50);
    let number = |key: &str| report[key].as_f64().unwrap();
    assert!(0.0 < number("min") && number("min") <= number("median"), "{report}");
    assert!(number("median") <= number("p90") && number("p99") <= number("max"), "{report}");
}
