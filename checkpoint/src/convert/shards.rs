//! Which tensors lie in which file.

use serde_json::{Map, Value, json};

use super::ConvertOptions;
use super::tensors::Written;

/// The files of a model, each with its tensors, in their order.
pub(super) struct Shards<'a> {
    pub files: Vec<(String, Vec<Written<'a>>)>,
}

impl<'a> Shards<'a> {
    /// As few as hold `tensors`; a tensor that is larger has a file of its own.
    pub fn of(tensors: Vec<Written<'a>>, options: ConvertOptions) -> Self {
        let mut files: Vec<Vec<Written>> = vec![Vec::new()];
        let mut filled = 0;
        for tensor in tensors {
            let bytes = options.dtype.bytes(&tensor);
            if filled > 0 && filled + bytes > options.shard_bytes {
                files.push(Vec::new());
                filled = 0;
            }
            filled += bytes;
            files.last_mut().expect("there is one from the start").push(tensor);
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
            files.flat_map(|(file, tensors)| tensors.iter().map(move |it| (file, it)))
        };
        let total: u64 = all().map(|(_, it)| options.dtype.bytes(it)).sum();
        let places = all().map(|(file, it)| (it.name.clone(), json!(file)));
        let mut index = Map::new();
        index.insert("metadata".into(), json!({"total_size": total}));
        index.insert("weight_map".into(), Value::Object(places.collect()));
        Some(index)
    }
}
