//! `iree-llm generate`: answer a prompt, or go on with it.

use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::ArgAction;
use clap::builder::FalseyValueParser;
use iree_llm::Ask;
use text::{ChatTemplate, StopStrings};
use xla_session::batching::{BatcherOptions, Gap, Request, Worker};
use xla_session::config::ModelConfig;
use xla_session::sample::{Sampler, SamplerOptions};

use crate::answer::{self, Asked, message};
use crate::bench::memory;
use crate::engine::{EngineArgs, KvArgs};
use crate::form::FormArgs;
use crate::interrupt;
use crate::lines::{Lines, read_text};
use crate::model_source::{Model, ModelArgs};
use crate::output;
use crate::progress::{Progress, QuietArgs};
use crate::prompts::request::Defaults;
use crate::prompts::run::{Output, Prompts, Summary};
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
    #[arg(long, value_name = "FILE", group = "input", conflicts_with = "echo")]
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

    /// Fill in what stands between the prompt and this text, as models of code have been trained to; implies --raw. What the
    /// context has no room for of both, beside --max-tokens, is left out. With --echo all three are printed
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

stdout carries the generated text alone (or the JSON object); all else goes to stderr. What a model thinks stands before
its answer, between <think> and </think>.
Ctrl-C ends the text after the current token, a second one the program; the exit code is 130.";

/// Why nothing is drafted of an answer in a form.
const KEPT: &str = "answers are kept to a form";

const STORY: &str = "Once upon a time";
const QUESTION: &str = "Tell me a story.";

/// What the model is asked, and what is printed before the answer and behind it.
struct Prompt {
    asked: Asked,
    echo: Option<(String, String)>,
}

impl Args {
    /// Generates.
    pub fn run(self) -> Result<ExitCode> {
        let progress = self.quiet.progress();
        if let Some(prompts) = &self.prompts {
            return self.answer_prompts(prompts, &progress);
        }
        // A flag that is out of range is one before anything is read.
        self.sampling.options(&SamplerOptions::default())?;
        StopStrings::new(&self.stop).context("--stop")?;
        let form = self.form.form(self.ignore_eos)?;
        let stdin = Some(Path::new("-"));
        let is_twice = self.suffix_file.as_deref() == stdin
            && (self.prompt.as_deref() == Some("-") || self.prompt_file.as_deref() == stdin);
        ensure!(!is_twice, "the prompt and the text behind it cannot both be stdin");
        let suffix = self.suffix_file.as_deref().map(read_text).transpose()?;
        let suffix = suffix.or_else(|| self.suffix.clone());
        let input = if self.prompt_tokens.is_some() { None } else { self.input(&progress)? };
        let model = self.model.locate_for(self.engine.load_mode(), &progress)?;
        let config = ModelConfig::from_dir(&model.folder)?;
        let tokenizer = match &self.prompt_tokens {
            Some(_) if self.stop.is_empty() && form.is_none() => model.find_tokenizer()?,
            _ => Some(model.tokenizer()?),
        };
        let is_chat = self.prompt_tokens.is_none() && suffix.is_none();
        let template = if is_chat { self.template(&model)? } else { None };
        let Prompt { asked, echo } = self.prompt(input, suffix, template.is_some());
        let no_drafts = form.as_ref().map(|_| KEPT);
        let ask = Ask {
            max_tokens: Some(self.max_tokens),
            sampling: self.sampling.options(&self.sampling.recommended.of(&config))?,
            stop: self.stop.clone(),
            ignore_eos: self.ignore_eos,
            form,
            ..Ask::default()
        };

        let engine = self.engine.open_engine(&model, None, None, &progress)?;
        let (load, compile) = (engine.model().load_time(), engine.model().compile_time());
        let device = engine.model().device();
        let mut options = BatcherOptions::of(&engine);
        options.gap = Gap::Nothing;
        let batcher =
            self.speculation.batcher(engine, options, no_drafts, &self.engine, &progress)?;
        let mut stdout = io::stdout().lock();
        let mut show = |piece: &str| {
            stdout.write_all(piece.as_bytes())?;
            stdout.flush()
        };
        let (prompt_tokens, answer, drafts) = match (asked, tokenizer) {
            (Asked::Tokens(prompt), None) => {
                let worker = Worker::start(batcher, &model.name)?;
                let request = Request {
                    prompt: prompt.clone(),
                    max_tokens: self.max_tokens,
                    eos: if self.ignore_eos { Vec::new() } else { config.eos_token_ids },
                    sampler: ask.sampling.map(Sampler::new).transpose()?,
                    ..Request::default()
                };
                let answer = answer::count(prompt.len(), worker.submit(request))?;
                (prompt, answer, worker.statistics().drafts)
            }
            (asked, tokenizer) => {
                let tokenizer = tokenizer.context("a text prompt needs a tokenizer")?;
                let llm = model.llm(batcher, tokenizer, template)?;
                let response = asked.of(&llm, &ask)?;
                if let Some((before, _)) = &echo {
                    show(before)?;
                }
                let prompt = response.prompt().to_vec();
                let shown = |piece: &str| if self.json { Ok(()) } else { show(piece) };
                let answer = answer::follow(response, shown)?;
                (prompt, answer, llm.worker().statistics().drafts)
            }
        };

        let timings = Seconds::new(load, compile, &answer.times);
        let (drafts, peak_bytes) = (Drafts::new(drafts), memory::peak());
        if self.json {
            let report = Report {
                prompt_tokens: &prompt_tokens,
                tokens: &answer.tokens,
                text: answer.text.as_deref(),
                finish_reason: answer.finish_reason(),
                drafts,
                timings,
                peak_bytes,
                model: &model.name,
                device: &device,
                precision: self.engine.precision().as_str(),
            };
            show(&(serde_json::to_string(&report)? + "\n"))?;
        } else if answer.text.is_some() {
            let behind = echo.map(|it| it.1).unwrap_or_default();
            show(&(behind + "\n"))?;
        } else {
            let ids: Vec<_> = answer.tokens.iter().map(u32::to_string).collect();
            show(&(ids.join(",") + "\n"))?;
        }
        progress.say(&(timings.line() + &drafts.line() + &peak_memory(peak_bytes)));
        Ok(interrupt::exit_code(answer.is_interrupted()))
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

    /// Answers the prompts of a file of JSON lines.
    fn answer_prompts(&self, prompts: &Path, progress: &Arc<Progress>) -> Result<ExitCode> {
        let form = self.form.form(self.ignore_eos)?;
        let model = self.model.locate_for(self.engine.load_mode(), progress)?;
        let config = ModelConfig::from_dir(&model.folder)?;
        let tokenizer = model.tokenizer()?;
        let template = self.template(&model)?;
        let defaults = Defaults {
            chat: template.is_some(),
            system: self.system.clone(),
            ask: Ask {
                max_tokens: Some(self.max_tokens),
                stop: self.stop.clone(),
                ignore_eos: self.ignore_eos,
                form,
                ..Ask::default()
            },
            sampling: self.sampling.clone(),
            own: self.sampling.recommended.of(&config),
        };
        // A flag that is out of range is no mistake of every line.
        self.sampling.options(&defaults.own)?;
        StopStrings::new(&self.stop).context("--stop")?;
        // A line with messages says for itself that it needs one.
        let template = template.or_else(|| model.find_chat_template().ok().flatten());
        let lines = Lines::open(prompts)?;
        let output = output::open(&self.output, Some(prompts))?;
        let engine = self.engine.open_engine(&model, Some(&self.kv), None, progress)?;
        let mut options = BatcherOptions::of(&engine);
        options.gap = Gap::Nothing;
        // Some wait already when others end.
        let window = 2 * options.scheduler.most_running;
        let no_drafts = defaults.ask.form.as_ref().map(|_| KEPT);
        let batcher =
            self.speculation.batcher(engine, options, no_drafts, &self.engine, progress)?;
        let llm = model.llm(batcher, tokenizer, template)?;
        if let Some(form) = &defaults.ask.form {
            llm.forms().start(form)?;
        }
        let name =
            if output.is_some() { self.output.display().to_string() } else { "stdout".into() };
        let mut output: Box<dyn Write> = match output {
            None => progress.stdout(),
            Some(file) => Box::new(file.begin()?),
        };
        let output = Output { name, file: &mut *output };
        let summary = Prompts::new(&llm, &defaults, output, progress).answer(&lines, window)?;
        progress.say(&(summary.line() + &peak_memory(memory::peak())));
        Ok(match summary {
            Summary { interrupted: true, .. } => interrupt::exit_code(true),
            Summary { failed: 0, .. } => ExitCode::SUCCESS,
            Summary { .. } => ExitCode::FAILURE,
        })
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

    /// What is asked, with a template in a chat, and what is printed around the answer.
    fn prompt(&self, input: Option<String>, suffix: Option<String>, has_template: bool) -> Prompt {
        if let Some(tokens) = self.prompt_tokens.clone() {
            return Prompt { asked: Asked::Tokens(tokens), echo: None };
        }
        if let Some(suffix) = suffix {
            let prefix = input.unwrap_or_default();
            let echo = self.echo.then(|| (prefix.clone(), suffix.clone()));
            return Prompt { asked: Asked::Between { prefix, suffix }, echo };
        }
        if has_template {
            let question = input.unwrap_or_else(|| QUESTION.to_owned());
            let system = self.system.iter().map(|text| message("system", text));
            let messages = system.chain([message("user", &question)]).collect();
            let echo = self.echo.then(|| (question + "\n\n", String::new()));
            return Prompt { asked: Asked::Chat(messages), echo };
        }
        // Our own beginning belongs to the story; a caller knows theirs.
        let echo = self.echo || (input.is_none() && !self.json);
        let text = input.unwrap_or_else(|| STORY.to_owned());
        Prompt { asked: Asked::Text(text.clone()), echo: echo.then_some((text, String::new())) }
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
