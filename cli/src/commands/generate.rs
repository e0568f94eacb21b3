//! `iree-llm generate`: answer a prompt, or go on with it.

use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::ArgAction;
use clap::builder::FalseyValueParser;
use iree_llm::{Form, NO_INFILL};
use text::{ChatTemplate, Infill, Message, Place, RenderOptions, StopStrings, Tokenizer};
use xla_session::batching::{BatcherOptions, Gap};
use xla_session::config::ModelConfig;
use xla_session::sample::SamplerOptions;
use xla_session::{Batcher, GenerateOptions};

use crate::answer::{self, Reading};
use crate::bench::memory;
use crate::engine::{EngineArgs, KvArgs};
use crate::form::{FormArgs, Keeper, Kept};
use crate::interrupt;
use crate::lines::{Lines, read_text};
use crate::model_source::{Model, ModelArgs};
use crate::output;
use crate::progress::{Progress, QuietArgs};
use crate::prompts::request::Defaults;
use crate::prompts::run::{Output, Prompts, Summary};
use crate::readable::Writing;
use crate::report::{Drafts, Report, Seconds, peak_memory};
use crate::sampling::SamplingArgs;
use crate::speculation::SpeculationArgs;

/// What the memory is for here.
const OF_PROMPTS: &str = "Memory for keys and values of those --prompts that run at a time, in MiB [default: 16 \
                          contexts, at most 2048]";

/// What to generate from and how.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
#[command(mut_arg("kv_memory", |it| it.help(OF_PROMPTS).long_help(None)))]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,

    /// What to say to the model, or with --raw and to models without a chat template the text to go
    /// on with; `-` reads stdin, as does a pipe when no prompt is given [default: a story]
    #[arg(short, long, value_name = "TEXT", group = "input", allow_hyphen_values = true)]
    prompt: Option<String>,

    /// File with the prompt (without its last line's end, as with stdin, which is `-`)
    #[arg(long, value_name = "FILE", group = "input")]
    prompt_file: Option<PathBuf>,

    /// Token ids to go on with, taken as they are: 5,17,23 (needs no tokenizer)
    #[arg(long, value_name = "IDS", group = "input", value_delimiter = ',',
          value_parser = token_id, conflicts_with_all = ["chat", "system", "echo"])]
    prompt_tokens: Option<Vec<u32>>,

    /// File of many prompts, answered together; `-` reads stdin. Each line is a JSON object with
    /// "prompt" (with "suffix" to fill in what stands between them) or "messages" (always through the
    /// chat template), and if they are to differ from the flags "max_tokens", "temperature", "top_p", "top_k", "seed", "stop". The answers are
    /// JSON lines too, in the order in which they are done, with the "id" of the line, or its
    /// number
    #[arg(long, value_name = "FILE", group = "input", conflicts_with_all = ["echo", "draft_model"])]
    prompts: Option<PathBuf>,

    /// Where the answers to --prompts go; `-` is stdout
    #[arg(long, value_name = "FILE", requires = "prompts", default_value = "-",
          conflicts_with_all = ["prompt", "prompt_file", "prompt_tokens"])]
    output: PathBuf,

    #[command(flatten)]
    kv: KvArgs,

    /// Take the prompt as a user's message and let the model answer, by its chat template (the
    /// default where it has one)
    #[arg(long, overrides_with = "raw")]
    chat: bool,

    /// Take the prompt as it is, and go on with it (the default where the model has no chat
    /// template)
    #[arg(long, overrides_with = "chat")]
    raw: bool,

    /// System message before the prompt; implies --chat
    #[arg(long, value_name = "TEXT", conflicts_with = "raw")]
    system: Option<String>,

    /// Fill in what stands between the prompt and this text, as models of code have been trained to; implies --raw. With
    /// --echo all three are printed
    #[arg(long, value_name = "TEXT", group = "behind", allow_hyphen_values = true,
          conflicts_with_all = ["chat", "system", "prompt_tokens", "prompts"])]
    suffix: Option<String>,

    /// File with that text; `-` reads stdin
    #[arg(long, value_name = "FILE", group = "behind",
          conflicts_with_all = ["chat", "system", "prompt_tokens", "prompts"])]
    suffix_file: Option<PathBuf>,

    /// Most tokens to generate
    #[arg(short = 'n', long, env = "IREE_LLM_MAX_TOKENS", value_name = "N", default_value_t = 256)]
    max_tokens: usize,

    /// End before this text; may be given several times
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    stop: Vec<String>,

    /// Go on past the model's end of text
    #[arg(long)]
    ignore_eos: bool,

    /// Print the prompt before what follows it
    #[arg(long, conflicts_with = "json")]
    echo: bool,

    /// Print one JSON object at the end instead of the text as it comes; answers to --prompts are JSON
    /// anyway
    #[arg(long, env = "IREE_LLM_JSON", value_parser = FalseyValueParser::new(),
          action = ArgAction::SetTrue)]
    json: bool,

    #[command(flatten)]
    quiet: QuietArgs,

    #[command(flatten)]
    form: FormArgs,

    #[command(flatten)]
    sampling: SamplingArgs,

    #[command(flatten)]
    speculation: SpeculationArgs,

    #[command(flatten)]
    engine: EngineArgs,
}

const EXAMPLES: &str = "\
Examples:
  iree-llm generate                                       a story from the default model
  iree-llm generate --raw -p 'One day' -n 100 --temp 0.8 --seed 7
  iree-llm generate -m ./Llama-3.2-1B-Instruct -p 'Why is the sky blue?'
  iree-llm generate -m Qwen/Qwen2.5-0.5B --raw --prompt-file in.txt > out.txt
  git diff | iree-llm generate -m ./model --system 'Review this change.'
  iree-llm generate -m ./model --prompt-tokens 5,17,23 --json | jq .tokens
  iree-llm generate -m ./model --prompts questions.jsonl --output answers.jsonl
  iree-llm generate -p 'Name a king.' --json-schema person.json
  iree-llm generate -m ./Qwen2.5-Coder-1.5B -p 'fn add(' --suffix ') -> i32 {' --echo
  iree-llm generate -m ./Qwen2.5-7B --draft-model ./Qwen2.5-1.5B --raw -p 'Rust is'
  echo '{\"id\": 7, \"prompt\": \"One day\"}' | iree-llm generate --prompts -

stdout carries the generated text alone (or the JSON object); all else goes to stderr.
Ctrl-C ends the text after the current token, a second one the program; the exit code is 130.";

const STORY: &str = "Once upon a time";
const QUESTION: &str = "Tell me a story.";

/// What the model is to go on with.
struct Prompt {
    tokens: Vec<u32>,
    /// What to print before the answer, and behind it.
    echo: Option<(String, String)>,
    /// What ends the answer besides the model's end of text.
    ends: Vec<u32>,
    /// How the answer is written, where that is more than text.
    writing: Writing,
    /// The prompt of a chat.
    chat: Option<text::Prompt>,
}

impl Args {
    /// Generates.
    pub fn run(self) -> Result<ExitCode> {
        let progress = self.quiet.progress();
        if let Some(prompts) = &self.prompts {
            return self.answer_prompts(prompts, &progress);
        }
        // A flag that is out of range is one before anything is read.
        self.sampling.sampler(&SamplerOptions::default())?;
        StopStrings::new(&self.stop).context("--stop")?;
        let form = self.form.form()?;
        let stdin = Some(Path::new("-"));
        let is_twice = self.suffix_file.as_deref() == stdin
            && (self.prompt.as_deref() == Some("-") || self.prompt_file.as_deref() == stdin);
        ensure!(!is_twice, "the prompt and the text behind it cannot both be stdin");
        let suffix = self.suffix_file.as_deref().map(read_text).transpose()?;
        let suffix = suffix.or_else(|| self.suffix.clone());
        let input = if self.prompt_tokens.is_some() { None } else { self.input(&progress)? };
        let model = self.model.locate_for(self.engine.load_mode(), &progress)?;
        let config = ModelConfig::from_dir(&model.folder)?;
        let sampler = self.sampling.sampler(&self.sampling.recommended.of(&config))?;
        let tokenizer = match &self.prompt_tokens {
            Some(_) if self.stop.is_empty() => model.find_tokenizer()?,
            _ => Some(model.tokenizer()?),
        };
        let prompt = match suffix {
            Some(suffix) => self.between(&input.unwrap_or_default(), suffix, tokenizer.as_ref())?,
            None => self.prompt(input, tokenizer.as_ref(), &model)?,
        };

        let keeper = self.keeper(form, tokenizer.as_ref(), &config)?;
        let kept = keeper.map(|it| it.keep(prompt.chat.as_ref())).transpose()?;
        let (constraint, failure) =
            kept.map(|it| (Box::new(it.constraint) as _, it.failure)).unzip();
        let mut opened = self.engine.open(&model, &progress)?;
        let speculation = match constraint.is_some() {
            false => self.speculation.speculation(&*opened.session, &self.engine, &progress)?,
            true => {
                if self.speculation.is_asked_for() {
                    progress.say("no drafts: the answer is kept to a form");
                }
                None
            }
        };
        // A form says for itself where it ends.
        let ends = if constraint.is_none() { prompt.ends } else { Vec::new() };
        let eos = [config.eos_token_ids, ends].concat();
        let eos = if self.ignore_eos { Vec::new() } else { eos };
        let mut options = GenerateOptions {
            max_tokens: self.max_tokens,
            eos,
            sampler,
            constraint,
            speculation,
            ..GenerateOptions::default()
        };
        let mut stdout = io::stdout().lock();
        let mut show = |piece: &str| {
            stdout.write_all(piece.as_bytes())?;
            stdout.flush()
        };
        if let Some((before, _)) = &prompt.echo {
            show(before)?;
        }
        let reading =
            Reading { tokenizer: tokenizer.as_ref(), writing: prompt.writing, stops: &self.stop };
        let answer = answer::generate(
            &mut *opened.session,
            &prompt.tokens,
            &prompt.tokens,
            &mut options,
            reading,
            |piece| if self.json { Ok(()) } else { show(piece) },
        )?;
        Kept::check(failure.as_ref())?;

        let timings = Seconds::new(opened.load, opened.compile, &answer);
        let peak_bytes = memory::peak();
        if self.json {
            let report = Report {
                prompt_tokens: &prompt.tokens,
                tokens: &answer.generation.tokens,
                text: answer.text.as_deref(),
                finish_reason: answer.finish_reason(),
                drafts: Drafts::new(answer.generation.drafts),
                timings,
                peak_bytes,
                model: &model.name,
                device: &opened.session.capabilities().device,
                precision: opened.precision.as_str(),
            };
            show(&(serde_json::to_string(&report)? + "\n"))?;
        } else if tokenizer.is_some() {
            let behind = prompt.echo.map(|it| it.1).unwrap_or_default();
            show(&(behind + "\n"))?;
        } else {
            let ids: Vec<_> = answer.generation.tokens.iter().map(u32::to_string).collect();
            show(&(ids.join(",") + "\n"))?;
        }
        let drafts = Drafts::new(answer.generation.drafts).line();
        progress.say(&(timings.line() + &drafts + &peak_memory(peak_bytes)));
        Ok(interrupt::exit_code(answer.interrupted))
    }

    /// The text that was given, if any: read before anything slow begins.
    fn input(&self, progress: &Arc<Progress>) -> Result<Option<String>> {
        let text = match (&self.prompt, &self.prompt_file) {
            (Some(text), _) if text == "-" => read_text(Path::new("-"))?,
            (Some(text), _) => text.clone(),
            (None, Some(path)) => read_text(path)?,
            (None, None) => {
                let is_read = self.suffix_file.as_deref() == Some(Path::new("-"));
                if is_read || !stdin_is_data() {
                    return Ok(None);
                }
                let text = read_piped(progress)?;
                // Whoever fills a pipe wants no story when there was nothing to say.
                let fix = "give a prompt with -p, or </dev/null for the default one";
                ensure!(!text.is_empty(), "stdin is empty: {fix}");
                text
            }
        };
        let text = match &self.prompt {
            Some(prompt) if prompt != "-" => text,
            // A place at the beginning of a line is none at the end of the one before.
            _ if self.is_between() => return Ok(Some(text)),
            // The line's end that editors and `echo` leave is not part of the text.
            _ => text.strip_suffix('\n').map(|it| it.trim_end_matches('\r').into()).unwrap_or(text),
        };
        let is_there = !text.is_empty() || self.is_between();
        ensure!(is_there, "the prompt is empty: give at least one character");
        Ok(Some(text))
    }

    /// Whether something stands behind the answer.
    fn is_between(&self) -> bool {
        self.suffix.is_some() || self.suffix_file.is_some()
    }

    /// What asks for what stands between `prefix` and `suffix`.
    fn between(
        &self,
        prefix: &str,
        suffix: String,
        tokenizer: Option<&Tokenizer>,
    ) -> Result<Prompt> {
        let infill = tokenizer.and_then(Infill::of).context(NO_INFILL)?;
        let place = Place { prefix, suffix: &suffix, ..Place::default() };
        let (tokens, _) = infill.tokens(&place, usize::MAX, 0)?;
        let echo = self.echo.then(|| (prefix.to_owned(), suffix));
        let (ends, writing) = (infill.ends().to_vec(), Writing::default());
        Ok(Prompt { tokens, echo, ends, writing, chat: None })
    }

    /// Answers the prompts of a file of JSON lines.
    fn answer_prompts(&self, prompts: &Path, progress: &Arc<Progress>) -> Result<ExitCode> {
        let form = self.form.form()?;
        let model = self.model.locate_for(self.engine.load_mode(), progress)?;
        let config = ModelConfig::from_dir(&model.folder)?;
        let tokenizer = model.tokenizer()?;
        let template = self.template(&model)?;
        let own = self.sampling.recommended.of(&config);
        let form = self.keeper(form, Some(&tokenizer), &config)?;
        let defaults = Defaults {
            tokenizer: &tokenizer,
            infill: Infill::of(&tokenizer),
            ignore_eos: self.ignore_eos,
            chat: template.is_some(),
            // A line with messages says for itself that it needs one.
            template: template.map_or_else(|| model.chat_template(), Ok),
            system: self.system.clone(),
            max_tokens: self.max_tokens,
            stop: self.stop.clone(),
            eos: config.eos_token_ids,
            form,
            sampling: self.sampling.clone(),
            own,
        };
        // A flag that is out of range is no mistake of every line.
        self.sampling.sampler(&defaults.own)?;
        StopStrings::new(&self.stop).context("--stop")?;
        if let Some(keeper) = &defaults.form {
            keeper.keep(None)?;
        }
        let lines = Lines::open(prompts)?;
        let output = output::open(&self.output, Some(prompts))?;
        let engine = self.engine.open_engine(&model, &self.kv, None, progress)?;
        let mut options = BatcherOptions::of(&engine);
        options.gap = Gap::Nothing;
        options.speculate = self.speculation.speculate;
        let batcher = Batcher::new(engine, &options)?;
        let name =
            if output.is_some() { self.output.display().to_string() } else { "stdout".into() };
        let mut output: Box<dyn Write> = match output {
            None => progress.stdout(),
            Some(file) => Box::new(file.begin()?),
        };
        let window = options.scheduler.most_running;
        let output = Output { name, file: &mut *output };
        let prompts = Prompts::new(batcher, &defaults, window, output, progress);
        let summary = prompts.answer(&lines)?;
        progress.say(&(summary.line() + &peak_memory(memory::peak())));
        Ok(match summary {
            Summary { interrupted: true, .. } => interrupt::exit_code(true),
            Summary { failed: 0, .. } => ExitCode::SUCCESS,
            Summary { .. } => ExitCode::FAILURE,
        })
    }

    /// What keeps answers to `form`, if there is one.
    fn keeper(
        &self,
        form: Option<Form>,
        tokenizer: Option<&Tokenizer>,
        config: &ModelConfig,
    ) -> Result<Option<Keeper>> {
        let (vocab_size, eos) = (config.vocab_size, &config.eos_token_ids);
        let keeper = |form| Keeper::new(form, tokenizer, vocab_size, eos, self.ignore_eos);
        form.map(keeper).transpose()
    }

    /// What makes a message of a prompt; `None` where it is taken as it is.
    fn template(&self, model: &Model) -> Result<Option<ChatTemplate>> {
        if self.raw {
            return Ok(None);
        }
        if self.chat || self.system.is_some() {
            return model.chat_template().map(Some);
        }
        model.find_chat_template()
    }

    fn prompt(
        &self,
        input: Option<String>,
        tokenizer: Option<&Tokenizer>,
        model: &Model,
    ) -> Result<Prompt> {
        if let Some(tokens) = &self.prompt_tokens {
            let (tokens, writing) = (tokens.clone(), Writing::default());
            return Ok(Prompt { tokens, echo: None, ends: Vec::new(), writing, chat: None });
        }
        let tokenizer = tokenizer.context("a text prompt needs a tokenizer")?;
        if let Some(template) = self.template(model)? {
            let question = input.unwrap_or_else(|| QUESTION.to_owned());
            let system = self.system.iter().map(|text| Message::new("system", text));
            let messages: Vec<_> = system.chain([Message::new("user", &question)]).collect();
            let chat = template.prompt(&messages, &RenderOptions::prompt())?;
            let tokens = tokenizer.encode_chat(&chat.text)?;
            let echo = self.echo.then(|| (question + "\n\n", String::new()));
            let writing = Writing::of(&template);
            return Ok(Prompt { tokens, echo, ends: Vec::new(), writing, chat: Some(chat) });
        }
        // Our own beginning belongs to the story; a caller knows theirs.
        let echo = self.echo || (input.is_none() && !self.json);
        let input = input.unwrap_or_else(|| STORY.to_owned());
        let tokens = tokenizer.encode(&input, true)?;
        let echo = echo.then_some((input, String::new()));
        Ok(Prompt { tokens, echo, ends: Vec::new(), writing: Writing::default(), chat: None })
    }
}

fn token_id(text: &str) -> Result<u32, String> {
    text.trim().parse().map_err(|_| format!("`{text}` is no token id; give 5,17,23"))
}

/// Whether stdin is a pipe or a file, not a terminal or `/dev/null`.
fn stdin_is_data() -> bool {
    if io::stdin().is_terminal() {
        return false;
    }
    #[cfg(unix)]
    {
        use std::os::fd::AsFd;
        use std::os::unix::fs::FileTypeExt;
        let Ok(stdin) = io::stdin().as_fd().try_clone_to_owned() else { return false };
        let Ok(metadata) = std::fs::File::from(stdin).metadata() else { return false };
        let kind = metadata.file_type();
        kind.is_fifo() || kind.is_file() || kind.is_socket()
    }
    #[cfg(not(unix))]
    true
}

/// Reads a pipe that nobody mentioned, and says so when nothing comes.
fn read_piped(progress: &Arc<Progress>) -> Result<String> {
    let (done, wait) = std::sync::mpsc::channel::<()>();
    let progress = progress.clone();
    std::thread::spawn(move || {
        if wait.recv_timeout(Duration::from_secs(2))
            == Err(std::sync::mpsc::RecvTimeoutError::Timeout)
        {
            progress.say("reading the prompt from stdin; give one with -p");
        }
    });
    let text = read_text(Path::new("-"));
    drop(done);
    text
}
