//! How cost grows: with the length of a prompt, with the context, with threads.

use std::fmt::Write as _;

use anyhow::{Context, Result};

use super::contest::{Contest, Side, rates};
use super::model::Format;
use super::programs::tests;
use super::table::{markdown, number};

/// Tokens of the prompt that is timed with every number of threads.
const PROMPT: usize = 128;

/// Single tokens that are timed at each point.
const GENERATE: usize = 8;

/// Numbers of tokens or threads, and what was measured there.
type Curve<'a> = &'a [(usize, f64)];

/// One program's measurements; each is a number of tokens or threads and what was measured there.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Curves {
    /// Tokens a second of a prompt, by its length.
    pub prompt: Vec<(usize, f64)>,
    /// Milliseconds of a single token, by the tokens before it.
    pub depth: Vec<(usize, f64)>,
    /// Tokens a second of a prompt, by threads.
    pub prompt_threads: Vec<(usize, f64)>,
    /// Tokens a second of single tokens, by threads.
    pub single_threads: Vec<(usize, f64)>,
}

/// Both programs'.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Scaling {
    /// `iree-llm`'s.
    pub ours: Curves,
    /// llama.cpp's.
    pub llama: Curves,
}

/// Measures both programs with weights in `format`.
///
/// # Errors
///
/// A program fails or does not say what it was asked.
pub fn measure(contest: &Contest, format: &Format) -> Result<Scaling> {
    let mut scaling = Scaling::default();
    let mut lengths = tests(&[], &[GENERATE], 1);
    for length in contest.plan.lengths {
        lengths.extend(["--pg".to_owned(), format!("{length},{GENERATE}")]);
    }
    for side in [Side::Ours, Side::Llama] {
        let curves = scaling.of(side);
        let run = contest.run(side, format, contest.threads, &lengths)?;
        eprintln!("{:9} {}", side.name(), rates(&run));
        let seconds = |test: &str, depth: usize| {
            let first = run.seconds(test, depth).first().copied();
            first.with_context(|| format!("{} did not measure {test}", side.name()))
        };
        let single = format!("tg{GENERATE}");
        for &length in contest.plan.lengths {
            let rate = length as f64 / seconds(&format!("pp{length}"), 0)?;
            curves.prompt.push((length, rate));
        }
        for depth in [0].into_iter().chain(contest.plan.lengths.iter().copied()) {
            curves.depth.push((depth, seconds(&single, depth)? * 1e3 / GENERATE as f64));
        }
    }
    for threads in thread_counts(contest.threads) {
        for side in [Side::Ours, Side::Llama] {
            let curves = scaling.of(side);
            let run = contest.run(side, format, threads, &tests(&[PROMPT], &[GENERATE], 1))?;
            eprintln!("{:9} {threads} threads: {}", side.name(), rates(&run));
            let rate = |test: String, tokens: usize| {
                let first = run.seconds(&test, 0).first().copied();
                Some((threads, tokens as f64 / first?))
            };
            curves.prompt_threads.extend(rate(format!("pp{PROMPT}"), PROMPT));
            curves.single_threads.extend(rate(format!("tg{GENERATE}"), GENERATE));
        }
    }
    Ok(scaling)
}

impl Scaling {
    fn of(&mut self, side: Side) -> &mut Curves {
        match side {
            Side::Ours | Side::Baseline => &mut self.ours,
            Side::Llama | Side::LlamaMapped => &mut self.llama,
        }
    }

    /// The plot `image` and its numbers, ours / llama.cpp's, for the document.
    pub fn section(&self, image: &str, caption: &str) -> String {
        let mut out = String::new();
        let _ = writeln!(
            out,
            "![iree-llm beside llama.cpp: a prompt by its length, one token by the context before \
             it, and both by threads.]({image})\n\n{caption}\n"
        );
        let (ours, llama) = (&self.ours, &self.llama);
        let table = |over: &str, keys: Curve, rows: [(&str, Curve, Curve); 2]| {
            let names = keys.iter().map(|(key, _)| key.to_string());
            let header: Vec<_> = [over.to_owned()].into_iter().chain(names).collect();
            let row = |(name, ours, llama): (&str, Curve, Curve)| {
                let cells = keys.iter().map(|(key, _)| cell(ours, llama, *key));
                [name.to_owned()].into_iter().chain(cells).collect::<Vec<_>>()
            };
            markdown(&header, rows.into_iter().map(row))
        };
        let rows = [
            ("prompt, tok/s", &ours.prompt[..], &llama.prompt[..]),
            ("one token after them, ms", &ours.depth, &llama.depth),
        ];
        let _ = writeln!(out, "{}", table("tokens", &ours.depth, rows));
        let prompt = format!("prompt of {PROMPT}, tok/s");
        let rows = [
            (&prompt[..], &ours.prompt_threads[..], &llama.prompt_threads[..]),
            ("decode, tok/s", &ours.single_threads, &llama.single_threads),
        ];
        out + &table("threads", &ours.prompt_threads, rows)
    }
}

/// What both measured at `key`: "215 / 211".
fn cell(ours: Curve, llama: Curve, key: usize) -> String {
    let at = |curve: &Curve| curve.iter().find(|(at, _)| *at == key).map(|(_, it)| number(*it));
    at(&ours).zip(at(&llama)).map_or_else(String::new, |(ours, llama)| format!("{ours} / {llama}"))
}

/// 1, 2, 4, … and the most.
fn thread_counts(most: usize) -> Vec<usize> {
    let doubled = std::iter::successors(Some(1), |n| Some(n * 2));
    doubled.take_while(|&n| n < most).chain([most]).collect()
}

#[cfg(test)]
pub mod tests_of_scaling {
    use super::*;

    /// Something like a measurement.
    pub fn example() -> Scaling {
        let curves = |factor: f64| {
            let lengths = [64usize, 256, 1024, 8192];
            let slower = |n: usize| 1.0 + n as f64 / 8192.0;
            let depths = [0].into_iter().chain(lengths);
            Curves {
                prompt: lengths.map(|n| (n, factor * 130.0 / slower(n))).to_vec(),
                depth: depths.map(|n| (n, 80.0 * slower(n) / factor)).collect(),
                prompt_threads: vec![(1, factor * 66.0), (2, factor * 130.0)],
                single_threads: vec![(1, factor * 8.0), (2, factor * 12.5)],
            }
        };
        Scaling { ours: curves(1.0), llama: curves(0.75) }
    }

    #[test]
    fn threads_double_up_to_the_most() {
        assert_eq!(thread_counts(1), [1]);
        assert_eq!(thread_counts(2), [1, 2]);
        assert_eq!(thread_counts(6), [1, 2, 4, 6]);
        assert_eq!(thread_counts(8), [1, 2, 4, 8]);
    }

    #[test]
    fn the_section_shows_the_plot_and_every_number() {
        let text = example().section("scaling.svg", "Weights in bf16.");
        assert!(text.starts_with("![") && text.contains("](scaling.svg)"), "{text}");
        let row = |start: &str| text.lines().find(|line| line.starts_with(start)).unwrap();
        let cells = |line: &str| line.split('|').map(|it| it.trim().to_owned()).collect::<Vec<_>>();
        assert_eq!(cells(row("| tokens "))[1..7], ["tokens", "0", "64", "256", "1024", "8192"]);
        let prompt = cells(row("| prompt, "));
        assert_eq!([&prompt[2], &prompt[6]], ["", "65.0 / 48.8"]);
        let token = cells(row("| one token "));
        assert_eq!([&token[2], &token[6]], ["80.0 / 107", "160 / 213"]);
        assert_eq!(cells(row("| threads "))[1..4], ["threads", "1", "2"]);
        assert_eq!(cells(row("| prompt of 128"))[3], "130 / 97.5");
        assert_eq!(cells(row("| decode"))[3], "12.5 / 9.38");
    }
}
