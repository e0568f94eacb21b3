//! Encoders that read a query and a document at once, and have layers behind that make one number of the hidden
//! state of the first token, mostly (`…ForSequenceClassification`): bge-reranker, the MS MARCO cross-encoders and others.

use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};
use serde::Deserialize;
use serde_json::{Map, Value};
use text::Tokenizer;
use xla_session::Pooling;
use xla_session::batching::Request;
use xla_session::checkpoint::gguf::{Metadata, Value as Key};
use xla_session::checkpoint::{Checkpoint, LoadMode};

use super::room;
use crate::dense::{Activation, Dense};
use crate::sentence_transformers::{Classes, read};

/// What is behind the encoder.
#[derive(Debug)]
pub(super) struct Classifier {
    pooling: Pooling,
    inner: Dense,
    norm: Option<Norm>,
    outer: Dense,
}

/// A layer norm.
#[derive(Debug)]
struct Norm {
    weight: Vec<f32>,
    bias: Vec<f32>,
    epsilon: f64,
}

#[derive(Default, Deserialize)]
struct Config {
    #[serde(flatten)]
    classes: Classes,
    model_type: Option<String>,
    hidden_size: Option<usize>,
    dim: Option<usize>,
    norm_eps: Option<f64>,
    norm_bias: Option<bool>,
    classifier_activation: Option<String>,
    classifier_bias: Option<bool>,
    classifier_pooling: Option<String>,
    num_labels: Option<usize>,
    id2label: Option<Map<String, Value>>,
}

impl Config {
    /// As `config.json` would say it of the GGUF file `model`; `None` where no layer behind it ranks.
    fn of_gguf(metadata: &Metadata, model: &Path) -> Result<Option<Self>> {
        let family = metadata.text("general.architecture").unwrap_or_default();
        let (model_type, outer) = match family {
            // Files of all that is like BERT say so; its own class's have one layer of two, and cannot rank.
            "bert" => ("xlm-roberta", "classifier.out_proj.weight"),
            "modern-bert" => ("modernbert", "classifier.weight"),
            _ => return Ok(None),
        };
        let checkpoint = Checkpoint::open(model, LoadMode::Mmap)?;
        if checkpoint.dtype(outer).is_none() {
            return Ok(None);
        }
        let has = |name: &str| checkpoint.dtype(name).is_some();
        if family == "bert" && !has("classifier.dense.weight") {
            bail!(
                "{}: it ranks by two layers, of which llama.cpp's converter leaves out the first (BERT's pooler): take the folder \
                 with safetensors",
                model.display()
            );
        }
        let texts = "embeddings.token_type_embeddings.weight";
        if family == "bert" && !has(texts) {
            bail!(
                "{}: what ranks may be DistilBERT's, of which GGUF files do not tell: take the folder with safetensors",
                model.display()
            );
        }
        let own = |key: &str| format!("{family}.{key}");
        let size = |key: &str| metadata.unsigned(&own(key))?.try_into().ok();
        let pooling = match size("classifier.pooling_type") {
            Some(2) => "cls",
            // llama.cpp's default.
            None | Some(1) if family == "modern-bert" => "mean",
            None => "cls",
            Some(other) => bail!(
                "{}: `{}` is {other}: supported are 1 and 2",
                model.display(),
                own("classifier.pooling_type")
            ),
        };
        let labels = metadata.texts(&own("classifier.output_labels")).map_or(1, |it| it.len());
        Ok(Some(Self {
            model_type: Some(model_type.into()),
            hidden_size: size("embedding_length"),
            norm_eps: match metadata.get(&own("attention.layer_norm_epsilon")) {
                Some(Key::Float(epsilon)) => Some(*epsilon),
                _ => None,
            },
            norm_bias: Some(has("head.norm.bias")),
            classifier_bias: Some(has("head.dense.bias")),
            classifier_pooling: Some(pooling.into()),
            num_labels: Some(labels),
            ..Self::default()
        }))
    }
}

/// Whether `model` is a GGUF file that ranks so, of which `metadata` is.
pub(crate) fn is_classifier_file(model: &Path, metadata: Option<&Metadata>) -> Result<bool> {
    Ok(metadata.map(|it| Config::of_gguf(it, model)).transpose()?.flatten().is_some())
}

impl Classifier {
    /// That of the model in `folder`, which may be a GGUF file; `None` of one of another class.
    ///
    /// # Errors
    ///
    /// It tells apart several classes, is no encoder that is known here, or its weights are damaged.
    pub fn read(folder: &Path, metadata: Option<&Metadata>) -> Result<Option<Self>> {
        let (path, config) = match metadata {
            Some(metadata) => (folder.to_owned(), Config::of_gguf(metadata, folder)?),
            None => {
                let path = folder.join("config.json");
                let config = read::<Config>(&path)?.filter(|it| it.classes.is_classifier());
                (path, config)
            }
        };
        let Some(config) = config else { return Ok(None) };
        let labels = config.id2label.map(|it| it.len()).or(config.num_labels).unwrap_or(2);
        if labels != 1 {
            bail!(
                "{}: it tells {labels} classes apart (`id2label`): models that rank have one",
                path.display()
            );
        }
        let refuse = |key: &str, value: Option<&str>, supported: &str| {
            let value = value.unwrap_or("absent");
            anyhow!("{}: `{key}` is {value}: supported are {supported}", path.display())
        };
        // Both layers, `[hidden_size, hidden_size]` and `[1, hidden_size]`.
        let model_type = config.model_type.as_deref();
        let (inner, activation, outer) = match model_type {
            Some("bert") => ("pooler.dense", Activation::Tanh, "classifier"),
            Some("roberta" | "xlm-roberta" | "camembert" | "mpnet") => {
                ("classifier.dense", Activation::Tanh, "classifier.out_proj")
            }
            Some("distilbert") => ("pre_classifier", Activation::Relu, "classifier"),
            Some("modernbert") => ("head.dense", Activation::Gelu, "classifier"),
            other => {
                let known =
                    "bert, roberta, xlm-roberta, camembert, mpnet, distilbert and modernbert";
                return Err(refuse("model_type", other, known));
            }
        };
        let is_modern = model_type == Some("modernbert");
        let pooling = match config.classifier_pooling.as_deref() {
            Some("mean") if is_modern => Pooling::Mean,
            Some("cls") | None => Pooling::Cls,
            other => return Err(refuse("classifier_pooling", other, "cls and mean")),
        };
        if is_modern && config.classifier_activation.as_deref().is_some_and(|it| it != "gelu") {
            let activation = config.classifier_activation.as_deref();
            return Err(refuse("classifier_activation", activation, "gelu"));
        }
        let hidden = config.dim.or(config.hidden_size).unwrap_or(768);
        let checkpoint = Checkpoint::open(folder, LoadMode::Mmap)?;
        let layer = |name, outputs, bias, activation| {
            Dense::of(&checkpoint, name, [outputs, hidden], bias, activation)
                .with_context(|| format!("{}: what ranks", folder.display()))
        };
        let norm = || {
            let weight = checkpoint.tensor("head.norm.weight", &[hidden])?.to_f32();
            let bias = match config.norm_bias {
                Some(true) => checkpoint.tensor("head.norm.bias", &[hidden])?.to_f32(),
                _ => vec![0.0; hidden],
            };
            let epsilon = config.norm_eps.unwrap_or(1e-5);
            Ok::<_, anyhow::Error>(Norm { weight, bias, epsilon })
        };
        let bias = !is_modern || config.classifier_bias.unwrap_or(false);
        Ok(Some(Self {
            pooling,
            inner: layer(inner, hidden, bias, activation)?,
            norm: is_modern.then(norm).transpose()?,
            outer: layer(outer, 1, true, Activation::Identity)?,
        }))
    }

    pub fn check_width(&self, hidden_size: usize) -> Result<()> {
        match self.inner.inputs() == hidden_size {
            true => Ok(()),
            false => bail!(
                "it ranks by {} numbers, and hidden states have {hidden_size}",
                self.inner.inputs()
            ),
        }
    }

    /// The request for the hidden state of both texts.
    pub fn request(
        &self,
        tokenizer: &Tokenizer,
        query: &str,
        document: &str,
        most: Option<usize>,
    ) -> Result<Request> {
        if let Some(most) = most {
            room(most, tokenizer.encode_pair(query, "", None)?.0.len())?;
        }
        let (prompt, second_text) = tokenizer.encode_pair(query, document, most)?;
        let pooling = Some(self.pooling);
        Ok(Request { prompt, second_text, pooling, ..Request::default() })
    }

    /// What it makes of that state.
    pub fn logit(&self, state: &[f32]) -> f32 {
        let mut inner = self.inner.apply(state);
        if let Some(norm) = &self.norm {
            norm.apply(&mut inner);
        }
        self.outer.apply(&inner)[0]
    }
}

impl Norm {
    fn apply(&self, x: &mut [f32]) {
        let count = x.len() as f64;
        let mean = x.iter().copied().map(f64::from).sum::<f64>() / count;
        let square = x.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum::<f64>() / count;
        let root = (square + self.epsilon).sqrt();
        for ((x, weight), bias) in x.iter_mut().zip(&self.weight).zip(&self.bias) {
            *x = ((f64::from(*x) - mean) / root) as f32 * weight + bias;
        }
    }
}
