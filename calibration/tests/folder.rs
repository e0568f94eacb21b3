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
    Quantisation::open(&fixture(name)).unwrap().run(&texts(), &folder, &mut all).unwrap();
    (parent, folder)
}

fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let files = folder.read_dir().unwrap().map(|entry| {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        (name, fs::read(path).unwrap())
    });
    files.collect()
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
        let stopped = model.run(&texts(), &folder, &mut some);
        assert!(matches!(stopped, Err(Error::Stopped)), "{stopped:?}");
        assert!(!folder.join("config.json").exists());
    }
    let other = model.run(&texts()[..1], &folder, &mut all).unwrap_err().to_string();
    assert!(other.contains("begun with another model, text or options"), "{other}");
    let mut seen = 0;
    let mut count = |rounded| {
        seen += rounded;
        ControlFlow::Continue(())
    };
    model.run(&texts(), &folder, &mut count).unwrap();
    assert_eq!(seen, model.weights());
    let [whole, stopped] = [&whole, &folder].map(|it| files(it));
    assert_eq!(whole.keys().collect::<Vec<_>>(), stopped.keys().collect::<Vec<_>>());
    for (name, bytes) in whole {
        assert!(stopped[&name] == bytes, "{name}");
    }
    let again = model.run(&texts(), &folder, &mut all).unwrap_err().to_string();
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
        let said = model.run(&texts, &parent.path().join("made"), &mut all);
        let said = said.unwrap_err().to_string();
        assert!(said.contains(expected), "{said}");
    }
}
