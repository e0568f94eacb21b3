//! `iree-llm serve`

mod place;

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use clap::builder::FalseyValueParser;
use clap::{ArgAction, ValueEnum};
use iree_llm::{Llm, Vectors, served_name};
use server::{Certificate, Hosts, Keys, Model, ModelOptions, Server, ServerOptions};
use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::{LevelFilter, filter_fn};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use xla_session::batching::{BatcherOptions, Gap};
use xla_session::{Event, KvShare};

use self::place::Place;
use crate::engine::{EngineArgs, KvArgs};
use crate::interrupt;
use crate::model_source::{Model as Located, ModelArgs};
#[cfg(feature = "otel")]
use crate::otlp::{self, Exporter};
use crate::progress::{Progress, QuietArgs};
use crate::sampling::RecommendedArgs;
use crate::speculation::SpeculationArgs;

/// Serve models by HTTP, to OpenAI's clients and others
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
#[command(mut_arg("quiet", |it| it.help("Nothing on stderr but the log")))]
pub struct Args {
    /// A model as `generate` takes it: a folder, a .gguf file, `smollm2`, a name in `models/` or a
    /// Hugging Face id; may be given several times. Requests call it by its id or by its folder's
    /// or file's name
    #[arg(short, long, env = "IREE_LLM_MODEL", value_name = "FOLDER|ID")]
    model: Vec<String>,

    /// Address to listen on; others than this machine's own are open to whoever reaches them
    #[arg(long, env = "IREE_LLM_HOST", value_name = "ADDRESS", default_value = "127.0.0.1")]
    host: IpAddr,

    /// Port to listen on; 0 takes a free one
    #[arg(long, env = "IREE_LLM_PORT", value_name = "PORT", default_value_t = 8080)]
    port: u16,

    /// Unix socket to listen on instead; whoever may write to it is let in
    #[cfg(unix)]
    #[arg(long, env = "IREE_LLM_SOCKET", value_name = "PATH", conflicts_with_all = ["host", "port", "tls_cert"])]
    socket: Option<PathBuf>,

    /// Names by which requests may call the server besides addresses and those without a dot, as a proxy passes them on. Others
    /// get 403 on this machine's own addresses without keys and TLS, where a page of another site may lead its name to
    #[arg(long, env = "IREE_LLM_ALLOW_HOST", value_name = "NAME,…", value_delimiter = ',', value_parser = host_name)]
    allow_host: Vec<String>,

    /// File of keys, one a line, of which requests have to bring one (`Authorization: Bearer KEY`);
    /// read again at SIGHUP
    #[arg(long, env = "IREE_LLM_API_KEY_FILE", value_name = "FILE")]
    api_key: Option<PathBuf>,

    /// Most requests of each key that wait or run at a time; those beyond get 429
    #[arg(long, env = "IREE_LLM_KEY_PARALLEL", value_name = "N", requires = "api_key",
          value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    key_parallel: Option<u32>,

    /// Requests a minute of each key; one that was silent for a minute may send so many at once, those
    /// beyond get 429
    #[arg(long, env = "IREE_LLM_KEY_RPM", value_name = "N", requires = "api_key",
          value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    key_rpm: Option<u32>,

    /// Let /metrics be asked without a key, as vLLM's, by Prometheus or by pickers of endpoints
    #[arg(long, env = "IREE_LLM_METRICS_OPEN", value_parser = FalseyValueParser::new(),
          action = ArgAction::SetTrue)]
    metrics_open: bool,

    /// File with the certificate to speak TLS with, and those that vouch for it, in PEM; read again at
    /// SIGHUP
    #[arg(long, env = "IREE_LLM_TLS_CERT", value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,

    /// File with its private key, in PEM
    #[arg(long, env = "IREE_LLM_TLS_KEY", value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,

    /// Most requests of a model that run at a time
    #[arg(long, env = "IREE_LLM_PARALLEL", value_name = "N", default_value_t = 64,
          value_parser = clap::value_parser!(u16).range(1..=256))]
    parallel: u16,

    /// Most requests of a model that wait; those beyond get 429 and may try again
    #[arg(long, env = "IREE_LLM_QUEUE", value_name = "N", default_value_t = 256,
          value_parser = clap::value_parser!(u32).range(..=1_000_000))]
    queue: u32,

    /// Longest gap between two tokens of an answer while prompts of others run, in ms: a fifth of it for each
    /// that waits. A shorter one makes answers smoother, a longer one brings first tokens sooner. Answers
    /// that take longer by themselves do
    #[arg(long, env = "IREE_LLM_TOKEN_GAP", value_name = "MS", default_value_t = 1000,
          value_parser = clap::value_parser!(u32).range(1..=60_000))]
    token_gap: u32,

    #[command(flatten)]
    recommended: RecommendedArgs,

    #[command(flatten)]
    kv: KvArgs,

    /// Folder in which prompts that were run are kept: a server that is started again, and others on this
    /// machine with the same model, need not run their beginnings again
    #[arg(long, env = "IREE_LLM_KV_SHARE", value_name = "FOLDER")]
    kv_share: Option<PathBuf>,

    /// Most that this folder takes, in MiB; what was least recently used goes
    #[arg(long, env = "IREE_LLM_KV_SHARE_SIZE", value_name = "MIB", requires = "kv_share", default_value_t = 4096,
          value_parser = clap::value_parser!(u64).range(1..=1 << 40))]
    kv_share_size: u64,

    /// Largest body of a request, in MiB
    #[arg(long, env = "IREE_LLM_MAX_BODY", value_name = "MIB", default_value_t = 8,
          value_parser = clap::value_parser!(u16).range(1..=1024))]
    max_body: u16,

    /// Seconds that running answers may still take after SIGTERM or Ctrl-C; a second signal ends
    /// them at once
    #[arg(long, env = "IREE_LLM_SHUTDOWN_TIMEOUT", value_name = "SECONDS", default_value_t = 30)]
    shutdown_timeout: u32,

    /// Leave out the page for people, which is at / and asks for a key itself
    #[arg(long, env = "IREE_LLM_NO_PAGE", value_parser = FalseyValueParser::new(),
          action = ArgAction::SetTrue)]
    no_page: bool,

    /// What is logged to stderr; info is a line for every request, debug also one for every client that fails at TLS
    #[arg(long, env = "IREE_LLM_LOG", value_name = "LEVEL", default_value = "info")]
    log: Log,

    /// Collector of OpenTelemetry (`http://HOST:4318`) that gets a span of every request, by OTLP over HTTP
    #[cfg(feature = "otel")]
    #[arg(long, env = "OTEL_EXPORTER_OTLP_ENDPOINT", value_name = "URL")]
    otlp_endpoint: Option<String>,

    #[command(flatten)]
    quiet: QuietArgs,

    #[command(flatten)]
    speculation: SpeculationArgs,

    #[command(flatten)]
    engine: EngineArgs,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Log {
    Off,
    Error,
    Warn,
    Info,
    Debug,
}

fn host_name(text: &str) -> Result<String, String> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
    if !text.is_empty() && text.bytes().all(fits) {
        return Ok(text.into());
    }
    Err("give a name as browsers send it (llm.example, xn--…), without a scheme and a port".into())
}

const EXAMPLES: &str = "\
Examples:
  iree-llm serve                                       the default model on http://127.0.0.1:8080
  iree-llm serve -m ./Llama-3.2-1B-Instruct --precision int8 --context 8192
  iree-llm serve -m ./Qwen2.5-0.5B -m ./model.gguf --host 0.0.0.0 --api-key keys.txt \\
    --tls-cert chain.pem --tls-key key.pem
  curl http://127.0.0.1:8080/v1/chat/completions -H 'Content-Type: application/json' \\
    -d '{\"messages\": [{\"role\": \"user\", \"content\": \"Hello!\"}]}'

Endpoints: /v1/chat/completions, /v1/completions, /v1/embeddings, /v1/rerank, /v1/responses, /v1/messages, \
/v1/models, /infill, /tokenize, /detokenize, /health, /ready, /metrics, /version, /openapi.json. docs/server.md says what they take. / \
is a page to chat in.
SIGTERM or Ctrl-C: new requests get 503, running ones end, then the program does; the exit code is 0. \
While models are still opened they end it at once, with 0 or 130.";

impl Args {
    /// Serves until a signal comes.
    pub fn run(self) -> Result<ExitCode> {
        let progress = self.quiet.progress();
        let level = match self.log {
            Log::Off => LevelFilter::OFF,
            Log::Error => LevelFilter::ERROR,
            Log::Warn => LevelFilter::WARN,
            Log::Info => LevelFilter::INFO,
            Log::Debug => LevelFilter::DEBUG,
        };
        let log = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
        let log = log.with_ansi(false).with_target(false);
        // Events alone: of the spans they are in, a line says what it has to itself.
        let lines = filter_fn(move |it| it.is_event() && *it.level() <= level);
        let subscriber =
            tracing_subscriber::registry().with(log.with_filter(lines.with_max_level_hint(level)));
        #[cfg(feature = "otel")]
        let exporter = self.otlp_endpoint.as_deref().map(Exporter::start).transpose()?;
        #[cfg(feature = "otel")]
        let subscriber = subscriber.with(exporter.as_ref().map(Exporter::layer));
        subscriber.init();

        let keys = self.keys()?;
        let certificate = self.certificate()?;
        let mut options = ServerOptions::default();
        options.keys = keys.clone();
        options.limits.parallel = self.key_parallel.and_then(NonZeroU32::new);
        options.limits.per_minute = self.key_rpm.and_then(NonZeroU32::new);
        options.most_bytes = usize::from(self.max_body) << 20;
        options.open_metrics = self.metrics_open;
        options.page = !self.no_page;
        options.version = env!("CARGO_PKG_VERSION").into();
        options.shutdown_timeout = Duration::from_secs(self.shutdown_timeout.into());
        #[cfg(feature = "otel")]
        if exporter.is_some() {
            options.begin_span = Some(otlp::follow);
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let served = runtime.block_on(async {
            let mut stop = Box::pin(signal()?);
            let args = Arc::new(self);
            // Without a handler SIGHUP ends the program, as it should when the terminal is closed.
            if args.api_key.is_some() || certificate.is_some() {
                args.clone().reload(keys.clone(), certificate.clone())?;
            }
            // Before models are opened, which takes a while: who cannot listen learns it now.
            let place = args.place().await?;
            // A key, or a certificate for its name, is what no site has.
            if keys.is_empty() && certificate.is_none() && place.is_own_port() {
                options.hosts = Hosts::local(&args.allow_host);
            }
            let (opener, shown) = (args.clone(), progress.clone());
            let opening = tokio::task::spawn_blocking(move || opener.open_models(&shown));
            let models = tokio::select! {
                models = opening => models??,
                // It would be waited for.
                code = &mut stop => {
                    drop(place);
                    interrupt::exit_now(code);
                }
            };
            let server = Server::new(models, options)?;
            if place.is_open() {
                if keys.is_empty() {
                    progress.say(&format!(
                        "warning: {} is reachable from outside and asks for no key: give --api-key",
                        args.host
                    ));
                }
                if certificate.is_none() {
                    progress.say(&format!(
                        "warning: {} is reachable from outside and hides nothing from who listens on the \
                         way: give --tls-cert and --tls-key, or put a proxy with TLS before it",
                        args.host
                    ));
                }
            }
            progress.say(&format!("listening on {}", place.name(certificate.is_some())?));
            let stop = async {
                stop.await;
            };
            place.serve(server, certificate.as_ref(), stop).await?;
            Ok(ExitCode::SUCCESS)
        });
        #[cfg(feature = "otel")]
        if let Some(exporter) = exporter {
            exporter.finish();
        }
        served
    }

    async fn place(&self) -> Result<Place> {
        #[cfg(unix)]
        if let Some(path) = &self.socket {
            return Place::socket(path).await;
        }
        Place::port(SocketAddr::new(self.host, self.port)).await
    }

    fn keys(&self) -> Result<Keys> {
        let Some(path) = &self.api_key else { return Ok(Keys::default()) };
        let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
        let name = path.display();
        let keys = Keys::parse(&text).map_err(|error| anyhow!("{name}: {error}"))?;
        ensure!(!keys.is_empty(), "{name}: there is no key; give one a line");
        Ok(keys)
    }

    fn certificate(&self) -> Result<Option<Certificate>> {
        let (Some(chain), Some(key)) = (&self.tls_cert, &self.tls_key) else { return Ok(None) };
        let read = |path: &Path| std::fs::read(path).with_context(|| path.display().to_string());
        let certificate = Certificate::parse(&read(chain)?, &read(key)?);
        let names = || format!("{}, {}", chain.display(), key.display());
        Ok(Some(certificate.with_context(names)?))
    }

    /// Has the files of keys and of the certificate read again at SIGHUP. One that cannot be read changes
    /// nothing.
    #[cfg(unix)]
    fn reload(self: Arc<Self>, keys: Keys, certificate: Option<Certificate>) -> Result<()> {
        use tokio::signal::unix::{SignalKind, signal};

        let mut hangup = signal(SignalKind::hangup())?;
        tokio::spawn(async move {
            while hangup.recv().await.is_some() {
                match self.keys() {
                    Ok(_) if self.api_key.is_none() => {}
                    Ok(new) => {
                        keys.replace(&new);
                        tracing::info!("SIGHUP: {} keys from now on", new.len());
                    }
                    Err(error) => tracing::error!("SIGHUP: the keys stay as they are: {error:#}"),
                }
                match (self.certificate(), &certificate) {
                    (Ok(Some(new)), Some(certificate)) => {
                        certificate.replace(&new);
                        tracing::info!("SIGHUP: the certificate is read again");
                    }
                    (Err(error), _) => {
                        tracing::error!("SIGHUP: the certificate stays as it is: {error:#}");
                    }
                    _ => {}
                }
            }
        });
        Ok(())
    }

    #[cfg(not(unix))]
    fn reload(self: Arc<Self>, _: Keys, _: Option<Certificate>) -> Result<()> {
        Ok(())
    }

    fn share(&self) -> Option<KvShare> {
        let mut share = KvShare::new(self.kv_share.as_ref()?);
        share.most_bytes = self.kv_share_size << 20;
        // What comes then is no line of a progress bar.
        share.observer = Some(Arc::new(|event| {
            if let Event::NotKept { what, reason } = event {
                tracing::warn!("{what}: not kept: {reason}");
            }
        }));
        Some(share)
    }

    fn open_models(&self, progress: &Arc<Progress>) -> Result<Vec<Model>> {
        if self.model.is_empty() {
            return Ok(vec![self.open_model(&self.locate(None, progress)?, progress)?]);
        }
        let located = self.model.iter().map(|name| self.locate(Some(name), progress));
        let located: Vec<_> = located.collect::<Result<_>>()?;
        let mut names = HashSet::new();
        if let Some(twice) = located.iter().find(|it| !names.insert(served_name(&it.name))) {
            // Before minutes are spent on both.
            return Err(server::Error::SameName(served_name(&twice.name)).into());
        }
        located.iter().map(|model| self.open_model(model, progress)).collect()
    }

    fn locate(&self, name: Option<&String>, progress: &Arc<Progress>) -> Result<Located> {
        let model = ModelArgs { model: name.cloned() };
        model.locate_for(self.engine.load_mode(), progress)
    }

    fn open_model(&self, model: &Located, progress: &Arc<Progress>) -> Result<Model> {
        let (tokenizer, template) = (model.tokenizer()?, model.find_chat_template()?);
        let engine = self.engine.open_engine(model, Some(&self.kv), self.share(), progress)?;
        let name = served_name(&model.name);
        let weights = engine.model().weights() >> 20;
        let memory = engine.kv_bytes() >> 20;
        let running = usize::from(self.parallel);
        let most = engine.most_sequences().filter(|most| *most < running);
        let running = most.unwrap_or(running);
        let states = most.map_or(String::new(), |most| format!(", states for {most} requests"));
        let mut options = BatcherOptions::of(&engine);
        options.scheduler.most_running = running;
        options.gap = Gap::Time(Duration::from_millis(self.token_gap.into()));
        let batcher = self.speculation.batcher(engine, options, None, &self.engine, progress)?;
        let vectors = model.files().vectors(None).and_then(|said| Vectors::of(&said, None));
        if let Err(error) = &vectors {
            // Chats need none of it.
            progress.say(&format!("no embeddings: {error}"));
        }
        let ranking = model.files().ranking(&tokenizer);
        if let Err(error) = &ranking {
            progress.say(&format!("no ranking: {error}"));
        }
        let llm = Llm::new(&name, batcher, tokenizer, template, vectors, ranking)?;
        let chats = if llm.template().is_some() { "" } else { ", no chat template" };
        let mut options = ModelOptions::default();
        options.sampling = Some(self.recommended.of(llm.config()));
        options.most_requests = running + self.queue as usize;
        progress.say(&format!(
            "{name}: {weights} MiB of weights, {memory} MiB for keys and values{states}, {} tokens of context{chats}",
            llm.context(),
        ));
        Ok(Model::new(llm, options))
    }
}

/// Ready at the first signal to end, with the exit code of a program that has nothing to end before; the second one
/// ends the program.
#[cfg(unix)]
fn signal() -> Result<impl Future<Output = u8>> {
    use tokio::signal::unix::{SignalKind, signal};

    let (mut term, mut int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    Ok(async move {
        let mut next = async move || {
            tokio::select! { _ = term.recv() => 0, _ = int.recv() => interrupt::EXIT }
        };
        let code = next().await;
        tokio::spawn(async move {
            next().await;
            interrupt::exit_now(interrupt::EXIT);
        });
        code
    })
}

/// Ready at the first Ctrl-C, with its exit code; the second one ends the program.
#[cfg(not(unix))]
fn signal() -> Result<impl Future<Output = u8>> {
    Ok(async {
        // Without a handler it is the system that ends us.
        let _ = tokio::signal::ctrl_c().await;
        tokio::spawn(async {
            let _ = tokio::signal::ctrl_c().await;
            interrupt::exit_now(interrupt::EXIT);
        });
        interrupt::EXIT
    })
}
