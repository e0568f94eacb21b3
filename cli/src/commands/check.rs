//! `iree-llm check`: does a device give the tokens that a reference gave?

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use clap::ArgAction;
use serde::{Deserialize, Serialize};
use serde_json::json;
use xla_session::generate_greedy;

use crate::engine::EngineArgs;
use crate::model_source::Model;
use crate::progress::Progress;
use crate::quality::greedy;

/// What to compare.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  iree-llm check xla-session/tests/fixtures/*
  iree-llm check --device cuda --precision f32 xla-session/tests/fixtures/*

A folder is a model in Hugging Face layout with a reference.json beside it:
  {\"cases\": [{\"prompt\": [1, 2], \"tokens\": [3, 4, …]}, …]}
whose tokens another program chose as the most likely ones. The exit code is 1 when one differs, and 2 when \
a folder could not be run, whose entry in the array is {\"model\": …, \"error\": …}; the others are.")]
pub struct Args {
    /// Model folders with a reference.json
    #[arg(value_name = "FOLDER", required = true)]
    folders: Vec<PathBuf>,

    /// Sequences that run together, each with one of the prompts; several numbers one after the other
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "1",
          value_parser = clap::value_parser!(u16).range(1..=256))]
    parallel: Vec<u16>,

    /// Print one JSON array instead of lines
    #[arg(long, action = ArgAction::SetTrue)]
    json: bool,

    #[command(flatten)]
    engine: EngineArgs,
}

#[derive(Deserialize)]
struct Reference {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    prompt: Vec<u32>,
    tokens: Vec<u32>,
}

/// What came out for one folder.
#[derive(Debug, Serialize)]
struct Checked {
    model: String,
    device: String,
    precision: &'static str,
    cases: Vec<Compared>,
}

/// What came out for one prompt; where it ran more than once, the least.
#[derive(Debug, Serialize)]
struct Compared {
    /// Sequences that ran together.
    parallel: usize,
    /// Tokens of the prompt.
    prompt: usize,
    /// Tokens up to the first that differs.
    same: usize,
    of: usize,
}

impl Args {
    /// Compares.
    pub fn run(self) -> Result<ExitCode> {
        let mut all = Vec::new();
        let mut stdout = std::io::stdout().lock();
        let (mut exact, mut ran) = (true, true);
        for folder in &self.folders {
            match self.check(folder) {
                Ok(checked) => {
                    exact &= checked.cases.iter().all(|case| case.same == case.of);
                    if !self.json {
                        writeln!(stdout, "{}", line(&checked))?;
                    }
                    all.push(serde_json::to_value(checked)?);
                }
                Err(error) => {
                    ran = false;
                    let error = error.context(folder.display().to_string());
                    crate::report_error(&error);
                    all.push(json!({"model": name(folder), "error": crate::chain(&error)}));
                }
            }
        }
        if self.json {
            writeln!(stdout, "{}", serde_json::to_string(&all)?)?;
        }
        Ok(ExitCode::from(match (ran, exact) {
            (false, _) => 2,
            (true, false) => 1,
            (true, true) => 0,
        }))
    }

    fn check(&self, folder: &Path) -> Result<Checked> {
        let text = std::fs::read(folder.join("reference.json")).context("reference.json")?;
        let reference: Reference = serde_json::from_slice(&text).context("reference.json")?;
        ensure!(
            reference.cases.iter().any(|case| !case.tokens.is_empty()),
            "reference.json: it has no tokens to compare with"
        );
        let model = Model { name: name(folder), folder: folder.to_owned() };
        let mut opened = self.engine.open(&model, &Progress::new(true))?;
        let session = &mut *opened.session;
        let mut cases = Vec::new();
        for &parallel in &self.parallel {
            let parallel = usize::from(parallel);
            let answers = if parallel == 1 {
                let answer = |case: &Case| {
                    session.reset();
                    Ok(generate_greedy(session, &case.prompt, case.tokens.len(), &[])?.tokens)
                };
                reference.cases.iter().map(answer).collect::<Result<Vec<_>>>()?
            } else {
                // So many that no one runs beside fewer than that.
                let count = reference.cases.len().next_multiple_of(parallel);
                let all = reference.cases.iter().cycle().take(count);
                let most = reference.cases.iter().map(|case| case.tokens.len()).max().unwrap_or(0);
                let prompts: Vec<_> = all.map(|case| case.prompt.clone()).collect();
                let mut answers = Vec::new();
                for together in prompts.chunks(parallel) {
                    answers.extend(greedy::answers(&opened.model, together, most, &[], &|_| {})?);
                }
                answers
            };
            let of = |(i, case): (usize, &Case)| {
                let again = answers.iter().skip(i).step_by(reference.cases.len());
                let same = again.map(|answer| {
                    answer.iter().zip(&case.tokens).take_while(|(a, b)| a == b).count()
                });
                let (prompt, of) = (case.prompt.len(), case.tokens.len());
                Compared { parallel, prompt, same: same.min().unwrap_or(0), of }
            };
            cases.extend(reference.cases.iter().enumerate().map(of));
        }
        let device = session.capabilities().device.clone();
        Ok(Checked { model: model.name, device, precision: opened.precision.as_str(), cases })
    }
}

/// What a model's folder is called.
fn name(folder: &Path) -> String {
    folder.file_name().unwrap_or(folder.as_os_str()).to_string_lossy().into_owned()
}

fn line(checked: &Checked) -> String {
    let cases = checked.cases.iter().map(|case| {
        let Compared { parallel, prompt, same, of } = case;
        let together = match parallel {
            1 => String::new(),
            _ => format!(" ({parallel} together)"),
        };
        format!("{same} of {of} tokens after {prompt}{together}")
    });
    format!(
        "{}, {}, {}: {}",
        checked.model,
        checked.precision,
        checked.device,
        cases.collect::<Vec<_>>().join(", ")
    )
}
