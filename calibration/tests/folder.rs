//! What is written loads as any folder, and a run that was stopped ends with the same bytes.

use std::collections::BTreeMap;
use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use calibration::{Error, Quantisation};
use checkpoint::architecture::Role;
use checkpoint::config::ModelConfig;
use checkpoint::{Checkpoint, Dtype, LoadMode};
use tempfile::TempDir;

/// Whose widths are whole groups.
const MODEL: &str = "llama-gqa-long-bf16";

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../xla-session/tests/fixtures").join(name)
}

/// Two texts of ids in no order.
fn texts() -> Vec<Vec<u32>> {
    let ids: Vec<u32> = (0..192_u32).map(|i| i * i * 31 % 251).collect();
    ids.chunks(96).map(<[u32]>::to_vec).collect()
}

fn all(_: u64) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

fn made(name: &str) -> (TempDir, PathBuf) {
    let parent = TempDir::new().unwrap();
    let folder = parent.path().join("made");
    let model = Quantisation::open(&fixture(name)).unwrap();
    let vocab_size = ModelConfig::from_dir(&fixture(name)).unwrap().vocab_size as u32;
    let mut texts = texts();
    texts.iter_mut().flatten().for_each(|id| *id %= vocab_size);
    model.run(&texts, &folder, &mut all).unwrap().finish().unwrap();
    (parent, folder)
}

fn error(model: &Quantisation, texts: &[Vec<u32>], folder: &Path) -> String {
    model.run(texts, folder, &mut all).map(drop).unwrap_err().to_string()
}

fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let files = folder.read_dir().unwrap().map(|entry| {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        (name, fs::read(path).unwrap())
    });
    files.collect()
}

/// Biases of norms, too, within layers and behind them, and of the output.
#[test]
fn nothing_of_a_model_is_left_out() {
    for name in [
        "starcoder2-window-gqa-bf16",
        "stablelm-biases-mha-f16",
        "nemotron-gqa-bf16",
        "phi-partial-mha-f16",
    ] {
        let (_parent, folder) = made(name);
        let config = ModelConfig::from_dir(&folder).unwrap();
        let [before, after] =
            [&fixture(name), &folder].map(|it| Checkpoint::open(it, LoadMode::Mmap).unwrap());
        after.check(&config).unwrap();
        let vectors = config.tensors().filter(|it| matches!(it.role, Role::Norm | Role::Bias));
        let mut seen = 0;
        for parameter in vectors {
            let [before, after] = [&before, &after].map(|it| it.get(parameter).unwrap().to_f32());
            assert_eq!(before, after, "{name}: {}", parameter.name);
            seen += 1;
        }
        assert!(seen >= 10, "{name}: {seen}");
    }
}

#[test]
fn matrices_are_blocks_that_kernels_multiply_and_all_else_stays() {
    let (_parent, folder) = made(MODEL);
    let config = ModelConfig::from_dir(&folder).unwrap();
    let [before, after] =
        [&fixture(MODEL), &folder].map(|it| Checkpoint::open(it, LoadMode::Mmap).unwrap());
    after.check(&config).unwrap();
    let ends: Vec<_> = config.architecture.ends().map(|it| &it.weight).collect();
    assert!(!ends.is_empty());
    for parameter in config.tensors() {
        let [was, is] = [&before, &after].map(|it| it.get(parameter).unwrap());
        let (name, dtype) = (&parameter.name, is.dtype());
        let (was, is) = (was.to_f32(), is.to_f32());
        let norm = |of: &mut dyn Iterator<Item = f32>| of.map(|x| x * x).sum::<f32>().sqrt();
        let lost = norm(&mut was.iter().zip(&is).map(|(was, is)| was - is));
        let lost = lost / norm(&mut was.iter().copied());
        match parameter.role {
            Role::Matrix if !ends.contains(&parameter) => {
                assert_eq!(dtype, Dtype::Q4_0, "{name}");
                assert!(lost > 0.01 && lost < 0.3, "{name}: {lost}");
            }
            Role::Matrix | Role::Embedding | Role::Output => {
                assert_eq!(dtype, Dtype::Q8_0, "{name}");
                assert!(lost < 0.01, "{name}: {lost}");
            }
            _ => assert_eq!(was, is, "{name}"),
        }
    }
}

#[test]
fn matrices_without_whole_groups_stay() {
    let name = "llama-mha-f32";
    let (_parent, folder) = made(name);
    let config = ModelConfig::from_dir(&folder).unwrap();
    let checkpoint = Checkpoint::open(&folder, LoadMode::Mmap).unwrap();
    let whole = |columns: usize| columns.is_multiple_of(32);
    let mut stayed = 0;
    for parameter in config.tensors().filter(|it| it.role == Role::Matrix) {
        let dtype = checkpoint.get(parameter).unwrap().dtype();
        assert_eq!(dtype == Dtype::F32, !whole(parameter.shape[1]), "{}", parameter.name);
        stayed += usize::from(dtype == Dtype::F32);
    }
    assert!(stayed > 0);
}

#[test]
fn who_watches_is_asked_before_the_first_matrix_and_sees_those_that_stay() {
    let model = Quantisation::open(&fixture("llama-mha-f32")).unwrap();
    let parent = TempDir::new().unwrap();
    let mut seen = Vec::new();
    let mut count = |rounded| {
        seen.push(rounded);
        ControlFlow::Continue(())
    };
    let made = model.run(&texts(), &parent.path().join("made"), &mut count).map(drop);
    made.unwrap();
    assert_eq!(seen[0], 0, "in the model's own pass");
    assert_eq!(seen.iter().sum::<u64>(), model.weights());
}

#[test]
fn weights_that_are_no_numbers_are_refused() {
    let (model, parent) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    for (name, bytes) in files(&fixture(MODEL)) {
        fs::write(model.path().join(name), bytes).unwrap();
    }
    let path = model.path().join("model.safetensors");
    let whole = fs::read(&path).unwrap();
    let header = u64::from_le_bytes(whole[..8].try_into().unwrap()) as usize;
    let json: serde_json::Value = serde_json::from_slice(&whole[8..8 + header]).unwrap();
    // Of the rounded ones, of those with eight bits, and of those that stay.
    for name in ["layers.0.mlp.gate_proj", "layers.0.self_attn.q_proj", "norm", "embed_tokens"] {
        let name = format!("model.{name}.weight");
        let start = json[&name]["data_offsets"][0].as_u64().unwrap() as usize;
        let mut bytes = whole.clone();
        // A bf16.
        bytes[8 + header + start..][..2].copy_from_slice(&0x7f80_u16.to_le_bytes());
        fs::write(&path, bytes).unwrap();
        let folder = parent.path().join(&name);
        let said = error(&Quantisation::open(model.path()).unwrap(), &texts(), &folder);
        assert!(said.contains(&name) && said.contains("not finite"), "{said}");
        assert!(!folder.join("config.json").exists());
    }
}

#[test]
fn a_run_that_was_stopped_goes_on() {
    let (_parent, whole) = made(MODEL);
    let parent = TempDir::new().unwrap();
    let folder = parent.path().join("made");
    let model = Quantisation::open(&fixture(MODEL)).unwrap();
    // Within the first layer, and within the last one.
    for share in [10, 95] {
        let (mut seen, most) = (0, model.weights() * share / 100);
        let mut some = |rounded| {
            seen += rounded;
            if seen > most { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let stopped = model.run(&texts(), &folder, &mut some).map(drop);
        assert!(matches!(stopped, Err(Error::Stopped)), "{stopped:?}");
        assert!(!folder.join("config.json").exists());
    }
    let other = error(&model, &texts()[..1], &folder);
    assert!(other.contains("begun with another model, text or options"), "{other}");
    let mut seen = 0;
    let mut count = |rounded| {
        seen += rounded;
        ControlFlow::Continue(())
    };
    // The same files, at a path that is spelled otherwise.
    let model = Quantisation::open(&fixture(MODEL).join("..").join(MODEL)).unwrap();
    let made = model.run(&texts(), &folder, &mut count).unwrap();
    assert_eq!(seen, model.weights());
    assert!(!folder.join("config.json").exists(), "no model before it is finished");
    made.finish().unwrap();
    let [whole, stopped] = [&whole, &folder].map(|it| files(it));
    assert_eq!(whole.keys().collect::<Vec<_>>(), stopped.keys().collect::<Vec<_>>());
    for (name, bytes) in whole {
        assert!(stopped[&name] == bytes, "{name}");
    }
    let again = error(&model, &texts(), &folder);
    assert!(again.contains("not empty"), "{again}");
}

#[test]
fn what_cannot_be_rounded_says_so() {
    let said = Quantisation::open(&fixture("mixtral-mha-f32")).unwrap_err().to_string();
    assert!(said.contains("mixtures of experts"), "{said}");
    let parent = TempDir::new().unwrap();
    let model = Quantisation::open(&fixture(MODEL)).unwrap();
    for (texts, expected) in [(vec![vec![]], "is empty"), (vec![vec![1 << 20]], "the model knows")]
    {
        let said = error(&model, &texts, &parent.path().join("made"));
        assert!(said.contains(expected), "{said}");
    }
}
