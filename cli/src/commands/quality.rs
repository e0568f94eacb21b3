//! `iree-llm quality`: how far the answers of a precision are from float32's.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;

use anyhow::{Context, Result, ensure};
use clap::ArgAction;
use text::Tokenizer;
use xla_session::config::ModelConfig;
use xla_session::{Capabilities, InferenceSession, Opened, Precision};

use crate::bench::pass;
use crate::engine::PlaceArgs;
use crate::lines::read_text;
use crate::model_source::{Model, ModelArgs};
use crate::progress::{Progress, QuietArgs, Work};
use crate::quality::contexts::{self, Source};
use crate::quality::divergence::{self, Surprise, Tally};
use crate::quality::greedy::{self, Agreement};
use crate::quality::report::{Comparison, Report};

/// What to compare and on how much.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,

    /// Text to compare on [default: what the model writes itself; random ids without a tokenizer]
    #[arg(short, long, value_name = "TEXT", group = "input", allow_hyphen_values = true)]
    prompt: Option<String>,

    /// File with the text to compare on; `-` reads stdin
    #[arg(short, long, value_name = "FILE", group = "input")]
    file: Option<PathBuf>,

    /// Most tokens to compare on; f32's logits are kept for all of them
    #[arg(short = 'n', long, value_name = "N", default_value_t = 512,
          value_parser = clap::value_parser!(u32).range(1..))]
    tokens: u32,

    /// A longer text is cut into pieces of this many tokens, each with an empty context before it;
    /// fewer where the context is shorter
    #[arg(long, value_name = "N", default_value_t = 512,
          value_parser = clap::value_parser!(u32).range(1..))]
    window: u32,

    /// Prompts to answer greedily: beginnings of the pieces, up to places that lie evenly
    #[arg(long, value_name = "N", default_value_t = 8,
          value_parser = clap::value_parser!(u32).range(..=65536))]
    prompts: u32,

    /// Most tokens of each greedy answer
    #[arg(long, value_name = "N", default_value_t = 48,
          value_parser = clap::value_parser!(u32).range(1..))]
    greedy_tokens: u32,

    /// What to compare with f32, one or several: stored, bf16, int8, w8a8,
    /// int4
    #[arg(long, value_name = "NAME,…", default_value = "int8,int4", value_delimiter = ',',
          value_parser = Precision::from_str)]
    precision: Vec<Precision>,

    /// Another file or folder of the same model, quantised, to compare as it is stored; may be given
    /// several times
    #[arg(long = "with", value_name = "MODEL")]
    others: Vec<String>,

    /// Print one JSON object instead of a table
    #[arg(long, action = ArgAction::SetTrue)]
    json: bool,

    #[command(flatten)]
    quiet: QuietArgs,

    #[command(flatten)]
    place: PlaceArgs,
}

const EXAMPLES: &str = "\
Examples:
  iree-llm quality                                    the default model in int8 and int4
  iree-llm quality -m ./Llama-3.2-1B -f book.txt -n 2048
  iree-llm quality -m ./Llama-3.2-1B --precision bf16,int8,int4 --prompts 32
  iree-llm quality -m ./Llama-3.2-1B --with ./Llama-3.2-1B-Q4_K_M.gguf --with ./Llama-3.2-1B-4bit
  iree-llm quality -m ./Llama-3.2-1B --json | jq '.precisions[].kl.mean'

The same tokens run through the model in f32 and then in each precision, and through what else was \
made of it (--with). In the table:
  KL               Kullback-Leibler divergence of the distributions of the next token, in nats:
                   mean, what 99% of the positions do not exceed, and the largest
  same top token   positions at which both find the same token most likely
  logit error      mean distance of a logit from f32's
  perplexity       of the tokens; that of random ones says nothing
  greedy           answers of the most likely tokens: how many come before the first that differs,
                   of how many there are, and how many answers are the same to the end
Models of one size differ a lot in what they lose: measure yours, on text like yours.";

/// What models go on with that have no token for the beginning of a text.
const STORY: &str = "Once upon a time";

/// What the model is asked, and what it says in float32.
struct Reference {
    source: Source,
    contexts: Vec<Vec<u32>>,
    prompts: Vec<Vec<u32>>,
    /// After every token of every context, `[tokens, vocab_size]`.
    logits: Vec<f32>,
    perplexity: Option<f64>,
    answers: Vec<Vec<u32>>,
    capabilities: Capabilities,
}

impl Args {
    /// Compares.
    pub fn run(self) -> Result<ExitCode> {
        let input = self.input()?;
        let model = self.model.locate(&self.quiet.progress())?;
        let config = ModelConfig::from_dir(&model.folder)?;
        // Before anything runs, which takes long.
        let others = self.others.iter().map(|name| self.other(name, config.vocab_size));
        let others = others.collect::<Result<Vec<_>>>()?;
        let eos = config.eos_token_ids;
        let tokenizer = match &input {
            Some(_) => Some(model.tokenizer()?),
            None => model.find_tokenizer()?,
        };
        let reference = self.reference(&model, input.as_deref(), tokenizer.as_ref(), &eos)?;
        let compare = |&precision: &Precision| {
            self.compare(precision.as_str(), &model, precision, &reference, &eos)
        };
        let mut precisions = self.precision.iter().map(compare).collect::<Result<Vec<_>>>()?;
        for other in &others {
            precisions.push(self.compare(
                &other.name,
                other,
                Precision::Stored,
                &reference,
                &eos,
            )?);
        }
        let report = Report {
            model: model.name,
            engine: reference.capabilities.engine.to_owned(),
            device: reference.capabilities.device,
            source: reference.source,
            tokens: reference.contexts.iter().map(Vec::len).sum(),
            contexts: reference.contexts.len(),
            prompts: reference.prompts.len(),
            greedy_tokens: self.greedy_tokens as usize,
            perplexity: reference.perplexity,
            precisions,
        };
        let out = if self.json { serde_json::to_string(&report)? + "\n" } else { report.table() };
        std::io::stdout().write_all(out.as_bytes())?;
        Ok(ExitCode::SUCCESS)
    }

    /// Another form of a model that knows `vocab_size` tokens.
    fn other(&self, name: &str, vocab_size: usize) -> Result<Model> {
        let other = ModelArgs { model: Some(name.into()) };
        let other = other.locate(&self.quiet.progress())?;
        let own = ModelConfig::from_dir(&other.folder)?.vocab_size;
        ensure!(
            own == vocab_size,
            "{name}: knows {own} tokens, but the model that it is compared with {vocab_size}: give \
             another form of the same model"
        );
        Ok(other)
    }

    fn input(&self) -> Result<Option<String>> {
        let text = match (&self.prompt, &self.file) {
            (Some(text), _) => text.clone(),
            (None, Some(path)) => read_text(path)?,
            (None, None) => return Ok(None),
        };
        ensure!(!text.is_empty(), "the text is empty: give at least one character");
        Ok(Some(text))
    }

    fn reference(
        &self,
        model: &Model,
        input: Option<&str>,
        tokenizer: Option<&Tokenizer>,
        eos: &[u32],
    ) -> Result<Reference> {
        // Exact, whatever is asked of the others.
        let place = self.place.with_default_kv_cache();
        let (mut opened, progress) = self.open(&place, model, Precision::F32)?;
        let session = &mut *opened.session;
        let capabilities = session.capabilities().clone();
        let (source, contexts) = self.contexts(session, &progress, input, tokenizer, eos)?;
        let prompts = contexts::prompts(&contexts, self.prompts as usize);
        let (mut logits, mut surprise) = (Vec::new(), Surprise::default());
        let work = self.work(&progress, Precision::F32, &contexts, &prompts);
        let ran = |tokens| work.add(tokens as u64);
        divergence::force(session, &contexts, &ran, |position, next| {
            logits.extend(position);
            surprise.add(&divergence::log_softmax(position), next);
        })
        .context("f32")?;
        let tokens = self.greedy_tokens as usize;
        let answers = greedy::answers(&opened.model, &prompts, tokens, eos, &ran)?;
        let perplexity = surprise.perplexity();
        Ok(Reference { source, contexts, prompts, logits, perplexity, answers, capabilities })
    }

    /// The tokens to compare on: of the text, else the model's own, else random ones.
    fn contexts(
        &self,
        session: &mut dyn InferenceSession,
        progress: &Progress,
        input: Option<&str>,
        tokenizer: Option<&Tokenizer>,
        eos: &[u32],
    ) -> Result<(Source, Vec<Vec<u32>>)> {
        let Capabilities { vocab_size, context, .. } = *session.capabilities();
        // The longest prompt is a whole piece, and its answer needs room too.
        let room = context.saturating_sub(self.greedy_tokens as usize);
        let (window, most) = (room.min(self.window as usize), self.tokens as usize);
        ensure!(
            window > 0,
            "the context holds {context} tokens, which leaves none before an answer of {}: raise \
             --context or lower --greedy-tokens",
            self.greedy_tokens
        );
        let Some(tokenizer) = tokenizer else {
            let ids: Vec<_> = pass::tokens(vocab_size).take(most).collect();
            return Ok((Source::Random, contexts::cut(&[], &ids, window, most)));
        };
        let begin = tokenizer.encode("", true)?;
        if let Some(input) = input {
            let ids = tokenizer.encode(input, false)?;
            return Ok((Source::Given, contexts::cut(&begin, &ids, window, most)));
        }
        let begin = if begin.is_empty() { tokenizer.encode(STORY, true)? } else { begin };
        let work = progress.tokens("writing in f32", most);
        let ran = |tokens| work.add(tokens as u64);
        let own = contexts::write(session, &begin, eos, window, most, &ran)?;
        Ok((Source::Own, own))
    }

    fn compare(
        &self,
        name: &str,
        model: &Model,
        precision: Precision,
        reference: &Reference,
        eos: &[u32],
    ) -> Result<Comparison> {
        let Reference { contexts, prompts, .. } = reference;
        let (mut opened, progress) = self.open(&self.place, model, precision)?;
        let mut expected = reference.logits.chunks_exact(reference.capabilities.vocab_size);
        let mut tally = Tally::default();
        let work = self.work(&progress, precision, contexts, prompts);
        let ran = |tokens| work.add(tokens as u64);
        divergence::force(&mut *opened.session, contexts, &ran, |position, next| {
            let expected = expected.next().expect("the same contexts have as many positions");
            tally.add(expected, position, next);
        })
        .with_context(|| name.to_owned())?;
        let tokens = self.greedy_tokens as usize;
        let answers = greedy::answers(&opened.model, prompts, tokens, eos, &ran)?;
        Ok(Comparison {
            precision: name.to_owned(),
            divergence: tally.finish().context("there are no tokens to compare on")?,
            greedy: Agreement::of(&reference.answers, &answers),
        })
    }

    fn open(
        &self,
        place: &PlaceArgs,
        model: &Model,
        precision: Precision,
    ) -> Result<(Opened, std::sync::Arc<Progress>)> {
        let progress = self.quiet.progress();
        let opened = place.open(model, precision, None, progress.observer())?;
        progress.finish();
        Ok((opened, progress))
    }

    /// The tokens of all contexts and answers, as they are run.
    fn work<'a>(
        &self,
        progress: &'a Progress,
        precision: Precision,
        contexts: &[Vec<u32>],
        prompts: &[Vec<u32>],
    ) -> Work<'a> {
        let forced: usize = contexts.iter().map(Vec::len).sum();
        let total = forced + prompts.len() * self.greedy_tokens as usize;
        progress.tokens(format!("running in {}", precision.as_str()), total)
    }
}
