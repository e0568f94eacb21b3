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

/// An adapter in PEFT's layout: what its configuration says, and its tensors with `f(i)` as values.
fn adapter(about: &Value, tensors: &[(&str, &[usize])]) -> TempDir {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("adapter_config.json"), about.to_string()).unwrap();
    let tensors: Vec<_> = tensors
        .iter()
        .map(|(name, shape)| {
            let bytes = (0..shape.iter().product()).flat_map(|i| value(name, i).to_le_bytes());
            (name, shape, bytes.collect::<Vec<u8>>())
        })
        .collect();
    let views = tensors.iter().map(|(name, shape, bytes)| {
        (name, TensorView::new(Dtype::F32, shape.to_vec(), bytes).unwrap())
    });
    let file = folder.path().join("adapter_model.safetensors");
    safetensors::serialize_to_file(views, None, &file).unwrap();
    folder
}

/// Element `i` of the tensor `name`: sums of products of such are exact in f32.
fn value(name: &str, i: usize) -> f32 {
    ((name.len() + 3 * i) % 7) as f32 * 0.25 - 0.5
}

/// The values of `name` in `folder`.
fn values(folder: &Path, name: &str) -> Vec<f32> {
    let config = ModelConfig::from_dir(folder).unwrap();
    let parameter = config.tensors().find(|it| it.name == name).unwrap();
    Checkpoint::open(folder, LoadMode::Mmap).unwrap().get(parameter).unwrap().to_f32()
}

const QUERIES: &str = "model.layers.1.self_attn.q_proj";

fn peft(name: &str) -> String {
    format!("base_model.model.{name}")
}

#[test]
fn an_adapter_is_added_to_the_weights() {
    let model = model(0.0);
    let [a, b] = ["A", "B"].map(|half| peft(&format!("{QUERIES}.lora_{half}.weight")));
    let [of_token, of_column] =
        ["A", "B"].map(|half| peft(&format!("model.embed_tokens.lora_embedding_{half}")));
    let norm = peft("model.norm.weight");
    let tensors: &[(&str, &[usize])] = &[
        (&a, &[2, 8]),
        (&b, &[8, 2]),
        (&of_token, &[4, 40]),
        (&of_column, &[8, 4]),
        (&norm, &[8]),
    ];
    let about = json!({"peft_type": "LORA", "r": 2, "lora_alpha": 8, "use_dora": false, "alpha_pattern": {}});
    let adapter = adapter(&about, tensors);
    // As strong as it is, and half as strong.
    for strength in [1.0, 0.5] {
        let conversion = Conversion::open(model.path(), ConvertOptions::new(Float::F32)).unwrap();
        let conversion = conversion.with_adapter(adapter.path(), strength).unwrap();
        let folder = TempDir::new().unwrap();
        assert!(
            conversion
                .write(folder.path(), &mut |_| ControlFlow::Continue(()))
                .unwrap()
                .is_continue()
        );
        let before = values(model.path(), &format!("{QUERIES}.weight"));
        let after = values(folder.path(), &format!("{QUERIES}.weight"));
        for (i, (before, after)) in before.iter().zip(&after).enumerate() {
            let (row, column) = (i / 8, i % 8);
            let sum: f32 = (0..2).map(|k| value(&b, row * 2 + k) * value(&a, k * 8 + column)).sum();
            assert_eq!(*after, before + strength * 4.0 * sum, "{row}, {column}");
        }
        let before = values(model.path(), "model.embed_tokens.weight");
        let after = values(folder.path(), "model.embed_tokens.weight");
        for (i, (before, after)) in before.iter().zip(&after).enumerate() {
            let (token, column) = (i / 8, i % 8);
            let each = |k| value(&of_token, k * 40 + token) * value(&of_column, column * 4 + k);
            assert_eq!(
                *after,
                before + strength * 2.0 * (0..4).map(each).sum::<f32>(),
                "{token}, {column}"
            );
        }
        // What was trained as a whole is what it is, and all else stays.
        let whole: Vec<_> = (0..8).map(|i| value(&norm, i)).collect();
        assert_eq!(values(folder.path(), "model.norm.weight"), whole);
        let others = format!("{}.weight", QUERIES.replace('1', "0"));
        assert_eq!(values(folder.path(), &others), values(model.path(), &others));
    }
    // PEFT keeps embeddings beside what is added to them.
    let base = peft("model.embed_tokens.base_layer.weight");
    let beside = self::adapter(&about, &[&tensors[2..4], &[(&base, &[40, 8])]].concat());
    let conversion = Conversion::open(model.path(), ConvertOptions::new(Float::F32)).unwrap();
    let conversion = conversion.with_adapter(beside.path(), 0.0).unwrap();
    let config = ModelConfig::from_dir(model.path()).unwrap();
    let embedding = config.tensors().find(|it| it.name == "model.embed_tokens.weight").unwrap();
    let whole: Vec<_> = (0..320).map(|i| value(&base, i)).collect();
    assert_eq!(conversion.values(embedding).unwrap(), whole);
    // Beside another one, both add to it, in whichever order.
    for folders in [[&beside, &adapter], [&adapter, &beside]] {
        let mut conversion =
            Conversion::open(model.path(), ConvertOptions::new(Float::F32)).unwrap();
        for folder in folders {
            conversion = conversion.with_adapter(folder.path(), 1.0).unwrap();
        }
        let each = |k| value(&of_token, k * 40) * value(&of_column, k);
        let sum = 2.0 * (0..4).map(each).sum::<f32>();
        assert_eq!(conversion.values(embedding).unwrap()[0], whole[0] + sum + sum);
    }
    // Of a model that reads images PEFT names the modules of all of it.
    let named =
        |half| peft(&format!("model.language_model.layers.1.self_attn.q_proj.lora_{half}.weight"));
    let of_images = self::adapter(&about, &[(&named("A"), &[2, 8]), (&named("B"), &[8, 2])]);
    let conversion = Conversion::open(model.path(), ConvertOptions::new(Float::F32)).unwrap();
    let conversion = conversion.with_adapter(of_images.path(), 1.0).unwrap();
    let queries = config.tensors().find(|it| it.name.starts_with(QUERIES)).unwrap();
    assert_ne!(conversion.values(queries).unwrap(), values(model.path(), &queries.name));
    // By the root of the rank, and with a strength of its own.
    let about = json!({"peft_type": "LORA", "lora_alpha": 1, "use_rslora": true, "alpha_pattern": {"q_proj": 6}});
    let scaled = self::adapter(&about, &tensors[..2]);
    let conversion = Conversion::open(model.path(), ConvertOptions::new(Float::F32)).unwrap();
    let conversion = conversion.with_adapter(scaled.path(), 1.0).unwrap();
    let config = ModelConfig::from_dir(model.path()).unwrap();
    let parameter = config.tensors().find(|it| it.name.starts_with(QUERIES)).unwrap();
    let after = conversion.values(parameter).unwrap()[0];
    let sum: f32 = (0..2).map(|k| value(&b, k) * value(&a, k * 8)).sum();
    assert_eq!(after, values(model.path(), &parameter.name)[0] + (6.0 / 2f64.sqrt()) as f32 * sum);
}

#[test]
fn adapters_of_other_kinds_and_other_models_are_refused() {
    let model = model(0.0);
    let good = json!({"peft_type": "LORA", "lora_alpha": 8});
    let [a, b] = ["A", "B"].map(|half| peft(&format!("{QUERIES}.lora_{half}.weight")));
    let other = peft("model.layers.7.self_attn.q_proj.lora_A.weight");
    let of_dora = peft(&format!("{QUERIES}.lora_magnitude_vector"));
    let head = peft("lm_head.weight");
    type Tensors<'a> = &'a [(&'a str, &'a [usize])];
    let cases: [(Value, Tensors, &str); 14] = [
        (json!({"peft_type": "IA3"}), &[], "\"LORA\" alone is supported"),
        (
            json!({"peft_type": "LORA", "lora_alpha": 8, "use_dora": true}),
            &[],
            "`use_dora` is true",
        ),
        (json!({"peft_type": "LORA"}), &[], "`lora_alpha` is null"),
        (
            json!({"peft_type": "LORA", "init_lora_weights": "pissa"}),
            &[],
            "`init_lora_weights` is \"pissa\"",
        ),
        (
            json!({"peft_type": "LORA", "alora_invocation_tokens": [1]}),
            &[],
            "`alora_invocation_tokens` is [1]",
        ),
        (
            json!({"peft_type": "LORA", "lora_alpha": 1, "alpha_pattern": {"^q": 1}}),
            &[],
            "names alone",
        ),
        (good.clone(), &[], "it has no tensors"),
        (good.clone(), &[(&a, &[2, 8])], "one of the matrices"),
        (good.clone(), &[(&a, &[2, 8]), (&b, &[8, 3])], "[2, 8] and [8, 3], the model's [8, 8]"),
        (good.clone(), &[(&a, &[2, 9]), (&b, &[8, 2])], "another model's"),
        (
            good.clone(),
            &[(&other, &[2, 8]), (&other.replace("_A", "_B"), &[8, 2])],
            "no tensor `model.layers.7",
        ),
        (good.clone(), &[(&of_dora, &[8])], "DoRA"),
        (good.clone(), &[(&head, &[41, 8])], "[41, 8], the model's [40, 8]"),
        (good.clone(), &[("model.norm.weight", &[8])], "begin with `base_model.model.`"),
    ];
    for (about, tensors, said) in cases {
        let adapter = adapter(&about, tensors);
        let conversion = Conversion::open(model.path(), ConvertOptions::new(Float::F32)).unwrap();
        let error = conversion.with_adapter(adapter.path(), 1.0).unwrap_err().to_string();
        assert!(error.contains(said), "{said}: {error}");
    }
    // What one has whole another one may not have otherwise.
    let mut conversion = Conversion::open(model.path(), ConvertOptions::new(Float::F32)).unwrap();
    let norm = adapter(&good, &[(&peft("model.norm.weight"), &[8])]);
    conversion = conversion.with_adapter(norm.path(), 1.0).unwrap();
    conversion = conversion.with_adapter(norm.path(), 1.0).unwrap();
    let other = adapter(&good, &[(&peft("model.norm.weight"), &[8])]);
    let file = other.path().join("adapter_model.safetensors");
    let mut bytes = fs::read(&file).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::write(&file, bytes).unwrap();
    let error = conversion.with_adapter(other.path(), 1.0).unwrap_err().to_string();
    assert!(error.contains("all of `model.norm.weight`"), "{error}");
    let nothing = TempDir::new().unwrap();
    let conversion = Conversion::open(model.path(), ConvertOptions::new(Float::F32)).unwrap();
    let error = conversion.with_adapter(nothing.path(), 1.0).unwrap_err().to_string();
    assert!(error.contains("adapter_config.json"), "{error}");
}
