//! The KV cache in f16: what it loses, where it is chosen, and what f16 cannot hold.

use std::path::Path;

use xla_session::kernels::Isa;
use xla_session::{InferenceSession, KvFormat, Precision, Result, SessionOptions, Tuning};

use crate::fixtures::{self, Fixture};

fn options(precision: Precision, kv_cache: Option<KvFormat>) -> SessionOptions {
    SessionOptions {
        precision,
        kv_cache,
        cache_dir: Some(fixtures::compiled()),
        ..SessionOptions::default()
    }
}

fn open(folder: &Path, options: &SessionOptions) -> Result<Box<dyn InferenceSession>> {
    xla_session::open(folder, options).map(|opened| opened.session)
}

fn read_logits(session: &mut dyn InferenceSession) -> Vec<f32> {
    let mut logits = Vec::new();
    session.read_logits(&mut logits).unwrap();
    logits
}

/// The logits after `prompt` in a context of its own.
fn logits(session: &mut dyn InferenceSession, prompt: &[u32]) -> Vec<f32> {
    session.reset();
    session.prefill(prompt).unwrap();
    read_logits(session)
}

/// The largest distance of a logit, of the largest logit.
fn error(actual: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(actual.len(), expected.len());
    let scale = expected.iter().fold(0f32, |max, it| max.max(it.abs()));
    actual.iter().zip(expected).map(|(a, e)| (a - e).abs() / scale).fold(0.0, f32::max)
}

/// What a number of f16 is off by at most, of its size.
const ROUNDING: f32 = 1.0 / 2048.0;

/// Widths that are whole vectors and not, a window, convolutions, one and several queries to a key head.
const NAMES: [&str; 4] = [
    "mistral-window-gqa-bf16",
    "llama-gqa-long-bf16",
    "qwen3-mqa-untied-f16",
    "lfm2-layer-types-untied-f16",
];

/// Each key and value is off by up to [`ROUNDING`]. Mixing values and adding what comes of it to the
/// stream makes none of it larger: weights of attention add up to one, and roundings of many columns
/// rather cancel. Scores, sums of many products, move as little. Some layers of both: four times the
/// rounding, of the largest logit, which f32 is within 1e-4 of.
fn check_rounding(fixture: &Fixture, isa: Isa) {
    let of = |format| SessionOptions {
        tuning: Tuning { isa: Some(isa), ..Tuning::default() },
        ..options(Precision::Stored, Some(format))
    };
    let mut rounded = open(&fixture.folder, &of(KvFormat::F16)).unwrap();
    let mut exact = open(&fixture.folder, &of(KvFormat::F32)).unwrap();
    let mut farthest = 0f32;
    for case in &fixture.cases {
        let what = format!("{}, {isa:?}, {} tokens", fixture.name, case.prompt.len());
        let exact_logits = logits(exact.as_mut(), &case.prompt);
        fixtures::assert_close(&exact_logits, &case.logits, &what);
        let off = error(&logits(rounded.as_mut(), &case.prompt), &exact_logits);
        assert!(off <= 4.0 * ROUNDING, "{what}: {off:e}");
        farthest = farthest.max(off);
    }
    assert!(farthest > 1e-5, "{}, {isa:?}: nothing was rounded", fixture.name);
}

#[test]
fn logits_move_by_no_more_than_halves_are_off_by() {
    for fixture in NAMES.map(fixtures::named) {
        for isa in Isa::all_here() {
            check_rounding(&fixture, isa);
        }
    }
}

/// To the bit: the same graphs.
#[test]
fn exact_precisions_keep_f32_and_the_others_f16() {
    let fixture = fixtures::named("llama-gqa-long-bf16");
    let case = &fixture.cases[2];
    for (name, precision) in Precision::ALL {
        let [by_default, f32, f16] =
            [None, Some(KvFormat::F32), Some(KvFormat::F16)].map(|kv_cache| {
                let mut session = open(&fixture.folder, &options(precision, kv_cache)).unwrap();
                logits(session.as_mut(), &case.prompt)
            });
        let exact = matches!(precision, Precision::Stored | Precision::F32);
        assert_eq!(by_default == f32, exact, "{name}");
        assert_eq!(by_default == f16, !exact, "{name}");
    }
}

/// The model of `fixture`, which is in f32, whose first layer has values `by` times as large.
fn with_larger_values(fixture: &Fixture, by: f32) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::copy(fixture.folder.join("config.json"), folder.path().join("config.json")).unwrap();
    let mut bytes = std::fs::read(fixture.folder.join("model.safetensors")).unwrap();
    let (header, metadata) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
    let tensor = metadata.info("model.layers.0.self_attn.v_proj.weight").unwrap();
    let at = 8 + header + tensor.data_offsets.0..8 + header + tensor.data_offsets.1;
    for bytes in bytes[at].as_chunks_mut::<4>().0 {
        *bytes = (f32::from_le_bytes(*bytes) * by).to_le_bytes();
    }
    std::fs::write(folder.path().join("model.safetensors"), bytes).unwrap();
    folder
}

#[test]
fn what_is_too_large_for_a_half_is_an_error_that_says_so() {
    let fixture = fixtures::named("llama-mha-f32");
    let folder = with_larger_values(&fixture, 1e7);
    let prompt = &fixture.cases[1].prompt;
    let of = |format| SessionOptions {
        weights_cache: false,
        ..options(Precision::Stored, Some(format))
    };
    open(folder.path(), &of(KvFormat::F32)).unwrap().prefill(prompt).unwrap();
    let error = open(folder.path(), &of(KvFormat::F16)).unwrap().prefill(prompt).unwrap_err();
    assert!(error.to_string().contains("too large for a KV cache in f16"), "{error}");
}

#[test]
fn graphs_of_gpus_have_no_other_cache() {
    let fixture = fixtures::named("llama-mha-f32");
    let options = SessionOptions {
        tuning: Tuning { cuda_graphs: true, ..Tuning::default() },
        ..options(Precision::Int8, Some(KvFormat::F16))
    };
    let error = open(&fixture.folder, &options).err().unwrap().to_string();
    assert!(error.contains("a KV cache in f16: a GPU keeps it in f32"), "{error}");
}

#[test]
fn an_unknown_format_lists_the_known() {
    let error = "q8_0".parse::<KvFormat>().unwrap_err().to_string();
    assert!(error.contains("q8_0") && error.contains("f32, f16"), "{error}");
}
