//! The table for `docs/performance.md`.

use std::fmt::Write as _;

use anyhow::Result;

use super::contest::{Contest, FIRST, Side};
use super::model::Format;
use super::sample::{Limits, Samples};
use super::{machine, python};

/// What the table says.
pub struct Results<'a> {
    /// The measurements.
    pub contest: &'a Contest,
    /// What the machine could do, for every precision in every round.
    pub limits: &'a [Limits],
    /// Which machine.
    pub machine: String,
    /// How to repeat it.
    pub command: String,
    /// Rounds.
    pub rounds: u32,
}

/// How a row's numbers are shown and compared.
#[derive(Clone, Copy, PartialEq)]
enum Unit {
    /// Of so many tokens; the samples are seconds of all of them.
    TokensPerSecond(usize),
    Milliseconds,
    Seconds,
    Megabytes,
}

impl Unit {
    fn value(self, sample: f64) -> f64 {
        match self {
            Self::TokensPerSecond(tokens) => tokens as f64 / sample,
            Self::Milliseconds => sample * 1e3,
            Self::Seconds => sample,
            Self::Megabytes => sample / 1e6,
        }
    }

    /// Whether twice the sample is half the value.
    fn is_rate(self) -> bool {
        matches!(self, Self::TokensPerSecond(_))
    }

    fn name(self) -> &'static str {
        match self {
            Self::TokensPerSecond(_) => "tok/s",
            Self::Milliseconds => "ms",
            Self::Seconds => "s",
            Self::Megabytes => "MB",
        }
    }
}

struct Row {
    name: String,
    unit: Unit,
    ours: Samples,
    llama: Samples,
    /// The most that the machine allows, in the row's unit.
    limit: Option<f64>,
}

impl Row {
    /// Name, ours, llama.cpp's, ratio, share of the limit.
    fn cells(&self) -> [String; 5] {
        let show = |samples: &Samples| {
            let Some((median, (min, max))) = samples.median().zip(samples.range()) else {
                return "?".to_owned();
            };
            let (a, b) = (self.unit.value(min), self.unit.value(max));
            let median = number(self.unit.value(median));
            format!("{median} ({} – {})", number(a.min(b)), number(a.max(b)))
        };
        let ratio = self.ours.over(&self.llama);
        let ratio = ratio.map(|ratio| if self.unit.is_rate() { 1.0 / ratio } else { ratio });
        let ours = self.ours.median().map(|ours| self.unit.value(ours));
        let share = ours.zip(self.limit).map(|(ours, limit)| 100.0 * ours / limit);
        [
            format!("{}, {}", self.name, self.unit.name()),
            show(&self.ours),
            show(&self.llama),
            ratio.map_or_else(|| "?".into(), |ratio| format!("{ratio:.2}")),
            share.map_or_else(String::new, |share| format!("{share:.0}%")),
        ]
    }
}

/// The section between the two marks: what, where, when, and one table for each precision.
///
/// # Errors
///
/// A measurement lacks a number.
pub fn section(results: &Results) -> Result<String> {
    let contest = results.contest;
    let mut out = String::new();
    writeln!(
        out,
        "{}, {}. `{}` (rounds: {}, {} turns of the short tests and, with all threads, {} more of single tokens alone; {}, \
         compiled here with native flags). Medians, and the range in brackets; a ratio is ours to \
         llama.cpp's of the same turn, the median of all turns. The limits were measured just before \
         each precision; that of prompts is that of f32 arithmetic.\n",
        results.machine,
        machine::today(),
        results.command,
        results.rounds,
        contest.plan.turns,
        contest.plan.token_turns,
        python::LLAMA.replace("==", " "),
    )?;
    let mut threads: Vec<usize> = results.limits.iter().map(|it| it.threads).collect();
    threads.sort_unstable_by(|a, b| b.cmp(a));
    threads.dedup();
    for threads in threads {
        let noun = if threads == 1 { "thread" } else { "threads" };
        writeln!(out, "### {threads} {noun}\n")?;
        for prepared in &contest.prepared {
            let Format { name, title, llama, .. } = *prepared.format;
            let limits = limits(results, name, threads);
            let rows = rows(contest, name, limits);
            let llama = format!("llama.cpp {llama}");
            let header = [title, "iree-llm", &llama, "ratio", "of the limit"].map(String::from);
            writeln!(out, "{}", markdown(&header, rows.iter().map(Row::cells)))?;
            write!(
                out,
                "Limits: {:.1} GB/s read, {:.0} GFLOP/s f32.",
                limits.bytes_per_second / 1e9,
                limits.flops / 1e9,
            )?;
            if threads != contest.threads {
                writeln!(out, "\n")?;
                continue;
            }
            let (same, prompts) = contest.agreement(name);
            writeln!(
                out,
                " llama.cpp: {} (the fastest of four). First start: {} graphs compiled in {} s; \
                 later ones compile none. The token after a prompt is the same in both programs \
                 for {same} of {prompts} prompts.\n",
                prepared.settings,
                prepared.compiled_graphs,
                number(prepared.compile_s),
            )?;
        }
    }
    Ok(out)
}

/// The medians of what was measured for `format`.
fn limits(results: &Results, format: &'static str, threads: usize) -> Limits {
    let median = |value: fn(&Limits) -> f64| {
        let mut samples = Samples::default();
        let measured = results.limits.iter();
        let these = measured.filter(|it| it.format == format && it.threads == threads);
        samples.extend(these.map(value));
        samples.median().unwrap_or(f64::NAN)
    };
    let (bytes_per_second, flops) = (median(|it| it.bytes_per_second), median(|it| it.flops));
    Limits { format, threads, bytes_per_second, flops }
}

fn rows(contest: &Contest, format: &str, limits: Limits) -> Vec<Row> {
    let plan = contest.plan;
    let threads = limits.threads;
    let speed = |name: String, unit, test: (&str, usize), limit| Row {
        name,
        unit,
        ours: contest.seconds(format, threads, Side::Ours, test),
        llama: contest.seconds(format, threads, Side::Llama, test),
        limit,
    };
    let cost = |name: String, unit, pointer: &str| Row {
        name,
        unit,
        ours: contest.numbers(format, threads, Side::Ours, pointer),
        llama: contest.numbers(format, threads, Side::Llama, pointer),
        limit: None,
    };
    // llama.cpp's settings for speed may make it start slower than it can.
    let start = |name: String, pointer: &str| {
        let mut row = cost(name, Unit::Seconds, pointer);
        let mapped = contest.numbers(format, threads, Side::LlamaMapped, pointer);
        let faster = mapped.median().zip(row.llama.median()).is_some_and(|(a, b)| a < b);
        if faster {
            row.llama = mapped;
        }
        row
    };
    let most = |row: Row| Row { ours: row.ours.largest(), llama: row.llama.largest(), ..row };
    let weights = contest.numbers(format, threads, Side::Ours, "/memory/weights").median();
    let read_once = weights.map(|weights| limits.bytes_per_second / weights);
    let generated = format!("tg{}", plan.generate);
    let single = |name: String, depth| {
        speed(name, Unit::TokensPerSecond(plan.generate), (&generated, depth), read_once)
    };
    let prompt = |tokens: usize| {
        let flops = contest.programs.model.shape.prompt_flops(tokens);
        let limit = tokens as f64 * limits.flops / flops;
        let (name, test) = (format!("prompt of {tokens}"), format!("pp{tokens}"));
        speed(name, Unit::TokensPerSecond(tokens), (&test, 0), Some(limit))
    };
    let short = [single("single tokens, short context".into(), 0), prompt(plan.short)];
    if threads != contest.threads {
        return short.into();
    }
    let [single_short, prompt_short] = short;
    let first = (format!("first token after {FIRST}"), format!("pp{FIRST}"));
    vec![
        single_short,
        single(format!("single tokens after {}", plan.long), plan.long),
        prompt_short,
        prompt(plan.long),
        speed(first.0, Unit::Milliseconds, (&first.1, 0), None),
        start("load, files in the page cache".into(), "/start/ready_s"),
        start(format!("load and first token after {FIRST}"), "/start/first_token_s"),
        cost("weights".into(), Unit::Megabytes, "/memory/weights"),
        cost("peak memory, loading".into(), Unit::Megabytes, "/memory/load_peak"),
        most(cost("peak memory, all tests".into(), Unit::Megabytes, "/memory/peak")),
    ]
}

/// A Markdown table; the first column is text, the others are numbers.
pub fn markdown<const N: usize>(
    header: &[String; N],
    rows: impl Iterator<Item = [String; N]>,
) -> String {
    let rows: Vec<_> = std::iter::once(header.clone()).chain(rows).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: Vec<_> = (0..N).map(|column| width(column).unwrap_or(0).max(3)).collect();
    let mut out = String::new();
    for (i, row) in rows.iter().enumerate() {
        for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
            let cell =
                if column == 0 { format!("{cell:width$}") } else { format!("{cell:>width$}") };
            out += &format!("| {cell} ");
        }
        out += "|\n";
        if i == 0 {
            for (column, width) in widths.iter().enumerate() {
                let end = if column == 0 { "-" } else { ":" };
                out += &format!("|{}{end}", "-".repeat(width + 1));
            }
            out += "|\n";
        }
    }
    out
}

/// Three significant digits, or all before the point.
pub fn number(value: f64) -> String {
    let decimals = match value.abs() {
        0.0 => 0,
        x if x < 0.995 => 3,
        x if x < 9.995 => 2,
        x if x < 99.95 => 1,
        _ => 0,
    };
    format!("{value:.decimals$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(values: &[f64]) -> Samples {
        let mut samples = Samples::default();
        samples.extend(values.iter().copied());
        samples
    }

    #[test]
    fn a_row_shows_rates_of_times_their_ratio_and_the_share() {
        let row = Row {
            name: "single tokens".into(),
            unit: Unit::TokensPerSecond(32),
            ours: samples(&[4.0, 3.2, 8.0]),
            llama: samples(&[6.0, 4.0, 9.6]),
            limit: Some(10.0),
        };
        assert_eq!(
            row.cells(),
            ["single tokens, tok/s", "8.00 (4.00 – 10.0)", "5.33 (3.33 – 8.00)", "1.25", "80%"]
        );
        let row = Row {
            name: "load".into(),
            unit: Unit::Seconds,
            ours: samples(&[1.0]),
            llama: samples(&[]),
            limit: None,
        };
        assert_eq!(row.cells(), ["load, s", "1.00 (1.00 – 1.00)", "?", "?", ""]);
    }

    #[test]
    fn a_table_lines_up() {
        let header = ["bf16", "a"].map(String::from);
        let rows = [["x – y", "12"], ["z", "12345"]].map(|row| row.map(String::from));
        assert_eq!(
            markdown(&header, rows.into_iter()),
            "| bf16  |     a |\n\
             |-------|------:|\n\
             | x – y |    12 |\n\
             | z     | 12345 |\n"
        );
    }
}
