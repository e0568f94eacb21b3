//! Choosing a token from logits.
//!
//! A choice is a function of the logits, the tokens so far, the options and the seed: chance is drawn
//! by (seed, position), so that what was drawn before, in which step and beside whom, changes nothing.

use std::cmp::Ordering;

use checkpoint::config::Sampling;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use crate::{Error, Result};

/// How to choose among the likely tokens; the names and meanings are llama.cpp's.
///
/// The default is plain sampling: the model's own distribution, nothing cut off.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplerOptions {
    /// Flattens (above 1) or sharpens (below 1) the distribution; 0 takes the most likely token.
    pub temperature: f32,
    /// Keeps this many of the most likely tokens; 0 keeps all.
    pub top_k: usize,
    /// Keeps the fewest most likely tokens whose probabilities reach this sum; 1 keeps all.
    pub top_p: f32,
    /// Keeps tokens at least this fraction as likely as the most likely one; 0 keeps all.
    pub min_p: f32,
    /// Makes tokens of the recent text less likely: positive logits are divided by it, negative
    /// ones multiplied; 1 leaves them.
    pub repeat_penalty: f32,
    /// How many of the latest tokens (prompt and answer) count as recent.
    pub repeat_last_n: usize,
    /// Taken from the logit of every token that the answer has, as in OpenAI's API; 0 takes nothing.
    pub presence_penalty: f32,
    /// Taken from the logit of a token as often as the answer has it, as in OpenAI's API; 0 takes
    /// nothing.
    pub frequency_penalty: f32,
    /// Added to the logits of these tokens, before all else; minus infinity forbids one,
    /// while there are others.
    pub logit_bias: Vec<(u32, f32)>,
    /// Equal seeds give equal choices.
    pub seed: u64,
}

impl Default for SamplerOptions {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repeat_penalty: 1.0,
            repeat_last_n: 64,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: Vec::new(),
            seed: 0,
        }
    }
}

impl SamplerOptions {
    /// As a model's makers have it, and the default where they say nothing.
    pub fn recommended(by: &Sampling) -> Self {
        let plain = Self::default();
        Self {
            temperature: by.temperature.unwrap_or(plain.temperature),
            top_k: by.top_k.unwrap_or(plain.top_k),
            top_p: by.top_p.unwrap_or(plain.top_p),
            min_p: by.min_p.unwrap_or(plain.min_p),
            repeat_penalty: by.repetition_penalty.unwrap_or(plain.repeat_penalty),
            // In transformers it is of all tokens.
            repeat_last_n: by.repetition_penalty.map_or(plain.repeat_last_n, |_| usize::MAX),
            ..plain
        }
    }

    fn check(&self) -> Result<()> {
        let number = |name: &str, value: f32, good: bool, must: &str| {
            if good {
                Ok(())
            } else {
                Err(Error::Unsupported(format!("{name} is {value}: it must be {must}")))
            }
        };
        let t = self.temperature;
        number("temperature", t, t.is_finite() && t >= 0.0, "0 (greedy) or a positive number")?;
        let p = self.top_p;
        number("top-p", p, p > 0.0 && p <= 1.0, "above 0 and at most 1 (off)")?;
        let p = self.min_p;
        number("min-p", p, (0.0..=1.0).contains(&p), "between 0 (off) and 1")?;
        let r = self.repeat_penalty;
        number("repeat penalty", r, r.is_finite() && r > 0.0, "a positive number; 1 is off")?;
        let p = self.presence_penalty;
        number("presence penalty", p, p.is_finite(), "a number; 0 is off")?;
        let f = self.frequency_penalty;
        number("frequency penalty", f, f.is_finite(), "a number; 0 is off")?;
        for (token, bias) in &self.logit_bias {
            let good = !bias.is_nan() && *bias < f32::INFINITY;
            number(&format!("the bias of token {token}"), *bias, good, "a number")?;
        }
        Ok(())
    }

    /// Whether the most likely token is always chosen, whatever came before.
    pub fn is_greedy(&self) -> bool {
        self.temperature == 0.0
            && self.repeat_penalty == 1.0
            && self.presence_penalty == 0.0
            && self.frequency_penalty == 0.0
            && self.logit_bias.is_empty()
    }
}

/// Chooses tokens at random, reproducibly.
///
/// The steps and their order are those of llama.cpp's default chain: biases, penalties, top-k, top-p,
/// min-p, temperature, draw. Each cut-off sees the probabilities, at temperature 1, of what the
/// one before it left.
#[derive(Debug, Clone)]
pub struct Sampler {
    options: SamplerOptions,
    /// At the start of the seed's sequence, of which position `n` has the words `2n` and `2n + 1`.
    rng: ChaCha8Rng,
    /// Kept between calls so that a step allocates nothing.
    candidates: Vec<u32>,
    weights: Vec<f64>,
    recent: Vec<u32>,
}

impl Sampler {
    /// A sampler with these options.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] names an option that is out of range.
    pub fn new(options: SamplerOptions) -> Result<Self> {
        options.check()?;
        Ok(Self {
            rng: ChaCha8Rng::seed_from_u64(options.seed),
            options,
            candidates: Vec::new(),
            weights: Vec::new(),
            recent: Vec::new(),
        })
    }

    /// The options it was made with.
    pub fn options(&self) -> &SamplerOptions {
        &self.options
    }

    /// Chooses a token from `logits` (overwritten), given the tokens so far: those of the `prompt`, and
    /// those that were `generated`. Together they are as many as the position that is drawn for.
    ///
    /// A NaN logit is never chosen while any other is above minus infinity. At temperature 0 the
    /// lowest id wins a tie.
    ///
    /// # Panics
    ///
    /// When there are no logits.
    pub fn sample(&mut self, logits: &mut [f32], prompt: &[u32], generated: &[u32]) -> u32 {
        assert!(!logits.is_empty(), "no logits to choose from");
        self.penalise(logits, prompt, generated);
        for logit in logits.iter_mut().filter(|logit| logit.is_nan()) {
            *logit = f32::NEG_INFINITY;
        }
        let best = argmax(logits);
        if self.options.temperature == 0.0 {
            return best;
        }
        let max = logits[best as usize];
        let logits = &*logits;
        self.candidates.clear();
        self.candidates.extend(0..logits.len() as u32);
        self.cut(logits, max);
        self.draw(logits, max, prompt.len() + generated.len()).unwrap_or(best)
    }

    fn penalise(&mut self, logits: &mut [f32], prompt: &[u32], generated: &[u32]) {
        for (token, bias) in &self.options.logit_bias {
            if let Some(logit) = logits.get_mut(*token as usize) {
                *logit += bias;
            }
        }
        self.penalise_repeats(logits, prompt, generated);
        let SamplerOptions { presence_penalty, frequency_penalty, .. } = self.options;
        if presence_penalty == 0.0 && frequency_penalty == 0.0 {
            return;
        }
        self.recent.clear();
        self.recent.extend(generated);
        self.recent.sort_unstable();
        for same in self.recent.chunk_by(|a, b| a == b) {
            if let Some(logit) = logits.get_mut(same[0] as usize) {
                *logit -= presence_penalty + frequency_penalty * same.len() as f32;
            }
        }
    }

    fn penalise_repeats(&mut self, logits: &mut [f32], prompt: &[u32], generated: &[u32]) {
        let SamplerOptions { repeat_penalty: penalty, repeat_last_n: n, .. } = self.options;
        if penalty == 1.0 || n == 0 {
            return;
        }
        let from_generated = &generated[generated.len().saturating_sub(n)..];
        let n = n - from_generated.len();
        self.recent.clear();
        self.recent.extend(&prompt[prompt.len().saturating_sub(n)..]);
        self.recent.extend(from_generated);
        self.recent.sort_unstable();
        self.recent.dedup();
        for token in &self.recent {
            if let Some(logit) = logits.get_mut(*token as usize) {
                *logit = if *logit > 0.0 { *logit / penalty } else { *logit * penalty };
            }
        }
    }

    /// Applies top-k, top-p and min-p to the candidates, which are in the order of their ids
    /// before, and afterwards unless a cut-off had to sort them.
    fn cut(&mut self, logits: &[f32], max: f32) {
        let SamplerOptions { top_k, top_p, min_p, .. } = self.options;
        let candidates = &mut self.candidates;
        let mut sorted = 0;
        if top_k > 0 && top_k < candidates.len() {
            sort_first(candidates, 0, top_k, logits);
            candidates.truncate(top_k);
            sorted = top_k;
        }
        if top_p < 1.0 {
            let total: f64 =
                candidates.iter().map(|id| weight(logits[*id as usize], max, 1.0)).sum();
            let enough = f64::from(top_p) * total;
            let mut sum = 0.0;
            let mut kept = 0;
            while kept < candidates.len() && sum < enough {
                if kept == sorted {
                    // Few tokens carry almost all probability: sort no more than needed.
                    let more = (sorted * 3).max(128).min(candidates.len() - sorted);
                    sort_first(candidates, sorted, more, logits);
                    sorted += more;
                }
                sum += weight(logits[candidates[kept] as usize], max, 1.0);
                kept += 1;
            }
            candidates.truncate(kept.max(1));
        }
        if min_p > 0.0 {
            let least = f64::from(min_p);
            candidates.retain(|id| weight(logits[*id as usize], max, 1.0) >= least);
        }
    }

    /// One of the candidates at random, by its probability; `None` when all have none.
    fn draw(&mut self, logits: &[f32], max: f32, position: usize) -> Option<u32> {
        let temperature = f64::from(self.options.temperature);
        let relative = |id: &u32| weight(logits[*id as usize], max, temperature);
        self.weights.clear();
        self.weights.extend(self.candidates.iter().map(relative));
        let total: f64 = self.weights.iter().sum();
        // 53 random bits: every float64 of that spacing in [0, 1).
        self.rng.set_word_pos(2 * position as u128);
        let uniform = (self.rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
        let target = uniform * total;
        let mut sum = 0.0;
        let mut last = None;
        for (id, weight) in self.candidates.iter().zip(&self.weights).filter(|(_, w)| **w > 0.0) {
            sum += weight;
            last = Some(*id);
            if sum > target {
                break;
            }
        }
        last
    }
}

/// The probability of `logit` relative to that of the largest one.
fn weight(logit: f32, max: f32, temperature: f64) -> f64 {
    if logit == f32::NEG_INFINITY {
        0.0
    } else if logit == max {
        // Also where the difference is no number: both infinite.
        1.0
    } else {
        ((f64::from(logit) - f64::from(max)) / temperature).exp()
    }
}

/// Makes the logits of `tokens` minus infinity: they are never chosen.
pub(crate) fn suppress(logits: &mut [f32], tokens: &[u32]) {
    for &token in tokens {
        if let Some(logit) = logits.get_mut(token as usize) {
            *logit = f32::NEG_INFINITY;
        }
    }
}

/// The id of the largest logit, the lowest on ties.
pub(crate) fn argmax(logits: &[f32]) -> u32 {
    let mut best = 0;
    for (id, logit) in logits.iter().enumerate() {
        if *logit > logits[best] {
            best = id;
        }
    }
    best as u32
}

/// Sorts the `count` likeliest of `ids[from..]` to the front of it; the likelier first, the lower
/// id on ties.
pub(crate) fn sort_first(ids: &mut [u32], from: usize, count: usize, logits: &[f32]) {
    let order = |a: &u32, b: &u32| -> Ordering {
        logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b))
    };
    let rest = &mut ids[from..];
    if count < rest.len() {
        rest.select_nth_unstable_by(count, order);
    }
    rest[..count].sort_unstable_by(order);
}

#[cfg(test)]
mod tests {
    use super::*;

    const DRAWS: usize = 20_000;

    fn options(change: impl FnOnce(&mut SamplerOptions)) -> SamplerOptions {
        let mut options = SamplerOptions::default();
        change(&mut options);
        options
    }

    fn sampler(change: impl FnOnce(&mut SamplerOptions)) -> Sampler {
        Sampler::new(options(change)).unwrap()
    }

    /// How often each token is drawn, as a fraction.
    fn frequencies(sampler: &mut Sampler, logits: &[f32]) -> Vec<f64> {
        let mut counts = vec![0.0; logits.len()];
        // Tokens that no logit is of, so that nothing but the position changes.
        let before = [u32::MAX; DRAWS];
        for position in 0..DRAWS {
            counts[sampler.sample(&mut logits.to_vec(), &before[..position], &[]) as usize] += 1.0;
        }
        counts.iter().map(|n| n / DRAWS as f64).collect()
    }

    /// Every frequency within five standard deviations of its probability; zero means never.
    #[track_caller]
    fn assert_distribution(frequencies: &[f64], weights: &[f64]) {
        let total: f64 = weights.iter().sum();
        for (id, (frequency, weight)) in frequencies.iter().zip(weights).enumerate() {
            let p = weight / total;
            let deviation = (p * (1.0 - p) / DRAWS as f64).sqrt();
            assert!((frequency - p).abs() <= 5.0 * deviation, "token {id}: {frequency}, not {p}");
        }
    }

    fn logs(probabilities: &[f32]) -> Vec<f32> {
        probabilities.iter().map(|p| p.ln()).collect()
    }

    #[test]
    fn draws_the_models_distribution() {
        let p = [0.5, 0.1, 0.25, 0.15];
        let frequencies = frequencies(&mut sampler(|_| ()), &logs(&p));
        assert_distribution(&frequencies, &p.map(f64::from));
    }

    #[test]
    fn temperature_sharpens_and_flattens() {
        let logits = [0.0, 1.0, -1.0];
        for temperature in [0.5f32, 2.0] {
            let frequencies = frequencies(&mut sampler(|o| o.temperature = temperature), &logits);
            let weights = logits.map(|x| (f64::from(x) / f64::from(temperature)).exp());
            assert_distribution(&frequencies, &weights);
        }
    }

    #[test]
    fn top_k_keeps_the_likeliest() {
        let logits = logs(&[0.1, 0.4, 0.2, 0.3]);
        let at = |k| frequencies(&mut sampler(|o| o.top_k = k), &logits);
        assert_distribution(&at(2), &[0.0, 0.4, 0.0, 0.3]);
        assert_distribution(&at(1), &[0.0, 1.0, 0.0, 0.0]);
        assert_distribution(&at(9), &[0.1, 0.4, 0.2, 0.3]);
        // A tie at the edge goes to the lower id.
        let mut tied = sampler(|o| o.top_k = 2);
        assert_distribution(&frequencies(&mut tied, &[1.0, 0.0, 1.0, 1.0]), &[1.0, 0.0, 1.0, 0.0]);
    }

    #[test]
    fn top_p_keeps_the_fewest_that_reach_it() {
        let logits = logs(&[0.1, 0.4, 0.2, 0.3]);
        let at = |p| frequencies(&mut sampler(|o| o.top_p = p), &logits);
        assert_distribution(&at(0.01), &[0.0, 1.0, 0.0, 0.0]);
        assert_distribution(&at(0.65), &[0.0, 0.4, 0.0, 0.3]);
        assert_distribution(&at(0.75), &[0.0, 0.4, 0.2, 0.3]);
        assert_distribution(&at(0.95), &[0.1, 0.4, 0.2, 0.3]);
        // After top-k the sum is over what top-k left: 4/7 of it is the first.
        let both = |o: &mut SamplerOptions| (o.top_k, o.top_p) = (2, 0.55);
        assert_distribution(&frequencies(&mut sampler(both), &logits), &[0.0, 1.0, 0.0, 0.0]);
    }

    #[test]
    fn top_p_agrees_with_a_full_sort() {
        // More tokens than are sorted at first, in a scrambled order.
        let n = 5000u32;
        let logits: Vec<f32> = (0..n).map(|i| -((i * 1237 % n) as f32) / 900.0).collect();
        let mut order: Vec<u32> = (0..n).collect();
        order.sort_by(|a, b| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b)));
        let weights: Vec<f64> =
            order.iter().map(|id| f64::from(logits[*id as usize]).exp()).collect();
        for p in [0.001f32, 0.1, 0.5, 0.9, 0.999] {
            let enough = f64::from(p) * weights.iter().sum::<f64>();
            let mut sum = 0.0;
            let kept = weights.iter().take_while(|w| {
                let more = sum < enough;
                sum += **w;
                more
            });
            let kept = kept.count();
            let mut sampler = sampler(|o| o.top_p = p);
            sampler.sample(&mut logits.clone(), &[], &[]);
            assert!(sampler.candidates.len().abs_diff(kept) <= 1, "top-p {p}");
            let common = kept.min(sampler.candidates.len());
            assert_eq!(sampler.candidates[..common], order[..common], "top-p {p}");
        }
    }

    #[test]
    fn min_p_is_relative_to_the_likeliest() {
        let logits = logs(&[0.1, 0.4, 0.2, 0.3]);
        let at = |p| frequencies(&mut sampler(|o| o.min_p = p), &logits);
        assert_distribution(&at(0.6), &[0.0, 0.4, 0.0, 0.3]);
        assert_distribution(&at(0.3), &[0.0, 0.4, 0.2, 0.3]);
        assert_distribution(&at(1.0), &[0.0, 1.0, 0.0, 0.0]);
        // Cut-offs come before temperature: heat does not bring a token back.
        let hot = |o: &mut SamplerOptions| (o.min_p, o.temperature) = (0.6, 1e6);
        assert_distribution(&frequencies(&mut sampler(hot), &logits), &[0.0, 1.0, 0.0, 1.0]);
    }

    #[test]
    fn repeat_penalty_reaches_the_recent_tokens_once_each() {
        let penalised = |last_n, prompt: &[u32], generated: &[u32]| {
            let mut sampler = sampler(|o| {
                (o.temperature, o.repeat_penalty, o.repeat_last_n) = (0.0, 2.0, last_n);
            });
            let mut logits = [4.0, -4.0, 1.0, 0.0];
            sampler.sample(&mut logits, prompt, generated);
            logits
        };
        assert_eq!(penalised(64, &[0, 0, 1], &[0]), [2.0, -8.0, 1.0, 0.0]);
        assert_eq!(penalised(2, &[0, 1], &[2]), [4.0, -8.0, 0.5, 0.0]);
        assert_eq!(penalised(1, &[0, 1], &[3, 2]), [4.0, -4.0, 0.5, 0.0]);
        assert_eq!(penalised(0, &[0, 1], &[2]), [4.0, -4.0, 1.0, 0.0]);
        assert_eq!(penalised(usize::MAX, &[0], &[1, 77]), [2.0, -8.0, 1.0, 0.0]);
    }

    #[test]
    fn greedy_comes_after_the_penalty() {
        let greedy = |penalty, logits: &[f32]| {
            let mut sampler = sampler(|o| (o.temperature, o.repeat_penalty) = (0.0, penalty));
            sampler.sample(&mut logits.to_vec(), &[1], &[])
        };
        assert_eq!(greedy(1.0, &[1.0, 3.0, 2.0]), 1);
        assert_eq!(greedy(2.0, &[1.0, 3.0, 2.0]), 2);
        assert_eq!(greedy(1.0, &[1.0, 3.0, 3.0]), 1, "the lowest id on ties");
    }

    #[test]
    fn equal_seeds_give_equal_choices() {
        let logits: Vec<f32> = (0..1000).map(|i| (i as f32 * 0.37).sin()).collect();
        let run = |seed| {
            let mut sampler = sampler(|o| (o.seed, o.top_k, o.top_p) = (seed, 200, 0.9));
            let tokens: Vec<u32> = (0..50)
                .map(|at| sampler.sample(&mut logits.clone(), &[0; 50][..at], &[]))
                .collect();
            tokens
        };
        assert_eq!(run(7), run(7));
        assert_ne!(run(7), run(8));
    }

    #[test]
    fn what_was_drawn_before_changes_nothing() {
        let logits: Vec<f32> = (0..1000).map(|i| (i as f32 * 0.37).sin()).collect();
        let before: Vec<u32> = (0..40).collect();
        let at = |sampler: &mut Sampler, prompt: usize, position: usize| {
            let (prompt, generated) = before[..position].split_at(prompt);
            sampler.sample(&mut logits.clone(), prompt, generated)
        };
        let mut one = sampler(|o| o.seed = 5);
        let forwards: Vec<_> = (9..40).map(|position| at(&mut one, 9, position)).collect();
        let mut other = sampler(|o| o.seed = 5);
        let backwards = (9..40).rev().map(|position| at(&mut other, position, position));
        let mut backwards: Vec<_> = backwards.collect();
        backwards.reverse();
        assert_eq!(forwards, backwards);
        assert!(forwards.iter().any(|token| *token != forwards[0]));
    }

    #[test]
    fn presence_and_frequency_are_of_the_answer_alone() {
        let penalised = |presence, frequency, generated: &[u32]| {
            let mut sampler = sampler(|o| {
                (o.temperature, o.presence_penalty, o.frequency_penalty) =
                    (0.0, presence, frequency);
            });
            let mut logits = [4.0, -4.0, 1.0, 0.0];
            sampler.sample(&mut logits, &[3, 3], generated);
            logits
        };
        assert_eq!(penalised(0.5, 0.0, &[0, 1, 0]), [3.5, -4.5, 1.0, 0.0]);
        assert_eq!(penalised(0.0, 0.25, &[0, 1, 0]), [3.5, -4.25, 1.0, 0.0]);
        assert_eq!(penalised(-0.5, 0.25, &[0, 1, 0, 99]), [4.0, -3.75, 1.0, 0.0]);
        assert_eq!(penalised(1.0, 1.0, &[]), [4.0, -4.0, 1.0, 0.0]);
    }

    #[test]
    fn biases_come_first_and_can_forbid_a_token() {
        let mut sampler = sampler(|o| {
            o.logit_bias = vec![(1, f32::NEG_INFINITY), (0, 2.5), (77, 1.0)];
            o.temperature = 0.0;
        });
        let mut logits = [1.0, 9.0, 3.0];
        assert_eq!(sampler.sample(&mut logits, &[], &[]), 0);
        assert_eq!(logits, [3.5, f32::NEG_INFINITY, 3.0]);
        assert!(!sampler.options().is_greedy());
    }

    #[test]
    fn survives_logits_that_are_no_numbers() {
        let (nan, inf) = (f32::NAN, f32::INFINITY);
        for change in [
            (|_| ()) as fn(&mut SamplerOptions),
            |o| o.temperature = 0.0,
            |o| o.top_k = 2,
            |o| o.top_p = 0.9,
            |o| o.min_p = 0.1,
            |o| (o.top_k, o.top_p, o.min_p, o.repeat_penalty) = (3, 0.5, 0.5, 1.1),
        ] {
            let mut sampler = sampler(change);
            let mut pick = |logits: &[f32]| sampler.sample(&mut logits.to_vec(), &[0, 1], &[]);
            for _ in 0..50 {
                assert_eq!(pick(&[nan, nan, 1.0, nan]), 2);
                assert_eq!(pick(&[nan, -inf, nan, -5.0]), 3);
                assert_eq!(pick(&[1.0, inf, nan, 2.0]), 1);
                assert!(pick(&[nan; 4]) < 4);
                assert!(pick(&[-inf; 4]) < 4);
                assert!([1, 2].contains(&pick(&[0.0, inf, inf, nan])));
                assert_eq!(pick(&[f32::MIN, f32::MIN, f32::MAX]), 2);
                assert_eq!(pick(&[nan]), 0);
            }
        }
    }

    #[test]
    fn a_tiny_temperature_is_greedy() {
        let mut sampler = sampler(|o| o.temperature = 1e-30);
        assert_eq!(sampler.sample(&mut [1.0, 1.001, 0.5], &[], &[]), 1);
    }

    #[test]
    fn refuses_options_out_of_range() {
        type Change = fn(&mut SamplerOptions);
        let error = |change: Change| Sampler::new(options(change)).unwrap_err().to_string();
        let cases: [(Change, &str); 13] = [
            (|o| o.temperature = -0.1, "temperature is -0.1"),
            (|o| o.temperature = f32::NAN, "temperature is NaN"),
            (|o| o.temperature = f32::INFINITY, "temperature is inf"),
            (|o| o.top_p = 0.0, "top-p is 0"),
            (|o| o.top_p = 1.01, "top-p is 1.01"),
            (|o| o.min_p = -0.5, "min-p is -0.5"),
            (|o| o.min_p = f32::NAN, "min-p is NaN"),
            (|o| o.repeat_penalty = 0.0, "repeat penalty is 0"),
            (|o| o.repeat_penalty = f32::NAN, "repeat penalty is NaN"),
            (|o| o.presence_penalty = f32::INFINITY, "presence penalty is inf"),
            (|o| o.frequency_penalty = f32::NAN, "frequency penalty is NaN"),
            (|o| o.logit_bias = vec![(7, f32::NAN)], "the bias of token 7 is NaN"),
            (|o| o.logit_bias = vec![(7, f32::INFINITY)], "the bias of token 7 is inf"),
        ];
        for (change, part) in cases {
            let text = error(change);
            assert!(text.contains(part), "{text}");
        }
    }
}
