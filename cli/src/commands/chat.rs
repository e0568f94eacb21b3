//! `iree-llm chat`: talk to a model.

use std::io::{self, BufRead, IsTerminal, StdinLock, Write};
use std::process::ExitCode;

use anyhow::{Context, Result};
use rustyline::error::ReadlineError;
use rustyline::{Behavior, Config, DefaultEditor};
use xla_session::config::ModelConfig;
use xla_session::sample::SamplerOptions;
use xla_session::{Error, FinishReason, GenerateOptions};

use crate::conversation::Conversation;
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

The model remembers the conversation; each turn computes only what is new.
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
        self.sampling.sampler(&SamplerOptions::default())?;
        let model = self.model.locate_for(self.engine.load_mode(), &progress)?;
        let config = ModelConfig::from_dir(&model.folder)?;
        let recommended = self.sampling.recommended.of(&config);
        let sampler = self.sampling.sampler(&recommended)?;
        let tokenizer = model.tokenizer()?;
        let template = model.chat_template()?;
        let mut opened = self.engine.open(&model, &progress)?;
        let mut options = GenerateOptions {
            max_tokens: self.max_tokens.unwrap_or(usize::MAX),
            eos: config.eos_token_ids,
            sampler,
            speculation: self.speculation.speculation(&*opened.session, &self.engine, &progress)?,
            ..GenerateOptions::default()
        };
        let system = self.system.as_deref();
        let mut talk = Conversation::new(&mut *opened.session, &tokenizer, &template, system);
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
                    talk.reset();
                    // Chance is drawn by seed and position: without a seed that was given, the same question has
                    // another answer.
                    options.sampler = self.sampling.sampler(&recommended)?;
                    progress.say("the conversation is forgotten");
                }
                _ if line.starts_with('/') && !line.contains(char::is_whitespace) => {
                    progress.say(&format!("{line}: no such command; /help lists them"));
                }
                question => {
                    input.remember(question);
                    let answer = talk.ask(question, &mut options, |piece| {
                        stdout.write_all(piece.as_bytes())?;
                        stdout.flush()
                    });
                    let answer = match answer {
                        Ok(answer) => answer,
                        Err(error) if is_full(&error) => {
                            progress.report(&format!("error: {error}; /reset begins anew"));
                            continue;
                        }
                        Err(error) => return Err(error),
                    };
                    writeln!(stdout)?;
                    let seconds = Seconds::new(opened.load, opened.compile, &answer);
                    let drafts = Drafts::new(answer.generation.drafts);
                    progress.say(&(seconds.turn() + &drafts.line()));
                    if answer.generation.finish_reason == FinishReason::Context {
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
    matches!(error.downcast_ref(), Some(Error::ContextFull { .. }))
}
