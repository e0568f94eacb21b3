//! Adapters that were trained beside a model (LoRA, as Hugging Face's PEFT keeps them), added to its weights where
//! these are written, as `merge_and_unload` does.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::architecture::Parameter;
use crate::config::ModelConfig;
use crate::file::WeightFile;
use crate::names::of_text_model;
use crate::{Error, LoadMode, Result};

const CONFIG: &str = "adapter_config.json";
const WEIGHTS: &str = "adapter_model.safetensors";
/// What PEFT puts before the names of modules.
const PREFIX: &str = "base_model.model.";

/// What an adapter makes of a model's tensors, by their names.
#[derive(Debug)]
pub(super) struct Adapter(HashMap<String, Change>);

#[derive(Debug, Default)]
struct Change {
    /// Takes the place of what there is: a tensor that was trained as a whole, or that others are to add to.
    whole: Option<Vec<f32>>,
    added: Option<LowRank>,
}

/// `scale * b * a`.
#[derive(Debug)]
struct LowRank {
    /// `[rank, columns]`
    a: Vec<f32>,
    /// `[rows, rank]`
    b: Vec<f32>,
    rank: usize,
    scale: f32,
}

/// Both halves of what is added to a tensor, while they are read.
#[derive(Default)]
struct Halves {
    /// `[rank, columns]`, of embeddings `[rank, rows]`.
    a: Option<Matrix>,
    /// `[rows, rank]`, of embeddings `[columns, rank]`.
    b: Option<Matrix>,
    is_embedding: bool,
}

struct Matrix {
    shape: [usize; 2],
    values: Vec<f32>,
}

impl Adapter {
    /// The adapter in `folder`, for the model that `config` describes, `strength` times as strong as it was trained.
    ///
    /// # Errors
    ///
    /// A file of it cannot be read, is of another kind than LoRA, or is for another model.
    pub fn open(folder: &Path, strength: f32, config: &ModelConfig) -> Result<Self> {
        let about = About::read(&folder.join(CONFIG))?;
        let path = folder.join(WEIGHTS);
        let (file, tensors) = WeightFile::open(path.clone(), LoadMode::Mmap)?;
        let wrong = |message: String| Error::Checkpoint { path: path.clone(), message };
        let parameters: HashMap<_, _> = config.tensors().map(|it| (&*it.name, it)).collect();
        let parameter = |key: &str, name: &str| {
            parameters.get(name).copied().ok_or_else(|| {
                wrong(format!(
                    "`{key}`: there is no tensor `{name}` to change: the adapter is another model's, or it is for one \
                     that is written in parts here, or that is the embedding (a tied head)"
                ))
            })
        };

        let mut halves: BTreeMap<String, Halves> = BTreeMap::new();
        let mut changes: HashMap<String, Change> = HashMap::new();
        for (key, entry) in &tensors {
            let Some(dtype) = entry.dtype else {
                let kind = &entry.dtype_name;
                return Err(wrong(format!("`{key}` is {kind}: F32, F16 and BF16 are supported")));
            };
            let (shape, tensor) = (&entry.shape[..], file.tensor(entry, dtype)?);
            let Some(name) = key.strip_prefix(PREFIX) else {
                return Err(wrong(format!("`{key}`: names of PEFT's begin with `{PREFIX}`")));
            };
            if name.contains(".lora_magnitude_vector") {
                return Err(wrong(format!("`{key}` is of DoRA, which is not supported")));
            }
            // Of a model of images, too, that of text is written.
            let name = &*of_text_model(name);
            let Some((module, half, is_embedding)) = half_of(name) else {
                let name = name.replace(".base_layer.", ".");
                let wants = &parameter(key, &name)?.shape;
                if shape != wants {
                    return Err(wrong(format!(
                        "`{key}` has the shape {shape:?}, the model's {wants:?}"
                    )));
                }
                changes.insert(name, Change { whole: Some(tensor.to_f32()), added: None });
                continue;
            };
            let &[rows, columns] = shape else {
                return Err(wrong(format!("`{key}` has the shape {shape:?}: it is no matrix")));
            };
            let matrix = Matrix { shape: [rows, columns], values: tensor.to_f32() };
            let it = halves.entry(module.to_owned()).or_default();
            it.is_embedding = is_embedding;
            *(if half == 'A' { &mut it.a } else { &mut it.b }) = Some(matrix);
        }
        for (module, both) in halves {
            let name = format!("{module}.weight");
            let parameter = parameter(&module, &name)?;
            let both =
                both.of(parameter).map_err(|message| wrong(format!("`{module}`: {message}")));
            let (a, b, rank) = both?;
            let scale = (f64::from(strength) * about.scale(&module, rank)) as f32;
            changes.entry(name).or_default().added = Some(LowRank { a, b, rank, scale });
        }
        if changes.is_empty() {
            return Err(wrong("it has no tensors".into()));
        }
        Ok(Self(changes))
    }

    /// The tensor called `name`, if it has all of it.
    pub fn whole(&self, name: &str) -> Option<&[f32]> {
        self.0.get(name)?.whole.as_deref()
    }

    /// The name of a tensor of which both have all, and not the same.
    pub fn contradicts<'a>(&'a self, other: &Self) -> Option<&'a str> {
        let mut all = self.0.iter().filter_map(|(name, it)| Some((name, it.whole.as_ref()?)));
        all.find(|(name, whole)| other.whole(name).is_some_and(|it| it != &whole[..]))
            .map(|it| &**it.0)
    }

    /// Adds to row `row` of `parameter`.
    pub fn add(&self, parameter: &Parameter, row: usize, values: &mut [f32]) {
        let change = self.0.get(&parameter.name);
        let Some(LowRank { a, b, rank, scale }) = change.and_then(|it| it.added.as_ref()) else {
            return;
        };
        let mut sums = vec![0.0; values.len()];
        for (b, a) in b[row * rank..][..*rank].iter().zip(a.chunks_exact(values.len())) {
            for (sum, a) in sums.iter_mut().zip(a) {
                *sum = b.mul_add(*a, *sum);
            }
        }
        values.iter_mut().zip(sums).for_each(|(value, sum)| *value += scale * sum);
    }
}

impl Halves {
    /// `[rank, columns]` and `[rows, rank]` of `parameter`, and the rank.
    fn of(self, parameter: &Parameter) -> Result<(Vec<f32>, Vec<f32>, usize), String> {
        let (Some(a), Some(b)) = (self.a, self.b) else {
            return Err("it has one of the matrices A and B only".into());
        };
        let (a, b) = match self.is_embedding {
            true => (b.transposed(), a.transposed()),
            false => (a, b),
        };
        let ([rank, columns], [rows, same]) = (a.shape, b.shape);
        if rank != same || parameter.shape != [rows, columns] {
            return Err(format!(
                "its matrices are [{rank}, {columns}] and [{rows}, {same}], the model's {:?}: is the \
                 adapter another model's?",
                parameter.shape
            ));
        }
        Ok((a.values, b.values, rank))
    }
}

impl Matrix {
    fn transposed(self) -> Self {
        let Self { shape: [rows, columns], values } = self;
        let column = |at: usize| values.iter().skip(at).step_by(columns).copied();
        Self { shape: [columns, rows], values: (0..columns).flat_map(column).collect() }
    }
}

/// What `adapter_config.json` says.
struct About {
    alpha: f64,
    /// Of some modules, by the ends of their names.
    alphas: Vec<(String, f64)>,
    by_root: bool,
}

impl About {
    fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).map_err(Error::io(path))?;
        let wrong = |message: String| Error::Config { path: PathBuf::from(path), message };
        let about: Value =
            serde_json::from_str(&text).map_err(|e| wrong(format!("not valid JSON: {e}")))?;
        let kind = &about["peft_type"];
        if kind != "LORA" {
            return Err(wrong(format!("`peft_type` is {kind}: \"LORA\" alone is supported")));
        }
        let unsupported = [
            "use_dora",
            "fan_in_fan_out",
            "layer_replication",
            "use_qalora",
            "alora_invocation_tokens",
        ];
        let is_set = |key: &&str| !matches!(about[*key], Value::Null | Value::Bool(false));
        if let Some(key) = unsupported.into_iter().find(is_set) {
            return Err(wrong(format!("`{key}` is {}, which is not supported", about[key])));
        }
        // Others (PiSSA, OLoRA, CorDA, LoftQ) begin with a part of the model's weights, which are others then.
        let begun = &about["init_lora_weights"];
        let beside = ["gaussian", "eva", "orthogonal"];
        if !(begun.is_null() || begun.is_boolean() || beside.iter().any(|it| begun == it)) {
            return Err(wrong(format!(
                "`init_lora_weights` is {begun}: the adapter is for weights that its training has changed: save it \
                 with PEFT's `path_initial_model_for_weight_conversion`"
            )));
        }
        let number = |key: &str, value: &Value| {
            value.as_f64().ok_or_else(|| wrong(format!("`{key}` is {value}: it must be a number")))
        };
        let alphas = about["alpha_pattern"].as_object().into_iter().flatten();
        let alphas = alphas.map(|(pattern, alpha)| {
            // PEFT's are regular expressions, of which people write names.
            let is_name = |it: char| it.is_alphanumeric() || matches!(it, '_' | '.');
            if !pattern.chars().all(is_name) {
                let message = format!("`alpha_pattern` has {pattern:?}: names alone are supported");
                return Err(wrong(message));
            }
            Ok((pattern.clone(), number("alpha_pattern", alpha)?))
        });
        Ok(Self {
            alpha: number("lora_alpha", &about["lora_alpha"])?,
            alphas: alphas.collect::<Result<_>>()?,
            by_root: about["use_rslora"] == true,
        })
    }

    /// What the product of the matrices of `module` is multiplied with.
    fn scale(&self, module: &str, rank: usize) -> f64 {
        let is_meant = |pattern: &str| {
            module.strip_suffix(pattern).is_some_and(|it| it.is_empty() || it.ends_with('.'))
        };
        let own = self.alphas.iter().find(|(pattern, _)| is_meant(pattern));
        let rank = rank as f64;
        own.map_or(self.alpha, |it| it.1) / if self.by_root { rank.sqrt() } else { rank }
    }
}

/// The module of a half of an adapter, which half that is, and whether it is an embedding's; `None` of a whole tensor.
fn half_of(name: &str) -> Option<(&str, char, bool)> {
    for (mark, half, is_embedding) in [
        (".lora_A.", 'A', false),
        (".lora_B.", 'B', false),
        (".lora_embedding_A", 'A', true),
        (".lora_embedding_B", 'B', true),
    ] {
        if let Some((module, end)) = name.split_once(mark) {
            // Older ones have the adapter's name in it.
            let is_weight = is_embedding || end == "weight" || end.ends_with(".weight");
            return is_weight.then_some((module, half, is_embedding));
        }
    }
    None
}
