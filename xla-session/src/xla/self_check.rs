//! Whether a device of Vulkan computes what the CPU does: steps of a model of one layer, once for each device,
//! driver and format of weights.
//!
//! Compilers and drivers have faults that no error tells of (docs/vulkan.md). What passed is kept in the
//! cache; without one every process checks once.

use std::collections::{BTreeSet, HashSet};
use std::fs;
use std::sync::Mutex;

use checkpoint::config::ModelConfig;
use half::{bf16, f16};
use iree_rt::vulkan::Gpu;
use iree_rt::{BufferView, Device, Instance};
use kernels::{Format, KV_BLOCK};

use super::compile::{self, Graph};
use super::gpu::GpuModel;
use super::target::{Machine, Target};
use super::weights::Weights;
use super::{Found, iree};
use crate::cache::{Cache, Key, Label};
use crate::emit::builder::ElementType;
use crate::emit::{WeightFormats, WeightSpec, in_rows};
use crate::engine::{Batch, Entry, Loaded as _};
use crate::lower;
use crate::opening::{SessionOptions, Tuning};
use crate::{Error, Result};

/// Two heads of keys, and a head that no vector holds.
const CONFIG: &str = r#"{
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 99,
    "hidden_size": 48, "intermediate_size": 72, "num_hidden_layers": 1,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 12, "hidden_act": "silu",
    "rms_norm_eps": 1e-05, "max_position_embeddings": 128, "rope_theta": 10000.0,
    "tie_word_embeddings": false, "torch_dtype": "float32"
}"#;

/// Largest difference of two logits, of the largest of all of them. Sums of f32 in one order differ by the
/// last bits of exponentials and quotients.
const TOLERANCE: f32 = 1e-4;

/// Checks the device, unless it was checked.
///
/// # Errors
///
/// [`Error::Unsupported`] where it computes something else, which says what; no compiler.
pub(super) fn run(found: &Found, options: &SessionOptions) -> Result<()> {
    let Target::Vulkan(target) = &found.machine.target else { return Ok(()) };
    let asking = iree("asking the device what it is");
    let Some(gpu) = Gpu::of(&found.device).map_err(asking)? else { return Ok(()) };
    static PASSED: Mutex<Option<HashSet<String>>> = Mutex::new(None);
    let stored = found.formats.exceptions.values().copied().chain([found.formats.default]);
    // By name, as formats have no order.
    let mut names = BTreeSet::new();
    for format in stored.map(in_rows) {
        if !names.insert(format.as_str()) {
            continue;
        }
        let parts = [
            "self-check 1".to_owned(),
            iree_rt::IREE_VERSION.into(),
            format!("{target:?} {} {} {}", gpu.name, gpu.uuid, gpu.driver),
            format.as_str().into(),
        ];
        let key = Key::of(parts.iter().map(String::as_bytes));
        let name = key.to_string();
        // A process that failed here once may try again.
        let mut passed = PASSED.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let passed = passed.get_or_insert_default();
        if passed.contains(&name) {
            continue;
        }
        let cache = options.cache_dir.as_ref().and_then(|folder| Cache::open(folder).ok());
        if cache.as_ref().is_none_or(|cache| cache.get(&key).is_none()) {
            check(&found.device, &found.machine, &gpu, format, options)?;
            let label =
                Label { name: "self-check".into(), model: gpu.name.clone(), ..Label::default() };
            if let Some(cache) = &cache {
                // A start does not fail for want of a cache.
                let _ = cache.get_or_make(&key, &label, |writer| writer.write(b"passed"));
            }
        }
        passed.insert(name);
    }
    Ok(())
}

fn check(
    device: &Device,
    machine: &Machine,
    gpu: &Gpu,
    format: Format,
    options: &SessionOptions,
) -> Result<()> {
    let there = logits(device, machine, format, options)?;
    let on_cpu = SessionOptions {
        tuning: Tuning { vulkan_graphs: true, ..Tuning::default() },
        kv_cache: None,
        ..options.clone()
    };
    let cpu = Instance::get().and_then(|instance| instance.device("local-sync"));
    let cpu = cpu.map_err(iree("opening the CPU to check the device by"))?;
    let here = logits(&cpu, &Machine::of(&cpu, &on_cpu)?, format, &on_cpu)?;
    match first_difference(&here, &there) {
        None => Ok(()),
        Some(at) => Err(Error::Unsupported(format!(
            "{} (vulkan://{}, driver {}) computes wrong numbers: in a check with weights in {}, logit {at} of \
             {} is {} and on the CPU {}; use another device, or another driver",
            gpu.name,
            gpu.ordinal,
            gpu.driver,
            format.as_str(),
            here.len(),
            there[at],
            here[at],
        ))),
    }
}

/// The first logit that is not [near](TOLERANCE) to that of the CPU.
fn first_difference(here: &[f32], there: &[f32]) -> Option<usize> {
    let largest = here.iter().fold(0f32, |largest, it| largest.max(it.abs()));
    here.iter().zip(there).position(|(here, there)| {
        // NaN is near to nothing.
        let near = (here - there).abs() <= TOLERANCE * largest;
        !near
    })
}

/// Logits of some tokens of one sequence, read at once, and of one that follows.
fn logits(
    device: &Device,
    machine: &Machine,
    format: Format,
    options: &SessionOptions,
) -> Result<Vec<f32>> {
    let Target::Vulkan(target) = &machine.target else {
        unreachable!("a machine for these graphs")
    };
    let config = config()?;
    let formats = WeightFormats::all(format);
    let graphs = lower::vulkan::some_graphs(&config, &formats, target, &[1, 8], &[8]);
    let texts: Vec<_> = graphs.iter().map(|it| Graph { name: &it.name, text: &it.text }).collect();
    let modules = compile::modules(&texts, machine, "self-check", options)?;
    let specs = lower::paged::weights(&graphs);
    let weights = Weights::made_up(&specs, |spec| made_up(device, spec));
    let weights = weights.map_err(iree("uploading what the device is checked with"))?;
    let most_pages = machine.target.most_pages(&config);
    let graphs = graphs.into_iter().zip(modules).collect();
    let model = GpuModel::new(device.clone(), config, graphs, weights, None, most_pages);
    // The sequence begins in the second page, and goes on in the first.
    let mut executor = model.executor(2, 0)?;
    let tables = [1, 0];
    let slot = |at: usize| tables[at / KV_BLOCK] * KV_BLOCK + at % KV_BLOCK;
    let tokens: Vec<u32> = (0..KV_BLOCK as u32 + 3).map(|at| at * 37 % 99).collect();
    let mut all = Vec::new();
    for rows in [0..8, 8..9, 9..KV_BLOCK, KV_BLOCK..KV_BLOCK + 2, KV_BLOCK + 2..KV_BLOCK + 3] {
        let (start, count) = (rows.start, rows.len());
        executor.run(&Batch {
            tokens: tokens[rows.clone()].to_vec(),
            positions: rows.clone().collect(),
            texts: vec![0; count],
            slots: rows.map(slot).collect(),
            entries: vec![Entry { row: 0, rows: count, start, table: 0, end: start + count }],
            tables: tables.iter().map(|&page| page as u32).collect(),
            states: Vec::new(),
        })?;
        executor.logits(&[0, count - 1], &mut all)?;
    }
    Ok(all)
}

fn config() -> Result<ModelConfig> {
    let failed = |source| Error::Io { path: "config.json".into(), source };
    let folder = tempfile::tempdir().map_err(failed)?;
    fs::write(folder.path().join("config.json"), CONFIG).map_err(failed)?;
    Ok(ModelConfig::from_dir(folder.path())?)
}

/// The planes of a weight, of numbers that differ by name and place.
fn made_up(device: &Device, spec: &WeightSpec) -> iree_rt::Result<Vec<BufferView>> {
    let name = spec.parts[0].0.bytes().fold(1u32, |hash, it| hash.wrapping_mul(31) ^ u32::from(it));
    let plane = |(number, ty): (usize, crate::emit::builder::TensorType)| {
        let mut state = name.wrapping_add(number as u32).wrapping_mul(2_654_435_761) | 1;
        let mut next = || {
            // Marsaglia's xorshift.
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        };
        let count: usize = ty.dims.iter().product();
        // Vectors are norms, and scales are small.
        let (middle, by) = match (spec.columns, number) {
            (0, _) => (1.0, 0.25),
            (_, 0) => (0.0, 0.3),
            _ => (0.003, 0.001),
        };
        let numbers: Vec<f32> = (0..count).map(|_| middle + by * next()).collect();
        match ty.element {
            ElementType::F32 => device.buffer_view(&ty.dims, &numbers),
            ElementType::F16 => {
                let numbers: Vec<_> = numbers.into_iter().map(f16::from_f32).collect();
                device.buffer_view(&ty.dims, &numbers)
            }
            ElementType::Bf16 => {
                let numbers: Vec<_> = numbers.into_iter().map(bf16::from_f32).collect();
                device.buffer_view(&ty.dims, &numbers)
            }
            _ => {
                let bytes: Vec<_> = numbers.into_iter().map(|it| (it * 127.0 / by) as i8).collect();
                device.buffer_view(&ty.dims, &bytes)
            }
        }
    };
    spec.planes().into_iter().enumerate().map(plane).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_number_is_found_and_a_rounding_is_not() {
        let cpu = [3.0, -0.5, 0.0, 2.0];
        assert_eq!(first_difference(&cpu, &cpu), None);
        assert_eq!(first_difference(&cpu, &[3.0, -0.5002, 1e-5, 2.0]), None);
        assert_eq!(first_difference(&cpu, &[3.0, -0.5004, 0.0, 2.0]), Some(1));
        assert_eq!(first_difference(&cpu, &[3.0, -0.5, f32::NAN, 2.0]), Some(2));
        assert_eq!(first_difference(&cpu, &[0.0; 4]), Some(0));
    }
}
