//! Matrices as compressed-tensors has them ("pack-quantized"): integers plus their middle, in words of 32
//! bits, the first in the lowest ones, and a scale for each 32 columns of a row.

use half::f16;
use rayon::prelude::*;
use safetensors::Dtype;
use serde_json::{Map, Value, json};

use crate::grid::{GROUP, LEAST};
use crate::rounding::Rounded;
use crate::rows::Rows;

/// A tensor that is written.
pub(crate) struct Tensor {
    pub name: String,
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    pub bytes: Vec<u8>,
}

impl Tensor {
    /// Floats as they are.
    pub fn floats(name: &str, shape: &[usize], values: &[f32]) -> Self {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        Self { name: name.into(), dtype: Dtype::F32, shape: shape.into(), bytes }
    }
}

/// The tensors of the matrix of four bits that is called `name`.
pub(crate) fn four_bits(name: &str, matrix: &Rounded) -> Vec<Tensor> {
    let code = |q: i8| (q - LEAST as i8) as u8;
    let pairs = matrix.integers.as_chunks::<2>().0.iter();
    let bytes = pairs.map(|[low, high]| code(*low) | code(*high) << 4).collect();
    tensors(name, matrix.columns, 8, bytes, &matrix.scales)
}

/// The tensors of the matrix called `name` in eight bits, rounded to the nearest; `None` where a scale or
/// a weight is no number of f16.
pub(crate) fn eight_bits(name: &str, weights: &Rows) -> Option<Vec<Tensor>> {
    let scale = |group: &[f32]| {
        f16::from_f32(group.iter().fold(0.0_f32, |most, weight| most.max(weight.abs())) / 127.0)
    };
    let scales: Vec<f16> = weights.values.par_chunks(GROUP).map(scale).collect();
    let groups = weights.values.par_chunks(GROUP).zip(&scales);
    let bytes = groups.flat_map_iter(|(group, scale)| {
        let scale = scale.to_f32();
        let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
        group.iter().map(move |weight| {
            ((weight * inverse).round_ties_even().clamp(-127.0, 127.0) as i16 + 128) as u8
        })
    });
    let all = scales.iter().all(|scale| scale.is_finite());
    let finite = all && weights.values.iter().all(|weight| weight.is_finite());
    finite.then(|| tensors(name, weights.width, 4, bytes.collect(), &scales))
}

fn tensors(
    name: &str,
    columns: usize,
    of_word: usize,
    bytes: Vec<u8>,
    scales: &[f16],
) -> Vec<Tensor> {
    let groups = columns / GROUP;
    let rows = scales.len() / groups;
    let shape = [rows, columns].map(|n| (n as i64).to_le_bytes()).concat();
    let scales = scales.iter().flat_map(|scale| scale.to_le_bytes()).collect();
    let part = |part: &str, dtype, shape: &[usize], bytes| Tensor {
        name: format!("{name}_{part}"),
        dtype,
        shape: shape.into(),
        bytes,
    };
    vec![
        part("packed", Dtype::I32, &[rows, columns / of_word], bytes),
        part("scale", Dtype::F16, &[rows, groups], scales),
        part("shape", Dtype::I64, &[2], shape),
    ]
}

/// Adds to `config`, which is config.json, how the matrices are encoded; those called `whole` are not.
pub(crate) fn describe(config: &mut Map<String, Value>, eight: &[&str], whole: &[&str]) {
    let module = |name: &&str| name.trim_end_matches(".weight").to_owned();
    let group = |targets: Value, bits: usize| {
        json!({
            "targets": targets,
            "weights": {
                "num_bits": bits,
                "type": "int",
                "symmetric": true,
                "strategy": "group",
                "group_size": GROUP,
                "dynamic": false,
            },
            "input_activations": null,
            "output_activations": null,
            "format": "pack-quantized",
        })
    };
    let eight: Vec<_> = eight.iter().map(module).collect();
    let whole: Vec<_> = whole.iter().map(module).collect();
    let mut groups = Map::new();
    groups.insert("group_0".into(), group(json!(["Linear"]), 4));
    if !eight.is_empty() {
        groups.insert("group_1".into(), group(json!(eight), 8));
    }
    let quantisation = json!({
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "quantization_status": "compressed",
        "config_groups": groups,
        "ignore": whole,
    });
    config.insert("quantization_config".into(), quantisation);
}
