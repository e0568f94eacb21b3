//! Single tokens of many sequences at once: ours beside `llama-batched-bench`, in turn, in a table
//! (`table`).

mod table;

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::limits;
use super::model::{Format, Shape};
use super::programs::{LlamaSettings, Programs, tests};
use super::sample::{Limits, Run, Samples};

/// How many sequences run at once.
pub const SEQUENCES: [usize; 5] = [1, 2, 4, 8, 16];

/// How much is measured.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// Tokens in each sequence before the first single one.
    pub prompt: usize,
    /// Single tokens of each sequence.
    pub generate: usize,
    /// How often the two programs take turns.
    pub turns: usize,
    /// Whether the machine's limits are measured in a moment too.
    pub quick: bool,
}

impl Plan {
    /// What the documentation's table is made with, or a few minutes of it.
    pub const fn new(quick: bool) -> Self {
        if quick {
            Self { prompt: 32, generate: 4, turns: 1, quick }
        } else {
            Self { prompt: 128, generate: 32, turns: 3, quick }
        }
    }

    fn ours(self) -> Vec<String> {
        let mut arguments = tests(&[self.prompt], &[self.generate], 1);
        arguments.extend(["--parallel".to_owned(), list(&SEQUENCES)]);
        arguments
    }

    /// `generate` tokens of each sequence; the prompts run once for all sequences where they are
    /// not what is asked for.
    fn llama(self, generate: usize, shared_prompt: bool) -> Vec<String> {
        let most = SEQUENCES.iter().max().copied().unwrap_or(1);
        // llama.cpp gives each sequence a multiple of 256.
        let context = most * (self.prompt + generate).next_multiple_of(256);
        let numbers = [
            ("-npp", self.prompt.to_string()),
            ("-ntg", generate.to_string()),
            ("-npl", list(&SEQUENCES)),
            ("-c", context.to_string()),
        ];
        let mut arguments: Vec<_> =
            numbers.into_iter().flat_map(|(name, value)| [name.to_owned(), value]).collect();
        if shared_prompt {
            arguments.push("-pps".to_owned());
        }
        arguments
    }
}

fn list(numbers: &[usize]) -> String {
    numbers.iter().map(usize::to_string).collect::<Vec<_>>().join(",")
}

/// Tokens a second of all sequences together.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rate {
    /// Of their prompts.
    pub prompt: f64,
    /// Of their single tokens.
    pub decode: f64,
}

/// What one process measured, by the number of sequences.
pub type Rates = BTreeMap<usize, Rate>;

/// Reads an object of `iree-llm bench --parallel … --json`.
///
/// # Errors
///
/// It lacks one of [`SEQUENCES`].
pub fn ours(run: &Run) -> Result<Rates> {
    let entries = run.0["parallel"].as_array().map_or(&[][..], Vec::as_slice);
    let rate = |it: &Value| {
        let number = |pointer: &str| it.pointer(pointer)?.as_f64();
        let prompt = number("/tokens_per_second_prompt/median")?;
        let decode = number("/tokens_per_second_decode/median")?;
        Some((usize::try_from(it["sequences"].as_u64()?).ok()?, Rate { prompt, decode }))
    };
    complete(entries.iter().filter_map(rate), "iree-llm bench --parallel")
}

/// Reads what `llama-batched-bench --output-format jsonl` prints: S_PP is `speed_pp` there, S_TG
/// `speed_tg`, both in tokens a second of all sequences.
///
/// # Errors
///
/// It lacks one of [`SEQUENCES`]: their contexts did not fit.
pub fn llama(text: &str) -> Result<Rates> {
    let rate = |line: &str| {
        let it: Value = serde_json::from_str(line).ok()?;
        let (prompt, decode) = (it["speed_pp"].as_f64()?, it["speed_tg"].as_f64()?);
        Some((usize::try_from(it["pl"].as_u64()?).ok()?, Rate { prompt, decode }))
    };
    complete(text.lines().filter_map(rate), "llama-batched-bench")
}

fn complete(rates: impl Iterator<Item = (usize, Rate)>, program: &str) -> Result<Rates> {
    let rates: Rates = rates.collect();
    for sequences in SEQUENCES {
        let found = rates.get(&sequences);
        found.with_context(|| format!("{program} did not measure {sequences} sequences"))?;
    }
    Ok(rates)
}

/// The measurements of one precision.
#[derive(Debug)]
pub struct Measured {
    /// The precision.
    pub format: &'static Format,
    /// llama.cpp's fastest settings.
    pub settings: LlamaSettings,
    /// Bytes of our weights in memory.
    pub weights: f64,
    /// What the machine could do, before each turn.
    pub limits: Vec<Limits>,
    /// One of each turn.
    pub ours: Vec<Rates>,
    /// One of each turn.
    pub llama: Vec<Rates>,
}

/// All measurements.
#[derive(Debug)]
pub struct Batched {
    /// How much was measured.
    pub plan: Plan,
    /// Of both programs.
    pub threads: usize,
    /// The model's sizes.
    pub shape: Shape,
    /// By precision, in the order of the command line.
    pub measured: Vec<Measured>,
}

/// Measures both programs in every one of `formats`; `keep` gets what there is after each of them in
/// every turn.
///
/// # Errors
///
/// A program fails or does not say what it was asked, and those of `keep`.
pub fn measure(
    programs: &Programs,
    formats: &[&'static Format],
    threads: usize,
    plan: Plan,
    keep: &dyn Fn(&Batched) -> Result<()>,
) -> Result<Batched> {
    let mut measured = Vec::new();
    for &format in formats {
        eprintln!("==> {}: compiling, and llama.cpp's best settings", format.name);
        measured.push(prepare(programs, format, threads, plan)?);
    }
    let mut all = Batched { plan, threads, shape: programs.model.shape, measured };
    for turn in 1..=plan.turns {
        for index in 0..all.measured.len() {
            let it = &mut all.measured[index];
            let name = it.format.name;
            eprintln!("==> turn {turn} of {}: {name}, sequences: {SEQUENCES:?}", plan.turns);
            it.limits.push(limits::measure(name, threads, plan.quick)?);
            let run = ours(&programs.ours_warm(it.format, threads, &plan.ours())?)?;
            eprintln!("{name:6} iree-llm  {}", decode_rates(&run));
            it.ours.push(run);
            let arguments = plan.llama(plan.generate, false);
            let run =
                llama(&programs.llama_batched(it.format, it.settings, threads, &arguments)?)?;
            eprintln!("{name:6} llama.cpp {}", decode_rates(&run));
            it.llama.push(run);
            keep(&all)?;
        }
    }
    Ok(all)
}

/// Single tokens of each sequence when llama.cpp's settings are tried.
const PROBE: usize = 8;
/// How often each setting is tried; the best counts, as what disturbs makes slower only.
const PROBES: usize = 2;

fn prepare(
    programs: &Programs,
    format: &'static Format,
    threads: usize,
    plan: Plan,
) -> Result<Measured> {
    programs.model.warm_folder(format)?;
    let start = programs.ours(format, threads, &tests(&[1], &[], 1))?;
    let weights = start.require("/memory/weights")?;
    let arguments = plan.llama(PROBE, true);
    let mut tried = LlamaSettings::ALL.map(|settings| (settings, Rates::new()));
    for _ in 0..PROBES {
        for (settings, best) in &mut tried {
            let text = programs.llama_batched(format, *settings, threads, &arguments)?;
            keep_best(best, &llama(&text)?);
        }
    }
    for (settings, best) in &tried {
        eprintln!("{}: {settings}: {}", format.name, decode_rates(best));
    }
    // The product weighs a percent of each number of sequences alike.
    let speed = |rates: &Rates| rates.values().map(|rate| rate.decode).product::<f64>();
    let best = tried.iter().max_by(|(_, a), (_, b)| speed(a).total_cmp(&speed(b)));
    let settings = best.context("llama.cpp has no settings")?.0;
    Ok(Measured {
        format,
        settings,
        weights,
        limits: Vec::new(),
        ours: Vec::new(),
        llama: Vec::new(),
    })
}

fn keep_best(best: &mut Rates, rates: &Rates) {
    for (&sequences, &rate) in rates {
        let kept = best.entry(sequences).or_insert(rate);
        if rate.decode > kept.decode {
            *kept = rate;
        }
    }
}

/// "24.1, 30.2 tok/s".
fn decode_rates(rates: &Rates) -> String {
    let rates: Vec<_> = rates.values().map(|rate| format!("{:.2}", rate.decode)).collect();
    rates.join(", ") + " tok/s"
}

impl Measured {
    /// `value` of every turn.
    fn samples(turns: &[Rates], sequences: usize, value: fn(&Rate) -> f64) -> Samples {
        let mut samples = Samples::default();
        samples.extend(turns.iter().filter_map(|rates| rates.get(&sequences).map(value)));
        samples
    }

    /// Ours and llama.cpp's.
    pub fn both(&self, sequences: usize, value: fn(&Rate) -> f64) -> [Samples; 2] {
        [&self.ours, &self.llama].map(|turns| Self::samples(turns, sequences, value))
    }

    /// The most single tokens a second of all sequences that the machine allows: every step reads
    /// all weights, and multiplies them for every sequence.
    pub fn limit(&self, sequences: usize, shape: &Shape, context: usize) -> Option<f64> {
        let median = |value: fn(&Limits) -> f64| {
            let mut samples = Samples::default();
            samples.extend(self.limits.iter().map(value));
            samples.median()
        };
        let read = self.weights / median(|it| it.bytes_per_second)?;
        let computed = shape.step_flops(sequences, context) / median(|it| it.flops)?;
        Some(sequences as f64 / read.max(computed))
    }
}

impl Batched {
    /// Everything that was measured.
    ///
    /// # Errors
    ///
    /// None that is known.
    pub fn json(&self) -> Result<String> {
        let rates = |rates: &Rates| -> Vec<Value> {
            let one = |(sequences, rate): (&usize, &Rate)| json!({"sequences": sequences, "prompt": rate.prompt, "decode": rate.decode});
            rates.iter().map(one).collect()
        };
        let limits = |it: &Limits| json!({"read": it.bytes_per_second, "flops": it.flops});
        let entry = |it: &Measured| {
            json!({
                "format": it.format.name,
                "threads": self.threads,
                "llama.cpp": it.settings.to_string(),
                "limits": it.limits.iter().map(limits).collect::<Vec<_>>(),
                "ours": it.ours.iter().map(rates).collect::<Vec<_>>(),
                "llama": it.llama.iter().map(rates).collect::<Vec<_>>(),
            })
        };
        let entries: Vec<_> = self.measured.iter().map(entry).collect();
        Ok(serde_json::to_string_pretty(&entries)?)
    }
}

#[cfg(test)]
mod unit_tests {
    use super::super::model::FORMATS;
    use super::*;

    /// Three precisions' rates that are easy to compute with.
    pub fn example() -> Batched {
        let rates = |factor: f64| -> Rates {
            let one = |n: usize| {
                let decode = factor * 10.0 * (n as f64).sqrt();
                (n, Rate { prompt: factor * 100.0, decode })
            };
            SEQUENCES.map(one).into_iter().collect()
        };
        let limits = |bytes_per_second| Limits {
            format: "stored",
            threads: 2,
            bytes_per_second,
            flops: 400.0,
        };
        Batched {
            plan: Plan::new(false),
            threads: 2,
            shape: Shape::example(),
            measured: vec![Measured {
                format: &FORMATS[1],
                settings: LlamaSettings::ALL[0],
                weights: 2.0,
                limits: vec![limits(30.0), limits(40.0), limits(60.0)],
                // A machine that was twice as fast in one turn of three.
                ours: vec![rates(1.0), rates(2.0), rates(1.0)],
                llama: vec![rates(0.5), rates(1.0), rates(0.8)],
            }],
        }
    }

    #[test]
    fn both_programs_run_the_same() {
        let plan = Plan::new(false);
        assert_eq!(plan.ours().join(" "), "-p 128 -n 32 -r 1 --parallel 1,2,4,8,16");
        assert_eq!(
            plan.llama(plan.generate, false).join(" "),
            "-npp 128 -ntg 32 -npl 1,2,4,8,16 -c 4096"
        );
        assert_eq!(plan.llama(8, true).last().unwrap(), "-pps");
    }

    /// What `iree-llm bench --parallel 1,2,4,8,16 --json` prints.
    const OURS: &str = include_str!("batched/iree-llm.json");

    /// What `llama-batched-bench` of llama-cpp-python 0.3.36 printed.
    const LLAMA: &str = include_str!("batched/llama-batched-bench.jsonl");

    #[test]
    fn what_iree_llm_prints_is_read() {
        let runs: Value = serde_json::from_str(OURS).unwrap();
        let rates = ours(&Run(runs[0].clone())).unwrap();
        assert_eq!(rates.keys().copied().collect::<Vec<_>>(), SEQUENCES);
        assert_eq!(rates[&4], Rate { prompt: 200.5, decode: 61.25 });
        let error = ours(&Run(json!({"parallel": runs[0]["parallel"][0]}))).unwrap_err();
        assert!(error.to_string().contains("did not measure 1 sequences"), "{error}");
    }

    #[test]
    fn what_llama_batched_bench_prints_is_read() {
        let rates = llama(LLAMA).unwrap();
        assert_eq!(rates.keys().copied().collect::<Vec<_>>(), SEQUENCES);
        assert_eq!(rates[&4], Rate { prompt: 281.107_697, decode: 87.050_079 });
        // A context that was too small leaves lines out, and says nothing.
        let first = LLAMA.lines().next().unwrap();
        let error = llama(first).unwrap_err().to_string();
        assert!(error.contains("did not measure 2 sequences"), "{error}");
    }

    #[test]
    fn the_best_of_each_number_of_sequences_is_kept() {
        let rates = |one: f64, two: f64| -> Rates {
            let rate = |decode| Rate { prompt: 1.0, decode };
            [(1, rate(one)), (2, rate(two))].into()
        };
        let mut best = Rates::new();
        keep_best(&mut best, &rates(3.0, 4.0));
        keep_best(&mut best, &rates(2.0, 5.0));
        assert_eq!(best, rates(3.0, 5.0));
    }

    #[test]
    fn the_limit_is_memory_for_few_and_arithmetic_for_many() {
        let it = &example().measured[0];
        let shape = Shape::example();
        // 40 bytes a second in the median, 2 bytes of weights: 20 steps a second.
        assert_eq!(it.limit(1, &shape, 0), Some(20.0));
        // A token costs 20 operations, of which there are 400 a second: 20 tokens.
        assert_eq!(it.limit(16, &shape, 0), Some(20.0));
        assert!(it.limit(16, &shape, 100).unwrap() < 20.0);
    }
}
