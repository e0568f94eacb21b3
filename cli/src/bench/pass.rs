//! One pass: a context, then a prompt, then single tokens, each part timed for itself.

use std::time::Instant;

use serde::{Deserialize, Serialize};
use xla_session::{InferenceSession, Result};

use super::spread::Spread;

/// Tokens in each part of a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pass {
    /// In the context before anything is timed.
    pub depth: usize,
    /// In the prompt, timed as one.
    pub prompt: usize,
    /// Generated one by one, the first from a random token, each other from the one before.
    pub generate: usize,
}

/// A part of a pass with its times.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// "pp512": a prompt of 512 tokens; "tg128": 128 generated tokens.
    pub test: String,
    /// Tokens in the context before it.
    pub depth: usize,
    /// Tokens of the test.
    pub tokens: usize,
    /// Of each repetition.
    pub seconds: Vec<f64>,
    /// Tokens per second.
    pub tokens_per_second: Spread,
    /// Seconds of a single generated token; `None` for prompts.
    pub step_seconds: Option<Spread>,
    /// The token that follows a prompt (the same in every repetition), by which engines can be
    /// compared; `None` for generated ones, which do not depend on each other.
    pub next_token: Option<u32>,
}

/// What one run of a pass gave.
#[derive(Debug, Default)]
struct Sample {
    prompt_s: f64,
    next_token: Option<u32>,
    steps_s: Vec<f64>,
}

impl Pass {
    /// Tokens in the context at its end.
    pub fn tokens(&self) -> usize {
        self.depth + self.prompt + self.generate
    }

    /// The names of its parts, "pp512 @ d1024" for one.
    pub fn names(&self) -> Vec<String> {
        let prompt = (self.prompt > 0).then(|| at_depth(format!("pp{}", self.prompt), self.depth));
        let depth = self.depth + self.prompt;
        let generate = (self.generate > 0).then(|| at_depth(format!("tg{}", self.generate), depth));
        prompt.into_iter().chain(generate).collect()
    }

    /// The same parts, none longer than `prompt` and one step: enough to have everything touched
    /// once before it is timed.
    pub fn shortened(&self, prompt: usize) -> Self {
        Self {
            depth: self.depth.min(prompt),
            prompt: self.prompt.min(prompt),
            generate: self.generate.min(1),
        }
    }

    /// Runs it `repetitions` times, each from an empty context, the same tokens each time.
    ///
    /// # Errors
    ///
    /// Those of the session.
    pub fn measure(
        &self,
        session: &mut dyn InferenceSession,
        repetitions: usize,
    ) -> Result<Vec<Measured>> {
        let samples =
            (0..repetitions).map(|_| self.run(session)).collect::<Result<Vec<Sample>>>()?;
        let mut measured = Vec::new();
        if self.prompt > 0 {
            let seconds: Vec<_> = samples.iter().map(|sample| sample.prompt_s).collect();
            let next_token = samples.first().and_then(|sample| sample.next_token);
            measured.extend(part("pp", self.prompt, self.depth, seconds, None, next_token));
        }
        if self.generate > 0 {
            let seconds = samples.iter().map(|sample| sample.steps_s.iter().sum()).collect();
            let steps = Spread::of(samples.iter().flat_map(|sample| sample.steps_s.clone()));
            let depth = self.depth + self.prompt;
            measured.extend(part("tg", self.generate, depth, seconds, steps, None));
        }
        Ok(measured)
    }

    /// Runs it once, for nothing but its side effects.
    ///
    /// # Errors
    ///
    /// Those of the session.
    pub fn warm_up(&self, session: &mut dyn InferenceSession) -> Result<()> {
        self.run(session).map(drop)
    }

    fn run(&self, session: &mut dyn InferenceSession) -> Result<Sample> {
        let mut tokens = tokens(session.capabilities().vocab_size);
        let mut take = |n| tokens.by_ref().take(n).collect::<Vec<_>>();
        let mut sample = Sample::default();
        session.reset();
        if self.depth > 0 {
            session.prefill(&take(self.depth))?;
        }
        if self.prompt > 0 {
            let prompt = take(self.prompt);
            let start = Instant::now();
            let step = session.prefill(&prompt)?;
            sample.prompt_s = start.elapsed().as_secs_f64();
            sample.next_token = Some(step.token);
        }
        let mut token = take(1)[0];
        for _ in 0..self.generate {
            let start = Instant::now();
            token = session.decode_step(token)?.token;
            sample.steps_s.push(start.elapsed().as_secs_f64());
        }
        Ok(sample)
    }
}

impl Measured {
    /// "pp512", or "pp512 @ d1024" where the context is not empty.
    pub fn name(&self) -> String {
        at_depth(self.test.clone(), self.depth)
    }
}

fn at_depth(test: String, depth: usize) -> String {
    if depth == 0 { test } else { format!("{test} @ d{depth}") }
}

fn part(
    kind: &str,
    tokens: usize,
    depth: usize,
    seconds: Vec<f64>,
    step_seconds: Option<Spread>,
    next_token: Option<u32>,
) -> Option<Measured> {
    let tokens_per_second = Spread::of(seconds.iter().map(|seconds| tokens as f64 / seconds))?;
    let test = format!("{kind}{tokens}");
    Some(Measured { test, depth, tokens, seconds, tokens_per_second, step_seconds, next_token })
}

/// Token ids below `vocab_size` without end, in no order but always the same one: SplitMix64
/// (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014) from 0.
pub fn tokens(vocab_size: usize) -> impl Iterator<Item = u32> {
    let mut state = 0u64;
    std::iter::repeat_with(move || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        // The upper half, scaled to the vocabulary.
        (((z >> 32) * vocab_size as u64) >> 32) as u32
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use xla_session::{Capabilities, Step};

    /// Remembers what it was asked; the next token is the number of tokens so far.
    struct Recorder {
        capabilities: Capabilities,
        calls: Vec<(&'static str, usize)>,
        context: Vec<u32>,
    }

    impl Recorder {
        fn new() -> Self {
            let capabilities = Capabilities::new("recorder", "nowhere", 1000, 64, 64);
            Self { capabilities, calls: Vec::new(), context: Vec::new() }
        }
    }

    impl InferenceSession for Recorder {
        fn capabilities(&self) -> &Capabilities {
            &self.capabilities
        }

        fn prefill(&mut self, tokens: &[u32]) -> Result<Step> {
            self.calls.push(("prefill", tokens.len()));
            self.context.extend(tokens);
            Ok(Step::new(self.context.len() as u32))
        }

        fn decode_step(&mut self, token: u32) -> Result<Step> {
            self.calls.push(("decode", 1));
            self.context.push(token);
            Ok(Step::new(self.context.len() as u32))
        }

        fn read_logits(&mut self, _: &mut Vec<f32>) -> Result<()> {
            unreachable!("a benchmark needs no logits")
        }

        fn position(&self) -> usize {
            self.context.len()
        }

        fn reset(&mut self) {
            self.calls.push(("reset", 0));
            self.context.clear();
        }
    }

    #[test]
    fn each_repetition_is_the_whole_pass_from_an_empty_context() {
        let mut session = Recorder::new();
        let pass = Pass { depth: 7, prompt: 5, generate: 2 };
        let measured = pass.measure(&mut session, 2).unwrap();
        let once = [("reset", 0), ("prefill", 7), ("prefill", 5), ("decode", 1), ("decode", 1)];
        assert_eq!(session.calls, [once, once].concat());
        // The last is what the model said to the one before it.
        assert_eq!(session.context, tokens(1000).take(13).chain([13]).collect::<Vec<_>>());

        let [prompt, generated] = &measured[..] else { panic!("{measured:?}") };
        assert_eq!((prompt.test.as_str(), prompt.depth, prompt.tokens), ("pp5", 7, 5));
        assert_eq!((prompt.seconds.len(), prompt.next_token), (2, Some(12)));
        assert!(prompt.step_seconds.is_none());
        assert_eq!((generated.test.as_str(), generated.depth, generated.tokens), ("tg2", 12, 2));
        assert_eq!((generated.seconds.len(), generated.next_token), (2, None));
        assert!(generated.step_seconds.unwrap().min > 0.0);
    }

    #[test]
    fn parts_of_no_tokens_are_left_out() {
        let mut session = Recorder::new();
        let pass = Pass { depth: 0, prompt: 0, generate: 1 };
        let measured = pass.measure(&mut session, 1).unwrap();
        assert_eq!(session.calls, [("reset", 0), ("decode", 1)]);
        assert_eq!(measured.len(), 1);
        assert!(pass.measure(&mut session, 0).unwrap().is_empty());
    }

    #[test]
    fn names_and_sizes() {
        let pass = Pass { depth: 100, prompt: 20, generate: 3 };
        assert_eq!(pass.names(), ["pp20 @ d100", "tg3 @ d120"]);
        assert_eq!(pass.tokens(), 123);
        assert_eq!(pass.shortened(30), Pass { depth: 30, prompt: 20, generate: 1 });
        assert_eq!(Pass { depth: 0, prompt: 20, generate: 0 }.names(), ["pp20"]);
    }

    #[test]
    fn tokens_stay_in_the_vocabulary_and_spread_over_it() {
        let ids: Vec<_> = tokens(128_256).take(1000).collect();
        assert!(ids.iter().all(|&id| id < 128_256));
        assert!(ids.iter().filter(|&&id| id < 64_128).count().abs_diff(500) < 60);
        // SplitMix64 from 0 begins with 0xe220a8397b1dcdaf.
        assert_eq!(ids[0], ((0xe220_a839_u64 * 128_256) >> 32) as u32);
        assert!(tokens(1).take(10).all(|id| id == 0));
    }
}
