//! Weights on disk: safetensors, one file or shards with an index, or GGUF, one file or its parts.

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use crate::architecture::{Architecture, Parameter};
use crate::config::ModelConfig;
use crate::converted::{Converted, is_of_mlx};
use crate::encodings::{self, Encoded, Encoding, Parts, Quantisation};
use crate::file::WeightFile;
use crate::header::Entry;
use crate::key_heads::KeyHeads;
use crate::keys::{Keys, read_object};
use crate::latent::{self, Apart};
use crate::names::{module_of_encoder, of_encoder, of_text_model};
use crate::random::Random;
use crate::{Dtype, Error, LoadMode, Result, Tensor, gguf, layout};

/// The weights of one model: every tensor's place, checked against the files' sizes on opening.
///
/// It may be shared between threads; tensors are read independently of each other.
#[derive(Debug)]
pub struct Checkpoint {
    /// The single file, the first one of its parts, or the index of the shards.
    source: PathBuf,
    /// What tensors are called in messages, and which types they may have.
    gguf: bool,
    /// Of a GGUF file, where it is a known one.
    architecture: Option<&'static gguf::Architecture>,
    /// What the folder's configuration says of quantised matrices.
    quantisation: Option<Quantisation>,
    /// Where some of them lie key head by key head.
    key_heads: Option<KeyHeads>,
    /// Whether it was saved without an output projection, whatever its configuration says.
    bare: bool,
    /// What was done to the values of the tensor called so.
    converted: fn(&str) -> Option<Converted>,
    files: Vec<WeightFile>,
    tensors: BTreeMap<String, (usize, Entry)>,
}

/// One tensor in a listing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Listed<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its element type as the file spells it: "BF16". Any type of the format may appear here.
    pub dtype: &'a str,
    /// Its shape.
    pub shape: &'a [usize],
    /// Its size in bytes.
    pub bytes: u64,
    /// The file that holds it.
    pub path: &'a Path,
}

/// Matrices that are alike.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Matrices {
    /// How many.
    pub count: usize,
    /// Bytes of all their tensors.
    pub bytes: u64,
}

/// One weight file as it was when the checkpoint was opened.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct FileStamp {
    /// The file.
    pub path: PathBuf,
    /// Its size in bytes.
    pub bytes: u64,
    /// When it was last written, where the file system says so.
    pub modified: Option<SystemTime>,
    /// The SHA-256 of its header, which names all tensors, their types, shapes and places, and of samples of its data.
    #[serde(alias = "header")]
    pub contents: String,
}

impl FileStamp {
    /// Whether the file is still there with this size and time of change; nothing of it is read.
    pub fn is_current(&self) -> bool {
        std::fs::metadata(&self.path).is_ok_and(|metadata| {
            metadata.len() == self.bytes && metadata.modified().ok() == self.modified
        })
    }
}

impl Checkpoint {
    /// [Opens](Self::open) `model` with its configuration, which tells whether the [output is tied](Self::is_tied) in these
    /// tensors, and [checks](Self::check) that all are there.
    ///
    /// # Errors
    ///
    /// As [`ModelConfig::from_dir`], [`open`](Self::open) and [`check`](Self::check).
    pub fn open_with_config(model: &Path, mode: LoadMode) -> Result<(Self, ModelConfig)> {
        let mut config = ModelConfig::from_dir(model)?;
        let checkpoint = Self::open(model, mode)?;
        config.tie_word_embeddings = checkpoint.is_tied(&config)?;
        checkpoint.check(&config)?;
        Ok((checkpoint, config))
    }

    /// Opens `model.safetensors`, or the shards that `model.safetensors.index.json` lists, in the
    /// folder `model`; or the GGUF file that `model` is or has, with all of its parts, whose tensors
    /// get Hugging Face's names. With [`LoadMode::Random`] none of them.
    ///
    /// Headers are read and checked here (sizes, offsets, element types); the weights themselves
    /// only when a tensor is asked for.
    ///
    /// # Errors
    ///
    /// [`Error::Checkpoint`] names the file and, where there is one, the tensor: nothing to open,
    /// a truncated or damaged file, a missing shard, an index that does not fit its shards;
    /// [`Error::Config`] when `config.json` asks for quantised weights that are not supported.
    pub fn open(model: &Path, mode: LoadMode) -> Result<Self> {
        if mode == LoadMode::Random {
            let source = model.join("config.json");
            let (file, header) = WeightFile::random(source.clone(), Random::new(model)?)?;
            return Ok(Self::plain(source, file, header));
        }
        match gguf::Set::find(model)? {
            Some(set) => Self::of_gguf(set, mode),
            None => Self::of_safetensors(model, mode),
        }
    }

    fn of_gguf(set: gguf::Set, mode: LoadMode) -> Result<Self> {
        let architecture = set.architecture;
        let mut files = Vec::with_capacity(set.files.len());
        let mut tensors = BTreeMap::new();
        for (number, gguf::Part { path, file, digest, tensors: own }) in
            set.files.into_iter().enumerate()
        {
            for (name, entry) in own {
                if tensors.insert(name.clone(), (number, entry)).is_some() {
                    let message = format!("tensor `{}` is there twice", shown(architecture, &name));
                    return Err(Error::Checkpoint { path, message });
                }
            }
            files.push(WeightFile::new(path, file, &digest, mode)?);
        }
        Ok(Self {
            source: set.source,
            gguf: true,
            architecture,
            quantisation: None,
            key_heads: None,
            bare: false,
            converted: Converted::by_gguf,
            files,
            tensors,
        })
    }

    /// The safetensors file at `path` by itself, which may be a shard or of no model: its tensors under the names that it
    /// gives them.
    ///
    /// # Errors
    ///
    /// [`Error::Checkpoint`] when it is damaged, truncated or none.
    pub fn of_file(path: &Path) -> Result<Self> {
        let (file, header) = WeightFile::open(path.to_owned(), LoadMode::Read)?;
        Ok(Self::plain(path.to_owned(), file, header))
    }

    /// One file, whose tensors are as it has them.
    fn plain(source: PathBuf, file: WeightFile, header: BTreeMap<String, Entry>) -> Self {
        Self {
            source,
            gguf: false,
            architecture: None,
            quantisation: None,
            key_heads: None,
            bare: false,
            converted: |_| None,
            files: vec![file],
            tensors: header.into_iter().map(|(name, entry)| (name, (0, entry))).collect(),
        }
    }

    fn of_safetensors(folder: &Path, mode: LoadMode) -> Result<Self> {
        let layout = layout::find(folder)?;
        let mut files = Vec::with_capacity(layout.files.len());
        let mut headers = Vec::with_capacity(layout.files.len());
        for path in layout.files {
            let (file, header) = WeightFile::open(path, mode)?;
            files.push(file);
            headers.push(header);
        }
        let mut tensors = BTreeMap::new();
        match layout.weight_map {
            None => {
                for (name, entry) in headers.into_iter().flatten() {
                    tensors.insert(name, (0, entry));
                }
            }
            Some(weight_map) => {
                for (name, shard) in weight_map {
                    let Some(entry) = headers[shard].remove(&name) else {
                        return Err(Error::Checkpoint {
                            path: layout.source,
                            message: format!(
                                "it places tensor `{name}` in {}, which does not hold it: \
                                 download index and shards again, from the same revision",
                                files[shard].path.display()
                            ),
                        });
                    };
                    tensors.insert(name, (shard, entry));
                }
            }
        }
        let mut tensors: BTreeMap<_, _> =
            tensors.into_iter().map(|(name, it)| (of_text_model(&name), it)).collect();
        // Models without an output, which make vectors of texts, are saved without the module around.
        let bare = tensors.contains_key("embed_tokens.weight");
        if bare {
            let named = |name: String| match name.starts_with("lm_head.") {
                true => name,
                false => format!("model.{name}"),
            };
            tensors = tensors.into_iter().map(|(name, it)| (named(name), it)).collect();
        }
        let module = module_of_encoder(tensors.keys().map(String::as_str)).map(str::to_owned);
        if let Some(module) = module {
            let named = |(name, it): (String, _)| (of_encoder(&name, &module), it);
            tensors = tensors.into_iter().map(named).collect();
        }
        let of_mlx = is_of_mlx(tensors.iter().map(|(name, (_, it))| (&**name, &*it.shape)));
        let converted = if of_mlx { Converted::by_mlx } else { |_: &str| None };
        let mut tensors = encodings::cut_up(tensors);
        let (mut quantisation, mut key_heads) = (None, None);
        let config = folder.join("config.json");
        if let Some(map) = read_object(&config)? {
            let keys = Keys { path: &config, prefix: "", map: &map, names: None };
            quantisation = Quantisation::read(&keys)?;
            if KeyHeads::are_in(tensors.keys().map(String::as_str)) {
                key_heads = Some(KeyHeads::read(&keys)?);
            }
        }
        if let Some(key_heads) = key_heads {
            let apart = tensors.into_iter().flat_map(|(name, (file, entry))| {
                // Quantised ones are when they are asked for.
                let own = entry.dtype.and_then(|_| key_heads.apart(&name, &entry));
                let own = own.map_or_else(|| vec![(name, entry)], Vec::from);
                own.into_iter().map(move |(name, entry)| (name, (file, entry)))
            });
            tensors = apart.collect();
        }
        Ok(Self {
            source: layout.source,
            gguf: false,
            architecture: None,
            quantisation,
            key_heads,
            bare,
            converted,
            files,
            tensors,
        })
    }

    /// The tensor called `name`, which must be of `shape` and a [`Dtype`], or a quantised matrix of a
    /// folder whose configuration says how: several tensors, whose values are handed out as blocks, or as
    /// f32.
    ///
    /// Mapped files are not read before the bytes are touched; with [`LoadMode::Read`] this reads
    /// the tensor into memory of its own.
    ///
    /// # Errors
    ///
    /// [`Error::Checkpoint`] when the tensor is missing, of another shape or element type, or its
    /// file cannot be read any more; of a quantised matrix, any of its tensors.
    pub fn tensor(&self, name: &str, shape: &[usize]) -> Result<Tensor<'_>> {
        if let Some(encoded) = self.encoded(name, shape)? {
            return self.decoded(encoded, shape);
        }
        if let Some(apart) = self.apart(name, shape)? {
            return apart.joined();
        }
        let (file, entry, dtype) = self.locate(name, shape)?;
        let tensor = file.tensor(entry, dtype)?;
        let Some(converted) = (self.converted)(name) else { return Ok(tensor) };
        tensor.before(converted).map_err(|value| Error::Checkpoint {
            path: file.path.clone(),
            message: format!(
                "tensor `{}` has the value {value}, which no model's converter writes: the file is damaged",
                shown(self.architecture, name)
            ),
        })
    }

    /// The tensor that is `parameter`.
    ///
    /// # Errors
    ///
    /// As [`tensor`](Self::tensor).
    pub fn get(&self, parameter: &Parameter) -> Result<Tensor<'_>> {
        self.tensor(&parameter.name, &parameter.shape)
    }

    /// Checks that every tensor of the model is there with the right shape and a supported element
    /// type, without reading any; returns their size in bytes.
    ///
    /// # Errors
    ///
    /// As [`tensor`](Self::tensor), for the first one that is wrong.
    pub fn check(&self, config: &ModelConfig) -> Result<u64> {
        config.tensors().try_fold(0, |bytes, parameter| {
            if let Some(encoded) = self.encoded(&parameter.name, &parameter.shape)? {
                return Ok(bytes + encoded.bytes());
            }
            if let Some(apart) = self.apart(&parameter.name, &parameter.shape)? {
                return Ok(bytes + apart.bytes());
            }
            let (_, entry, _) = self.locate(&parameter.name, &parameter.shape)?;
            Ok(bytes + entry.bytes())
        })
    }

    /// Whether the output projection is the embedding matrix, as transformers decides it:
    /// `tie_word_embeddings` holds unless the checkpoint has an output projection of its own that
    /// differs from the embedding. A model that was saved without the module around, to make vectors of
    /// texts, has none, and is as one that is tied. Of an encoder, which has neither, it is as its configuration says.
    ///
    /// Both matrices are read, up to the first difference, if both are there.
    ///
    /// # Errors
    ///
    /// As [`tensor`](Self::tensor).
    pub fn is_tied(&self, config: &ModelConfig) -> Result<bool> {
        let Architecture { embedding, output, .. } = &config.architecture;
        let Some(output) = output else { return Ok(config.tie_word_embeddings) };
        let own = self.tensors.contains_key(&output.name)
            || self.encoded(&output.name, &output.shape)?.is_some();
        if !own {
            return Ok(config.tie_word_embeddings || self.bare);
        }
        if !config.tie_word_embeddings {
            return Ok(false);
        }
        let embedding = self.get(embedding)?;
        let head = self.get(output)?;
        let tied = embedding.is_same(&head);
        head.release(0..head.bytes().len());
        embedding.release(0..embedding.bytes().len());
        Ok(tied)
    }

    /// The element type of the tensor called `name`; `None` when there is none, or of another type, as
    /// quantised matrices of folders are.
    pub fn dtype(&self, name: &str) -> Option<Dtype> {
        self.tensors.get(name)?.1.dtype
    }

    /// Bytes of the tensor called `name`, of a quantised matrix those of its numbers, and of what lies in one
    /// tensor with others its own; 0 when there is none of `shape`.
    pub fn bytes(&self, name: &str, shape: &[usize]) -> u64 {
        if let Ok(Some(apart)) = self.apart(name, shape) {
            return apart.bytes();
        }
        match self.encoded(name, shape) {
            Ok(Some(encoded)) => encoded.share(encoded.parts[0].entry.bytes()),
            Ok(None) => self.tensors.get(name).map_or(0, |(_, entry)| entry.bytes()),
            Err(_) => 0,
        }
    }

    /// How a folder's quantised matrices are encoded, and what of `config` is so: each encoding once.
    ///
    /// # Errors
    ///
    /// As [`tensor`](Self::tensor).
    pub fn encodings(&self, config: &ModelConfig) -> Result<BTreeMap<Encoding, Matrices>> {
        let mut found: BTreeMap<_, Matrices> = BTreeMap::new();
        for parameter in config.tensors() {
            if let Some(encoded) = self.encoded(&parameter.name, &parameter.shape)? {
                let bytes = encoded.bytes();
                let all = found.entry(encoded.encoding).or_default();
                *all = Matrices { count: all.count + 1, bytes: all.bytes + bytes };
            }
        }
        Ok(found)
    }

    /// Every tensor of the files, by name.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = Listed<'_>> {
        self.tensors.iter().map(|(name, (file, entry))| Listed {
            name,
            dtype: &entry.dtype_name,
            shape: &entry.shape,
            bytes: entry.bytes(),
            path: &self.files[*file].path,
        })
    }

    /// Size of all tensors together, in bytes.
    pub fn total_bytes(&self) -> u64 {
        self.tensors.values().map(|(_, entry)| entry.bytes()).sum()
    }

    /// The weight files, in the order of their names, as they were when they were opened.
    pub fn files(&self) -> impl ExactSizeIterator<Item = FileStamp> {
        self.files.iter().map(WeightFile::stamp)
    }

    /// What decides beside the files how matrices are read, as text: `config.json` says it.
    pub fn encoding(&self) -> Option<String> {
        match (&self.quantisation, self.key_heads) {
            (None, None) => None,
            (Some(quantisation), None) => Some(format!("{quantisation:?}")),
            both => Some(format!("{both:?}")),
        }
    }

    /// The quantised matrix called `name`, if it is one.
    fn encoded(&self, name: &str, shape: &[usize]) -> Result<Option<Encoded>> {
        let (Some(quantisation), &[rows, columns]) = (&self.quantisation, shape) else {
            return Ok(None);
        };
        let Some(module) = name.strip_suffix(".weight") else { return Ok(None) };
        let parts = Parts { tensors: &self.tensors, files: &self.files, source: &self.source };
        let whole = self.key_heads.and_then(|it| it.whole(module, rows));
        let Some((whole, all, order)) = whole else {
            return quantisation.find(&parts, module, [rows, columns]);
        };
        let found = quantisation.find(&parts, &whole, [all, columns])?;
        Ok(found.map(|found| Encoded { rows: order, ..found }))
    }

    /// What lies as two tensors in the place of the one called `name`, if that does.
    fn apart(&self, name: &str, shape: &[usize]) -> Result<Option<Apart<'_>>> {
        let Some(names) = latent::names(name).filter(|_| !self.tensors.contains_key(name)) else {
            return Ok(None);
        };
        let entries = names.each_ref().map(|name| self.tensors.get(name));
        let [Some((_, keys)), Some((_, values))] = entries else { return Ok(None) };
        let keys = self.locate(&names[0], &keys.shape)?;
        let apart = Apart([keys, self.locate(&names[1], &values.shape)?]);
        if apart.shape().is_some_and(|own| own == shape) {
            return Ok(Some(apart));
        }
        let [(file, keys, _), (_, values, _)] = apart.0;
        let [of_keys, of_values] = names.map(|name| shown(self.architecture, &name));
        Err(Error::Checkpoint {
            path: file.path.clone(),
            message: format!(
                "tensors `{of_keys}` and `{of_values}` have shapes {:?} and {:?}, of which the model's \
                 configuration wants {shape:?}: the two are not of the same model",
                keys.shape, values.shape
            ),
        })
    }

    /// The element type of `parameter`; `None` where its tensors are missing or do not fit, as
    /// [`get`](Self::get) says. Of a quantised matrix of a folder its scales are read, and its numbers where some
    /// scales are not exact in f16.
    pub fn type_of(&self, parameter: &Parameter) -> Option<Dtype> {
        let Some(encoded) = self.encoded(&parameter.name, &parameter.shape).ok()? else {
            let apart = self.apart(&parameter.name, &parameter.shape).ok()?;
            return apart.map(|it| it.dtype()).or_else(|| self.dtype(&parameter.name));
        };
        let Encoded { shape, parts, values, .. } = encoded;
        let mut bytes = vec![std::borrow::Cow::Borrowed(&[][..])];
        for part in &parts[1..] {
            bytes.push(self.files[part.file].bytes(&part.entry).ok()?.bytes);
        }
        let in_order = match values.order {
            Some(order) => values.groups_of(&bytes[order], shape[1]).ok()?.is_none(),
            None => true,
        };
        let slices: Vec<&[u8]> = bytes.iter().map(|bytes| &**bytes).collect();
        let read = OnceCell::new();
        let numbers = || {
            let numbers = || self.files[parts[0].file].bytes(&parts[0].entry).ok();
            read.get_or_init(numbers).as_ref().map(|stored| &*stored.bytes)
        };
        Some(values.block_type(&slices, shape, in_order, numbers))
    }

    /// That matrix, of shape `own`, with the bytes of its tensors.
    fn decoded(&self, encoded: Encoded, own: &[usize]) -> Result<Tensor<'_>> {
        let Encoded { shape, rows, parts, values, .. } = encoded;
        let first = &self.files[parts[0].file];
        let mut bytes = Vec::with_capacity(parts.len());
        for part in &parts {
            bytes.push(self.files[part.file].bytes(&part.entry)?);
        }
        let order = match values.order {
            Some(order) => values.groups_of(&bytes[order].bytes, shape[1]).map_err(|what| {
                let part = &parts[order];
                let message = format!("tensor `{}` {what}", part.name);
                Error::Checkpoint { path: self.files[part.file].path.clone(), message }
            })?,
            None => None,
        };
        let slices: Vec<&[u8]> = bytes.iter().map(|stored| &*stored.bytes).collect();
        let dtype = values.block_type(&slices, shape, order.is_none(), || Some(slices[0]));
        Ok(Tensor::decoded(&first.path, dtype, (own, rows), bytes, values, order))
    }

    fn locate(&self, name: &str, shape: &[usize]) -> Result<(&WeightFile, &Entry, Dtype)> {
        let Some((file, entry)) = self.tensors.get(name) else {
            return Err(self.missing(name));
        };
        let file = &self.files[*file];
        let name = shown(self.architecture, name);
        let wrong = |message| Error::Checkpoint { path: file.path.clone(), message };
        if !lies_as(&entry.shape, shape) {
            return Err(wrong(format!(
                "tensor `{name}` has shape {:?}, but the model's configuration makes it \
                 {shape:?}: the two are not of the same model",
                entry.shape
            )));
        }
        let dtype = entry.dtype.ok_or_else(|| {
            let supported = if self.gguf { gguf::supported() } else { "F32, F16 and BF16".into() };
            wrong(format!(
                "tensor `{name}` has element type {}: supported are {supported}; use a checkpoint \
                 of one of them",
                entry.dtype_name
            ))
        })?;
        if shape.len() < 2 && dtype.block().0 > 1 {
            return Err(wrong(format!(
                "tensor `{name}` is a vector of element type {}: vectors may be F32, F16 and BF16",
                entry.dtype_name
            )));
        }
        Ok((file, entry, dtype))
    }

    fn missing(&self, name: &str) -> Error {
        let mut message = format!("tensor `{}` is missing", shown(self.architecture, name));
        let module = name.strip_suffix(".weight").unwrap_or(name);
        let packed = ["qweight", "weight_packed", "blocks"].map(|part| format!("{module}.{part}"));
        if self.quantisation.is_none() && packed.iter().any(|it| self.tensors.contains_key(it)) {
            message += ", but it is there quantised: config.json must say how, with a key \
                        `quantization_config`";
            return Error::Checkpoint { path: self.source.clone(), message };
        }
        let close = self.close_names(name);
        if !close.is_empty() {
            message += &format!("; the nearest names are {}", close.join(", "));
        }
        if name == "lm_head.weight" && !self.gguf {
            message += "; if the model's output projection is its embedding, config.json must \
                        have \"tie_word_embeddings\": true";
        }
        Error::Checkpoint { path: self.source.clone(), message }
    }

    /// Up to three names that resemble `name`, the likeliest first.
    fn close_names(&self, name: &str) -> Vec<String> {
        // Another prefix ("model.", "language_model.") is the usual difference.
        let bare = name.strip_prefix("model.").unwrap_or(name);
        let mut close: Vec<_> = self
            .tensors
            .keys()
            .map(|known| {
                let same_end = known.ends_with(bare) || bare.ends_with(known.as_str());
                let likeness = strsim::normalized_damerau_levenshtein(known, name);
                (if same_end { 2.0 } else { likeness }, known)
            })
            .filter(|(likeness, _)| *likeness > 0.7)
            .collect();
        close.sort_by(|a, b| b.0.total_cmp(&a.0));
        close
            .into_iter()
            .take(3)
            .map(|(_, known)| format!("`{}`", shown(self.architecture, known)))
            .collect()
    }
}

/// Whether a tensor of shape `stored` lies as one of `shape`: as many rows, and the same extents in each but
/// for those of one. The taps of a convolution are `[columns, 1, taps]` to transformers, `[columns, taps, 1]` to
/// MLX, and have two dimensions in GGUF files. A number lies as a vector of one.
fn lies_as(stored: &[usize], shape: &[usize]) -> bool {
    let of_a_row = |shape: &[usize]| -> Vec<usize> {
        shape.iter().skip(1).copied().filter(|extent| *extent != 1).collect()
    };
    let one = |shape: &[usize]| matches!(shape, [] | [1]);
    stored == shape
        || one(stored) && one(shape)
        || stored.len().min(shape.len()) > 1
            && stored[0] == shape[0]
            && of_a_row(stored) == of_a_row(shape)
}

/// What a tensor is called in its file.
fn shown(gguf: Option<&gguf::Architecture>, name: &str) -> String {
    gguf.and_then(|of| gguf::stored_name(name, of)).unwrap_or_else(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::lies_as;

    #[test]
    fn taps_lie_alike_with_and_without_a_dimension_of_one() {
        for stored in [&[8, 1, 3][..], &[8, 3, 1], &[8, 3]] {
            assert!(lies_as(stored, &[8, 1, 3]) && lies_as(stored, &[8, 3]), "{stored:?}");
        }
        for (stored, shape) in
            [(&[3, 8][..], &[8, 3][..]), (&[8, 1, 4], &[8, 1, 3]), (&[1, 8], &[8])]
        {
            assert!(!lies_as(stored, shape), "{stored:?}");
        }
        assert!(lies_as(&[], &[1]) && lies_as(&[1], &[]) && !lies_as(&[], &[2]));
        assert!(!lies_as(&[8, 1], &[8]) && !lies_as(&[24], &[8, 3]));
    }
}
