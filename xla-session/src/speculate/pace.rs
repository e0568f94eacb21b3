//! How many tokens to draft.

use std::time::Duration;

/// Most drafts of a step: products of up to 8 rows read the weights once, as they do for one.
const MOST: usize = 7;

/// The share of all time that may be lost to drafts that were wrong.
const SHARE: f64 = 0.01;

/// What a draft adds to a step, as a share of it, as long as nothing was measured.
const GUESS: f64 = 0.3;

/// And what one adds at least in the book: a step that happened to be quick is no gain.
const LEAST: f64 = 0.05;

/// How much longer than the others a step counts as: more was something else.
const HELD_UP: f64 = 2.0;

/// Decides from what steps took and how many drafts were right. Times are in seconds.
///
/// Drafting pays if the tokens that a step is expected to give are more than it costs in steps of one row. Whether
/// it does is a forecast; what bounds the harm is a book: what steps with drafts took beyond what their
/// tokens would have taken one by one may never be more than a hundredth of the whole.
#[derive(Debug, Clone)]
pub(super) struct Pace {
    most: usize,
    adapts: bool,
    /// A step without drafts; a moving average, as all of these.
    plain: Option<f64>,
    /// A step with 1, 2, … drafts.
    drafted: Vec<Option<f64>>,
    /// Drafts that were right, and those that were looked at: wrong ones end a draft.
    right: f64,
    seen: f64,
    /// Time lost so far, negative where it was gained, and all time.
    lost: f64,
    total: f64,
}

impl Pace {
    /// As many as pays.
    pub fn auto() -> Self {
        Self::new(MOST, true)
    }

    /// Always `drafts`.
    pub fn fixed(drafts: usize) -> Self {
        Self::new(drafts, false)
    }

    fn new(most: usize, adapts: bool) -> Self {
        Self {
            most,
            adapts,
            plain: None,
            drafted: vec![None; most],
            right: 0.0,
            seen: 0.0,
            lost: 0.0,
            total: 0.0,
        }
    }

    /// A new answer: what was gained with the last one is not spent on it.
    pub fn begin(&mut self) {
        (self.lost, self.total) = (0.0, 0.0);
    }

    /// How many drafts the next step should have, of at most `room`.
    pub fn drafts(&self, room: usize) -> usize {
        let most = self.most.min(room);
        if !self.adapts {
            return most;
        }
        // The first step tells what one takes.
        let Some(plain) = self.plain else { return 0 };
        if self.lost > SHARE * self.total {
            return 0;
        }
        let worth = |drafts: usize| self.expected(drafts) * plain / self.cost(drafts, plain);
        let best = (1..=most).max_by(|&a, &b| worth(a).total_cmp(&worth(b)));
        match best {
            Some(best) if worth(best) > 1.0 => best,
            // Nothing pays, so it seems; whether that is still so is to be seen, as cheaply as can be.
            _ => (1..=most)
                .rev()
                .find(|&it| self.cost(it, plain) < 1.1 * plain)
                .unwrap_or(most.min(1)),
        }
    }

    /// Tokens that a step with so many drafts gives: the first, and each draft that is right behind those
    /// that are.
    fn expected(&self, drafts: usize) -> f64 {
        let right = (self.right + 1.0) / (self.seen + 2.0);
        (0..=drafts as i32).map(|n| right.powi(n)).sum()
    }

    /// What a step with so many drafts takes: as measured, or as those with more or fewer suggest.
    fn cost(&self, drafts: usize, plain: f64) -> f64 {
        if let Some(known) = self.drafted[drafts - 1] {
            return known;
        }
        let known = self.drafted.iter().enumerate().filter_map(|(i, it)| Some((i + 1, (*it)?)));
        let near = known.min_by_key(|(other, _)| other.abs_diff(drafts));
        let each = near.map_or(GUESS * plain, |(other, took)| (took - plain) / other as f64);
        plain + each.max(0.0) * drafts as f64
    }

    /// A step with `drafted` drafts took so long, and `accepted` of them were right.
    pub fn stepped(&mut self, drafted: usize, accepted: usize, took: Duration) {
        let took = took.as_secs_f64();
        if drafted == 0 {
            let took = self.plain.map_or(took, |plain| took.min(HELD_UP * plain));
            self.plain = Some(self.plain.map_or(took, |plain| average(plain, took)));
            self.total += took;
            return;
        }
        self.right = 0.8 * self.right + accepted as f64;
        self.seen = 0.8 * self.seen + (accepted + usize::from(accepted < drafted)) as f64;
        let Some(plain) = self.plain else { return };
        let took = took.min((1 + drafted) as f64 * plain);
        if let Some(known) = self.drafted.get_mut(drafted - 1) {
            *known = Some(known.map_or(took, |known| average(known, took)));
        }
        self.total += took;
        let took = took.max((1.0 + LEAST * drafted as f64) * plain);
        // Some steps of credit, so that one change in a text that repeats does not end it.
        self.lost = (self.lost + took - (1 + accepted) as f64 * plain).max(-4.0 * plain);
    }
}

fn average(before: f64, now: f64) -> f64 {
    before + (now - before) / 8.0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Times in which `right(step)` of the drafts are right: with drafts, and without.
    fn simulate(
        steps: usize,
        cost: impl Fn(usize) -> f64,
        right: impl Fn(usize) -> usize,
    ) -> (f64, f64, Pace) {
        let mut pace = Pace::auto();
        let (mut with, mut without) = (0.0, 0.0);
        for step in 0..steps {
            let drafts = pace.drafts(usize::MAX);
            let accepted = right(step).min(drafts);
            // Times of a busy machine: some steps are held up.
            let noise = [1.0, 1.0, 1.3, 0.9, 1.0, 1.1, 2.5, 1.0][step * 5 % 8];
            let took = 0.01 * cost(drafts) * noise;
            pace.stepped(drafts, accepted, Duration::from_secs_f64(took));
            with += 0.01 * cost(drafts);
            without += 0.01 * (1 + accepted) as f64;
        }
        (with, without, pace)
    }

    #[test]
    fn drafts_that_are_wrong_cost_nearly_nothing() {
        for each in [0.0, 0.05, 0.3, 1.0] {
            let cost = |drafts: usize| 1.0 + each * drafts as f64;
            for steps in [64, 256, 4000] {
                let (with, without, _) = simulate(steps, cost, |_| 0);
                assert!(without / with > 0.97, "{each}, {steps}: {}", without / with);
            }
            // One in twelve is right.
            let (with, without, _) = simulate(4000, cost, |step| usize::from(step % 12 == 0));
            assert!(without / with > 0.98, "{each}: {}", without / with);
        }
    }

    #[test]
    fn drafts_that_are_right_are_as_many_as_pay() {
        let cheap = |drafts: usize| 1.0 + 0.05 * drafts as f64;
        let (with, without, pace) = simulate(100, cheap, |_| usize::MAX);
        assert_eq!(pace.drafts(usize::MAX), MOST);
        assert_eq!(pace.drafts(3), 3, "no more than there is room for");
        assert_eq!(pace.drafts(0), 0);
        assert!(without / with > 5.0, "{}", without / with);
        // As dear as tokens one by one: nothing is gained, and little lost.
        let (with, without, _) = simulate(1000, |drafts| 1.0 + 1.05 * drafts as f64, |_| 9);
        assert!(without / with > 0.97, "{}", without / with);
        // Cheap up to three, then a step with twice the work.
        let stairs = |drafts: usize| if drafts <= 3 { 1.1 } else { 2.6 };
        let (with, without, _) = simulate(1000, stairs, |step| if step % 4 == 0 { 1 } else { 3 });
        assert!(without / with > 2.6, "{}", without / with);
    }

    #[test]
    fn a_text_that_begins_to_repeat_is_noticed() {
        let cost = |drafts: usize| 1.0 + 0.1 * drafts as f64;
        let (with, without, _) = simulate(1200, cost, |step| if step < 1000 { 0 } else { 9 });
        assert!(without - with > 0.01 * 700.0, "{with} {without}");
    }

    #[test]
    fn a_step_that_was_held_up_is_forgotten() {
        let mut pace = Pace::auto();
        let step = |pace: &mut Pace, drafts: usize, seconds: f64| {
            pace.stepped(drafts, drafts, Duration::from_secs_f64(seconds));
        };
        (0..5).for_each(|_| step(&mut pace, 0, 0.01));
        step(&mut pace, 0, 30.0);
        (0..5).for_each(|_| step(&mut pace, 7, 0.015));
        step(&mut pace, 7, 30.0);
        assert!(pace.drafts(usize::MAX) > 0);
    }

    #[test]
    fn a_fixed_number_is_drafted_whatever_it_costs() {
        let mut pace = Pace::fixed(4);
        for _ in 0..10 {
            assert_eq!((pace.drafts(9), pace.drafts(2)), (4, 2));
            pace.stepped(4, 0, Duration::from_secs(1));
        }
    }
}
