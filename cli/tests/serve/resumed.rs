//! Answers that go on: behind what another server has given, or behind words of the conversation.

use crate::server::*;
use crate::tools::with_tools;
use serde_json::{Value, json};

/// What a client has of an answer: the ids of its tokens, and what they have made certain.
#[derive(Debug, Clone, Default, PartialEq)]
struct Seen {
    ids: Vec<Value>,
    text: String,
    reasoning: String,
    calls: Vec<(String, String)>,
    logprobs: Vec<Value>,
    offsets: Vec<Value>,
    reason: Value,
    /// Tokens of the whole answer, and of its thoughts.
    usage: Value,
}

impl Seen {
    /// After each piece with ids, from `self` on; the last is all of it.
    fn reading(mut self, events: &[Value]) -> Vec<Self> {
        let mut all = Vec::new();
        for choice in events.iter().flat_map(|it| it["choices"].as_array().unwrap()) {
            let delta = &choice["delta"];
            for text in [&choice["text"], &delta["content"]] {
                self.text += text.as_str().unwrap_or_default();
            }
            self.reasoning += delta["reasoning_content"].as_str().unwrap_or_default();
            if let Some(call) = delta["tool_calls"].get(0) {
                let function = &call["function"];
                if let Some(name) = function["name"].as_str() {
                    self.calls.push((name.into(), String::new()));
                }
                assert_eq!(call["index"], self.calls.len() - 1);
                let arguments = function["arguments"].as_str().unwrap();
                self.calls.last_mut().unwrap().1 += arguments;
            }
            for logprobs in [&choice["logprobs"]["token_logprobs"], &choice["logprobs"]["content"]]
            {
                self.logprobs.extend(logprobs.as_array().cloned().unwrap_or_default());
            }
            let offsets = choice["logprobs"]["text_offset"].as_array();
            self.offsets.extend(offsets.cloned().unwrap_or_default());
            self.reason = choice["finish_reason"].clone();
            if let Some(ids) = choice["token_ids"].as_array() {
                self.ids.extend(ids.clone());
                all.push(self.clone());
            }
        }
        if let Some(usage) = events.last().map(|it| &it["usage"]).filter(|it| it.is_object()) {
            self.usage = json!([usage["completion_tokens"], usage["completion_tokens_details"]]);
        }
        all.push(self);
        all
    }
}

fn with(request: &Value, more: Value) -> Value {
    let mut request = request.clone();
    request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    request
}

/// What comes of `request`, streamed by `first`, and by `second` behind any part of it.
fn goes_on_at_any_token(first: &Server, second: &Server, path: &str, request: &Value) -> Seen {
    let streamed = json!({"stream": true, "return_token_ids": true,
        "stream_options": {"include_usage": true}});
    let streamed = with(request, streamed);
    let seen = Seen::default().reading(&first.post(path, &streamed).events());
    let whole = seen.last().unwrap();
    assert!(whole.ids.len() > 5 && whole.reason.is_string(), "{request}: {whole:?}");
    for cut in [0, 1, seen.len() / 3, seen.len() / 2, seen.len() - 3, seen.len() - 2] {
        let had = &seen[cut];
        let reply = second.post(path, &with(&streamed, json!({"answer_token_ids": had.ids})));
        assert_eq!(reply.status, 200, "{}", reply.text);
        let went_on = had.clone().reading(&reply.events());
        assert_eq!(went_on.last().unwrap(), whole, "{request} from {}", had.ids.len());
    }
    // Whole answers have them, too.
    let answer = first.post(path, &with(request, json!({"return_token_ids": true}))).json();
    assert_eq!(answer["choices"][0]["token_ids"], json!(whole.ids));
    whole.clone()
}

/// Sampled, kept to a form, with tools and thoughts, at any token: the rest is what the first would have
/// said.
#[test]
fn an_answer_goes_on_with_another_server() {
    let folder = with_tools("qwen3");
    let models = ["-m", folder.path().to_str().unwrap()];
    let first = Server::of(&models, &["--log", "off"]);
    let second = Server::of(&models, &["--log", "off", "--parallel", "3", "--threads", "1"]);
    let chat = json!([{"role": "user", "content": "Is it warm in Bern?"}]);
    let schema = json!({"type": "object", "properties": {
        "city": {"enum": ["Bern", "Zürich \"HB\""]}, "days": {"type": "integer"}},
        "required": ["city", "days"], "additionalProperties": false});
    let tool = json!({"type": "function", "function": {"name": "weather", "parameters": schema}});
    let (text, talk) = ("/v1/completions", "/v1/chat/completions");
    let requests = [
        (text, json!({"prompt": "Once upon a time", "max_tokens": 40, "temperature": 0})),
        (
            text,
            json!({"prompt": "The sea", "max_tokens": 30, "presence_penalty": 0.7, "seed": 3,
                      "frequency_penalty": 0.5, "repeat_penalty": 1.1, "logprobs": 2}),
        ),
        // Half characters, and stop strings that begin and do not come.
        (
            text,
            json!({"prompt": "é", "max_tokens": 60, "temperature": 30, "seed": 2, "logprobs": 1,
                      "stop": ["\u{fffd}\u{fffd}\u{fffd}", " xyz"]}),
        ),
        (
            text,
            json!({"prompt": "Once upon a time", "max_tokens": 60, "stop": [" wanted to"], "temperature": 0,
                      "logprobs": 0}),
        ),
        (text, json!({"prompt": "The animal", "max_tokens": 80, "seed": 4, "guided_json": schema})),
        (talk, json!({"messages": chat, "max_tokens": 50, "seed": 5, "logprobs": true})),
    ];
    for (path, request) in requests {
        goes_on_at_any_token(&first, &second, path, &request);
    }
    let folder = with_tools("qwen2.5");
    let model = ["-m", folder.path().to_str().unwrap()];
    let [one, other] = [0; 2].map(|_| Server::of(&model, &["--log", "off"]));
    let calls = json!({"messages": chat, "max_tokens": 200, "temperature": 1.4, "seed": 6, "tools": [tool],
                       "tool_choice": "required"});
    let calls = goes_on_at_any_token(&one, &other, talk, &calls);
    assert!(!calls.calls.is_empty(), "{calls:?}");
    let ask = |more: Value| with(&json!({"prompt": "a", "stream": true, "seed": 1}), more);
    for (request, param) in [
        (ask(json!({"answer_token_ids": [5], "stream": false})), "answer_token_ids"),
        (ask(json!({"answer_token_ids": [5], "seed": null})), "answer_token_ids"),
        (ask(json!({"answer_token_ids": [5], "n": 2})), "answer_token_ids"),
        (ask(json!({"answer_token_ids": [99999]})), "answer_token_ids"),
        (ask(json!({"answer_token_ids": [5], "prompt": ["a", "b"]})), "answer_token_ids"),
        (ask(json!({"answer_token_ids": [5], "guided_regex": "[0-9]+"})), "answer_token_ids"),
        (ask(json!({"answer_token_ids": vec![500; 5000]})), "answer_token_ids"),
    ] {
        let error = first.post(text, &request).error(400);
        assert_eq!(error["param"].as_str().unwrap_or_default(), param, "{error}");
    }
    first.is_empty();
    second.is_empty();
}

/// With nothing left to run: its end is all that was lost.
#[test]
fn an_answer_that_is_all_there_ends_as_it_would_have() {
    let server = Server::start(&["--log", "off", "--context", "70", "--kv-memory", "2"]);
    let path = "/v1/completions";
    // One that fills the context, one that its limit ends, and one that fills whole pages.
    for (length, most) in [(30, 41), (30, 7), (60, 5)] {
        let prompt: Vec<_> = (0..length).map(|at| 3 + at * 7 % 500).collect();
        let request = json!({"prompt": prompt, "max_tokens": most, "temperature": 0, "ignore_eos": true,
                             "stream": true, "return_token_ids": true});
        let seen = Seen::default().reading(&server.post(path, &request).events());
        let whole = seen.last().unwrap();
        assert_eq!((whole.ids.len(), &whole.reason), (most, &json!("length")), "{whole:?}");
        let again = server.post(path, &with(&request, json!({"answer_token_ids": whole.ids})));
        assert_eq!(again.status, 200, "{}", again.text);
        let events = again.events();
        let reasons: Vec<_> =
            events.iter().filter_map(|it| it["choices"][0]["finish_reason"].as_str()).collect();
        assert_eq!(reasons, ["length"]);
        let texts = events.iter().filter_map(|it| it["choices"][0]["text"].as_str());
        assert!(texts.collect::<String>().chars().count() <= 1, "{}", again.text);
    }
    server.is_empty();
}

/// As a prompt of the template's text would have it.
#[test]
fn an_answer_goes_on_behind_words_of_the_conversation() {
    let folder = with_tools("qwen3");
    let server = Server::of(&["-m", folder.path().to_str().unwrap()], &["--log", "off"]);
    let said = |words: &str| json!([{"role": "user", "content": "Tell a story."}, {"role": "assistant", "content": words}]);
    let ask = |words: &str, more: Value| {
        let plain = json!({"messages": said(words), "max_tokens": 12, "temperature": 0});
        with(&with(&plain, json!({"continue_final_message": true})), more)
    };
    let path = "/v1/chat/completions";
    let chat = server.post(path, &ask("Once upon a", json!({})));
    assert_eq!(chat.status, 200, "{}", chat.text);
    let text = chat.json()["choices"][0]["message"]["content"].as_str().unwrap().to_owned();
    let prompt = "<|im_start|>user\nTell a story.<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\nOnce upon a";
    let tokens = json!({"messages": said("Once upon a"), "continue_final_message": true});
    let tokens = server.post("/tokenize", &tokens).json()["tokens"].clone();
    let same = json!({"prompt": prompt, "add_special_tokens": false});
    assert_eq!(server.post("/tokenize", &same).json()["tokens"], tokens);
    let completion = json!({"prompt": tokens, "max_tokens": 12, "temperature": 0});
    assert_eq!(server.complete(&completion)["choices"][0]["text"], text.as_str());
    // Anthropic's API says it by a last message of the assistant's.
    let message = json!({"messages": said("Once upon a"), "max_tokens": 12, "temperature": 0});
    let message = server.post("/v1/messages", &message).json();
    assert_eq!(message["content"], json!([{"type": "text", "text": text}]));

    // Thoughts that have begun go on.
    let thoughts = server.post(path, &ask("<think>\nOnce upon a", json!({}))).json();
    let message = &thoughts["choices"][0]["message"];
    assert!(message["reasoning_content"].as_str().is_some_and(|it| !it.is_empty()), "{message}");

    for (request, param) in [
        (ask("Once", json!({"add_generation_prompt": true})), "continue_final_message"),
        (ask(" ", json!({})), "messages"),
        (ask("Once", json!({"messages": [{"role": "user", "content": "Hi"}]})), "messages"),
        (ask("Once", json!({"tools": [{"type": "function", "function": {"name": "f"}}]})), "tools"),
    ] {
        let error = server.post(path, &request).error(400);
        assert_eq!(error["param"], param, "{error}");
    }
    server.is_empty();
}

/// What three replicas answer of which one after the other is killed, again and again.
mod failover {
    use std::io::{BufRead, BufReader, Write};
    use std::net::TcpStream;
    use std::path::Path;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use std::time::{Duration, Instant};

    use super::*;

    /// A client of all of them.
    struct Client<'a> {
        replicas: &'a Mutex<Vec<Server>>,
        turn: usize,
        /// Streams that broke off, and the longest time from there to the next token.
        lost: usize,
        longest: Duration,
    }

    impl Client<'_> {
        /// Connects to another one each time.
        fn connect(&mut self, path: &str, body: &Value) -> Option<TcpStream> {
            self.turn += 1;
            let address = {
                let replicas = self.replicas.lock().unwrap();
                replicas[self.turn % replicas.len()].address.clone()
            };
            let mut stream = TcpStream::connect(address).ok()?;
            stream.set_read_timeout(Some(LIMIT)).unwrap();
            let body = body.to_string();
            let head = format!(
                "POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n\
                 Content-Length: {}\r\n\r\n{body}",
                body.len()
            );
            stream.write_all(head.as_bytes()).ok()?;
            Some(stream)
        }

        /// All of an answer, wherever its parts come from.
        fn ask(&mut self, path: &str, request: &Value) -> Seen {
            let mut had = Seen::default();
            let mut broke = None;
            loop {
                let resumed = with(request, json!({"answer_token_ids": had.ids}));
                let Some(stream) = self.connect(path, &resumed) else { continue };
                let mut events = Vec::new();
                let mut is_whole = false;
                for line in BufReader::new(stream).split(b'\n') {
                    let Ok(line) = line else { break };
                    let Some(data) = line.strip_prefix(b"data: ") else { continue };
                    if data == b"[DONE]" {
                        is_whole = true;
                        break;
                    }
                    // The last one may be cut off.
                    let Ok(event) = serde_json::from_slice::<Value>(data) else { break };
                    assert!(event["error"].is_null(), "{event}");
                    if event["choices"][0]["token_ids"].is_array()
                        && let Some(broke) = broke.take()
                    {
                        self.longest = self.longest.max(Instant::elapsed(&broke));
                    }
                    events.push(event);
                }
                let mut seen = had.clone().reading(&events);
                let all = seen.pop().unwrap();
                if is_whole {
                    return all;
                }
                // What no ids have come for is said again.
                had = seen.pop().unwrap_or(had);
                self.lost += 1;
                broke.get_or_insert_with(Instant::now);
            }
        }
    }

    /// Streams that are lost until it ends: more with `FAILOVERS` in the environment.
    fn wanted() -> usize {
        std::env::var("FAILOVERS").map_or(25, |it| it.parse().expect("FAILOVERS is a number"))
    }

    /// Damages a page, or removes all of them, or neither.
    fn disturb(pages: &Path, turn: u64) {
        match turn % 5 {
            0 => drop(std::fs::remove_dir_all(pages)),
            1 | 2 => {
                let Some(Ok(file)) = std::fs::read_dir(pages).into_iter().flatten().last() else {
                    return;
                };
                // It may go meanwhile.
                let Ok(mut data) = std::fs::read(file.path()) else { return };
                let middle = data.len() / 2;
                // One that is being written may have nothing yet.
                if let Some(byte) = data.get_mut(middle) {
                    *byte ^= 1;
                }
                let _ = std::fs::write(file.path(), data);
            }
            _ => {}
        }
    }

    /// Has the clients end, also where something fails.
    struct Done<'a>(&'a AtomicBool);

    impl Drop for Done<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }

    #[test]
    fn no_token_is_lost_or_wrong_when_replicas_are_killed() {
        let folder = with_tools("qwen2.5");
        let models = ["-m", folder.path().to_str().unwrap()];
        let schema = json!({"type": "object", "properties": {"name": {"type": "string", "maxLength": 40},
            "days": {"type": "integer"}}, "required": ["name", "days"], "additionalProperties": false});
        let tool = json!({"type": "function", "function": {"name": "trip", "parameters": schema}});
        let chat = json!([{"role": "user", "content": "Where did the fox go?"}]);
        let (text, talk) = ("/v1/completions", "/v1/chat/completions");
        let long = json!({"max_tokens": 300, "ignore_eos": true});
        let requests = [
            (text, with(&long, json!({"prompt": "Once upon a time", "temperature": 0}))),
            (text, with(&long, json!({"prompt": "The sea", "seed": 3, "repeat_penalty": 1.1}))),
            (
                text,
                json!({"prompt": "The fox", "max_tokens": 300, "seed": 4, "guided_json": schema}),
            ),
            (
                talk,
                with(
                    &long,
                    json!({"messages": chat, "seed": 5, "temperature": 1.2, "logprobs": true}),
                ),
            ),
            (
                talk,
                json!({"messages": chat, "max_tokens": 300, "seed": 6, "tools": [tool],
                          "tool_choice": "required"}),
            ),
        ];
        let streamed = json!({"stream": true, "return_token_ids": true});
        let requests = requests.map(|(path, request)| (path, with(&request, streamed.clone())));
        let quiet = Server::of(&models, &["--log", "off"]);
        let expected = requests.each_ref().map(|(path, request)| {
            Seen::default().reading(&quiet.post(path, request).events()).pop().unwrap()
        });
        drop(quiet);

        // Two of the three find each other's pages, and what those have left that were killed.
        let pages = folder.path().join("pages");
        let share = ["--log", "off", "--kv-share", pages.to_str().unwrap()];
        let start = |at: usize| Server::of(&models, if at == 0 { &share[..2] } else { &share });
        let replicas = Mutex::new((0..3).map(start).collect::<Vec<_>>());
        let (lost, answered, done) =
            (AtomicUsize::new(0), AtomicUsize::new(0), AtomicBool::new(false));
        let longest = std::thread::scope(|scope| {
            let end = Done(&done);
            let client = |number: usize| {
                let (replicas, requests, expected) = (&replicas, &requests, &expected);
                let (lost, answered, done) = (&lost, &answered, &done);
                scope.spawn(move || {
                    let mut client =
                        Client { replicas, turn: number, lost: 0, longest: Duration::ZERO };
                    for at in number.. {
                        if done.load(Ordering::SeqCst) {
                            break;
                        }
                        let (path, request) = &requests[at % requests.len()];
                        let before = client.lost;
                        let answer = client.ask(path, request);
                        assert_eq!(answer, expected[at % requests.len()], "{request}");
                        lost.fetch_add(client.lost - before, Ordering::SeqCst);
                        answered.fetch_add(1, Ordering::SeqCst);
                    }
                    client.longest
                })
            };
            let clients: Vec<_> = (0..4).map(client).collect();
            let mut turn = 0;
            while lost.load(Ordering::SeqCst) < wanted()
                && clients.iter().all(|it| !it.is_finished())
            {
                std::thread::sleep(Duration::from_millis(50 + turn * 37 % 300));
                turn += 1;
                let at = turn as usize * 7 % 3;
                // SIGKILL: nothing is said, and nothing is tidied up.
                replicas.lock().unwrap()[at].child.kill().unwrap();
                disturb(&pages, turn);
                let new = start(at);
                replicas.lock().unwrap()[at] = new;
            }
            drop(end);
            clients.into_iter().map(|it| it.join().unwrap()).max().unwrap()
        });
        let (lost, answered) = (lost.into_inner(), answered.into_inner());
        println!(
            "{answered} answers, {lost} streams lost and gone on with, {} ms at most until the next token",
            longest.as_millis()
        );
        assert!(answered >= 10 && lost >= wanted());
    }
}

/// A server that is started again, and another one beside it, find what was run.
#[test]
fn prompts_that_were_run_are_found_by_other_servers() {
    let folder = tempfile::tempdir().unwrap();
    let pages = folder.path().join("pages");
    let flags = ["--log", "off", "--kv-share", pages.to_str().unwrap()];
    let prompt: Vec<u32> = (0..500).map(|it| 3 + it * 7 % 1400).collect();
    let ask = json!({"prompt": prompt, "max_tokens": 20, "seed": 1, "logprobs": 3});
    // And how many tokens of the prompt were cached.
    let answer = |server: &Server| {
        let answer = server.complete(&ask);
        let cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
        server.is_empty();
        (answer["choices"].clone(), cached)
    };
    let found = "vllm:external_prefix_cache_hits_total";
    let first = Server::start(&flags);
    let (expected, cached) = answer(&first);
    assert_eq!((cached, first.number(found, "")), (0, 0.0));
    until("its pages are written", || first.number("iree_llm_kv_share_pages_total", "kept") == 8.0);

    let mut beside = Server::start(&flags);
    assert_eq!(answer(&beside), (expected.clone(), 448));
    assert_eq!(beside.number(found, ""), 448.0);
    assert_eq!(answer(&beside), (expected.clone(), 448));
    assert_eq!(beside.number(found, ""), 448.0, "it has them now");
    // The page that is not full, too, of which it tells nobody.
    assert_eq!(beside.number("vllm:prefix_cache_hits_total", ""), 499.0);
    beside.child.kill().unwrap();
    drop(first);
    let again = Server::start(&flags);
    assert_eq!(answer(&again), (expected.clone(), 448));
    let other = Server::start(&[&flags[..], &["--precision", "int8"]].concat());
    assert_eq!(answer(&other).1, 0, "other weights");

    // What it cannot have is said, and it goes on without.
    std::fs::remove_dir_all(&pages).unwrap();
    std::fs::write(&pages, "").unwrap();
    let mut ask_more = ask.clone();
    ask_more["prompt"] = json!(prompt[100..].to_vec());
    again.complete(&ask_more);
    until("a page is lost", || again.number("iree_llm_kv_share_pages_total", "lost") > 0.0);
    let start = |flags: &[&str]| {
        let mut command = assert_cmd::Command::new(assert_cmd::cargo::cargo_bin("iree-llm"));
        command
            .args(["serve", "-m", TALES, "--port", "0", "--log", "off"])
            .args(flags)
            .assert()
            .failure()
    };
    for (flags, part) in [
        (&flags[2..], "pages: shared pages cannot be written there"),
        (
            &["--kv-share", folder.path().to_str().unwrap(), "--kv-share-size", "1"],
            "bytes for shared pages",
        ),
        (&["--kv-share-size", "1"], "--kv-share <FOLDER>"),
    ] {
        let error = start(flags);
        let error = String::from_utf8_lossy(&error.get_output().stderr).into_owned();
        assert!(error.contains(part), "{error}");
    }
}
