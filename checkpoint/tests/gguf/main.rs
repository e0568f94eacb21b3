//! GGUF files, good and bad.

use std::fs;
use std::path::{Path, PathBuf};

use checkpoint::architecture::{FeedForward, Groups, RopeScaling};
use checkpoint::config::ModelConfig;
use checkpoint::gguf::{Metadata, Value};
use checkpoint::{Checkpoint, Conversion, ConvertOptions, Dtype, Error, Float, LoadMode};
use tempfile::TempDir;

mod families;
#[path = "../writer/mod.rs"]
mod writer;

use writer::{Gguf, array, booleans, f32_value, integers, text, texts, u32_value, u64_value};

const MODES: [LoadMode; 2] = [LoadMode::Mmap, LoadMode::Read];

fn fixture() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/blocks.gguf")
}

/// A folder with `bytes` as model.gguf.
fn folder(bytes: &[u8]) -> TempDir {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("model.gguf"), bytes).unwrap();
    folder
}

#[track_caller]
fn says(error: &Error, parts: &[&str]) {
    let text = error.to_string();
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in: {text}");
    }
}

/// Opening fails in both modes, with a message about the file that has all `parts`.
#[track_caller]
fn refused(bytes: &[u8], parts: &[&str]) {
    let folder = folder(bytes);
    for mode in MODES {
        let error = Checkpoint::open(folder.path(), mode).unwrap_err();
        says(&error, &["model.gguf"]);
        says(&error, parts);
    }
}

fn u64_bytes(value: u64) -> Vec<u8> {
    value.to_le_bytes().to_vec()
}

/// To the bit what the format's own library makes of random blocks; `reference/blocks.py` made both.
#[test]
fn values_are_those_of_the_formats_own_library() {
    for mode in MODES {
        let checkpoint = Checkpoint::open(&fixture(), mode).unwrap();
        let blocked = Dtype::ALL.into_iter().filter(|dtype| dtype.block().0 > 1);
        assert_eq!(blocked.clone().count(), 13);
        for dtype in blocked {
            let tensor = checkpoint.tensor(dtype.as_str(), &[2, 1024]).unwrap();
            assert_eq!(tensor.dtype(), dtype);
            assert_eq!(tensor.bytes().len(), dtype.bytes_of(2048));
            let expected = format!("{}.values", dtype.as_str());
            let expected = checkpoint.tensor(&expected, &[2, 1024]).unwrap().to_f32();
            for (at, (ours, theirs)) in tensor.to_f32().iter().zip(&expected).enumerate() {
                assert_eq!(ours.to_bits(), theirs.to_bits(), "{dtype:?} {at}: {ours} {theirs}");
            }
            let (of_block, _) = dtype.block();
            let mut some = vec![0.0; of_block];
            tensor.to_f32_row(tensor.row(1).start..tensor.row(1).start + of_block, &mut some);
            assert_eq!(some, expected[1024..1024 + of_block]);
            if matches!(dtype, Dtype::Q4_0 | Dtype::Q8_0) {
                let blocks = tensor.integers(0..2048);
                let values = blocks
                    .iter()
                    .flat_map(|(integers, scale)| integers.map(|q| f32::from(q) * scale.to_f32()));
                assert!(values.eq(expected.iter().copied()), "{dtype:?}");
            }
        }
    }
}

#[test]
fn metadata_has_every_type() {
    let metadata = Metadata::of_model(&fixture()).unwrap().unwrap();
    for (key, expected) in [
        ("a.uint8", Value::Integer(200)),
        ("a.int8", Value::Integer(-100)),
        ("a.uint16", Value::Integer(60_000)),
        ("a.int16", Value::Integer(-30_000)),
        ("a.uint32", Value::Integer(4_000_000_000)),
        ("a.int32", Value::Integer(-2_000_000_000)),
        ("a.uint64", Value::Integer(u64::MAX.into())),
        ("a.int64", Value::Integer(i64::MIN.into())),
        ("a.float32", Value::Float(1e-5_f32.into())),
        ("a.float64", Value::Float(0.1)),
        ("a.bool", Value::Boolean(true)),
        ("a.string", Value::Text("Grüße".into())),
        ("a.integers", Value::Integers(vec![1, -2, 3])),
        ("a.floats", Value::Floats(vec![0.5, -1.0])),
        ("a.booleans", Value::Booleans(vec![true, false])),
    ] {
        assert_eq!(metadata.get(key), Some(&expected), "{key}");
    }
    assert_eq!(metadata.text("general.architecture"), Some("blocks"));
    let strings = metadata.texts("a.strings").unwrap();
    assert_eq!(strings.iter().collect::<Vec<_>>(), ["", "ä", "bc"]);
    assert_eq!(strings.get(3), None);
}

/// A small Llama of one layer: heads of 4, two of queries and one of keys.
fn llama() -> Gguf {
    let mut file = Gguf::new(3);
    file.key("general.architecture", text("llama"));
    for (key, value) in [
        ("block_count", 1),
        ("embedding_length", 8),
        ("feed_forward_length", 12),
        ("attention.head_count", 2),
        ("attention.head_count_kv", 1),
        ("context_length", 64),
        ("rope.dimension_count", 4),
    ] {
        file.key(&format!("llama.{key}"), u32_value(value));
    }
    file.key("llama.attention.layer_norm_rms_epsilon", f32_value(1e-5));
    file.key("tokenizer.ggml.bos_token_id", u32_value(1));
    file.key("tokenizer.ggml.eos_token_id", u32_value(2));
    file.key("tokenizer.ggml.eot_token_id", u32_value(4));
    let mut next = 0.0;
    for (name, shape) in [
        ("token_embd.weight", &[5, 8][..]),
        ("output_norm.weight", &[8]),
        ("blk.0.attn_norm.weight", &[8]),
        ("blk.0.attn_q.weight", &[8, 8]),
        ("blk.0.attn_k.weight", &[4, 8]),
        ("blk.0.attn_v.weight", &[4, 8]),
        ("blk.0.attn_output.weight", &[8, 8]),
        ("blk.0.ffn_norm.weight", &[8]),
        ("blk.0.ffn_gate.weight", &[12, 8]),
        ("blk.0.ffn_up.weight", &[12, 8]),
        ("blk.0.ffn_down.weight", &[8, 12]),
    ] {
        let values: Vec<f32> = std::iter::repeat_with(|| {
            next += 1.0;
            next
        })
        .take(shape.iter().product())
        .collect();
        file.f32(name, shape, &values);
    }
    file
}

/// What ends an answer of the model whose tokens are so.
fn ends(eos: u32, tokens: [(&str, i32); 5]) -> Vec<u32> {
    let mut file = llama();
    file.set("tokenizer.ggml.eos_token_id", u32_value(eos));
    file.remove("tokenizer.ggml.eot_token_id");
    file.key("tokenizer.ggml.tokens", texts(&tokens.map(|(text, _)| text)));
    file.key("tokenizer.ggml.token_type", integers(&tokens.map(|(_, kind)| kind)));
    ModelConfig::from_dir(folder(&file.bytes()).path()).unwrap().eos_token_ids
}

#[test]
fn tokens_that_are_known_to_end_an_answer_do_so_whatever_the_keys_name() {
    let (normal, control, user_defined) = (1, 3, 4);
    let [bos, eos, turn] = ["<bos>", "<eos>", "<end_of_turn>"].map(|text| (text, control));
    assert_eq!(ends(1, [bos, eos, turn, ("a", normal), ("<|eot_id|>", normal)]), [1, 2]);
    // What the keys name comes first, and no more than once.
    assert_eq!(ends(2, [bos, eos, turn, ("a", normal), ("<EOT>", user_defined)]), [2, 1, 4]);
    let (turn, tool) = (("<turn|>", control), ("<|tool_response>", user_defined));
    assert_eq!(ends(2, [bos, eos, turn, ("a", normal), tool]), [2, 1, 4]);

    let (end_of_text, end) = (("<|endoftext|>", control), ("<|end|>", user_defined));
    assert_eq!(ends(1, [("<s>", control), end_of_text, end, ("a", normal), ("b", normal)]), [1, 2]);
    // There it ends a channel, even if a key names it.
    let [last, call] = ["<|return|>", "<|call|>"].map(|text| (text, control));
    let gpt_oss = [last, end_of_text, end, call, ("a", normal)];
    assert_eq!(ends(0, gpt_oss), [0, 1, 3]);
    assert_eq!(ends(2, gpt_oss), [0, 1, 3]);
}

#[test]
fn a_number_of_each_layer_is_one_of_all_where_they_are_the_same() {
    let with = |heads: &[i32]| {
        let mut file = llama();
        file.set("llama.attention.head_count_kv", integers(heads));
        let folder = folder(&file.bytes());
        let config = ModelConfig::from_dir(folder.path())?;
        let checkpoint = Checkpoint::open(folder.path(), LoadMode::Mmap)?;
        let keys = checkpoint.tensor("model.layers.0.self_attn.k_proj.weight", &[4, 8])?;
        let places: Vec<_> = (0..4).map(|row| keys.row(row).start / 8).collect();
        Ok::<_, checkpoint::Error>((config.num_key_value_heads, places))
    };
    assert_eq!(with(&[1, 1]).unwrap(), (1, vec![0, 2, 1, 3]));
    says(&with(&[1, 2]).unwrap_err(), &["`llama.attention.head_count_kv` is [1,2]"]);
    says(&with(&[]).unwrap_err(), &["`llama.attention.head_count_kv` is []"]);
}

#[test]
fn a_llama_is_read_under_hugging_faces_names() {
    let folder = folder(&llama().bytes());
    let config = ModelConfig::from_dir(folder.path()).unwrap();
    assert_eq!(config.family.model_type(), "llama");
    assert_eq!((config.vocab_size, config.hidden_size, config.head_dim), (5, 8, 4));
    assert_eq!((config.num_attention_heads, config.num_key_value_heads), (2, 1));
    assert_eq!((config.rms_norm_eps, config.rope().theta), (1e-5, 10_000.0));
    assert_eq!((config.bos_token_id, &config.eos_token_ids[..]), (Some(1), &[2, 4][..]));
    assert!(config.tie_word_embeddings);

    let checkpoint = Checkpoint::open(folder.path(), LoadMode::Mmap).unwrap();
    assert_eq!(checkpoint.check(&config).unwrap(), 4 * config.parameter_count() as u64);
    let stamp = checkpoint.files().next().unwrap();
    assert_eq!(stamp.contents.len(), 64);
    // Rows 0, 1, 2, 3 of a head lie in places 0, 2, 1, 3.
    for (name, rows) in [("q_proj", 8), ("k_proj", 4)] {
        let name = format!("model.layers.0.self_attn.{name}.weight");
        let tensor = checkpoint.tensor(&name, &[rows, 8]).unwrap();
        let places = (0..rows).map(|row| tensor.row(row).start / 8).collect::<Vec<_>>();
        assert_eq!(places, [0, 2, 1, 3, 4, 6, 5, 7][..rows]);
        let values = tensor.to_f32();
        assert_eq!(values[8] - values[0], 16.0, "row 1 is in place 2");
    }
    let tensor = checkpoint.tensor("model.layers.0.self_attn.v_proj.weight", &[4, 8]).unwrap();
    assert_eq!(tensor.row(1), 8..16);
    // A file is the same model.
    let file = folder.path().join("model.gguf");
    assert_eq!(ModelConfig::from_dir(&file).unwrap(), config);
    Checkpoint::open(&file, LoadMode::Read).unwrap().check(&config).unwrap();
}

#[test]
fn a_model_that_sees_both_ways_is_an_encoder() {
    let mut file = llama();
    file.key("llama.attention.causal", (7, vec![0]));
    let config = ModelConfig::from_dir(folder(&file.bytes()).path()).unwrap();
    assert!(config.architecture.is_encoder() && config.output().is_none());
}

#[test]
fn errors_name_what_the_file_has() {
    let error = |change: &dyn Fn(&mut Gguf)| {
        let mut file = llama();
        change(&mut file);
        ModelConfig::from_dir(folder(&file.bytes()).path()).unwrap_err()
    };
    says(
        &error(&|file| file.set("general.architecture", text("mamba"))),
        &["architecture `mamba`", "supported are llama, mistral3, qwen2, qwen3"],
    );
    says(
        &error(&|file| file.remove("general.architecture")),
        &["`general.architecture` is missing"],
    );
    says(&error(&|file| file.remove("llama.block_count")), &["`llama.block_count` is missing"]);
    says(
        &error(&|file| file.set("llama.block_count", text("two"))),
        &["`llama.block_count` is \"two\": expected an integer"],
    );
    says(
        &error(&|file| file.key("llama.rope.scaling.type", text("ntk"))),
        &["`llama.rope.scaling.type` is \"ntk\""],
    );
    says(
        &error(&|file| {
            file.key("llama.rope.scaling.type", text("yarn"));
            file.key("llama.rope.scaling.attn_factor", f32_value(0.5));
        }),
        &["`llama.rope.scaling.attn_factor` is 0.5", "supported are 1 and"],
    );
    says(
        &error(&|file| file.set("llama.rope.dimension_count", u32_value(2))),
        &["`llama.rope.dimension_count` is 2", "4 dimensions"],
    );
    says(
        &error(&|file| file.key("llama.expert_count", u32_value(8))),
        &["`llama.expert_used_count` is missing"],
    );
    says(
        &error(&|file| {
            file.key("llama.expert_count", u32_value(8));
            file.key("llama.expert_used_count", u32_value(9));
        }),
        &["`llama.expert_used_count` is 9", "8 experts"],
    );
    says(&error(&|file| file.f32("rope_freqs.weight", &[3], &[1.0; 3])), &["3 divisors", "2"]);
    says(&error(&|file| file.f32("rope_freqs.weight", &[2], &[1.0, 0.0])), &["not above 0"]);

    let mut file = llama();
    file.set("llama.attention.head_count", u32_value(3));
    refused(&file.bytes(), &["blk.0.attn_q.weight", "8 rows", "llama.attention.head_count"]);

    let mut file = llama();
    file.f32("blk.0.ffn_up_exps.weight", &[8, 16], &[0.0; 128]);
    refused(&file.bytes(), &["blk.0.ffn_up_exps.weight", "2 dimensions", "has 3"]);
    let mut file = llama();
    file.f32("blk.0.ffn_up_exps.weight", &[2000, 1, 1], &[0.0; 2000]);
    refused(&file.bytes(), &["blk.0.ffn_up_exps.weight", "2000 experts", "1024"]);

    let config = ModelConfig::from_dir(folder(&llama().bytes()).path()).unwrap();
    let mut file = llama();
    file.drop_tensor("blk.0.ffn_up.weight");
    let error = Checkpoint::open(folder(&file.bytes()).path(), LoadMode::Mmap).unwrap();
    says(&error.check(&config).unwrap_err(), &["tensor `blk.0.ffn_up.weight` is missing"]);
}

#[test]
fn a_file_says_how_answers_are_sampled() {
    let mut file = llama();
    file.key("general.sampling.temp", f32_value(0.7));
    file.key("general.sampling.top_k", u32_value(20));
    file.key("general.sampling.top_p", f32_value(0.8));
    file.key("general.sampling.penalty_repeat", f32_value(1.05));
    let folder = folder(&file.bytes());
    let sampling = ModelConfig::from_dir(folder.path()).unwrap().sampling;
    assert_eq!((sampling.temperature, sampling.top_k), (Some(0.7), Some(20)));
    assert_eq!((sampling.top_p, sampling.min_p), (Some(0.8), None));
    assert_eq!(sampling.repetition_penalty, Some(1.05));
    let conversion = Conversion::open(folder.path(), ConvertOptions::new(Float::F32)).unwrap();
    let [config, generation] = conversion.described();
    assert_eq!(generation["repetition_penalty"], serde_json::json!(1.05));
    assert_eq!(generation["do_sample"], true, "or transformers would take no chance");
    assert!(!config.contains_key("temperature"));
}

#[test]
fn tokens_that_must_not_come_are_named() {
    let mut file = llama();
    file.key("tokenizer.ggml.suppress_tokens", integers(&[3, 1, 7]));
    let folder = folder(&file.bytes());
    assert_eq!(ModelConfig::from_dir(folder.path()).unwrap().suppress_tokens, [3, 1]);
    // In Hugging Face layout where transformers looks for them.
    let conversion = Conversion::open(folder.path(), ConvertOptions::new(Float::F32)).unwrap();
    let [config, generation] = conversion.described();
    assert_eq!(generation["suppress_tokens"], serde_json::json!([3, 1, 7]));
    assert!(!config.contains_key("suppress_tokens"));
    file.set("tokenizer.ggml.suppress_tokens", text("none"));
    let error = ModelConfig::from_dir(self::folder(&file.bytes()).path()).unwrap_err();
    says(&error, &["`tokenizer.ggml.suppress_tokens` is \"none\"", "token ids"]);
}

#[test]
fn rope_factors_divide_the_frequencies() {
    let mut file = llama();
    file.f32("rope_freqs.weight", &[2], &[1.0, 8.0]);
    let config = ModelConfig::from_dir(folder(&file.bytes()).path()).unwrap();
    assert_eq!(config.rope().scaling, RopeScaling::Divided(vec![1.0, 8.0]));
    let plain = ModelConfig::from_dir(folder(&llama().bytes()).path()).unwrap().rope().inv_freq();
    assert_eq!(config.rope().inv_freq(), [plain[0], plain[1] / 8.0]);
}

#[test]
fn refuses_damaged_files() {
    let good = llama().bytes();
    // Cut anywhere: within the header, and within the data.
    for kept in (0..good.len()).step_by(7) {
        let folder = folder(&good[..kept]);
        assert!(Checkpoint::open(folder.path(), LoadMode::Mmap).is_err(), "{kept} bytes");
    }
    refused(b"GGU", &["no GGUF file"]);
    refused(b"GGML\x03\0\0\0", &["no GGUF file"]);
    refused(b"GGUF\x03\0", &["truncated", "the version"]);
    refused(b"GGUF\0\0\0\x03", &["big-endian"]);
    refused(b"GGUF\x01\0\0\0", &["version 1", "2 and 3"]);
    refused(b"GGUF\x04\0\0\0", &["version 4"]);
    let counts = |tensors: u64, keys: u64| {
        let mut bytes = b"GGUF\x03\0\0\0".to_vec();
        bytes.extend(u64_bytes(tensors));
        bytes.extend(u64_bytes(keys));
        bytes
    };
    refused(&counts(u64::MAX, 0), &["a list of 18446744073709551615 tensors"]);
    refused(&counts(0, u64::MAX), &["a list of 18446744073709551615 keys"]);
    refused(&good[..good.len() - 1], &["truncated: tensor `blk.0.ffn_down.weight` ends at byte"]);
}

#[test]
fn refuses_values_that_cannot_be() {
    let with = |kind: u32, bytes: &[u8]| {
        let mut file = Gguf::new(3);
        file.key("k", (kind, bytes.to_vec()));
        // What a claim could be believed by.
        file.key("padding", (8, [u64_bytes(64), vec![b'x'; 64]].concat()));
        file.bytes()
    };
    refused(&with(13, &[0; 8]), &["`k`", "unknown type 13"]);
    refused(&with(7, &[2]), &["`k` is neither true nor false"]);
    refused(&with(8, &u64_bytes(u64::MAX)), &["`k` takes at least 18446744073709551615 bytes"]);
    refused(&with(8, &[u64_bytes(1), vec![0xff]].concat()), &["`k` is not UTF-8"]);
    let array_of = |kind: u32, count: u64| [kind.to_le_bytes().to_vec(), u64_bytes(count)].concat();
    refused(&with(9, &array_of(0, u64::MAX)), &["`k` claims 18446744073709551615 elements"]);
    refused(&with(9, &array_of(4, 1 << 24)), &["`k` takes at least 67108864 bytes"]);
    refused(&with(9, &array_of(8, 1 << 20)), &["`k` takes at least 8388608 bytes"]);
    refused(&with(9, &array_of(9, 1)), &["`k` is an array of arrays"]);
    refused(&with(9, &array_of(99, 1)), &["`k`", "unknown type 99"]);
    let mut file = Gguf::new(3);
    file.key("k", u32_value(1));
    file.key("k", u32_value(2));
    refused(&file.bytes(), &["`k` is there twice"]);
    let mut file = Gguf::new(3);
    file.key("", u32_value(1));
    refused(&file.bytes(), &["the name of key 0 is 0 bytes long"]);
    for alignment in [0, 3, 48] {
        let mut file = llama();
        file.key("general.alignment", u32_value(alignment));
        refused(&file.bytes(), &["`general.alignment`", "power of two"]);
    }
    let mut file = llama();
    file.key("general.alignment", array(u64_value(1)));
    refused(&file.bytes(), &["`general.alignment`", "power of two"]);
}

#[test]
fn refuses_tensors_that_cannot_be() {
    let with = |dimensions: &[u64], kind: u32, offset: u64| {
        let mut file = Gguf::new(3);
        file.f32("before", &[8], &[0.0; 8]);
        file.described("t", dimensions, kind, offset, &[0; 4096]);
        file.bytes()
    };
    assert!(Checkpoint::open(folder(&with(&[32], 8, 32)).path(), LoadMode::Mmap).is_ok());
    refused(&with(&[], 0, 32), &["tensor `t` has 0 dimensions"]);
    refused(&with(&[1; 5], 0, 32), &["tensor `t` has 5 dimensions"]);
    refused(&with(&[0, 4], 0, 32), &["tensor `t` has dimensions [0, 4]"]);
    refused(&with(&[1 << 40, 1 << 40], 0, 32), &["which no file can have"]);
    refused(&with(&[1 << 62], 0, 32), &["which no file can have"]);
    refused(&with(&[8], 0, u64::MAX - 31), &["which no file can have"]);
    refused(&with(&[33], 8, 32), &["rows of 33", "blocks of 32 of Q8_0"]);
    refused(&with(&[128], 12, 32), &["rows of 128", "blocks of 256 of Q4_K"]);
    refused(&with(&[8], 0, 33), &["starts at byte 33", "no multiple of 32"]);
    refused(&with(&[8], 0, 0), &["overlaps the tensor before it"]);
    refused(&with(&[8], 0, 1 << 40), &["truncated: tensor `t`"]);
    refused(&with(&[8], 4, 32), &["tensor `t`", "unknown element type 4", "Q4_K", "MXFP4"]);
    let mut file = Gguf::new(3);
    file.f32("t", &[8], &[0.0; 8]);
    file.f32("t", &[8], &[0.0; 8]);
    refused(&file.bytes(), &["tensor `t` is there twice"]);

    // Types that are known and not computed with are listed.
    let folder = folder(&with(&[256, 1], 19, 32));
    let checkpoint = Checkpoint::open(folder.path(), LoadMode::Mmap).unwrap();
    assert_eq!(checkpoint.tensors().last().unwrap().dtype, "IQ1_S");
    let error = checkpoint.tensor("t", &[1, 256]).unwrap_err();
    says(&error, &["`t` has element type IQ1_S", "supported are F32", "IQ4_XS, MXFP4"]);
    let folder = self::folder(&with(&[32], 8, 32));
    let checkpoint = Checkpoint::open(folder.path(), LoadMode::Mmap).unwrap();
    says(&checkpoint.tensor("t", &[32]).unwrap_err(), &["a vector of element type Q8_0"]);
}

/// Three parts, with the keys `split` of each.
fn split(numbers: [u32; 3], count: u32, tensors: u32) -> TempDir {
    let folder = TempDir::new().unwrap();
    for (part, number) in numbers.into_iter().enumerate() {
        let mut file = Gguf::new(3);
        if part == 0 {
            file.key("general.architecture", text("llama"));
        }
        file.key("split.no", u32_value(number));
        file.key("split.count", u32_value(count));
        file.key("split.tensors.count", u32_value(tensors));
        file.f32(&format!("t{part}"), &[2], &[part as f32; 2]);
        let name = format!("m-{:05}-of-00003.gguf", part + 1);
        fs::write(folder.path().join(name), file.bytes()).unwrap();
    }
    folder
}

#[test]
fn parts_are_found_and_belong_together() {
    let folder = split([0, 1, 2], 3, 3);
    for model in [folder.path().to_owned(), folder.path().join("m-00002-of-00003.gguf")] {
        for mode in MODES {
            let checkpoint = Checkpoint::open(&model, mode).unwrap();
            assert_eq!((checkpoint.files().len(), checkpoint.tensors().len()), (3, 3));
            assert_eq!(checkpoint.tensor("t2", &[2]).unwrap().to_f32(), [2.0, 2.0]);
        }
        let metadata = Metadata::of_model(&model).unwrap().unwrap();
        assert_eq!(metadata.text("general.architecture"), Some("llama"));
    }
    let open = |folder: &TempDir| Checkpoint::open(folder.path(), LoadMode::Mmap).unwrap_err();
    says(&open(&split([0, 2, 1], 3, 3)), &["m-00002", "`split.no` is 2"]);
    says(&open(&split([0, 1, 2], 2, 3)), &["m-00001", "`split.count`"]);
    says(&open(&split([0, 1, 2], 3, 4)), &["`split.tensors.count` is 4", "3 tensors"]);
    fs::remove_file(folder.path().join("m-00001-of-00003.gguf")).unwrap();
    says(&open(&folder), &["m-00001-of-00003.gguf", "missing (1 of 3 are)"]);
}

#[test]
fn several_files_of_a_folder_are_listed() {
    let folder = folder(&llama().bytes());
    fs::write(folder.path().join("other.gguf"), llama().bytes()).unwrap();
    let error = Checkpoint::open(folder.path(), LoadMode::Mmap).unwrap_err();
    says(&error, &["several GGUF files", "model.gguf, other.gguf"]);
    says(&ModelConfig::from_dir(folder.path()).unwrap_err(), &["several GGUF files"]);
    // Safetensors come first, as before there was GGUF.
    fs::write(folder.path().join("model.safetensors"), "short").unwrap();
    says(&Checkpoint::open(folder.path(), LoadMode::Mmap).unwrap_err(), &["model.safetensors"]);
}

/// Whatever a byte becomes, a file is read or refused, and nothing panics.
#[test]
fn changed_bytes_do_no_harm() {
    let good = llama().bytes();
    let header = good.len() - 4 * 600;
    let mut state = 1_u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) as usize
    };
    for _ in 0..500 {
        let mut bytes = good.clone();
        for _ in 0..1 + next() % 3 {
            bytes[next() % header] = [0, 1, 0x7f, 0x80, 0xff, next() as u8][next() % 6];
        }
        let folder = folder(&bytes);
        let _ = ModelConfig::from_dir(folder.path());
        let Ok(checkpoint) = Checkpoint::open(folder.path(), LoadMode::Mmap) else { continue };
        let listed: Vec<_> =
            checkpoint.tensors().map(|it| (it.name.to_owned(), it.shape.to_vec())).collect();
        for (name, shape) in listed {
            if let Ok(tensor) = checkpoint.tensor(&name, &shape) {
                assert_eq!(tensor.to_f32().len(), tensor.elements());
            }
        }
    }
}
