//! A model, rounded layer by layer.

use std::ops::ControlFlow;
use std::path::Path;

use checkpoint::architecture::{Architecture, FeedForward, Layer, Linear, Parameter, Role};
use checkpoint::config::ModelConfig;
use checkpoint::{Conversion, ConvertOptions, Float};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use crate::encoding::{self, Tensor, eight_bits, four_bits};
use crate::folder::{Folder, Progress};
use crate::forward::{self, Contexts, Weights};
use crate::grid::GROUP;
use crate::rounding::Reads;
use crate::rows::Rows;
use crate::watch::{Watch, go_on};
use crate::{Error, Result};

/// A model that is about to be rounded.
#[derive(Debug)]
pub struct Quantisation {
    model: Conversion,
    /// Of the context that it was trained with.
    config: ModelConfig,
}

/// A folder that has all but what makes a model of it.
#[must_use = "a folder is no model until it is finished"]
pub struct Made {
    folder: Folder,
    /// `config.json`, and `generation_config.json`.
    described: [Map<String, Value>; 2],
}

impl Made {
    /// Makes a model of the folder, with what else lies in it by now.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] for what cannot be written.
    pub fn finish(self) -> Result<()> {
        let [config, generation] = &self.described;
        self.folder.finish(config, generation)
    }
}

impl Quantisation {
    /// Opens `model`, a folder or a GGUF file.
    ///
    /// # Errors
    ///
    /// As [`Conversion::open`]; [`Error::Unsupported`] for mixtures of experts, encoders, and layers as Gemma 4 has them.
    pub fn open(model: &Path) -> Result<Self> {
        let model = Conversion::open(model, ConvertOptions::new(Float::BF16))?;
        let config = model.config().clone().with_context(None);
        forward::supports(&config.architecture)?;
        Ok(Self { model, config })
    }

    /// What the model is, of the context that it was trained with: no text may be longer.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Weights of all matrices that layers have: what [`run`](Self::run) watches go by.
    pub fn weights(&self) -> u64 {
        let matrices = self.config().tensors().filter(|it| is_matrix(it));
        matrices.map(|it| it.elements() as u64).sum()
    }

    /// Rounds every matrix by what it reads when the model reads `texts`, pieces of tokens that do not see each
    /// other, and writes a folder in Hugging Face layout (compressed-tensors), which is to be
    /// [finished](Made::finish). Layers have four bits in
    /// groups of 32, but [their ends](Architecture::ends) eight, as embedding and output projection; norms
    /// and biases stay, and so do small matrices that decide, and those whose columns are no whole groups. What is finished of a run
    /// that was stopped is kept, and one with the same model and texts goes on there: those layers are
    /// watched go by at once.
    ///
    /// # Errors
    ///
    /// [`Error::Text`] for no tokens or unknown ones, [`Error::Folder`] for a folder that has something else
    /// in it, [`Error::Numbers`] for weights or activations that are not finite, [`Error::Model`] and
    /// [`Error::Io`] for what cannot be read or written, [`Error::Stopped`] when `watch` breaks off.
    pub fn run(&self, texts: &[Vec<u32>], folder: &Path, watch: Watch) -> Result<Made> {
        let config = self.config();
        let Architecture { ropes, layers, .. } = &config.architecture;
        let texts: Vec<_> = texts.iter().filter(|text| !text.is_empty()).collect();
        self.check(&texts)?;
        let contexts = Contexts::new(texts.iter().map(|text| text.len()), ropes);
        let (folder, progress) = Folder::open(folder, layers.len() + 1, self.identity(&texts))?;
        let mut progress = match progress {
            Some(progress) => progress,
            None => {
                let stream = self.embed(&texts)?;
                let progress = Progress { layers: 0, streams: [stream.clone(), stream] };
                // From now on the folder is known as this run's.
                folder.keep(&progress)?;
                progress
            }
        };
        for layer in &layers[..progress.layers] {
            let rounded: u64 = matrices(layer).map(|it| it.elements() as u64).sum();
            go_on(watch, rounded)?;
        }
        for (number, layer) in layers.iter().enumerate().skip(progress.layers) {
            let [rounded, exact] = &mut progress.streams;
            let mut own = Own { model: &self.model, watch, inputs: Vec::new() };
            forward::layer(layer, ropes, &contexts, &mut own, exact)?;
            let inputs = own.inputs.into_iter();
            let mut rounding = Rounding { model: &self.model, inputs, watch, tensors: Vec::new() };
            forward::layer(layer, ropes, &contexts, &mut rounding, rounded)?;
            folder.write(number + 1, &rounding.tensors)?;
            progress.layers = number + 1;
            folder.keep(&progress)?;
        }
        self.write_rest(folder)
    }

    /// Writes what is outside of layers.
    fn write_rest(&self, folder: Folder) -> Result<Made> {
        let config = self.config();
        let ends = config.architecture.ends().map(|linear| &linear.weight);
        let mut eight: Vec<_> =
            ends.filter(|it| is_rounded(it)).map(|it| it.name.as_str()).collect();
        let mut tensors = Vec::new();
        let whole: Vec<&str> = config
            .tensors()
            .filter(|it| is_matrix(it) && !is_rounded(it))
            .map(|it| it.name.as_str())
            .collect();
        let Architecture { norm, output_bias, .. } = &config.architecture;
        let vectors = [Some(&norm.weight), norm.bias.as_ref(), output_bias.as_ref()];
        let is_vector = |it: &Parameter| vectors.contains(&Some(it));
        for parameter in config.tensors() {
            let values = match parameter.role {
                Role::Embedding | Role::Output => values(&self.model, parameter)?,
                _ if is_vector(parameter) => values(&self.model, parameter)?,
                _ => continue,
            };
            if is_vector(parameter) || !is_grouped(parameter) {
                tensors.push(Tensor::floats(&parameter.name, &parameter.shape, &values));
                continue;
            }
            let rows = Rows::new(parameter.shape[1], values);
            let packed = eight_bits(&parameter.name, &rows);
            tensors.extend(packed.ok_or_else(|| not_finite(parameter))?);
            eight.push(parameter.name.as_str());
        }
        folder.write(0, &tensors)?;
        let [config, generation] = self.model.described();
        let mut config = config.clone();
        encoding::describe(&mut config, &eight, &whole);
        Ok(Made { folder, described: [config, generation.clone()] })
    }

    fn check(&self, texts: &[&Vec<u32>]) -> Result<()> {
        let vocab_size = self.config().vocab_size;
        let what = match texts.iter().flat_map(|text| text.iter()).max() {
            None => "the text is empty: give at least some pages".into(),
            Some(most) if *most as usize >= vocab_size => {
                format!(
                    "the text has token {most}, but the model knows {vocab_size}: is the \
                         tokenizer this model's?"
                )
            }
            Some(_) => return Ok(()),
        };
        Err(Error::Text { what })
    }

    /// What a folder is made of.
    fn identity(&self, texts: &[&Vec<u32>]) -> serde_json::Value {
        let mut hash = Sha256::new();
        for text in texts {
            hash.update((text.len() as u64).to_le_bytes());
            text.iter().for_each(|token| hash.update(token.to_le_bytes()));
        }
        let text: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        // However the path is written.
        let files = self.model.files().map(|mut file| {
            file.path = file.path.canonicalize().unwrap_or(file.path);
            file
        });
        let files: Vec<_> = files.collect();
        json!({"version": env!("CARGO_PKG_VERSION"), "files": files, "text": text})
    }

    /// The residual stream before the first layer.
    fn embed(&self, texts: &[&Vec<u32>]) -> Result<Rows> {
        let Architecture { embedding, embedding_scale, .. } = &self.config().architecture;
        let width = embedding.shape[1];
        let table = values(&self.model, embedding)?;
        let rows = texts.iter().flat_map(|text| text.iter()).flat_map(|token| {
            table[*token as usize * width..][..width].iter().map(|value| value * embedding_scale)
        });
        Ok(Rows::new(width, rows.collect()))
    }
}

fn not_finite(parameter: &Parameter) -> Error {
    let what = "has weights, or reads activations, that are not finite numbers of f16: is the file \
                damaged?";
    Error::Numbers { tensor: parameter.name.clone(), what: what.into() }
}

/// Whether groups fill its rows.
fn is_grouped(parameter: &Parameter) -> bool {
    parameter.shape[1].is_multiple_of(GROUP)
}

/// Whether layers multiply with it.
fn is_matrix(parameter: &Parameter) -> bool {
    matches!(parameter.role, Role::Matrix | Role::Router)
}

/// Whether a matrix of layers does not stay as it is.
fn is_rounded(parameter: &Parameter) -> bool {
    parameter.role == Role::Matrix && is_grouped(parameter)
}

fn matrices(layer: &Layer) -> impl Iterator<Item = &Parameter> {
    let mlp = match &layer.mlp {
        FeedForward::Mlp(mlp) => Some(mlp),
        FeedForward::Experts(_) => None,
    };
    let mlp = mlp.into_iter().flat_map(|mlp| mlp.gate_up.iter().chain([&mlp.down]));
    layer.mixer.matrices().chain(mlp).map(|linear| &linear.weight)
}

/// The values of a tensor, which are finite.
fn values(model: &Conversion, parameter: &Parameter) -> Result<Vec<f32>> {
    let values = model.values(parameter)?;
    match values.iter().all(|value| value.is_finite()) {
        true => Ok(values),
        false => Err(not_finite(parameter)),
    }
}

fn matrix(model: &Conversion, parameter: &Parameter) -> Result<Rows> {
    Ok(Rows::new(parameter.shape[1], values(model, parameter)?))
}

/// Room for `x` times each of `linears`.
fn room(linears: &[&Linear], x: &Rows) -> Rows {
    Rows::zero(x.len(), linears.iter().map(|linear| linear.outputs()).sum())
}

/// The model's own weights; remembers what its matrices read.
struct Own<'a, 'w> {
    model: &'a Conversion,
    watch: &'a mut (dyn FnMut(u64) -> ControlFlow<()> + 'w),
    inputs: Vec<Rows>,
}

impl Weights for Own<'_, '_> {
    fn vector(&mut self, parameter: &Parameter) -> Result<Vec<f32>> {
        values(self.model, parameter)
    }

    fn products(&mut self, linears: &[&Linear], x: &Rows) -> Result<Rows> {
        self.inputs.push(x.clone());
        let (mut out, mut first) = (room(linears, x), 0);
        for linear in linears {
            go_on(self.watch, 0)?;
            x.times_to(&matrix(self.model, &linear.weight)?, &mut out, first);
            first += linear.outputs();
        }
        Ok(out)
    }
}

/// Rounds matrices as they are met; has what they become, and the vectors between them.
struct Rounding<'a, 'w, I> {
    model: &'a Conversion,
    /// What the matrices read in the model's own layers.
    inputs: I,
    watch: &'a mut (dyn FnMut(u64) -> ControlFlow<()> + 'w),
    tensors: Vec<Tensor>,
}

impl<I: Iterator<Item = Rows>> Weights for Rounding<'_, '_, I> {
    fn vector(&mut self, parameter: &Parameter) -> Result<Vec<f32>> {
        let values = values(self.model, parameter)?;
        self.tensors.push(Tensor::floats(&parameter.name, &parameter.shape, &values));
        Ok(values)
    }

    fn products(&mut self, linears: &[&Linear], x: &Rows) -> Result<Rows> {
        let mut exact = self.inputs.next();
        let mut reads = None;
        let (mut out, mut first) = (room(linears, x), 0);
        for linear in linears {
            let parameter = &linear.weight;
            let mut weights = matrix(self.model, parameter)?;
            if !is_rounded(parameter) {
                let Parameter { name, shape, .. } = parameter;
                self.tensors.push(Tensor::floats(name, shape, &weights.values));
            } else if self.model.config().architecture.ends().any(|end| end == *linear) {
                let packed = eight_bits(&parameter.name, &weights);
                // Eight bits lose next to nothing of them: what follows reads the model's own.
                self.tensors.extend(packed.ok_or_else(|| not_finite(parameter))?);
            } else {
                let reads = match &mut reads {
                    Some(reads) => reads,
                    none => {
                        let of = Reads::new(x, exact.take(), self.watch)?;
                        none.insert(of.ok_or_else(|| not_finite(parameter))?)
                    }
                };
                let rounded = reads.round(&weights);
                if !rounded.scales.iter().all(|scale| scale.is_finite()) {
                    return Err(not_finite(parameter));
                }
                self.tensors.extend(four_bits(&parameter.name, &rounded));
                weights = rounded.values();
            }
            x.times_to(&weights, &mut out, first);
            first += linear.outputs();
            go_on(self.watch, parameter.elements() as u64)?;
        }
        Ok(out)
    }
}
