//! Flags that say what drafts tokens, and how many.

use std::str::FromStr;
use std::sync::Arc;

use anyhow::Result;
use clap::Args;
use xla_session::batching::Speculate;
use xla_session::{InferenceSession, ModelDrafter, NgramDrafter, Precision, Speculation};

use crate::engine::EngineArgs;
use crate::model_source::ModelArgs;
use crate::progress::Progress;

/// What drafts tokens.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Drafts")]
pub struct SpeculationArgs {
    /// Draft the next tokens and check them in one step, which takes less time and gives the same
    /// tokens. auto: as many as pay, none where drafts are wrong. off: none. N: so many each time
    #[arg(long, env = "IREE_LLM_SPECULATE", value_name = "auto|off|N", default_value = "auto",
          value_parser = Speculate::from_str)]
    pub speculate: Speculate,

    /// A smaller model with the same tokenizer that drafts, as --model
    /// [default: what followed the last tokens where they occurred before]
    #[arg(long, env = "IREE_LLM_DRAFT_MODEL", value_name = "FOLDER|ID")]
    draft_model: Option<String>,

    /// How its weights lie in memory, as --precision: what it gets wrong costs time and nothing else
    #[arg(long, env = "IREE_LLM_DRAFT_PRECISION", value_name = "NAME", default_value = "int4",
          value_parser = Precision::from_str)]
    draft_precision: Precision,
}

impl SpeculationArgs {
    /// Whether flags ask for drafts of a kind.
    pub fn is_asked_for(&self) -> bool {
        let drafts = self.draft_model.is_some() || matches!(self.speculate, Speculate::Fixed(_));
        drafts && self.speculate != Speculate::Off
    }

    /// What drafts for `session`; `None` is nothing.
    ///
    /// # Errors
    ///
    /// The draft model cannot be opened, or is of another vocabulary.
    pub fn speculation(
        &self,
        session: &dyn InferenceSession,
        engine: &EngineArgs,
        progress: &Arc<Progress>,
    ) -> Result<Option<Speculation>> {
        let capabilities = session.capabilities();
        if self.speculate == Speculate::Off {
            return Ok(None);
        }
        if !capabilities.verifies_drafts {
            if self.is_asked_for() {
                let (engine, device) = (capabilities.engine, &capabilities.device);
                progress.say(&format!(
                    "no drafts: {engine} on {device} cannot take those back that are wrong"
                ));
            }
            return Ok(None);
        }
        let Some(model) = &self.draft_model else {
            return Ok(self.with(NgramDrafter::default()));
        };
        let model = ModelArgs { model: Some(model.clone()) };
        let model = model.locate_for(engine.load_mode(), progress)?;
        let opened =
            engine.open_draft(&model, self.draft_precision, capabilities.context, progress)?;
        Ok(self.with(ModelDrafter::new(opened.session, capabilities.vocab_size)?))
    }

    fn with(&self, drafter: impl xla_session::Drafter + 'static) -> Option<Speculation> {
        match self.speculate {
            Speculate::Auto => Some(Speculation::auto(drafter)),
            Speculate::Off => None,
            Speculate::Fixed(tokens) => Some(Speculation::fixed(drafter, tokens)),
        }
    }
}
