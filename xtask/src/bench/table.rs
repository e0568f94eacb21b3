//! The table for `docs/performance.md`.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use super::contest::{Contest, FIRST, Side};
use super::sample::{Limits, Samples};
use super::{machine, python};

/// What the table says.
pub struct Results<'a> {
    /// The measurements.
    pub contest: &'a Contest,
    /// What the machine could do, in every round.
    pub limits: &'a [Limits],
    /// Which machine.
    pub machine: String,
    /// How to repeat it.
    pub command: String,
    /// Rounds.
    pub rounds: u32,
}

const BEGIN: &str = "<!-- made by `cargo xtask bench`: begin -->";
const END: &str = "<!-- made by `cargo xtask bench`: end -->";

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
        let (ours, llama) = (self.ours.median(), self.llama.median());
        let value = |it: f64| self.unit.value(it);
        let ratio = ours.zip(llama).map(|(ours, llama)| value(ours) / value(llama));
        let share = ours.zip(self.limit).map(|(ours, limit)| 100.0 * value(ours) / limit);
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
        "{}, {}. `{}` (rounds: {}, the two programs alternating; {}, compiled here with native \
         flags). Medians, and the range in brackets; a ratio is ours to llama.cpp's.\n",
        results.machine,
        machine::today(),
        results.command,
        results.rounds,
        python::LLAMA.replace("==", " "),
    )?;
    let mut threads: Vec<usize> = results.limits.iter().map(|it| it.threads).collect();
    threads.sort_unstable_by(|a, b| b.cmp(a));
    threads.dedup();
    for threads in threads {
        let limits = results.limits.iter().filter(|it| it.threads == threads);
        let best = |value: fn(&Limits) -> f64| limits.clone().map(value).fold(0.0, f64::max);
        let limits = Limits {
            threads,
            bytes_per_second: best(|it| it.bytes_per_second),
            flops: best(|it| it.flops),
        };
        let noun = if threads == 1 { "thread" } else { "threads" };
        writeln!(
            out,
            "### {threads} {noun}: {:.1} GB/s read, {:.0} GFLOP/s f32\n",
            limits.bytes_per_second / 1e9,
            limits.flops / 1e9,
        )?;
        for prepared in &contest.prepared {
            let name = prepared.format.name;
            let rows = rows(contest, name, limits)?;
            let header = [name, "iree-llm", "llama.cpp", "ratio", "of the limit"].map(String::from);
            writeln!(out, "{}", markdown(&header, rows.iter().map(Row::cells)))?;
            let (same, prompts) = contest.agreement(name);
            writeln!(
                out,
                "llama.cpp: {} (the fastest of four). First start: {} graphs compiled in {} s; \
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

fn rows(contest: &Contest, format: &str, limits: Limits) -> Result<Vec<Row>> {
    let plan = contest.plan;
    let threads = limits.threads;
    let weights = contest.numbers(format, threads, Side::Ours, "/memory/weights");
    let weights = weights.median().context("iree-llm bench does not say what the weights weigh")?;
    let speed = |name: String, test: &str, tokens: usize, depth, limit| Row {
        name,
        unit: Unit::TokensPerSecond(tokens),
        ours: contest.seconds(format, threads, Side::Ours, (test, depth)),
        llama: contest.seconds(format, threads, Side::Llama, (test, depth)),
        limit: Some(limit),
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
    let generated = format!("tg{}", plan.generate);
    let read_once = limits.bytes_per_second / weights;
    let prompt = |tokens: usize| {
        let limit = tokens as f64 * limits.flops / contest.model.shape.prompt_flops(tokens);
        speed(format!("prompt of {tokens}"), &format!("pp{tokens}"), tokens, 0, limit)
    };
    let mut first =
        speed(format!("first token after {FIRST}"), &format!("pp{FIRST}"), FIRST, 0, 0.0);
    (first.unit, first.limit) = (Unit::Milliseconds, None);
    Ok(vec![
        speed("single tokens, short context".into(), &generated, plan.generate, 0, read_once),
        speed(
            format!("single tokens after {}", plan.long),
            &generated,
            plan.generate,
            plan.long,
            read_once,
        ),
        prompt(plan.short),
        prompt(plan.long),
        first,
        start("load, files in the page cache".into(), "/start/ready_s"),
        start(format!("load and first token after {FIRST}"), "/start/first_token_s"),
        cost("weights".into(), Unit::Megabytes, "/memory/weights"),
        cost("peak memory, loading".into(), Unit::Megabytes, "/memory/load_peak"),
        cost("peak memory, all tests".into(), Unit::Megabytes, "/memory/peak"),
    ])
}

/// A Markdown table; the first column is text, the others are numbers.
fn markdown<const N: usize>(
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
fn number(value: f64) -> String {
    let decimals = match value.abs() {
        0.0 => 0,
        x if x < 0.995 => 3,
        x if x < 9.995 => 2,
        x if x < 99.95 => 1,
        _ => 0,
    };
    format!("{value:.decimals$}")
}

/// Checks that [`replace`] will find its place, before anything is measured.
///
/// # Errors
///
/// As [`replace`].
pub fn check(path: &Path) -> Result<()> {
    document(path, "").map(drop)
}

/// Puts `section` between the marks of the document at `path`.
///
/// # Errors
///
/// The file cannot be read or written, or lacks the marks.
pub fn replace(path: &Path, section: &str) -> Result<()> {
    fs::write(path, document(path, section)?).with_context(|| path.display().to_string())
}

fn document(path: &Path, section: &str) -> Result<String> {
    let name = path.display();
    let text = fs::read_to_string(path).with_context(|| name.to_string())?;
    between(&text, section)
        .with_context(|| format!("{name}: the lines `{BEGIN}` and `{END}` are missing: add them"))
}

fn between(text: &str, section: &str) -> Option<String> {
    let (before, rest) = text.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{BEGIN}\n\n{}\n\n{END}{after}", section.trim()))
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
            llama: samples(&[5.0]),
            limit: Some(10.0),
        };
        assert_eq!(
            row.cells(),
            ["single tokens, tok/s", "8.00 (4.00 – 10.0)", "6.40 (6.40 – 6.40)", "1.25", "80%"]
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

    #[test]
    fn only_what_lies_between_the_marks_changes() {
        let text = format!("# Title\n{BEGIN}\nold\n{END}\nrest\n");
        let expected = format!("# Title\n{BEGIN}\n\nnew\n\n{END}\nrest\n");
        assert_eq!(between(&text, "new\n"), Some(expected.clone()));
        assert_eq!(between(&expected, "new"), Some(expected));
        assert_eq!(between("# Title", "new"), None);
    }

    #[test]
    fn the_document_has_the_marks() {
        check(&crate::workspace::root().join("docs").join("performance.md")).unwrap();
        let error = check(&crate::workspace::root().join("Cargo.toml")).unwrap_err().to_string();
        assert!(error.contains("Cargo.toml") && error.contains("begin"), "{error}");
    }
}
