//! Guessed tokens: what a request's own text suggests comes next, and whether that pays, or what a
//! [smaller model](super::draft_model) says.
//!
//! A guess is a row more of a step, which is verified by it: of several stay as many as are what would have been chosen
//! anyway (Leviathan, Kalman, Matias: "Fast Inference from Transformers via Speculative Decoding", 2023). **Greedy** tokens
//! are equal to those without, since steps are [batch-invariant](crate::engine) on CPUs. **Sampled** tokens are as well, for
//! the same seed: each is drawn from the model's logits with the sampler and the random number that it would be drawn with
//! anyway, and a guess stays if it is that token. It does with the probability `p(guess)`, and what takes its place where it
//! does not is distributed as `p` without it: rejection sampling, for a guess that is certain. The rule for drafts that are
//! drawn from a distribution of their own keeps more of them (the sum of `min(p, q)`), but takes random numbers as it goes:
//! how many tokens are drafted follows the clock, and so would the text.
//!
//! What a row costs is
//! known ([`StepCost`](super::step_cost::StepCost)); what one that is right saves is a token of its stream, the
//! streams' share of a step. So guesses pay where few streams run, whose steps take as long as the weights take to
//! be read, and where a text repeats itself. That is a forecast. What bounds the harm is a book: what steps with
//! guesses took beyond what they should have, less what was saved, is never more than a hundredth of all time; what a
//! smaller model takes to read a text is not in it.

use std::time::Duration;

use super::ngrams::Ngrams;

/// Most rows of a step that has guesses, those of streams among them: so many read the weights once.
const ROWS: usize = 8;

/// Tokens of a long text that are taken in before a step, which waits for that.
const READ: usize = 1024;

/// The share of all time that may be lost to guesses that were wrong, by a book in which times are noisy: it
/// may have been twice that.
const SHARE: f64 = 0.005;

/// What a guess costs at least, as a share of what it saves: a step that happened to be quick is no gain.
const LEAST: f64 = 0.15;

/// How much of the book is still there a step later: it is of the last thousand, about.
const KEPT: f64 = 0.999;

/// Steps of all streams that may be lost of what was gained before.
const CREDIT: f64 = 4.0;

/// What the text of one request suggests, and how often guesses were right.
#[derive(Debug, Default)]
pub(super) struct Guesser {
    ngrams: Ngrams,
    /// Guesses that were right, and those that were looked at; older ones count less.
    right: f64,
    seen: f64,
}

impl Guesser {
    /// Takes in more of `tokens`, its text so far. Returns whether that is all.
    pub fn read(&mut self, tokens: &[u32]) -> bool {
        self.ngrams.read(tokens, READ)
    }

    /// How many of at most `most` guesses pay where one costs `price` of what one that is right saves.
    pub fn count(&self, price: f64, most: usize) -> usize {
        let right = (self.right + 1.0) / (self.seen + 2.0);
        let worth = |count: usize| {
            let expected: f64 = (1..=count as i32).map(|n| right.powi(n)).sum();
            expected - price.max(LEAST) * count as f64
        };
        let best = (1..=most).max_by(|&a, &b| worth(a).total_cmp(&worth(b)));
        // Where none pays, one now and then shows whether that is still so.
        best.map_or(0, |best| if worth(best) > 0.0 { best } else { 1 })
    }

    /// As many tokens as may follow `tokens`, of at most `most`.
    pub fn look_up(&self, tokens: &[u32], most: usize) -> Vec<u32> {
        self.ngrams.look_up(tokens, most)
    }

    /// Of `guessed` tokens the first `right` were right.
    pub fn verified(&mut self, guessed: usize, right: usize) {
        self.right = 0.8 * self.right + right as f64;
        self.seen = 0.8 * self.seen + (right + usize::from(right < guessed)) as f64;
    }
}

/// Whether guesses are made. Seconds.
#[derive(Debug, Default)]
pub(super) struct Book {
    /// Negative where time was gained.
    lost: f64,
    total: f64,
}

impl Book {
    /// Most guesses of each of `streams` streams.
    pub fn allows(&self, streams: usize) -> usize {
        let open = self.lost <= SHARE * self.total;
        if open { (ROWS / streams.max(1)).saturating_sub(1) } else { 0 }
    }

    /// A step of `streams` streams took `took`; `expected` without the `guessed` tokens that were in it, of
    /// which `right` were right. A smaller model was `drafting` before it.
    pub fn stepped(
        &mut self,
        streams: usize,
        (guessed, right): (usize, usize),
        expected: Duration,
        took: Duration,
        drafting: Duration,
    ) {
        let [expected, took, drafting] = [expected, took, drafting].map(|it| it.as_secs_f64());
        (self.lost, self.total) = (KEPT * self.lost, KEPT * self.total + took.min(2.0 * expected));
        (self.lost, self.total) = (self.lost + drafting, self.total + drafting);
        if guessed > 0 {
            let saves = expected / streams.max(1) as f64;
            let all = guessed as f64 * saves;
            // More is something else.
            let more = (took - expected).clamp(LEAST * all, 2.0 * all);
            self.lost = (self.lost + more - right as f64 * saves).max(-CREDIT * expected);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::step_cost::StepCost;
    use super::*;

    /// What a machine does with streams whose guesses are right as often as they are. Milliseconds.
    struct Machine {
        step: f64,
        row: f64,
        noise: u64,
    }

    impl Machine {
        fn takes(&self, rows: usize) -> f64 {
            self.step + self.row * rows as f64
        }

        /// Time with guesses, and the time that as many tokens take without, over `steps` steps of `streams`
        /// streams, of whose guesses `right(step)` are right.
        fn run(
            &mut self,
            streams: usize,
            steps: usize,
            right: impl Fn(usize) -> usize,
        ) -> (f64, f64) {
            let (mut cost, mut book) = (StepCost::default(), Book::default());
            let mut guessers: Vec<_> = (0..streams).map(|_| Guesser::default()).collect();
            // A text in which something is always found.
            let text = [7; 8];
            for guesser in &mut guessers {
                assert!(guesser.read(&text));
            }
            let (mut with, mut without) = (0.0, 0.0);
            cost.stepped(0, 100, Duration::from_secs_f64(self.takes(100) / 1e3));
            for step in 0..steps {
                let (price, most) =
                    (cost.price_of_row(streams, Duration::ZERO).unwrap(), book.allows(streams));
                let (mut guessed, mut accepted) = (0, 0);
                for guesser in &mut guessers {
                    let count = guesser.look_up(&text, guesser.count(price, most)).len();
                    assert!(count <= most);
                    let good = right(step).min(count);
                    if count > 0 {
                        guesser.verified(count, good);
                    }
                    (guessed, accepted) = (guessed + count, accepted + good);
                }
                let took = self.takes(streams + guessed);
                // A busy machine: steps take up to a third longer, and some much.
                self.noise = self.noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let noise = (self.noise >> 40) as f64 / f64::from(1 << 24);
                let noise = if noise > 0.98 { 5.0 } else { 1.0 + noise / 3.0 };
                let (expected, noisy) =
                    (cost.expected(streams, 0), Duration::from_secs_f64(took * noise / 1e3));
                book.stepped(streams, (guessed, accepted), expected, noisy, Duration::ZERO);
                cost.stepped(streams + guessed, 0, noisy);
                with += took;
                let tokens = 1.0 + accepted as f64 / streams as f64;
                without += self.takes(streams) * tokens;
            }
            (with, without)
        }
    }

    /// From one whose rows cost nothing to one on which two rows take as long as two steps.
    fn machines() -> impl Iterator<Item = Machine> {
        [0.0, 1.0, 4.0, 10.0, 1000.0].into_iter().map(|row| Machine { step: 20.0, row, noise: 3 })
    }

    #[test]
    fn guesses_that_are_wrong_cost_nearly_nothing() {
        for mut machine in machines() {
            for streams in [1, 2, 3, 4, 9] {
                let row = machine.row;
                let (with, without) = machine.run(streams, 3000, |_| 0);
                assert!(without / with > 0.98, "{streams} of {row}: {}", without / with);
                // One in twelve is right.
                let (with, without) = machine.run(streams, 3000, |at| usize::from(at % 12 == 0));
                assert!(without / with > 0.98, "{streams} of {row}: {}", without / with);
            }
        }
    }

    #[test]
    fn guesses_that_are_right_pay_where_rows_are_cheap() {
        for mut machine in machines().take(3) {
            let (with, without) = machine.run(1, 300, |_| 9);
            assert!(without / with > 2.0, "{}: {}", machine.row, without / with);
            let (with, without) = machine.run(2, 300, |_| 9);
            assert!(without / with > 1.4, "{}: {}", machine.row, without / with);
        }
        // Nobody guesses where many run.
        let book = Book::default();
        assert_eq!([1, 2, 3, 4, 5, 9, 64].map(|it| book.allows(it)), [7, 3, 1, 1, 0, 0, 0]);
    }

    #[test]
    fn a_text_that_begins_to_repeat_is_noticed() {
        let mut machine = Machine { step: 20.0, row: 1.0, noise: 3 };
        let (with, without) = machine.run(1, 2500, |step| if step < 2000 { 0 } else { 9 });
        assert!(without - with > 500.0 * 21.0, "{with} {without}");
    }
}
