//! Single tokens with drafts that one step verifies, and without: where the answer repeats the
//! prompt, and where nothing can be foreseen.

use anyhow::{Context, Result};
use serde_json::Value;

use super::machine;
use super::model::Format;
use super::programs::Programs;
use super::sample::{Run, Samples};
use super::table::{markdown, number};

/// Processes of each precision, whose medians count.
pub const TURNS: usize = 3;

/// Texts that `iree-llm bench --speculate` continues.
const TEXTS: [&str; 2] = ["repeating", "random"];

/// Measures `formats` and makes the section between the two marks.
///
/// # Errors
///
/// `iree-llm` fails or does not say what it was asked.
pub fn section(
    programs: &Programs,
    formats: &[&'static Format],
    threads: usize,
    turns: usize,
) -> Result<String> {
    let arguments = ["--speculate", "-r", "1"].map(String::from);
    let runs = programs.ours_in_turns(formats, threads, turns, &arguments)?;
    let rows = runs.iter().map(|(format, runs)| row(format, runs)).collect::<Result<Vec<_>>>()?;
    let header = "tok/s, with drafts / without".to_owned();
    let [repeating, random] = TEXTS.map(|text| format!("{text} text"));
    Ok(format!(
        "{}, {}, threads: {threads}. Tokens are the same with drafts and without; processes, \
         of which medians: {turns}.\n\n{}",
        machine::describe(),
        machine::today(),
        markdown(&[header, repeating, random], rows.into_iter()),
    ))
}

fn row(format: &Format, runs: &[Run]) -> Result<[String; 3]> {
    let [repeating, random] = TEXTS.map(|text| cell(runs, text));
    Ok([format.name.to_owned(), repeating?, random?])
}

/// "61.2 / 24.5 (2.50x)".
fn cell(runs: &[Run], text: &str) -> Result<String> {
    let samples = |name: &str| -> Result<Samples> {
        let value = |run: &Run| {
            let entries = run.0["speculation"].as_array().map_or(&[][..], Vec::as_slice);
            let found = entries.iter().find(|it| it["text"] == text).map(|it| &it[name]["median"]);
            found.and_then(Value::as_f64).with_context(|| {
                format!("iree-llm bench --speculate did not print {name} of {text} text")
            })
        };
        let mut samples = Samples::default();
        samples.extend(runs.iter().map(value).collect::<Result<Vec<_>>>()?);
        Ok(samples)
    };
    let (with, without) = (samples("tokens_per_second")?, samples("without")?);
    let show = |value: Option<f64>| value.map_or_else(|| "?".to_owned(), number);
    let ratio = show(with.over(&without));
    Ok(format!("{} / {} ({ratio}x)", show(with.median()), show(without.median())))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::model::FORMATS;
    use super::*;

    #[test]
    fn a_row_has_both_texts() {
        let spread = |median: f64| json!({"median": median, "min": median, "max": median});
        let entry = |text: &str, with: f64, without: f64| json!({"text": text, "tokens_per_second": spread(with), "without": spread(without)});
        let run = |speed: f64| {
            Run(json!({"precision": "int8", "speculation": [
                entry("random", 19.6 * speed, 20.0 * speed),
                entry("repeating", 50.0 * speed, 20.0 * speed),
            ]}))
        };
        let cells = row(&FORMATS[3], &[run(1.0), run(2.0), run(1.0)]).unwrap();
        assert_eq!(cells, ["int8", "50.0 / 20.0 (2.50x)", "19.6 / 20.0 (0.980x)"]);
        let error = row(&FORMATS[3], &[Run(json!({}))]).unwrap_err().to_string();
        assert!(error.contains("tokens_per_second of repeating text"), "{error}");
    }
}
