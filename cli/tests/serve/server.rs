//! The program on a port of its own, and what comes back from it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support;

pub const TALES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../models/tiny-tales");
pub const LIMIT: Duration = Duration::from_secs(60);

/// A server that runs, and ends with the test.
pub struct Server {
    pub child: Child,
    pub address: String,
    pub key: Option<&'static str>,
    /// More lines of the heads of requests.
    pub extra: String,
    log: Arc<Mutex<String>>,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What came back.
pub struct Reply {
    pub status: u16,
    pub head: String,
    pub text: String,
}

impl Reply {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|_| panic!("no JSON: {}", self.text))
    }

    /// Its error, which is in the form of OpenAI's.
    #[track_caller]
    pub fn error(&self, status: u16) -> Value {
        assert_eq!(self.status, status, "{}", self.text);
        let error = self.json()["error"].clone();
        assert!(error["message"].is_string() && error["type"].is_string(), "{}", self.text);
        error
    }

    /// The objects of a stream, which ends as it should.
    pub fn events(&self) -> Vec<Value> {
        let mut lines: Vec<_> = self.text.split("\n\n").filter(|it| !it.is_empty()).collect();
        assert_eq!(lines.pop(), Some("data: [DONE]"), "{}", self.text);
        let data = lines.iter().filter_map(|line| line.strip_prefix("data: "));
        data.map(|text| serde_json::from_str(text).unwrap()).collect()
    }
}

impl Server {
    pub fn start(flags: &[&str]) -> Self {
        Self::of(&["-m", TALES], flags)
    }

    pub fn of(models: &[&str], flags: &[&str]) -> Self {
        Self::with(models, flags, &[])
    }

    pub fn with(models: &[&str], flags: &[&str], environment: &[(&str, &str)]) -> Self {
        let cache = concat!(env!("CARGO_TARGET_TMPDIR"), "/compiled");
        let port: &[&str] = if flags.contains(&"--socket") { &[] } else { &["--port", "0"] };
        let mut child = support::running()
            .args(["serve", "--kv-cache", "f32"])
            .args(port)
            .args(models)
            .args(flags)
            .env("IREE_LLM_CACHE_DIR", cache)
            .env("IREE_LLM_NO_WEIGHTS_CACHE", "1")
            .envs(environment.iter().copied())
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
        let log = Arc::new(Mutex::new(String::new()));
        let kept = log.clone();
        // A full pipe would stop it.
        std::thread::spawn(move || {
            lines.map_while(Result::ok).for_each(|line| *kept.lock().unwrap() += &(line + "\n"));
        });
        Self { child, address, key: None, extra: String::new(), log }
    }

    /// Sends `method path` with the bytes `body`, and returns the open connection.
    pub fn send(&self, method: &str, path: &str, kind: &str, body: &[u8]) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        let key = self.key.map(|key| format!("Authorization: Bearer {key}\r\n"));
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: {kind}\r\n\
             {}{}Content-Length: {}\r\n\r\n",
            key.unwrap_or_default(),
            self.extra,
            body.len()
        );
        stream.write_all(head.as_bytes()).unwrap();
        // A server that has refused the head need not take the body.
        let _ = stream.write_all(body);
        stream
    }

    pub fn raw(&self, method: &str, path: &str, kind: &str, body: &[u8]) -> Reply {
        read(self.send(method, path, kind, body))
    }

    pub fn post(&self, path: &str, body: &Value) -> Reply {
        self.raw("POST", path, "application/json", body.to_string().as_bytes())
    }

    pub fn get(&self, path: &str) -> Reply {
        self.raw("GET", path, "text/plain", b"")
    }

    pub fn complete(&self, body: &Value) -> Value {
        let reply = self.post("/v1/completions", body);
        assert_eq!(reply.status, 200, "{}", reply.text);
        reply.json()
    }

    /// The reply to `body`, a stream that its timeout ends, and how often it was asked for: where others keep the server
    /// busy, the time may be up before the stream begins.
    #[track_caller]
    pub fn post_late(&self, path: &str, body: &Value) -> (Reply, usize) {
        for asked in 1..=20 {
            let reply = self.post(path, body);
            if reply.status == 200 {
                return (reply, asked);
            }
            assert_eq!(reply.error(504)["code"], "timeout");
        }
        panic!("no stream begins in time");
    }

    /// The number of `/metrics` that begins with `name` and has `label`.
    pub fn number(&self, name: &str, label: &str) -> f64 {
        number(&self.get("/metrics").text, name, label)
    }

    /// Waits until no request runs or waits; then no page may be held.
    #[track_caller]
    pub fn is_empty(&self) {
        // All of one moment: another request may begin after it.
        let mut text = String::new();
        until("no requests are left", || {
            text = self.get("/metrics").text;
            ["vllm:num_requests_running", "vllm:num_requests_waiting"]
                .iter()
                .all(|name| number(&text, name, "") == 0.0)
        });
        assert_eq!(number(&text, "iree_llm_kv_pages", "\"held\""), 0.0);
    }

    /// What it has logged so far.
    pub fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    /// Waits until it has logged `part`.
    #[track_caller]
    pub fn logged(&self, part: &str) {
        let start = Instant::now();
        while !self.log().contains(part) {
            assert!(start.elapsed() < LIMIT, "no {part:?} in {}", self.log());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub fn signal(&self, name: &str) {
        support::signal(name, &self.child);
    }

    /// Its exit code, when it has ended.
    pub fn ended(&mut self) -> Option<i32> {
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

/// The number in the `text` of `/metrics` that begins with `name` and has `label`.
fn number(text: &str, name: &str, label: &str) -> f64 {
    let mut lines = text.lines().filter(|it| it.starts_with(name) && it.contains(label));
    let line = lines.next().unwrap_or_else(|| panic!("no {name} {label} in {text}"));
    line.rsplit_once(' ').unwrap().1.parse().unwrap()
}

/// Waits until `is_so`.
#[track_caller]
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < LIMIT, "it does not come to this: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// All of a reply.
pub fn read(mut stream: TcpStream) -> Reply {
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
pub fn endless() -> Value {
    json!({"prompt": "Once upon a time", "max_tokens": 2000, "ignore_eos": true, "stream": true})
}

/// Waits for the first piece of `stream`.
pub fn begin(stream: TcpStream) -> BufReader<TcpStream> {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    while !line.starts_with("data: ") {
        line.clear();
        assert!(reader.read_line(&mut line).unwrap() > 0, "the stream has ended");
    }
    reader
}
