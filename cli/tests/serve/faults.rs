//! Bad requests, clients that go away, queues, keys, sockets, and the end.

use std::io::{BufRead, ErrorKind, Read, Write};
use std::time::{Duration, Instant};

use crate::server::*;
use crate::support;
use serde_json::{Value, json};

#[test]
fn what_is_wrong_is_said_in_the_form_of_the_api() {
    let server = Server::start(&["--log", "off", "--max-body", "1"]);
    let user = json!([{"role": "user", "content": "a"}]);
    let cases = [
        (json!({"prompt": "a", "max_token": 5}), "max_token", "is no field"),
        (json!({"prompt": "a", "suffix": "b"}), "suffix", "no marks for filling in"),
        (json!({"prompt": "a", "best_of": 2}), "best_of", "not supported"),
        (json!({"max_tokens": 5}), "prompt", "is missing"),
        (json!({"prompt": []}), "prompt", "0 prompts"),
        (json!({"prompt": 7}), "prompt", "must be a string"),
        (json!({"prompt": [1, -2]}), "prompt", "must be a string"),
        (json!({"prompt": [0, 99999]}), "prompt", "99999 is outside"),
        (json!({"prompt": [[0], []]}), "prompt", "has an empty list"),
        (json!({"prompt": "a", "max_tokens": "5"}), "max_tokens", "invalid type"),
        (json!({"prompt": "a", "max_tokens": -1}), "max_tokens", "invalid value"),
        (json!({"prompt": "a", "temperature": -0.5}), "temperature", "between 0"),
        (json!({"prompt": "a", "temperature": 1e300}), "temperature", "between 0"),
        (json!({"prompt": "a", "top_p": 1.5}), "top_p", "between 0"),
        (json!({"prompt": "a", "seed": 0.5}), "seed", "integer"),
        (json!({"prompt": "a", "n": 0}), "n", "between 1"),
        (json!({"prompt": "a", "stop": ""}), "stop", "empty"),
        (json!({"prompt": "a", "stop": 5}), "stop", ""),
        (json!({"prompt": "a", "stop": "é".repeat(1025)}), "stop", "1025 characters"),
        (json!({"prompt": "a", "logprobs": 21}), "logprobs", "at most 20"),
        (json!({"prompt": "a", "logprobs": 1, "echo": true, "stream": true}), "echo", "streams"),
        (json!({"prompt": "a", "logit_bias": {"x": 1}}), "logit_bias", "token ids"),
        (json!({"prompt": "a", "logit_bias": {"99999": 1}}), "logit_bias", "token ids"),
        (json!({"prompt": "a", "logit_bias": {"9": 101}}), "logit_bias", "between -100"),
        (json!({"prompt": "a", "stream_options": {}}), "stream_options", "stream"),
        (json!({"prompt": "a", "priority": 5000}), "priority", "between"),
    ];
    for (body, param, part) in cases {
        let error = server.post("/v1/completions", &body).error(400);
        let message = error["message"].as_str().unwrap();
        assert!(error["param"] == param && message.contains(part), "{body}: {error}");
    }
    let empty = server.post("/v1/embeddings", &json!({"input": ["a", ""]})).error(400);
    assert_eq!(empty["param"], "input", "{empty}");
    // With a token in front that the tokenizer puts there.
    let unprompted = server.complete(&json!({"prompt": "", "max_tokens": 1}));
    assert_eq!(unprompted["usage"]["prompt_tokens"], 1);
    // As many texts as OpenAI takes, and one more.
    for (count, part) in [(2048, "99999 is outside"), (2049, "give 1 to 2048")] {
        let body = json!({"input": vec![[99_999]; count]});
        let error = server.post("/v1/embeddings", &body).error(400);
        assert!(error["message"].as_str().unwrap().contains(part), "{count}: {error}");
    }
    let chats = [
        (json!({"messages": []}), "messages"),
        (json!({"prompt": "a"}), "messages"),
        (json!({"messages": user, "tools": [{}]}), "tools[0].type"),
        (json!({"messages": user, "top_logprobs": 2}), "top_logprobs"),
        (
            json!({"messages": user, "max_tokens": 1, "max_completion_tokens": 2}),
            "max_completion_tokens",
        ),
        (
            json!({"messages": user, "chat_template_kwargs": {"messages": []}}),
            "chat_template_kwargs",
        ),
        (json!({"messages": [{"role": "critic", "content": "a"}]}), "messages[0].role"),
        (json!({"messages": [{"role": "user"}]}), "messages[0].content"),
        (
            json!({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}),
            "messages[0].content[0]",
        ),
        (
            json!({"messages": [{"role": "user", "content": "a", "tool_calls": [
                {"id": "1", "function": {"name": "f", "arguments": "{}"}}]}]}),
            "messages[0].tool_calls",
        ),
        (
            json!({"messages": [{"role": "assistant", "tool_calls": [
                {"id": "1", "function": {"name": "f", "arguments": "{\"x\""}}]}]}),
            "messages[0].tool_calls[0].function.arguments",
        ),
    ];
    for (body, param) in chats {
        let error = server.post("/v1/chat/completions", &body).error(400);
        assert_eq!(error["param"], param, "{body}: {error}");
    }
    let long = server.post("/v1/completions", &json!({"prompt": vec![5; 3000]})).error(400);
    assert_eq!(long["code"], "context_length_exceeded");

    let json = "application/json";
    for bad in [&b"{"[..], b"", b"[1]", b"{\"prompt\": \"\xff\xfe\"}", b"nul", b"{\"a\": 1} x"] {
        server.raw("POST", "/v1/completions", json, bad).error(400);
    }
    let deep = "[".repeat(100_000);
    server.raw("POST", "/v1/completions", json, deep.as_bytes()).error(400);
    server.raw("POST", "/v1/completions", "text/plain", b"{}").error(415);
    server.raw("POST", "/v1/completions", json, &vec![b' '; (1 << 20) + 1]).error(413);
    server.get("/v1/completions").error(405);
    for path in ["/v1/messages", "/v1/messages/count_tokens"] {
        let reply = server.get(path);
        assert_eq!((reply.status, &reply.json()["type"]), (405, &json!("error")), "{}", reply.text);
        assert_eq!(reply.json()["error"]["type"], "invalid_request_error");
        assert!(reply.head.contains("\r\nallow: post"), "{}", reply.head);
    }
    server.get("/etc/passwd").error(404);
    for path in ["/v1/models/%FF", "/v1/responses/%FF"] {
        server.get(path).error(400);
    }
    let body = json!({"messages": user, "max_tokens": 1, "stop": "a", "stop_sequences": ["b"]});
    server.post("/v1/messages", &body).error(400);
    let body = json!({"input": [{"type": 5, "role": "user", "content": "a"}]});
    assert_eq!(server.post("/v1/responses", &body).error(400)["param"], "input[0]");
    let body = json!({"input": "a", "background": true});
    assert_eq!(server.post("/v1/responses", &body).error(400)["code"], "unsupported_parameter");
    assert_eq!(server.get("/health").status, 200);
    server.is_empty();
}

#[test]
fn who_goes_away_leaves_nothing_behind() {
    let server = Server::start(&["--log", "off", "--kv-memory", "2", "--parallel", "4"]);
    // One that streams, and one that waits for all of it; as long as so small a cache allows.
    let mut body = endless();
    body["max_tokens"] = 600.into();
    let send = |body: &Value| {
        let body = body.to_string();
        server.send("POST", "/v1/completions", "application/json", body.as_bytes())
    };
    let cancelled = || server.number("iree_llm_requests_cancelled_total", "");
    // Each again where others kept us from leaving before its end.
    let is_left = |leave: &dyn Fn()| {
        let before = cancelled();
        leave();
        server.is_empty();
        cancelled() > before
    };
    let begun = || drop(begin(send(&body)));
    assert!((0..5).any(|_| is_left(&begun)), "nobody notices");
    assert_eq!(cancelled(), 1.0);
    body["stream"] = false.into();
    let running = || {
        let (stream, sent) = (send(&body), Instant::now());
        while server.number("vllm:num_requests_running", "") == 0.0
            && sent.elapsed() < Duration::from_secs(5)
        {
            std::thread::sleep(Duration::from_millis(5));
        }
        drop(stream);
    };
    assert!((0..5).any(|_| is_left(&running)), "nobody notices");
    assert_eq!(cancelled(), 2.0);

    // Many at random, on a cache so small that they take pages from each other.
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut below = move |n: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 20) % n
    };
    let plans: Vec<Vec<(Value, u64)>> = (0..4)
        .map(|_| {
            let plan = |_| {
                let length = 1 + below(150) as usize;
                let prompt: Vec<_> = (0..length).map(|_| 3 + below(500)).collect();
                let body = match below(12) {
                    0 => json!({"prompt": [99_999]}),
                    1 => json!({"prompt": "a", "what": 1}),
                    2 => json!({"prompt": vec![7; 2500]}),
                    _ => json!({
                        "prompt": prompt, "max_tokens": below(60), "stream": below(2) == 0,
                        "n": 1 + below(2), "seed": below(9), "top_k": below(50),
                        "priority": below(3), "ignore_eos": below(2) == 0,
                    }),
                };
                (body, below(4))
            };
            (0..75).map(plan).collect()
        })
        .collect();
    std::thread::scope(|scope| {
        for plan in &plans {
            let server = &server;
            scope.spawn(move || {
                for (body, way) in plan {
                    let text = body.to_string();
                    let stream =
                        server.send("POST", "/v1/completions", "application/json", text.as_bytes());
                    match way {
                        0 => drop(stream),
                        1 => {
                            std::thread::sleep(Duration::from_millis(text.len() as u64 % 23));
                        }
                        _ => assert!([200, 400].contains(&read(stream).status), "{text}"),
                    }
                }
            });
        }
    });
    server.is_empty();
    assert_eq!(server.number("iree_llm_step_failures_total", ""), 0.0);
    assert_eq!(server.number("iree_llm_requests_failed_total", ""), 0.0);
    assert_eq!(server.get("/health").status, 200);
}

#[test]
fn who_gave_too_little_time_is_told_so() {
    let server = Server::start(&["--log", "off", "--parallel", "1"]);
    let mut running = begin(server.send(
        "POST",
        "/v1/completions",
        "application/json",
        endless().to_string().as_bytes(),
    ));
    // It waits for the one that runs, and never begins.
    let late = json!({"prompt": "a", "max_tokens": 1, "timeout": 0.05});
    assert_eq!(server.post("/v1/completions", &late).error(504)["code"], "timeout");
    // One that has all the time it needs is as without.
    let mut text = String::new();
    running.read_to_string(&mut text).unwrap();
    assert!(text.contains("\"finish_reason\":\"length\""), "{text}");
    server.complete(&json!({"prompt": "a", "max_tokens": 5, "timeout": 1e6}));

    let mut body = endless();
    body["timeout"] = 0.1.into();
    let (reply, asked) = server.post_late("/v1/completions", &body);
    assert_eq!(reply.events().pop().unwrap()["error"]["code"], "timeout");
    let messages = json!({
        "messages": [{"role": "user", "content": "a"}], "max_tokens": 2000, "ignore_eos": true,
        "timeout": 0.1,
    });
    let reply = server.post("/v1/messages", &messages);
    assert_eq!((reply.status, &reply.json()["error"]["type"]), (504, &json!("timeout_error")));
    // Clients would send it again.
    assert!(reply.head.contains("x-should-retry: false"), "{}", reply.head);
    let never = server.post("/v1/completions", &json!({"prompt": "a", "timeout": 0}));
    assert_eq!(never.error(400)["param"], "timeout");
    // Who is told so may be told it before the server has counted it.
    let (failed, each) = ("iree_llm_requests_failed_total", (2 + asked) as f64);
    until("each is counted", || server.number(failed, "") >= each);
    server.is_empty();
    assert_eq!(server.number(failed, ""), each);
}

#[test]
fn the_log_and_the_numbers_say_how_a_request_ended() {
    let server = Server::start(&[]);
    let send = |body: &Value| {
        let body = body.to_string();
        server.send("POST", "/v1/completions", "application/json", body.as_bytes())
    };
    let lines = |status: u16| {
        let (status, log) = (format!(" status={status} "), server.log());
        log.lines().filter(|it| it.contains(&status) && it.contains("POST /v1/completions")).count()
    };
    let mut body = endless();
    let streaming = begin(send(&body));
    until("its prompt counts", || server.number("vllm:prompt_tokens_total", "") > 0.0);
    assert_eq!(lines(200) + lines(499), 0, "it is not over");
    drop(streaming);
    until("it is in the log", || lines(499) == 1);
    body["stream"] = false.into();
    let waiting = send(&body);
    until("it runs", || server.number("vllm:num_requests_running", "") > 0.0);
    drop(waiting);
    until("it is in the log", || lines(499) == 2);
    body = endless();
    body["timeout"] = 0.1.into();
    let (reply, asked) = server.post_late("/v1/completions", &body);
    assert_eq!(reply.events().pop().unwrap()["error"]["code"], "timeout");
    until("it is in the log", || lines(504) == asked);
    server.complete(&json!({"prompt": "a", "max_tokens": 2}));
    until("it is in the log", || lines(200) == 1);
    let [stopped, full] =
        ["\"stop\"", "\"length\""].map(|it| server.number("vllm:request_success_total", it));
    assert_eq!((stopped, full), (0.0, 1.0));

    let before = server.number("vllm:prompt_tokens_total", "");
    let vector = server.post("/v1/embeddings", &json!({"input": "Once upon a time"}));
    assert_eq!(vector.status, 200, "{}", vector.text);
    let counted = server.number("vllm:prompt_tokens_total", "") - before;
    assert_eq!(counted, vector.json()["usage"]["prompt_tokens"].as_f64().unwrap());
    assert_eq!(server.number("vllm:request_success_total", "\"stop\""), 1.0);
    assert_eq!(server.number("vllm:request_success_total", "\"length\""), 1.0);

    // Who knows the name of a response can go on from it.
    for path in ["/v1/responses/resp_0123", "/v1/responses/resp_0123/input_items"] {
        assert_eq!(server.get(path).status, 404);
    }
    until("they are in the log", || server.log().matches("GET /v1/responses/").count() == 2);
    assert!(!server.log().contains("resp_"), "{}", server.log());
    server.is_empty();
}

#[test]
fn a_full_queue_says_so_and_when_to_come_again() {
    let server = Server::start(&["--log", "off", "--parallel", "1", "--queue", "1"]);
    let send = || {
        let body = endless().to_string();
        server.send("POST", "/v1/completions", "application/json", body.as_bytes())
    };
    let first = begin(send());
    let second = send();
    until("it waits", || server.number("vllm:num_requests_waiting", "") > 0.0);
    let refused = read(send());
    assert_eq!(refused.error(429)["code"], "queue_full");
    assert!(refused.head.contains("retry-after: 1"), "{}", refused.head);
    let many = server.post("/v1/completions", &json!({"prompt": "a", "n": 3}));
    assert!(many.error(400)["message"].as_str().unwrap().contains("2 at most"));
    assert_eq!(server.number("iree_llm_requests_queue_full_total", ""), 1.0);
    drop(first);
    drop(begin(second));
    server.is_empty();
    assert_eq!(
        server.complete(&json!({"prompt": "a", "max_tokens": 1}))["object"],
        "text_completion"
    );
}

#[test]
fn keys_are_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("keys");
    std::fs::write(&file, "# two of them\nalpha\nbeta\n").unwrap();
    let mut server = Server::start(&["--log", "off", "--api-key", file.to_str().unwrap()]);
    for key in [None, Some("alph"), Some("alphaa")] {
        server.key = key;
        for path in ["/v1/models", "/metrics", "/nowhere"] {
            assert_eq!(server.get(path).error(401)["code"], "invalid_api_key");
        }
        let messages = server.post("/v1/messages", &json!({}));
        assert_eq!((messages.status, &messages.json()["type"]), (401, &json!("error")));
        assert_eq!(server.get("/health").status, 200);
    }
    for key in ["alpha", "beta"] {
        server.key = Some(key);
        assert_eq!(server.get("/v1/models").status, 200);
    }
    let asks = |server: &mut Server, key: &'static str| {
        server.key = Some(key);
        server.get("/v1/models").status
    };
    std::fs::write(&file, "beta\ngamma\n").unwrap();
    server.signal("-HUP");
    until("the new key is known", || asks(&mut server, "gamma") == 200);
    assert_eq!((asks(&mut server, "alpha"), asks(&mut server, "beta")), (401, 200));
    // Nobody is let in by a file without keys.
    std::fs::write(&file, "# none\n").unwrap();
    server.signal("-HUP");
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!((asks(&mut server, "beta"), asks(&mut server, "")), (200, 401));
    for (text, part) in [("# none\n", "there is no key"), ("alpha\nschlüssel\n", "keys: line 2: ")]
    {
        std::fs::write(&file, text).unwrap();
        let arguments = ["serve", "-m", TALES, "--api-key", file.to_str().unwrap()];
        let message = support::fails(1, &arguments);
        assert!(message.contains(part), "{message}");
    }
    let port = server.address.rsplit_once(':').unwrap().1;
    let message = support::fails(1, &["serve", "-m", TALES, "--port", port]);
    assert!(message.contains("cannot listen on") && message.contains("--port"), "{message}");
}

#[test]
fn a_socket_is_a_place_too() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    // Of a program that was killed.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let mut server = Server::start(&["--log", "off", "--socket", path.to_str().unwrap()]);
    assert_eq!(server.address, path.to_str().unwrap());
    let mut stream = std::os::unix::net::UnixStream::connect(&path).unwrap();
    stream.write_all(b"GET /health HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n").unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    assert!(reply.starts_with("HTTP/1.1 200"), "{reply}");
    let arguments = ["serve", "-m", TALES, "--socket", path.to_str().unwrap()];
    let message = support::fails(1, &arguments);
    assert!(message.contains("cannot listen on"), "somebody is there: {message}");
    server.signal("-TERM");
    assert_eq!(server.ended(), Some(0));
    assert!(!path.exists());

    // Whoever is there without answering us is there.
    let other = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
    let message = support::fails(1, &arguments);
    assert!(message.contains("cannot listen on"), "{message}");
    assert!(path.exists());
    drop(other);
    std::fs::remove_file(&path).unwrap();

    // One that ends leaves the socket of the one that follows it.
    let socket = ["--log", "off", "--socket", path.to_str().unwrap()];
    let mut first = Server::start(&socket);
    std::fs::remove_file(&path).unwrap();
    let _second = Server::start(&socket);
    first.signal("-TERM");
    assert_eq!(first.ended(), Some(0));
    std::os::unix::net::UnixStream::connect(&path).unwrap();
}

/// A name that a site may have led here, as its page in a browser asks.
#[test]
fn a_site_whose_name_leads_here_is_refused() {
    let ask = |server: &Server, head: &str| {
        let address = server.address.trim_start_matches("https://");
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        let head = format!("GET /v1/models {head}\r\nConnection: close\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        read(stream)
    };
    let site = "HTTP/1.1\r\nHost: site.example:8080";
    let named = [("IREE_LLM_ALLOW_HOST", "a.example,Site.example")];
    let server = Server::with(&["-m", TALES], &["--log", "off"], &named);
    assert_eq!(ask(&server, site).status, 200);
    assert_eq!(ask(&server, "HTTP/1.1\r\nHost: other.example").status, 403);

    let server = Server::start(&["--log", "off", "--allow-host", "a.example"]);
    let error = ask(&server, site).error(403);
    assert_eq!(error["code"], "host_not_allowed");
    assert!(error["message"].as_str().unwrap().contains("`--allow-host site.example`"), "{error}");
    let good = [
        format!("HTTP/1.1\r\nHost: {}", server.address),
        "HTTP/1.1\r\nHost: localhost:1".into(),
        "HTTP/1.1\r\nHost: a.example".into(),
        "HTTP/1.0".into(),
    ];
    for head in good {
        assert_eq!(ask(&server, &head).status, 200, "{head}");
    }
    drop(server);

    // A key is what no site has, and who is reached from outside has names that it does not know.
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("keys");
    std::fs::write(&file, "alpha\n").unwrap();
    let server = Server::start(&["--log", "off", "--api-key", file.to_str().unwrap()]);
    assert_eq!(ask(&server, &format!("{site}\r\nx-api-key: alpha")).status, 200);
    let mut server = Server::start(&["--log", "off", "--host", "0.0.0.0"]);
    server.address = server.address.replace("0.0.0.0", "127.0.0.1");
    assert_eq!(ask(&server, site).status, 200);
    let message = support::fails(2, &["serve", "-m", TALES, "--allow-host", "http://a.example:80"]);
    assert!(message.contains("without a scheme and a port"), "{message}");
}

/// Longer than connections have for their last bytes once there is nothing to wait for.
#[test]
fn who_reads_slowly_has_all_of_an_answer_before_it_stops() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let mut server = Server::start(&["--log", "off", "--socket", path.to_str().unwrap()]);
    // More than lies in a socket.
    let body = json!({"prompt": "a b ".repeat(100_000)}).to_string();
    let mut stream = std::os::unix::net::UnixStream::connect(&path).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    let head = "POST /tokenize HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\
                Content-Type: application/json\r\nContent-Length: ";
    stream.write_all(format!("{head}{}\r\n\r\n{body}", body.len()).as_bytes()).unwrap();
    let mut reply = vec![0; 12];
    stream.read_exact(&mut reply).unwrap();
    assert_eq!(reply, b"HTTP/1.1 200");
    server.signal("-TERM");
    std::thread::sleep(Duration::from_secs(3));
    stream.read_to_end(&mut reply).unwrap();
    let reply = String::from_utf8(reply).unwrap();
    let answer: Value = serde_json::from_str(reply.split_once("\r\n\r\n").unwrap().1).unwrap();
    let tokens = answer["tokens"].as_array().unwrap().len();
    assert!(tokens > 100_000 && answer["count"] == tokens, "{tokens} of {}", answer["count"]);
    assert_eq!(server.ended(), Some(0));
}

#[test]
fn what_is_said_stays_between_both() {
    let folder = tempfile::tempdir().unwrap();
    let (chain, key) = (folder.path().join("chain.pem"), folder.path().join("key.pem"));
    let certify = || {
        let made = rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
        std::fs::write(&chain, made.cert.pem()).unwrap();
        std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
        made.cert.pem()
    };
    let first = certify();
    let files = ["--tls-cert", chain.to_str().unwrap(), "--tls-key", key.to_str().unwrap()];
    let server = Server::start(&[&["--log", "debug"], &files[..]].concat());
    let port = server.address.strip_prefix("https://").unwrap().rsplit_once(':').unwrap().1;
    let ask = |trusted: &str| {
        let trusted = ureq::tls::Certificate::from_pem(trusted.as_bytes()).unwrap();
        let roots = ureq::tls::RootCerts::new_with_certs(&[trusted]);
        let tls = ureq::tls::TlsConfig::builder().root_certs(roots).build();
        let agent = ureq::Agent::config_builder().tls_config(tls).proxy(None);
        let agent = agent.timeout_global(Some(LIMIT)).build().new_agent();
        agent
            .post(format!("https://localhost:{port}/v1/completions"))
            .header("Content-Type", "application/json")
            .send(r#"{"prompt": "a", "max_tokens": 3, "stream": true}"#)
            .and_then(|mut answer| answer.body_mut().read_to_string())
    };
    assert!(ask(&first).unwrap().ends_with("data: [DONE]\n\n"));
    // Who speaks in the clear, or says nothing at all, keeps nobody waiting.
    let mut clear = std::net::TcpStream::connect(("127.0.0.1", port.parse().unwrap())).unwrap();
    clear.set_read_timeout(Some(LIMIT)).unwrap();
    clear.write_all(b"GET /health HTTP/1.1\r\nHost: here\r\n\r\n").unwrap();
    let silent = std::net::TcpStream::connect(("127.0.0.1", port.parse().unwrap())).unwrap();
    assert!(ask(&first).is_ok());
    let mut reply = Vec::new();
    let end = clear.read_to_end(&mut reply);
    assert!(!end.is_err_and(|it| it.kind() == ErrorKind::WouldBlock), "the connection stays open");
    assert!(!reply.starts_with(b"HTTP"), "{reply:?}");
    drop(silent);
    // Neither is an error of ours.
    server.logged("DEBUG no TLS with a client");
    assert!(!server.log().contains("ERROR"), "{}", server.log());

    let second = certify();
    assert!(ask(&second).is_err());
    server.signal("-HUP");
    until("the new certificate is shown", || ask(&second).is_ok());
    assert!(ask(&first).is_err());
    std::fs::write(&key, "nothing").unwrap();
    server.signal("-HUP");
    std::thread::sleep(Duration::from_millis(100));
    assert!(ask(&second).is_ok());
    let message = support::fails(1, &[&["serve", "-m", TALES], &files[..]].concat());
    assert!(message.contains("key.pem") && message.contains("the private key"), "{message}");
    support::fails(2, &[&["serve", "-m", TALES], &files[..2]].concat());
}

#[test]
fn it_stops_when_answers_are_whole_or_the_time_is_up() {
    let body = |tokens: usize| {
        let mut body = endless();
        body["max_tokens"] = tokens.into();
        body.to_string()
    };
    let json = "application/json";
    let mut server = Server::start(&["--log", "off"]);
    let stream = begin(server.send("POST", "/v1/completions", json, body(1500).as_bytes()));
    server.signal("-TERM");
    until("it is stopping", || server.get("/ready").status == 503);
    let refused = server.post("/v1/completions", &json!({"prompt": "a"}));
    assert_eq!(refused.error(503)["code"], "server_stopping");
    assert!(refused.head.contains("retry-after"), "{}", refused.head);
    let rest = stream.lines().map(Result::unwrap).collect::<Vec<_>>();
    assert!(rest.iter().any(|line| line.contains("\"finish_reason\":\"length\"")), "{rest:?}");
    assert!(rest.contains(&"data: [DONE]".to_owned()));
    assert_eq!(server.ended(), Some(0));

    let mut server = Server::start(&["--log", "off", "--shutdown-timeout", "0"]);
    let stream = begin(server.send("POST", "/v1/completions", json, body(2000).as_bytes()));
    server.signal("-INT");
    let rest = stream.lines().map(Result::unwrap).collect::<Vec<_>>();
    assert!(rest.iter().any(|line| line.contains("\"server_stopping\"")), "{rest:?}");
    assert!(rest.contains(&"data: [DONE]".to_owned()));
    assert_eq!(server.ended(), Some(0));

    let mut server = Server::start(&["--log", "off"]);
    let stream = begin(server.send("POST", "/v1/completions", json, body(2000).as_bytes()));
    server.signal("-TERM");
    until("it is stopping", || server.get("/ready").status == 503);
    server.signal("-TERM");
    assert_eq!(server.ended(), Some(130));
    drop(stream);
}

/// Also where it is the first process of a container, which no signal ends by itself.
#[test]
fn it_ends_while_models_are_opened() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("socket");
    let keys = folder.path().join("keys");
    std::fs::write(&keys, "alpha\n").unwrap();
    let keys = ["--api-key", keys.to_str().unwrap()];
    for (signal, keys, code) in [
        ("-TERM", &keys[..], Some(0)),
        ("-INT", &keys[..], Some(130)),
        // Its terminal is closed: nothing is there to read again.
        ("-HUP", &[], None),
    ] {
        // Into an empty cache, which takes a while.
        let cache = tempfile::tempdir().unwrap();
        let mut child = crate::support::running()
            .args(["serve", "-m", TALES, "--socket", socket.to_str().unwrap()])
            .args(keys)
            .env("IREE_LLM_CACHE_DIR", cache.path())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let start = std::time::Instant::now();
        while !socket.exists() {
            assert!(start.elapsed() < LIMIT && child.try_wait().unwrap().is_none());
            std::thread::sleep(Duration::from_millis(1));
        }
        // Keys are read again, and nothing else happens.
        if !keys.is_empty() {
            crate::support::signal("-HUP", &child);
            std::thread::sleep(Duration::from_millis(50));
        }
        crate::support::signal(signal, &child);
        until("it ends", || child.try_wait().unwrap().is_some());
        let ended = child.wait_with_output().unwrap();
        assert_eq!(ended.status.code(), code, "{signal}");
        assert_eq!(socket.exists(), code.is_none(), "{signal}");
        let said = String::from_utf8(ended.stderr).unwrap();
        assert!(!said.contains("listening on"), "{signal}: {said}");
    }
}
