//! `config.json`, and `generation_config.json` after a line `---`.
#![no_main]

use checkpoint::config::ModelConfig;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let folder = tempfile::tempdir().unwrap();
    let (config, generation) = text.split_once("\n---\n").unwrap_or((text, ""));
    std::fs::write(folder.path().join("config.json"), config).unwrap();
    if !generation.is_empty() {
        std::fs::write(folder.path().join("generation_config.json"), generation).unwrap();
    }
    let Ok(config) = ModelConfig::from_dir(folder.path()) else { return };
    std::hint::black_box((config.parameter_count(), config.rope().inv_freq()));
    if config.rope().width <= 1 << 8 {
        std::hint::black_box(config.rope().tables(0..2));
    }
});
