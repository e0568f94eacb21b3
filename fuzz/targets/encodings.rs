//! A quantised folder: `config.json`, and after a line `---` a safetensors file; matrices as f32, in the
//! shapes of their scales and some others.
#![no_main]

use checkpoint::{Checkpoint, LoadMode};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    const END: &[u8] = b"\n---\n";
    let Some(at) = bytes.windows(END.len()).position(|window| window == END) else { return };
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("config.json"), &bytes[..at]).unwrap();
    std::fs::write(folder.path().join("model.safetensors"), &bytes[at + END.len()..]).unwrap();
    for mode in [LoadMode::Mmap, LoadMode::Read] {
        let Ok(checkpoint) = Checkpoint::open(folder.path(), mode) else { return };
        let modules: Vec<_> = checkpoint
            .tensors()
            .filter_map(|it| Some(it.name.rsplit_once('.')?.0.to_owned()))
            .collect();
        for module in modules {
            for rows in [16, 24, 32] {
                for columns in [32, 64, 96] {
                    let name = format!("{module}.weight");
                    let Ok(tensor) = checkpoint.tensor(&name, &[rows, columns]) else { continue };
                    assert_eq!(tensor.to_f32().len(), rows * columns);
                }
            }
        }
    }
});
