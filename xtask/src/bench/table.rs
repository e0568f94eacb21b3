//! The table for `docs/performance.md`.

use super::contest::{Contest, FIRST, Prepared, Side};
use super::sample::{Limits, Samples};
use super::{llama_cpp, machine};

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
    /// "decode, tok/s".
    fn title(&self) -> String {
        format!("{}, {}", self.name, self.unit.name())
    }

    /// "ours / llama.cpp's, ratio, share of the limit", of medians.
    fn cell(&self) -> String {
        let show = |samples: &Samples| {
            samples.median().map_or_else(|| "?".into(), |it| number(self.unit.value(it)))
        };
        let ratio = self.ours.over(&self.llama);
        let ratio = ratio.map(|ratio| if self.unit.is_rate() { 1.0 / ratio } else { ratio });
        let ratio = ratio.map_or_else(|| "?".into(), |ratio| format!("{ratio:.2}x"));
        let ours = self.ours.median().map(|ours| self.unit.value(ours));
        let share = ours.zip(self.limit).map(|(ours, limit)| 100.0 * ours / limit);
        let share = share.map_or_else(String::new, |share| format!(", {share:.0}%"));
        format!("{} / {}, {ratio}{share}", show(&self.ours), show(&self.llama))
    }
}

/// The section between the two marks: what, where, when, and a table of all precisions.
pub fn section(results: &Results) -> String {
    let contest = results.contest;
    let mut threads: Vec<usize> = results.limits.iter().map(|it| it.threads).collect();
    threads.sort_unstable_by(|a, b| b.cmp(a));
    threads.dedup();
    let names =
        contest.prepared.iter().map(|it| format!("{} / {}", it.format.name, it.format.llama));
    let header: Vec<String> = [threads_of(contest.threads)].into_iter().chain(names).collect();
    let rows = threads.into_iter().flat_map(|threads| lines(results, threads));
    format!(
        "{}, {}. `{}`; {}. A cell has our median / llama.cpp's, \
         their ratio and our share of the limit. A ratio is the median of those of two neighbours \
         (rounds: {}, {} turns of the short tests each, and {} more of decode alone with all \
         threads). {SINGLE}\n\n{}",
        results.machine,
        machine::today(),
        results.command,
        llama_cpp::described(),
        results.rounds,
        contest.plan.turns,
        contest.plan.token_turns,
        markdown(&header, rows),
    )
}

/// What the two programs do not do alike.
const SINGLE: &str = "Of float weights (bf16, stored, f32) ours makes only those logits that may be \
    the largest, by a sketch of the output projection, for greedy tokens; llama.cpp makes all, as ours \
    does in int8 and int4: rows of single and first tokens have this gain in them. Ours goes on with \
    its own tokens, llama.cpp with random ones.";

/// "1 thread".
fn threads_of(threads: usize) -> String {
    format!("{threads} thread{}", if threads == 1 { "" } else { "s" })
}

/// What was measured with `threads`: a line for each test, and what is to be known beside.
fn lines(results: &Results, threads: usize) -> Vec<Vec<String>> {
    let contest = results.contest;
    let whole = threads == contest.threads;
    let with = if whole { String::new() } else { format!("{}: ", threads_of(threads)) };
    let limits = |prepared: &Prepared| limits(results, prepared.format.name, threads);
    let measured = contest.prepared.iter().map(|it| rows(contest, it.format.name, limits(it)));
    let measured: Vec<Vec<Row>> = measured.collect();
    let tests = measured.first().map_or(&[][..], Vec::as_slice).iter().enumerate();
    let mut lines: Vec<Vec<String>> = tests
        .map(|(test, row)| {
            let cells = measured.iter().map(|rows| rows[test].cell());
            [format!("{with}{}", row.title())].into_iter().chain(cells).collect()
        })
        .collect();
    let mut line = |title: String, cell: &dyn Fn(&Prepared) -> String| {
        lines.push([title].into_iter().chain(contest.prepared.iter().map(cell)).collect());
    };
    line(format!("{with}limits: GB/s read, GFLOP/s f32"), &|it| {
        let Limits { bytes_per_second, flops, .. } = limits(it);
        format!("{:.1}, {:.0}", bytes_per_second / 1e9, flops / 1e9)
    });
    if whole {
        line("llama.cpp's flash attention, mmap".into(), &|it| {
            let switch = |on| if on { "on" } else { "off" };
            format!("{}, {}", switch(it.settings.flash_attention), switch(it.settings.mmap))
        });
        line("first start: graphs compiled, s".into(), &|it| {
            format!("{} in {}", it.compiled_graphs, number(it.compile_s))
        });
        line("same token after a prompt".into(), &|it| {
            let (same, prompts) = contest.agreement(it.format.name);
            format!("{same} of {prompts}")
        });
    }
    lines
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
    let short = [single("decode".into(), 0), prompt(plan.short)];
    if threads != contest.threads {
        return short.into();
    }
    let [single_short, prompt_short] = short;
    let first = (format!("first token after {FIRST}"), format!("pp{FIRST}"));
    vec![
        single_short,
        single(format!("decode after {}", plan.long), plan.long),
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

/// A Markdown table; the first column is text, the others are numbers. Not padded: a document of
/// tables would be a third larger.
pub fn markdown<R: AsRef<[String]>>(header: &[String], rows: impl Iterator<Item = R>) -> String {
    let line = |row: &[String]| format!("| {} |\n", row.join(" | "));
    let columns = header.iter().skip(1).map(|_| "--:|").collect::<String>();
    let head = format!("{}|---|{columns}\n", line(header));
    head + &rows.map(|row| line(row.as_ref())).collect::<String>()
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
    use serde_json::{Value, json};

    use super::super::contest::{Entry, Plan};
    use super::super::llama_cpp::LlamaCpp;
    use super::super::model::{FORMATS, Model};
    use super::super::programs::{LlamaSettings, Programs};
    use super::super::sample::Run;
    use super::*;

    fn samples(values: &[f64]) -> Samples {
        let mut samples = Samples::default();
        samples.extend(values.iter().copied());
        samples
    }

    #[test]
    fn a_cell_has_rates_of_times_their_ratio_and_the_share() {
        let row = Row {
            name: "decode".into(),
            unit: Unit::TokensPerSecond(32),
            ours: samples(&[4.0, 3.2, 8.0]),
            llama: samples(&[6.0, 4.0, 9.6]),
            limit: Some(10.0),
        };
        assert_eq!(row.title(), "decode, tok/s");
        assert_eq!(row.cell(), "8.00 / 5.33, 1.25x, 80%");
        let row = Row {
            name: "load".into(),
            unit: Unit::Seconds,
            ours: samples(&[1.0]),
            llama: samples(&[]),
            limit: None,
        };
        assert_eq!(row.cell(), "1.00 / ?, ?");
    }

    #[test]
    fn a_table_has_a_line_for_each_row() {
        let header = ["bf16", "a"].map(String::from);
        let rows = [["x – y", "12"], ["z", "12345"]].map(|row| row.map(String::from));
        assert_eq!(
            markdown(&header, rows.into_iter()),
            "| bf16 | a |\n\
             |---|--:|\n\
             | x – y | 12 |\n\
             | z | 12345 |\n"
        );
    }

    /// What a program prints, where everything takes `seconds`.
    fn run(plan: Plan, seconds: f64, next: u32) -> Run {
        let test = |name: String, depth: usize, token: Value| json!({"test": name, "depth": depth, "seconds": [seconds], "next_token": token});
        let Plan { short, long, generate, .. } = plan;
        let mut tests: Vec<Value> =
            [FIRST, short, long].map(|n| test(format!("pp{n}"), 0, next.into())).to_vec();
        tests.extend([0, long].map(|depth| test(format!("tg{generate}"), depth, Value::Null)));
        Run(json!({
            "start": {"ready_s": seconds, "first_token_s": seconds},
            "memory": {"weights": 2e9, "load_peak": 3e9, "peak": 4e9},
            "tests": tests,
        }))
    }

    #[test]
    fn a_run_becomes_one_table_with_a_row_for_each_test() {
        let folder = tempfile::tempdir().unwrap();
        let (llama, model) = (LlamaCpp::example(), Model::example());
        // Operations a second that let a prompt of 64 tokens take 0.4 s.
        let flops = model.shape.prompt_flops(64) / 0.4;
        let programs = Programs::new("iree-llm".into(), None, llama, model, folder.path());
        let plan = Plan::QUICK;
        let mut contest = Contest::new(programs, plan, 2);
        let mut limits = Vec::new();
        for (format, factor) in [(&FORMATS[0], 1.0), (&FORMATS[4], 2.0)] {
            contest.prepared.push(Prepared {
                format,
                settings: LlamaSettings { flash_attention: factor > 1.0, mmap: true },
                compiled_graphs: 4.0,
                compile_s: 5.5,
            });
            for (threads, flops) in [(2, 400e9), (1, flops)] {
                let format = format.name;
                limits.push(Limits { format, threads, bytes_per_second: 40e9, flops });
                for (side, seconds, next) in [(Side::Ours, 0.5, 7), (Side::Llama, 1.0, 9)] {
                    let run = run(plan, seconds / factor, next);
                    contest.entries.push(Entry { format, threads, side, run });
                }
            }
        }
        let text = section(&Results {
            contest: &contest,
            limits: &limits,
            machine: "A machine".into(),
            command: "cargo xtask bench --quick".into(),
            rounds: 1,
        });
        assert!(text.starts_with("A machine, 2"), "{text}");
        assert!(text.contains(". `cargo xtask bench --quick`; llama-cpp-python "), "{text}");
        assert!(text.contains(SINGLE), "{text}");
        assert!(text.contains("(rounds: 1, 2 turns of the short tests each, and 1 more"), "{text}");
        let cells = |line: &str| line.split('|').map(|it| it.trim().to_owned()).collect::<Vec<_>>();
        let table: Vec<_> = text.lines().filter(|line| line.starts_with("| ")).map(cells).collect();
        let column = |n: usize| table.iter().map(|row| row[n].as_str()).collect::<Vec<_>>();
        assert_eq!(
            column(1),
            [
                "2 threads",
                "decode, tok/s",
                "decode after 256, tok/s",
                "prompt of 64, tok/s",
                "prompt of 256, tok/s",
                "first token after 5, ms",
                "load, files in the page cache, s",
                "load and first token after 5, s",
                "weights, MB",
                "peak memory, loading, MB",
                "peak memory, all tests, MB",
                "limits: GB/s read, GFLOP/s f32",
                "llama.cpp's flash attention, mmap",
                "first start: graphs compiled, s",
                "same token after a prompt",
                "1 thread: decode, tok/s",
                "1 thread: prompt of 64, tok/s",
                "1 thread: limits: GB/s read, GFLOP/s f32",
            ]
        );
        let bf16 = column(2);
        assert_eq!(
            bf16[..3],
            ["bf16 / BF16", "16.0 / 8.00, 2.00x, 80%", "16.0 / 8.00, 2.00x, 80%"]
        );
        assert_eq!(
            bf16[5..9],
            [
                "500 / 1000, 0.50x",
                "0.500 / 1.00, 0.50x",
                "0.500 / 1.00, 0.50x",
                "2000 / 2000, 1.00x"
            ]
        );
        assert_eq!(
            bf16[11..16],
            ["40.0, 400", "off, on", "4 in 5.50", "0 of 3", "16.0 / 8.00, 2.00x, 80%"]
        );
        assert_eq!(bf16[16], "128 / 64.0, 2.00x, 80%");
        let int4 = column(3);
        assert_eq!(int4[..2], ["int4 / Q4_0", "32.0 / 16.0, 2.00x, 160%"]);
        assert_eq!(int4[12], "on, on");
    }
}
