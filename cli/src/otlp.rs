//! Spans for a collector of OpenTelemetry, by OTLP: protobuf over HTTP.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use opentelemetry::propagation::TextMapPropagator as _;
use opentelemetry::trace::TracerProvider as _;
use opentelemetry_http::{Bytes, HeaderExtractor, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::SdkTracerProvider;
use server::HeaderMap;
use tracing::{Level, Span, Subscriber};
use tracing_opentelemetry::OpenTelemetrySpanExt as _;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::registry::LookupSpan;

use iree_llm::hub::roots;

/// How long the collector may take to answer, as the standard has it.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Spans on their way to a collector, which has to be [finished](Self::finish).
pub struct Exporter(SdkTracerProvider);

impl Exporter {
    /// Sends to the collector at `endpoint` (`http://HOST:PORT`).
    ///
    /// # Errors
    ///
    /// `endpoint` is no such address, or a variable of the environment that the standard knows is wrong.
    pub fn start(endpoint: &str) -> Result<Self> {
        let is_web = endpoint.starts_with("http://") || endpoint.starts_with("https://");
        ensure!(is_web, "--otlp-endpoint {endpoint}: give http://HOST:PORT or https://HOST:PORT");
        let agent = ureq::Agent::config_builder()
            .tls_config(ureq::tls::TlsConfig::builder().root_certs(roots()).build())
            .timeout_global(Some(TIMEOUT))
            .http_status_as_error(false)
            .build()
            .new_agent();
        let exporter = SpanExporter::builder()
            .with_http()
            .with_protocol(Protocol::HttpBinary)
            .with_endpoint(format!("{}/v1/traces", endpoint.trim_end_matches('/')))
            .with_http_client(Client(agent))
            .build()
            .with_context(|| format!("--otlp-endpoint {endpoint}"))?;
        // What the environment says of it goes first.
        let known = Resource::builder().build().get(&"service.name".into());
        let mut resource = Resource::builder();
        if known.is_none_or(|name| name.as_str().starts_with("unknown_service")) {
            resource = resource.with_service_name("iree-llm");
        }
        let provider = SdkTracerProvider::builder()
            .with_batch_exporter(exporter)
            .with_resource(resource.build())
            .build();
        Ok(Self(provider))
    }

    /// What takes the spans of the server, and the warnings in them.
    pub fn layer<S: Subscriber + for<'a> LookupSpan<'a>>(&self) -> impl Layer<S> {
        let ours = filter_fn(|it| {
            it.target().starts_with("server") && (it.is_span() || *it.level() <= Level::WARN)
        });
        tracing_opentelemetry::layer()
            .with_tracer(self.0.tracer("iree-llm"))
            // Names are known when fields have been read, which a span that is begun does not take.
            .with_context_activation(false)
            .with_tracked_inactivity(false)
            .with_location(false)
            .with_threads(false)
            .with_filter(ours)
    }

    /// Sends what is left, which takes some seconds at most.
    pub fn finish(self) {
        if let Err(error) = self.0.shutdown() {
            tracing::warn!("the last spans did not reach the collector: {error}");
        }
    }
}

/// Has `span` go on with the trace that `headers` name (`traceparent`, `tracestate`), if they do.
pub fn follow(span: &Span, headers: &HeaderMap) {
    let caller = TraceContextPropagator::new().extract(&HeaderExtractor(headers));
    // A span that nobody subscribes to has no parent.
    let _ = span.set_parent(caller);
}

/// The HTTP client that the program has anyway. It blocks the exporter's own thread.
#[derive(Debug)]
struct Client(ureq::Agent);

#[async_trait::async_trait]
impl HttpClient for Client {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let (head, mut body) = self.0.run(request.map(|it| it.to_vec()))?.into_parts();
        Ok(Response::from_parts(head, body.read_to_vec()?.into()))
    }
}
