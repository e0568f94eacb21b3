//! Ours beside another build of ours: what a change gained or lost.

use super::contest::{Contest, FIRST, Side};
use super::sample::Samples;
use super::table::{markdown, number};

/// One table, a line for each precision and number of threads: ours over the other's, the medians
/// of the ratios of neighbours.
pub fn section(contest: &Contest, threads: &[usize]) -> String {
    let plan = contest.plan;
    let header = [
        "ours / `--baseline`".to_owned(),
        "decode, tok/s".to_owned(),
        format!("after {}, tok/s", plan.long),
        format!("prompt of {}, tok/s", plan.short),
        format!("of {}, tok/s", plan.long),
        format!("first token after {FIRST}, ms"),
        "ready, s".to_owned(),
        "peak memory, MB".to_owned(),
    ];
    let lines = threads.iter().flat_map(|&threads| {
        contest.prepared.iter().map(move |prepared| (prepared.format.name, threads))
    });
    let table = markdown(&header, lines.map(|(format, threads)| line(contest, format, threads)));
    format!(
        "### Beside an older iree-llm\n\nMedians of the ratios of neighbours in the same run. Above 1 \
         is better where the unit is tok/s, below 1 elsewhere; bold is worse by more than 3%.\n\n\
         {table}"
    )
}

fn line(contest: &Contest, format: &'static str, threads: usize) -> [String; 8] {
    let plan = contest.plan;
    let generated = format!("tg{}", plan.generate);
    let prompts = [FIRST, plan.short, plan.long].map(|tokens| format!("pp{tokens}"));
    let [first, short, long] = &prompts;
    let seconds = |test: &str, depth| {
        let of = |side| contest.seconds(format, threads, side, (test, depth));
        (of(Side::Ours), of(Side::Baseline))
    };
    let number = |pointer: &str| {
        let of = |side| contest.numbers(format, threads, side, pointer);
        (of(Side::Ours), of(Side::Baseline))
    };
    let (peak, older_peak) = number("/memory/peak");
    [
        format!("{format}, threads: {threads}"),
        rate(&seconds(&generated, 0)),
        rate(&seconds(&generated, plan.long)),
        rate(&seconds(short, 0)),
        rate(&seconds(long, 0)),
        cost(&seconds(first, 0)),
        cost(&number("/start/ready_s")),
        cost(&(peak.largest(), older_peak.largest())),
    ]
}

/// Most that a cell may be worse without being bold.
const WORSE: f64 = 0.03;

/// Of seconds, whose inverse is shown.
fn rate((ours, older): &(Samples, Samples)) -> String {
    older.over(ours).map_or_else(String::new, |ratio| cell(ratio, ratio < 1.0 - WORSE))
}

fn cost((ours, older): &(Samples, Samples)) -> String {
    ours.over(older).map_or_else(String::new, |ratio| cell(ratio, ratio > 1.0 + WORSE))
}

fn cell(ratio: f64, worse: bool) -> String {
    let bold = if worse { "**" } else { "" };
    format!("{bold}{}{bold}", number(ratio))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::contest::{Entry, Plan, Prepared};
    use super::super::llama_cpp::LlamaCpp;
    use super::super::model::{FORMATS, Model};
    use super::super::programs::{LlamaSettings, Programs};
    use super::super::sample::Run;
    use super::*;

    /// A run of the short tests that took `factor` times as long as it might, with three times as
    /// much memory as it might.
    fn run(factor: f64) -> Run {
        Run(json!({
            "start": {"ready_s": factor},
            "memory": {"peak": 3e9 * factor},
            "tests": [
                {"test": "pp5", "depth": 0, "seconds": [0.1 * factor]},
                {"test": "pp64", "depth": 0, "seconds": [0.5]},
                {"test": "tg8", "depth": 0, "seconds": [2.0 * factor]},
                {"test": "tg8", "depth": 256, "seconds": [1.0 / factor]},
            ],
        }))
    }

    #[test]
    fn a_line_has_every_measure_of_a_precision() {
        let folder = tempfile::tempdir().unwrap();
        let (llama, model) = (LlamaCpp::example(), Model::example());
        let programs = Programs::new("new".into(), Some("old".into()), llama, model, folder.path());
        assert!(programs.has_baseline());
        let mut contest = Contest::new(programs, Plan::QUICK, 2);
        let format = &FORMATS[4];
        let settings = LlamaSettings::ALL[0];
        contest.prepared.push(Prepared { format, settings, compiled_graphs: 0.0, compile_s: 0.0 });
        for (side, factor) in [(Side::Baseline, 2.0), (Side::Ours, 1.0), (Side::Llama, 9.0)] {
            contest.entries.push(Entry { format: "int4", threads: 2, side, run: run(factor) });
        }
        let text = section(&contest, &[2, 1]);
        let cells = |start: &str| -> Vec<String> {
            let line = text.lines().find(|line| line.starts_with(start)).unwrap();
            line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect()
        };
        assert_eq!(
            cells("| int4, threads: 2")[1..],
            ["2.00", "**0.500**", "1.00", "", "0.500", "0.500", "0.500"]
        );
        assert!(cells("| int4, threads: 1")[1..].iter().all(String::is_empty), "{text}");
    }

    fn samples(values: &[f64]) -> Samples {
        let mut samples = Samples::default();
        samples.extend(values.iter().copied());
        samples
    }

    #[test]
    fn what_is_worse_is_bold_in_both_directions() {
        let pair = |ours, older| (samples(&[ours]), samples(&[older]));
        assert_eq!(rate(&pair(1.0, 1.25)), "1.25");
        assert_eq!(rate(&pair(1.0, 0.98)), "0.980");
        assert_eq!(rate(&pair(1.0, 0.96)), "**0.960**");
        assert_eq!(cost(&pair(0.5, 1.0)), "0.500");
        assert_eq!(cost(&pair(1.02, 1.0)), "1.02");
        assert_eq!(cost(&pair(1.04, 1.0)), "**1.04**");
        assert_eq!(cost(&(samples(&[]), samples(&[]))), "");
    }

    #[test]
    fn neighbours_are_compared_not_medians() {
        // Memory was twice as fast for one pair of two.
        let pairs = (samples(&[1.0, 2.0, 1.0]), samples(&[1.1, 2.2, 1.1]));
        assert_eq!(rate(&pairs), "1.10");
    }
}
