//! What was measured, and the middle of it.

use anyhow::{Context, Result};
use serde_json::Value;

/// What the machine could do, just before a precision was measured.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// The precision.
    pub format: &'static str,
    /// Threads that were measured.
    pub threads: usize,
    /// Bytes read from memory a second.
    pub bytes_per_second: f64,
    /// Float32 operations a second, a fused multiply-add counting as two.
    pub flops: f64,
}

/// Repeated measurements of one thing.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Samples(Vec<f64>);

impl Samples {
    /// Adds what `values` are.
    pub fn extend(&mut self, values: impl IntoIterator<Item = f64>) {
        self.0.extend(values);
    }

    /// The middle one, or halfway between the two in the middle; `None` of none.
    pub fn median(&self) -> Option<f64> {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let (low, high) = (sorted.len().checked_sub(1)? / 2, sorted.len() / 2);
        Some(f64::midpoint(sorted[low], sorted[high]))
    }

    /// These over `others`: the median of the ratios one by one, if each was measured beside one of
    /// them, else the ratio of the medians.
    pub fn over(&self, others: &Self) -> Option<f64> {
        if self.0.len() != others.0.len() {
            return Some(self.median()? / others.median()?);
        }
        Self(self.0.iter().zip(&others.0).map(|(a, b)| a / b).collect()).median()
    }

    /// The largest of them alone.
    pub fn largest(&self) -> Self {
        Self(self.range().map(|(_, largest)| largest).into_iter().collect())
    }

    /// The smallest and the largest; `None` of none.
    pub fn range(&self) -> Option<(f64, f64)> {
        let smaller = |a: f64, b: &f64| a.min(*b);
        let larger = |a: f64, b: &f64| a.max(*b);
        let first = *self.0.first()?;
        Some((self.0.iter().fold(first, smaller), self.0.iter().fold(first, larger)))
    }
}

/// One object of `iree-llm bench --json`, or of `llama.py`, which prints the same.
#[derive(Debug, Clone)]
pub struct Run(pub Value);

impl Run {
    /// Seconds of each repetition of `test` ("pp256") at `depth`.
    pub fn seconds(&self, test: &str, depth: usize) -> Vec<f64> {
        let tests = self.0["tests"].as_array().map_or(&[][..], Vec::as_slice);
        let wanted = |it: &&Value| it["test"] == test && it["depth"] == depth;
        let found = tests.iter().filter(wanted).filter_map(|it| it["seconds"].as_array());
        found.flatten().filter_map(Value::as_f64).collect()
    }

    /// Prompts from an empty context and the tokens that followed them.
    pub fn next_tokens(&self) -> Vec<(&str, u64)> {
        let tests = self.0["tests"].as_array().map_or(&[][..], Vec::as_slice);
        let token = |it: &'_ Value| it["next_token"].as_u64();
        tests.iter().filter_map(|it| Some((it["test"].as_str()?, token(it)?))).collect()
    }

    /// The number at `pointer` ("/start/ready_s"), if the system could say.
    pub fn number(&self, pointer: &str) -> Option<f64> {
        self.0.pointer(pointer)?.as_f64()
    }

    /// The number at `pointer`.
    ///
    /// # Errors
    ///
    /// The object has none.
    pub fn require(&self, pointer: &str) -> Result<f64> {
        self.number(pointer).with_context(|| format!("a measurement without {pointer}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_median_is_in_the_middle() {
        let samples = |values: &[f64]| Samples(values.to_vec());
        assert_eq!(samples(&[]).median(), None);
        assert_eq!(samples(&[]).range(), None);
        assert_eq!(samples(&[5.0]).median(), Some(5.0));
        assert_eq!(samples(&[9.0, 1.0, 2.0]).median(), Some(2.0));
        assert_eq!(samples(&[9.0, 1.0, 2.0, 4.0]).median(), Some(3.0));
        assert_eq!(samples(&[9.0, 1.0, 2.0]).range(), Some((1.0, 9.0)));
    }

    #[test]
    fn what_was_measured_side_by_side_is_compared_side_by_side() {
        let samples = |values: &[f64]| Samples(values.to_vec());
        // A machine that was twice as fast for two of three pairs.
        let (ours, others) = (samples(&[8.0, 4.4, 4.0]), samples(&[10.0, 5.0, 5.0]));
        assert_eq!(ours.over(&others), Some(0.8));
        assert_eq!(ours.over(&samples(&[8.8])), Some(0.5));
        assert_eq!(ours.over(&samples(&[])), None);
        assert_eq!(samples(&[]).over(&samples(&[])), None);
        assert_eq!(ours.largest(), samples(&[8.0]));
        assert_eq!(samples(&[]).largest(), samples(&[]));
    }

    #[test]
    fn tests_are_found_by_name_and_depth() {
        let run = Run(json!({
            "start": {"ready_s": 2.5},
            "memory": {"peak": null},
            "tests": [
                {"test": "pp5", "depth": 0, "seconds": [1.0, 2.0], "next_token": 17},
                {"test": "tg4", "depth": 0, "seconds": [3.0], "next_token": null},
                {"test": "tg4", "depth": 5, "seconds": [4.0], "next_token": null},
            ],
        }));
        assert_eq!(run.seconds("pp5", 0), [1.0, 2.0]);
        assert_eq!(run.seconds("tg4", 5), [4.0]);
        assert!(run.seconds("tg4", 6).is_empty());
        assert_eq!(run.next_tokens(), [("pp5", 17)]);
        assert_eq!(run.number("/start/ready_s"), Some(2.5));
        assert_eq!(run.number("/memory/peak"), None);
        assert!(run.require("/memory/peak").is_err());
    }
}
