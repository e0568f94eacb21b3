//! Weights that are made up: how fast a shape runs depends on their size, not on what they say.

use std::collections::BTreeMap;
use std::path::Path;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use sha2::{Digest, Sha256};

use crate::architecture::{Parameter, Role};
use crate::config::ModelConfig;
use crate::header::Entry;
use crate::tensor::RowOrder;
use crate::{Dtype, Error, Result};

/// Of projections and embeddings: uniform with the standard deviation of `initializer_range`.
const LARGEST: f32 = 0.02 * 1.732_050_8;

/// Tensors begin in different places of what is made, so that no two are the same; bytes.
const SPREAD: usize = 1 << 20;

/// Made-up weights of a model.
pub(crate) struct Random {
    pub tensors: BTreeMap<String, Entry>,
    /// What the entries are parts of: many of them of the same bytes.
    pub bytes: Vec<u8>,
    /// SHA-256 of what decides them.
    pub digest: String,
}

impl Random {
    /// The weights of the model whose `config.json` is in `folder`, in the element type that it
    /// says (bf16 where it says none): the same ones each time.
    pub fn new(folder: &Path) -> Result<Self> {
        let config = ModelConfig::from_dir(folder)?;
        let path = folder.join("config.json");
        let text = std::fs::read(&path).map_err(Error::io(&path))?;
        let json: serde_json::Value = serde_json::from_slice(&text).unwrap_or_default();
        let name = json["dtype"].as_str().or(json["torch_dtype"].as_str());
        let dtype = match name {
            Some("float32") => Dtype::F32,
            Some("float16") => Dtype::F16,
            _ => Dtype::BF16,
        };
        let size = dtype.bytes_of(1);
        let largest = config.tensors().map(Parameter::elements).max().unwrap_or(0) * size;
        // Norms multiply by one; they come first.
        let norms = config.tensors().filter(|it| it.role == Role::Norm);
        let norms = norms.map(Parameter::elements).max();
        let ones = norms.unwrap_or(0) * size;
        let mut bytes = vec![0; ones + SPREAD + largest];
        fill(&mut bytes, ones, dtype);

        let mut random = ChaCha8Rng::seed_from_u64(1);
        let tensors = config.tensors().map(|parameter| {
            let start = match parameter.role {
                Role::Norm => 0,
                _ => ones + random.next_u32() as usize % (SPREAD / size) * size,
            };
            let end = start + parameter.elements() * size;
            let (start, end) = (start as u64, end as u64);
            let dtype_name = format!("{dtype:?}");
            let Parameter { name, shape, .. } = parameter.clone();
            let (dtype, rows) = (Some(dtype), RowOrder::Stored);
            (name, Entry { dtype, dtype_name, shape, start, end, rows })
        });
        let tensors = tensors.collect();
        let digest = format!("random 1 {:x}", Sha256::digest(&text));
        Ok(Self { tensors, bytes, digest })
    }
}

/// Ones, then numbers between `±LARGEST`.
fn fill(bytes: &mut [u8], ones: usize, dtype: Dtype) {
    let mut random = ChaCha8Rng::seed_from_u64(0);
    let mut next = |at: usize| {
        let unit = f32::from(random.next_u32() as u16) / 32768.0 - 1.0;
        if at < ones { 1.0 } else { unit * LARGEST }
    };
    match dtype {
        Dtype::F32 => {
            for (i, out) in bytes.as_chunks_mut().0.iter_mut().enumerate() {
                *out = next(i * 4).to_le_bytes();
            }
        }
        Dtype::F16 => {
            for (i, out) in bytes.as_chunks_mut().0.iter_mut().enumerate() {
                *out = half::f16::from_f32(next(i * 2)).to_le_bytes();
            }
        }
        _ => {
            for (i, out) in bytes.as_chunks_mut().0.iter_mut().enumerate() {
                *out = half::bf16::from_f32(next(i * 2)).to_le_bytes();
            }
        }
    }
}
