//! What one key may ask for, and that others have theirs meanwhile.

use std::time::Duration;

use crate::server::*;
use crate::support;
use serde_json::{Value, json};

/// A server that knows the keys alpha and beta, and its file of keys.
fn started(flags: &[&str]) -> (tempfile::TempDir, Server) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("keys");
    std::fs::write(&file, "alpha\nbeta\n").unwrap();
    let flags = [&["--api-key", file.to_str().unwrap()], flags].concat();
    let mut server = Server::start(&flags);
    server.key = Some("alpha");
    (folder, server)
}

/// A request that is answered before any model has heard of it.
fn nothing(server: &Server) -> Reply {
    server.post("/v1/completions", &json!({}))
}

fn messages() -> Value {
    json!({"messages": [{"role": "user", "content": "a"}], "max_tokens": 1})
}

#[test]
fn a_key_has_so_many_requests_at_a_time() {
    let (_folder, mut server) = started(&["--key-parallel", "1"]);
    let stream = || {
        let body = endless().to_string();
        server.send("POST", "/v1/completions", "application/json", body.as_bytes())
    };
    // Also while its body comes, long after its head.
    let first = begin(stream());
    let paths = ["/v1/completions", "/v1/chat/completions", "/v1/embeddings", "/v1/responses"];
    for path in paths {
        let refused = server.post(path, &json!({"prompt": "a"}));
        assert_eq!(refused.error(429)["code"], "rate_limit_exceeded", "{path}");
        assert!(refused.head.contains("retry-after: 1"), "{}", refused.head);
        assert!(!refused.head.contains("x-ratelimit"), "{}", refused.head);
    }
    let refused = server.post("/v1/messages", &messages());
    assert_eq!((refused.status, &refused.json()["type"]), (429, &json!("error")));
    assert_eq!(refused.json()["error"]["type"], "rate_limit_error");
    assert!(refused.head.contains("retry-after: 1"), "{}", refused.head);
    // What makes no model work.
    assert_eq!(server.get("/v1/models").status, 200);
    assert_eq!(server.get("/v1/completions").status, 405);
    assert_eq!(server.post("/tokenize", &json!({"prompt": "a"})).status, 200);
    assert_eq!(server.number("iree_llm_requests_limited_total", "parallel"), 5.0);

    let one = json!({"prompt": "a", "max_tokens": 1});
    server.key = Some("beta");
    server.complete(&one);
    server.key = Some("alpha");
    drop(first);
    until("its place is free", || server.post("/v1/completions", &one).status == 200);
    // Whoever has seen the end may go on at once.
    let streamed = json!({"prompt": "a", "max_tokens": 2, "stream": true});
    for body in [&one, &streamed].into_iter().cycle().take(30) {
        let reply = server.post("/v1/completions", body);
        assert_eq!(reply.status, 200, "{}", reply.text);
        assert_eq!(reply.head.contains("content-length"), body == &one, "{}", reply.head);
    }
    server.is_empty();
    // printf alpha | sha256sum
    server.logged("key=8ed3f6ad status=429");
    assert!(!server.log().contains("alpha"), "{}", server.log());
}

#[test]
fn a_key_has_so_many_requests_a_minute() {
    let (folder, mut server) = started(&["--key-rpm", "60"]);
    let body = messages();
    for _ in 0..5 {
        assert_eq!(server.post("/v1/messages/count_tokens", &body).status, 400, "no template");
        assert_eq!(server.get("/v1/models").status, 200);
    }
    let first = server.post("/v1/completions", &json!({"prompt": "a", "max_tokens": 1}));
    assert_eq!(first.status, 200);
    for part in ["limit-requests: 60", "remaining-requests: 59", "reset-requests: 1s"] {
        assert!(first.head.contains(&format!("x-ratelimit-{part}\r\n")), "{}", first.head);
    }
    let mut spent = 1;
    let refused = loop {
        let reply = nothing(&server);
        if reply.status != 400 {
            break reply;
        }
        spent += 1;
        assert!(spent < 100, "there is no end to it");
    };
    // One more comes each second.
    assert!(spent >= 60, "{spent}");
    assert_eq!(refused.error(429)["code"], "rate_limit_exceeded");
    for part in ["retry-after: 1", "x-ratelimit-remaining-requests: 0"] {
        assert!(refused.head.contains(&format!("\r\n{part}\r\n")), "{}", refused.head);
    }
    // One more may have come meanwhile.
    let mut replies = (0..5).map(|_| server.post("/v1/messages", &body));
    let reply = replies.find(|it| it.status != 400).expect("there is no end to it");
    assert_eq!((reply.status, &reply.json()["error"]["type"]), (429, &json!("rate_limit_error")));
    server.key = Some("beta");
    assert_eq!(nothing(&server).status, 400);

    // A key that stays has what it had.
    std::fs::write(folder.path().join("keys"), "alpha\ngamma\n").unwrap();
    server.signal("-HUP");
    server.key = Some("gamma");
    until("the new key is known", || server.get("/v1/models").status == 200);
    assert_eq!(nothing(&server).status, 400);
    server.key = Some("alpha");
    until("it has had its requests", || nothing(&server).status == 429);
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(nothing(&server).status, 400, "the time that it said was up");
    assert!(server.number("iree_llm_requests_limited_total", "rpm") >= 3.0);
}

#[test]
fn numbers_are_open_to_everybody_where_that_is_said() {
    for (flags, status) in [(&["--metrics-open"][..], 200), (&[], 401)] {
        let (_folder, mut server) = started(flags);
        server.key = None;
        assert_eq!(server.get("/metrics").status, status);
        for closed in ["/metrics/", "/v1/models", "/openapi.json"] {
            assert_eq!(server.get(closed).status, 401, "{closed}");
        }
        server.key = Some("alpha");
        assert_eq!(server.get("/metrics").status, 200);
    }
}

#[test]
fn limits_are_of_keys() {
    for flag in ["--key-parallel", "--key-rpm"] {
        let message = support::fails(2, &["serve", "-m", TALES, flag, "5"]);
        assert!(message.contains("--api-key <FILE>"), "{message}");
        let message = support::fails(2, &["serve", "-m", TALES, "--api-key", "keys", flag, "0"]);
        assert!(message.contains("0 is not in 1.."), "{message}");
    }
}
