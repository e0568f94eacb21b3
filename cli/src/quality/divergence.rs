//! Differences between the logits of two models after the same tokens.

use anyhow::{Result, bail};
use serde::Serialize;
use xla_session::InferenceSession;

/// How far the logits of a precision are from float32's, over all positions.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Divergence {
    /// Kullback-Leibler divergence of the precision's distribution of the next token from
    /// float32's.
    pub kl: Kl,
    /// Share of positions with the same most likely token.
    pub same_top: f64,
    /// Mean distance of a logit from float32's.
    pub logit_error: f64,
    /// Of the tokens, in this precision; `None` when no token has one before it.
    pub perplexity: Option<f64>,
}

/// Nats, over all positions.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Kl {
    /// Their sum by their number.
    pub mean: f64,
    /// 99% of the positions have this much or less.
    pub p99: f64,
    /// The most.
    pub max: f64,
}

/// Collects positions for a [`Divergence`].
#[derive(Debug, Default)]
pub struct Tally {
    kl: Vec<f64>,
    same_top: usize,
    logit_errors: f64,
    surprise: Surprise,
}

impl Tally {
    /// Adds a position: both logits, `[vocab_size]`, and the token that the text has next.
    pub fn add(&mut self, reference: &[f32], logits: &[f32], next: Option<u32>) {
        let (p, q) = (log_softmax(reference), log_softmax(logits));
        self.kl.push(kl_divergence(&p, &q));
        self.same_top += usize::from(argmax(reference) == argmax(logits));
        let errors = reference.iter().zip(logits).map(|(a, b)| f64::from((a - b).abs()));
        self.logit_errors += errors.sum::<f64>() / logits.len() as f64;
        self.surprise.add(&q, next);
    }

    /// What they come to; `None` of no positions.
    pub fn finish(mut self) -> Option<Divergence> {
        self.kl.sort_by(f64::total_cmp);
        let positions = self.kl.len() as f64;
        Some(Divergence {
            kl: Kl {
                mean: self.kl.iter().sum::<f64>() / positions,
                p99: percentile(&self.kl, 99)?,
                max: *self.kl.last()?,
            },
            same_top: self.same_top as f64 / positions,
            logit_error: self.logit_errors / positions,
            perplexity: self.surprise.perplexity(),
        })
    }
}

/// How unexpected the tokens of a text are.
#[derive(Debug, Clone, Copy, Default)]
pub struct Surprise {
    nats: f64,
    tokens: usize,
}

impl Surprise {
    /// Adds the token `next`, if there is one, where `log_probabilities` were expected.
    pub fn add(&mut self, log_probabilities: &[f64], next: Option<u32>) {
        if let Some(next) = next {
            self.nats -= log_probabilities[next as usize];
            self.tokens += 1;
        }
    }

    /// e to the mean surprise in nats: between how many tokens, equally likely, one would have to
    /// guess to do as well.
    pub fn perplexity(self) -> Option<f64> {
        (self.tokens > 0).then(|| (self.nats / self.tokens as f64).exp())
    }
}

/// Runs `contexts`, each from an empty session, and hands the logits after every
/// token to `see`, `[vocab_size]`, with the token that follows there.
///
/// # Errors
///
/// The session's, or a logit is infinite or not a number.
pub fn force(
    session: &mut dyn InferenceSession,
    contexts: &[Vec<u32>],
    ran: &dyn Fn(usize),
    mut see: impl FnMut(&[f32], Option<u32>),
) -> Result<()> {
    for context in contexts {
        session.reset();
        let (mut position, mut wrong) = (0, None);
        session.all_logits(context, &mut |logits| {
            position += 1;
            if logits.iter().all(|logit| logit.is_finite()) {
                see(logits, context.get(position).copied());
            } else {
                wrong.get_or_insert(position);
            }
            ran(1);
        })?;
        if let Some(position) = wrong {
            bail!(
                "a logit after {position} tokens is no finite number: are weights of the model \
                 damaged, or too large for the precision?"
            );
        }
    }
    Ok(())
}

/// Natural logarithms of the softmax of `logits`.
pub fn log_softmax(logits: &[f32]) -> Vec<f64> {
    let max = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let sum: f64 = logits.iter().map(|&logit| (f64::from(logit) - max).exp()).sum();
    let log_sum = max + sum.ln();
    logits.iter().map(|&logit| f64::from(logit) - log_sum).collect()
}

/// The Kullback-Leibler divergence D(p ‖ q) in nats of two distributions over the same tokens,
/// given as natural logarithms of finite logits' softmax.
fn kl_divergence(p: &[f64], q: &[f64]) -> f64 {
    let sum: f64 = p.iter().zip(q).map(|(p, q)| p.exp() * (p - q)).sum();
    // Of nearly equal distributions, rounding leaves a sum of either sign.
    if sum < 0.0 { 0.0 } else { sum }
}

/// The smallest of `sorted` values that at least `percent` percent of them do not exceed.
fn percentile(sorted: &[f64], percent: usize) -> Option<f64> {
    let rank = (sorted.len() * percent).div_ceil(100);
    sorted.get(rank.checked_sub(1)?).copied()
}

/// The index of the largest value, the lowest on ties.
fn argmax(values: &[f32]) -> usize {
    let mut best = 0;
    for (index, &value) in values.iter().enumerate() {
        if value > values[best] {
            best = index;
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    fn logits(probabilities: &[f32]) -> Vec<f32> {
        probabilities.iter().map(|p| p.ln()).collect()
    }

    fn kl(p: &[f32], q: &[f32]) -> f64 {
        kl_divergence(&log_softmax(p), &log_softmax(q))
    }

    fn close(a: f64, b: f64) -> bool {
        (a - b).abs() <= 1e-6 * b.abs()
    }

    #[test]
    fn kl_by_hand() {
        let (even, uneven) = (logits(&[0.5, 0.5]), logits(&[0.25, 0.75]));
        // ½ ln(½ / ¼) + ½ ln(½ / ¾) = ½ ln(4/3); ¼ ln(¼ / ½) + ¾ ln(¾ / ½).
        assert!(close(kl(&even, &uneven), (4f64 / 3.0).ln() / 2.0));
        assert!(close(kl(&uneven, &even), 0.75 * 1.5f64.ln() - 0.25 * 2f64.ln()));
        assert_eq!(kl(&uneven, &uneven), 0.0);
    }

    #[test]
    fn kl_knows_no_offset_and_no_overflow() {
        let (p, q) = ([1000.0, 1001.0, -1000.0], [-7.0, -7.5, -9.0]);
        let shifted = q.map(|logit| logit + 64.0);
        assert!(close(kl(&p, &shifted), kl(&p, &q)) && kl(&p, &q).is_finite());
        // The whole mass on the first, of which the other gives e⁻³⁰⁰⁰.
        assert!(close(kl(&[3000.0, 0.0], &[0.0, 3000.0]), 3000.0));
    }

    #[test]
    fn kl_of_a_small_difference_is_half_its_square() {
        // Σ p (d - d̄)² / 2 with d = ±0.001 and p = ½.
        let found = kl(&[0.0, 0.0], &[0.001, -0.001]);
        assert!((found / 5e-7 - 1.0).abs() < 1e-4, "{found}");
    }

    #[test]
    fn a_uniform_model_of_n_tokens_has_perplexity_n() {
        let mut surprise = Surprise::default();
        assert_eq!(surprise.perplexity(), None);
        for next in [Some(0), Some(3), None, Some(4)] {
            surprise.add(&log_softmax(&[2.0; 5]), next);
        }
        assert!(close(surprise.perplexity().unwrap(), 5.0));
    }

    #[test]
    fn percentiles_are_values_that_occurred() {
        let values: Vec<_> = (1..=200).map(f64::from).collect();
        assert_eq!(percentile(&values, 99), Some(198.0));
        assert_eq!(percentile(&values[..100], 99), Some(99.0));
        assert_eq!(percentile(&values[..3], 99), Some(3.0));
        assert_eq!(percentile(&[], 99), None);
    }

    #[test]
    fn positions_add_up() {
        let (even, uneven) = (logits(&[0.5, 0.5]), logits(&[0.25, 0.75]));
        let mut tally = Tally::default();
        tally.add(&uneven, &even, Some(1));
        tally.add(&uneven, &uneven, Some(1));
        let found = tally.finish().unwrap();
        let once = kl(&uneven, &even);
        assert_eq!(found.kl, Kl { mean: once / 2.0, p99: once, max: once });
        assert_eq!(found.same_top, 0.5, "on ties the first token is the most likely one");
        // ln 2 and ln 1½ away in one of two positions.
        assert!(close(found.logit_error, 3f64.ln() / 4.0), "{found:?}");
        assert!(close(found.perplexity.unwrap(), (2.0 / 0.75f64).sqrt()), "{found:?}");
        assert_eq!(Tally::default().finish(), None);
    }
}
