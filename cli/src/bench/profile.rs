//! Where the time of a test went: what each compiled function cost, and what lay between them.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use xla_session::{Capabilities, InferenceSession, Profile, Result, Step};

use super::pass::Pass;
use super::table::{number, table};

/// Most rows of a table; the rest are added up in one.
const ROWS: usize = 12;

/// The time of a test, divided among what ran.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Breakdown {
    /// "pp256 @ d1024".
    pub test: String,
    /// Passes through the model: 1 for a prompt, one for each generated token. All that follows is
    /// of one of them.
    pub passes: usize,
    /// Seconds.
    pub seconds: f64,
    /// Seconds between the first and the last dispatch of its submissions.
    pub submitted_s: f64,
    /// The costliest first.
    pub dispatches: Vec<Cost>,
    /// Dispatches in all passes that are counted nowhere.
    pub dropped: u64,
}

/// A compiled function's part of a pass.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// The compiler's name of it.
    pub name: String,
    /// How often it runs.
    pub calls: f64,
    /// Seconds, all calls together.
    pub seconds: f64,
    /// Seconds of all workers together.
    pub busy_s: f64,
}

/// Runs `pass` once, on a session that records its profile.
///
/// # Errors
///
/// Those of the session; it was not opened to record.
pub fn profile(pass: &Pass, session: &mut dyn InferenceSession) -> Result<Vec<Breakdown>> {
    session.take_profile()?;
    let mut watched = Watched { session, prompt: Sum::default(), steps: Sum::default() };
    let measured = pass.measure(&mut watched, 1)?;
    let breakdowns = measured.iter().map(|part| {
        let sum = if part.step_seconds.is_some() { &watched.steps } else { &watched.prompt };
        sum.breakdown(part.name())
    });
    Ok(breakdowns.collect())
}

/// A session that takes its profile after each call, outside of the times of a [`Breakdown`]; those of the pass have it
/// in them.
struct Watched<'a> {
    session: &'a mut dyn InferenceSession,
    /// Of the last prompt.
    prompt: Sum,
    /// Of all single tokens.
    steps: Sum,
}

#[derive(Default)]
struct Sum {
    passes: usize,
    elapsed: Duration,
    profile: Profile,
}

impl Sum {
    fn add(&mut self, elapsed: Duration, profile: Profile) {
        self.passes += 1;
        self.elapsed += elapsed;
        self.profile.submitted += profile.submitted;
        self.profile.dropped += profile.dropped;
        let sums = &mut self.profile.dispatches;
        for cost in profile.dispatches {
            match sums.iter_mut().find(|sum| sum.name == cost.name) {
                None => sums.push(cost),
                Some(sum) => {
                    sum.calls += cost.calls;
                    sum.elapsed += cost.elapsed;
                    sum.busy += cost.busy;
                }
            }
        }
    }

    fn breakdown(&self, test: String) -> Breakdown {
        let passes = self.passes.max(1) as f64;
        let of_one = |time: Duration| time.as_secs_f64() / passes;
        let cost = |cost: &xla_session::DispatchCost| Cost {
            name: cost.name.clone(),
            calls: cost.calls as f64 / passes,
            seconds: of_one(cost.elapsed),
            busy_s: of_one(cost.busy),
        };
        let mut dispatches: Vec<_> = self.profile.dispatches.iter().map(cost).collect();
        dispatches.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
        Breakdown {
            test,
            passes: self.passes,
            seconds: of_one(self.elapsed),
            submitted_s: of_one(self.profile.submitted),
            dispatches,
            dropped: self.profile.dropped,
        }
    }
}

impl Watched<'_> {
    fn timed(
        &mut self,
        run: impl FnOnce(&mut dyn InferenceSession) -> Result<Step>,
    ) -> Result<(Step, Duration, Profile)> {
        let start = Instant::now();
        let step = run(self.session)?;
        Ok((step, start.elapsed(), self.session.take_profile()?))
    }
}

impl InferenceSession for Watched<'_> {
    fn capabilities(&self) -> &Capabilities {
        self.session.capabilities()
    }

    fn prefill(&mut self, tokens: &[u32]) -> Result<Step> {
        let (step, elapsed, profile) = self.timed(|session| session.prefill(tokens))?;
        self.prompt = Sum::default();
        self.prompt.add(elapsed, profile);
        Ok(step)
    }

    fn decode_step(&mut self, token: u32) -> Result<Step> {
        let (step, elapsed, profile) = self.timed(|session| session.decode_step(token))?;
        self.steps.add(elapsed, profile);
        Ok(step)
    }

    fn read_logits(&mut self, logits: &mut Vec<f32>) -> Result<()> {
        self.session.read_logits(logits)
    }

    fn position(&self) -> usize {
        self.session.position()
    }

    fn reset(&mut self) {
        self.session.reset();
    }
}

/// A heading and a table for each test, in Markdown.
pub fn tables(breakdowns: &[Breakdown]) -> String {
    let mut text = String::new();
    for breakdown in breakdowns {
        let Breakdown { test, passes, seconds, submitted_s, dispatches, dropped } = breakdown;
        let what = match passes {
            1 => "one pass".to_owned(),
            _ => format!("one of {passes} passes"),
        };
        let _ = writeln!(text, "{test}: {} ms, {what}\n", number(seconds * 1e3));
        let mut rows = table(&["dispatch", "calls", "ms", "share", "workers busy"]);
        let mut row = |name: String, calls: f64, part: f64, busy: Option<f64>| {
            rows.add_row([
                name,
                if calls > 0.0 { format!("{calls:.0}") } else { String::new() },
                format!("{:.2}", part * 1e3),
                format!("{:.1}%", 100.0 * part / seconds),
                busy.map_or_else(String::new, |busy| format!("{:.2}", busy / part)),
            ]);
        };
        let (shown, rest) = dispatches.split_at(dispatches.len().min(ROWS));
        for cost in shown {
            row(cost.name.clone(), cost.calls, cost.seconds, Some(cost.busy_s));
        }
        let sum = |of: &[Cost], value: fn(&Cost) -> f64| of.iter().map(value).sum::<f64>();
        if !rest.is_empty() {
            let (calls, part) = (sum(rest, |it| it.calls), sum(rest, |it| it.seconds));
            let name = format!("{} others", rest.len());
            row(name, calls, part, Some(sum(rest, |it| it.busy_s)));
        }
        let dispatched = sum(dispatches, |it| it.seconds);
        // Dispatches that run at the same time come to more than the submission took.
        row("between dispatches".into(), 0.0, (submitted_s - dispatched).max(0.0), None);
        row("before and after".into(), 0.0, (seconds - submitted_s).max(0.0), None);
        let _ = writeln!(text, "{rows}");
        if *dropped > 0 {
            let _ = writeln!(text, "\n{dropped} dispatches are missing: too many in one pass.");
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use xla_session::{DispatchCost, Error};

    fn profile_of(costs: &[(&str, u64, u64)]) -> Profile {
        let mut profile = Profile::default();
        for &(name, calls, ms) in costs {
            let mut cost = DispatchCost::default();
            (cost.name, cost.calls) = (name.into(), calls);
            cost.elapsed = Duration::from_millis(ms);
            cost.busy = Duration::from_millis(2 * ms);
            profile.submitted += cost.elapsed + Duration::from_millis(1);
            profile.dispatches.push(cost);
        }
        profile
    }

    /// Every token of a prompt costs "mul" a call, every single token "mul" and "add".
    struct Fake {
        capabilities: Capabilities,
        pending: Vec<(&'static str, u64, u64)>,
    }

    impl InferenceSession for Fake {
        fn capabilities(&self) -> &Capabilities {
            &self.capabilities
        }

        fn prefill(&mut self, tokens: &[u32]) -> Result<Step> {
            self.pending.push(("mul", tokens.len() as u64, 10));
            Ok(Step::new(0))
        }

        fn decode_step(&mut self, _: u32) -> Result<Step> {
            self.pending.extend([("mul", 1, 4), ("add", 2, 6)]);
            Ok(Step::new(0))
        }

        fn read_logits(&mut self, _: &mut Vec<f32>) -> Result<()> {
            Err(Error::EmptyPrompt)
        }

        fn position(&self) -> usize {
            0
        }

        fn reset(&mut self) {}

        fn take_profile(&mut self) -> Result<Profile> {
            Ok(profile_of(&std::mem::take(&mut self.pending)))
        }
    }

    #[test]
    fn each_part_gets_what_ran_in_it_and_of_one_pass() {
        let capabilities = Capabilities::new("fake", "nowhere", 10, 100, 100);
        let mut session = Fake { capabilities, pending: vec![("earlier", 1, 1)] };
        let pass = Pass { depth: 7, prompt: 5, generate: 4 };
        let breakdowns = profile(&pass, &mut session).unwrap();
        let [prompt, steps] = &breakdowns[..] else { panic!("{breakdowns:?}") };
        assert_eq!((prompt.test.as_str(), prompt.passes), ("pp5 @ d7", 1));
        let cost = |name: &str, calls, seconds: f64| Cost {
            name: name.into(),
            calls,
            seconds,
            busy_s: 2.0 * seconds,
        };
        assert_eq!(prompt.dispatches, [cost("mul", 5.0, 0.01)]);
        assert_eq!((steps.test.as_str(), steps.passes), ("tg4 @ d12", 4));
        assert_eq!(steps.dispatches, [cost("add", 2.0, 0.006), cost("mul", 1.0, 0.004)]);
        assert_eq!(steps.submitted_s, 0.012);
    }

    #[test]
    fn a_table_accounts_for_all_of_the_time() {
        let dispatches = (0..14).map(|i| Cost {
            name: format!("f{i}"),
            calls: 16.0,
            seconds: 0.001,
            busy_s: 0.0019,
        });
        let breakdown = Breakdown {
            test: "tg8".into(),
            passes: 8,
            seconds: 0.020,
            submitted_s: 0.015,
            dispatches: dispatches.collect(),
            dropped: 0,
        };
        let text = tables(&[breakdown]);
        assert!(text.starts_with("tg8: 20.0 ms, one of 8 passes\n\n| dispatch "), "{text}");
        let row = |name: &str| {
            let line = text.lines().find(|line| line.starts_with(&format!("| {name} "))).unwrap();
            line.split('|').map(str::trim).filter(|cell| !cell.is_empty()).collect::<Vec<_>>()
        };
        assert_eq!(row("f0"), ["f0", "16", "1.00", "5.0%", "1.90"]);
        assert_eq!(row("2 others"), ["2 others", "32", "2.00", "10.0%", "1.90"]);
        assert_eq!(row("between dispatches"), ["between dispatches", "1.00", "5.0%"]);
        assert_eq!(row("before and after"), ["before and after", "5.00", "25.0%"]);
        assert!(!text.contains("missing"), "{text}");
    }
}
