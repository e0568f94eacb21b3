//! Drafts on real models: every token and every end is that without.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use xla_session::sample::{Sampler, SamplerOptions};
use xla_session::{
    DraftCounts, Drafter, FinishReason, GenerateOptions, Generation, InferenceSession,
    ModelDrafter, NgramDrafter, Precision, SessionOptions, Speculation, generate,
};

use crate::fixtures::{self, SOME, assert_same_tokens};

fn open(folder: &Path, precision: Precision) -> Box<dyn InferenceSession> {
    let cache_dir = Some(fixtures::compiled());
    let options = SessionOptions { precision, cache_dir, ..SessionOptions::default() };
    xla_session::open(folder, &options).unwrap().session
}

fn tiny_tales() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/tiny-tales")
}

/// Says what it was told beforehand, whole answers or lies.
struct Known {
    text: Vec<u32>,
    /// One token in so many is another one.
    wrong: usize,
}

impl Drafter for Known {
    fn begin(&mut self, _: &[u32]) -> xla_session::Result<()> {
        Ok(())
    }

    fn draft(
        &mut self,
        tokens: &[u32],
        _: Option<&Sampler>,
        most: usize,
        drafts: &mut Vec<u32>,
    ) -> xla_session::Result<()> {
        let rest = self.text.iter().enumerate().skip(tokens.len()).take(most);
        drafts.extend(rest.map(|(i, &it)| if i % self.wrong == 0 { it ^ 1 } else { it }));
        Ok(())
    }
}

fn run(
    session: &mut dyn InferenceSession,
    prompt: &[u32],
    options: GenerateOptions,
    stop: usize,
) -> (Generation, usize) {
    let mut options = options;
    session.reset();
    let mut seen = 0;
    let generation = generate(session, prompt, &mut options, |_| {
        seen += 1;
        if seen == stop { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    (generation.unwrap(), session.position())
}

#[test]
fn every_token_equals_the_reference_with_right_and_wrong_drafts() {
    for name in SOME {
        let fixture = fixtures::named(name);
        for precision in [Precision::Stored, Precision::F32] {
            let mut session = open(&fixture.folder, precision);
            for case in &fixture.cases {
                for wrong in [usize::MAX, 3] {
                    let text = [&case.prompt[..], &case.tokens].concat();
                    let speculation = Some(Speculation::fixed(Known { text, wrong }, 7));
                    let max_tokens = case.tokens.len();
                    let options =
                        GenerateOptions { max_tokens, speculation, ..GenerateOptions::default() };
                    let (found, held) = run(session.as_mut(), &case.prompt, options, usize::MAX);
                    let what = format!("{name}, {} tokens, {precision:?}", case.prompt.len());
                    assert_eq!(found.tokens, case.tokens, "{what}");
                    assert_eq!(held, case.prompt.len() + case.tokens.len() - 1, "{what}");
                    assert!(found.drafts.accepted > max_tokens / 2, "{what}: {:?}", found.drafts);
                }
            }
            // What is left behind is a session like any.
            assert_same_tokens(&fixture, session.as_mut());
        }
    }
}

#[test]
fn eos_stop_length_and_context_end_inside_a_draft() {
    let fixture = fixtures::named("llama-gqa-long-bf16");
    let case = &fixture.cases[1];
    let text = [&case.prompt[..], &case.tokens].concat();
    let drafts = || Some(Speculation::fixed(Known { text: text.clone(), wrong: usize::MAX }, 7));
    let new_at = |i: &usize| !case.tokens[..*i].contains(&case.tokens[*i]);
    let at = (3..20).find(new_at).expect("a token that appears late");
    let mut session = open(&fixture.folder, Precision::Stored);

    let eos = vec![case.tokens[at]];
    let options =
        || GenerateOptions { max_tokens: 25, speculation: drafts(), ..Default::default() };
    let (found, held) =
        run(session.as_mut(), &case.prompt, GenerateOptions { eos, ..options() }, usize::MAX);
    assert_eq!((&found.tokens[..], found.finish_reason), (&case.tokens[..at], FinishReason::Eos));
    assert_eq!(held, case.prompt.len() + at);

    let (found, held) = run(session.as_mut(), &case.prompt, options(), at);
    assert_eq!((&found.tokens[..], found.finish_reason), (&case.tokens[..at], FinishReason::Stop));
    assert_eq!(held, case.prompt.len() + at - 1);
    // And it goes on as if nothing had been drafted.
    assert_eq!(session.decode_step(case.tokens[at - 1]).unwrap().token, case.tokens[at]);

    for max_tokens in 1..=12 {
        let options = GenerateOptions { max_tokens, ..options() };
        let (found, held) = run(session.as_mut(), &case.prompt, options, usize::MAX);
        assert_eq!(found.tokens, case.tokens[..max_tokens]);
        assert_eq!(found.finish_reason, FinishReason::Length);
        assert_eq!(held, case.prompt.len() + max_tokens - 1);
    }

    let context = case.prompt.len() + 13;
    let small = SessionOptions { context: Some(context), ..SessionOptions::default() };
    let mut session = xla_session::open(&fixture.folder, &small).unwrap().session;
    let (found, held) = run(session.as_mut(), &case.prompt, options(), usize::MAX);
    assert_eq!(found.tokens, case.tokens[..14], "the last needs no room");
    assert_eq!((found.finish_reason, held), (FinishReason::Context, context));
}

/// A story that the model has told before, and ids at random; greedy and sampled.
#[test]
fn a_trained_model_says_the_same_with_drafts_and_without() {
    let mut session = open(&tiny_tales(), Precision::Stored);
    let first = run(session.as_mut(), &[0], options(100, None, None), usize::MAX).0.tokens;
    let repeating = [&[0], &first[..], &[0], &first[..20]].concat();
    let vocab_size = session.capabilities().vocab_size as u32;
    let random: Vec<u32> = (0..60).map(|i| i * i * 7919 % vocab_size).collect();
    let sampling = SamplerOptions {
        temperature: 0.7,
        top_k: 30,
        top_p: 0.95,
        min_p: 0.01,
        repeat_penalty: 1.05,
        repeat_last_n: 64,
        seed: 5,
        ..SamplerOptions::default()
    };
    for (prompt, repeats) in [(&repeating, true), (&random, false)] {
        for sampling in [None, Some(sampling.clone())] {
            let (expected, held) =
                run(session.as_mut(), prompt, options(80, sampling.clone(), None), usize::MAX);
            let int4 = || {
                let drafting = open(&tiny_tales(), Precision::Int4);
                ModelDrafter::new(drafting, vocab_size as usize).unwrap()
            };
            for (name, speculation) in [
                ("n-grams", Speculation::fixed(NgramDrafter::default(), 6)),
                ("n-grams as they pay", Speculation::auto(NgramDrafter::default())),
                ("int4", Speculation::fixed(int4(), 3)),
                ("int4 as it pays", Speculation::auto(int4())),
            ] {
                let options = options(80, sampling.clone(), Some(speculation));
                let (found, now) = run(session.as_mut(), prompt, options, usize::MAX);
                assert_eq!(found.tokens, expected.tokens, "{name}, {repeats}, {sampling:?}");
                assert_eq!((found.finish_reason, now), (expected.finish_reason, held), "{name}");
                let DraftCounts { drafted, accepted } = found.drafts;
                if name == "int4" || (name == "n-grams" && repeats && sampling.is_none()) {
                    assert!(2 * accepted > drafted && accepted > 20, "{name}: {:?}", found.drafts);
                }
            }
        }
    }
}

fn options(
    max_tokens: usize,
    sampling: Option<SamplerOptions>,
    speculation: Option<Speculation>,
) -> GenerateOptions {
    let sampler = sampling.map(|it| Sampler::new(it).unwrap());
    GenerateOptions { max_tokens, sampler, speculation, ..GenerateOptions::default() }
}

#[test]
fn rows_of_a_session_are_those_one_by_one() {
    let fixture = fixtures::named("qwen3-gqa-tied-bf16");
    let mut session = open(&fixture.folder, Precision::Stored);
    // More than one step takes.
    let prompt = fixture.cases[3].prompt.clone();
    assert!(prompt.len() > 256);
    let vocab_size = session.capabilities().vocab_size;
    let tokens = session.tokens(&prompt).unwrap();
    session.reset();
    let mut logits = Vec::new();
    session.all_logits(&prompt, &mut |row| logits.extend_from_slice(row)).unwrap();
    assert_eq!((tokens.len(), logits.len()), (prompt.len(), prompt.len() * vocab_size));
    session.reset();
    let mut one = Vec::new();
    for (i, &token) in prompt.iter().enumerate() {
        session.logits(&[token], &mut one).unwrap();
        assert!(one == logits[i * vocab_size..][..vocab_size], "the bits of row {i}");
        if i % 16 == 0 {
            assert_eq!(session.truncate(i), i);
            assert_eq!(session.decode_step(token).unwrap().token, tokens[i], "row {i}");
        }
    }
    // Rows of the last step that are kept can be read.
    session.truncate(prompt.len() - 6);
    session.tokens(&prompt[prompt.len() - 6..]).unwrap();
    session.truncate(prompt.len() - 4);
    session.read_logits(&mut one).unwrap();
    let row = prompt.len() - 5;
    assert!(one == logits[row * vocab_size..][..vocab_size]);
    // Those of others are run again.
    session.truncate(prompt.len() - 7);
    session.read_logits(&mut one).unwrap();
    let row = prompt.len() - 8;
    assert!(one == logits[row * vocab_size..][..vocab_size]);
    session.reset();
    session.read_logits(&mut one).unwrap_err();
}

#[test]
fn another_vocabulary_is_refused() {
    let model = open(&tiny_tales(), Precision::Stored);
    let drafts = open(&fixtures::named("llama-mha-f32").folder, Precision::Stored);
    let sizes = [&model, &drafts].map(|it| it.capabilities().vocab_size);
    let error = ModelDrafter::new(drafts, sizes[0]).unwrap_err().to_string();
    assert!(sizes.iter().all(|size| error.contains(&size.to_string())), "{error}");
}
