//! `iree-llm embed`: vectors of texts.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use clap::ArgAction;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use serde::Serialize;
use xla_session::batching::{BatcherOptions, Request};
use xla_session::pooling::normalize;
use xla_session::{Batcher, Pooling};

use crate::engine::EngineArgs;
use crate::model_source::ModelArgs;
use crate::pooling::{self, Said};
use crate::progress::Progress;

/// Make vectors of texts: their embeddings
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,

    /// Texts, a vector for each
    #[arg(value_name = "TEXT", allow_hyphen_values = true)]
    texts: Vec<String>,

    /// File with a text on each line; `-` reads stdin
    #[arg(short, long, value_name = "FILE", conflicts_with = "texts")]
    file: Option<PathBuf>,

    /// What goes before each text: the instruction that some models want before queries
    #[arg(long, value_name = "TEXT", default_value = "", allow_hyphen_values = true)]
    prefix: String,

    /// Which hidden states a vector is made of [default: what the model's folder says, else last]
    #[arg(long, value_name = "NAME", value_parser = pooling_parser())]
    pooling: Option<Pooling>,

    /// Leave vectors as long as they are [default: length 1, unless the model's folder lists its
    /// modules without one that normalizes]
    #[arg(long, action = ArgAction::SetTrue)]
    no_normalize: bool,

    /// File for the vectors: a line of JSON for each text, or with the ending .npy one array of f32
    /// `[texts, width]` [default: JSON on stdout]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Nothing on stderr
    #[arg(short, long, env = "IREE_LLM_QUIET", action = ArgAction::SetTrue,
          value_parser = clap::builder::FalseyValueParser::new())]
    quiet: bool,

    #[command(flatten)]
    engine: EngineArgs,
}

const EXAMPLES: &str = "\
Examples:
  iree-llm embed -m Qwen/Qwen3-Embedding-0.6B 'The capital of China is Beijing.'
  iree-llm embed -m ./Qwen3-Embedding-0.6B --file texts.txt --output vectors.npy
  iree-llm embed -m ./Qwen3-Embedding-0.6B --prefix 'Instruct: Find an answer\nQuery:' 'What is rust?'

A line of output: {\"index\": 0, \"tokens\": 9, \"embedding\": [0.01, ...]}";

/// What is written of a text.
#[derive(Serialize)]
struct Line<'a> {
    index: usize,
    tokens: usize,
    embedding: &'a [f32],
}

fn pooling_parser() -> impl TypedValueParser<Value = Pooling> {
    PossibleValuesParser::new(pooling::NAMES.map(|(name, _)| name)).map(|given| {
        let found = pooling::NAMES.iter().find(|(name, _)| *name == given);
        found.expect("one of the possible values").1
    })
}

impl Args {
    /// Embeds.
    pub fn run(self) -> Result<ExitCode> {
        let texts = self.texts()?;
        ensure!(!texts.is_empty(), "no text: give some, or --file");
        let progress = Progress::new(self.quiet);
        let model = self.model.locate_for(self.engine.load_mode(), &progress)?;
        let said = match self.pooling {
            Some(_) => {
                Said { pooling: self.pooling, ..Said::read(&model.folder).unwrap_or_default() }
            }
            None => Said::read(&model.folder)?,
        };
        let pooling = said.pooling.unwrap_or(Pooling::Last);
        let normalized = !self.no_normalize && said.normalized.unwrap_or(true);
        let tokenizer = model.tokenizer()?;
        let mut tokens = Vec::with_capacity(texts.len());
        for (number, text) in texts.iter().enumerate() {
            let ids = tokenizer.encode(&format!("{}{text}", self.prefix), true)?;
            ensure!(!ids.is_empty(), "text {number} has no tokens");
            tokens.push(ids);
        }
        let engine = self.engine.open_engine(&model, None, None, &progress)?;
        let mut batcher = Batcher::new(engine, &BatcherOptions::default())?;
        let bar = progress.tokens("embedding", tokens.iter().map(Vec::len).sum());
        let counts: Vec<_> = tokens.iter().map(Vec::len).collect();
        let mut numbers = HashMap::new();
        for (number, prompt) in tokens.into_iter().enumerate() {
            let request = Request { prompt, pooling: Some(pooling), ..Request::default() };
            let id = batcher.submit(request).with_context(|| format!("text {number}"))?;
            numbers.insert(id, number);
        }
        let mut vectors = vec![Vec::new(); counts.len()];
        while !batcher.is_idle() {
            for (id, ended) in batcher.advance(&mut |_, _| ControlFlow::Continue(()))? {
                let mut vector = ended.vector.context("a text without a vector")?;
                if normalized {
                    normalize(&mut vector);
                }
                vectors[numbers[&id]] = vector;
            }
            bar.set_position(batcher.statistics().rows);
        }
        bar.finish_and_clear();
        self.write(&vectors, &counts)?;
        Ok(ExitCode::SUCCESS)
    }

    fn texts(&self) -> Result<Vec<String>> {
        let Some(path) = &self.file else { return Ok(self.texts.clone()) };
        let lines: Box<dyn BufRead> = match path.to_str() {
            Some("-") => Box::new(BufReader::new(io::stdin())),
            _ => {
                let file = File::open(path).with_context(|| path.display().to_string())?;
                Box::new(BufReader::new(file))
            }
        };
        lines.lines().map(|line| line.with_context(|| path.display().to_string())).collect()
    }

    fn write(&self, vectors: &[Vec<f32>], counts: &[usize]) -> Result<()> {
        let Some(path) = &self.output else {
            let mut out = io::stdout().lock();
            return lines(&mut out, vectors, counts).context("stdout");
        };
        let file = File::create(path).with_context(|| path.display().to_string())?;
        let mut out = BufWriter::new(file);
        let written = match path.extension().is_some_and(|end| end == "npy") {
            true => npy(&mut out, vectors),
            false => lines(&mut out, vectors, counts),
        };
        written.and_then(|()| out.flush()).with_context(|| path.display().to_string())
    }
}

fn lines(out: &mut impl Write, vectors: &[Vec<f32>], counts: &[usize]) -> io::Result<()> {
    for (index, (vector, tokens)) in vectors.iter().zip(counts).enumerate() {
        serde_json::to_writer(&mut *out, &Line { index, tokens: *tokens, embedding: vector })?;
        out.write_all(b"\n")?;
    }
    Ok(())
}

/// NumPy's format, version 1.0.
fn npy(out: &mut impl Write, vectors: &[Vec<f32>]) -> io::Result<()> {
    const BEFORE: usize = 10;
    let width = vectors.first().map_or(0, Vec::len);
    let mut header = format!(
        "{{'descr': '<f4', 'fortran_order': False, 'shape': ({}, {width}), }}",
        vectors.len()
    );
    let padded = (BEFORE + header.len() + 1).next_multiple_of(64);
    header += &" ".repeat(padded - BEFORE - header.len() - 1);
    header.push('\n');
    out.write_all(b"\x93NUMPY\x01\x00")?;
    out.write_all(&(header.len() as u16).to_le_bytes())?;
    out.write_all(header.as_bytes())?;
    for value in vectors.iter().flatten() {
        out.write_all(&value.to_le_bytes())?;
    }
    Ok(())
}
