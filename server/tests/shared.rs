//! A model that is served, and that the program asks by itself.

use std::path::Path;
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::http::{Request, StatusCode};
use iree_llm::{Ask, Llm, LlmOptions};
use serde_json::{Value, json};
use server::{Model, ModelOptions, Server, ServerOptions};
use tower::ServiceExt as _;

fn request(path: &str, body: &Value) -> Request<Body> {
    let request = Request::post(path).header("content-type", "application/json");
    request.body(Body::from(body.to_string())).unwrap()
}

#[tokio::test]
async fn a_server_that_stops_ends_its_own_answers_alone() {
    let mut options = LlmOptions::default();
    options.session.cache_dir = Some(Path::new(env!("CARGO_TARGET_TMPDIR")).join("compiled"));
    options.session.weights_cache = false;
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../models/tiny-tales");
    let llm = Llm::open_with(folder, &options).unwrap();
    let mut options = ServerOptions::default();
    options.shutdown_timeout = Duration::from_millis(100);
    let model = Model::new(llm.clone(), ModelOptions::default());
    let server = Server::new(vec![model], options).unwrap();
    let router = server.router();

    let endless = json!({"model": "tiny-tales", "prompt": "The old dog", "max_tokens": 1900,
        "ignore_eos": true, "temperature": 0, "stream": true});
    let answer = router.clone().oneshot(request("/v1/completions", &endless)).await.unwrap();
    assert_eq!(answer.status(), StatusCode::OK);
    let ask = Ask { max_tokens: Some(1900), ignore_eos: true, ..Ask::default() };
    let own = llm.complete("Once upon a time", &ask).unwrap();

    let read = tokio::spawn(to_bytes(answer.into_body(), usize::MAX));
    server.stop().await;
    let text = read.await.unwrap().unwrap();
    let text = std::str::from_utf8(&text).unwrap();
    assert!(text.contains("\"error\""), "{text}");
    let late = router.oneshot(request("/v1/completions", &endless)).await.unwrap();
    assert_eq!(late.status(), StatusCode::SERVICE_UNAVAILABLE);

    // The program's go on.
    assert_eq!(own.whole().await.unwrap().end.timings.tokens, 1900);
    let more = llm.complete("A king had", &Ask { max_tokens: Some(3), ..Ask::default() }).unwrap();
    assert_eq!(more.whole().await.unwrap().end.timings.tokens, 3);
}
