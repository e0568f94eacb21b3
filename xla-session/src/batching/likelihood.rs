//! How likely a token was.

use crate::sample::sort_first;

/// Natural logarithms of the model's own probabilities: at temperature 1, before biases, penalties and
/// cut-offs; in answers, of the tokens that the model may generate.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Likelihood {
    /// That of the token that was chosen.
    pub logprob: f32,
    /// The most likely tokens with theirs, the likeliest first, the lower id on ties.
    pub top: Vec<(u32, f32)>,
}

impl Likelihood {
    /// That of `token` by `logits`, and of the `top` most likely ones.
    pub(super) fn of(token: u32, top: usize, logits: &[f32]) -> Self {
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        // In one order, so that it is the same bits each time.
        let sum: f64 = logits.iter().map(|&it| (f64::from(it) - f64::from(max)).exp()).sum();
        let total = f64::from(max) + sum.ln();
        let logprob = |id: u32| (f64::from(logits[id as usize]) - total) as f32;
        let mut ids: Vec<u32> = (0..logits.len() as u32).collect();
        let top = top.min(ids.len());
        sort_first(&mut ids, 0, top, logits);
        ids.truncate(top);
        Self { logprob: logprob(token), top: ids.into_iter().map(|id| (id, logprob(id))).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_of_all_tokens_add_up() {
        let logits: Vec<f32> = (0..50).map(|i| (i as f32 * 0.7).cos() * 9.0).collect();
        let all = Likelihood::of(3, 99, &logits);
        let sum: f64 = all.top.iter().map(|(_, it)| f64::from(*it).exp()).sum();
        assert!((sum - 1.0).abs() < 1e-5, "{sum}");
        assert!(all.top.windows(2).all(|pair| pair[0].1 >= pair[1].1));
        assert_eq!(all.top.iter().find(|it| it.0 == 3).unwrap().1, all.logprob);
        let few = Likelihood::of(3, 2, &logits);
        assert_eq!((few.top.as_slice(), few.logprob), (&all.top[..2], all.logprob));
        assert!(Likelihood::of(3, 0, &logits).top.is_empty());
    }

    #[test]
    fn two_of_a_kind_are_a_half_each() {
        let both = Likelihood::of(1, 2, &[5.0, 5.0]);
        assert_eq!(both.top, [(0, -(2f32.ln())), (1, -(2f32.ln()))]);
    }
}
