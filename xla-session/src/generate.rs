//! The loops that drive any [`InferenceSession`].

mod answer;

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use self::answer::Answer;
use crate::sample::Sampler;
use crate::{InferenceSession, Result};

/// When to stop and how to choose tokens.
#[derive(Debug, Clone, Default)]
pub struct GenerateOptions {
    /// Most tokens to generate.
    pub max_tokens: usize,
    /// Ids that end the text; none of them is part of the output.
    pub eos: Vec<u32>,
    /// How to choose a token; `None` takes the most likely one (greedy).
    pub sampler: Option<Sampler>,
    /// What the session's context holds before the prompt; a sampler's repeat penalty looks at it, and a sampler draws by how
    /// long it is: a second turn without it meets the chance of the first.
    pub preceding: Vec<u32>,
}

/// Why generation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinishReason {
    /// The model said so, by one of the EOS ids.
    Eos,
    /// The callback said so, or a [constraint](crate::Constraint).
    Stop,
    /// `max_tokens` tokens were generated.
    Length,
    /// The context is full.
    Context,
}

impl FinishReason {
    /// The name used in JSON output.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Eos => "eos",
            Self::Stop => "stop",
            Self::Length => "length",
            Self::Context => "context",
        }
    }
}

/// Where the time of one generation went.
#[derive(Debug, Clone, Copy, Default)]
pub struct Timings {
    /// Tokens in the prompt.
    pub prefill_tokens: usize,
    /// From the call to the first token being known.
    pub prefill: Duration,
    /// Decode steps after the first token.
    pub decode_tokens: usize,
    /// Time of those steps, choosing tokens included, the callback's own time not.
    pub decode: Duration,
}

/// What came out of one generation.
#[derive(Debug, Clone)]
pub struct Generation {
    /// The generated ids, without prompt and EOS.
    pub tokens: Vec<u32>,
    /// Why it ended.
    pub finish_reason: FinishReason,
    /// Where the time went.
    pub timings: Timings,
}

/// Generates from `prompt`, calling `on_token` with each token as soon as it is known.
///
/// The session's context afterwards holds the prompt and every returned token but the last one, at the model's
/// [end](FinishReason::Eos) that too: [`position`](InferenceSession::position) says how much. The callback may end the
/// generation, and the token it was given stays part of the output.
///
/// # Errors
///
/// Those of [`InferenceSession::prefill`] and [`InferenceSession::decode_step`].
pub fn generate(
    session: &mut dyn InferenceSession,
    prompt: &[u32],
    options: &mut GenerateOptions,
    mut on_token: impl FnMut(u32) -> ControlFlow<()>,
) -> Result<Generation> {
    // Refused as a whole, also by a session that takes it in pieces.
    session.capabilities().check(session.position(), prompt)?;
    let GenerateOptions { max_tokens, eos, sampler, preceding } = options;
    let before = [&preceding[..], prompt].concat();
    let mut answer = Answer::new(before, *max_tokens, eos, &mut on_token);
    let mut logits = Vec::new();
    let mut next = |session: &mut dyn InferenceSession, new: &[u32], answer: &Answer<'_>| {
        let Some(sampler) = sampler else { return Ok(session.prefill(new)?.token) };
        session.logits(new, &mut logits)?;
        session.capabilities().suppress(&mut logits);
        let (prompt, generated) = answer.split();
        Ok::<_, crate::Error>(sampler.sample(&mut logits, prompt, generated))
    };
    let start = Instant::now();
    let mut token = next(session, prompt, &answer)?;
    let prefill = start.elapsed();
    if answer.push(token).is_continue() {
        let most = answer.room().min(session.capabilities().context - session.position());
        for _ in 0..most {
            token = next(session, &[token], &answer)?;
            if answer.step(token).is_break() {
                break;
            }
        }
    }
    let Answer { decode_tokens, decode, .. } = answer;
    let timings = Timings { prefill_tokens: prompt.len(), prefill, decode_tokens, decode };
    // Nothing ended it but that there was no room for more.
    let finish_reason = answer.finish_reason.unwrap_or(FinishReason::Context);
    Ok(Generation { tokens: answer.into_tokens(), finish_reason, timings })
}

/// Generates the most likely tokens.
///
/// # Errors
///
/// As [`generate`].
pub fn generate_greedy(
    session: &mut dyn InferenceSession,
    prompt: &[u32],
    max_tokens: usize,
    eos: &[u32],
) -> Result<Generation> {
    generate_streaming_greedy(session, prompt, max_tokens, eos, |_| ControlFlow::Continue(()))
}

/// Generates the most likely tokens, each handed to `on_token` as soon as it is known.
///
/// # Errors
///
/// As [`generate`].
pub fn generate_streaming_greedy(
    session: &mut dyn InferenceSession,
    prompt: &[u32],
    max_tokens: usize,
    eos: &[u32],
    on_token: impl FnMut(u32) -> ControlFlow<()>,
) -> Result<Generation> {
    let mut options = GenerateOptions { max_tokens, eos: eos.to_vec(), ..Default::default() };
    generate(session, prompt, &mut options, on_token)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::SamplerOptions;
    use crate::{Capabilities, Error, Step};

    /// Counts: after token `n` comes `n + 1`.
    struct Counter {
        capabilities: Capabilities,
        tokens: Vec<u32>,
    }

    impl Counter {
        fn new(context: usize) -> Self {
            let capabilities = Capabilities::new("counter", "none", 1000, context, context);
            Self { capabilities, tokens: Vec::new() }
        }
    }

    impl InferenceSession for Counter {
        fn capabilities(&self) -> &Capabilities {
            &self.capabilities
        }

        fn prefill(&mut self, tokens: &[u32]) -> Result<Step> {
            self.tokens.extend(tokens);
            tokens.last().map(|last| Step::new(last + 1)).ok_or(Error::EmptyPrompt)
        }

        fn decode_step(&mut self, token: u32) -> Result<Step> {
            self.prefill(&[token])
        }

        fn read_logits(&mut self, logits: &mut Vec<f32>) -> Result<()> {
            let next = self.tokens.last().map_or(0, |last| last + 1);
            logits.clear();
            logits.extend((0..1000).map(|id| if id == next { 1.0 } else { id as f32 * 1e-6 }));
            Ok(())
        }

        fn position(&self) -> usize {
            self.tokens.len()
        }

        fn reset(&mut self) {
            self.tokens.clear();
        }
    }

    #[test]
    fn eos_ends_and_is_not_part_of_the_text() {
        let generation = generate_greedy(&mut Counter::new(100), &[5], 50, &[9, 8]).unwrap();
        assert_eq!(generation.tokens, [6, 7]);
        assert_eq!(generation.finish_reason, FinishReason::Eos);
    }

    #[test]
    fn length_context_and_callback_end() {
        let mut session = Counter::new(100);
        for max_tokens in [0, 1, 3] {
            session.reset();
            let generation = generate_greedy(&mut session, &[5], max_tokens, &[]).unwrap();
            assert_eq!(generation.tokens, [6, 7, 8][..max_tokens]);
            assert_eq!(generation.finish_reason, FinishReason::Length);
        }
        let generation = generate_greedy(&mut Counter::new(4), &[1, 2], 50, &[]).unwrap();
        assert_eq!(generation.tokens, [3, 4, 5], "the last needs no room");
        assert_eq!(generation.finish_reason, FinishReason::Context);
        let generation =
            generate_streaming_greedy(&mut Counter::new(100), &[1], 50, &[], |token| {
                if token == 4 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
        let generation = generation.unwrap();
        assert_eq!(generation.tokens, [2, 3, 4]);
        assert_eq!(generation.finish_reason, FinishReason::Stop);
    }

    #[test]
    fn a_prompt_is_refused_as_a_whole() {
        let mut session = Counter::new(600);
        let long = vec![1; 601];
        let mut outside = vec![1; 400];
        outside[399] = 1000;
        for prompt in [&long, &outside, &Vec::new()] {
            generate_greedy(&mut session, prompt, 5, &[]).unwrap_err();
            assert_eq!(session.position(), 0);
        }
    }

    #[test]
    fn the_repeat_penalty_sees_what_came_before_the_prompt() {
        let sampler = || {
            let options = SamplerOptions {
                temperature: 0.0,
                repeat_penalty: 1e9,
                ..SamplerOptions::default()
            };
            Sampler::new(options).unwrap()
        };
        for (preceding, expected) in [(vec![], 6), (vec![6], 999)] {
            let mut options = GenerateOptions {
                max_tokens: 1,
                sampler: Some(sampler()),
                preceding,
                ..GenerateOptions::default()
            };
            let go_on = |_| ControlFlow::Continue(());
            let generation = generate(&mut Counter::new(100), &[5], &mut options, go_on).unwrap();
            assert_eq!(generation.tokens, [expected]);
        }
    }
}
