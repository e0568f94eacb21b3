//! A checkpoint of one file: the header is checked, and every tensor is read as f32.
#![no_main]

use checkpoint::{Checkpoint, LoadMode};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("model.safetensors"), bytes).unwrap();
    for mode in [LoadMode::Mmap, LoadMode::Read] {
        let Ok(checkpoint) = Checkpoint::open(folder.path(), mode) else { return };
        let listed: Vec<_> =
            checkpoint.tensors().map(|it| (it.name.to_owned(), it.shape.to_vec())).collect();
        for (name, shape) in listed {
            let Ok(tensor) = checkpoint.tensor(&name, &shape) else { continue };
            assert_eq!(tensor.elements(), shape.iter().product::<usize>());
            std::hint::black_box(tensor.to_f32());
        }
    }
});
