//! What went through the models, as numbers for Prometheus.
//!
//! What vLLM counts too has the name that vLLM gives it, and the label `model_name`, so that its
//! dashboards, routers and autoscalers read it; the rest begins with `iree_llm_`. The text format is
//! lines of a name, labels and a number, for which no library is needed.

use std::fmt::Write;
use std::time::Duration;

use xla_session::FinishReason;
use xla_session::batching::{Ended, Statistics};

/// Upper ends of the buckets of time from a request to its first token, in seconds.
const FIRST_TOKEN: [f64; 16] =
    [0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0, 20.0, 80.0];
/// Those of time between two tokens.
const BETWEEN_TOKENS: [f64; 16] =
    [0.002, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 10.0];
/// Those of the time of whole requests, and of their waiting.
const WHOLE: [f64; 16] =
    [0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 60.0, 120.0, 480.0];

/// How many observations are at most as long as each bucket's end.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Histogram {
    ends: &'static [f64; 16],
    /// Of each bucket alone, and of what is longer than the last one.
    counts: [u64; 17],
    sum: f64,
}

impl Histogram {
    fn new(ends: &'static [f64; 16]) -> Self {
        Self { ends, counts: [0; 17], sum: 0.0 }
    }

    /// One more.
    pub fn observe(&mut self, time: Duration) {
        let seconds = time.as_secs_f64();
        self.counts[self.ends.partition_point(|end| *end < seconds)] += 1;
        self.sum += seconds;
    }
}

/// What one model has done since its start.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Numbers {
    pub batcher: Statistics,
    pub time_to_first_token: Histogram,
    pub between_tokens: Histogram,
    pub whole: Histogram,
    pub waited: Histogram,
    pub prompt_tokens: u64,
    pub tokens: u64,
    pub stopped: u64,
    pub full: u64,
    pub cancelled: u64,
    pub failed: u64,
    pub sent_away: u64,
}

impl Numbers {
    pub fn new(batcher: Statistics) -> Self {
        Self {
            batcher,
            time_to_first_token: Histogram::new(&FIRST_TOKEN),
            between_tokens: Histogram::new(&BETWEEN_TOKENS),
            whole: Histogram::new(&WHOLE),
            waited: Histogram::new(&WHOLE),
            prompt_tokens: 0,
            tokens: 0,
            stopped: 0,
            full: 0,
            cancelled: 0,
            failed: 0,
            sent_away: 0,
        }
    }

    /// A request has its answer, so long behind its arrival.
    pub fn ended(&mut self, ended: &Ended, whole: Duration) {
        match ended.reason {
            FinishReason::Length | FinishReason::Context if ended.vector.is_none() => {
                self.full += 1
            }
            _ => self.stopped += 1,
        }
        if ended.timings.first_token.is_none() {
            self.prompt_tokens += ended.timings.prompt_tokens as u64;
        }
        self.whole.observe(whole);
        self.waited.observe(ended.timings.waited);
    }
}

/// The text of `/metrics` for models by name, and requests `refused` by the limits of their keys.
pub(crate) fn text(models: &[(&str, Numbers)], refused: [(&str, u64); 2]) -> String {
    let mut page = Page { text: String::new(), models };
    let reasons = |it: &Numbers| [it.stopped, it.full];
    page.gauge("vllm:num_requests_running", "Requests that have a sequence", |it| {
        it.batcher.running as f64
    });
    page.gauge("vllm:num_requests_waiting", "Requests that wait for their turn", |it| {
        it.batcher.waiting as f64
    });
    page.gauge("vllm:kv_cache_usage_perc", "Part of the KV cache that is held; 1 is all", |it| {
        it.batcher.pages.held as f64 / it.batcher.pages.pages.max(1) as f64
    });
    page.counter("vllm:num_preemptions_total", "Times a request gave its pages back", |it| {
        it.batcher.preemptions
    });
    page.counter(
        "vllm:prefix_cache_queries_total",
        "Tokens of prompts that were looked up",
        |it| it.batcher.pages.prefix_tokens_looked_up,
    );
    page.counter("vllm:prefix_cache_hits_total", "Tokens that the prefix cache had", |it| {
        it.batcher.pages.prefix_tokens_found
    });
    let share = |it: &Numbers| it.batcher.share.unwrap_or_default();
    page.counter(
        "vllm:external_prefix_cache_queries_total",
        "Tokens that it did not have in whole pages and that were looked up in files",
        |it| share(it).tokens_looked_up,
    );
    page.counter(
        "vllm:external_prefix_cache_hits_total",
        "Tokens of these that the files had",
        |it| share(it).tokens_found,
    );
    page.labelled(
        "iree_llm_kv_share_pages_total",
        "counter",
        "Pages of the KV cache that went to files, were left out, or were found damaged",
        "result",
        &["kept", "lost", "damaged"],
        |it, at| [share(it).kept, share(it).lost, share(it).damaged][at] as f64,
    );
    page.counter("vllm:prompt_tokens_total", "Tokens of prompts that have run", |it| {
        it.prompt_tokens
    });
    page.counter("vllm:generation_tokens_total", "Tokens of answers", |it| it.tokens);
    page.labelled(
        "vllm:request_success_total",
        "counter",
        "Answered requests",
        "finished_reason",
        &["stop", "length"],
        |it, at| reasons(it)[at] as f64,
    );
    page.histogram("vllm:time_to_first_token_seconds", "Time to the first token", |it| {
        &it.time_to_first_token
    });
    page.histogram("vllm:inter_token_latency_seconds", "Time between two tokens", |it| {
        &it.between_tokens
    });
    page.histogram("vllm:e2e_request_latency_seconds", "Time of a whole request", |it| &it.whole);
    page.histogram("vllm:request_queue_time_seconds", "Time until a request runs", |it| &it.waited);
    page.labelled(
        "iree_llm_kv_pages",
        "gauge",
        "Pages of the KV cache",
        "state",
        &["free", "held", "cached"],
        |it, at| {
            let pages = it.batcher.pages;
            [pages.free, pages.held, pages.cached][at] as f64
        },
    );
    page.counter("iree_llm_steps_total", "Steps", |it| it.batcher.steps);
    page.counter("iree_llm_step_rows_total", "Tokens that the steps ran", |it| it.batcher.rows);
    page.counter("vllm:spec_decode_num_draft_tokens_total", "Tokens that were guessed", |it| {
        it.batcher.drafts.drafted as u64
    });
    page.counter("vllm:spec_decode_num_accepted_tokens_total", "Those that were right", |it| {
        it.batcher.drafts.accepted as u64
    });
    let beside = "Tokens of prompts that the last step could run beside answers";
    page.gauge("iree_llm_step_rows_beside", beside, |it| it.batcher.rows_beside as f64);
    page.counter("iree_llm_step_failures_total", "Steps that failed", |it| it.batcher.failures);
    page.counter("iree_llm_requests_cancelled_total", "Requests whose client went", |it| {
        it.cancelled
    });
    page.counter("iree_llm_requests_failed_total", "Requests that began and failed", |it| {
        it.failed
    });
    let full = "Requests for which the queue had no place";
    page.counter("iree_llm_requests_queue_full_total", full, |it| it.sent_away);
    let name = "iree_llm_requests_limited_total";
    page.head(name, "counter", "Requests beyond what their key may ask for");
    for (limit, count) in refused {
        page.line(format_args!("{name}{{limit=\"{limit}\"}} {count}"));
    }
    page.text
}

struct Page<'a> {
    text: String,
    models: &'a [(&'a str, Numbers)],
}

impl Page<'_> {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        self.line(format_args!("# HELP {name} {help}.\n# TYPE {name} {kind}"));
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        writeln!(self.text, "{line}").expect("a string takes all");
    }

    fn gauge(&mut self, name: &str, help: &str, value: impl Fn(&Numbers) -> f64) {
        self.head(name, "gauge", help);
        for (model, numbers) in self.models {
            let (model, value) = (label(model), value(numbers));
            self.line(format_args!("{name}{{model_name=\"{model}\"}} {value}"));
        }
    }

    fn counter(&mut self, name: &str, help: &str, value: impl Fn(&Numbers) -> u64) {
        self.head(name, "counter", help);
        for (model, numbers) in self.models {
            let (model, value) = (label(model), value(numbers));
            self.line(format_args!("{name}{{model_name=\"{model}\"}} {value}"));
        }
    }

    fn labelled(
        &mut self,
        name: &str,
        kind: &str,
        help: &str,
        key: &str,
        labels: &[&str],
        value: impl Fn(&Numbers, usize) -> f64,
    ) {
        self.head(name, kind, help);
        for (model, numbers) in self.models {
            for (at, it) in labels.iter().enumerate() {
                let (model, value) = (label(model), value(numbers, at));
                self.line(format_args!("{name}{{model_name=\"{model}\",{key}=\"{it}\"}} {value}"));
            }
        }
    }

    fn histogram(&mut self, name: &str, help: &str, of: impl Fn(&Numbers) -> &Histogram) {
        self.head(name, "histogram", help);
        for (model, numbers) in self.models {
            let (model, Histogram { ends, counts, sum }) = (label(model), of(numbers));
            let ends = ends.iter().map(f64::to_string).chain(["+Inf".to_owned()]);
            let mut total = 0;
            for (end, count) in ends.zip(counts) {
                total += count;
                let labels = format!("model_name=\"{model}\",le=\"{end}\"");
                self.line(format_args!("{name}_bucket{{{labels}}} {total}"));
            }
            self.line(format_args!("{name}_sum{{model_name=\"{model}\"}} {sum}"));
            self.line(format_args!("{name}_count{{model_name=\"{model}\"}} {total}"));
        }
    }
}

/// `text` as the value of a label.
fn label(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_hold_what_is_at_most_as_long_as_they() {
        let mut histogram = Histogram::new(&WHOLE);
        for milliseconds in [100, 101, 300, 1_000_000] {
            histogram.observe(Duration::from_millis(milliseconds));
        }
        assert_eq!(histogram.counts[..3], [1, 2, 0]);
        assert_eq!((histogram.counts[16], histogram.counts.iter().sum::<u64>()), (1, 4));
        for ends in [FIRST_TOKEN, BETWEEN_TOKENS, WHOLE] {
            assert!(ends.is_sorted());
        }
    }

    #[test]
    fn the_dashboard_shows_what_there_is() {
        let dashboard: serde_json::Value =
            serde_json::from_str(include_str!("../grafana.json")).unwrap();
        let queries: String = dashboard["panels"]
            .as_array()
            .unwrap()
            .iter()
            .fold(dashboard["templating"].to_string(), |all, panel| {
                all + &panel["targets"].to_string()
            });
        let page =
            text(&[("a", Numbers::new(Statistics::default()))], [("rpm", 0), ("parallel", 0)]);
        let there: Vec<_> = page.lines().filter(|line| !line.starts_with('#')).collect();
        let is_part = |it: char| it.is_ascii_alphanumeric() || it == '_' || it == ':';
        let named = queries.split(|it| !is_part(it));
        let named = named.filter(|it| it.starts_with("vllm:") || it.starts_with("iree_llm_"));
        let named: std::collections::BTreeSet<_> = named.collect();
        assert!(named.len() > 15, "{named:?}");
        for name in named {
            assert!(there.iter().any(|it| it.starts_with(&format!("{name}{{"))), "{name}");
        }
    }

    #[test]
    fn labels_are_escaped() {
        assert_eq!(label("a\"b\\c\nd"), "a\\\"b\\\\c\\nd");
    }
}
