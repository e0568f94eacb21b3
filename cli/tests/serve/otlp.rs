//! Spans of requests, as a collector of OpenTelemetry gets them.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, channel};

use crate::server::*;
use crate::support;
use crate::tools::with_tools;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value::Value as Any};
use opentelemetry_proto::tonic::trace::v1::{Span, span::SpanKind, status::StatusCode};
use prost::Message as _;
use serde_json::{Value, json};

/// A listener that keeps what it is sent, and its address.
fn collector() -> (String, Receiver<ExportTraceServiceRequest>) {
    let listener = tiny_http::Server::http("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.server_addr());
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        for mut request in listener.incoming_requests() {
            assert_eq!(request.url(), "/v1/traces");
            let kind = request.headers().iter().find(|it| it.field.equiv("content-type")).unwrap();
            assert_eq!(kind.value.as_str(), "application/x-protobuf");
            let mut bytes = Vec::new();
            request.as_reader().read_to_end(&mut bytes).unwrap();
            sender.send(ExportTraceServiceRequest::decode(&bytes[..]).unwrap()).unwrap();
            request.respond(tiny_http::Response::empty(200)).unwrap();
        }
    });
    (address, receiver)
}

fn known(attributes: &[KeyValue]) -> BTreeMap<&str, Value> {
    let value = |it: &KeyValue| match it.value.clone().unwrap().value.unwrap() {
        Any::StringValue(text) => json!(text),
        Any::IntValue(number) => json!(number),
        Any::DoubleValue(number) => json!(number),
        other => panic!("{other:?}"),
    };
    let all: BTreeMap<_, _> = attributes.iter().map(|it| (it.key.as_str(), value(it))).collect();
    assert_eq!(all.len(), attributes.len(), "each once: {attributes:?}");
    all
}

#[test]
fn a_collector_gets_a_span_of_every_request() {
    let (address, spans) = collector();
    let folder = with_tools("qwen3");
    let models = ["-m", TALES, "-m", folder.path().to_str().unwrap()];
    let environment = [("OTEL_EXPORTER_OTLP_ENDPOINT", &*address), ("OTEL_SERVICE_NAME", "tales")];
    let mut server = Server::with(&models, &["--kv-memory", "16"], &environment);

    let trace = "0af7651916cd43dd8448eb211c80319c";
    server.extra = format!("traceparent: 00-{trace}-b7ad6b7169203331-01\r\nx-request-id: mine\r\n");
    let streamed = json!({
        "model": "tiny-tales", "prompt": ["Once upon a time ".repeat(200), "The fox ".repeat(300)], "max_tokens": 5,
        "ignore_eos": true, "stream": true, "stream_options": {"include_usage": true},
    });
    let usage = server.post("/v1/completions", &streamed).events().pop().unwrap();
    let usage = usage["usage"].clone();
    // The caller has decided that nobody looks at this one.
    server.extra = format!("traceparent: 00-{trace}-b7ad6b7169203331-00\r\n");
    assert_eq!(server.get("/version").status, 200);
    server.extra.clear();
    let chat = folder.path().file_name().unwrap().to_str().unwrap();
    let asked = json!({
        "model": chat, "max_tokens": 3, "messages": [{"role": "user", "content": "Hello!"}],
    });
    for path in ["/v1/chat/completions", "/v1/messages"] {
        assert_eq!(server.post(path, &asked).status, 200);
    }
    let input = json!({"model": "tiny-tales", "input": "Once"});
    let embedded = server.post("/v1/embeddings", &input).json()["usage"]["prompt_tokens"].clone();
    server.get("/v1/models/no/such").error(404);
    server.get("/no/such").error(404);
    let mut late = endless();
    late["model"] = "tiny-tales".into();
    late["timeout"] = 0.1.into();
    let (reply, asked) = server.post_late("/v1/completions", &late);
    assert_eq!(reply.events().pop().unwrap()["error"]["code"], "timeout");
    server.logged("INFO POST /v1/completions request=\"mine\"");
    // What is left is sent before the end.
    server.signal("-TERM");
    assert_eq!(server.ended(), Some(0));

    let sent: Vec<_> = spans.try_iter().flat_map(|it| it.resource_spans).collect();
    for of in &sent {
        let resource = known(&of.resource.as_ref().unwrap().attributes);
        assert_eq!(resource["service.name"], "tales");
    }
    let all = sent.iter().flat_map(|it| &it.scope_spans).flat_map(|it| &it.spans);
    let all: Vec<&Span> = all.collect();
    let names: Vec<_> = all.iter().map(|it| it.name.as_str()).collect();
    let (chat, completion) = (format!("chat {chat}"), "text_completion tiny-tales");
    let mut expected =
        vec![completion, &chat, &chat, "embeddings tiny-tales", "GET /v1/models/{*name}", "GET"];
    expected.extend(std::iter::repeat_n(completion, asked));
    assert_eq!(names, expected);
    assert!(all.iter().all(|it| it.kind() == SpanKind::Server));
    let attributes: Vec<_> = all.iter().map(|it| known(&it.attributes)).collect();

    let (first, of) = (all[0], &attributes[0]);
    let hex = |bytes: &[u8]| bytes.iter().map(|it| format!("{it:02x}")).collect::<String>();
    assert_eq!(
        (hex(&first.trace_id), hex(&first.parent_span_id)),
        (trace.into(), "b7ad6b7169203331".into())
    );
    assert!(all[1].parent_span_id.is_empty() && hex(&all[1].trace_id) != trace);
    let text = [
        ("gen_ai.operation.name", "text_completion"),
        ("gen_ai.provider.name", "iree-llm"),
        ("gen_ai.request.model", "tiny-tales"),
        ("gen_ai.request.id", "mine"),
        ("http.request.method", "POST"),
        ("http.route", "/v1/completions"),
        ("url.path", "/v1/completions"),
    ];
    for (name, value) in text {
        assert_eq!(of[name], value, "{name}");
    }
    assert_eq!(of["http.response.status_code"], 200);
    assert_eq!(of["gen_ai.usage.input_tokens"], usage["prompt_tokens"]);
    assert_eq!(of["gen_ai.usage.output_tokens"], 10);
    assert_eq!(of["gen_ai.usage.cache_read.input_tokens"], 0);
    // The span lasts until the stream has ended, and not until its head, which comes long before the first token.
    let lasted = (first.end_time_unix_nano - first.start_time_unix_nano) as f64 * 1e-9;
    let time = |name: &str| of[name].as_f64().unwrap();
    let (queue, token) =
        (time("gen_ai.latency.time_in_queue"), time("gen_ai.latency.time_to_first_token"));
    assert!(0.0 <= queue && queue <= token && token <= lasted, "{queue} {token} {lasted}");

    assert_eq!(attributes[1]["http.route"], "/v1/chat/completions");
    assert_eq!(attributes[2]["http.route"], "/v1/messages");
    assert_eq!(attributes[2]["gen_ai.usage.output_tokens"], 3);
    assert_eq!(attributes[3]["gen_ai.usage.input_tokens"], embedded);
    assert_eq!(attributes[4]["http.response.status_code"], 404);
    assert!(!attributes[5].contains_key("http.route"));
    assert!(attributes[6..].iter().all(|it| it["error.type"] == "504"));
    let status = |at: usize| all[at].status.clone().unwrap_or_default().code();
    assert_eq!((status(0), status(4)), (StatusCode::Unset, StatusCode::Unset));
    assert!((6..all.len()).all(|at| status(at) == StatusCode::Error));
}

#[test]
fn a_collector_that_is_not_there_stops_nothing() {
    let endpoint = ["--otlp-endpoint", "http://127.0.0.1:9"];
    let mut server = Server::with(&["-m", TALES], &endpoint, &[("OTEL_BSP_SCHEDULE_DELAY", "50")]);
    server.complete(&json!({"prompt": "a", "max_tokens": 1}));
    server.logged("ERROR");
    server.complete(&json!({"prompt": "a", "max_tokens": 1}));
    server.signal("-TERM");
    assert_eq!(server.ended(), Some(0));
    // An empty variable is none.
    drop(Server::with(&["-m", TALES], &[], &[("OTEL_EXPORTER_OTLP_ENDPOINT", "")]));
    let message = support::fails(1, &["serve", "-m", TALES, "--otlp-endpoint", "localhost:4318"]);
    assert!(message.contains("give http://HOST:PORT"), "{message}");
}
