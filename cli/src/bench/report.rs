//! What a benchmark found: a table for people, JSON for programs.

use serde::{Deserialize, Serialize};

use super::pass::Measured;
use super::profile::Breakdown;
use super::spread::Spread;
use super::table::{number, table};

/// The measurements of one process: one model in one precision.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// The model as it was asked for.
    pub model: String,
    /// The engine: "iree".
    pub engine: String,
    /// Where it ran.
    pub device: String,
    /// How weights were kept.
    pub precision: String,
    /// Worker threads that were asked for; `None` is the engine's own choice.
    pub threads: Option<usize>,
    /// Until the first token.
    pub start: Start,
    /// Bytes.
    pub memory: Memory,
    /// In the order in which they were measured.
    pub tests: Vec<Measured>,
    /// Where the time of each test went, when that was asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub breakdowns: Vec<Breakdown>,
}

/// The way from the start of the command to the first token.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Start {
    /// From the start until the session can be asked.
    pub ready_s: f64,
    /// Of this, loading weights.
    pub load_s: f64,
    /// Of this, compiling graphs or finding them compiled.
    pub compile_s: f64,
    /// Graphs that were not in the cache: none at a second start.
    pub compiled_graphs: usize,
    /// Tokens of the first prompt.
    pub first_prompt: usize,
    /// From the start until the first token after that prompt, nothing warmed up.
    pub first_token_s: f64,
}

/// Memory of the process, in bytes; `None` where the system does not say.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Memory {
    /// What the model's weights come to in this precision, each counted once.
    pub weights: Option<u64>,
    /// The most held until the session was ready.
    pub load_peak: Option<u64>,
    /// The most held until the end.
    pub peak: Option<u64>,
}

/// Two tables: speed, then start and memory.
pub fn tables(runs: &[Run]) -> String {
    let mut speed = table(&[
        "precision",
        "threads",
        "test",
        "tok/s",
        "min – max",
        "first token, ms",
        "ms/token",
    ]);
    let mut start = table(&[
        "precision",
        "ready, s",
        "loading, s",
        "compiling, s",
        "graphs compiled",
        "first answer, s",
        "weights, MB",
        "peak loading, MB",
        "peak, MB",
    ]);
    for run in runs {
        for test in &run.tests {
            let rate = test.tokens_per_second;
            speed.add_row([
                run.precision.clone(),
                run.threads.map_or_else(|| "auto".into(), |threads| threads.to_string()),
                test.name(),
                number(rate.median),
                format!("{} – {}", number(rate.min), number(rate.max)),
                match test.step_seconds {
                    None => Spread::of(test.seconds.iter().copied())
                        .map_or_else(String::new, |seconds| number(seconds.median * 1e3)),
                    Some(_) => String::new(),
                },
                test.step_seconds.map_or_else(String::new, |step| number(step.median * 1e3)),
            ]);
        }
        let megabytes =
            |bytes: Option<u64>| bytes.map_or_else(|| "?".into(), |it| number(it as f64 / 1e6));
        start.add_row([
            run.precision.clone(),
            number(run.start.ready_s),
            number(run.start.load_s),
            number(run.start.compile_s),
            run.start.compiled_graphs.to_string(),
            number(run.start.first_token_s),
            megabytes(run.memory.weights),
            megabytes(run.memory.load_peak),
            megabytes(run.memory.peak),
        ]);
    }
    format!("{speed}\n\n{start}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run() -> Run {
        let spread = |median| Spread { median, min: median / 2.0, max: median * 2.0 };
        Run {
            model: "m".into(),
            engine: "iree".into(),
            device: "local-task".into(),
            precision: "stored".into(),
            threads: Some(2),
            start: Start {
                ready_s: 1.5,
                load_s: 1.25,
                compile_s: 0.0,
                compiled_graphs: 0,
                first_prompt: 5,
                first_token_s: 1.75,
            },
            memory: Memory { weights: Some(2_500_000_000), load_peak: None, peak: Some(3 << 30) },
            tests: vec![
                Measured {
                    test: "pp512".into(),
                    depth: 0,
                    tokens: 512,
                    seconds: vec![5.12],
                    tokens_per_second: spread(100.0),
                    step_seconds: None,
                    next_token: Some(7),
                },
                Measured {
                    test: "tg4".into(),
                    depth: 512,
                    tokens: 4,
                    seconds: vec![0.5],
                    tokens_per_second: spread(8.0),
                    step_seconds: Some(spread(0.125)),
                    next_token: None,
                },
            ],
            breakdowns: Vec::new(),
        }
    }

    #[test]
    fn the_tables_say_everything_in_line() {
        let text = tables(&[run()]);
        let expected = "\
| precision | threads | test       | tok/s |   min – max | first token, ms | ms/token |
|-----------|---------|------------|-------|-------------|-----------------|----------|
| stored    |       2 | pp512      |   100 |  50.0 – 200 |            5120 |          |
| stored    |       2 | tg4 @ d512 |  8.00 | 4.00 – 16.0 |                 |      125 |
";
        assert!(text.starts_with(expected), "{text}");
        let row = "| stored    |     1.50 |       1.25 |            0 |               0 |            \
                   1.75 |        2500 |                ? |     3221 |";
        assert!(text.contains(row), "{text}");
        let widths: Vec<_> = text.lines().map(|line| line.chars().count()).collect();
        assert_eq!(widths.iter().collect::<std::collections::BTreeSet<_>>().len(), 3, "{text}");
    }

    #[test]
    fn json_comes_back_as_it_went() {
        let text = serde_json::to_string(&run()).unwrap();
        assert_eq!(serde_json::from_str::<Run>(&text).unwrap(), run());
    }
}
