//! Which tensors lie in which file.

use serde_json::{Map, Value, json};

use super::ConvertOptions;
use crate::architecture::Parameter;
use crate::config::ModelConfig;

/// The files of a model, each with its tensors, in the order in which a token meets them.
pub(super) struct Shards<'a> {
    pub files: Vec<(String, Vec<&'a Parameter>)>,
}

impl<'a> Shards<'a> {
    /// As few as hold the model's tensors; a tensor that is larger has a file of its own.
    pub fn of(config: &'a ModelConfig, options: ConvertOptions) -> Self {
        let mut files: Vec<Vec<&Parameter>> = vec![Vec::new()];
        let mut filled = 0;
        for parameter in config.tensors() {
            let bytes = options.dtype.bytes(parameter);
            if filled > 0 && filled + bytes > options.shard_bytes {
                files.push(Vec::new());
                filled = 0;
            }
            filled += bytes;
            files.last_mut().expect("there is one from the start").push(parameter);
        }
        let count = files.len();
        let name = |number: usize| match count {
            1 => "model.safetensors".to_owned(),
            _ => format!("model-{:05}-of-{count:05}.safetensors", number + 1),
        };
        let files = files.into_iter().enumerate();
        Self { files: files.map(|(number, tensors)| (name(number), tensors)).collect() }
    }

    /// Where to find each tensor; `None` where one file has them all.
    pub fn index(&self, options: ConvertOptions) -> Option<Map<String, Value>> {
        if self.files.len() == 1 {
            return None;
        }
        let all = || {
            let files = self.files.iter();
            files.flat_map(|(file, tensors)| tensors.iter().map(move |it| (file, *it)))
        };
        let total: u64 = all().map(|(_, it)| options.dtype.bytes(it)).sum();
        let places = all().map(|(file, it)| (it.name.clone(), json!(file)));
        let mut index = Map::new();
        index.insert("metadata".into(), json!({"total_size": total}));
        index.insert("weight_map".into(), Value::Object(places.collect()));
        Some(index)
    }
}
