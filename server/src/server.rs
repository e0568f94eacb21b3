//! All endpoints together, and how they begin and end.

use std::collections::HashSet;
use std::fmt::{self, Debug};
use std::future::Future;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post};
use axum::serve::{Listener, ListenerExt};
use axum::{Router, serve};
use serde_json::json;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tracing::{Instrument as _, Span};
use xla_session::batching::Worker;

use crate::fields::Fields;
use crate::limits::{self, Limiter};
use crate::outcome::Line;
use crate::responses::Store;
use crate::trace::Lasting;
use crate::{
    Certificate, Error, Hosts, Keys, Limits, Model, Problem, body, chat, completions, embeddings,
    infill, messages, metrics, models, openapi, page, rerank, responses, tokens, trace,
};

/// The name of the header that says which request is meant, in answers and in logs.
const REQUEST_ID: &str = "x-request-id";
/// What may be asked without a key and by any name: whether we are there.
const OPEN: [&str; 2] = ["/health", "/ready"];
pub(crate) const METRICS: &str = "/metrics";
/// Where the responses are that are kept.
const RESPONSE: &str = "/v1/responses/";
/// A connection on which nothing has come for so long is asked whether it is still there.
const SILENCE: Duration = Duration::from_secs(60);
/// How long connections have to take their last bytes at least.
const LAST_BYTES: Duration = Duration::from_secs(2);

/// What holds for all models.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ServerOptions {
    /// By which names it may be called; by any, if nothing else is said.
    pub hosts: Hosts,
    /// Who may call.
    pub keys: Keys,
    /// How much each key may ask for.
    pub limits: Limits,
    /// Most bytes of a request's body.
    pub most_bytes: usize,
    /// Whether `/metrics` may be asked without a key, as vLLM's: whoever collects numbers, or chooses by them
    /// where a request goes, often has none.
    pub open_metrics: bool,
    /// What `/version` says.
    pub version: String,
    /// Whether there is a page for people, at `/`. Without a key it can be opened, and asks for one.
    pub page: bool,
    /// How long answers may still come once the server is told to stop.
    pub shutdown_timeout: Duration,
    /// What is done with the span of each request before it is entered, as to go on with the caller's trace.
    pub begin_span: Option<fn(&Span, &HeaderMap)>,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            hosts: Hosts::default(),
            keys: Keys::default(),
            limits: Limits::default(),
            most_bytes: 8 << 20,
            open_metrics: false,
            version: env!("CARGO_PKG_VERSION").into(),
            page: true,
            shutdown_timeout: Duration::from_secs(30),
            begin_span: None,
        }
    }
}

/// Models that answer requests by HTTP.
///
/// ```no_run
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// use iree_llm::Llm;
/// use server::{Model, ModelOptions, Server, ServerOptions};
///
/// // Before there are tasks: it blocks.
/// let llm = Llm::open("Qwen/Qwen2.5-0.5B-Instruct")?;
/// let model = Model::new(llm.clone(), ModelOptions::default());
/// let server = Server::new(vec![model], ServerOptions::default())?;
/// let listener = tokio::net::TcpListener::bind("127.0.0.1:8080").await?;
/// server.serve(listener, std::future::pending()).await?;
/// # Ok(()) }
/// ```
pub struct Server {
    shared: Arc<Shared>,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shared { models, options, .. } = &*self.shared;
        f.debug_struct("Server").field("models", models).field("options", options).finish()
    }
}

/// What every request sees.
pub(crate) struct Shared {
    pub models: Vec<Arc<Model>>,
    pub options: ServerOptions,
    pub limiter: Limiter,
    /// What others may go on from.
    pub responses: Store,
    stopping: AtomicBool,
}

impl Shared {
    /// The fields of `request`.
    ///
    /// # Errors
    ///
    /// Its body is no object of JSON, or too large.
    pub async fn fields(&self, request: Request) -> Result<Fields, Problem> {
        Ok(Fields::new(body::read(request, self.options.most_bytes).await?))
    }

    /// The model that `fields` name; where there is one only, they may leave that out.
    pub fn model(&self, fields: &mut Fields) -> Result<Arc<Model>, Problem> {
        let name = fields.take::<String>("model")?;
        self.chosen(name)
    }

    fn chosen(&self, name: Option<String>) -> Result<Arc<Model>, Problem> {
        match (name, self.models.as_slice()) {
            (Some(name), _) => self.named(&name),
            (None, [only]) => Ok(only.clone()),
            (None, _) => {
                let message = format!("is missing; there are: {}", self.names());
                Err(Problem::field("model", message))
            }
        }
    }

    /// As [`model`](Self::model), of a client of Anthropic's: what it does beside its work, as finding a title, it asks
    /// a model of Anthropic's for, whatever it was told. Where there is one model only, it is meant.
    pub fn model_of_claude(&self, fields: &mut Fields) -> Result<Arc<Model>, Problem> {
        let is_theirs = |name: &String| self.models.len() == 1 && name.starts_with("claude-");
        let name = fields.take::<String>("model")?.filter(|name| !is_theirs(name));
        self.chosen(name)
    }

    /// As [`model`](Self::model), of a client of llama-server's, which has one and whatever name it is asked for: where
    /// there is one model only, it is meant, and a name of nothing is none.
    pub fn model_of_llama(&self, fields: &mut Fields) -> Result<Arc<Model>, Problem> {
        let name = fields.take::<String>("model")?;
        self.chosen(name.filter(|name| self.models.len() > 1 && !name.is_empty()))
    }

    /// The model called `name`.
    pub fn named(&self, name: &str) -> Result<Arc<Model>, Problem> {
        let found = self.models.iter().find(|model| model.name() == name);
        found.cloned().ok_or_else(|| Problem::no_such_model(name, &self.names()))
    }

    fn names(&self) -> String {
        self.models.iter().map(|it| it.name()).collect::<Vec<_>>().join(", ")
    }

    /// Whether new requests are begun.
    ///
    /// # Errors
    ///
    /// The server is stopping.
    pub fn check_open(&self) -> Result<(), Problem> {
        if self.stopping.load(Ordering::SeqCst) { Err(Problem::stopping()) } else { Ok(()) }
    }

    fn is_idle(&self) -> bool {
        self.models.iter().all(|model| model.is_idle())
    }
}

impl Server {
    /// Serves `models`.
    ///
    /// # Errors
    ///
    /// [`NoModel`](Error::NoModel), or [`SameName`](Error::SameName) of two.
    pub fn new(models: Vec<Model>, options: ServerOptions) -> Result<Self, Error> {
        let mut names = HashSet::new();
        if let Some(model) = models.iter().find(|model| !names.insert(model.name())) {
            return Err(Error::SameName(model.name().to_owned()));
        }
        if models.is_empty() {
            return Err(Error::NoModel);
        }
        let models = models.into_iter().map(Arc::new).collect();
        let limiter = Limiter::new(options.limits);
        let (responses, stopping) = (Store::default(), AtomicBool::new(false));
        Ok(Self { shared: Arc::new(Shared { models, options, limiter, responses, stopping }) })
    }

    /// The endpoints, for another program to mount below a path that ends in `/`, as the addresses in the page are
    /// relative to it (`nest("/llm", …)` would have the page at `/llm`, and its files nowhere). `merge` panics where
    /// the program has a fallback, or one of our paths. [`stop`](Self::stop) lets its answers end before the program does.
    ///
    /// ```no_run
    /// use server::{Model, Router, Server, ServerOptions};
    ///
    /// async fn run(models: Vec<Model>, end: impl Future<Output = ()> + Send + 'static) -> std::io::Result<()> {
    ///     let server = Server::new(models, ServerOptions::default()).map_err(std::io::Error::other)?;
    ///     let app = Router::new().nest("/llm/", server.router());
    ///     let listener = tokio::net::TcpListener::bind("127.0.0.1:8080").await?;
    ///     let ended = async move {
    ///         end.await;
    ///         server.stop().await;
    ///     };
    ///     axum::serve(listener, app).with_graceful_shutdown(ended).await
    /// }
    /// ```
    pub fn router(&self) -> Router {
        let missing = async |request: Request| {
            let message = format!("there is no {} here", request.uri().path());
            Problem::request(message).with_status(StatusCode::NOT_FOUND)
        };
        let method = async |request: Request| {
            let path = request.uri().path();
            let message = format!("{path} does not take {}", request.method());
            let problem = Problem::request(message).with_status(StatusCode::METHOD_NOT_ALLOWED);
            refusal(path, &problem)
        };
        let page = if self.shared.options.page { page::routes() } else { Router::new() };
        routes()
            .into_iter()
            .fold(page, |router, (path, methods)| router.route(path, methods))
            .fallback(missing)
            .method_not_allowed_fallback(method)
            .layer(from_fn_with_state(self.shared.clone(), around))
            .with_state(self.shared.clone())
    }

    /// [`serve_on`](Self::serve_on) a port.
    ///
    /// # Errors
    ///
    /// The listener's.
    pub async fn serve(
        self,
        listener: TcpListener,
        stop: impl Future<Output = ()>,
    ) -> io::Result<()> {
        let listener = listener.tap_io(|stream| tune(stream));
        self.serve_on(listener, stop).await
    }

    /// [`serve`](Self::serve) by TLS.
    ///
    /// # Errors
    ///
    /// The listener's.
    pub async fn serve_tls(
        self,
        listener: TcpListener,
        certificate: &Certificate,
        stop: impl Future<Output = ()>,
    ) -> io::Result<()> {
        let listener = certificate.secure(listener);
        let listener = listener.tap_io(|stream| tune(stream.get_ref().0));
        self.serve_on(listener, stop).await
    }

    /// From now on new requests get 503, and those that run go on for
    /// [`shutdown_timeout`](ServerOptions::shutdown_timeout) at most; what is not whole by then ends with an error that
    /// says so. Ready when none runs; clients may still have to read. [`serve_on`](Self::serve_on) does it by itself.
    pub async fn stop(&self) {
        let Shared { models, options, stopping, .. } = &*self.shared;
        stopping.store(true, Ordering::SeqCst);
        tracing::info!("stopping: answers may take {:?} more", options.shutdown_timeout);
        self.idle_within(options.shutdown_timeout).await;
        if !self.shared.is_idle() {
            tracing::warn!("the time is up: answers are cut off");
            models.iter().for_each(|model| model.cut_off());
            // Which they see behind the step that runs.
            self.idle_within(Worker::LAST_STEP).await;
        }
    }

    /// Ready when no request runs, or when `time` is up.
    async fn idle_within(&self, time: Duration) {
        let deadline = Instant::now() + time;
        while !self.shared.is_idle() && Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Answers who connects to `listener`, until `stop` is ready, and then [stops](Self::stop).
    ///
    /// # Errors
    ///
    /// The listener's.
    pub async fn serve_on<L: Listener>(
        self,
        listener: L,
        stop: impl Future<Output = ()>,
    ) -> io::Result<()>
    where
        L::Addr: Debug,
    {
        let close = Arc::new(Notify::new());
        let closed = close.clone();
        let serving = serve(listener, self.router())
            .with_graceful_shutdown(async move { closed.notified().await });
        let mut serving = tokio::spawn(serving.into_future());
        tokio::select! {
            ended = &mut serving => return ended.map_err(io::Error::other)?,
            () = stop => {}
        }
        let deadline = Instant::now() + self.shared.options.shutdown_timeout;
        self.stop().await;
        close.notify_one();
        // Those who read slowly have the rest of the time.
        let last = deadline.max(Instant::now() + LAST_BYTES);
        match tokio::time::timeout_at(last.into(), &mut serving).await {
            Ok(ended) => ended.map_err(io::Error::other)?,
            Err(_) => {
                serving.abort();
                Ok(())
            }
        }
    }
}

/// Has small pieces go out as they come, and a connection end whose other side has vanished: a laptop that sleeps, an
/// address that a router has forgotten. A socket without that is only slower, and stays.
fn tune(stream: &TcpStream) {
    let _ = stream.set_nodelay(true);
    let _ = SockRef::from(stream).set_tcp_keepalive(&TcpKeepalive::new().with_time(SILENCE));
}

/// What is where. [`openapi`] describes it.
pub(crate) fn routes() -> [(&'static str, MethodRouter<Arc<Shared>>); 19] {
    [
        ("/v1/chat/completions", post(chat::answer)),
        ("/v1/completions", post(completions::answer)),
        ("/v1/embeddings", post(embeddings::answer)),
        (messages::PATHS[0], post(messages::answer)),
        (messages::PATHS[1], post(messages::count)),
        ("/v1/responses", post(responses::answer)),
        ("/v1/responses/{id}", get(responses::one).delete(responses::delete)),
        ("/v1/models", get(models::list)),
        ("/v1/models/{*name}", get(models::one)),
        (rerank::PATHS[0], post(rerank::answer)),
        (rerank::PATHS[1], post(rerank::answer)),
        ("/infill", post(infill::answer)),
        ("/tokenize", post(tokens::tokenize)),
        ("/detokenize", post(tokens::detokenize)),
        ("/health", get(health)),
        ("/ready", get(ready)),
        (METRICS, get(numbers)),
        ("/version", get(version)),
        ("/openapi.json", get(openapi::answer)),
    ]
}

/// What happens to every request: its id, its key, the key's limits, its span, its line in the log.
async fn around(State(shared): State<Arc<Shared>>, request: Request, next: Next) -> Response {
    let given = request.headers().get(REQUEST_ID).and_then(|it| it.to_str().ok());
    let good =
        |id: &&str| (1..=128).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_graphic());
    let id = given.filter(good).map_or_else(unique_id, str::to_owned);
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let ServerOptions { page, open_metrics, .. } = shared.options;
    let probe = OPEN.contains(&path.as_str());
    let open = probe || (page && page::is_open(&path)) || (open_metrics && path == METRICS);
    let route = request.extensions().get::<MatchedPath>().map(MatchedPath::as_str);
    // The name of what is kept here is as good as a key to it.
    let shown = if path.starts_with(RESPONSE) { RESPONSE } else { &path }.to_owned();
    let span = trace::request(&id, &method, &shown, route);
    if let Some(begin) = shared.options.begin_span {
        begin(&span, request.headers());
    }
    let ServerOptions { hosts, keys, .. } = &shared.options;
    let named = if probe { Ok(()) } else { hosts.admit(request.uri(), request.headers()) };
    let admitted = named.and_then(|()| if open { Ok(None) } else { keys.admit(request.headers()) });
    let key = admitted.as_ref().ok().copied().flatten();
    let refuse = |problem: Problem| refusal(&path, &problem);
    let answer = async {
        match admitted {
            Ok(Some(key)) if limits::counts(&method, &path) => {
                shared.limiter.answer(key, next.run(request), refuse).await
            }
            Ok(_) => next.run(request).await,
            Err(problem) => refuse(problem),
        }
    };
    let mut line = Line::new(id, key, format!("{method} {shown}"));
    let mut response = answer.instrument(span.clone()).await;
    trace::responded(&span, response.status());
    if let Ok(id) = HeaderValue::from_str(&line.id) {
        response.headers_mut().insert(REQUEST_ID, id);
    }
    line.answered(&mut response);
    // One for every few tokens that somebody looks at would hide the others.
    if path == page::MARKDOWN && response.status().is_success() {
        line.omit();
    }
    body::holding(response, (Lasting(span), line))
}

/// `problem`, as clients of `path` read it.
fn refusal(path: &str, problem: &Problem) -> Response {
    match messages::PATHS.contains(&path) {
        true => messages::in_our_form(problem),
        false => problem.clone().into_response(),
    }
}

async fn health(State(shared): State<Arc<Shared>>) -> Result<Response, Problem> {
    check_alive(&shared)?;
    Ok(body::json(StatusCode::OK, &json!({"status": "ok"})))
}

fn check_alive(shared: &Shared) -> Result<(), Problem> {
    let Some(model) = shared.models.iter().find(|model| !model.is_alive()) else { return Ok(()) };
    let message = format!("the model {:?} does not step any more", model.name());
    Err(Problem::internal(message).with_status(StatusCode::SERVICE_UNAVAILABLE))
}

async fn ready(State(shared): State<Arc<Shared>>) -> Result<Response, Problem> {
    shared.check_open()?;
    check_alive(&shared)?;
    Ok(body::json(StatusCode::OK, &json!({"status": "ok"})))
}

async fn numbers(State(shared): State<Arc<Shared>>) -> Response {
    let models: Vec<_> = shared.models.iter().map(|it| (it.name(), it.numbers())).collect();
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    body::with_type(StatusCode::OK, kind, metrics::text(&models, shared.limiter.refused()))
}

async fn version(State(shared): State<Arc<Shared>>) -> Response {
    body::json(StatusCode::OK, &json!({"version": shared.options.version}))
}

/// Does what takes a while, beside the thread that serves.
pub(crate) async fn blocking<T: Send + 'static>(
    model: &Arc<Model>,
    work: impl FnOnce(&Model) -> Result<T, Problem> + Send + 'static,
) -> Result<T, Problem> {
    let model = model.clone();
    aside(move || work(&model)).await?
}

/// The same, of what needs no model.
pub(crate) async fn aside<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Problem> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| Problem::internal(format!("the work on a request ended: {error}")))
}

/// A name that no other request has: 64 random bits.
pub(crate) fn unique_id() -> String {
    format!("{:016x}", RandomState::new().build_hasher().finish())
}

#[cfg(test)]
mod tests;
