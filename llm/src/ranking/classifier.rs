//! Encoders that read a query and a document at once, and have a layer behind that makes one number of the first token's hidden
//! state (`…ForSequenceClassification`): bge-reranker, the MS MARCO cross-encoders and others.

use std::path::Path;

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde_json::{Map, Value};
use text::Tokenizer;
use xla_session::Pooling;
use xla_session::batching::Request;
use xla_session::checkpoint::{Checkpoint, LoadMode};

use crate::dense::{Activation, Dense};
use crate::sentence_transformers::{Classes, read};

/// What is behind the encoder.
#[derive(Debug)]
pub(super) struct Classifier {
    inner: Dense,
    outer: Dense,
}

#[derive(Deserialize)]
struct Config {
    #[serde(flatten)]
    classes: Classes,
    model_type: Option<String>,
    hidden_size: Option<usize>,
    num_labels: Option<usize>,
    id2label: Option<Map<String, Value>>,
}

impl Classifier {
    /// That of the model in `folder`; `None` of one of another class.
    ///
    /// # Errors
    ///
    /// It tells apart several classes, is no encoder that is known here, or its weights are damaged.
    pub fn read(folder: &Path) -> Result<Option<Self>> {
        let path = folder.join("config.json");
        let Ok(Some(config)) = read::<Config>(&path) else { return Ok(None) };
        if !config.classes.is_classifier() {
            return Ok(None);
        }
        let labels = config.id2label.map(|it| it.len()).or(config.num_labels).unwrap_or(2);
        if labels != 1 {
            bail!(
                "{}: it tells {labels} classes apart (`id2label`): models that rank have one",
                path.display()
            );
        }
        // The names of both layers, `[hidden_size, hidden_size]` and `[1, hidden_size]`.
        let (inner, outer) = match config.model_type.as_deref() {
            Some("bert") => ("pooler.dense", "classifier"),
            Some("roberta" | "xlm-roberta") => ("classifier.dense", "classifier.out_proj"),
            other => bail!(
                "{}: `model_type` is {}: supported are classifiers of BERT, RoBERTa and XLM-RoBERTa",
                path.display(),
                other.unwrap_or("absent"),
            ),
        };
        let hidden = config.hidden_size.unwrap_or(768);
        let checkpoint = Checkpoint::open(folder, LoadMode::Mmap)?;
        let layer = |name, outputs, activation| {
            Dense::of(&checkpoint, name, [outputs, hidden], true, activation)
                .with_context(|| format!("{}: what ranks", folder.display()))
        };
        Ok(Some(Self {
            inner: layer(inner, hidden, Activation::Tanh)?,
            outer: layer(outer, 1, Activation::Identity)?,
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

    /// The request for the first token's hidden state of both texts.
    pub fn request(
        &self,
        tokenizer: &Tokenizer,
        query: &str,
        document: &str,
        most: Option<usize>,
    ) -> text::Result<Request> {
        let (prompt, second_text) = tokenizer.encode_pair(query, document, most)?;
        let pooling = Some(Pooling::Cls);
        Ok(Request { prompt, second_text, pooling, ..Request::default() })
    }

    /// What it makes of that state.
    pub fn logit(&self, state: &[f32]) -> f32 {
        self.outer.apply(&self.inner.apply(state))[0]
    }
}
