//! A GGUF file: the header is checked, the configuration read, and every tensor as f32.
#![no_main]

use checkpoint::config::ModelConfig;
use checkpoint::{Checkpoint, LoadMode};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    std::fs::write(&path, bytes).unwrap();
    let _ = std::hint::black_box(ModelConfig::from_dir(&path));
    for mode in [LoadMode::Mmap, LoadMode::Read] {
        let Ok(checkpoint) = Checkpoint::open(&path, mode) else { return };
        let listed: Vec<_> =
            checkpoint.tensors().map(|it| (it.name.to_owned(), it.shape.to_vec())).collect();
        for (name, shape) in listed {
            let Ok(tensor) = checkpoint.tensor(&name, &shape) else { continue };
            assert_eq!(tensor.elements(), shape.iter().product::<usize>());
            std::hint::black_box(tensor.to_f32());
        }
    }
});
