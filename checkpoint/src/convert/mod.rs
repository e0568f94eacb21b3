//! Any model that is read here, as a folder in Hugging Face layout that other programs read: one
//! element type, nothing quantised.
//!
//! The modules in reading order: what the folder's configuration says (`config`), of which parameters its
//! tensors are (`tensors`), what is undone of their values (`undone`), what was trained beside them (`adapter`), in
//! which file they lie (`shards`), how one file is written (`file`).

mod adapter;
mod config;
mod file;
mod shards;
mod tensors;
mod undone;

use std::ops::ControlFlow;
use std::path::Path;

use serde_json::{Map, Value, json};

use crate::architecture::Parameter;
use crate::config::ModelConfig;
use crate::{Checkpoint, Error, FileStamp, LoadMode, Result, Tensor};

use adapter::Adapter;
use config::Described;
use tensors::{Written, written};
use undone::Undone;

/// The element type of what is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Float {
    /// Every value as it is.
    F32,
    /// Values rounded to the nearest.
    F16,
    /// As [`Float::F16`], to the upper half of single precision.
    BF16,
}

/// What is written of a model.
#[derive(Debug, Clone, Copy)]
pub struct ConvertOptions {
    /// The element type of all tensors.
    pub dtype: Float,
    /// Bytes of tensors from which on another file is begun.
    pub shard_bytes: u64,
}

impl ConvertOptions {
    /// Files of at most 5 GB, as Hugging Face has them.
    pub fn new(dtype: Float) -> Self {
        Self { dtype, shard_bytes: 5_000_000_000 }
    }
}

/// A model that is about to be converted.
#[derive(Debug)]
pub struct Conversion {
    checkpoint: Checkpoint,
    /// Of the result.
    config: ModelConfig,
    described: Described,
    options: ConvertOptions,
    changes: Changes,
}

/// What is written of a row other than the model has.
#[derive(Debug)]
struct Changes {
    undone: Undone,
    adapters: Vec<Adapter>,
}

impl Changes {
    /// Row `row` of `parameter`, which the model has as `tensor`, as it is written.
    fn row(&self, tensor: &Tensor, parameter: &Parameter, row: usize, values: &mut [f32]) {
        self.undone.row(tensor, parameter, row, values);
        // All add to the same.
        if let Some(whole) = self.adapters.iter().find_map(|it| it.whole(&parameter.name)) {
            values.copy_from_slice(&whole[row * values.len()..][..values.len()]);
        }
        self.adapters.iter().for_each(|it| it.add(parameter, row, values));
    }

    /// All rows.
    fn values(&self, tensor: &Tensor, parameter: &Parameter) -> Vec<f32> {
        let mut values = vec![0.0; parameter.elements()];
        let columns = parameter.elements() / parameter.rows();
        for (row, values) in values.chunks_exact_mut(columns).enumerate() {
            self.row(tensor, parameter, row, values);
        }
        values
    }
}

impl Conversion {
    /// Opens `model`, a folder or a GGUF file, and checks all that is said of its tensors.
    ///
    /// # Errors
    ///
    /// As [`Checkpoint::open_with_config`].
    pub fn open(model: &Path, options: ConvertOptions) -> Result<Self> {
        let (checkpoint, source) = Checkpoint::open_with_config(model, LoadMode::Mmap)?;
        let described = Described::read(model, &source, options.dtype)?;
        let config = described.parse(model)?;
        let undone = Undone::of(&source.architecture, &config.architecture);
        let changes = Changes { undone, adapters: Vec::new() };
        Ok(Self { checkpoint, config, described, options, changes })
    }

    /// The same with the LoRA adapter in `folder` (`adapter_config.json` and `adapter_model.safetensors`, as PEFT
    /// keeps them) added to the weights in f32, `strength` times as strong as it was trained; tensors that were trained
    /// whole (`modules_to_save`) are as they are. It is in memory, in f32.
    ///
    /// # Errors
    ///
    /// A file of it cannot be read, is of another kind than LoRA (or of DoRA), or is for another model; or it has a
    /// tensor as a whole that another adapter has otherwise.
    pub fn with_adapter(mut self, folder: &Path, strength: f32) -> Result<Self> {
        let adapter = Adapter::open(folder, strength, &self.config)?;
        let mut others = self.changes.adapters.iter();
        if let Some(name) = others.find_map(|other| adapter.contradicts(other)) {
            let message = format!("it has all of `{name}`, as another adapter has it otherwise");
            return Err(Error::Checkpoint { path: folder.to_owned(), message });
        }
        self.changes.adapters.push(adapter);
        Ok(self)
    }

    /// What the model is, as the result says it.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// `config.json` of the result, and `generation_config.json`, which is empty where there is none.
    pub fn described(&self) -> [&Map<String, Value>; 2] {
        [&self.described.config, &self.described.generation]
    }

    /// The values of a tensor of the result, row-major.
    ///
    /// # Errors
    ///
    /// As [`Checkpoint::get`].
    pub fn values(&self, parameter: &Parameter) -> Result<Vec<f32>> {
        Ok(self.changes.values(&self.checkpoint.get(parameter)?, parameter))
    }

    /// The model's files, with what tells whether they have changed.
    pub fn files(&self) -> impl ExactSizeIterator<Item = FileStamp> {
        self.checkpoint.files()
    }

    /// Bytes of all tensors that [`write`](Self::write) writes.
    pub fn bytes(&self) -> u64 {
        written(&self.config).iter().map(|it| self.options.dtype.bytes(it)).sum()
    }

    /// Writes `config.json`, `generation_config.json` and the tensors into `folder`, which is there, and
    /// says of each piece how many bytes it had; when `wrote` breaks off, so does this, with a folder that
    /// is of no use.
    ///
    /// # Errors
    ///
    /// A tensor cannot be read, has a value that the element type cannot hold, or a file cannot be
    /// written.
    pub fn write(
        &self,
        folder: &Path,
        wrote: &mut dyn FnMut(u64) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>> {
        write_json(&folder.join("config.json"), &self.described.config)?;
        if !self.described.generation.is_empty() {
            write_json(&folder.join("generation_config.json"), &self.described.generation)?;
        }
        let Self { checkpoint, options, changes, .. } = self;
        let shards = shards::Shards::of(written(&self.config), *options);
        for (name, tensors) in &shards.files {
            let path = folder.join(name);
            let file = file::Writer { path: &path, dtype: options.dtype, checkpoint, changes };
            if file.write(tensors, wrote)?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        if let Some(index) = shards.index(*options) {
            write_json(&folder.join("model.safetensors.index.json"), &index)?;
        }
        Ok(ControlFlow::Continue(()))
    }
}

impl Float {
    /// Its name in configurations: "bfloat16".
    fn torch(self) -> &'static str {
        match self {
            Self::F32 => "float32",
            Self::F16 => "float16",
            Self::BF16 => "bfloat16",
        }
    }

    fn size(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::BF16 => 2,
        }
    }

    /// Bytes of a tensor.
    fn bytes(self, tensor: &Written) -> u64 {
        (tensor.elements() * self.size()) as u64
    }
}

fn write_json(path: &Path, map: &Map<String, Value>) -> Result<()> {
    let mut text = serde_json::to_string_pretty(&json!(map)).unwrap_or_default();
    text.push('\n');
    std::fs::write(path, text).map_err(Error::io(path))
}
