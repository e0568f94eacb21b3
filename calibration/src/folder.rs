//! The folder that is made: a file for each layer, written when the layer is finished, and what a run that
//! was stopped needs to go on. `config.json` comes last, so that what is not finished is no model yet.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};

use safetensors::SafeTensors;
use safetensors::tensor::TensorView;
use serde_json::{Map, Value, json};

use crate::encoding::Tensor;
use crate::rows::Rows;
use crate::{Error, Result};

/// Where a run that is not finished keeps what it knows.
const PROGRESS: &str = "quantize.progress";

/// A folder that is being made.
pub(crate) struct Folder {
    path: PathBuf,
    /// Files of tensors.
    files: usize,
    /// What is made of what: another run goes on only with the same.
    of: Value,
}

/// How far a run has come.
pub(crate) struct Progress {
    /// Layers that are finished.
    pub layers: usize,
    /// What the rounded ones give, and what the model's own do.
    pub streams: [Rows; 2],
}

impl Folder {
    /// Makes the folder, or opens one of which a run with the same `of` has made a part.
    pub fn open(path: &Path, files: usize, of: Value) -> Result<(Self, Option<Progress>)> {
        fs::create_dir_all(path).map_err(Error::io(path))?;
        let folder = Self { path: path.into(), files, of };
        let progress = folder.progress()?;
        if progress.is_none() {
            let mut there = fs::read_dir(path).map_err(Error::io(path))?;
            if there.next().is_some() {
                return Err(folder.refuse("not empty; give a folder that is not there yet"));
            }
        }
        Ok((folder, progress))
    }

    fn refuse(&self, message: &str) -> Error {
        Error::Folder { path: self.path.clone(), message: message.into() }
    }

    /// How far the run before has come.
    fn progress(&self) -> Result<Option<Progress>> {
        let path = self.path.join(PROGRESS);
        let mut file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(Error::io(path)(error)),
        };
        let damaged =
            || self.refuse("the run that began it left a damaged file: remove the folder");
        let mut number = || -> Result<u64> {
            let mut bytes = [0; 8];
            file.read_exact(&mut bytes).map_err(|_| damaged())?;
            Ok(u64::from_le_bytes(bytes))
        };
        let [head, layers, width] = [number()?, number()?, number()?];
        let mut rest = Vec::new();
        file.read_to_end(&mut rest).map_err(Error::io(&path))?;
        let of = rest.get(..head as usize).ok_or_else(damaged)?;
        if serde_json::from_slice::<Value>(of).ok().as_ref() != Some(&self.of) {
            return Err(self.refuse(
                "begun with another model, text or options; go on with those, or give another folder",
            ));
        }
        let values = rest[head as usize..].as_chunks().0.iter().map(|it| f32::from_le_bytes(*it));
        let mut rounded: Vec<f32> = values.collect();
        let width = width as usize;
        if width == 0 || !rounded.len().is_multiple_of(2 * width) {
            return Err(damaged());
        }
        let exact = rounded.split_off(rounded.len() / 2);
        let streams = [rounded, exact].map(|values| Rows::new(width, values));
        Ok(Some(Progress { layers: layers as usize, streams }))
    }

    /// Says that so much is finished.
    pub fn keep(&self, progress: &Progress) -> Result<()> {
        let of = self.of.to_string();
        let width = progress.streams[0].width;
        let numbers = [of.len(), progress.layers, width].map(|n| (n as u64).to_le_bytes());
        let values = progress.streams.iter().flat_map(|rows| &rows.values);
        let values: Vec<u8> = values.flat_map(|value| value.to_le_bytes()).collect();
        self.replace(PROGRESS, &[numbers.as_flattened(), of.as_bytes(), &values])
    }

    fn name(&self, number: usize) -> String {
        format!("model-{:05}-of-{:05}.safetensors", number + 1, self.files)
    }

    /// Writes file `number`, which comes into being whole.
    pub fn write(&self, number: usize, tensors: &[Tensor]) -> Result<()> {
        let name = self.name(number);
        let failed = |e: safetensors::SafeTensorError| {
            Error::io(self.path.join(&name))(std::io::Error::other(e))
        };
        let views = tensors.iter().map(|tensor| {
            let view = TensorView::new(tensor.dtype, tensor.shape.clone(), &tensor.bytes);
            Ok((tensor.name.as_str(), view.map_err(failed)?))
        });
        let views = views.collect::<Result<Vec<_>>>()?;
        let about = [("format".to_owned(), "pt".to_owned())].into();
        let bytes = safetensors::serialize(views, Some(about)).map_err(failed)?;
        self.replace(&name, &[&bytes])
    }

    fn replace(&self, name: &str, parts: &[&[u8]]) -> Result<()> {
        let (path, beside) = (self.path.join(name), self.path.join(format!("{name}.part")));
        let write = || -> std::io::Result<()> {
            let mut file = File::create(&beside)?;
            parts.iter().try_for_each(|part| file.write_all(part))?;
            file.sync_all()?;
            fs::rename(&beside, &path)
        };
        write().map_err(Error::io(&path))
    }

    /// Writes what makes a model of the files: the index and the configurations.
    pub fn finish(
        &self,
        config: &Map<String, Value>,
        generation: &Map<String, Value>,
    ) -> Result<()> {
        let mut map = BTreeMap::new();
        let mut total = 0;
        for number in 0..self.files {
            let name = self.name(number);
            let path = self.path.join(&name);
            let bytes = fs::read(&path).map_err(Error::io(&path))?;
            let (_, header) = SafeTensors::read_metadata(&bytes)
                .map_err(|e| Error::io(&path)(std::io::Error::other(e)))?;
            total += header.data_len();
            map.extend(header.tensors().into_keys().map(|tensor| (tensor, json!(name))));
        }
        let index = json!({"metadata": {"total_size": total}, "weight_map": map});
        let text = |value: &Value| serde_json::to_string_pretty(value).unwrap_or_default() + "\n";
        self.replace("model.safetensors.index.json", &[text(&index).as_bytes()])?;
        if !generation.is_empty() {
            self.replace("generation_config.json", &[text(&json!(generation)).as_bytes()])?;
        }
        self.replace("config.json", &[text(&json!(config)).as_bytes()])?;
        let progress = self.path.join(PROGRESS);
        fs::remove_file(&progress).map_err(Error::io(progress))
    }
}
