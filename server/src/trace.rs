//! A span of each request, for whoever subscribes to spans of `tracing`; nothing is done where nobody does.
//!
//! Its fields are OpenTelemetry's semantic conventions of HTTP servers and of generative AI. What these
//! have no name for (the request's id, and times) is called what vLLM calls it.

use axum::http::{Method, StatusCode};
use tracing::Span;
use tracing::field::Empty;

use crate::answer::Usage;

/// The span of a request of the id `id` to `path`, which is one of `route` if it is anything here. It is
/// entered by whoever works on the request; [`Lasting`] ends it.
pub(crate) fn request(id: &str, method: &Method, path: &str, route: Option<&str>) -> Span {
    let method = method.as_str();
    // Of few names only, as paths are not.
    let name = route.map_or_else(|| method.to_owned(), |route| format!("{method} {route}"));
    tracing::info_span!(
        "request",
        otel.name = name,
        otel.kind = "server",
        otel.status_code = Empty,
        error.r#type = Empty,
        http.request.method = method,
        http.route = route,
        http.response.status_code = Empty,
        url.path = path,
        gen_ai.operation.name = Empty,
        gen_ai.provider.name = Empty,
        gen_ai.request.id = id,
        gen_ai.request.model = Empty,
        gen_ai.usage.input_tokens = Empty,
        gen_ai.usage.cache_read.input_tokens = Empty,
        gen_ai.usage.output_tokens = Empty,
        gen_ai.latency.time_in_queue = Empty,
        gen_ai.latency.time_to_first_token = Empty,
    )
}

/// The span of a request for as long as it takes: by itself it would end, for collectors, with what was last done in it,
/// which is the head of the answer.
pub(crate) struct Lasting(pub Span);

impl Drop for Lasting {
    fn drop(&mut self) {
        self.0.in_scope(|| ());
    }
}

/// The request at hand has `model` do `operation`.
pub(crate) fn works(operation: &str, model: &str) {
    let span = Span::current();
    span.record("otel.name", format!("{operation} {model}"));
    span.record("gen_ai.operation.name", operation);
    span.record("gen_ai.provider.name", "iree-llm");
    span.record("gen_ai.request.model", model);
}

/// The request of `span` has its answers, which took `usage`.
pub(crate) fn answered(span: &Span, usage: &Usage) {
    read(span, usage.prompt_tokens());
    span.record("gen_ai.usage.cache_read.input_tokens", usage.cached_tokens() as i64);
    span.record("gen_ai.usage.output_tokens", usage.tokens as i64);
    let seconds = |time: std::time::Duration| time.as_secs_f64();
    span.record("gen_ai.latency.time_in_queue", usage.waited.map(seconds));
    span.record("gen_ai.latency.time_to_first_token", usage.first_token.map(seconds));
}

/// The prompts of the request of `span` have so many `tokens`. (Unsigned numbers would be sent as text.)
pub(crate) fn read(span: &Span, tokens: usize) {
    span.record("gen_ai.usage.input_tokens", tokens as i64);
}

/// The request of `span` is answered with `status`.
pub(crate) fn responded(span: &Span, status: StatusCode) {
    span.record("http.response.status_code", i64::from(status.as_u16()));
    if status.is_server_error() {
        failed(span, status);
    }
}

/// The request of `span` has failed by us, as `status` says, if only after its answer had begun.
pub(crate) fn failed(span: &Span, status: StatusCode) {
    span.record("otel.status_code", "ERROR");
    span.record("error.type", status.as_str());
}
