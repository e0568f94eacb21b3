//! The two programs in turn: ours and llama.cpp's alternate, so that whatever else the machine does
//! in these minutes hits both alike.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::model::Format;
use super::programs::{LlamaSettings, Programs, both, tests};
use super::sample::{Run, Samples};

/// How much is measured.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// Rounds, unless the command line says otherwise.
    pub rounds: u32,
    /// Tokens of the short prompt.
    pub short: usize,
    /// Tokens of the long prompt, which is the context of the long decode test.
    pub long: usize,
    /// Tokens generated after nothing and after the long prompt.
    pub generate: usize,
    /// How often the two programs take turns at the short tests in each round; the long ones run
    /// once. With fewer threads than all, at most twice.
    pub turns: usize,
    /// How often they then take turns at single tokens alone, whose speed is that of memory: where
    /// that changes from second to second only many pairs tell. Not with fewer threads than all.
    pub token_turns: usize,
    /// Prompts of the plot, which are the contexts of its single tokens.
    pub lengths: &'static [usize],
}

impl Plan {
    /// What the documentation's table is made with.
    pub const FULL: Self = Self {
        rounds: 2,
        short: 256,
        long: 2048,
        generate: 32,
        turns: 5,
        token_turns: 6,
        lengths: &[64, 256, 1024, 2048, 8192],
    };
    /// A few minutes; for seeing that everything works.
    pub const QUICK: Self = Self {
        rounds: 1,
        short: 64,
        long: 256,
        generate: 8,
        turns: 2,
        token_turns: 1,
        lengths: &[32, 64, 128],
    };
}

/// Tokens of the prompt whose first answer is timed.
pub const FIRST: usize = 5;

/// Which program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Side {
    /// This project's.
    Ours,
    /// Another build of this project's, usually an older one.
    Baseline,
    /// llama.cpp, with its fastest settings.
    Llama,
    /// llama.cpp with its weights mapped, as it starts fastest; only started.
    LlamaMapped,
}

impl Side {
    /// The program's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ours => "iree-llm",
            Self::Baseline => "iree-llm, baseline",
            Self::Llama => "llama.cpp",
            Self::LlamaMapped => "llama.cpp, mapped",
        }
    }
}

/// What was prepared for a precision.
#[derive(Debug)]
pub struct Prepared {
    /// The precision.
    pub format: &'static Format,
    /// llama.cpp's fastest settings.
    pub settings: LlamaSettings,
    /// Graphs that our first start compiled.
    pub compiled_graphs: f64,
    /// Seconds that it took.
    pub compile_s: f64,
}

/// Measurements of one precision with one number of threads.
#[derive(Debug)]
pub struct Entry {
    /// The precision.
    pub format: &'static str,
    /// Threads of both programs.
    pub threads: usize,
    /// The process that was measured.
    pub side: Side,
    /// What it printed.
    pub run: Run,
}

/// Programs, model, and all that was measured so far.
pub struct Contest {
    /// What is measured.
    pub programs: Programs,
    /// How much is measured.
    pub plan: Plan,
    /// The most threads; with fewer, only the short tests run.
    pub threads: usize,
    /// By precision, in the order of the command line.
    pub prepared: Vec<Prepared>,
    /// In the order of measurement.
    pub entries: Vec<Entry>,
}

impl Contest {
    /// A contest with nothing measured yet.
    pub fn new(programs: Programs, plan: Plan, threads: usize) -> Self {
        Self { programs, plan, threads, prepared: Vec::new(), entries: Vec::new() }
    }

    /// Compiles our graphs and finds llama.cpp's best settings for `format`.
    ///
    /// # Errors
    ///
    /// A program fails.
    pub fn prepare(&mut self, format: &'static Format) -> Result<()> {
        let short = tests(&[FIRST], &[], 1);
        self.programs.model.warm_folder(format)?;
        let first = self.programs.ours(format, self.threads, &short)?;
        let again = self.programs.ours(format, self.threads, &short)?;
        ensure!(
            again.number("/start/compiled_graphs") == Some(0.0),
            "the second start of iree-llm compiled graphs again"
        );
        let (prompt, generate) = (self.plan.short, self.plan.generate);
        let probe = both(prompt, generate, 1);
        let mut best = None;
        for settings in LlamaSettings::ALL {
            let run = self.programs.llama(format, settings, self.threads, &probe)?;
            let seconds = |test: String, depth| run.seconds(&test, depth).iter().sum::<f64>();
            // The product weighs a percent of either alike.
            let cost = seconds(format!("pp{prompt}"), 0) * seconds(format!("tg{generate}"), prompt);
            eprintln!("{}: {settings}: {}", format.name, rates(&run));
            if best.is_none_or(|(least, _)| cost < least) {
                best = Some((cost, settings));
            }
        }
        let (_, settings) = best.context("llama.cpp has no settings")?;
        self.prepared.push(Prepared {
            format,
            settings,
            compiled_graphs: first.require("/start/compiled_graphs")?,
            compile_s: first.require("/start/compile_s")?,
        });
        Ok(())
    }

    /// Runs `tests` in one of the programs, llama.cpp with its best settings.
    ///
    /// # Errors
    ///
    /// The program fails, or `format` was not prepared.
    pub fn run(
        &self,
        side: Side,
        format: &Format,
        threads: usize,
        tests: &[String],
    ) -> Result<Run> {
        let prepared = self.prepared.iter().find(|it| it.format == format);
        let settings = prepared.context("a precision that was not prepared")?.settings;
        match side {
            Side::Ours => self.programs.ours_warm(format, threads, tests),
            Side::Baseline => self.programs.baseline_warm(format, threads, tests),
            Side::Llama => self.programs.llama(format, settings, threads, tests),
            Side::LlamaMapped => {
                let settings = LlamaSettings { mmap: true, ..settings };
                self.programs.llama(format, settings, threads, tests)
            }
        }
    }

    /// Measures the programs, alternating: what one of them meets, the other meets seconds later.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run).
    pub fn round(&mut self, format: &'static Format, threads: usize) -> Result<()> {
        let Plan { short, long, generate, turns, token_turns, .. } = self.plan;
        let whole = threads == self.threads;
        let groups = if whole {
            let mut groups = vec![tests(&[FIRST, short], &[generate], 1); turns];
            groups.extend(vec![tests(&[], &[generate], 1); token_turns]);
            groups.push(both(long, generate, 1));
            groups
        } else {
            vec![tests(&[short], &[generate], 1); turns.min(2)]
        };
        let baseline = self.programs.has_baseline();
        for (turn, group) in groups.into_iter().enumerate() {
            for &side in sides(turn, baseline) {
                let run = self.run(side, format, threads, &group)?;
                self.note(format, threads, side, run);
            }
        }
        let mapped = self.prepared.iter().any(|it| it.format == format && it.settings.mmap);
        if whole && !mapped {
            let run = self.run(Side::LlamaMapped, format, threads, &tests(&[FIRST], &[], 1))?;
            self.note(format, threads, Side::LlamaMapped, run);
        }
        Ok(())
    }

    fn note(&mut self, format: &Format, threads: usize, side: Side, run: Run) {
        eprintln!("{:6} {:9} {}", format.name, side.name(), rates(&run));
        self.entries.push(Entry { format: format.name, threads, side, run });
    }

    /// Seconds of all repetitions of `test` at `depth`.
    pub fn seconds(
        &self,
        format: &str,
        threads: usize,
        side: Side,
        test: (&str, usize),
    ) -> Samples {
        let mut samples = Samples::default();
        for run in self.runs(format, threads, side) {
            samples.extend(run.seconds(test.0, test.1));
        }
        samples
    }

    /// The number at `pointer` of every process.
    pub fn numbers(&self, format: &str, threads: usize, side: Side, pointer: &str) -> Samples {
        let mut samples = Samples::default();
        samples.extend(self.runs(format, threads, side).filter_map(|run| run.number(pointer)));
        samples
    }

    /// Prompts after which the two programs predicted the same token, and all prompts.
    pub fn agreement(&self, format: &str) -> (usize, usize) {
        let of = |side| {
            let entries =
                self.entries.iter().filter(move |it| it.format == format && it.side == side);
            entries.flat_map(|it| it.run.next_tokens()).collect::<BTreeMap<_, _>>()
        };
        let (ours, llama) = (of(Side::Ours), of(Side::Llama));
        let same = ours.iter().filter(|(test, token)| llama.get(*test) == Some(token)).count();
        (same, ours.len())
    }

    fn runs(&self, format: &str, threads: usize, side: Side) -> impl Iterator<Item = &Run> {
        let wanted =
            move |it: &&Entry| it.format == format && it.threads == threads && it.side == side;
        self.entries.iter().filter(wanted).map(|it| &it.run)
    }

    /// Everything that was measured.
    ///
    /// # Errors
    ///
    /// None that is known.
    pub fn json(&self) -> Result<String> {
        let entry = |it: &Entry| {
            let program = it.side.name();
            json!({"format": it.format, "threads": it.threads, "program": program, "run": it.run.0})
        };
        let entries: Vec<Value> = self.entries.iter().map(entry).collect();
        Ok(serde_json::to_string_pretty(&entries)?)
    }
}

/// Who runs in `turn`, in order: builds that are hardly different must not gain by theirs.
fn sides(turn: usize, baseline: bool) -> &'static [Side] {
    match (baseline, turn % 2) {
        (false, _) => &[Side::Ours, Side::Llama],
        (true, 0) => &[Side::Baseline, Side::Ours, Side::Llama],
        (true, _) => &[Side::Ours, Side::Baseline, Side::Llama],
    }
}

/// "pp256 64.1, tg32 8.2 tok/s".
pub fn rates(run: &Run) -> String {
    let tests = run.0["tests"].as_array().map_or(&[][..], Vec::as_slice);
    let rate = |it: &Value| {
        let median = it["tokens_per_second"]["median"].as_f64().unwrap_or(0.0);
        format!("{} {median:.2}", it["test"].as_str().unwrap_or("?"))
    };
    tests.iter().map(rate).collect::<Vec<_>>().join(", ") + " tok/s"
}

#[cfg(test)]
mod unit_tests {
    use super::*;

    #[test]
    fn two_builds_of_ours_go_first_by_turns() {
        assert_eq!(sides(0, false), [Side::Ours, Side::Llama]);
        assert_eq!(sides(1, false), sides(0, false));
        assert_eq!(sides(0, true), [Side::Baseline, Side::Ours, Side::Llama]);
        assert_eq!(sides(1, true), [Side::Ours, Side::Baseline, Side::Llama]);
        assert_eq!(sides(2, true), sides(0, true));
    }

    #[test]
    fn rates_read_well() {
        let run = Run(json!({"tests": [
            {"test": "pp5", "tokens_per_second": {"median": 12.3456}},
            {"test": "tg4", "tokens_per_second": {"median": 8.0}},
        ]}));
        assert_eq!(rates(&run), "pp5 12.35, tg4 8.00 tok/s");
    }
}
