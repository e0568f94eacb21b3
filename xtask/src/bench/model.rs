//! One random model of Llama 3.2 1B's shape, for both programs.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::llama_cpp::LlamaCpp;
use crate::workspace;

/// A precision and what each program calls it.
#[derive(Debug, PartialEq)]
pub struct Format {
    /// What `iree-llm --precision` calls it.
    pub name: &'static str,
    /// The Hugging Face folder.
    pub folder: &'static str,
    /// llama.cpp's name of its weights.
    pub llama: &'static str,
    /// llama.cpp's file, without its extension.
    pub file: &'static str,
}

/// Every precision that can be compared.
pub const FORMATS: [Format; 6] = [
    Format::new("bf16", "hf", "BF16", "bf16"),
    Format::new("stored", "hf", "BF16", "bf16"),
    Format::new("f32", "hf-float32", "F32", "float32"),
    Format::new("int8", "hf", "Q8_0", "int8"),
    Format::new("int4", "hf", "Q4_0", "int4"),
    Format::new("w8a8", "hf", "Q8_0", "int8"),
];

/// How many of them are compared where none are named.
const USUAL: usize = 5;

impl Format {
    const fn new(
        name: &'static str,
        folder: &'static str,
        llama: &'static str,
        file: &'static str,
    ) -> Self {
        Self { name, folder, llama, file }
    }

    /// Those called `names`, or the usual ones.
    pub fn select(names: &[String]) -> Result<Vec<&'static Self>> {
        if names.is_empty() {
            return Ok(FORMATS[..USUAL].iter().collect());
        }
        let find = |name: &String| {
            let known: Vec<_> = FORMATS.iter().map(|format| format.name).collect();
            FORMATS.iter().find(|format| format.name == name).with_context(|| {
                format!("unknown precision `{name}`; there is {}", known.join(", "))
            })
        };
        names.iter().map(find).collect()
    }
}

/// The model's files.
#[derive(Debug)]
pub struct Model {
    folder: PathBuf,
    /// Its sizes.
    pub shape: Shape,
}

/// What a forward pass costs, in numbers of weights.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Shape {
    /// Weights that one more token of a prompt is multiplied with.
    per_token: f64,
    /// Weights that only the last token of a prompt is multiplied with: the output projection.
    once: f64,
    /// Width of all query heads, times the layers.
    attention: f64,
}

impl Shape {
    fn of(config: &Value) -> Result<Self> {
        let number = |key: &str| {
            config[key].as_f64().with_context(|| format!("config.json: `{key}` is no number"))
        };
        let (hidden, layers) = (number("hidden_size")?, number("num_hidden_layers")?);
        let heads = number("num_attention_heads")? * number("head_dim")?;
        let kv_heads = number("num_key_value_heads")? * number("head_dim")?;
        let attention = 2.0 * hidden * heads + 2.0 * hidden * kv_heads;
        let mlp = 3.0 * hidden * number("intermediate_size")?;
        Ok(Self {
            per_token: layers * (attention + mlp),
            once: hidden * number("vocab_size")?,
            attention: layers * heads,
        })
    }

    /// Floating-point operations that a prompt of `tokens` from an empty context needs.
    pub fn prompt_flops(&self, tokens: usize) -> f64 {
        let tokens = tokens as f64;
        // Scores and their weighted sum over the tokens up to each one, on average half of them.
        let attention = 2.0 * self.attention * tokens * (tokens + 1.0);
        2.0 * (self.per_token * tokens + self.once) + attention
    }

    /// Floating-point operations of one more token for each of `sequences` with `context` tokens.
    pub fn step_flops(&self, sequences: usize, context: usize) -> f64 {
        let attention = 4.0 * self.attention * context as f64;
        sequences as f64 * (2.0 * (self.per_token + self.once) + attention)
    }
}

impl Model {
    /// The Hugging Face folder.
    pub fn folder(&self, format: &Format) -> PathBuf {
        self.folder.join(format.folder)
    }

    /// llama.cpp's file.
    pub fn gguf(&self, format: &Format) -> PathBuf {
        self.folder.join(format!("{}.gguf", format.file))
    }

    /// Reads what `iree-llm` loads, so that it lies in the page cache.
    pub fn warm_folder(&self, format: &Format) -> Result<()> {
        warm(&self.folder(format).join("model.safetensors"))
    }

    /// Reads what llama.cpp loads, so that it lies in the page cache.
    pub fn warm_gguf(&self, format: &Format) -> Result<()> {
        warm(&self.gguf(format))
    }
}

/// Writes what is missing of the model to `folder`.
///
/// # Errors
///
/// No room (17 GB for all formats), or Python fails.
pub fn ensure(folder: &Path, llama: &LlamaCpp, formats: &[&Format]) -> Result<Model> {
    fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    let files = formats.iter().map(|format| format.file);
    // Older ones have no tokens.
    let tokens = |format: &Format| folder.join(format.folder).join("tokenizer.json");
    let weights = |format: &Format| folder.join(format.folder).join("model.safetensors");
    for format in formats.iter().filter(|it| weights(it).exists() && !tokens(it).exists()) {
        let _ = fs::remove_file(folder.join(format!("{}.gguf", format.file)));
        let _ = fs::remove_file(folder.join("bf16.gguf"));
    }
    let exists = |format: &&Format| {
        weights(format).exists()
            && tokens(format).exists()
            && folder.join(format!("{}.gguf", format.file)).exists()
    };
    let missing = !formats.iter().all(exists);
    if missing {
        eprintln!("==> writing the model (once; 17 GB for all precisions)");
        workspace::run(llama.script("model.py").arg(folder).args(files))?;
    }
    let format = formats.first().context("no precision to compare")?;
    let path = folder.join(format.folder).join("config.json");
    let text = fs::read(&path).with_context(|| path.display().to_string())?;
    let config = serde_json::from_slice(&text).with_context(|| path.display().to_string())?;
    Ok(Model { folder: folder.to_owned(), shape: Shape::of(&config)? })
}

/// Reads `path`, so that it lies in the page cache, in [pages of its own luck](forget).
///
/// # Errors
///
/// It cannot be read, or is empty.
pub fn warm(path: &Path) -> Result<()> {
    forget(path);
    let mut file = fs::File::open(path).with_context(|| path.display().to_string())?;
    let mut buffer = vec![0; 4 << 20];
    let mut total = 0;
    loop {
        match file.read(&mut buffer) {
            Ok(0) if total == 0 => bail!("{} is empty: remove it", path.display()),
            Ok(0) => return Ok(()),
            Ok(n) => total += n,
            Err(error) => return Err(error).with_context(|| path.display().to_string()),
        }
    }
}

/// Drops `path` from the page cache, where the system's `dd` can do that. Which pages hold a file is luck that lasts as
/// long as it is cached, and on a virtual machine worth a third of a token: each process that is measured has its own, so
/// that medians are of more than one.
pub fn forget(path: &Path) {
    let file = path.display();
    // Pages that are not written yet stay.
    for arguments in [
        [format!("of={file}"), "conv=notrunc,nocreat,fdatasync".to_owned(), "count=0".to_owned()],
        [format!("if={file}"), "iflag=nocache".to_owned(), "count=0".to_owned()],
    ] {
        let mut dd = Command::new("dd");
        let _ = dd
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
    }
}

#[cfg(test)]
impl Model {
    /// One that is nowhere.
    pub fn example() -> Self {
        Self { folder: PathBuf::new(), shape: Shape::example() }
    }
}

#[cfg(test)]
impl Shape {
    /// A model of ten weights, a tenth of the output projection, that attends with one number.
    pub fn example() -> Self {
        Self { per_token: 9.0, once: 1.0, attention: 1.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_found_by_name() {
        assert_eq!(Format::select(&[]).unwrap().last(), Some(&&FORMATS[USUAL - 1]));
        assert_eq!(Format::select(&["f32".into()]).unwrap(), [&FORMATS[2]]);
        let error = Format::select(&["f8".into()]).unwrap_err().to_string();
        assert!(
            error.contains("f8") && error.contains("bf16, stored, f32, int8, int4, w8a8"),
            "{error}"
        );
    }

    #[test]
    fn a_prompt_costs_two_operations_a_weight_and_its_attention() {
        let config = serde_json::json!({
            "vocab_size": 100, "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 3,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 2,
        });
        let shape = Shape::of(&config).unwrap();
        let layer = 8.0 * 8.0 * 2.0 + 8.0 * 4.0 * 2.0 + 3.0 * 8.0 * 16.0;
        assert_eq!(shape, Shape { per_token: 3.0 * layer, once: 800.0, attention: 24.0 });
        // One token sees itself: 2 products of 8, two operations each, in three layers.
        assert_eq!(shape.prompt_flops(1), 2.0 * (3.0 * layer + 800.0) + 96.0);
        assert_eq!(shape.step_flops(1, 1), shape.prompt_flops(1));
        assert_eq!(shape.step_flops(4, 1), 4.0 * shape.prompt_flops(1));
        assert_eq!(shape.step_flops(1, 11), shape.prompt_flops(1) + 960.0);
        assert!(Shape::of(&serde_json::json!({})).is_err());
    }
}
