//! Drafts change nothing but the time: on a session that is a table of logits.

use std::ops::ControlFlow;

use proptest::prelude::*;

use super::*;
use crate::sample::SamplerOptions;
use crate::{Capabilities, Error, FinishReason, GenerateOptions, Generation, Step, generate};

const VOCAB: usize = 8;

/// The logits after a token depend on it and the one before it.
struct Table {
    capabilities: Capabilities,
    seed: u64,
    tokens: Vec<u32>,
    /// Rows of each step.
    steps: Vec<usize>,
}

impl Table {
    fn new(seed: u64, context: usize) -> Self {
        let capabilities = Capabilities {
            verifies_drafts: true,
            ..Capabilities::new("table", "none", VOCAB, context, context)
        };
        Self { capabilities, seed, tokens: Vec::new(), steps: Vec::new() }
    }

    /// The same with a vocabulary of that size, whose further rows are as likely as any.
    fn padded(mut self, vocab_size: usize) -> Self {
        self.capabilities.vocab_size = vocab_size;
        self
    }

    fn row(&self, end: usize) -> Vec<f32> {
        let last = &self.tokens[end.saturating_sub(2)..end];
        let mut state =
            last.iter().fold(self.seed, |state, &token| state * 31 + u64::from(token) + 1);
        let next = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1 << 24) as f32 * 3.0
        };
        std::iter::repeat_with(next).take(self.capabilities.vocab_size).collect()
    }

    fn append(&mut self, tokens: &[u32]) -> Result<std::ops::Range<usize>> {
        let (context, held) = (self.capabilities.context, self.tokens.len());
        if tokens.is_empty() {
            return Err(Error::EmptyPrompt);
        }
        // Others take what a drafter makes up, too.
        let vocab_size = self.capabilities.vocab_size;
        let unknown = tokens.iter().find(|&&token| token as usize >= vocab_size);
        if let Some(&token) = unknown.filter(|_| vocab_size != VOCAB) {
            return Err(Error::TokenOutOfRange { token, vocab_size });
        }
        if held + tokens.len() > context {
            return Err(Error::ContextFull { needed: held + tokens.len(), context, max: context });
        }
        self.tokens.extend(tokens);
        self.steps.push(tokens.len());
        Ok(held + 1..self.tokens.len() + 1)
    }
}

fn likeliest(row: &[f32]) -> u32 {
    (0..row.len()).rev().max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap() as u32
}

impl InferenceSession for Table {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn prefill(&mut self, tokens: &[u32]) -> Result<Step> {
        let ends = self.append(tokens)?;
        Ok(Step::new(likeliest(&self.row(ends.end - 1))))
    }

    fn decode_step(&mut self, token: u32) -> Result<Step> {
        self.prefill(&[token])
    }

    fn tokens(&mut self, tokens: &[u32]) -> Result<Vec<u32>> {
        Ok(self.append(tokens)?.map(|end| likeliest(&self.row(end))).collect())
    }

    fn all_logits(&mut self, tokens: &[u32], see: &mut dyn FnMut(&[f32])) -> Result<()> {
        let ends = self.append(tokens)?;
        ends.for_each(|end| see(&self.row(end)));
        Ok(())
    }

    fn read_logits(&mut self, logits: &mut Vec<f32>) -> Result<()> {
        logits.clear();
        logits.extend(self.row(self.tokens.len()));
        Ok(())
    }

    fn position(&self) -> usize {
        self.tokens.len()
    }

    fn truncate(&mut self, tokens: usize) -> usize {
        self.tokens.truncate(tokens);
        self.tokens.len()
    }

    fn reset(&mut self) {
        self.tokens.clear();
    }
}

/// Drafts what it is made of, whatever the text.
struct Stubborn(Vec<u32>);

impl Drafter for Stubborn {
    fn begin(&mut self, _: &[u32]) -> Result<()> {
        Ok(())
    }

    fn draft(&mut self, _: &[u32], _: Option<&Sampler>, _: usize, to: &mut Vec<u32>) -> Result<()> {
        // More than it is asked for, too.
        to.extend(&self.0);
        Ok(())
    }
}

/// What ends an answer, and what it is drawn with.
#[derive(Debug, Clone)]
struct Case {
    model: u64,
    prompt: Vec<u32>,
    context: usize,
    max_tokens: usize,
    eos: Vec<u32>,
    stop: usize,
    sampling: Option<SamplerOptions>,
}

/// What came out, and what the session holds.
fn run(case: &Case, speculation: Option<Speculation>) -> (Generation, Vec<u32>) {
    let mut session = Table::new(case.model, case.context);
    let mut options = GenerateOptions {
        max_tokens: case.max_tokens,
        eos: case.eos.clone(),
        sampler: case.sampling.clone().map(|options| Sampler::new(options).unwrap()),
        speculation,
        ..GenerateOptions::default()
    };
    let mut seen = Vec::new();
    let generation = generate(&mut session, &case.prompt, &mut options, |token| {
        seen.push(token);
        if seen.len() == case.stop { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    let generation = generation.unwrap();
    assert_eq!(seen, generation.tokens);
    (generation, session.tokens)
}

fn case() -> impl Strategy<Value = Case> {
    let sampling = (0.2f32..2.0, 0usize..6, 0.3f32..=1.0, 0f32..0.3, 0.8f32..1.5, any::<u64>());
    let sampling = sampling.prop_map(|(temperature, top_k, top_p, min_p, repeat_penalty, seed)| {
        SamplerOptions {
            temperature,
            top_k,
            top_p,
            min_p,
            repeat_penalty,
            repeat_last_n: 5,
            seed,
            ..SamplerOptions::default()
        }
    });
    let ends = (20usize..90, 1usize..60, prop::collection::vec(0..VOCAB as u32, 0..2), 1usize..80);
    let prompt = prop::collection::vec(0..VOCAB as u32, 1..20);
    (any::<u32>(), prompt, ends, prop::option::of(sampling)).prop_map(
        |(model, prompt, (context, max_tokens, eos, stop), sampling)| Case {
            model: u64::from(model),
            prompt,
            context,
            max_tokens,
            eos,
            stop,
            sampling,
        },
    )
}

fn drafters(case: &Case, same: bool) -> Vec<Speculation> {
    // The same model drafts what is right, another one what is not.
    let padded = |vocab_size| {
        let session = Table::new(if same { case.model } else { 1 }, case.context.min(40));
        ModelDrafter::new(Box::new(session.padded(vocab_size)), VOCAB).unwrap()
    };
    let model = || padded(VOCAB);
    vec![
        Speculation::fixed(NgramDrafter::default(), 3),
        Speculation::auto(NgramDrafter::default()),
        Speculation::fixed(model(), 4),
        Speculation::auto(model()),
        // Vocabularies that are padded otherwise: it drafts what the model has not, or has not all.
        Speculation::fixed(padded(VOCAB + 3), 4),
        Speculation::fixed(padded(VOCAB - 3), 4),
        Speculation::fixed(Stubborn(vec![1, 2, 3, 999]), 6),
    ]
}

proptest! {
    #[test]
    fn every_token_and_every_end_is_that_without(case in case(), same in any::<bool>()) {
        let (expected, held) = run(&case, None);
        for speculation in drafters(&case, same) {
            let (found, held_now) = run(&case, Some(speculation));
            prop_assert_eq!(&found.tokens, &expected.tokens);
            prop_assert_eq!(found.finish_reason, expected.finish_reason);
            prop_assert_eq!(found.timings.decode_tokens, expected.timings.decode_tokens);
            prop_assert!(found.drafts.accepted <= found.drafts.drafted);
            prop_assert_eq!(&held_now, &held, "what the session holds");
        }
    }
}

fn plain(max_tokens: usize, sampling: Option<SamplerOptions>) -> Case {
    let (prompt, eos) = (vec![1, 2], Vec::new());
    Case { model: 3, prompt, context: 100_000, max_tokens, eos, stop: usize::MAX, sampling }
}

#[test]
fn a_model_that_drafts_for_itself_is_always_right() {
    for sampling in [None, Some(SamplerOptions::default())] {
        let case = plain(50, sampling);
        let drafter = ModelDrafter::new(Box::new(Table::new(3, 1000)), VOCAB).unwrap();
        let (generation, _) = run(&case, Some(Speculation::fixed(drafter, 4)));
        let DraftCounts { drafted, accepted } = generation.drafts;
        // 49 steps are 9 with 4 drafts each, and one with 3.
        assert_eq!((drafted, accepted), (39, 39));
    }
}

/// The pairs of an answer's tokens, with drafts that are often wrong, against the distribution that the
/// table says: Pearson's chi-square.
#[test]
fn sampled_tokens_have_the_distribution_of_the_model() {
    const TOKENS: usize = 40_000;
    let options = SamplerOptions { temperature: 0.8, seed: 11, ..SamplerOptions::default() };
    for speculation in [
        Speculation::fixed(Stubborn(vec![4, 4, 1]), 3),
        Speculation::fixed(NgramDrafter::default(), 5),
        Speculation::fixed(ModelDrafter::new(Box::new(Table::new(9, 50_000)), VOCAB).unwrap(), 2),
    ] {
        let (generation, _) = run(&plain(TOKENS, Some(options.clone())), Some(speculation));
        let DraftCounts { drafted, accepted } = generation.drafts;
        assert!(accepted > TOKENS / 50 && accepted < drafted, "{accepted} of {drafted}");
        let mut counts = vec![[0usize; VOCAB]; VOCAB * VOCAB];
        for three in generation.tokens.windows(3) {
            counts[three[0] as usize * VOCAB + three[1] as usize][three[2] as usize] += 1;
        }
        let (mut chi_square, mut freedom) = (0.0, 0.0);
        for (pair, counts) in counts.iter().enumerate() {
            let mut table = Table::new(3, 2);
            table.tokens = vec![(pair / VOCAB) as u32, (pair % VOCAB) as u32];
            let weight = |logit: &f32| (f64::from(*logit) / 0.8).exp();
            let weights: Vec<f64> = table.row(2).iter().map(weight).collect();
            let (all, sum) = (counts.iter().sum::<usize>() as f64, weights.iter().sum::<f64>());
            let expected: Vec<f64> = weights.iter().map(|weight| all * weight / sum).collect();
            if expected.iter().any(|&it| it < 5.0) {
                continue;
            }
            let terms = counts.iter().zip(expected).map(|(&n, e)| (n as f64 - e).powi(2) / e);
            chi_square += terms.sum::<f64>();
            freedom += (VOCAB - 1) as f64;
        }
        assert!(freedom > 300.0, "{freedom}");
        // Its mean is the number of degrees of freedom, its variance twice that: four deviations.
        let limit = freedom + 4.0 * (2.0 * freedom).sqrt();
        assert!(chi_square < limit, "{chi_square} with {freedom} degrees of freedom");
    }
}

#[test]
fn sessions_that_cannot_take_back_are_not_given_drafts() {
    let mut session = Table::new(3, 100);
    session.capabilities.verifies_drafts = false;
    let speculation = Some(Speculation::fixed(NgramDrafter::default(), 4));
    let mut options = GenerateOptions { max_tokens: 40, speculation, ..Default::default() };
    let go_on = |_| ControlFlow::Continue(());
    let generation = generate(&mut session, &[1, 2], &mut options, go_on).unwrap();
    assert_eq!(generation.drafts, DraftCounts::default());
    assert!(session.steps[1..].iter().all(|&rows| rows == 1));
    assert_eq!(generation.finish_reason, FinishReason::Length);
}

#[test]
fn a_callback_that_panics_leaves_no_draft_behind() {
    let drafter = ModelDrafter::new(Box::new(Table::new(3, 1000)), VOCAB).unwrap();
    let speculation = Some(Speculation::fixed(drafter, 6));
    let mut options = GenerateOptions { max_tokens: 40, speculation, ..Default::default() };
    let mut session = Table::new(3, 1000);
    let mut seen = Vec::new();
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let on_token = |token| {
            seen.push(token);
            assert!(seen.len() < 4, "as tests do");
            ControlFlow::Continue(())
        };
        generate(&mut session, &[1, 2], &mut options, on_token).unwrap();
    }));
    panicked.unwrap_err();
    assert_eq!(session.tokens, [&[1, 2], &seen[..3]].concat());
}

#[test]
fn a_draft_model_of_another_vocabulary_is_refused() {
    let error = ModelDrafter::new(Box::new(Table::new(3, 10)), 32_000).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("8 tokens") && text.contains("32000"), "{text}");
}

#[test]
fn without_an_engine_of_its_own_rows_are_a_loop() {
    /// A table that keeps the defaults of the contract.
    struct Plain(Table);
    impl InferenceSession for Plain {
        fn capabilities(&self) -> &Capabilities {
            self.0.capabilities()
        }
        fn prefill(&mut self, tokens: &[u32]) -> Result<Step> {
            self.0.prefill(tokens)
        }
        fn decode_step(&mut self, token: u32) -> Result<Step> {
            self.0.decode_step(token)
        }
        fn read_logits(&mut self, logits: &mut Vec<f32>) -> Result<()> {
            self.0.read_logits(logits)
        }
        fn position(&self) -> usize {
            self.0.position()
        }
        fn reset(&mut self) {
            self.0.reset();
        }
    }
    let (mut looped, mut whole) = (Plain(Table::new(5, 6)), Table::new(5, 6));
    assert_eq!(looped.tokens(&[1, 2, 3]).unwrap(), whole.tokens(&[1, 2, 3]).unwrap());
    let (mut found, mut expected) = (Vec::new(), Vec::new());
    looped.all_logits(&[4, 5], &mut |row| found.extend_from_slice(row)).unwrap();
    whole.all_logits(&[4, 5], &mut |row| expected.extend_from_slice(row)).unwrap();
    assert_eq!(found.len(), 2 * looped.capabilities().vocab_size);
    assert_eq!(found, expected);
    assert_eq!(looped.0.steps, [1; 5]);
    for session in [&mut looped as &mut dyn InferenceSession, &mut whole] {
        assert!(matches!(session.tokens(&[1, 2]), Err(Error::ContextFull { needed: 7, .. })));
        assert!(matches!(session.tokens(&[]), Err(Error::EmptyPrompt)));
        assert!(matches!(session.all_logits(&[], &mut |_| ()), Err(Error::EmptyPrompt)));
        assert_eq!(session.position(), 5);
    }
}
