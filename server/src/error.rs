//! What went wrong: with a server, and with a request, in the form that OpenAI's clients read.

use std::time::Duration;

use axum::extract::rejection::PathRejection;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use crate::limits::whole_seconds;

/// Why there is no server as it was asked for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is none to answer.
    #[error("there is no model to serve")]
    NoModel,
    /// Requests could not name one of them.
    #[error("two models are called {0:?}: give one another name")]
    SameName(String),
    /// No request can bring this key.
    #[error("line {line}: a key has letters, digits and signs of ASCII alone")]
    Key {
        /// Where it stands, counted from 1.
        line: usize,
    },
}

/// An answer that says what is wrong: `{"error": {"message", "type", "param", "code"}}`.
#[derive(Debug, Clone)]
pub(crate) struct Problem {
    status: StatusCode,
    kind: &'static str,
    message: String,
    param: Option<String>,
    code: Option<&'static str>,
    /// Tokens of a prompt, and those of the context that it does not fit.
    too_long: Option<(u32, u32)>,
    retry_after: Option<u64>,
    /// Whether the same request is not answered otherwise.
    is_final: bool,
}

/// Said of a prompt that does not fit.
pub(crate) const TOO_LONG: &str = "context_length_exceeded";

impl Problem {
    fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Self {
        let message = message.into();
        let (param, code, too_long, retry_after) = (None, None, None, None);
        Self { status, kind, message, param, code, too_long, retry_after, is_final: false }
    }

    /// The same request has the same answer: clients that send one again where a server fails are told not to.
    fn once(self) -> Self {
        Self { is_final: true, ..self }
    }

    /// The request is wrong as a whole.
    pub(crate) fn request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request_error", message)
    }

    /// The field `param` is wrong.
    pub(crate) fn field(param: impl Into<String>, message: impl Into<String>) -> Self {
        let param = param.into();
        let message = format!("`{param}`: {}", message.into());
        Self { param: Some(param), ..Self::request(message) }
    }

    /// The path is none that could be one of ours, as where it is no UTF-8.
    pub(crate) fn path(rejection: &PathRejection) -> Self {
        Self::request(rejection.body_text()).with_status(rejection.status())
    }

    /// Another status than 400.
    pub(crate) fn with_status(self, status: StatusCode) -> Self {
        Self { status, ..self }
    }

    /// A word that programs can match.
    pub(crate) fn with_code(self, code: &'static str) -> Self {
        Self { code: Some(code), ..self }
    }

    /// No model is called `name`.
    pub(crate) fn no_such_model(name: &str, known: &str) -> Self {
        Self::field("model", format!("there is no model {name:?} here; there are: {known}"))
            .with_status(StatusCode::NOT_FOUND)
            .with_code("model_not_found")
    }

    /// There is no room for one more request.
    pub(crate) fn queue_full(most: usize) -> Self {
        let message = format!("{most} requests run or wait, and no more may: try again later");
        let problem = Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", message);
        Self { retry_after: Some(1), ..problem }.with_code("queue_full")
    }

    /// The key of the request has had what it may have; in `wait` there may be more.
    pub(crate) fn rate_limited(message: String, wait: Duration) -> Self {
        let problem = Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", message);
        Self { retry_after: Some(whole_seconds(wait).max(1)), ..problem }
            .with_code("rate_limit_exceeded")
    }

    /// Nothing new is begun.
    pub(crate) fn stopping() -> Self {
        let message = "the server is stopping: send the request to another one, or again later";
        let problem = Self::new(StatusCode::SERVICE_UNAVAILABLE, "server_error", message);
        Self { retry_after: Some(5), ..problem }.with_code("server_stopping")
    }

    /// The time that the request gave was up before the answer was whole.
    pub(crate) fn too_late() -> Self {
        let message = "the answer was not whole within the `timeout` of the request: give it more, or \
                       ask for fewer tokens";
        Self::new(StatusCode::GATEWAY_TIMEOUT, "timeout_error", message).with_code("timeout").once()
    }

    /// The answer could not be kept to its form.
    pub(crate) fn unkept(why: &str) -> Self {
        Self::internal(format!("the form of the answer could not be kept to: {why}")).once()
    }

    /// The time to stop was up before the answer was whole.
    pub(crate) fn cut_off() -> Self {
        let message = "the server has stopped before the answer was whole: send the request again";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "server_error", message)
            .with_code("server_stopping")
    }

    /// Who asks gave none of the keys.
    pub(crate) fn unauthorized() -> Self {
        let message = "no valid API key: give one as `Authorization: Bearer KEY` or as `x-api-key`";
        Self::new(StatusCode::UNAUTHORIZED, "authentication_error", message)
            .with_code("invalid_api_key")
    }

    /// The request calls the server by a name that is not its own.
    pub(crate) fn foreign_host(name: &str) -> Self {
        let message = format!(
            "this server is for its own machine and is not called {name:?}: ask for localhost or an address, or \
             have it started with `--allow-host {name}`"
        );
        Self::new(StatusCode::FORBIDDEN, "permission_error", message).with_code("host_not_allowed")
    }

    /// Our own failure.
    pub(crate) fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "server_error", message)
    }

    /// What an engine says of a request, or of itself.
    pub(crate) fn engine(error: &xla_session::Error) -> Self {
        use xla_session::Error::{
            ContextFull, EmptyPrompt, RequestTooLarge, TokenOutOfRange, Unsupported,
        };
        let text = error.to_string();
        match error {
            // In OpenAI's words, by which clients know that they have to shorten what they send.
            ContextFull { needed, context, .. } => {
                let message =
                    format!("This model's maximum context length is {context} tokens: {text}");
                let problem = Self::request(message).with_code(TOO_LONG);
                let number = |tokens: &usize| u32::try_from(*tokens).unwrap_or(u32::MAX);
                Self { too_long: Some((number(needed), number(context))), ..problem }
            }
            RequestTooLarge { .. } => Self::request(text).with_code(TOO_LONG),
            EmptyPrompt | TokenOutOfRange { .. } | Unsupported(_) => Self::request(text),
            _ => Self::internal(text),
        }
    }

    pub(crate) fn status(&self) -> StatusCode {
        self.status
    }

    /// Its JSON.
    pub(crate) fn json(&self) -> Value {
        let Self { kind, message, param, code, .. } = self;
        json!({"error": {"message": message, "type": kind, "param": param, "code": code}})
    }

    /// The tokens of the prompt and those of the context, where it does not fit.
    pub(crate) fn too_long(&self) -> Option<(u32, u32)> {
        self.too_long
    }

    /// Whether it is our own failure.
    pub(crate) fn is_internal(&self) -> bool {
        self.status == StatusCode::INTERNAL_SERVER_ERROR
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        if self.is_internal() {
            tracing::error!("{}", self.message);
        }
        let mut response = crate::body::json(self.status, &self.json());
        if let Some(seconds) = self.retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.is_final {
            // OpenAI's and Anthropic's clients read it.
            let never = HeaderValue::from_static("false");
            response.headers_mut().insert("x-should-retry", never);
        }
        if self.status == StatusCode::UNAUTHORIZED {
            let scheme = HeaderValue::from_static("Bearer");
            response.headers_mut().insert(header::WWW_AUTHENTICATE, scheme);
        }
        response
    }
}
