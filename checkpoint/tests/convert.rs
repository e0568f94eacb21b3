//! What converting writes, refuses and breaks off. That values and tokens stay is compared where models
//! are run.

use std::fs;
use std::ops::ControlFlow;
use std::path::Path;

use checkpoint::config::ModelConfig;
use checkpoint::{Checkpoint, Conversion, ConvertOptions, Error, Float, LoadMode};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde_json::{Value, json};
use tempfile::TempDir;

/// A tiny Llama in f32 whose embedding begins with `first`.
fn model(first: f32) -> TempDir {
    let folder = TempDir::new().unwrap();
    let config = json!({
        "model_type": "llama", "vocab_size": 40, "hidden_size": 8, "intermediate_size": 12,
        "num_hidden_layers": 2, "num_attention_heads": 2, "tie_word_embeddings": false,
        "dtype": "float32",
        "quantization_config": {"quant_method": "gptq", "bits": 4},
    });
    fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    let config = ModelConfig::from_dir(folder.path()).unwrap();
    let tensors: Vec<_> = config
        .tensors()
        .map(|it| {
            let values = (0..it.elements()).map(|i| 0.1 * i as f32 - 1.0);
            let bytes: Vec<u8> = values.flat_map(f32::to_le_bytes).collect();
            (it.name.clone(), it.shape.clone(), bytes)
        })
        .collect();
    let views = tensors.iter().map(|(name, shape, bytes)| {
        let bytes = if name.contains("embed") {
            [&first.to_le_bytes(), &bytes[4..]].concat().leak()
        } else {
            &bytes[..]
        };
        (name, TensorView::new(Dtype::F32, shape.clone(), bytes).unwrap())
    });
    let file = folder.path().join("model.safetensors");
    safetensors::serialize_to_file(views, None, &file).unwrap();
    folder
}

fn convert(model: &Path, options: ConvertOptions) -> Result<TempDir, Error> {
    let folder = TempDir::new().unwrap();
    let conversion = Conversion::open(model, options)?;
    let end = conversion.write(folder.path(), &mut |_| ControlFlow::Continue(()))?;
    assert!(end.is_continue());
    Ok(folder)
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

#[test]
fn files_are_as_large_as_asked_for_and_indexed() {
    let model = model(0.5);
    let options = ConvertOptions { shard_bytes: 2000, ..ConvertOptions::new(Float::F32) };
    let folder = convert(model.path(), options).unwrap();
    let index = json(&folder.path().join("model.safetensors.index.json"));
    let places = index["weight_map"].as_object().unwrap();
    let mut total = 0;
    for name in places.values().map(|it| it.as_str().unwrap()) {
        let bytes = fs::read(folder.path().join(name)).unwrap();
        let (header, metadata) = SafeTensors::read_metadata(&bytes).unwrap();
        assert_eq!(metadata.metadata().as_ref().unwrap()["format"], "pt");
        assert!(header.is_multiple_of(8) && bytes.len() - 8 - header <= 2000, "{name}");
        for tensor in metadata.tensors().keys() {
            assert_eq!(places[tensor], name);
        }
        total = total.max(name[6..11].parse::<usize>().unwrap());
        assert!(name.ends_with(&format!("-of-{:05}.safetensors", files(folder.path()))));
    }
    assert!(total > 2 && total == files(folder.path()));
    let bytes = Checkpoint::open(folder.path(), LoadMode::Mmap).unwrap().total_bytes();
    assert_eq!(index["metadata"]["total_size"], bytes);

    let one = convert(model.path(), ConvertOptions::new(Float::F32)).unwrap();
    assert!(one.path().join("model.safetensors").is_file());
    assert!(!one.path().join("model.safetensors.index.json").exists());
    // Nothing says how text ends, and so it stays.
    assert!(!one.path().join("generation_config.json").exists());
}

fn files(folder: &Path) -> usize {
    let names = fs::read_dir(folder).unwrap().map(|it| it.unwrap().file_name());
    names.filter(|it| it.to_string_lossy().ends_with(".safetensors")).count()
}

#[test]
fn types_are_rounded_to_and_said() {
    let model = model(1.0 + 1.0 / 512.0 + 1.0 / 8192.0);
    for (dtype, name, expected) in [
        (Float::F32, "float32", 1.0 + 1.0 / 512.0 + 1.0 / 8192.0),
        (Float::F16, "float16", 1.0 + 1.0 / 512.0),
        (Float::BF16, "bfloat16", 1.0),
    ] {
        let folder = convert(model.path(), ConvertOptions::new(dtype)).unwrap();
        let config = json(&folder.path().join("config.json"));
        assert_eq!(config["torch_dtype"], name);
        assert_eq!(config["architectures"], json!(["LlamaForCausalLM"]));
        assert!(config.get("dtype").is_none() && config.get("quantization_config").is_none());
        let checkpoint = Checkpoint::open(folder.path(), LoadMode::Mmap).unwrap();
        let values = checkpoint.tensor("model.embed_tokens.weight", &[40, 8]).unwrap().to_f32();
        assert_eq!(values[0], expected);
    }
}

/// What a model with images says of special tokens outside of its text model's part stays.
#[test]
fn special_tokens_of_a_model_that_reads_images_stay() {
    let model = TempDir::new().unwrap();
    let text = json!({
        "model_type": "gemma3_text", "vocab_size": 40, "hidden_size": 8, "intermediate_size": 12,
        "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4,
        "eos_token_id": 1, "bos_token_id": 2,
    });
    let config = json!({"model_type": "gemma3", "text_config": text, "eos_token_id": [1, 39],
        "bos_token_id": null});
    fs::write(model.path().join("config.json"), config.to_string()).unwrap();
    let before = ModelConfig::from_dir(model.path()).unwrap();
    assert_eq!((&before.eos_token_ids[..], before.bos_token_id), (&[1, 39][..], Some(2)));
    let tensors = before.tensors().map(|it| {
        let bytes = &*vec![0; 4 * it.elements()].leak();
        (&it.name, TensorView::new(Dtype::F32, it.shape.clone(), bytes).unwrap())
    });
    let file = model.path().join("model.safetensors");
    safetensors::serialize_to_file(tensors, None, &file).unwrap();
    let folder = convert(model.path(), ConvertOptions::new(Float::F32)).unwrap();
    assert_eq!(ModelConfig::from_dir(folder.path()).unwrap(), before);
}

#[test]
fn what_a_type_cannot_hold_is_refused() {
    let model = model(-70_000.0);
    let error = convert(model.path(), ConvertOptions::new(Float::F16)).unwrap_err();
    assert!(matches!(error, Error::Checkpoint { .. }), "{error:?}");
    let text = error.to_string();
    for part in ["model.embed_tokens.weight", "-70000", "f16", "bf16"] {
        assert!(text.contains(part), "{text}: expected {part}");
    }
    convert(model.path(), ConvertOptions::new(Float::BF16)).unwrap();
}

#[test]
fn it_breaks_off_when_it_shall() {
    let (model, folder) = (model(0.5), TempDir::new().unwrap());
    let conversion = Conversion::open(model.path(), ConvertOptions::new(Float::F32)).unwrap();
    let mut calls = 0;
    let mut wrote = |_| {
        calls += 1;
        if calls == 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    assert!(conversion.write(folder.path(), &mut wrote).unwrap().is_break());
    assert_eq!(calls, 3);
}
