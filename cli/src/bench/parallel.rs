//! Sequences that run together: their prompts, then steps with one token of each.

use std::time::Instant;

use serde::{Deserialize, Serialize};
use xla_session::{Engine, EngineOptions, Model, Output, Result, Run, Sequence, Want};

use super::pass;
use super::spread::Spread;
use super::table::{number, table};

/// The measurements of one process: one model in one precision.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Parallel {
    /// The model as it was asked for.
    pub model: String,
    /// Where it ran.
    pub device: String,
    /// How weights were kept.
    pub precision: String,
    /// Worker threads that were asked for; `None` is the engine's own choice.
    pub threads: Option<usize>,
    /// In the order in which they were measured.
    pub parallel: Vec<Together>,
}

/// So many sequences at once.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Together {
    /// How many.
    pub sequences: usize,
    /// Tokens of the prompt of each, all random: no two begin alike.
    pub prompt: usize,
    /// Steps after that.
    pub generate: usize,
    /// Tokens of all prompts per second.
    pub tokens_per_second_prompt: Spread,
    /// Tokens of all steps per second.
    pub tokens_per_second_decode: Spread,
}

/// What is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Sequences, at least one, and as many as a step of the engine has rows at most.
    pub sequences: usize,
    /// Tokens of each prompt; at least one.
    pub prompt: usize,
    /// Steps with all of them; at least one.
    pub generate: usize,
}

impl Shape {
    /// Tokens of a sequence at its end.
    pub fn tokens(&self) -> usize {
        self.prompt + self.generate
    }

    /// Runs it `repetitions` times on an engine of its own, the same tokens each time; once before,
    /// with a single step, if it is to `warm_up`.
    ///
    /// # Errors
    ///
    /// The engine's.
    pub fn measure(&self, model: &Model, repetitions: usize, warm_up: bool) -> Result<Together> {
        let mut options = EngineOptions::default().with_room(model, self.sequences, self.tokens());
        options.prefix_cache = false;
        let mut engine = Engine::new(model, &options)?;
        if warm_up {
            Self { generate: 1, ..*self }.run(&mut engine)?;
        }
        let seconds =
            (0..repetitions).map(|_| self.run(&mut engine)).collect::<Result<Vec<_>>>()?;
        let rate = |tokens: usize, seconds: &dyn Fn(&(f64, f64)) -> f64, of: &[(f64, f64)]| {
            let rates = of.iter().map(|it| (self.sequences * tokens) as f64 / seconds(it));
            Spread::of(rates).unwrap_or(Spread { median: 0.0, min: 0.0, max: 0.0 })
        };
        Ok(Together {
            sequences: self.sequences,
            prompt: self.prompt,
            generate: self.generate,
            tokens_per_second_prompt: rate(self.prompt, &|it| it.0, &seconds),
            tokens_per_second_decode: rate(self.generate, &|it| it.1, &seconds),
        })
    }

    /// Seconds of all prompts, and of all steps.
    fn run(&self, engine: &mut Engine) -> Result<(f64, f64)> {
        let mut tokens = pass::tokens(engine.model().config().vocab_size);
        let prompts: Vec<Vec<u32>> =
            (0..self.sequences).map(|_| tokens.by_ref().take(self.prompt).collect()).collect();
        let mut sequences: Vec<Sequence> = prompts.iter().map(|_| engine.sequence()).collect();
        let start = Instant::now();
        let mut last = run_prompts(engine, &mut sequences, &prompts)?;
        let prompts = start.elapsed().as_secs_f64();
        let start = Instant::now();
        for _ in 0..self.generate {
            let runs = sequences.iter_mut().zip(last.chunks(1));
            let mut runs: Vec<_> = runs
                .map(|(sequence, tokens)| Run { sequence, tokens, want: Want::Token })
                .collect();
            last = tokens_of(engine.step(&mut runs)?).collect();
        }
        Ok((prompts, start.elapsed().as_secs_f64()))
    }
}

/// Runs the prompts one behind the other in full steps; returns the token after each.
fn run_prompts(
    engine: &mut Engine,
    sequences: &mut [Sequence],
    prompts: &[Vec<u32>],
) -> Result<Vec<u32>> {
    let mut next = Vec::new();
    while next.len() < prompts.len() {
        let mut rows = engine.rows();
        let mut runs = Vec::new();
        for (sequence, prompt) in sequences.iter_mut().zip(prompts) {
            let left = &prompt[sequence.len()..];
            let tokens = &left[..left.len().min(rows)];
            if !tokens.is_empty() {
                rows -= tokens.len();
                let want = if tokens.len() == left.len() { Want::Token } else { Want::Nothing };
                runs.push(Run { sequence, tokens, want });
            }
        }
        next.extend(tokens_of(engine.step(&mut runs)?));
    }
    Ok(next)
}

fn tokens_of(outputs: Vec<Output>) -> impl Iterator<Item = u32> {
    outputs.into_iter().filter_map(|output| match output {
        Output::Token(token) => Some(token),
        _ => None,
    })
}

/// A table of all of them.
pub fn tables(runs: &[Parallel]) -> String {
    let header = ["precision", "threads", "sequences", "prompt", "prompts, tok/s", "min – max"];
    let mut rows = table(&[&header[..], &["decode, tok/s", "min – max", "ms/step"]].concat());
    for run in runs {
        for it in &run.parallel {
            let spread = |it: Spread| {
                [number(it.median), format!("{} – {}", number(it.min), number(it.max))]
            };
            let [prompt, prompt_range] = spread(it.tokens_per_second_prompt);
            let [decode, decode_range] = spread(it.tokens_per_second_decode);
            rows.add_row([
                run.precision.clone(),
                run.threads.map_or_else(|| "auto".into(), |threads| threads.to_string()),
                it.sequences.to_string(),
                it.prompt.to_string(),
                prompt,
                prompt_range,
                decode,
                decode_range,
                number(it.sequences as f64 / it.tokens_per_second_decode.median * 1e3),
            ]);
        }
    }
    format!("{rows}\n")
}
