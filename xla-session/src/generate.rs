//! The loops that drive any [`InferenceSession`].

mod answer;

use std::fmt;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

pub(crate) use answer::Answer;

use crate::sample::Sampler;
use crate::speculate::{DraftCounts, Speculation};
use crate::{Error, InferenceSession, Result};

/// Tokens of a prompt that run before one can stop it.
const PIECE: usize = 256;

/// When to stop and how to choose tokens.
#[derive(Default)]
pub struct GenerateOptions {
    /// Most tokens to generate.
    pub max_tokens: usize,
    /// Ids that end the text; none of them is part of the output.
    pub eos: Vec<u32>,
    /// How to choose a token; `None` takes the most likely one (greedy).
    pub sampler: Option<Sampler>,
    /// Drafts of the next tokens, several of which one step verifies: the same tokens in less time. Used
    /// where the session [verifies drafts](crate::Capabilities::verifies_drafts).
    pub speculation: Option<Speculation>,
    /// What the session's context holds before the prompt; a sampler's repeat penalty and drafters look
    /// at it, and a sampler draws by how long it is: a second turn without it meets the chance of the first.
    pub preceding: Vec<u32>,
    /// Asked between pieces of a long prompt: `true` ends the generation there, without a token. Between tokens the
    /// callback is asked.
    pub interrupted: Option<Box<dyn FnMut() -> bool + Send>>,
}

impl fmt::Debug for GenerateOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { max_tokens, eos, sampler, speculation, preceding, interrupted } = self;
        f.debug_struct("GenerateOptions")
            .field("max_tokens", max_tokens)
            .field("eos", eos)
            .field("sampler", sampler)
            .field("speculation", speculation)
            .field("preceding", preceding)
            .field("interrupted", &interrupted.as_ref().map(|_| ".."))
            .finish()
    }
}

/// Why generation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinishReason {
    /// The model said so, by one of the EOS ids.
    Eos,
    /// The callback said so.
    Stop,
    /// `max_tokens` tokens were generated.
    Length,
    /// The context is full.
    Context,
    /// [`GenerateOptions::interrupted`] said so, before there was a token.
    Interrupted,
}

impl FinishReason {
    /// The name used in JSON output.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Eos => "eos",
            Self::Stop => "stop",
            Self::Length => "length",
            Self::Context => "context",
            Self::Interrupted => "interrupted",
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
    /// What became of drafts.
    pub drafts: DraftCounts,
}

/// Generates from `prompt`, calling `on_token` with each token as soon as it is known.
///
/// The session's context afterwards holds the prompt and every returned token but the last one, at the model's
/// [end](FinishReason::Eos) that too, and a part of the prompt where that was interrupted or a piece of it failed:
/// [`position`](InferenceSession::position) says how much. The callback may end the generation, and the token it was
/// given stays part of the output.
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
    // Refused as a whole, before its first piece changes the context.
    session.capabilities().check(session.position(), prompt)?;

    let GenerateOptions { max_tokens, eos, sampler, speculation, .. } = options;
    let verifies = session.capabilities().verifies_drafts;
    let speculation = speculation.as_mut().filter(|_| verifies);
    let before = [&options.preceding, prompt].concat();
    let mut answer = Answer::new(before, *max_tokens, eos, &mut on_token);
    let (greedy, mut logits) = (sampler.is_none(), Vec::new());
    // Appends tokens, and chooses the one that follows them.
    let mut choose = |session: &mut dyn InferenceSession, new: &[u32], answer: &Answer| {
        let Some(sampler) = sampler else { return Ok(session.prefill(new)?.token) };
        session.logits(new, &mut logits)?;
        session.capabilities().suppress(&mut logits);
        let (prompt, generated) = answer.split();
        Ok::<_, Error>(sampler.sample(&mut logits, prompt, generated))
    };

    let mut timings = Timings { prefill_tokens: prompt.len(), ..Timings::default() };
    let start = Instant::now();
    let mut rest = prompt;
    let mut token = loop {
        // Where tokens cannot be taken back one by one, steps end where pages do, and so do pieces: elsewhere that
        // would be a step more.
        let aligned = !session.capabilities().verifies_drafts;
        let piece = if aligned { PIECE - session.position() % PIECE } else { PIECE };
        let (now, later) = rest.split_at(piece.min(rest.len()));
        if later.is_empty() {
            break choose(session, now, &answer)?;
        }
        session.prefill(now)?;
        rest = later;
        if options.interrupted.as_mut().is_some_and(|interrupted| interrupted()) {
            timings.prefill = start.elapsed();
            let (tokens, drafts) = (Vec::new(), DraftCounts::default());
            let finish_reason = FinishReason::Interrupted;
            return Ok(Generation { tokens, finish_reason, timings, drafts });
        }
    };
    timings.prefill = start.elapsed();

    let mut drafts = DraftCounts::default();
    if answer.push(token).is_continue() {
        let most = answer.room().min(session.capabilities().context - session.position());
        if let Some(speculation) = speculation {
            let sampler = sampler.as_mut();
            drafts = speculation.decode(session, sampler, token, most, &mut answer)?;
        } else if greedy {
            session.decode_greedy(token, most, &mut |step| answer.step(step.token))?;
        } else {
            for _ in 0..most {
                token = choose(session, &[token], &answer)?;
                if answer.step(token).is_break() {
                    break;
                }
            }
        }
    }
    (timings.decode_tokens, timings.decode) = (answer.decode_tokens, answer.decode);
    // Nothing ended it but that there was no room for more.
    let finish_reason = answer.finish_reason.unwrap_or(FinishReason::Context);
    Ok(Generation { tokens: answer.into_tokens(), finish_reason, timings, drafts })
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
    use crate::{Capabilities, Step};

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
    fn an_interruption_ends_a_long_prompt_between_pieces() {
        let mut session = Counter::new(2000);
        let mut options = GenerateOptions {
            max_tokens: 5,
            interrupted: Some(Box::new(|| true)),
            ..GenerateOptions::default()
        };
        let go_on = |_| ControlFlow::Continue(());
        let generation = generate(&mut session, &[7; 1000], &mut options, go_on).unwrap();
        assert_eq!(generation.finish_reason, FinishReason::Interrupted);
        assert!(generation.tokens.is_empty());
        assert_eq!(session.position(), PIECE);
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
