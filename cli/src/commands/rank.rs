//! `iree-llm rank`: how well documents answer a query.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use clap::ArgAction;
use iree_llm::Llm;
use serde_json::json;
use xla_session::Batcher;
use xla_session::batching::{BatcherOptions, Gap};

use crate::engine::{EngineArgs, KvArgs};
use crate::interrupt;
use crate::lines::{Lines, Next};
use crate::model_source::ModelArgs;
use crate::progress::QuietArgs;

/// Say how well documents answer a query
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,

    /// What is looked for
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    query: String,

    /// Documents; one that begins with `-` goes behind a `--`
    #[arg(value_name = "DOCUMENT")]
    documents: Vec<String>,

    /// File with a document on each line; `-` reads stdin
    #[arg(short, long, value_name = "FILE", conflicts_with = "documents")]
    file: Option<PathBuf>,

    /// What documents are to be good for [default: what the model's folder says, or a search on the web]; models that
    /// are not asked for "yes" or "no" take none
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    instruction: Option<String>,

    /// Cut off the end of documents that are too long for the model; else they are an error
    #[arg(long, action = ArgAction::SetTrue)]
    truncate: bool,

    /// Only the best, so many
    #[arg(long, value_name = "N")]
    top: Option<usize>,

    #[command(flatten)]
    kv: KvArgs,

    #[command(flatten)]
    quiet: QuietArgs,

    #[command(flatten)]
    engine: EngineArgs,
}

const EXAMPLES: &str = "\
Examples:
  iree-llm rank -m Qwen/Qwen3-Reranker-0.6B --query 'Where is Oslo?' 'In Norway.' 'It rains.'
  iree-llm rank -m ./Qwen3-Reranker-0.6B --query 'Where is Oslo?' --file passages.txt --top 5
  iree-llm rank -m BAAI/bge-reranker-v2-m3 --query 'Where is Oslo?' --file passages.txt --truncate

A line of output, the best first: {\"index\": 0, \"score\": 0.97, \"document\": \"Oslo is in Norway.\"}
A score is from 0 to 1: how likely the model's \"yes\" is beside its \"no\", or the sigmoid of what a model gives that reads \
query and document at once (BERT and its kin). Ctrl-C ranks what has been read so far; \
the exit code is 130.";

/// Most documents that run together.
const AT_ONCE: usize = 16;

impl Args {
    /// Ranks.
    pub fn run(self) -> Result<ExitCode> {
        let progress = self.quiet.progress();
        let documents = self.documents()?;
        let model = self.model.locate_for(self.engine.load_mode(), &progress)?;
        let (tokenizer, template) = (model.tokenizer()?, model.find_chat_template()?);
        let ranking = model.files().ranking(&tokenizer);
        let engine = self.engine.open_engine(&model, Some(&self.kv), None, &progress)?;
        let mut options = BatcherOptions::of(&engine);
        options.gap = Gap::Nothing;
        // Ctrl-C waits for those that run.
        let turn = options.scheduler.most_running.min(AT_ONCE);
        let batcher = Batcher::new(engine, &options)?;
        let no_vectors = Err(anyhow!("none are asked for").into());
        let llm = Llm::new(&model.name, batcher, tokenizer, template, no_vectors, ranking)?;
        let ranking = llm.ranking().map_err(|why| anyhow!("{}: {why}", model.name))?;
        let most = self.truncate.then(|| llm.context());
        // What is found in its turn only would make all before it for nothing.
        for (at, document) in documents.iter().enumerate() {
            let asked = ranking.request(self.instruction.as_deref(), &self.query, document, most);
            let (asked, _) = asked.with_context(|| format!("document {}", at + 1))?;
            llm.room(&asked.prompt).with_context(|| format!("document {}", at + 1))?;
        }

        let start = Instant::now();
        let bytes = |some: &[String]| some.iter().map(|it| it.len() as u64).sum();
        let bar = progress.prompts(Some(bytes(&documents)));
        let mut ranks = Vec::with_capacity(documents.len());
        let interruptible = interrupt::generating();
        for some in documents.chunks(turn) {
            if interrupt::stopped() {
                break;
            }
            let scores =
                llm.blocking_rank_within(self.instruction.as_deref(), &self.query, some, most)?;
            ranks.extend(scores.into_iter().zip(ranks.len()..));
            bar.inc(bytes(some));
            bar.set_message(format!("{} documents", ranks.len()));
        }
        let interrupted = interrupt::stopped();
        drop(interruptible);
        bar.finish_and_clear();
        let (read, seconds) = (ranks.len(), start.elapsed().as_secs_f64());
        // Those that are as good stay in their order.
        ranks.sort_by(|(one, _), (other, _)| other.total_cmp(one));
        let mut stdout = progress.stdout();
        for (score, index) in ranks.into_iter().take(self.top.unwrap_or(usize::MAX)) {
            let line = json!({"index": index, "score": score, "document": documents[index]});
            writeln!(stdout, "{line}")?;
        }
        stdout.flush()?;
        progress.say(&format!("ranked {read} of {} in {seconds:.2} s", documents.len()));
        Ok(interrupt::exit_code(interrupted))
    }

    /// All that there are.
    fn documents(&self) -> Result<Vec<String>> {
        let lines = match &self.file {
            Some(path) => Lines::open(path)?,
            None => Lines::given(&self.documents),
        };
        let mut documents = Vec::new();
        while let Next::Line(line) = lines.next(Duration::MAX)? {
            let number = line.number;
            let text = String::from_utf8(line.text);
            documents
                .push(text.with_context(|| format!("{}: line {number}: no UTF-8", lines.name))?);
        }
        ensure!(!documents.is_empty(), "no document: give some, or --file with a line for each");
        Ok(documents)
    }
}
