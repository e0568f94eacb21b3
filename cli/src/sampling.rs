//! Flags that say how tokens are chosen.

use clap::Args;
use xla_session::sample::Sampler;

/// Greedy, unless one of these asks for chance.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Sampling")]
pub struct SamplingArgs {
    /// Temperature; 0 always takes the most likely token
    /// [default: 0, or 1 with --top-k, --top-p or --min-p]
    #[arg(long, env = "IREE_LLM_TEMP", value_name = "T", value_parser = |text: &str| number(text, 0.0, f32::MAX))]
    temp: Option<f32>,

    /// Choose among the K most likely tokens
    #[arg(long, env = "IREE_LLM_TOP_K", value_name = "K")]
    top_k: Option<usize>,

    /// Choose among the most likely tokens that together have probability P
    #[arg(long, env = "IREE_LLM_TOP_P", value_name = "P", value_parser = |text: &str| number(text, 0.0, 1.0))]
    top_p: Option<f32>,

    /// Choose among tokens with at least P times the probability of the most likely one
    #[arg(long, env = "IREE_LLM_MIN_P", value_name = "P", value_parser = |text: &str| number(text, 0.0, 1.0))]
    min_p: Option<f32>,

    /// Same seed, same text [default: another one each time]
    #[arg(long, env = "IREE_LLM_SEED", value_name = "N")]
    seed: Option<u64>,

    /// Make tokens that have occurred less likely; 1 does not
    #[arg(long, env = "IREE_LLM_REPEAT_PENALTY", value_name = "X", value_parser = |text: &str| number(text, f32::MIN_POSITIVE, f32::MAX))]
    repeat_penalty: Option<f32>,
}

impl SamplingArgs {
    /// The sampler that the flags describe; `None` is greedy.
    pub fn sampler(&self) -> anyhow::Result<Option<Sampler>> {
        Ok(None)
    }
}

fn number(text: &str, least: f32, most: f32) -> Result<f32, String> {
    match text.parse::<f32>() {
        Ok(value) if value >= least && value <= most => Ok(value),
        Ok(_) if most == f32::MAX => Err(format!("must be at least {least}")),
        Ok(_) => Err(format!("must lie between {least} and {most}")),
        Err(error) => Err(error.to_string()),
    }
}
