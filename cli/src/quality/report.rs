//! What a comparison found: a table for people, JSON for programs.

use comfy_table::presets::ASCII_MARKDOWN;
use comfy_table::{CellAlignment, Table};
use serde::Serialize;

use super::contexts::Source;
use super::divergence::Divergence;
use super::greedy::Agreement;
use crate::bench::table::number;

/// One model in several precisions and forms, against itself in float32.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// The model as it was asked for.
    pub model: String,
    /// The engine: "iree".
    pub engine: String,
    /// Where it ran.
    pub device: String,
    /// Where the tokens come from.
    pub source: Source,
    /// Positions at which logits were compared.
    pub tokens: usize,
    /// Into how many texts they fall, each from an empty context.
    pub contexts: usize,
    /// Prompts that were gone on with greedily.
    pub prompts: usize,
    /// Most tokens of each of these answers.
    pub greedy_tokens: usize,
    /// Perplexity of the tokens in float32; `None` when no token has one before it.
    pub perplexity: Option<f64>,
    /// In the order in which they were asked for.
    pub precisions: Vec<Comparison>,
}

/// One precision against float32.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    /// How weights were kept; of another form of the model, its name.
    pub precision: String,
    /// At every position of the same tokens.
    #[serde(flatten)]
    pub divergence: Divergence,
    /// Of answers; `None` when none were asked for.
    pub greedy: Option<Agreement>,
}

impl Report {
    /// A line that says what was compared, and a Markdown table.
    pub fn table(&self) -> String {
        let source = match self.source {
            Source::Given => "of the text",
            Source::Own => "that the model wrote in f32",
            Source::Random => "at random",
        };
        let mut table = Table::new();
        table.load_preset(ASCII_MARKDOWN).set_header([
            "precision",
            "KL mean, nats",
            "KL 99%",
            "KL max",
            "same top token",
            "logit error",
            "perplexity",
            "greedy, same tokens",
            "same to the end",
        ]);
        for column in table.column_iter_mut().skip(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        let perplexity = |it: Option<f64>| match it {
            None => String::new(),
            Some(it) if it < 100.0 => format!("{it:.4}"),
            Some(it) => number(it),
        };
        let mut f32 = vec![String::new(); 9];
        (f32[0], f32[6]) = ("f32".into(), perplexity(self.perplexity));
        table.add_row(f32);
        for Comparison { precision, divergence, greedy } in &self.precisions {
            let (prefix, end) = greedy.as_ref().map_or_else(Default::default, |it| {
                let prefix = format!("{} of {}", number(it.common_prefix), number(it.length));
                (prefix, format!("{} of {}", it.to_the_end, self.prompts))
            });
            table.add_row([
                precision.clone(),
                small(divergence.kl.mean),
                small(divergence.kl.p99),
                small(divergence.kl.max),
                percent(divergence.same_top),
                small(divergence.logit_error),
                perplexity(divergence.perplexity),
                prefix,
                end,
            ]);
        }
        let Self { model, device, tokens, contexts, prompts, greedy_tokens, .. } = self;
        format!(
            "{model} on {device}: {tokens} tokens {source} (contexts: {contexts}), greedy answers of \
             {greedy_tokens} tokens (prompts: {prompts})\n\n{table}\n"
        )
    }
}

fn percent(share: f64) -> String {
    format!("{:.2}%", share * 100.0)
}

/// As [`number`], but with two digits however small it is.
fn small(value: f64) -> String {
    if value > 0.0 && value < 0.01 { format!("{value:.1e}") } else { number(value) }
}

#[cfg(test)]
mod tests {
    use super::super::divergence::Kl;
    use super::*;

    fn report() -> Report {
        Report {
            model: "m".into(),
            engine: "iree".into(),
            device: "local-task".into(),
            source: Source::Given,
            tokens: 64,
            contexts: 2,
            prompts: 4,
            greedy_tokens: 48,
            perplexity: Some(2.5),
            precisions: vec![Comparison {
                precision: "int8".into(),
                divergence: Divergence {
                    kl: Kl { mean: 0.000_123, p99: 0.0125, max: 1.5 },
                    same_top: 63.0 / 64.0,
                    logit_error: 0.031,
                    perplexity: Some(2.75),
                },
                greedy: Some(Agreement { common_prefix: 40.5, length: 48.0, to_the_end: 3 }),
            }],
        }
    }

    #[test]
    fn the_table_says_everything_in_line() {
        let text = report().table();
        let mut lines = text.lines();
        assert_eq!(
            lines.next().unwrap(),
            "m on local-task: 64 tokens of the text (contexts: 2), greedy answers of 48 tokens \
             (prompts: 4)"
        );
        let cells = |line: &str| -> Vec<String> {
            line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect()
        };
        let f32 = lines.clone().find(|line| line.starts_with("| f32 ")).unwrap();
        assert_eq!(cells(f32), ["f32", "", "", "", "", "", "2.5000", "", ""]);
        let int8 = lines.find(|line| line.starts_with("| int8 ")).unwrap();
        assert_eq!(
            cells(int8),
            [
                "int8",
                "1.2e-4",
                "0.013",
                "1.50",
                "98.44%",
                "0.031",
                "2.7500",
                "40.5 of 48.0",
                "3 of 4"
            ]
        );
    }

    #[test]
    fn what_was_not_measured_is_null_and_empty() {
        let mut report = report();
        report.perplexity = None;
        report.precisions[0].greedy = None;
        let json = serde_json::to_value(&report).unwrap();
        assert!(
            json["perplexity"].is_null() && json["precisions"][0]["greedy"].is_null(),
            "{json}"
        );
        assert_eq!(
            (&json["source"], &json["precisions"][0]["kl"]["max"]),
            (&"given".into(), &1.5.into())
        );
        let row = report.table().lines().last().unwrap().to_owned();
        assert!(row.trim_end_matches(['|', ' ']).ends_with("2.7500"), "{row}");
    }

    #[test]
    fn small_numbers_keep_two_digits() {
        let shown: Vec<_> = [0.0, 1.26e-7, 0.009_96, 0.0123, 12.0].map(small).into();
        assert_eq!(shown, ["0", "1.3e-7", "1.0e-2", "0.012", "12.0"]);
    }
}
