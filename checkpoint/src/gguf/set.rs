//! The files of a model: one, or parts whose names end in `-00001-of-00003.gguf`.

use std::fs::File;
use std::path::{Path, PathBuf};

use super::architectures::Architecture;
use super::header::Header;
use super::metadata::Metadata;
use super::names::{AMONG_KEYS, EACH, hugging_face_name};
use crate::families::limit;
use crate::header::Entry;
use crate::key_heads::KeyHeads;
use crate::tensor::RowOrder;
use crate::{Dtype, Error, Result, layout};

/// A model's files, each with its tensors under Hugging Face's names where it has one for them.
pub(crate) struct Set {
    /// The first file.
    pub source: PathBuf,
    pub metadata: Metadata,
    /// Where it is a known one.
    pub architecture: Option<&'static Architecture>,
    pub files: Vec<Part>,
}

/// One file of a set.
pub(crate) struct Part {
    pub path: PathBuf,
    pub file: File,
    pub digest: String,
    pub tensors: Vec<(String, Entry)>,
}

impl Set {
    /// The files of `model`: one of them, or the folder that has them and no safetensors; `None` where
    /// it is a folder without any.
    pub fn find(model: &Path) -> Result<Option<Self>> {
        if model.is_file() {
            return Self::open(model).map(Some);
        }
        if layout::has_safetensors(model) {
            return Ok(None);
        }
        in_folder(model)?.map(|path| Self::open(&path)).transpose()
    }

    /// The file at `path`, and all others that it is a part of.
    pub fn open(path: &Path) -> Result<Self> {
        let paths = parts(path)?;
        let mut metadata = None;
        let mut files = Vec::with_capacity(paths.len());
        let mut tensors = 0;
        for (number, path) in paths.iter().enumerate() {
            let file = File::open(path).map_err(Error::io(path))?;
            let bytes = file.metadata().map_err(Error::io(path))?.len();
            let header = Header::read(&file, path, bytes)?;
            tensors += header.tensors.len() as u64;
            let wrong = |message| Error::Checkpoint { path: path.clone(), message };
            let split = |key| header.metadata.unsigned(key);
            let count = split("split.count").unwrap_or(1).max(1);
            if count != paths.len() as u64 {
                return Err(wrong(format!(
                    "`split.count` says that it is one of {count} files, but its name that it is one \
                     of {}: the parts of a model are called NAME-00001-of-{count:05}.gguf and so on",
                    paths.len()
                )));
            }
            if count > 1 && split("split.no") != Some(number as u64) {
                return Err(wrong(format!(
                    "`split.no` is {}, but by its name it is {number}: it is of another model, or \
                     was renamed",
                    split("split.no").map_or("absent".into(), |no| no.to_string())
                )));
            }
            let first = metadata.get_or_insert_with(|| header.metadata.clone());
            let own = header.metadata.text(ARCHITECTURE);
            if own.is_some() && own != first.text(ARCHITECTURE) {
                return Err(wrong(format!(
                    "`{ARCHITECTURE}` differs from that of {}: it is of another model",
                    paths[0].display()
                )));
            }
            let orders = RowOrders::of(first);
            let mut own = Vec::with_capacity(header.tensors.len());
            for (name, mut entry) in header.tensors {
                entry.rows = orders.order(&name, &entry).map_err(wrong)?;
                let known =
                    |name: &str| architecture(first).and_then(|it| hugging_face_name(name, it));
                // Converters may be told to put gates and ups together.
                let [gate, up] = ["gate", "up"]
                    .map(|part| name.replace("ffn_gate_up_exps", &format!("ffn_{part}_exps")));
                match known(&gate) {
                    None => own.push((name, entry)),
                    Some(of_gate) if of_gate.contains(EACH) => {
                        let of_up = known(&up).filter(|_| up != gate);
                        let all: Vec<_> = [of_gate].into_iter().chain(of_up).collect();
                        own.extend(experts(&name, &all, &entry).map_err(wrong)?);
                        if own.len() > limit::TENSORS {
                            let message = format!(
                                "with those of all experts it has over {} tensors",
                                limit::TENSORS
                            );
                            return Err(wrong(message));
                        }
                    }
                    Some(known) => {
                        // What is one row is stored as a vector by some converters, and by `llama-quantize`.
                        if ONE_ROW.iter().any(|it| known.ends_with(it)) && entry.shape.len() == 1 {
                            entry.shape.insert(0, 1);
                        }
                        let apart = key_heads(first).and_then(|it| it.apart(&known, &entry));
                        own.extend(apart.map_or_else(|| vec![(known, entry)], Vec::from));
                    }
                }
            }
            if number == 0 {
                own.extend(among_keys(first).map_err(wrong)?);
            }
            let (path, digest) = (path.clone(), header.digest);
            files.push(Part { path, file, digest, tensors: own });
        }
        let metadata = metadata.unwrap_or_default();
        let source = paths[0].clone();
        match metadata.unsigned("split.tensors.count") {
            Some(count) if paths.len() > 1 && count != tensors => Err(Error::Checkpoint {
                path: source,
                message: format!(
                    "`split.tensors.count` is {count}, but its {} files have {tensors} tensors: one \
                     of them is of another model",
                    paths.len()
                ),
            }),
            _ => Ok(Self { source, architecture: architecture(&metadata), metadata, files }),
        }
    }
}

/// Matrices that may have one row.
const ONE_ROW: [&str; 4] = [
    "shared_expert_gate.weight",
    "embeddings.token_type_embeddings.weight",
    "classifier.out_proj.weight",
    "classifier.weight",
];

const ARCHITECTURE: &str = "general.architecture";

/// The one that a file says, where it is known.
fn architecture(metadata: &Metadata) -> Option<&'static Architecture> {
    metadata.text(ARCHITECTURE).and_then(Architecture::find)
}

/// The key heads of linear attention, where there are some.
fn key_heads(metadata: &Metadata) -> Option<KeyHeads> {
    let name = architecture(metadata)?.name;
    let size = |key: &str| usize::try_from(metadata.unsigned(&format!("{name}.ssm.{key}"))?).ok();
    let (heads, width) = (size("group_count")?, size("state_size")?);
    (heads <= limit::HEADS && width <= limit::HEAD_DIM).then_some(KeyHeads { heads, width })
}

/// The parameters that a file has among its keys: there they lie as tensors do.
fn among_keys(metadata: &Metadata) -> Result<Vec<(String, Entry)>, String> {
    let Some(of) = architecture(metadata) else { return Ok(Vec::new()) };
    let layers = metadata.unsigned(&format!("{}.block_count", of.name));
    let mut own = Vec::new();
    for (key, there, shape) in AMONG_KEYS {
        let key = format!("{}.{key}", of.name);
        if metadata.get(&key).is_none() {
            continue;
        }
        let found = metadata
            .singles(&key)
            .filter(|(_, count)| *count <= limit::LAYERS && Some(*count as u64) == layers);
        let Some((first, count)) = found else {
            return Err(format!(
                "`{key}` is no array of as many numbers in single precision as there are layers \
                 (`{}.block_count`): the file is damaged",
                of.name
            ));
        };
        own.extend((0..count).map(|layer| {
            let start = first + layer as u64 * 4;
            let entry = Entry {
                dtype: Some(Dtype::F32),
                dtype_name: "F32".into(),
                shape: shape.to_vec(),
                start,
                end: start + 4,
                rows: RowOrder::Stored,
            };
            (format!("model.layers.{layer}.{there}"), entry)
        }));
    }
    Ok(own)
}

/// The tensors of which `entry` holds one for each expert, its first dimension: or several, each expert's behind each
/// other, whose names are in `known`.
fn experts(name: &str, known: &[String], entry: &Entry) -> Result<Vec<(String, Entry)>, String> {
    // Of matrices, or of their biases.
    let dimensions = if name.ends_with(".bias") { 2 } else { 3 };
    let [count, of_one @ ..] = &entry.shape[..] else { return Ok(Vec::new()) };
    if entry.shape.len() != dimensions {
        return Err(format!(
            "tensor `{name}` has {} dimensions, but that of all experts has {dimensions}: the file is \
             damaged",
            entry.shape.len()
        ));
    }
    let count = *count;
    if count > limit::EXPERTS {
        return Err(format!(
            "tensor `{name}` is of {count} experts: supported are {}",
            limit::EXPERTS
        ));
    }
    if !of_one[0].is_multiple_of(known.len()) {
        return Err(format!(
            "tensor `{name}` has {} rows of each expert, which are not as many of its gate and its up: the \
             file is damaged",
            of_one[0]
        ));
    }
    let mut shape = of_one.to_vec();
    shape[0] /= known.len();
    // Rows are whole blocks, so that experts are too.
    let bytes = entry.bytes() / (count * known.len()) as u64;
    let parts = (0..count).flat_map(|expert| known.iter().map(move |known| (expert, known)));
    let of = |(at, (expert, known)): (usize, (usize, &String))| {
        let start = entry.start + at as u64 * bytes;
        let entry = Entry { shape: shape.clone(), start, end: start + bytes, ..entry.clone() };
        (known.replace(EACH, &expert.to_string()), entry)
    };
    Ok(parts.enumerate().map(of).collect())
}

/// Whose rows lie in [pairs](RowOrder::Pairs): the converter of Llama's checkpoints reorders queries and
/// keys.
struct RowOrders {
    name: &'static str,
    query_heads: Option<u64>,
    key_heads: Option<u64>,
}

impl RowOrders {
    fn of(metadata: &Metadata) -> Self {
        let Some(of) = architecture(metadata).filter(|of| of.pairs) else {
            return Self { name: "", query_heads: None, key_heads: None };
        };
        let heads =
            |key: &str| metadata.unsigned_of_layers(&format!("{}.attention.{key}", of.name));
        let query_heads = heads("head_count");
        let key_heads = heads("head_count_kv").or(query_heads);
        Self { name: of.name, query_heads, key_heads }
    }

    fn order(&self, name: &str, entry: &Entry) -> Result<RowOrder, String> {
        let is = |part: &str| {
            let end = name.strip_prefix("blk.").and_then(|rest| rest.split_once('.'));
            end.is_some_and(|(_, end)| {
                end.strip_prefix(part).is_some_and(|end| matches!(end, ".weight" | ".bias"))
            })
        };
        let (heads, key) = match () {
            () if is("attn_q") => (self.query_heads, "head_count"),
            () if is("attn_k") => (self.key_heads, "head_count_kv"),
            () => return Ok(RowOrder::Stored),
        };
        let Some(heads) = heads else { return Ok(RowOrder::Stored) };
        let rows = entry.shape[0] as u64;
        match rows.checked_div(heads) {
            Some(width) if width > 0 && width % 2 == 0 && width * heads == rows => {
                Ok(RowOrder::Pairs { width: width as usize })
            }
            _ => Err(format!(
                "tensor `{name}` has {rows} rows, which are not {heads} heads \
                 (`{}.attention.{key}`) of an even width: the file is damaged",
                self.name
            )),
        }
    }
}

/// The only GGUF file of `folder`, the first one of its parts; `None` where there is none.
///
/// # Errors
///
/// There are several.
fn in_folder(folder: &Path) -> Result<Option<PathBuf>> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Ok(None) };
    let mut names: Vec<String> = entries
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| name.ends_with(".gguf") && folder.join(name).is_file())
        .collect();
    names.sort_unstable();
    // Parts of one model stand beside each other.
    names.dedup_by(|a, b| match (Numbered::parse(a), Numbered::parse(b)) {
        (Some(a), Some(b)) => (a.stem, a.count) == (b.stem, b.count),
        _ => false,
    });
    match &names[..] {
        [] => Ok(None),
        [name] => Ok(Some(folder.join(name))),
        several => Err(Error::Checkpoint {
            path: folder.into(),
            message: format!(
                "several GGUF files are here: give the path of one of them ({})",
                several.join(", ")
            ),
        }),
    }
}

/// The name of a part of a model.
struct Numbered<'a> {
    stem: &'a str,
    count: usize,
}

impl<'a> Numbered<'a> {
    fn parse(name: &'a str) -> Option<Self> {
        let number = |text: &str| -> Option<usize> {
            let digits = text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
            text.parse().ok().filter(|_| digits)
        };
        let (rest, count) = name.strip_suffix(".gguf")?.rsplit_once("-of-")?;
        let (stem, part) = rest.rsplit_once('-')?;
        let (part, count) = (number(part)?, number(count)?);
        (1..=count).contains(&part).then_some(Self { stem, count })
    }
}

/// All files of the model that the one at `path` belongs to, in order.
fn parts(path: &Path) -> Result<Vec<PathBuf>> {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let Some(Numbered { stem, count }) = Numbered::parse(name) else {
        return Ok(vec![path.to_owned()]);
    };
    let all: Vec<PathBuf> = (1..=count)
        .map(|number| path.with_file_name(format!("{stem}-{number:05}-of-{count:05}.gguf")))
        .collect();
    let missing = all.iter().filter(|path| !path.is_file());
    match missing.clone().next() {
        None => Ok(all),
        Some(first) => Err(Error::Checkpoint {
            path: first.clone(),
            message: format!(
                "this part of the model is missing ({} of {count} are): finish the download",
                missing.count()
            ),
        }),
    }
}
