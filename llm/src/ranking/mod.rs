//! How well documents answer a query: by models that are asked for "yes" or "no" (`asked`), and by encoders that read query
//! and document at once (`classifier`).

mod asked;
mod classifier;

use std::path::Path;
use std::sync::{Arc, OnceLock};

use anyhow::{anyhow, bail};
use text::{ChatTemplate, Tokenizer};
use xla_session::batching::{Ended, Request};
use xla_session::checkpoint::gguf::Metadata;
use xla_session::config::ModelConfig;

use self::asked::Asked;
use self::classifier::Classifier;
use crate::dense::Dense;

pub(crate) use classifier::is_classifier_file;

/// How a model ranks documents.
#[derive(Debug)]
pub struct Ranking {
    tokenizer: Tokenizer,
    by: By,
}

#[derive(Debug)]
enum By {
    Asked(Box<Asked>),
    Classifier(Arc<Classifier>),
}

impl Ranking {
    /// As the model in `folder` says, whose chat template is read where it ranks by that; `None` where it ranks nothing.
    ///
    /// # Errors
    ///
    /// A file is damaged, or missing; it tells classes apart that are no ranks.
    pub fn read(
        folder: &Path,
        tokenizer: &Tokenizer,
        template: impl FnOnce() -> anyhow::Result<Option<ChatTemplate>>,
    ) -> anyhow::Result<Option<Self>> {
        let metadata = Metadata::of_model(folder)?;
        let by = match Classifier::read(folder, metadata.as_ref())? {
            Some(classifier) => Some(By::Classifier(Arc::new(classifier))),
            None => Asked::read(folder, metadata.as_ref(), tokenizer, template)?
                .map(|it| By::Asked(Box::new(it))),
        };
        Ok(by.map(|by| Self { tokenizer: tokenizer.clone(), by }))
    }

    /// Whether the model's template is for that, and no chats.
    pub(crate) fn has_template(&self) -> bool {
        matches!(&self.by, By::Asked(asked) if asked.has_template())
    }

    /// Itself, for the model that `config` says.
    pub(crate) fn within(self, config: &ModelConfig) -> anyhow::Result<Self> {
        match &self.by {
            By::Asked(asked) => asked.check_model(config)?,
            By::Classifier(classifier) => classifier.check_width(config.hidden_size)?,
        }
        Ok(self)
    }

    /// Whether it can be said what documents are to be good for.
    pub fn takes_instruction(&self) -> bool {
        matches!(self.by, By::Asked(_))
    }

    /// The request that says how well `document` answers `query`, and what its score is made by once it has ended;
    /// `instruction` says what documents are to be good for, and `most` how many tokens there may be: what is too long of
    /// the document is cut off.
    ///
    /// # Errors
    ///
    /// The template or the tokenizer fails; an encoder takes no instruction; nothing of the document has room.
    pub fn request(
        &self,
        instruction: Option<&str>,
        query: &str,
        document: &str,
        most: Option<usize>,
    ) -> crate::Result<(Request, Score)> {
        match &self.by {
            By::Asked(asked) => {
                let prompt = asked.prompt(&self.tokenizer, instruction, (query, document), most)?;
                Ok(asked.request(prompt))
            }
            By::Classifier(_) if instruction.is_some() => {
                let message = "an instruction: this model reads the query and the document alone";
                Err(crate::Error::Unsupported(message.into()))
            }
            By::Classifier(classifier) => {
                let request = classifier.request(&self.tokenizer, query, document, most)?;
                Ok((request, Score(Of::Classifier(Arc::clone(classifier)))))
            }
        }
    }
}

/// What makes of a request that has ended how well its document answers the query.
#[derive(Debug)]
pub struct Score(Of);

#[derive(Debug)]
enum Of {
    /// The logit, once it is there.
    Asked(Arc<OnceLock<f32>>),
    /// Of the state, what "yes" and "no" make of it.
    Rows(Arc<Dense>),
    Classifier(Arc<Classifier>),
}

impl Score {
    /// From 0 to 1. Of a model that is asked, how likely "yes" is if there is only "no" besides, or what the logit of "yes"
    /// makes alone where it has no word for that; of an encoder what its logit makes.
    ///
    /// # Errors
    ///
    /// The request has stopped before, or what came of it is no number.
    pub fn probability(&self, ended: &Ended) -> crate::Result<f64> {
        let stopped = xla_session::Error::Stopped;
        let logit = match &self.0 {
            Of::Asked(logit) => *logit.get().ok_or(stopped)?,
            Of::Rows(rows) => {
                let logits = rows.apply(ended.vector.as_ref().ok_or(stopped)?);
                logits[0] - logits[1]
            }
            Of::Classifier(classifier) => classifier.logit(ended.vector.as_ref().ok_or(stopped)?),
        };
        if logit.is_nan() {
            let message = "the score is no number: are weights of the model damaged?";
            return Err(anyhow!(message).into());
        }
        Ok(1.0 / (1.0 + (-f64::from(logit)).exp()))
    }
}

/// `most` tokens less those of a prompt around a document, if some are left.
fn room(most: usize, around: usize) -> anyhow::Result<usize> {
    match most.checked_sub(around) {
        Some(room @ 1..) => Ok(room),
        _ => bail!("the query takes all {most} tokens that there may be: give a shorter one"),
    }
}
