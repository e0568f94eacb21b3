//! `iree-llm embed`: vectors of texts.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Error, Result, bail, ensure};
use clap::ArgAction;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use indicatif::ProgressBar;
use text::Tokenizer;
use tokio::task::JoinSet;
use xla_session::batching::{Answer, BatcherOptions, Gap, Piece, Request, Worker};
use xla_session::{Batcher, Pooling};

use crate::engine::{EngineArgs, KvArgs};
use crate::flights::{self, Work, has_stopped};
use crate::interrupt;
use crate::lines::{Line, Lines, Next};
use crate::model_source::ModelArgs;
use crate::output;
use crate::progress::{Progress, QuietArgs};
use crate::vectors::{Outcome, Vectors};
use iree_llm::sentence_transformers::{self, Said};

/// Make vectors of texts: their embeddings
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,

    /// Texts, a vector for each; one that begins with `-` goes behind a `--`
    #[arg(value_name = "TEXT")]
    texts: Vec<String>,

    /// File with a text on each line; `-` reads stdin
    #[arg(short, long, value_name = "FILE", conflicts_with = "texts")]
    file: Option<PathBuf>,

    /// What goes before each text: the instruction that some models want before queries [default:
    /// what the model's folder says goes before all texts, which is nothing mostly]
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    prefix: Option<String>,

    /// The same by the name that the model's folder has for it, as `query`
    #[arg(long, value_name = "NAME", conflicts_with = "prefix")]
    prompt_name: Option<String>,

    /// Which hidden states a vector is made of [default: what the model's folder says, else last, or mean of an encoder]
    #[arg(long, value_name = "NAME", value_parser = pooling_parser())]
    pooling: Option<Pooling>,

    /// Leave vectors as long as they are [default: length 1, unless the model's folder lists its
    /// modules without one that normalizes]
    #[arg(long, action = ArgAction::SetTrue)]
    no_normalize: bool,

    /// Cut off the end of texts that are longer than the model was made for; else those that its context has no room for are
    /// an error
    #[arg(long, action = ArgAction::SetTrue)]
    truncate: bool,

    /// Only the first numbers of a vector, so many: for models that were trained for it
    /// (Matryoshka), as Qwen3-Embedding
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    dimensions: Option<u32>,

    /// File for the vectors: a line of JSON for each text, or with the ending .npy one array of f32
    /// `[texts, width]`; `-` is stdout
    #[arg(short, long, value_name = "FILE", default_value = "-")]
    output: PathBuf,

    #[command(flatten)]
    kv: KvArgs,

    #[command(flatten)]
    quiet: QuietArgs,

    #[command(flatten)]
    engine: EngineArgs,
}

const EXAMPLES: &str = "\
Examples:
  iree-llm embed -m Qwen/Qwen3-Embedding-0.6B 'The capital of China is Beijing.'
  iree-llm embed -m BAAI/bge-small-en-v1.5 --truncate --file texts.txt --output vectors.npy
  iree-llm embed -m ./Qwen3-Embedding-0.6B --file texts.txt --output vectors.npy
  iree-llm embed -m ./Qwen3-Embedding-0.6B --prompt-name query --dimensions 256 'What is rust?'
  iree-llm embed -m ./Qwen3-Embedding-0.6B --prefix 'Instruct: Find an answer\nQuery:' 'What is rust?'

A line of output: {\"index\": 0, \"tokens\": 9, \"embedding\": [0.01, ...]}
Vectors are written in the order of the texts, as they come. A text that gets none has \"error\" in its \
line, NaN in an array, and the exit code is 1. Ctrl-C keeps those of the first texts; the exit code is 130.";

fn pooling_parser() -> impl TypedValueParser<Value = Pooling> {
    PossibleValuesParser::new(sentence_transformers::NAMES.map(|(name, _)| name)).map(|given| {
        let found = sentence_transformers::NAMES.iter().find(|(name, _)| *name == given);
        found.expect("one of the possible values").1
    })
}

impl Args {
    /// Embeds.
    pub fn run(self) -> Result<ExitCode> {
        ensure!(self.file.is_some() || !self.texts.is_empty(), "no text: give some, or --file");
        let progress = self.quiet.progress();
        let model = self.model.locate_for(self.engine.load_mode(), &progress)?;
        let said = Said::read(&model.folder, self.pooling)?;
        let prefix = match &self.prefix {
            Some(prefix) => prefix,
            None => said.prompts.find(self.prompt_name.as_deref())?,
        };
        let mut vectors_of = iree_llm::Vectors::of(&said, Some(prefix))?;
        vectors_of.normalized &= !self.no_normalize;
        if self.prefix.is_none() && self.prompt_name.is_none() && !prefix.is_empty() {
            progress.say(&format!("before each text: {prefix:?}"));
        }
        let tokenizer = model.tokenizer()?;
        let texts = match &self.file {
            Some(path) => Lines::open(path)?,
            None => Lines::given(&self.texts),
        };
        let output = output::open(&self.output, self.file.as_deref())?;
        let array = self.output.extension().is_some_and(|end| end == "npy");
        if let (true, Some(file)) = (array, &output) {
            // How many rows there are is written at the end, to the beginning.
            ensure!(file.is_regular()?, "{}: an array goes to a file", self.output.display());
        }
        // Without any the output keeps what it has.
        let first = match texts.next(Duration::MAX)? {
            Next::Line(line) => line,
            Next::Later | Next::End => bail!("no text: give some, or --file with a line for each"),
        };

        let engine = self.engine.open_engine(&model, Some(&self.kv), None, &progress)?;
        engine.check_hidden()?;
        let hidden_size = engine.model().config().hidden_size;
        vectors_of.check(hidden_size)?;
        let (most, pages) = (vectors_of.width(hidden_size), engine.statistics());
        let context = engine.context().min(pages.pages * pages.page_tokens);
        let cut = self.truncate.then(|| vectors_of.most_tokens(context));
        let width = self.dimensions.map_or(most, |it| it as usize);
        ensure!(width <= most, "--dimensions {width}: the model's vectors have {most}");
        let mut options = BatcherOptions::of(&engine);
        options.gap = Gap::Nothing;
        let batcher = Batcher::new(engine, &options)?;
        let written = || self.output.display().to_string();
        let vectors = match output {
            None => Vectors::lines(progress.stdout()),
            Some(file) if array => Vectors::array(file.begin()?, width).with_context(written)?,
            Some(file) => Vectors::lines(file.begin()?),
        };
        let mut embedding = Embedding {
            worker: Worker::start(batcher, &model.name)?,
            tokenizer,
            vectors_of,
            width,
            cut,
            vectors,
            output: &self.output,
            file: self.file.as_ref().map(|_| &*texts.name),
            progress: &progress,
            bar: progress.prompts(texts.bytes),
            counts: Counts::default(),
        };
        let start = Instant::now();
        // Steps are full also while the texts that they have done are written.
        let window = 2 * options.scheduler.most_running;
        let end = flights::fly(Some(first), &texts, window, &mut embedding);
        let Embedding { vectors, counts, bar, .. } = embedding;
        bar.finish_and_clear();
        // Also behind an error: what is done is kept.
        let kept = vectors.finish().with_context(written)?;
        let (_, interrupted) = end?;
        progress.say(&counts.line(kept, start.elapsed()));
        Ok(match (interrupted, counts.failed) {
            (true, _) => interrupt::exit_code(true),
            (false, 0) => ExitCode::SUCCESS,
            (false, _) => ExitCode::FAILURE,
        })
    }
}

/// What has been done.
#[derive(Default)]
struct Counts {
    read: usize,
    failed: usize,
    tokens: usize,
}

impl Counts {
    /// One line for people; `kept` texts are in the output.
    fn line(&self, kept: usize, took: Duration) -> String {
        let embedded = kept - self.failed.min(kept);
        let others = [self.failed, self.read - kept];
        flights::summary(("embedded", embedded), self.tokens, others, took)
    }
}

/// A text whose vector comes.
pub struct Flight {
    index: usize,
    bytes: usize,
    tokens: usize,
}

/// Texts on their way to vectors.
struct Embedding<'a> {
    worker: Worker,
    tokenizer: Tokenizer,
    vectors_of: iree_llm::Vectors,
    /// Numbers of a vector that are kept.
    width: usize,
    /// Most tokens of a text, whose end is cut off.
    cut: Option<usize>,
    vectors: Vectors,
    output: &'a Path,
    /// What the texts are in, if it is a file.
    file: Option<&'a str>,
    progress: &'a Progress,
    bar: ProgressBar,
    counts: Counts,
}

impl Embedding<'_> {
    fn prompt(&self, text: Vec<u8>) -> Result<Vec<u32>> {
        let text = String::from_utf8(text).context("no UTF-8")?;
        let text = self.vectors_of.text(&text);
        let prompt = match self.cut {
            None => self.tokenizer.encode(&text, true)?,
            Some(most) => self.tokenizer.encode_within(&text, most)?,
        };
        ensure!(!prompt.is_empty(), "it has no tokens");
        Ok(prompt)
    }
}

impl Work for Embedding<'_> {
    type Done = (Flight, Result<Vec<f32>>);

    fn begin(&mut self, Line { text, .. }: Line, flights: &mut JoinSet<Self::Done>) -> Result<()> {
        let (index, bytes) = (self.counts.read, text.len() + 1);
        self.counts.read += 1;
        match self.prompt(text) {
            Ok(prompt) => {
                let flight = Flight { index, bytes, tokens: prompt.len() };
                let pooling = Some(self.vectors_of.pooling);
                let request = Request { prompt, pooling, ..Request::default() };
                let answer = self.worker.submit(request);
                flights.spawn(async move { (flight, vector(answer).await) });
                Ok(())
            }
            Err(error) => self.end((Flight { index, bytes, tokens: 0 }, Err(error))),
        }
    }

    fn end(&mut self, (flight, vector): Self::Done) -> Result<()> {
        self.bar.inc(flight.bytes as u64);
        let outcome: Outcome = match vector {
            Ok(vector) => {
                let vector = self.vectors_of.finish(vector, Some(self.width));
                self.counts.tokens += flight.tokens;
                Ok((flight.tokens, vector))
            }
            Err(error) if has_stopped(&error) => return Err(error),
            Err(error) => {
                self.counts.failed += 1;
                let error = crate::chain(&error);
                let number = flight.index + 1;
                self.progress.report(&match self.file {
                    Some(name) => format!("error: {name}: line {number}: {error}"),
                    None => format!("error: text {number}: {error}"),
                });
                Err(error)
            }
        };
        let written = self.vectors.put(flight.index, outcome);
        written.with_context(|| self.output.display().to_string())
    }

    fn show(&self) {
        self.bar.set_message(format!("{} tokens", self.counts.tokens));
    }
}

/// What comes of a request for a vector.
async fn vector(mut answer: Answer) -> Result<Vec<f32>> {
    let mut vector = None;
    while let Some(piece) = answer.recv().await {
        match piece {
            Ok(Piece::Ended(ended)) => vector = ended.vector,
            Ok(Piece::Token(_)) => {}
            Err(error @ xla_session::Error::RequestTooLarge { .. }) => {
                return Err(Error::from(error).context("raise --kv-memory"));
            }
            Err(error) => return Err(error.into()),
        }
    }
    vector.context("it has no vector")
}
