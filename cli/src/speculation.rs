//! Flags that say what drafts tokens, and how many.

use std::str::FromStr;
use std::sync::Arc;

use anyhow::{Context, Result};
use clap::Args;
use xla_session::batching::{BatcherOptions, Speculate};
use xla_session::{Batcher, Engine, Precision};

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
    speculate: Speculate,

    /// A smaller model with the same tokenizer that drafts, as --model, for each model that makes text; its keys and values
    /// take memory beside the model's own [default: what followed the last tokens where they occurred before]
    #[arg(long, env = "IREE_LLM_DRAFT_MODEL", value_name = "FOLDER|ID")]
    draft_model: Option<String>,

    /// How its weights lie in memory, as --precision: what it gets wrong costs time and nothing else
    #[arg(long, env = "IREE_LLM_DRAFT_PRECISION", value_name = "NAME", default_value = "int4",
          value_parser = Precision::from_str)]
    draft_precision: Precision,
}

impl SpeculationArgs {
    /// Whether flags ask for drafts of a kind.
    fn is_asked_for(&self) -> bool {
        let drafts = self.draft_model.is_some() || matches!(self.speculate, Speculate::Fixed(_));
        drafts && self.speculate != Speculate::Off
    }

    /// What runs requests on `engine`, by `options` and with these drafts, unless there is a reason for `none`; a model for them
    /// is opened as `args` say.
    ///
    /// # Errors
    ///
    /// The draft model cannot be opened, or is of another vocabulary.
    pub fn batcher(
        &self,
        engine: Engine,
        mut options: BatcherOptions,
        none: Option<&str>,
        args: &EngineArgs,
        progress: &Arc<Progress>,
    ) -> Result<Batcher> {
        let states = "layers of this model keep states, which cannot take tokens back";
        let none = none.or_else(|| engine.has_states().then_some(states));
        let drafts = none.is_none() && engine.check_logits().is_ok();
        options.speculate = if drafts { self.speculate } else { Speculate::Off };
        if let Some(why) = none.filter(|_| self.is_asked_for()) {
            progress.say(&format!("no drafts: {why}"));
        }
        let model = self.draft_model.clone().filter(|_| options.speculate != Speculate::Off);
        let Some(name) = model else { return Ok(Batcher::new(engine, &options)?) };
        let model = ModelArgs { model: Some(name) }.locate_for(args.load_mode(), progress)?;
        let name = || format!("--draft-model {}", model.name);
        let draft = args.open_draft(&model, self.draft_precision, progress).with_context(name)?;
        Batcher::new(engine, &options)?.with_draft_model(&draft).with_context(name)
    }
}
