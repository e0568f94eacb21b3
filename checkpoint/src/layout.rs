//! Which files of a folder hold the weights.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use serde::Deserialize;

use crate::{Error, Result};

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// Where a model's safetensors are.
pub(crate) struct Layout {
    /// The single file, or the index.
    pub source: PathBuf,
    /// The weight files.
    pub files: Vec<PathBuf>,
    /// Tensor name to position in `files`; `None` when the one file speaks for itself.
    pub weight_map: Option<BTreeMap<String, usize>>,
}

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

/// Whether there are safetensors in `folder`: a single file, or an index.
pub(crate) fn has_safetensors(folder: &Path) -> bool {
    [SINGLE, INDEX].iter().any(|name| folder.join(name).is_file())
}

/// The safetensors in `folder`, all of them present.
pub(crate) fn find(folder: &Path) -> Result<Layout> {
    let single = folder.join(SINGLE);
    if single.is_file() {
        return Ok(Layout { source: single.clone(), files: vec![single], weight_map: None });
    }
    let path = folder.join(INDEX);
    if !path.is_file() {
        return Err(Error::Checkpoint { path: folder.into(), message: nothing_found(folder) });
    }
    sharded(folder, path)
}

fn sharded(folder: &Path, path: PathBuf) -> Result<Layout> {
    let bytes = std::fs::read(&path).map_err(Error::io(&path))?;
    let wrong = |message: String| Error::Checkpoint { path: path.clone(), message };
    let index: Index = serde_json::from_slice(&bytes)
        .map_err(|e| wrong(format!("not a safetensors index ({e}): download the file again")))?;
    if index.weight_map.is_empty() {
        return Err(wrong("`weight_map` lists no tensor: download the file again".into()));
    }

    let mut shards: Vec<&String> = index.weight_map.values().collect();
    shards.sort_unstable();
    shards.dedup();
    for shard in &shards {
        // The index comes with the model: it must not point outside its folder.
        let mut components = Path::new(shard).components();
        let plain =
            matches!((components.next(), components.next()), (Some(Component::Normal(_)), None));
        if !plain {
            return Err(wrong(format!("shard `{shard}` is not a file name in the same folder")));
        }
    }
    let missing: Vec<_> =
        shards.iter().filter(|shard| !folder.join(shard).is_file()).map(|s| s.as_str()).collect();
    if let Some(first) = missing.first() {
        return Err(Error::Checkpoint {
            path: folder.join(first),
            message: format!(
                "this shard is missing ({} of the {} that {INDEX} lists: {}): finish the download",
                missing.len(),
                shards.len(),
                missing.join(", ")
            ),
        });
    }
    let files = shards.iter().map(|shard| folder.join(shard)).collect();
    let weight_map = index
        .weight_map
        .iter()
        .map(|(name, shard)| {
            (name.clone(), shards.binary_search(&shard).expect("every shard is in the list"))
        })
        .collect();
    Ok(Layout { source: path.clone(), files, weight_map: Some(weight_map) })
}

/// What to say when there is neither a single file nor an index.
fn nothing_found(folder: &Path) -> String {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return "no such folder, or not readable: check the model's path".into();
    };
    let mut found: Vec<String> = entries
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| {
            [".safetensors", ".bin", ".pt", ".pth", ".h5", ".msgpack", ".onnx"]
                .iter()
                .any(|end| name.ends_with(end))
        })
        .collect();
    found.sort_unstable();
    let mut message = format!("neither {SINGLE} nor {INDEX} nor a GGUF file is here");
    if found.is_empty() {
        message += ": download the model's weights";
        return message;
    }
    let ends = |end: &str| found.iter().any(|name| name.ends_with(end));
    let advice = if ends(".safetensors") {
        "if one of them holds all weights under Hugging Face's names, rename it to \
         model.safetensors; if they are shards, download their index"
    } else if ends(".bin") || ends(".pt") || ends(".pth") {
        "convert them with transformers: AutoModelForCausalLM.from_pretrained(folder)\
         .save_pretrained(folder)"
    } else {
        "these formats are not read: download the safetensors version of the model"
    };
    let more = found.len().saturating_sub(8);
    found.truncate(8);
    message += &format!("; found {}", found.join(", "));
    if more > 0 {
        message += &format!(" and {more} more");
    }
    format!("{message}: {advice}")
}
