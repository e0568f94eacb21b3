use axum::body::{Body, to_bytes};
use axum::http::HeaderName;
use axum::http::header::{AUTHORIZATION, HOST};
use axum::routing;
use serde_json::Value;
use tower::ServiceExt as _;

use super::*;

/// One without models, which is enough for what is not about them.
fn server(options: ServerOptions) -> Server {
    let shared = Shared {
        models: Vec::new(),
        limiter: Limiter::new(options.limits),
        options,
        responses: Store::default(),
        stopping: AtomicBool::new(false),
    };
    Server { shared: Arc::new(shared) }
}

async fn get(app: &Router, path: &str, header: Option<(HeaderName, &str)>) -> (StatusCode, String) {
    let mut request = Request::builder().uri(path);
    if let Some((name, value)) = header {
        request = request.header(name, value);
    }
    let answer = app.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
    let status = answer.status();
    let body = to_bytes(answer.into_body(), 1 << 20).await.unwrap();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

#[tokio::test]
async fn it_can_be_mounted_below_a_path_that_ends_in_a_slash() {
    let keys = Keys::parse("alpha").unwrap();
    let options = ServerOptions { keys, ..ServerOptions::default() };
    let app = Router::new()
        .route("/", routing::get(async || "theirs"))
        .nest("/llm/", server(options).router());
    assert_eq!(get(&app, "/", None).await, (StatusCode::OK, "theirs".into()));
    for path in ["/llm/", "/llm/page/metrics"] {
        let (status, page) = get(&app, path, None).await;
        assert_eq!(status, StatusCode::OK, "{path}");
        let folder = &path[..=path.rfind('/').unwrap()];
        for address in page.split(" src=\"").skip(1).map(|it| it.split('"').next().unwrap()) {
            let (status, _) = get(&app, &format!("{folder}{address}"), None).await;
            assert_eq!(status, StatusCode::OK, "{folder}{address}");
        }
    }
    let key = Some((AUTHORIZATION, "Bearer alpha"));
    for (path, key, expected) in [
        ("/llm/health", None, StatusCode::OK),
        ("/llm/v1/models", None, StatusCode::UNAUTHORIZED),
        ("/llm/v1/models", key.clone(), StatusCode::OK),
        ("/llm/no/such", key, StatusCode::NOT_FOUND),
    ] {
        let (status, text) = get(&app, path, key).await;
        assert_eq!(status, expected, "{path}: {text}");
        assert!(serde_json::from_str::<Value>(&text).is_ok(), "{path}: {text}");
    }
}

#[tokio::test]
async fn a_router_that_is_mounted_can_be_stopped() {
    let server = server(ServerOptions::default());
    let app = server.router();
    assert_eq!(get(&app, "/ready", None).await.0, StatusCode::OK);
    server.stop().await;
    let (status, text) = get(&app, "/ready", None).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(text.contains("\"server_stopping\""), "{text}");
    assert_eq!(get(&app, "/health", None).await.0, StatusCode::OK);
}

#[tokio::test]
async fn a_server_of_this_machine_is_not_called_by_the_name_of_a_site() {
    let options = ServerOptions { hosts: Hosts::local(&[]), ..ServerOptions::default() };
    let app = server(options).router();
    let evil = Some((HOST, "evil.example:8080"));
    for path in ["/", "/v1/models", "/metrics", "/page/chat.js", "/no/such"] {
        let (status, text) = get(&app, path, evil.clone()).await;
        assert_eq!(status, StatusCode::FORBIDDEN, "{path}");
        let error = &serde_json::from_str::<Value>(&text).unwrap()["error"];
        assert_eq!(error["code"], "host_not_allowed", "{path}");
        assert!(error["message"].as_str().unwrap().contains("--allow-host evil.example`"));
        let (status, _) = get(&app, path, Some((HOST, "localhost:8080"))).await;
        assert_ne!(status, StatusCode::FORBIDDEN, "{path}");
    }
    // Anthropic's clients read another form.
    let (status, text) = get(&app, "/v1/messages", evil.clone()).await;
    let error = serde_json::from_str::<Value>(&text).unwrap();
    assert_eq!(
        (status, &error["error"]["type"]),
        (StatusCode::FORBIDDEN, &json!("permission_error"))
    );
    // Balancers of load have names of their own for it.
    assert_eq!(get(&app, "/ready", evil.clone()).await.0, StatusCode::OK);
    let app = server(ServerOptions::default()).router();
    assert_eq!(get(&app, "/v1/models", evil).await.0, StatusCode::OK);
}
