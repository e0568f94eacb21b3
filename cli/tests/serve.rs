//! `iree-llm serve`: the program on a port of its own, and clients that behave and that do not.
#![cfg(all(feature = "iree", unix))]

mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

const TALES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../models/tiny-tales");
const TEMPLATES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../text/tests/chat_templates");
const LIMIT: Duration = Duration::from_secs(60);

/// A server that runs, and ends with the test.
struct Server {
    child: Child,
    address: String,
    key: Option<&'static str>,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What came back.
struct Reply {
    status: u16,
    head: String,
    text: String,
}

impl Reply {
    fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|_| panic!("no JSON: {}", self.text))
    }

    /// Its error, which is in the form of OpenAI's.
    #[track_caller]
    fn error(&self, status: u16) -> Value {
        assert_eq!(self.status, status, "{}", self.text);
        let error = self.json()["error"].clone();
        assert!(error["message"].is_string() && error["type"].is_string(), "{}", self.text);
        error
    }

    /// The objects of a stream, which ends as it should.
    fn events(&self) -> Vec<Value> {
        let mut lines: Vec<_> = self.text.split("\n\n").filter(|it| !it.is_empty()).collect();
        assert_eq!(lines.pop(), Some("data: [DONE]"), "{}", self.text);
        let data = lines.iter().filter_map(|line| line.strip_prefix("data: "));
        data.map(|text| serde_json::from_str(text).unwrap()).collect()
    }
}

impl Server {
    fn start(flags: &[&str]) -> Self {
        Self::of(&["-m", TALES], flags)
    }

    fn of(models: &[&str], flags: &[&str]) -> Self {
        let cache = concat!(env!("CARGO_TARGET_TMPDIR"), "/compiled");
        let port: &[&str] = if flags.contains(&"--socket") { &[] } else { &["--port", "0"] };
        let mut child = Command::new(assert_cmd::cargo::cargo_bin("iree-llm"))
            .args(["serve", "--kv-cache", "f32"])
            .args(port)
            .args(models)
            .args(flags)
            .env("IREE_LLM_CACHE_DIR", cache)
            .env("IREE_LLM_NO_WEIGHTS_CACHE", "1")
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut seen = Vec::new();
        let address = loop {
            let line = lines.next().unwrap_or_else(|| panic!("it ended: {seen:?}")).unwrap();
            if let Some((_, address)) = line.split_once("listening on ") {
                break address.trim_start_matches("http://").to_owned();
            }
            seen.push(line);
        };
        // A full pipe would stop it.
        std::thread::spawn(move || lines.for_each(drop));
        Self { child, address, key: None }
    }

    /// Sends `method path` with the bytes `body`, and returns the open connection.
    fn send(&self, method: &str, path: &str, kind: &str, body: &[u8]) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        let key = self.key.map(|key| format!("Authorization: Bearer {key}\r\n"));
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: here\r\nConnection: close\r\nContent-Type: {kind}\r\n\
             {}Content-Length: {}\r\n\r\n",
            key.unwrap_or_default(),
            body.len()
        );
        stream.write_all(head.as_bytes()).unwrap();
        // A server that has refused the head need not take the body.
        let _ = stream.write_all(body);
        stream
    }

    fn raw(&self, method: &str, path: &str, kind: &str, body: &[u8]) -> Reply {
        read(self.send(method, path, kind, body))
    }

    fn post(&self, path: &str, body: &Value) -> Reply {
        self.raw("POST", path, "application/json", body.to_string().as_bytes())
    }

    fn get(&self, path: &str) -> Reply {
        self.raw("GET", path, "text/plain", b"")
    }

    fn complete(&self, body: &Value) -> Value {
        let reply = self.post("/v1/completions", body);
        assert_eq!(reply.status, 200, "{}", reply.text);
        reply.json()
    }

    /// The number of `/metrics` that begins with `name` and has all of `labels`.
    fn number(&self, name: &str, label: &str) -> f64 {
        let text = self.get("/metrics").text;
        let mut lines = text.lines().filter(|it| it.starts_with(name) && it.contains(label));
        let line = lines.next().unwrap_or_else(|| panic!("no {name} {label} in {text}"));
        line.rsplit_once(' ').unwrap().1.parse().unwrap()
    }

    /// Waits until no request runs or waits; then no page may be held.
    #[track_caller]
    fn is_empty(&self) {
        let start = Instant::now();
        while self.number("vllm:num_requests_running", "") != 0.0
            || self.number("vllm:num_requests_waiting", "") != 0.0
        {
            assert!(start.elapsed() < LIMIT, "requests are left: {}", self.get("/metrics").text);
            std::thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(self.number("iree_llm_kv_pages", "\"held\""), 0.0);
    }

    fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args([name, &id]).status().unwrap().success());
    }

    /// Its exit code, when it has ended.
    fn ended(&mut self) -> Option<i32> {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            assert!(start.elapsed() < LIMIT, "it does not end");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// All of a reply.
fn read(mut stream: TcpStream) -> Reply {
    let mut bytes = Vec::new();
    // Of a connection that is reset, what came before.
    let _ = stream.read_to_end(&mut bytes);
    let end = bytes.windows(4).position(|it| it == b"\r\n\r\n");
    let end = end.unwrap_or_else(|| panic!("no reply: {:?}", String::from_utf8_lossy(&bytes)));
    let head = String::from_utf8(bytes[..end].to_vec()).unwrap().to_lowercase();
    let mut body = &bytes[end + 4..];
    let mut whole = Vec::new();
    if head.contains("transfer-encoding: chunked") {
        while let Some(line) = body.windows(2).position(|it| it == b"\r\n") {
            let size = std::str::from_utf8(&body[..line]).unwrap();
            let size = usize::from_str_radix(size, 16).unwrap();
            whole.extend(&body[line + 2..line + 2 + size]);
            body = &body[line + 2 + size + 2..];
        }
    } else {
        whole.extend(body);
    }
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    // Text is whole characters, also where a stream cuts it.
    Reply { status, head, text: String::from_utf8(whole).unwrap() }
}

/// A request that takes until somebody ends it.
fn endless() -> Value {
    json!({"prompt": "Once upon a time", "max_tokens": 2000, "ignore_eos": true, "stream": true})
}

/// Waits for the first piece of `stream`.
fn begin(stream: TcpStream) -> BufReader<TcpStream> {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    while !line.starts_with("data: ") {
        line.clear();
        assert!(reader.read_line(&mut line).unwrap() > 0, "the stream has ended");
    }
    reader
}

#[test]
fn a_request_has_its_tokens_alone_in_company_and_from_the_program() {
    let server = Server::start(&["--log", "off"]);
    let requests = [
        json!({"prompt": "Once upon a time", "max_tokens": 24, "temperature": 0}),
        json!({"prompt": "One day, a cat", "max_tokens": 40, "temperature": 0}),
        json!({"prompt": "The dog", "max_tokens": 24, "temperature": 0.9, "top_k": 30, "seed": 7}),
        json!({"prompt": "Lily said", "max_tokens": 24, "temperature": 1.1, "top_p": 0.9, "seed": 8}),
        json!({"prompt": "Once upon a time", "max_tokens": 40, "stop": [" was", " the"], "temperature": 0}),
        json!({"prompt": "The sea", "max_tokens": 30, "presence_penalty": 0.7, "frequency_penalty": 0.5,
               "repeat_penalty": 1.1, "logit_bias": {"400": -3, "401": 1.5}, "seed": 3, "logprobs": 4}),
        json!({"prompt": [0, 583, 582], "max_tokens": 20, "min_p": 0.05, "seed": -9, "priority": -3}),
        json!({"prompt": ["A", "B"], "n": 2, "max_tokens": 9, "seed": 1, "echo": true}),
    ];
    let alone: Vec<_> = requests.iter().map(|it| server.complete(it)["choices"].clone()).collect();

    let flags: [&[&str]; 5] = [
        &["-p", "Once upon a time", "-n", "24"],
        &["-p", "One day, a cat", "-n", "40"],
        &["-p", "The dog", "-n", "24", "--temp", "0.9", "--top-k", "30", "--seed", "7"],
        &["-p", "Lily said", "-n", "24", "--temp", "1.1", "--top-p", "0.9", "--seed", "8"],
        &["-p", "Once upon a time", "-n", "40", "--stop", " was", "--stop", " the"],
    ];
    for (flags, choices) in flags.iter().zip(&alone) {
        let line = ["generate", "-m", TALES, "-q", "--json", "--kv-cache", "f32", "--raw"];
        let report = support::json(&[&line[..], flags].concat());
        assert_eq!(choices[0]["text"], report["text"], "{flags:?}");
    }
    let several = alone[7].as_array().unwrap();
    assert_eq!(several.len(), 4);
    for (choice, begins) in several.iter().zip(["A", "A", "B", "B"]) {
        assert!(choice["text"].as_str().unwrap().starts_with(begins), "{choice}");
    }
    assert_ne!(several[0]["text"], several[1]["text"], "answers of two seeds");

    std::thread::scope(|scope| {
        let together = |at: usize| {
            let (server, requests) = (&server, &requests);
            scope.spawn(move || server.complete(&requests[at])["choices"].clone())
        };
        let runs: Vec<_> = (0..24).map(|at| (at % 8, together(at % 8))).collect();
        for (at, run) in runs {
            assert_eq!(run.join().unwrap(), alone[at], "{}", requests[at]);
        }
    });

    for (request, choices) in requests.iter().zip(&alone) {
        let mut request = request.clone();
        request["stream"] = true.into();
        request["stream_options"] = json!({"include_usage": true});
        let events = server.post("/v1/completions", &request).events();
        let usage = &events.last().unwrap()["usage"];
        assert!(usage["completion_tokens"].as_u64().unwrap() > 0, "{usage}");
        for (index, whole) in choices.as_array().unwrap().iter().enumerate() {
            let pieces: Vec<_> = events
                .iter()
                .flat_map(|it| it["choices"].as_array().unwrap())
                .filter(|it| it["index"] == index)
                .collect();
            let text: String = pieces.iter().map(|it| it["text"].as_str().unwrap()).collect();
            assert_eq!(text, whole["text"], "{request}");
            assert_eq!(pieces.last().unwrap()["finish_reason"], whole["finish_reason"]);
            let logprobs =
                pieces.iter().filter_map(|it| it["logprobs"]["token_logprobs"].as_array());
            let logprobs: Vec<_> = logprobs.flatten().cloned().collect();
            let expected = whole["logprobs"]["token_logprobs"].as_array();
            assert_eq!(logprobs, expected.cloned().unwrap_or_default());
        }
    }
    server.is_empty();
}

#[test]
fn chats_go_through_the_template_and_tokens_can_be_seen() {
    let model = support::model();
    let folder = model.path().to_str().unwrap();
    let server = Server::of(&["-m", folder, "-m", TALES], &["--log", "off"]);
    let names = server.get("/v1/models").json();
    let name = names["data"][0]["id"].as_str().unwrap().to_owned();
    assert_eq!(names["data"][1]["id"], "tiny-tales");
    assert_eq!(server.get(&format!("/v1/models/{name}")).json()["max_model_len"], 256);

    let parts = json!([{"type": "text", "text": "W"}, {"type": "text", "text": "ho?"}]);
    let chat = json!({
        "model": name, "messages": [{"role": "user", "content": parts}], "max_completion_tokens": 9,
        "ignore_eos": true, "temperature": 0, "logprobs": true, "top_logprobs": 2, "user": "me",
    });
    let whole = server.post("/v1/chat/completions", &chat).json();
    let line = ["generate", "-m", folder, "-q", "--json", "--kv-cache", "f32", "--ignore-eos"];
    let report = support::json(&[&line[..], &["--chat", "-p", "Who?", "-n", "9"]].concat());
    let choice = &whole["choices"][0];
    assert_eq!(choice["message"]["content"], report["text"]);
    assert_eq!(choice["finish_reason"], "length");
    assert_eq!(choice["logprobs"]["content"].as_array().unwrap().len(), 9);
    assert_eq!(whole["usage"]["completion_tokens"], 9);
    let mut streamed = chat.clone();
    streamed["stream"] = true.into();
    let events = server.post("/v1/chat/completions", &streamed).events();
    assert_eq!(events[0]["choices"][0]["delta"]["role"], "assistant");
    let pieces = events.iter().filter_map(|it| it["choices"][0]["delta"]["content"].as_str());
    assert_eq!(Value::from(pieces.collect::<String>()), report["text"]);

    let prompt = &report["prompt_tokens"];
    let tokens = json!({"model": name, "messages": [{"role": "user", "content": "Who?"}]});
    assert_eq!(&server.post("/tokenize", &tokens).json()["tokens"], prompt);
    let text = json!({"model": "tiny-tales", "prompt": "Once upon"});
    let tokens = server.post("/tokenize", &text).json()["tokens"].clone();
    let back = server.post("/detokenize", &json!({"model": "tiny-tales", "tokens": tokens}));
    assert_eq!(back.json()["prompt"], "Once upon");
    server.post("/tokenize", &json!({"prompt": "x"})).error(400);
    let error = server.post("/tokenize", &json!({"model": "x", "prompt": "x"})).error(404);
    assert!(error["message"].as_str().unwrap().contains(&format!("{name}, tiny-tales")));
    assert_eq!(server.get("/ready").status, 200);
    assert!(server.get("/version").json()["version"].is_string());
}

#[test]
fn embeddings_are_those_of_the_program_in_any_company_and_form() {
    let server = Server::start(&["--log", "off"]);
    let texts = ["A cat", "Once upon a time, there was a dog.", "A cat"];
    let embed = |body: Value| {
        let reply = server.post("/v1/embeddings", &body);
        assert_eq!(reply.status, 200, "{}", reply.text);
        reply.json()
    };
    let line = ["embed", "-q", "-m", TALES, "--kv-cache", "f32"];
    let printed = support::succeeds(&[&line[..], &texts].concat());
    let printed: Vec<Value> =
        printed.lines().map(|line| serde_json::from_str(line).unwrap()).collect();

    let answer = std::thread::scope(|scope| {
        let beside = scope.spawn(|| server.complete(&json!({"prompt": "The sea", "seed": 1})));
        let answer = embed(json!({"input": texts, "user": "me"}));
        beside.join().unwrap();
        answer
    });
    let counts: u64 = printed.iter().map(|it| it["tokens"].as_u64().unwrap()).sum();
    assert_eq!(answer["usage"], json!({"prompt_tokens": counts, "total_tokens": counts}));
    assert_eq!(answer["data"].as_array().unwrap().len(), 3);
    for (at, printed) in printed.iter().enumerate() {
        let data = &answer["data"][at];
        assert_eq!((&data["index"], &data["object"]), (&json!(at), &json!("embedding")));
        assert_eq!(data["embedding"], printed["embedding"], "{}", texts[at]);
    }

    let tokens = &server.post("/tokenize", &json!({"prompt": texts[1]})).json()["tokens"];
    let width = answer["data"][1]["embedding"].as_array().unwrap().len();
    let request = json!({"input": tokens, "encoding_format": "base64", "dimensions": width});
    let data = embed(request)["data"][0]["embedding"].as_str().unwrap().to_owned();
    let bytes = base64::Engine::decode(&base64::engine::general_purpose::STANDARD, data).unwrap();
    let numbers: Vec<f32> = bytes.as_chunks().0.iter().map(|it| f32::from_le_bytes(*it)).collect();
    let expected = answer["data"][1]["embedding"].as_array().unwrap().iter();
    let expected: Vec<_> = expected.map(|it| it.as_f64().unwrap() as f32).collect();
    assert_eq!(numbers, expected);
    // More than run at once.
    let many = embed(json!({"input": vec!["A cat"; 150]}));
    let many = many["data"].as_array().unwrap();
    assert!(many.len() == 150 && many.iter().all(|it| it["embedding"] == many[0]["embedding"]));

    for (request, param) in [
        (json!({}), "input"),
        (json!({"input": []}), "input"),
        (json!({"input": ""}), "input"),
        (json!({"input": [99999]}), "input"),
        (json!({"input": "a", "dimensions": 3}), "dimensions"),
        (json!({"input": "a", "encoding_format": "hex"}), "encoding_format"),
        (json!({"input": "a", "temperature": 1}), "temperature"),
    ] {
        let error = server.post("/v1/embeddings", &request).error(400);
        assert_eq!(error["param"], param, "{error}");
    }
    let long = json!({"input": vec![5; 5000]});
    let error = server.post("/v1/embeddings", &long).error(400);
    assert_eq!(error["code"], "context_length_exceeded", "{error}");
    server.is_empty();
}

/// Of a form, whatever the model would say, alone and in company, and in pieces.
#[test]
fn answers_keep_to_their_form() {
    let server = Server::start(&["--log", "off"]);
    let schema = json!({
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 12},
            "legs": {"type": "integer", "minimum": 0, "maximum": 8},
            "kind": {"enum": ["cat", "dog", "bird \u{1f426}"]},
            "friends": {"type": "array", "items": {"$ref": "#/$defs/friend"}, "maxItems": 2},
        },
        "required": ["name", "legs", "kind", "friends"],
        "additionalProperties": false,
        "$defs": {"friend": {"type": "object", "properties": {"good": {"type": "boolean"}},
                             "required": ["good"], "additionalProperties": false}},
    });
    let format =
        json!({"type": "json_schema", "json_schema": {"name": "animal", "schema": schema}});
    let keeps = |text: &str| {
        let value: Value = serde_json::from_str(text).unwrap_or_else(|_| panic!("no JSON: {text}"));
        let object = value.as_object().unwrap();
        assert_eq!(object.keys().collect::<Vec<_>>(), ["name", "legs", "kind", "friends"]);
        assert!(value["name"].as_str().unwrap().chars().count() <= 12, "{text}");
        assert!(value["legs"].as_u64().unwrap() <= 8, "{text}");
        assert!(
            ["cat", "dog", "bird \u{1f426}"].contains(&value["kind"].as_str().unwrap()),
            "{text}"
        );
        let friends = value["friends"].as_array().unwrap();
        assert!(friends.len() <= 2, "{text}");
        for friend in friends {
            assert!(
                friend["good"].is_boolean() && friend.as_object().unwrap().len() == 1,
                "{text}"
            );
        }
    };
    let request = |seed: u64| {
        let temperature = [0.0, 1.0, 1.5][seed as usize % 3];
        json!({"prompt": "The animal", "max_tokens": 400, "temperature": temperature, "seed": seed,
                "response_format": format, "logprobs": 1})
    };
    let alone: Vec<_> =
        (0..6).map(|seed| server.complete(&request(seed))["choices"].clone()).collect();
    for choices in &alone {
        keeps(choices[0]["text"].as_str().unwrap());
        assert_eq!(choices[0]["finish_reason"], "stop");
    }
    assert_ne!(alone[1], alone[2]);
    std::thread::scope(|scope| {
        let together = |seed| {
            scope.spawn({
                let request = request(seed);
                let server = &server;
                move || server.complete(&request)
            })
        };
        let runs: Vec<_> = (0..6).map(together).collect();
        let free = json!({"prompt": "Once upon a time", "max_tokens": 60, "seed": 1});
        server.complete(&free);
        for (run, alone) in runs.into_iter().zip(&alone) {
            assert_eq!(run.join().unwrap()["choices"], *alone);
        }
    });
    let mut streamed = request(4);
    streamed["stream"] = true.into();
    let events = server.post("/v1/completions", &streamed).events();
    let text: String = events.iter().filter_map(|it| it["choices"][0]["text"].as_str()).collect();
    assert_eq!(text, alone[4][0]["text"].as_str().unwrap());

    let of = |name: &str, value: Value, n: usize| {
        let mut request = json!({"prompt": "One day", "max_tokens": 200, "seed": 5, "n": n});
        request[name] = value;
        let answer = server.complete(&request);
        let choices = answer["choices"].as_array().unwrap().clone();
        choices.into_iter().map(|it| it["text"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    for text in of("guided_regex", json!("[0-9]{3}-(a|b){2}"), 4) {
        let (digits, letters) = text.split_once('-').unwrap_or_else(|| panic!("{text}"));
        assert!(digits.len() == 3 && digits.bytes().all(|it| it.is_ascii_digit()), "{text}");
        assert!(letters.len() == 2 && letters.bytes().all(|it| b"ab".contains(&it)), "{text}");
    }
    let grammar = "start: animal (\" and \" animal)?\nanimal: \"a cat\" | \"two dogs\"";
    for text in of("guided_grammar", json!(grammar), 3) {
        let mut animals = text.split(" and ");
        assert!(animals.all(|it| ["a cat", "two dogs"].contains(&it)), "{text}");
    }
    keeps(&of("guided_json", schema.to_string().into(), 1)[0]);
    let three = of(
        "guided_json",
        json!({"type": "array", "items": {"type": "null"}, "minItems": 3, "maxItems": 3}),
        1,
    );
    assert_eq!(three, ["[null, null, null]"]);

    for (name, value, part) in [
        ("response_format", json!({"type": "json_schema"}), "json_schema.schema"),
        ("response_format", json!({"type": "xml"}), "there are: text"),
        ("response_format", json!({"type": "text", "strict": 1}), "strict"),
        ("guided_json", json!({"type": "animal"}), "cannot be kept to"),
        (
            "guided_json",
            json!({"type": "object", "propertyNames": {"minLength": 3}}),
            "cannot be kept to",
        ),
        (
            "guided_json",
            json!({"type": "string", "minLength": 5, "maxLength": 3}),
            "cannot be kept to",
        ),
        ("guided_json", json!("{"), "no JSON"),
        ("guided_regex", json!("(a"), "cannot be kept to"),
        ("guided_regex", json!(5), "string"),
        ("guided_grammar", json!("start: nothing"), "cannot be kept to"),
    ] {
        let mut request = json!({"prompt": "a"});
        request[name] = value;
        let error = server.post("/v1/completions", &request).error(400);
        let message = error["message"].as_str().unwrap();
        assert!(message.contains(part), "{request}: {error}");
    }
    for (name, value) in [("guided_regex", json!("a")), ("ignore_eos", json!(true))] {
        let mut request = json!({"prompt": "a", "guided_json": {}});
        request[name] = value;
        assert_eq!(server.post("/v1/completions", &request).error(400)["param"], name);
    }
    server.is_empty();
}

/// The model with a template that knows tools as `style` writes them; thoughts, too.
fn with_tools(style: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for name in [
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ] {
        std::fs::copy(format!("{TALES}/{name}"), folder.path().join(name)).unwrap();
    }
    let source = std::fs::read_to_string(format!("{TEMPLATES}/{style}.jinja")).unwrap();
    std::fs::write(folder.path().join("chat_template.jinja"), source).unwrap();
    folder
}

fn tools() -> Value {
    let city = json!({"type": "object", "properties": {
        "city": {"enum": ["Bern", "Zürich \"HB\""]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
        "required": ["city", "days"], "additionalProperties": false});
    json!([
        {"type": "function", "function": {
            "name": "get_weather", "description": "The weather of a city.", "parameters": city}},
        {"type": "function", "function": {"name": "get_time"}},
    ])
}

/// Checks a call, and returns its name and arguments.
#[track_caller]
fn called(call: &Value) -> (String, String) {
    assert_eq!(call["type"], "function");
    let [name, arguments] = ["name", "arguments"].map(|it| call["function"][it].as_str().unwrap());
    let given: Value = serde_json::from_str(arguments).unwrap();
    match name {
        "get_weather" => {
            assert!(["Bern", "Zürich \"HB\""].contains(&given["city"].as_str().unwrap()), "{call}");
            assert!((1..=9).contains(&given["days"].as_u64().unwrap()), "{call}");
            assert_eq!(given.as_object().unwrap().len(), 2, "{call}");
        }
        "get_time" => assert_eq!(given, json!({})),
        other => panic!("no tool is called {other:?}"),
    }
    (name.into(), arguments.into())
}

#[test]
fn tools_are_called_with_arguments_of_their_schemas() {
    let mut seen = std::collections::BTreeSet::new();
    for style in ["qwen2.5", "llama3.2", "mistral-v0.3"] {
        let folder = with_tools(style);
        let server = Server::of(&["-m", folder.path().to_str().unwrap()], &["--log", "off"]);
        let ask = |more: Value| {
            let mut request = json!({"messages": [{"role": "user", "content": "Is it warm in Bern?"}],
                                     "tools": tools(), "max_tokens": 300});
            request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            request
        };
        let path = "/v1/chat/completions";
        let answer = |more: Value| {
            let reply = server.post(path, &ask(more));
            assert_eq!(reply.status, 200, "{style}: {}", reply.text);
            reply.json()["choices"][0].clone()
        };
        let only = json!({"type": "function", "function": {"name": "get_time"}});
        let choice = answer(json!({"tool_choice": only, "temperature": 0}));
        let calls = choice["message"]["tool_calls"].as_array().unwrap();
        assert_eq!(calls.len(), 1, "{style}: {choice}");
        assert_eq!(called(&calls[0]).0, "get_time");
        assert_eq!(choice["finish_reason"], "tool_calls");
        assert_eq!(choice["message"]["content"], Value::Null);
        for seed in 0..6 {
            let more = json!({"tool_choice": "required", "temperature": 20, "seed": seed,
                              "parallel_tool_calls": false, "logprobs": true});
            let choice = answer(more.clone());
            let calls = choice["message"]["tool_calls"].as_array().unwrap();
            assert_eq!(
                (calls.len(), &choice["finish_reason"]),
                (1, &json!("tool_calls")),
                "{choice}"
            );
            let call = called(&calls[0]);
            // The same in pieces.
            let mut streamed = ask(more);
            streamed["stream"] = true.into();
            let events = server.post(path, &streamed).events();
            let deltas = events.iter().map(|it| &it["choices"][0]["delta"]);
            let pieces: Vec<_> = deltas.filter_map(|it| it["tool_calls"].get(0)).collect();
            assert!(pieces.iter().all(|it| it["index"] == 0), "{pieces:?}");
            let names: Vec<_> =
                pieces.iter().filter_map(|it| it["function"]["name"].as_str()).collect();
            assert_eq!(names, [&call.0], "{style}");
            assert_eq!(pieces.iter().filter(|it| it["id"].is_string()).count(), 1);
            let arguments = pieces.iter().map(|it| it["function"]["arguments"].as_str().unwrap());
            assert_eq!(arguments.collect::<String>(), call.1, "{style}");
            let tokens = |it: &Value| it["logprobs"]["content"].as_array().map_or(0, Vec::len);
            assert_eq!(
                events.iter().map(|it| tokens(&it["choices"][0])).sum::<usize>(),
                tokens(&choice)
            );
            let last =
                events.iter().rev().find_map(|it| it["choices"][0]["finish_reason"].as_str());
            assert_eq!(last, Some("tool_calls"));
            seen.insert(call.0);
        }
        // What has been called, and what came of it, goes into the next prompt.
        let choice = answer(json!({"tool_choice": only, "temperature": 0}));
        let id = choice["message"]["tool_calls"][0]["id"].clone();
        let messages = json!([
            {"role": "user", "content": "What time is it?"}, choice["message"],
            {"role": "tool", "content": "noon", "tool_call_id": id},
        ]);
        let tokens = server.post("/tokenize", &json!({"messages": messages, "tools": tools()}));
        assert_eq!(tokens.status, 200, "{style}: {}", tokens.text);
        let count = |it: Value| it["count"].as_u64().unwrap();
        let without = server.post("/tokenize", &json!({"messages": messages}));
        assert!(
            count(tokens.json()) > count(without.json()) + 100,
            "{style}: tools are in the prompt"
        );
        answer(json!({"messages": messages, "temperature": 0, "max_tokens": 20}));
        // Left to itself, this model speaks.
        let free = answer(json!({"temperature": 0, "max_tokens": 20}));
        assert!(free["message"]["tool_calls"].is_null(), "{style}: {free}");
        assert_ne!(free["finish_reason"], "tool_calls", "{style}: {free}");
        // And with none to call as if there were none.
        let none = answer(json!({"tool_choice": "none", "temperature": 0, "max_tokens": 20}));
        let plain = answer(json!({"tools": [], "temperature": 0, "max_tokens": 20}));
        assert_eq!(none, plain, "{style}");
        let wrong = |more: Value| {
            let error = server.post(path, &ask(more)).error(400);
            error["param"].as_str().unwrap_or_default().to_owned()
        };
        let bad = json!({"type": "function", "function": {"name": "get_cats"}});
        assert_eq!(wrong(json!({"tool_choice": bad})), "tool_choice");
        assert_eq!(wrong(json!({"tool_choice": "any"})), "tool_choice");
        assert_eq!(wrong(json!({"tool_choice": "required", "tools": []})), "tool_choice");
        assert_eq!(wrong(json!({"tools": [{"type": "function"}]})), "tools[0].function");
        assert_eq!(wrong(json!({"tools": [tools()[0], tools()[0]]})), "tools");
        let format = json!({"type": "json_object"});
        assert_eq!(wrong(json!({"tool_choice": "required", "response_format": format})), "tools");
        let mut odd = tools()[0].clone();
        odd["function"]["parameters"]["properties"]["city"] = json!({"type": "no such type"});
        assert_eq!(wrong(json!({"tool_choice": "required", "tools": [odd]})), "tools");
    }
    assert_eq!(seen.len(), 2, "both are called by some seed");
    // A template that knows none.
    let server = Server::start(&["--log", "off"]);
    let request = json!({"messages": [{"role": "user", "content": "Hi"}], "tools": tools()});
    assert_eq!(server.post("/v1/chat/completions", &request).error(400)["param"], "tools");
}

#[test]
fn what_is_wrong_is_said_in_the_form_of_the_api() {
    let server = Server::start(&["--log", "off", "--max-body", "1"]);
    let user = json!([{"role": "user", "content": "a"}]);
    let cases = [
        (json!({"prompt": "a", "max_token": 5}), "max_token", "is no field"),
        (json!({"prompt": "a", "suffix": "b"}), "suffix", "not supported"),
        (json!({"prompt": "a", "best_of": 2}), "best_of", "not supported"),
        (json!({"max_tokens": 5}), "prompt", "is missing"),
        (json!({"prompt": ""}), "prompt", "is empty"),
        (json!({"prompt": []}), "prompt", "0 prompts"),
        (json!({"prompt": 7}), "prompt", "must be a string"),
        (json!({"prompt": [1, -2]}), "prompt", "must be a string"),
        (json!({"prompt": [0, 99999]}), "prompt", "99999 is outside"),
        (json!({"prompt": "a", "max_tokens": "5"}), "max_tokens", "invalid type"),
        (json!({"prompt": "a", "max_tokens": -1}), "max_tokens", "invalid value"),
        (json!({"prompt": "a", "temperature": -0.5}), "temperature", "between 0"),
        (json!({"prompt": "a", "temperature": 1e300}), "temperature", "between 0"),
        (json!({"prompt": "a", "top_p": 1.5}), "top_p", "between 0"),
        (json!({"prompt": "a", "seed": 0.5}), "seed", "integer"),
        (json!({"prompt": "a", "n": 0}), "n", "between 1"),
        (json!({"prompt": "a", "stop": ""}), "stop", "empty"),
        (json!({"prompt": "a", "stop": 5}), "stop", ""),
        (json!({"prompt": "a", "logprobs": 21}), "logprobs", "at most 20"),
        (json!({"prompt": "a", "logprobs": 1, "echo": true}), "echo", "not supported"),
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
    server.get("/etc/passwd").error(404);
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
    drop(begin(send(&body)));
    server.is_empty();
    body["stream"] = false.into();
    let stream = send(&body);
    while server.number("vllm:num_requests_running", "") == 0.0 {
        std::thread::sleep(Duration::from_millis(5));
    }
    drop(stream);
    server.is_empty();
    assert_eq!(server.number("iree_llm_requests_cancelled_total", ""), 2.0);

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
fn a_full_queue_says_so_and_when_to_come_again() {
    let server = Server::start(&["--log", "off", "--parallel", "1", "--queue", "1"]);
    let send = || {
        let body = endless().to_string();
        server.send("POST", "/v1/completions", "application/json", body.as_bytes())
    };
    let first = begin(send());
    let second = send();
    while server.number("vllm:num_requests_waiting", "") == 0.0 {
        std::thread::sleep(Duration::from_millis(5));
    }
    let refused = read(send());
    assert_eq!(refused.error(429)["code"], "queue_full");
    assert!(refused.head.contains("retry-after: 1"), "{}", refused.head);
    let many = server.post("/v1/completions", &json!({"prompt": "a", "n": 3}));
    assert!(many.error(400)["message"].as_str().unwrap().contains("2 at most"));
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
    while asks(&mut server, "gamma") != 200 {}
    assert_eq!((asks(&mut server, "alpha"), asks(&mut server, "beta")), (401, 200));
    // Nobody is let in by a file without keys.
    std::fs::write(&file, "# none\n").unwrap();
    server.signal("-HUP");
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!((asks(&mut server, "beta"), asks(&mut server, "")), (200, 401));
    let message = support::fails(1, &["serve", "-m", TALES, "--api-key", file.to_str().unwrap()]);
    assert!(message.contains("there is no key"), "{message}");
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
    while server.get("/ready").status != 503 {}
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
    while server.get("/ready").status != 503 {}
    server.signal("-TERM");
    assert_eq!(server.ended(), Some(130));
    drop(stream);
}
