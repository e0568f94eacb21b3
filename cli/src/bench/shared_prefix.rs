//! Requests that begin alike and come at once: what sharing their beginning costs and saves.

use std::ops::ControlFlow;
use std::str::FromStr;
use std::time::Instant;

use serde::{Deserialize, Serialize};
use xla_session::batching::{BatcherOptions, Request};
use xla_session::kernels::KV_BLOCK;
use xla_session::{Batcher, Engine, EngineOptions, Model, Result};

use super::pass;
use super::spread::Spread;
use super::table::{number, table};

/// What is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Tokens that all prompts begin with.
    pub common: usize,
    /// Tokens that each has behind them.
    pub own: usize,
    /// How many.
    pub requests: usize,
}

/// The measurements of one process: one model in one precision.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SharedPrefix {
    /// The model as it was asked for.
    pub model: String,
    /// Where it ran.
    pub device: String,
    /// How weights were kept.
    pub precision: String,
    /// Worker threads that were asked for; `None` is the engine's own choice.
    pub threads: Option<usize>,
    /// What was measured.
    pub shared_prefix: Times,
}

/// Seconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Times {
    /// As in [`Shape`].
    pub common: usize,
    /// As in [`Shape`].
    pub own: usize,
    /// As in [`Shape`].
    pub requests: usize,
    /// From the first request until each has its first token.
    pub all_first_tokens_seconds: Spread,
    /// The same of one request for the common tokens alone, and of as many requests for their own
    /// tokens alone: nothing is shared, and nothing computed twice.
    pub one_prompt_and_own_tokens_seconds: Spread,
}

impl FromStr for Shape {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let numbers: Vec<_> = text.split(',').map(|it| it.trim().parse::<u32>()).collect();
        match numbers[..] {
            [Ok(common @ 1..), Ok(own @ 1..), Ok(requests @ 1..)] => {
                let [common, own, requests] = [common, own, requests].map(|it| it as usize);
                Ok(Self { common, own, requests })
            }
            _ => Err("give three numbers, each at least 1: 1024,32,16".into()),
        }
    }
}

impl Shape {
    /// Tokens of each prompt.
    pub fn tokens(&self) -> usize {
        self.common + self.own
    }

    /// Runs it `repetitions` times, the same tokens each time; once before, if it is to `warm_up`.
    ///
    /// # Errors
    ///
    /// The engine's.
    pub fn measure(&self, model: &Model, repetitions: usize, warm_up: bool) -> Result<Times> {
        let Self { common, own, requests } = *self;
        let tokens = self.tokens() + KV_BLOCK;
        let options = EngineOptions::default().with_room(model, requests, tokens);
        let engine = Engine::new(model, &options)?;
        let options = BatcherOptions::of(&engine);
        let mut batcher = Batcher::new(engine, &options)?;

        let mut tokens = pass::tokens(model.config().vocab_size);
        let mut take = |n| tokens.by_ref().take(n).collect::<Vec<_>>();
        let prefix = take(common);
        let rests: Vec<_> = (0..requests).map(|_| take(own)).collect();
        let prompts: Vec<_> = rests.iter().map(|rest| [&prefix[..], rest].concat()).collect();
        if warm_up {
            first_tokens(&mut batcher, &prompts)?;
        }
        let (mut all, mut apart) = (Vec::new(), Vec::new());
        for _ in 0..repetitions {
            all.push(first_tokens(&mut batcher, &prompts)?);
            let one = first_tokens(&mut batcher, std::slice::from_ref(&prefix))?;
            apart.push(one + first_tokens(&mut batcher, &rests)?);
        }
        let spread = |it| Spread::of(it).unwrap_or(Spread { median: 0.0, min: 0.0, max: 0.0 });
        Ok(Times {
            common,
            own,
            requests,
            all_first_tokens_seconds: spread(all),
            one_prompt_and_own_tokens_seconds: spread(apart),
        })
    }
}

/// Seconds until each of `prompts`, which come at once and find nothing of theirs in the cache, has
/// its first token.
fn first_tokens(batcher: &mut Batcher, prompts: &[Vec<u32>]) -> Result<f64> {
    batcher.engine().pages().forget_prefixes();
    let start = Instant::now();
    for prompt in prompts {
        batcher.submit(Request { prompt: prompt.clone(), max_tokens: 1, ..Default::default() })?;
    }
    while !batcher.is_idle() {
        batcher.advance(&mut |_, _| ControlFlow::Continue(()))?;
    }
    Ok(start.elapsed().as_secs_f64())
}

/// A table of all of them.
pub fn tables(runs: &[SharedPrefix]) -> String {
    let mut rows = table(&[
        "precision",
        "requests",
        "common tokens",
        "own tokens",
        "all first tokens, s",
        "one prompt and own tokens, s",
        "ratio",
    ]);
    for run in runs {
        let it = run.shared_prefix;
        let [all, apart] = [it.all_first_tokens_seconds, it.one_prompt_and_own_tokens_seconds];
        rows.add_row([
            run.precision.clone(),
            it.requests.to_string(),
            it.common.to_string(),
            it.own.to_string(),
            number(all.median),
            number(apart.median),
            number(all.median / apart.median),
        ]);
    }
    format!("{rows}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shape_is_three_positive_numbers() {
        let shape = Shape { common: 1024, own: 32, requests: 16 };
        assert_eq!("1024, 32,16".parse(), Ok(shape));
        for wrong in ["", "1024,32", "1024,0,16", "a,b,c", "1,2,3,4"] {
            assert!(wrong.parse::<Shape>().is_err(), "{wrong}");
        }
    }
}
