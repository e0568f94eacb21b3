//! A request to the server, with the small model of the repository behind it: the first line is the path, the
//! rest is the body. Every answer is one of the API's, none is a failure of ours, and nothing is left of it.
#![no_main]

use std::path::Path;
use std::sync::LazyLock;

use axum::body::{Body, to_bytes};
use axum::http::Request;
use iree_llm::{Llm, Vectors};
use libfuzzer_sys::fuzz_target;
use server::{Model, ModelOptions, Router, Server, ServerOptions};
use text::{ChatTemplate, Tokenizer};
use tokio::runtime::Runtime;
use tower::ServiceExt as _;
use xla_session::batching::BatcherOptions;
use xla_session::{Batcher, Engine, EngineOptions, SessionOptions};

/// Answers are short, so that there are many.
const CONTEXT: usize = 48;
/// What no answer is longer than.
const MOST: usize = 64 << 20;
const TEMPLATE: &str = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}\
    {% for tool in tools %}<tool_call>{{ tool | tojson }}</tool_call>{% endfor %}";

static PROGRAM: LazyLock<(Runtime, Router)> = LazyLock::new(|| {
    let fuzz = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = fuzz.join("../models/tiny-tales");
    let cache_dir = Some(fuzz.join("target/compiled"));
    let options = SessionOptions { cache_dir, threads: Some(1), ..SessionOptions::default() };
    let model = xla_session::Model::open(&folder, &options).unwrap();
    let mut options = EngineOptions::default();
    options.context = Some(CONTEXT);
    options.kv_bytes = Some(8 * model.page_bytes() as u64);
    let engine = Engine::new(&model, &options).unwrap();
    let batcher = Batcher::new(engine, &BatcherOptions::default()).unwrap();
    let tokenizer = Tokenizer::from_dir(&folder).unwrap().unwrap();
    let template = tempfile::tempdir().unwrap();
    std::fs::write(template.path().join("chat_template.jinja"), TEMPLATE).unwrap();
    let template = ChatTemplate::from_dir(template.path()).unwrap();
    let llm =
        Llm::new("tiny", batcher, tokenizer, template, Ok(Vectors::default()), Ok(None)).unwrap();
    let model = Model::new(llm, ModelOptions::default());
    let server = Server::new(vec![model], ServerOptions::default()).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    // The model lives as long as the server, and that as long as the program.
    let router = server.router();
    std::mem::forget(server);
    (runtime, router)
});

async fn answer(router: &Router, method: &str, path: &str, body: &[u8]) -> Option<(u16, Vec<u8>)> {
    let request =
        Request::builder().method(method).uri(path).header("Content-Type", "application/json");
    let request = request.body(Body::from(body.to_vec())).ok()?;
    let response = router.clone().oneshot(request).await.unwrap();
    let status = response.status().as_u16();
    Some((status, to_bytes(response.into_body(), MOST).await.unwrap().to_vec()))
}

fuzz_target!(|bytes: &[u8]| {
    let line = bytes.iter().position(|&byte| byte == b'\n').unwrap_or(bytes.len());
    let Ok(path) = std::str::from_utf8(&bytes[..line]) else { return };
    let body = bytes.get(line + 1..).unwrap_or_default();
    if !path.starts_with('/') {
        return;
    }
    let (runtime, router) = &*PROGRAM;
    runtime.block_on(async {
        let Some((status, text)) = answer(router, "POST", path, body).await else { return };
        assert!(matches!(status, 200 | 400..=499), "{status}: {}", String::from_utf8_lossy(&text));
        if status != 200 && path.starts_with("/v1/") {
            let error: serde_json::Value = serde_json::from_slice(&text).expect("an error is JSON");
            assert!(error["error"]["message"].is_string(), "{error}");
        }
        // The thread of the model may still be at its last step.
        for tries in 0.. {
            let (_, metrics) = answer(router, "GET", "/metrics", b"").await.unwrap();
            let metrics = String::from_utf8(metrics).unwrap();
            let held = metrics
                .lines()
                .find(|it| it.starts_with("iree_llm_kv_pages{") && it.contains("held"));
            if held.is_some_and(|it| it.ends_with(" 0")) {
                break;
            }
            assert!(tries < 10_000, "pages are held: {metrics}");
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
    });
});
