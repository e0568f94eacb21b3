//! Requests that begin alike: the time until all of them have their first token, beside that of
//! one such prompt and of the tokens that each has alone.

use anyhow::Result;

use super::machine;
use super::model::Format;
use super::programs::Programs;
use super::sample::{Run, Samples};
use super::table::{markdown, number};

/// How much is measured.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// Tokens that all requests begin with.
    pub common: usize,
    /// Tokens that each has after them.
    pub own: usize,
    /// How many requests.
    pub requests: usize,
    /// Processes, whose medians count.
    pub turns: usize,
}

impl Plan {
    /// What the documentation's table is made with, or a few seconds of it.
    pub fn new(quick: bool) -> Self {
        if quick {
            Self { common: 128, own: 8, requests: 4, turns: 1 }
        } else {
            Self { common: 1024, own: 32, requests: 16, turns: 3 }
        }
    }

    fn arguments(self) -> Vec<String> {
        let Self { common, own, requests, .. } = self;
        let shape = format!("{common},{own},{requests}");
        ["--shared-prefix".to_owned(), shape, "-r".to_owned(), "1".to_owned()].into()
    }
}

/// Measures `formats` and makes the section between the two marks.
///
/// # Errors
///
/// `iree-llm` fails or does not say what it was asked.
pub fn section(
    programs: &Programs,
    formats: &[&'static Format],
    threads: usize,
    plan: Plan,
) -> Result<String> {
    let runs = programs.ours_in_turns(formats, threads, plan.turns, &plan.arguments())?;
    let rows = runs.iter().map(|(format, runs)| row(format, runs)).collect::<Result<Vec<_>>>()?;
    let Plan { common, own, requests, turns } = plan;
    let header = [
        "seconds".to_owned(),
        "all first tokens".to_owned(),
        format!("one prompt, and {requests} x {own} tokens"),
        "ratio".to_owned(),
    ];
    Ok(format!(
        "{}, {}, threads: {threads}. {requests} requests with {common} tokens in common and {own} of \
         their own, processes, of which medians: {turns}; 1 would be no cost of sharing.\n\n{}",
        machine::describe(),
        machine::today(),
        markdown(&header, rows.into_iter()),
    ))
}

fn row(format: &Format, runs: &[Run]) -> Result<[String; 4]> {
    let samples = |name: &str| -> Result<Samples> {
        let pointer = format!("/shared_prefix/{name}/median");
        let mut samples = Samples::default();
        samples.extend(runs.iter().map(|run| run.require(&pointer)).collect::<Result<Vec<_>>>()?);
        Ok(samples)
    };
    let all = samples("all_first_tokens_seconds")?;
    let least = samples("one_prompt_and_own_tokens_seconds")?;
    let show = |value: Option<f64>| value.map_or_else(|| "?".to_owned(), number);
    Ok([format.name.to_owned(), show(all.median()), show(least.median()), show(all.over(&least))])
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::model::FORMATS;
    use super::*;

    #[test]
    fn the_requests_are_those_of_the_plan() {
        assert_eq!(Plan::new(false).arguments().join(" "), "--shared-prefix 1024,32,16 -r 1");
    }

    #[test]
    fn a_row_has_both_times_and_the_median_of_their_ratios() {
        let run = |all: f64, least: f64| {
            let spread = |median| json!({"median": median, "min": median, "max": median});
            Run(json!({"precision": "int4", "shared_prefix": {
                "common": 1024, "own": 32, "requests": 16,
                "all_first_tokens_seconds": spread(all),
                "one_prompt_and_own_tokens_seconds": spread(least),
            }}))
        };
        let runs = [run(6.6, 6.0), run(12.0, 12.0), run(6.6, 6.0)];
        assert_eq!(row(&FORMATS[4], &runs).unwrap(), ["int4", "6.60", "6.00", "1.10"]);
        let error = row(&FORMATS[4], &[Run(json!({}))]).unwrap_err().to_string();
        assert!(error.contains("/shared_prefix/all_first_tokens_seconds"), "{error}");
    }
}
