//! `iree-llm chat`: talk to a model.

use std::io::{self, BufRead, IsTerminal, StdinLock, Write};
use std::process::ExitCode;

use anyhow::{Context, Error, Result};
use iree_llm::Ask;
use rustyline::error::ReadlineError;
use rustyline::{Behavior, Config, DefaultEditor};
use xla_session::batching::{BatcherOptions, Gap};
use xla_session::config::ModelConfig;
use xla_session::sample::SamplerOptions;

use crate::answer::{self, message};
use crate::engine::EngineArgs;
use crate::model_source::ModelArgs;
use crate::progress::QuietArgs;
use crate::report::{Drafts, Seconds};
use crate::sampling::SamplingArgs;
use crate::speculation::SpeculationArgs;

/// With whom to talk and how.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,

    /// System message at the beginning of the conversation
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,

    /// Most tokens of one answer [default: until the context is full]
    #[arg(short = 'n', long, env = "IREE_LLM_MAX_TOKENS", value_name = "N")]
    max_tokens: Option<usize>,

    #[command(flatten)]
    quiet: QuietArgs,

    #[command(flatten)]
    sampling: SamplingArgs,

    #[command(flatten)]
    speculation: SpeculationArgs,

    #[command(flatten)]
    engine: EngineArgs,
}

const EXAMPLES: &str = "\
Examples:
  iree-llm chat
  iree-llm chat -m Qwen/Qwen2.5-0.5B-Instruct --temp 0.7 --top-p 0.9
  iree-llm chat -m ./model --system 'Answer in one sentence.'
  printf 'Who are you?\\nWhy?\\n' | iree-llm chat --quiet

The model remembers the conversation: what was run of it is not run again.
Ctrl-C ends an answer, /reset the conversation, /exit or Ctrl-D the program.";

const HELP: &str = "\
/reset   forget the conversation (the system message stays)
/exit    leave, as Ctrl-D does
/help    this text
Anything else is said to the model; Ctrl-C ends its answer.";

impl Args {
    /// Talks until the user has had enough.
    pub fn run(self) -> Result<ExitCode> {
        let progress = self.quiet.progress();
        // A flag that is out of range is one before anything is read.
        self.sampling.options(&SamplerOptions::default())?;
        let model = self.model.locate_for(self.engine.load_mode(), &progress)?;
        let config = ModelConfig::from_dir(&model.folder)?;
        let recommended = self.sampling.recommended.of(&config);
        let sampling = self.sampling.options(&recommended)?;
        let mut ask = Ask { max_tokens: self.max_tokens, sampling, ..Ask::default() };
        let (tokenizer, template) = (model.tokenizer()?, model.chat_template()?);
        let engine = self.engine.open_engine(&model, None, None, &progress)?;
        let (load, compile) = (engine.model().load_time(), engine.model().compile_time());
        let mut options = BatcherOptions::of(&engine);
        options.gap = Gap::Nothing;
        let batcher = self.speculation.batcher(engine, options, None, &self.engine, &progress)?;
        let llm = model.llm(batcher, tokenizer, Some(template))?;
        let system: Vec<_> = self.system.iter().map(|text| message("system", text)).collect();
        let mut messages = system.clone();
        let mut input = Input::open()?;
        progress.say(&format!("{}: /help tells what can be typed", model.name));

        let mut stdout = io::stdout();
        loop {
            let line = match input.next()? {
                Said::Line(line) => line,
                Said::Interrupt => {
                    progress.say("/exit or Ctrl-D leaves");
                    continue;
                }
                Said::End => return Ok(ExitCode::SUCCESS),
            };
            let line = line.trim();
            match line {
                "" => continue,
                "/exit" | "/quit" => return Ok(ExitCode::SUCCESS),
                "/help" => writeln!(stdout, "{HELP}")?,
                "/reset" => {
                    messages.clone_from(&system);
                    // Chance is drawn by seed and position: without a seed that was given, the same question has
                    // another answer.
                    ask.sampling = self.sampling.options(&recommended)?;
                    progress.say("the conversation is forgotten");
                }
                _ if line.starts_with('/') && !line.contains(char::is_whitespace) => {
                    progress.say(&format!("{line}: no such command; /help lists them"));
                }
                question => {
                    input.remember(question);
                    messages.push(message("user", question));
                    let drafts = llm.worker().statistics().drafts;
                    let response = llm.chat(&messages, &ask);
                    let answer = response.map_err(Error::from).and_then(|response| {
                        answer::follow(response, |piece| {
                            stdout.write_all(piece.as_bytes())?;
                            stdout.flush()
                        })
                    });
                    let answer = match answer {
                        Ok(answer) => answer,
                        Err(error) if is_full(&error) => {
                            messages.pop();
                            progress.report(&format!("error: {error}; /reset begins anew"));
                            continue;
                        }
                        Err(error) => return Err(error),
                    };
                    messages.push(answer.message());
                    writeln!(stdout)?;
                    let seconds = Seconds::new(load, compile, &answer.times);
                    let drafts = Drafts::since(drafts, llm.worker().statistics().drafts);
                    progress.say(&(seconds.turn() + &drafts.line()));
                    if answer.fills_context() {
                        progress.say("the context is full; /reset begins anew");
                    }
                }
            }
        }
    }
}

/// Where lines come from: keys, or a pipe, of which nothing is shown.
enum Input {
    Keys(Box<DefaultEditor>),
    Pipe(StdinLock<'static>),
}

/// What came.
enum Said {
    Line(String),
    /// Ctrl-C.
    Interrupt,
    End,
}

impl Input {
    fn open() -> Result<Self> {
        let stdin = io::stdin();
        if !stdin.is_terminal() {
            return Ok(Self::Pipe(stdin.lock()));
        }
        // What is typed is shown where it is typed, also where answers go elsewhere.
        let behavior = match io::stdout().is_terminal() {
            true => Behavior::Stdio,
            false => Behavior::PreferTerm,
        };
        let config = Config::builder().behavior(behavior).build();
        Ok(Self::Keys(Box::new(DefaultEditor::with_config(config)?)))
    }

    fn next(&mut self) -> Result<Said> {
        match self {
            Self::Keys(editor) => match editor.readline("> ") {
                Ok(line) => Ok(Said::Line(line)),
                Err(ReadlineError::Interrupted) => Ok(Said::Interrupt),
                Err(ReadlineError::Eof) => Ok(Said::End),
                Err(error) => Err(error.into()),
            },
            Self::Pipe(stdin) => {
                let mut line = String::new();
                let read = stdin.read_line(&mut line).context("cannot read stdin")?;
                Ok(if read == 0 { Said::End } else { Said::Line(line) })
            }
        }
    }

    fn remember(&mut self, line: &str) {
        if let Self::Keys(editor) = self {
            // Without a history of it nothing is lost.
            let _ = editor.add_history_entry(line);
        }
    }
}

fn is_full(error: &anyhow::Error) -> bool {
    let full = |it: &iree_llm::Error| {
        matches!(it, iree_llm::Error::Engine(xla_session::Error::ContextFull { .. }))
    };
    error.downcast_ref().is_some_and(full)
}
