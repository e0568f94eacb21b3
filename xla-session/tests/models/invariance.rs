//! Batch invariance: the bits of a row's logits depend on the tokens before it, and on nothing else:
//! not on other rows, on where a text was cut, on whether its beginning came from the prefix cache or was
//! run again, nor on threads.

use std::path::Path;

use xla_session::kernels::Isa;
use xla_session::{Engine, LoadMode, Model, Output, Precision, Run, SessionOptions, Tuning, Want};

use crate::fixtures::random::Random;
use crate::fixtures::streams::{Seen, Stream, finish, largest, with_pages};
use crate::fixtures::{self, Fixture};

const SEED: u64 = 1717;

/// Matrices of whole vectors, whose floats are compressed; a window and odd widths; biases, norms of
/// queries and keys, the other types of weights; sinks and clamped gates; states.
const SOME: [&str; 6] = [
    "llama-gqa-long-bf16",
    "qwen3-layer-types-bf16",
    "gemma2-gqa-tied-bf16",
    "qwen2-moe-shared-gqa-bf16",
    "gpt-oss-gqa-bf16",
    "qwen3-5-gqa-bf16",
];

/// Of those what formats differ by that have everything but their products in common with int8: whole groups; odd
/// widths, an output projection that is the embedding; experts.
const OF_PRODUCTS: [&str; 3] =
    ["llama-gqa-long-bf16", "gemma2-gqa-tied-bf16", "qwen2-moe-shared-gqa-bf16"];

/// Where a model runs: the device and its threads.
type Place = (&'static str, Option<usize>);

const ALONE: Place = ("local-sync", None);

/// And how many sequences there are at once.
const PLACES: [(Place, usize); 4] = [
    (ALONE, 7),
    (("local-task", Some(1)), 16),
    (("local-task", Some(2)), 64),
    (("local-task", Some(3)), 2),
];

/// A sketch, which matrices as small as here do not have by themselves, picks tokens.
fn options(precision: Precision, compress: bool) -> SessionOptions {
    SessionOptions {
        precision,
        tuning: Tuning { sketch: Some(true), compress, ..Tuning::default() },
        cache_dir: Some(fixtures::compiled()),
        ..SessionOptions::default()
    }
}

fn open(folder: &Path, options: &SessionOptions, (device, threads): Place) -> Model {
    let options = SessionOptions { device: Some(device.into()), threads, ..options.clone() };
    Model::open(folder, &options).unwrap()
}

/// An engine with so many pages.
fn engine(model: &Model, pages: usize) -> Engine {
    Engine::new(model, &with_pages(model, pages)).unwrap()
}

/// Tokens, and the bits of the logits after each, run one at a time with nothing beside them.
struct Text {
    tokens: Vec<u32>,
    /// `[tokens, vocab_size]`
    logits: Vec<Vec<u32>>,
}

/// Texts of 2 to `longest` tokens, some of which begin as others do.
fn texts(model: &Model, count: usize, longest: usize, random: &mut Random) -> Vec<Text> {
    let vocab_size = model.config().vocab_size;
    let mut engine = engine(model, longest.div_ceil(64));
    let mut texts: Vec<Text> = Vec::new();
    for _ in 0..count {
        let mut tokens = match texts.len() {
            0 => Vec::new(),
            some if random.below(2) == 0 => {
                let like = &texts[random.below(some)].tokens;
                like[..random.below(like.len())].to_vec()
            }
            _ => Vec::new(),
        };
        let length = 2 + random.below(longest - 1);
        while tokens.len() < length {
            tokens.push(random.below(vocab_size) as u32);
        }
        let mut sequence = engine.sequence();
        engine.pages().forget_prefixes();
        let logits = tokens.iter().map(|&token| {
            let run = Run { sequence: &mut sequence, tokens: &[token], want: Want::Logits };
            let Some(Output::Logits(logits)) = engine.step(&mut [run]).unwrap().pop() else {
                panic!("logits were wanted")
            };
            logits.into_iter().map(f32::to_bits).collect()
        });
        texts.push(Text { logits: logits.collect(), tokens });
    }
    texts
}

/// That rows of `texts` have their bits in steps of many sequences.
fn check(model: &Model, texts: &[Text], sequences: usize, random: &mut Random, what: &str) {
    // About half of what they want at once.
    let pages: usize = texts.iter().map(|text| text.tokens.len().div_ceil(64)).sum();
    let longest = texts.iter().map(|text| text.tokens.len().div_ceil(64)).max().unwrap();
    let mut engine = engine(model, (pages * sequences / texts.len() / 2).max(longest + 1));
    let streams = (0..sequences).map(|_| {
        let text = random.below(texts.len());
        let tokens = texts[text].tokens.clone();
        let prompt = random.below(tokens.len());
        Stream { text, tokens, prompt, sequence: engine.sequence() }
    });
    let streams = streams.collect();
    let mut rows = 0;
    let mut same = |stream: &Stream, at: usize, seen: Seen<'_>| {
        rows += 1;
        let expected = &texts[stream.text].logits[at];
        let what = || format!("{what}, {sequences} sequences, seed {SEED}: position {at}");
        match seen {
            Seen::Token(token) => {
                let expected: Vec<_> = expected.iter().map(|&bits| f32::from_bits(bits)).collect();
                assert_eq!(token, largest(&expected), "{}", what());
            }
            Seen::Logits(logits) => {
                let differ =
                    logits.iter().zip(expected).filter(|(logit, bits)| logit.to_bits() != **bits);
                assert_eq!(differ.count(), 0, "{}: logits that differ", what());
            }
        }
    };
    finish(&mut engine, streams, random, &mut same);
    assert!(rows > sequences, "{what}: {rows} rows were looked at");
}

/// All instruction sets that are here, compressed and not.
fn every_isa(names: &[&str], precision: Precision) {
    let compressible = matches!(precision, Precision::Stored | Precision::F32 | Precision::Bf16);
    for name in names {
        let fixture = fixtures::named(name);
        for compress in [true, false].into_iter().take(1 + usize::from(compressible)) {
            every_isa_of(&fixture.folder, &options(precision, compress), name);
        }
    }
}

fn every_isa_of(folder: &Path, options: &SessionOptions, name: &str) {
    let mut random = Random::new(SEED);
    for (turn, isa) in Isa::all_here().into_iter().enumerate() {
        let tuning = Tuning { isa: Some(isa), ..options.tuning.clone() };
        let options = SessionOptions { tuning, ..options.clone() };
        let alone = open(folder, &options, ALONE);
        let texts = texts(&alone, 4, 140, &mut random);
        let places = match isa == Isa::detect() {
            true => &PLACES[..],
            false => &PLACES[turn % PLACES.len()..][..1],
        };
        for &(place, sequences) in places {
            let model = open(folder, &options, place);
            let (precision, isa) = (options.precision.as_str(), isa.as_str());
            let compress = options.tuning.compress;
            let what = format!("{name} {precision}, {isa}, compressed {compress}, {place:?}");
            check(&model, &texts, sequences, &mut random, &what);
        }
    }
}

/// The fixture, which is in bf16, with some weights of many sizes, so that a compressed block has more
/// exponents than it has names for.
fn with_many_exponents(fixture: &Fixture) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::copy(fixture.folder.join("config.json"), folder.path().join("config.json")).unwrap();
    let mut bytes = std::fs::read(fixture.folder.join("model.safetensors")).unwrap();
    let (header, metadata) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
    let mut random = Random::new(SEED);
    for (_, tensor) in metadata.tensors() {
        assert_eq!(tensor.dtype, safetensors::Dtype::BF16);
        let at = 8 + header + tensor.data_offsets.0..8 + header + tensor.data_offsets.1;
        let weights = bytes[at].as_chunks_mut::<2>().0;
        for weight in weights.iter_mut().step_by(23).filter(|_| tensor.shape.len() == 2) {
            let scale = 2f32.powi(random.below(20) as i32 - 15);
            let scaled = half::bf16::from_le_bytes(*weight).to_f32() * scale;
            *weight = half::bf16::from_f32(scaled).to_le_bytes();
        }
    }
    std::fs::write(folder.path().join("model.safetensors"), bytes).unwrap();
    folder
}

#[test]
fn weights_with_rare_exponents_are_added_in_one_order() {
    let name = "llama-gqa-long-bf16";
    let folder = with_many_exponents(&fixtures::named(name));
    for precision in [Precision::Stored, Precision::F32, Precision::Bf16] {
        let options = SessionOptions { weights_cache: false, ..options(precision, true) };
        every_isa_of(folder.path(), &options, name);
    }
}

#[test]
fn rows_as_stored_have_the_same_bits_in_any_company() {
    every_isa(&["llama-gqa-long-bf16", "llama-llama3-biases-mqa-f16"], Precision::Stored);
}

#[test]
fn rows_in_f32_have_the_same_bits_in_any_company() {
    every_isa(&["llama-mha-f32", "qwen3-mqa-untied-f16"], Precision::F32);
}

#[test]
fn rows_in_bf16_have_the_same_bits_in_any_company() {
    every_isa(&SOME, Precision::Bf16);
}

#[test]
fn rows_in_int8_have_the_same_bits_in_any_company() {
    every_isa(&SOME, Precision::Int8);
}

#[test]
fn rows_in_w8a8_have_the_same_bits_in_any_company() {
    every_isa(&OF_PRODUCTS, Precision::W8a8);
}

#[test]
fn rows_in_int4_have_the_same_bits_in_any_company() {
    every_isa(&OF_PRODUCTS, Precision::Int4);
}

/// What `cargo xtask test --all` adds.
mod long {
    use super::*;

    #[test]
    #[ignore = "long: cargo xtask test --all"]
    fn rows_of_every_fixture_have_the_same_bits_in_any_company() {
        let all = fixtures::all();
        let names: Vec<_> = all.iter().map(|fixture| fixture.name.as_str()).collect();
        for (_, precision) in Precision::ALL {
            every_isa(&names, precision);
        }
    }

    /// Of the shape of Llama-3.2-1B, with random weights.
    #[test]
    #[ignore = "long: cargo xtask test --all"]
    fn rows_of_1b_have_the_same_bits_in_any_company() {
        let folder = tempfile::tempdir().unwrap();
        let config = serde_json::json!({
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 128_256,
            "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
            "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64,
            "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "rope_theta": 500_000.0,
            "tie_word_embeddings": true, "hidden_act": "silu", "torch_dtype": "bfloat16",
        });
        std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
        for precision in [Precision::Int4, Precision::Stored] {
            let mut random = Random::new(SEED);
            let options =
                SessionOptions { load_mode: LoadMode::Random, ..options(precision, true) };
            let model = open(folder.path(), &options, ("local-task", None));
            let texts = texts(&model, 4, 20, &mut random);
            check(&model, &texts, 16, &mut random, precision.as_str());
        }
    }
}
