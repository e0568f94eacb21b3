//! What a step takes, as far as the ones before it tell.
//!
//! Between two tokens of a stream lies one step, and how long that is follows from its rows: those of the
//! streams, which have to be there, and those of prompts beside them, of which there may be fewer. So the gap
//! has a bound in time, on any machine and for any model, once it is known what rows take.
//!
//! A step is taken to cost a part of its own (the weights are read), a part for each row of a stream and a part
//! for each other row. After each step the parts are corrected by as little, as a share of each, as explains what
//! it took (least mean squares, normalised). What there is no news of so stays as it was: when all steps are
//! alike for an hour, it is not forgotten what others take. Rows far behind in a long context take longer than
//! the first ones; they come there slowly, and the parts with them.

use std::time::Duration;

/// Rows beside streams come in whole multiples of this, together with those of the streams: kernels take rows
/// in tiles of 8 (AVX-512) and 6 (AVX2).
const TILE: usize = 8;

/// Fewest rows of prompts beside streams, but for those of a tile that is not full, whatever they take: with none, a prompt
/// would never end.
const LEAST: usize = 16;

/// The part of the bound that is aimed at: some steps take longer than others like them.
const AIM: f64 = 3.0 / 4.0;

/// How much of what is not explained is believed.
const BELIEF: f64 = 0.5;

/// How much longer than expected a step counts as at most: more was something else.
const HELD_UP: f64 = 2.0;

/// The parts of what steps take. Seconds.
#[derive(Debug, Clone, Default)]
pub(super) struct StepCost {
    /// Of a step, of each row of a stream, of each other row; `None` before the first step.
    parts: Option<[f64; 3]>,
}

impl StepCost {
    /// How many rows may run beside `streams` rows of streams, for a step of `time`.
    pub fn rows_beside(&self, streams: usize, time: Duration) -> usize {
        let Some([step, stream, other]) = self.parts else { return LEAST };
        let left = AIM * time.as_secs_f64() - step - stream * streams as f64;
        // As many as anybody could want, where rows take no time.
        let rows = (left / other).clamp(LEAST as f64, 1e6) as usize;
        (streams + rows) / TILE * TILE - streams
    }

    /// What a step of `streams` rows of streams and `others` should take; nothing before the first step.
    pub fn expected(&self, streams: usize, others: usize) -> Duration {
        let [step, stream, other] = self.parts.unwrap_or_default();
        Duration::from_secs_f64(step + stream * streams as f64 + other * others as f64)
    }

    /// What one more row of a stream costs, as a share of what one token of one of `streams` streams takes, where one of
    /// each is guessed in a `round`; `None` before the first step.
    pub fn price_of_row(&self, streams: usize, round: Duration) -> Option<f64> {
        let [step, stream, _] = self.parts?;
        let of_one = |it: f64| it / streams.max(1) as f64;
        Some((stream + of_one(round.as_secs_f64())) / (of_one(step) + stream))
    }

    /// A step of `streams` rows of streams and `others` took `took`.
    pub fn stepped(&mut self, streams: usize, others: usize, took: Duration) {
        let rows = [1.0, streams as f64, others as f64];
        let took = took.as_secs_f64();
        let Some(parts) = &mut self.parts else {
            // Nothing tells yet what of it is whose.
            let row = took / 2.0 / (streams + others).max(1) as f64;
            self.parts = Some([took / 2.0, row, row]);
            return;
        };
        let costs: [f64; 3] = std::array::from_fn(|at| parts[at] * rows[at]);
        let expected: f64 = costs.iter().sum();
        let squares: f64 = costs.iter().map(|it| it * it).sum();
        if squares > 0.0 {
            let more = took.clamp(expected / HELD_UP, expected * HELD_UP) - expected;
            for (part, cost) in parts.iter_mut().zip(costs) {
                *part *= 1.0 + BELIEF * more * cost / squares;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUND: Duration = Duration::from_millis(200);

    /// A machine, in milliseconds.
    struct Machine {
        step: f64,
        stream: f64,
        other: f64,
        cost: StepCost,
        noise: u64,
    }

    impl Machine {
        fn new(step: f64, stream: f64, other: f64) -> Self {
            Self { step, stream, other, cost: StepCost::default(), noise: 7 }
        }

        /// Runs a step; returns what it took, without what held it up.
        fn run(&mut self, streams: usize, others: usize) -> f64 {
            let rows = self.stream * streams as f64 + self.other * others as f64;
            let took = self.step + rows;
            // Every step takes up to a tenth longer, and one in fifty is held up.
            self.noise = self.noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let noise = (self.noise >> 40) as f64 / f64::from(1 << 24);
            let noise = if noise > 0.98 { 10.0 } else { 1.0 + 0.1 * noise };
            self.cost.stepped(streams, others, Duration::from_secs_f64(took * noise / 1e3));
            took
        }

        /// Runs a step beside `streams` in which there are prompts enough; returns its rows of these, and what
        /// it took.
        fn beside(&mut self, streams: usize) -> (usize, f64) {
            let rows = self.cost.rows_beside(streams, BOUND).min(256 - streams);
            (rows, self.run(streams, rows))
        }
    }

    /// From a model of which 256 rows take 3 ms to one whose streams take nearly all of the bound.
    fn machines() -> Vec<Machine> {
        let [gpu, small] = [Machine::new(3.0, 0.01, 0.002), Machine::new(5.0, 1.0, 1.2)];
        vec![gpu, small, Machine::new(23.0, 8.0, 9.3), Machine::new(60.0, 30.0, 0.5)]
    }

    #[test]
    fn steps_beside_streams_stay_below_the_bound_and_use_it() {
        for mut machine in machines() {
            machine.run(0, 256);
            machine.run(3, 0);
            let steps: Vec<_> = (0..400).map(|_| machine.beside(3)).collect();
            // The first ones show what rows take.
            let long = steps[8..].iter().filter(|it| it.1 > 200.0).count();
            let least = machine.step + 3.0 * machine.stream + machine.other * LEAST as f64;
            assert!(long == 0 || least > 200.0, "{long} of {least}");
            let rows = steps[8..].iter().map(|it| it.0).sum::<usize>() as f64 / 392.0;
            let all = (0.65 * 200.0 - machine.step - 3.0 * machine.stream) / machine.other;
            assert!(rows >= all.min(252.0) - TILE as f64, "{rows} of {all}");
        }
    }

    #[test]
    fn streams_that_come_and_go_are_counted() {
        for mut machine in machines() {
            machine.run(0, 256);
            for turn in 0..40 {
                for streams in [1, 2, 4, 9] {
                    // Now and then no prompt is there.
                    for _ in 0..3 {
                        machine.run(streams, 0);
                    }
                    for _ in 0..5 {
                        let (rows, took) = machine.beside(streams);
                        let enough = rows <= LEAST || took < 220.0;
                        assert!(turn < 2 || enough, "{streams}: {rows} rows took {took}");
                    }
                }
            }
        }
    }

    #[test]
    fn what_becomes_dearer_as_a_context_grows_is_followed() {
        let mut machine = Machine::new(23.0, 8.0, 0.3);
        machine.run(0, 256);
        let mut most: f64 = 0.0;
        for _ in 0..1000 {
            let (rows, took) = machine.beside(2);
            machine.other += 1e-5 * rows as f64;
            most = most.max(took);
        }
        assert!(machine.other > 0.6, "{}", machine.other);
        assert!(most < 210.0, "{most}");
    }

    #[test]
    fn a_step_that_was_held_up_is_forgotten() {
        let mut machine = Machine::new(23.0, 8.0, 1.0);
        let rows =
            |machine: &mut Machine, steps| (0..steps).map(|_| machine.beside(2).0).last().unwrap();
        let before = rows(&mut machine, 50);
        machine.cost.stepped(2, before, Duration::from_secs(30));
        let after = rows(&mut machine, 9);
        assert!(after * 4 > before * 3, "{before}, then {after}");
    }

    #[test]
    fn rows_fill_tiles_and_prompts_always_get_on() {
        let cost = StepCost { parts: Some([0.01, 0.002, 0.001]) };
        for streams in 0..40 {
            let rows = cost.rows_beside(streams, BOUND);
            assert!((streams + rows).is_multiple_of(TILE), "{streams}: {rows}");
        }
        assert_eq!(cost.rows_beside(200, BOUND), LEAST);
        assert_eq!(StepCost::default().rows_beside(1, BOUND), LEAST);
        let free = StepCost { parts: Some([0.01, 0.0, 0.0]) };
        assert!(free.rows_beside(1, BOUND) > 1000);
    }
}
