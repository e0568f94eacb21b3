//! The loops that drive any [`InferenceSession`].

mod answer;

use std::fmt;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

pub(crate) use answer::Answer;

use crate::sample::{Sampler, argmax};
use crate::speculate::{DraftCounts, Speculation};
use crate::{Constraint, Error, InferenceSession, Result};

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
    /// What keeps the text to a form, of which it is at the beginning: another text needs another one. Nothing is drafted
    /// then.
    pub constraint: Option<Box<dyn Constraint>>,
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
        let Self { max_tokens, eos, sampler, constraint, speculation, preceding, interrupted } =
            self;
        f.debug_struct("GenerateOptions")
            .field("max_tokens", max_tokens)
            .field("eos", eos)
            .field("sampler", sampler)
            .field("constraint", constraint)
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
    /// The callback said so, or a [constraint](GenerateOptions::constraint).
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
/// [end](FinishReason::Eos) and where a constraint allows no token that too, and a part of the prompt where that was
/// interrupted or a piece of it failed: [`position`](InferenceSession::position) says how much. The callback may end the
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
    // Refused as a whole, before its first piece changes the context.
    session.capabilities().check(session.position(), prompt)?;

    let GenerateOptions { max_tokens, eos, sampler, constraint, speculation, .. } = options;
    let verifies = session.capabilities().verifies_drafts && constraint.is_none();
    let speculation = speculation.as_mut().filter(|_| verifies);
    let before = [&options.preceding, prompt].concat();
    let (greedy, mut logits) = (sampler.is_none() && constraint.is_none(), Vec::new());
    let mut answer = Answer::new(before, *max_tokens, eos, constraint, &mut on_token);
    // Appends tokens, and chooses the one that follows them; none, where none may. What others are forced to follow waits in
    // `later`, to run with them.
    let mut later = Vec::new();
    let mut choose = |session: &mut dyn InferenceSession,
                      new: &[u32],
                      later: &mut Vec<u32>,
                      answer: &mut Answer| {
        if greedy {
            return Ok(Some(session.prefill(new)?.token));
        }
        later.extend(new);
        if let Some(token) = answer.forced() {
            // What is long is run as it comes, so that it can be stopped.
            if later.len() >= PIECE {
                session.prefill(later)?;
                later.clear();
            }
            return Ok(Some(token));
        }
        session.logits(later, &mut logits)?;
        later.clear();
        session.capabilities().suppress(&mut logits);
        if answer.restrict(&mut logits).is_break() {
            return Ok(None);
        }
        let (prompt, generated) = answer.split();
        let sampled = |sampler: &mut Sampler| sampler.sample(&mut logits, prompt, generated);
        let token = sampler.as_mut().map(sampled);
        Ok::<_, Error>(Some(token.unwrap_or_else(|| argmax(&logits))))
    };

    // Once the prompt is.
    let held = session.position() + prompt.len();
    let mut timings = Timings { prefill_tokens: prompt.len(), ..Timings::default() };
    let start = Instant::now();
    let mut rest = prompt;
    let token = loop {
        // Where tokens cannot be taken back one by one, steps end where pages do, and so do pieces: elsewhere that
        // would be a step more.
        let aligned = !session.capabilities().verifies_drafts;
        let piece = if aligned { PIECE - session.position() % PIECE } else { PIECE };
        let (now, behind) = rest.split_at(piece.min(rest.len()));
        if behind.is_empty() {
            // A prompt is run before there is a token, also one that is forced.
            if let Some(token) = answer.forced() {
                session.prefill(now)?;
                break Some(token);
            }
            break choose(session, now, &mut later, &mut answer)?;
        }
        session.prefill(now)?;
        rest = behind;
        if options.interrupted.as_mut().is_some_and(|interrupted| interrupted()) {
            timings.prefill = start.elapsed();
            let (tokens, drafts) = (Vec::new(), DraftCounts::default());
            let finish_reason = FinishReason::Interrupted;
            return Ok(Generation { tokens, finish_reason, timings, drafts });
        }
    };
    timings.prefill = start.elapsed();

    let mut drafts = DraftCounts::default();
    if answer.push(token).is_continue()
        && let Some(mut token) = token
    {
        let most = answer.room().min(session.capabilities().context - held);
        if let Some(speculation) = speculation {
            let sampler = sampler.as_mut();
            drafts = speculation.decode(session, sampler, token, most, &mut answer)?;
        } else if greedy {
            session.decode_greedy(token, most, &mut |step| answer.step(Some(step.token)))?;
        } else {
            for _ in 0..most {
                let next = choose(session, &[token], &mut later, &mut answer)?;
                if answer.step(next).is_break() {
                    break;
                }
                token = next.unwrap_or(token);
            }
        }
    }
    (timings.decode_tokens, timings.decode) = (answer.decode_tokens, answer.decode);
    if !later.is_empty() {
        let start = Instant::now();
        session.prefill(&later)?;
        timings.decode += start.elapsed();
    }
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

    /// Even tokens, up to one that is forced to follow 6 and ends it.
    #[derive(Debug, Clone)]
    struct Even {
        forced: bool,
    }

    impl Constraint for Even {
        fn restrict(&mut self, logits: &mut [f32]) -> ControlFlow<()> {
            logits.iter_mut().skip(1).step_by(2).for_each(|it| *it = f32::NEG_INFINITY);
            logits[999] = f32::NEG_INFINITY;
            ControlFlow::Continue(())
        }

        fn accept(&mut self, token: u32) -> ControlFlow<()> {
            self.forced = token == 6;
            if token == 77 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        }

        fn forced(&mut self) -> Vec<u32> {
            if self.forced { vec![500, 77] } else { Vec::new() }
        }

        fn duplicate(&self) -> Box<dyn Constraint> {
            Box::new(self.clone())
        }
    }

    #[test]
    fn a_constraint_keeps_the_text_to_its_form() {
        let constraint = || Some(Box::new(Even { forced: false }) as _);
        let go_on = |_| ControlFlow::Continue(());
        for (prompt, expected) in [(5, vec![6, 500, 77]), (4, vec![998, 998, 998, 998])] {
            let mut options = GenerateOptions {
                max_tokens: 4,
                constraint: constraint(),
                ..GenerateOptions::default()
            };
            let mut session = Counter::new(100);
            let generation = generate(&mut session, &[prompt], &mut options, go_on).unwrap();
            assert_eq!(generation.tokens, expected);
            // What was forced, too, but the last.
            let last = expected.len() - 1;
            assert_eq!(session.tokens, [&[prompt], &expected[..last]].concat());
            let ended = if prompt == 5 { FinishReason::Stop } else { FinishReason::Length };
            assert_eq!(generation.finish_reason, ended);
        }
    }
}
