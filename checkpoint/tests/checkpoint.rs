//! Safetensors checkpoints, good and bad.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use checkpoint::config::ModelConfig;
use checkpoint::{Checkpoint, Dtype, Error, LoadMode};
use half::{bf16, f16};
use safetensors::Dtype as FileType;
use safetensors::tensor::TensorView;
use serde_json::{Value, json};
use tempfile::TempDir;

const MODES: [LoadMode; 2] = [LoadMode::Mmap, LoadMode::Read];

/// A tensor to write: name, type, shape, bytes.
type Source<'a> = (&'a str, FileType, Vec<usize>, Vec<u8>);

fn f32_source<'a>(name: &'a str, shape: &[usize], values: &[f32]) -> Source<'a> {
    let bytes = values.iter().flat_map(|x| x.to_le_bytes()).collect();
    (name, FileType::F32, shape.to_vec(), bytes)
}

/// Two tensors: `a` [2, 3] f32 and `b` [4] bf16.
fn two() -> Vec<Source<'static>> {
    let b = [0.5, -1.0, 2.0, 3.0].map(|x| bf16::from_f32(x).to_le_bytes());
    vec![
        f32_source("a", &[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]),
        ("b", FileType::BF16, vec![4], b.concat()),
    ]
}

fn bytes_of(sources: &[Source]) -> Vec<u8> {
    let views: BTreeMap<&str, TensorView> = sources
        .iter()
        .map(|(name, dtype, shape, bytes)| {
            (*name, TensorView::new(*dtype, shape.clone(), bytes).unwrap())
        })
        .collect();
    safetensors::serialize(views, None).unwrap()
}

fn write(folder: &TempDir, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
    let path = folder.path().join(name);
    fs::write(&path, bytes).unwrap();
    path
}

/// A file with this header, as it is, and `data` bytes after it.
fn raw(header: &str, data: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.resize(bytes.len() + data, 0);
    bytes
}

/// A folder whose model.safetensors holds `bytes`.
fn single(bytes: impl AsRef<[u8]>) -> TempDir {
    let folder = TempDir::new().unwrap();
    write(&folder, "model.safetensors", bytes);
    folder
}

/// Two shards, `a` in the first and `b` in the second, with this weight map.
fn shards(weight_map: Value) -> TempDir {
    let folder = TempDir::new().unwrap();
    let sources = two();
    write(&folder, "model-1.safetensors", bytes_of(&sources[..1]));
    write(&folder, "model-2.safetensors", bytes_of(&sources[1..]));
    let index = json!({"metadata": {"total_size": 32}, "weight_map": weight_map});
    write(&folder, "model.safetensors.index.json", index.to_string());
    folder
}

#[track_caller]
fn says(error: &Error, file: &str, parts: &[&str]) {
    let Error::Checkpoint { path, .. } = error else { panic!("{error:?}") };
    assert!(path.ends_with(file), "{} is not about {file}", path.display());
    let text = error.to_string();
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in: {text}");
    }
}

/// Opening fails in both modes, with a message about `file` that has all `parts`.
#[track_caller]
fn refused(folder: &TempDir, file: &str, parts: &[&str]) {
    for mode in MODES {
        says(&Checkpoint::open(folder.path(), mode).unwrap_err(), file, parts);
    }
}

#[test]
fn reads_one_file() {
    let folder = single(bytes_of(&two()));
    for mode in MODES {
        let checkpoint = Checkpoint::open(folder.path(), mode).unwrap();
        let a = checkpoint.tensor("a", &[2, 3]).unwrap();
        assert_eq!((a.dtype(), a.shape(), a.elements()), (Dtype::F32, &[2, 3][..], 6));
        assert_eq!(a.to_f32(), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        assert_eq!(a.path(), folder.path().join("model.safetensors"));
        let mut row = [0.0; 3];
        a.to_f32_row(3..6, &mut row);
        assert_eq!(row, [4.0, 5.0, 6.0]);
        a.prefetch();
        a.release(0..a.bytes().len());

        let b = checkpoint.tensor("b", &[4]).unwrap();
        assert_eq!(b.dtype(), Dtype::BF16);
        assert_eq!(b.bytes().len(), 8);
        assert_eq!(b.to_f32(), [0.5, -1.0, 2.0, 3.0]);
        // Released pages come back when they are needed again.
        b.release(0..b.bytes().len());
        assert_eq!(checkpoint.tensor("b", &[4]).unwrap().to_f32(), [0.5, -1.0, 2.0, 3.0]);
        assert_eq!(checkpoint.dtype("b"), Some(Dtype::BF16));
        assert_eq!(checkpoint.dtype("c"), None);
    }
}

#[test]
fn lists_what_is_there() {
    let folder = shards(json!({"a": "model-1.safetensors", "b": "model-2.safetensors"}));
    let checkpoint = Checkpoint::open(folder.path(), LoadMode::Mmap).unwrap();
    let listed: Vec<_> = checkpoint.tensors().collect();
    assert_eq!(listed.len(), 2);
    assert_eq!((listed[0].name, listed[0].dtype, listed[0].shape), ("a", "F32", &[2, 3][..]));
    assert_eq!((listed[1].name, listed[1].dtype, listed[1].bytes), ("b", "BF16", 8));
    assert_eq!(listed[1].path, folder.path().join("model-2.safetensors"));
    assert_eq!(checkpoint.total_bytes(), 32);

    let stamps: Vec<_> = checkpoint.files().collect();
    assert_eq!(stamps.len(), 2);
    let metadata = fs::metadata(&stamps[0].path).unwrap();
    assert_eq!(stamps[0].bytes, metadata.len());
    assert_eq!(stamps[0].modified, metadata.modified().ok());
}

#[test]
fn reads_shards() {
    let folder = shards(json!({"a": "model-1.safetensors", "b": "model-2.safetensors"}));
    for mode in MODES {
        let checkpoint = Checkpoint::open(folder.path(), mode).unwrap();
        assert_eq!(checkpoint.tensor("a", &[2, 3]).unwrap().to_f32()[5], 6.0);
        assert_eq!(checkpoint.tensor("b", &[4]).unwrap().to_f32()[3], 3.0);
    }
    // A single file wins over an index.
    write(&folder, "model.safetensors", bytes_of(&[f32_source("a", &[1], &[9.0])]));
    let checkpoint = Checkpoint::open(folder.path(), LoadMode::Mmap).unwrap();
    assert_eq!(checkpoint.tensors().len(), 1);
}

#[test]
fn converts_every_value_of_half_precision() {
    let all: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
    // One byte before them: neither tensor is aligned.
    let sources = [
        ("f16", FileType::F16, vec![65536], all.clone()),
        ("bf16", FileType::BF16, vec![65536], all.clone()),
        ("odd", FileType::U8, vec![1], vec![7]),
    ];
    let mut header = serde_json::Map::new();
    let mut data = Vec::<u8>::new();
    for (name, dtype, shape, bytes) in [&sources[2], &sources[0], &sources[1]] {
        let start = data.len();
        data.extend(bytes);
        let info = json!({"dtype": dtype, "shape": shape, "data_offsets": [start, data.len()]});
        header.insert((*name).into(), info);
    }
    let mut header = Value::Object(header).to_string();
    while !header.len().is_multiple_of(8) {
        header.push(' ');
    }
    let mut unaligned = raw(&header, 0);
    unaligned.extend(data);

    for bytes in [unaligned, bytes_of(&sources)] {
        let folder = single(bytes);
        for mode in MODES {
            let checkpoint = Checkpoint::open(folder.path(), mode).unwrap();
            for (name, expected) in [
                ("f16", (|bits| f16::from_bits(bits).to_f32()) as fn(u16) -> f32),
                ("bf16", |bits| bf16::from_bits(bits).to_f32()),
            ] {
                let values = checkpoint.tensor(name, &[65536]).unwrap().to_f32();
                for (bits, value) in (0..=u16::MAX).zip(values) {
                    let expected = expected(bits);
                    assert!(
                        value.to_bits() == expected.to_bits()
                            || (value.is_nan() && expected.is_nan()),
                        "{name} {bits:#06x}"
                    );
                }
            }
        }
    }
}

#[test]
fn may_be_shared_between_threads() {
    let folder = single(bytes_of(&two()));
    for mode in MODES {
        let checkpoint = Checkpoint::open(folder.path(), mode).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..100 {
                        assert_eq!(checkpoint.tensor("a", &[2, 3]).unwrap().to_f32()[0], 1.0);
                        checkpoint.tensor("b", &[4]).unwrap().release(0..8);
                    }
                });
            }
        });
    }
}

#[test]
fn refuses_folders_without_weights() {
    let folder = TempDir::new().unwrap();
    let here = folder.path().to_str().unwrap().to_owned();
    refused(&folder, &here, &["neither model.safetensors nor", "download the model's weights"]);
    write(&folder, "model.onnx", "");
    refused(&folder, &here, &["found model.onnx", "not read"]);
    write(&folder, "pytorch_model.bin", "");
    refused(&folder, &here, &["model.onnx, pytorch_model.bin", "save_pretrained"]);
    write(&folder, "consolidated.safetensors", "");
    refused(&folder, &here, &["consolidated.safetensors", "rename"]);

    let error =
        Checkpoint::open(Path::new("/no/such/folder/anywhere"), LoadMode::Mmap).unwrap_err();
    says(&error, "anywhere", &["no such folder"]);
}

#[test]
fn refuses_damaged_files() {
    let good = bytes_of(&two());
    let header = u64::from_le_bytes(good[..8].try_into().unwrap()) as usize;
    let file = "model.safetensors";
    for kept in 0..8 {
        refused(&single(&good[..kept]), file, &["truncated", "less than a safetensors header"]);
    }
    for kept in [8, 9, 8 + header - 1] {
        refused(&single(&good[..kept]), file, &["truncated: the header alone takes"]);
    }
    refused(&single(&good[..8 + header]), file, &["truncated: tensor `a` ends at byte 24"]);
    refused(&single(&good[..good.len() - 1]), file, &["truncated: tensor `b` ends at byte 32"]);
    let longer = [&good[..], &[0]].concat();
    refused(&single(longer), file, &["its tensors take 32 bytes, but 33 follow"]);

    let mut oversized = good.clone();
    oversized[..8].copy_from_slice(&100_000_001u64.to_le_bytes());
    refused(&single(&oversized), file, &["claims 100000001 bytes"]);
    oversized[..8].copy_from_slice(&u64::MAX.to_le_bytes());
    refused(&single(&oversized), file, &["claims 18446744073709551615 bytes"]);

    refused(&single(raw("{\"a\": ", 0)), file, &["its header is not valid JSON"]);
    refused(&single(raw("[]", 0)), file, &["its header is not valid JSON"]);
    refused(&single(raw("\u{1}\u{2}", 0)), file, &["its header is not valid JSON"]);
    let mut not_text = raw("{}", 0);
    not_text[8] = 0xff;
    refused(&single(not_text), file, &["its header is not valid JSON"]);
}

#[test]
fn refuses_headers_that_contradict_themselves() {
    let file = "model.safetensors";
    let tensor = |name: &str, dtype: &str, shape: Value, start: u64, end: u64| {
        let info = json!({"dtype": dtype, "shape": shape, "data_offsets": [start, end]});
        format!("\"{name}\":{info}")
    };
    let with = |tensors: &[String], data| single(raw(&format!("{{{}}}", tensors.join(",")), data));

    let a = tensor("a", "F32", json!([2]), 0, 8);
    refused(
        &with(&[a.clone(), tensor("b", "F32", json!([2]), 4, 12)], 12),
        file,
        &["tensor `b` overlaps the tensor before it"],
    );
    refused(
        &with(&[a.clone(), tensor("b", "F32", json!([2]), 12, 20)], 20),
        file,
        &["tensor `b` leaves a gap"],
    );
    refused(
        &with(&[a.clone(), tensor("b", "F32", json!([2]), 16, 8)], 16),
        file,
        &["tensor `b`", "offsets are 16 to 8"],
    );
    refused(&with(&[tensor("a", "F32", json!([3]), 0, 8)], 8), file, &["`a`", "12 bytes"]);
    refused(
        &with(&[tensor("a", "F99", json!([2]), 0, 8)], 8),
        file,
        &["tensor `a` is not described properly", "F99"],
    );
    refused(
        &with(&[tensor("a", "F32", json!([-2]), 0, 8)], 8),
        file,
        &["tensor `a` is not described properly"],
    );
    refused(&single(raw("{\"a\":{\"dtype\":\"F32\"}}", 0)), file, &["tensor `a`", "shape"]);
    refused(&single(raw("{\"a\":7}", 0)), file, &["tensor `a`"]);
    let huge = json!([1u64 << 40, 1u64 << 40]);
    refused(&with(&[tensor("a", "F32", huge, 0, 8)], 8), file, &["tensor `a`", "too large"]);
    refused(
        &with(&[tensor("a", "F32", json!([2]), u64::MAX - 8, u64::MAX)], 8),
        file,
        &["tensor `a` leaves a gap"],
    );
    // Metadata is no tensor, and the order in the header is free.
    let b = tensor("b", "F16", json!([2]), 8, 12);
    let metadata = "\"__metadata__\":{\"format\":\"pt\"}".to_owned();
    let folder = with(&[b, metadata, a], 12);
    let checkpoint = Checkpoint::open(folder.path(), LoadMode::Mmap).unwrap();
    assert_eq!(checkpoint.tensors().map(|t| t.name).collect::<Vec<_>>(), ["a", "b"]);
}

#[test]
fn refuses_incomplete_shards() {
    let index = "model.safetensors.index.json";
    let folder = shards(json!({"a": "model-1.safetensors", "b": "model-3.safetensors"}));
    refused(&folder, "model-3.safetensors", &["this shard is missing", "1 of the 2"]);
    let folder = shards(json!({"a": "model-1.safetensors", "b": "model-1.safetensors"}));
    refused(&folder, index, &["tensor `b`", "model-1.safetensors, which does not hold it"]);
    for outside in ["../model-1.safetensors", "/model-1.safetensors", "x/y", "", ".."] {
        let folder = shards(json!({"a": outside}));
        refused(&folder, index, &[&format!("`{outside}` is not a file name")]);
    }
    refused(&shards(json!({})), index, &["lists no tensor"]);
    for text in ["", "{}", "[]", "{\"weight_map\": {\"a\": 1}}"] {
        let folder = TempDir::new().unwrap();
        write(&folder, index, text);
        refused(&folder, index, &["not a safetensors index"]);
    }
    // A damaged shard is named, not the index.
    let folder = shards(json!({"a": "model-1.safetensors", "b": "model-2.safetensors"}));
    write(&folder, "model-2.safetensors", "short");
    refused(&folder, "model-2.safetensors", &["truncated"]);
}

#[test]
fn refuses_tensors_that_do_not_fit() {
    let mut sources = two();
    sources.push(("c", FileType::I8, vec![8], vec![0; 8]));
    sources.push(f32_source("layers.0.mlp.up_proj.weight", &[1], &[0.0]));
    let folder = single(bytes_of(&sources));
    for mode in MODES {
        let checkpoint = Checkpoint::open(folder.path(), mode).unwrap();
        let error = |name, shape: &[usize]| checkpoint.tensor(name, shape).unwrap_err();
        let file = "model.safetensors";
        says(&error("a", &[3, 2]), file, &["tensor `a` has shape [2, 3]", "makes it [3, 2]"]);
        says(&error("a", &[6]), file, &["tensor `a` has shape [2, 3]"]);
        says(&error("c", &[8]), file, &["tensor `c` has element type I8", "F32, F16 and BF16"]);
        says(
            &error("model.layers.0.mlp.up_proj.weight", &[1]),
            file,
            &["`model.layers.0.mlp.up_proj.weight` is missing", "`layers.0.mlp.up_proj.weight`"],
        );
        says(
            &error("lm_head.weight", &[1]),
            file,
            &["tensor `lm_head.weight` is missing", "tie_word_embeddings"],
        );
        let text = error("zzz", &[1]).to_string();
        assert!(!text.contains("nearest"), "{text}");
    }
}

#[test]
fn read_mode_survives_a_file_that_shrinks() {
    let folder = single(bytes_of(&two()));
    let checkpoint = Checkpoint::open(folder.path(), LoadMode::Read).unwrap();
    let path = folder.path().join("model.safetensors");
    fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(100).unwrap();
    says(
        &checkpoint.tensor("b", &[4]).unwrap_err(),
        "model.safetensors",
        &["became shorter while it was read"],
    );
}

#[test]
fn checks_a_whole_model_without_reading_it() {
    let config = json!({
        "model_type": "llama", "vocab_size": 8, "hidden_size": 4, "intermediate_size": 6,
        "num_hidden_layers": 2, "num_attention_heads": 2,
    });
    let folder = TempDir::new().unwrap();
    write(&folder, "config.json", config.to_string());
    let config = ModelConfig::from_dir(folder.path()).unwrap();
    let zeros: Vec<_> =
        config.tensors().map(|s| f32_source(&s.name, &s.shape, &vec![0.0; s.elements()])).collect();
    write(&folder, "model.safetensors", bytes_of(&zeros));
    let checkpoint = Checkpoint::open(folder.path(), LoadMode::Mmap).unwrap();
    assert_eq!(checkpoint.check(&config).unwrap(), 4 * config.parameter_count() as u64);
    assert_eq!(checkpoint.get(&config.architecture.norm.weight).unwrap().elements(), 4);

    write(&folder, "model.safetensors", bytes_of(&zeros[..zeros.len() - 1]));
    let checkpoint = Checkpoint::open(folder.path(), LoadMode::Mmap).unwrap();
    says(
        &checkpoint.check(&config).unwrap_err(),
        "model.safetensors",
        &["`lm_head.weight` is missing"],
    );
}

#[test]
fn ties_the_output_projection_as_transformers_does() {
    let folder = TempDir::new().unwrap();
    let embedding = f32_source("model.embed_tokens.weight", &[2, 2], &[1.0, 2.0, 3.0, 4.0]);
    let head = |last| f32_source("lm_head.weight", &[2, 2], &[1.0, 2.0, 3.0, last]);
    for (tie, tensors, tied) in [
        (true, vec![embedding.clone()], true),
        (true, vec![embedding.clone(), head(4.0)], true),
        (true, vec![embedding.clone(), head(5.0)], false),
        (false, vec![embedding.clone(), head(4.0)], false),
    ] {
        let config = json!({
            "model_type": "llama", "vocab_size": 2, "hidden_size": 2, "num_attention_heads": 1,
            "tie_word_embeddings": tie,
        });
        write(&folder, "config.json", config.to_string());
        write(&folder, "model.safetensors", bytes_of(&tensors));
        let config = ModelConfig::from_dir(folder.path()).unwrap();
        let checkpoint = Checkpoint::open(folder.path(), LoadMode::Mmap).unwrap();
        assert_eq!(checkpoint.is_tied(&config).unwrap(), tied, "{} tensors", tensors.len());
    }
}

/// As models that make vectors of texts are saved, whose configuration may ask for an output.
#[test]
fn a_model_without_an_output_needs_none() {
    for tie in [true, false] {
        let folder = TempDir::new().unwrap();
        let config = json!({
            "architectures": ["Qwen3Model"], "model_type": "qwen3", "vocab_size": 5,
            "hidden_size": 4, "intermediate_size": 6, "num_hidden_layers": 1,
            "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 4,
            "tie_word_embeddings": tie,
        });
        write(&folder, "config.json", config.to_string());
        let mut config = ModelConfig::from_dir(folder.path()).unwrap();
        let saved = |bare: bool, head: bool| {
            let parameters = config.architecture.parameters().map(|it| {
                let name = it.name.strip_prefix("model.").filter(|_| bare).unwrap_or(&it.name);
                f32_source(name, &it.shape, &vec![0.5; it.elements()])
            });
            let all = parameters.filter(|(name, ..)| head || *name != "lm_head.weight");
            write(&folder, "model.safetensors", bytes_of(&all.collect::<Vec<_>>()));
            Checkpoint::open(folder.path(), LoadMode::Mmap).unwrap()
        };
        let with_head = saved(true, true);
        assert_eq!(with_head.is_tied(&config).unwrap(), tie);
        with_head.check(&config).unwrap();
        // One whose output is missing is damaged.
        let whole = saved(false, false);
        assert_eq!(whole.is_tied(&config).unwrap(), tie);
        assert_eq!(whole.check(&config).is_ok(), tie);
        let bare = saved(true, false);
        config.tie_word_embeddings = bare.is_tied(&config).unwrap();
        assert!(config.tie_word_embeddings);
        bare.check(&config).unwrap();
    }
}

#[test]
#[should_panic(expected = "out of range")]
fn releases_no_memory_but_its_own() {
    let folder = single(bytes_of(&two()));
    let checkpoint = Checkpoint::open(folder.path(), LoadMode::Mmap).unwrap();
    checkpoint.tensor("b", &[4]).unwrap().release(0..1 << 20);
}

#[test]
fn made_up_weights_need_a_configuration_only_and_are_the_same_each_time() {
    let folder = tempfile::tempdir().unwrap();
    let config = json!({
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "dtype": "bfloat16",
        "vocab_size": 313, "hidden_size": 50, "intermediate_size": 90, "num_hidden_layers": 3,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 20,
        "max_position_embeddings": 512, "rms_norm_eps": 1e-6, "tie_word_embeddings": true,
    });
    write(&folder, "config.json", config.to_string());
    let config = ModelConfig::from_dir(folder.path()).unwrap();
    let open = || Checkpoint::open(folder.path(), LoadMode::Random).unwrap();
    let (checkpoint, again) = (open(), open());
    assert_eq!(checkpoint.check(&config).unwrap(), 2 * config.parameter_count() as u64);
    assert!(checkpoint.is_tied(&config).unwrap());
    let mut firsts = Vec::new();
    for spec in config.tensors() {
        let (tensor, same) = (checkpoint.get(spec).unwrap(), again.get(spec).unwrap());
        assert_eq!(tensor.bytes(), same.bytes(), "{}", spec.name);
        let values = tensor.to_f32();
        if spec.name.ends_with("norm.weight") {
            assert!(values.iter().all(|&v| v == 1.0), "{}", spec.name);
        } else {
            let n = values.len() as f32;
            let deviation = (values.iter().map(|v| v * v).sum::<f32>() / n).sqrt();
            assert!((0.019..0.021).contains(&deviation), "{}: {deviation}", spec.name);
            firsts.push(values[..8].to_vec());
        }
    }
    let n = firsts.len();
    firsts.sort_by(|a, b| a.partial_cmp(b).unwrap());
    firsts.dedup();
    assert_eq!(firsts.len(), n, "two projections are the same");
    assert!(Checkpoint::open(folder.path(), LoadMode::Mmap).is_err());
}
