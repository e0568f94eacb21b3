//! What makes keys and values of latent attention, where it lies as two tensors, as GGUF files have it: `k_b_proj`, of
//! each head the columns of what makes its key, and `v_b_proj`, of each the rows of what makes its value. Hugging Face
//! has one, `kv_b_proj`, of each head the rows of both.

use crate::file::WeightFile;
use crate::header::Entry;
use crate::tensor::Tensor;
use crate::{Dtype, Result};

/// The names of the two tensors in the place of the one called `name`.
pub(crate) fn names(name: &str) -> Option<[String; 2]> {
    let module = name.strip_suffix(".kv_b_proj.weight")?;
    Some(["k_b", "v_b"].map(|part| format!("{module}.{part}_proj.weight")))
}

/// The two, each in its file and with its type.
pub(crate) struct Apart<'a>(pub [(&'a WeightFile, &'a Entry, Dtype); 2]);

impl<'a> Apart<'a> {
    /// Heads, and the widths of a head's key, of its value, and of what they are made of; `None` where the shapes of
    /// both do not fit each other.
    fn sizes(&self) -> Option<[usize; 4]> {
        let [(_, keys, _), (_, values, _)] = &self.0;
        match (&keys.shape[..], &values.shape[..]) {
            (&[heads, rank, key], &[also_heads, value, also_rank]) => {
                let fit = heads == also_heads && rank == also_rank;
                fit.then_some([heads, key, value, rank])
            }
            _ => None,
        }
    }

    /// The shape of the tensor in their place.
    pub fn shape(&self) -> Option<[usize; 2]> {
        let [heads, key, value, rank] = self.sizes()?;
        Some([heads * (key + value), rank])
    }

    /// Its type: theirs, where both are floats of one, else f32.
    pub fn dtype(&self) -> Dtype {
        let [keys, values] = self.0.map(|(.., dtype)| dtype);
        if keys == values && keys.block().0 == 1 { keys } else { Dtype::F32 }
    }

    /// Their bytes.
    pub fn bytes(&self) -> u64 {
        self.0.iter().map(|(_, entry, _)| entry.bytes()).sum()
    }

    /// That tensor, which has a [shape](Self::shape).
    pub fn joined(&self) -> Result<Tensor<'a>> {
        let Some([heads, key, value, rank]) = self.sizes() else { unreachable!("it has a shape") };
        let dtype = self.dtype();
        let size = dtype.bytes_of(1);
        let [keys, values] = self.0.map(|(file, entry, own)| file.tensor(entry, own));
        let (keys, values) = (keys?, values?);
        let [of_keys, of_values] = [&keys, &values].map(|tensor| tensor.bytes_as(dtype));
        let mut bytes = Vec::with_capacity(of_keys.len() + of_values.len());
        for head in 0..heads {
            for (row, column) in (0..key).flat_map(|row| (0..rank).map(move |it| (row, it))) {
                let at = ((head * rank + column) * key + row) * size;
                bytes.extend_from_slice(&of_keys[at..at + size]);
            }
            let of_one = value * rank * size;
            bytes.extend_from_slice(&of_values[head * of_one..(head + 1) * of_one]);
        }
        let shape = vec![bytes.len() / size / rank, rank];
        Ok(Tensor::made(&self.0[0].0.path, dtype, shape, bytes))
    }
}
