//! Flags that say how tokens are chosen.

use std::hash::{BuildHasher, Hasher, RandomState};

use clap::{Args, ValueEnum};
use xla_session::Result;
use xla_session::config::ModelConfig;
use xla_session::sample::{Sampler, SamplerOptions};

/// Whose values hold where nothing is said.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum GenerationConfig {
    /// The model's.
    #[default]
    Auto,
    /// Nothing is cut off, and nothing is less likely for having occurred.
    None,
}

/// What holds where nobody says how tokens are chosen.
#[derive(Debug, Clone, Default, Args)]
pub struct RecommendedArgs {
    /// What the model's makers recommend (generation_config.json, or keys of a GGUF file) holds where nothing else is
    /// said: a repeat penalty, and where chance is asked for temperature and cut-offs. none: nothing of it
    #[arg(
        long,
        env = "IREE_LLM_GENERATION_CONFIG",
        value_name = "auto|none",
        default_value = "auto",
        hide_possible_values = true
    )]
    generation_config: GenerationConfig,
}

impl RecommendedArgs {
    /// That of a model.
    pub fn of(&self, config: &ModelConfig) -> SamplerOptions {
        match self.generation_config {
            GenerationConfig::Auto => SamplerOptions::recommended(&config.sampling),
            GenerationConfig::None => SamplerOptions::default(),
        }
    }
}

/// Greedy, unless one of these asks for chance.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Sampling")]
pub struct SamplingArgs {
    /// Temperature; 0 always takes the most likely token
    /// [default: 0, or the model's with --top-k, --top-p or --min-p]
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

    /// Make tokens that have occurred less likely; 1 does not [default: the model's, mostly 1]
    #[arg(long, env = "IREE_LLM_REPEAT_PENALTY", value_name = "X", value_parser = |text: &str| number(text, f32::MIN_POSITIVE, f32::MAX))]
    repeat_penalty: Option<f32>,

    #[command(flatten)]
    pub recommended: RecommendedArgs,
}

impl SamplingArgs {
    /// These flags, but for what a request says itself.
    pub fn with(
        &self,
        temp: Option<f32>,
        top_p: Option<f32>,
        top_k: Option<usize>,
        seed: Option<u64>,
    ) -> Self {
        Self {
            temp: temp.or(self.temp),
            top_p: top_p.or(self.top_p),
            top_k: top_k.or(self.top_k),
            seed: seed.or(self.seed),
            ..self.clone()
        }
    }

    /// How the flags say tokens are drawn, of the model whose `own` values are so; `None` is greedy.
    ///
    /// # Errors
    ///
    /// A value is out of range.
    pub fn options(&self, own: &SamplerOptions) -> Result<Option<SamplerOptions>> {
        let plain = SamplerOptions::default();
        let cuts = self.top_k.is_some() || self.top_p.is_some() || self.min_p.is_some();
        let temperature = self.temp.unwrap_or(if cuts { own.temperature } else { 0.0 });
        let (repeat_penalty, repeat_last_n) = match self.repeat_penalty {
            Some(penalty) => (penalty, plain.repeat_last_n),
            None => (own.repeat_penalty, own.repeat_last_n),
        };
        if temperature == 0.0 && repeat_penalty == plain.repeat_penalty {
            return Ok(None);
        }
        let options = SamplerOptions {
            temperature,
            top_k: self.top_k.unwrap_or(own.top_k),
            top_p: self.top_p.unwrap_or(own.top_p),
            min_p: self.min_p.unwrap_or(own.min_p),
            repeat_penalty,
            repeat_last_n,
            seed: self.seed.unwrap_or_else(arbitrary_seed),
            ..plain
        };
        Ok(Some(Sampler::new(options)?.options().clone()))
    }
}

fn arbitrary_seed() -> u64 {
    RandomState::new().build_hasher().finish()
}

fn number(text: &str, least: f32, most: f32) -> std::result::Result<f32, String> {
    match text.parse::<f32>() {
        Ok(value) if value >= least && value <= most => Ok(value),
        Ok(_) if most == f32::MAX => Err(format!("must be at least {least}")),
        Ok(_) => Err(format!("must lie between {least} and {most}")),
        Err(error) => Err(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Flags {
        #[command(flatten)]
        sampling: SamplingArgs,
    }

    fn sampler(flags: &[&str]) -> Option<SamplerOptions> {
        let flags = Flags::try_parse_from([&[""], flags].concat()).unwrap();
        flags.sampling.options(&SamplerOptions::default()).unwrap()
    }

    #[test]
    fn greedy_unless_a_flag_asks_for_chance() {
        assert_eq!(sampler(&[]), None);
        assert_eq!(sampler(&["--temp", "0"]), None);
        assert_eq!(sampler(&["--seed", "7"]), None);
        let options = sampler(&["--top-k", "40", "--seed", "7"]).unwrap();
        assert_eq!((options.temperature, options.top_k, options.seed), (1.0, 40, 7));
        let options = sampler(&["--temp", "0.5", "--top-p", "0.9", "--min-p", "0.05"]).unwrap();
        assert_eq!((options.temperature, options.top_p, options.min_p), (0.5, 0.9, 0.05));
        let options = sampler(&["--repeat-penalty", "1.1"]).unwrap();
        assert_eq!((options.temperature, options.repeat_penalty), (0.0, 1.1));
        assert_ne!(
            sampler(&["--temp", "1"]).unwrap().seed,
            sampler(&["--temp", "1"]).unwrap().seed
        );
    }

    #[test]
    fn what_a_model_recommends_holds_where_flags_say_nothing() {
        let own = SamplerOptions {
            temperature: 0.7,
            top_k: 20,
            repeat_penalty: 1.05,
            repeat_last_n: usize::MAX,
            ..SamplerOptions::default()
        };
        let sampler = |flags: &[&str]| {
            let flags = Flags::try_parse_from([&[""], flags].concat()).unwrap();
            flags.sampling.options(&own).unwrap()
        };
        let penalised = sampler(&[]).unwrap();
        assert_eq!((penalised.temperature, penalised.repeat_penalty), (0.0, 1.05));
        assert_eq!(penalised.repeat_last_n, usize::MAX);
        assert_eq!(sampler(&["--repeat-penalty", "1"]), None);
        let sampled = sampler(&["--top-p", "0.9"]).unwrap();
        assert_eq!((sampled.temperature, sampled.top_k, sampled.top_p), (0.7, 20, 0.9));
    }

    #[test]
    fn values_out_of_range_are_usage_errors() {
        for flags in [
            ["--temp", "-1"],
            ["--top-p", "1.5"],
            ["--min-p", "x"],
            ["--seed", "-1"],
            ["--temp", "nan"],
            ["--repeat-penalty", "0"],
        ] {
            let flag = format!("{}={}", flags[0], flags[1]);
            let error = Flags::try_parse_from(["", &flag]).unwrap_err().to_string();
            assert!(error.contains(flags[0]), "{error}");
        }
        let flags = Flags::try_parse_from(["", "--top-p", "0"]).unwrap();
        assert!(
            flags
                .sampling
                .options(&SamplerOptions::default())
                .unwrap_err()
                .to_string()
                .contains("top-p")
        );
    }
}
