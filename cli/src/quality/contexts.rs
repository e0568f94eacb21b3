//! The tokens that models are compared on.

use std::collections::HashSet;
use std::ops::ControlFlow;

use serde::Serialize;
use xla_session::sample::{Sampler, SamplerOptions};
use xla_session::{GenerateOptions, InferenceSession, Result, generate};

/// Where the tokens come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// A text that was given.
    Given,
    /// What the model itself wrote in float32, drawn from its own distribution.
    Own,
    /// Ids in no order.
    Random,
}

/// Cuts `ids` into contexts of at most `window` tokens, each of which starts with `begin`, `most`
/// tokens in all.
pub fn cut(begin: &[u32], ids: &[u32], window: usize, most: usize) -> Vec<Vec<u32>> {
    let room = window.saturating_sub(begin.len()).max(1);
    let contexts = ids.chunks(room).map(|piece| [begin, piece].concat());
    limit(contexts, most)
}

/// Lets `session` write contexts that start with `begin`, drawn from its own distribution, each to its end (one of
/// `eos`) or `window` tokens, `most` tokens in all. Each has a seed of its own, or all would be the same text.
///
/// # Errors
///
/// The session's; `begin` is empty.
pub fn write(
    session: &mut dyn InferenceSession,
    begin: &[u32],
    eos: &[u32],
    window: usize,
    most: usize,
    ran: &dyn Fn(usize),
) -> Result<Vec<Vec<u32>>> {
    let mut contexts = Vec::new();
    let mut written = 0;
    while written < most {
        let room = window.min(most - written);
        let seed = contexts.len() as u64;
        let mut options = GenerateOptions {
            max_tokens: room.saturating_sub(begin.len()),
            eos: eos.to_vec(),
            sampler: Some(Sampler::new(SamplerOptions { seed, ..Default::default() })?),
            ..Default::default()
        };
        session.reset();
        let generation = generate(session, begin, &mut options, |_| {
            ran(1);
            ControlFlow::Continue(())
        })?;
        let context = [begin, &generation.tokens].concat();
        written += context.len();
        contexts.push(context);
    }
    Ok(limit(contexts, most))
}

/// The beginnings of `contexts` up to `count` places that lie evenly in all of them, each once.
pub fn prompts(contexts: &[Vec<u32>], count: usize) -> Vec<Vec<u32>> {
    let total: usize = contexts.iter().map(Vec::len).sum();
    let prompt = |number: usize| {
        let mut place = total * (2 * number + 1) / (2 * count);
        for context in contexts {
            if place < context.len() {
                return Some(context[..=place].to_vec());
            }
            place -= context.len();
        }
        None
    };
    let mut seen = HashSet::new();
    (0..count).filter_map(prompt).filter(|prompt| seen.insert(prompt.clone())).collect()
}

/// The first `most` tokens of all `contexts`.
pub fn limit(contexts: impl IntoIterator<Item = Vec<u32>>, most: usize) -> Vec<Vec<u32>> {
    let mut left = most;
    let contexts = contexts.into_iter().map(|mut context| {
        context.truncate(left);
        left -= context.len();
        context
    });
    contexts.take_while(|context| !context.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;
    use xla_session::{Capabilities, Error, Step};

    /// Takes every word for as likely.
    struct Parrot {
        capabilities: Capabilities,
        held: usize,
    }

    impl InferenceSession for Parrot {
        fn capabilities(&self) -> &Capabilities {
            &self.capabilities
        }

        fn prefill(&mut self, tokens: &[u32]) -> Result<Step> {
            self.held += tokens.len();
            tokens.last().map(|_| Step::new(fixture::EOS)).ok_or(Error::EmptyPrompt)
        }

        fn decode_step(&mut self, token: u32) -> Result<Step> {
            self.prefill(&[token])
        }

        fn read_logits(&mut self, logits: &mut Vec<f32>) -> Result<()> {
            logits.clear();
            logits.resize(self.capabilities.vocab_size, 0.0);
            Ok(())
        }

        fn position(&self) -> usize {
            self.held
        }

        fn reset(&mut self) {
            self.held = 0;
        }
    }

    #[test]
    fn every_piece_begins_as_a_text_does() {
        let ids = [1, 2, 3, 4, 5];
        assert_eq!(cut(&[0], &ids, 3, 99), [vec![0, 1, 2], vec![0, 3, 4], vec![0, 5]]);
        assert_eq!(cut(&[0], &ids, 3, 5), [vec![0, 1, 2], vec![0, 3]]);
        assert_eq!(cut(&[], &ids, 4, 4), [vec![1, 2, 3, 4]]);
        assert!(cut(&[0], &[], 4, 4).is_empty());
    }

    #[test]
    fn a_model_writes_until_there_is_enough() {
        let write = |eos: &[u32], window, most| {
            let capabilities = Capabilities::new("parrot", "perch", fixture::vocab_size(), 64, 64);
            let mut parrot = Parrot { capabilities, held: 0 };
            write(&mut parrot, &[0], eos, window, most, &|_| {}).unwrap()
        };
        let texts = write(&[], 16, 40);
        assert_eq!(texts.iter().map(Vec::len).collect::<Vec<_>>(), [16, 16, 8]);
        assert!(texts.iter().all(|text| text[0] == 0));
        assert!(
            texts[0] != texts[1] && texts[1][..8] != texts[2],
            "each is another text: {texts:?}"
        );
        let eos: Vec<u32> = (0..fixture::vocab_size() as u32 / 2).collect();
        let short = write(&eos, 16, 40);
        assert!(
            short.len() > 3
                && short.iter().all(|text| text[1..].iter().all(|id| !eos.contains(id)))
        );
    }

    #[test]
    fn prompts_lie_evenly_and_within_a_context() {
        let contexts = [vec![1, 2, 3, 4], vec![5, 6, 7, 8]];
        assert_eq!(prompts(&contexts, 2), [vec![1, 2, 3], vec![5, 6, 7]]);
        assert_eq!(
            prompts(&contexts, 4),
            [vec![1, 2], vec![1, 2, 3, 4], vec![5, 6], vec![5, 6, 7, 8]]
        );
        assert_eq!(prompts(&contexts, 1), [vec![5]]);
        assert_eq!(prompts(&[vec![1, 2]], 8), [vec![1], vec![1, 2]], "none twice");
        assert_eq!(prompts(&[vec![1, 2], vec![1, 3]], 4), [vec![1], vec![1, 2], vec![1, 3]]);
        assert!(prompts(&contexts, 0).is_empty() && prompts(&[], 3).is_empty());
    }
}
