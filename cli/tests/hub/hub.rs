//! A hub, and its CDN, on the loopback interface.

use std::collections::{BTreeMap, VecDeque};
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use assert_cmd::Command;
use sha2::{Digest, Sha256};
use tiny_http::{Header, Request, Response, Server};

use crate::support::{self, program};

pub const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// A server that answers as the hub does: what there is, small files at once, large ones through a redirection to
/// another server, its CDN.
pub struct Hub {
    server: Arc<Server>,
    pub address: String,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
pub struct State {
    pub commit: String,
    pub files: BTreeMap<String, Vec<u8>>,
    /// Paths of the hub, and of the CDN behind `/cdn`, with the range that was asked for.
    pub requests: Vec<String>,
    /// Those that the hub got.
    pub tokens: Vec<String>,
    /// What was odd about requests.
    pub odd: Vec<String>,
    /// Refuses whoever has no token.
    pub gated: bool,
    /// Sends this instead of the weights.
    pub damaged: Option<Vec<u8>>,
    /// What small files have as their ETag.
    pub etag: Option<&'static str>,
    /// How often the hub itself has no time, and for how many seconds.
    pub busy: VecDeque<u64>,
    /// What the CDN does with its next requests.
    pub faults: VecDeque<Fault>,
}

/// How a request of the CDN goes wrong.
pub enum Fault {
    Status(u16),
    /// So many bytes come.
    BreaksOff(usize),
    /// Nothing comes for so long.
    Waits(Duration),
    /// Nothing comes until something is sent, or the sender is gone.
    Held(Receiver<()>),
    /// All of the file comes, whatever was asked for.
    Whole,
}

impl Hub {
    pub fn with(files: BTreeMap<String, Vec<u8>>) -> Self {
        let server = Arc::new(Server::http("127.0.0.1:0").unwrap());
        let address = format!("http://{}", server.server_addr());
        let state = State { files, commit: COMMIT.into(), ..State::default() };
        let state = Arc::new(Mutex::new(state));
        let cdn = TcpListener::bind("127.0.0.1:0").unwrap();
        let there = format!("http://{}", cdn.local_addr().unwrap());
        let (serve, shared) = (server.clone(), state.clone());
        std::thread::spawn(move || {
            for request in serve.incoming_requests() {
                answer(request, &mut shared.lock().unwrap(), &there);
            }
        });
        let shared = state.clone();
        std::thread::spawn(move || {
            for stream in cdn.incoming() {
                let shared = shared.clone();
                std::thread::spawn(move || deliver(stream.unwrap(), &shared));
            }
        });
        Self { server, address, state }
    }

    /// The tiny model, with a file that nobody needs.
    pub fn tiny() -> Self {
        let folder = support::model();
        let mut files = folder_files(folder.path());
        files.insert("pytorch_model.bin".into(), vec![0; 100]);
        Self::with(files)
    }

    pub fn requests(&self) -> Vec<String> {
        std::mem::take(&mut self.state.lock().unwrap().requests)
    }

    /// Those of the CDN.
    pub fn deliveries(&self) -> Vec<String> {
        self.requests().into_iter().filter(|it| it.starts_with("/cdn/")).collect()
    }

    pub fn set(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock().unwrap());
    }

    pub fn weights(&self) -> Vec<u8> {
        self.state.lock().unwrap().files["model.safetensors"].clone()
    }

    /// `iree-llm inspect id`, with this hub and the cache in `home`.
    pub fn inspect(&self, home: &Path, id: &str) -> Command {
        self.command(home, &["inspect", id])
    }

    pub fn pull(&self, home: &Path, id: &str) -> Command {
        self.command(home, &["pull", id])
    }

    pub fn command(&self, home: &Path, arguments: &[&str]) -> Command {
        let mut command = program(arguments);
        command.env("HF_ENDPOINT", &self.address).env("HF_HOME", home);
        command
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        self.server.unblock();
        let odd = &self.state.lock().unwrap().odd;
        assert!(std::thread::panicking() || odd.is_empty(), "{odd:?}");
    }
}

pub fn folder_files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = folder.read_dir().unwrap().map(Result::unwrap);
    entries
        .map(|entry| {
            let name = entry.file_name().into_string().unwrap();
            (name, std::fs::read(entry.path()).unwrap())
        })
        .collect()
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn header(name: &str, value: &str) -> Header {
    Header::from_bytes(name, value).unwrap()
}

/// The hub.
fn answer(request: Request, state: &mut State, cdn: &str) {
    let find = |name: &'static str| {
        let header = request.headers().iter().find(|header| header.field.equiv(name))?;
        Some(header.value.to_string())
    };
    let path = request.url().to_owned();
    state.requests.push(path.clone());
    let token = find("Authorization");
    state.tokens.extend(token.clone());
    if state.gated && token.is_none() {
        return request.respond(Response::empty(401)).unwrap();
    }
    if let Some(seconds) = state.busy.pop_front() {
        let busy = Response::empty(429).with_header(header("Retry-After", &seconds.to_string()));
        return request.respond(busy).unwrap();
    }
    let status = |code: u16| Response::from_data(Vec::new()).with_status_code(code);
    let small = format!("/api/resolve-cache/{}/", state.commit);
    let response = if path.starts_with("/api/models/some/model/revision/") {
        let names = state.files.keys().map(|name| serde_json::json!({ "rfilename": name }));
        let names: Vec<_> = names.collect();
        let info = serde_json::json!({ "sha": state.commit, "siblings": names });
        Response::from_data(info.to_string())
    } else if let Some(name) = path.strip_prefix(&format!("/some/model/resolve/{}/", state.commit))
    {
        match state.files.get(&name.replace("%20", " ")) {
            None => status(404),
            Some(bytes) if name.ends_with(".safetensors") || name.ends_with(".gguf") => {
                let hash = hex(&Sha256::digest(bytes));
                status(302)
                    .with_header(header("Location", &format!("{cdn}/{name}")))
                    .with_header(header("X-Linked-Size", &bytes.len().to_string()))
                    .with_header(header("X-Linked-Etag", &format!("\"{hash}\"")))
                    .with_header(header("ETag", "\"of the redirection\""))
            }
            Some(_) => status(307).with_header(header("Location", &format!("{small}{name}"))),
        }
    } else if let Some(name) = path.strip_prefix(&small) {
        let bytes = &state.files[name];
        let own = format!("W/\"{}\"", &hex(&Sha256::digest(bytes))[..40]);
        let etag = state.etag.map_or(own, |etag| format!("\"{etag}\""));
        // Whoever takes it compressed is not told its size.
        let gzip = find("Accept-Encoding").is_none_or(|it| it.contains("gzip"));
        Response::from_data(bytes.as_slice())
            .with_chunked_threshold(if gzip { 0 } else { usize::MAX })
            .with_header(header("ETag", &etag))
    } else {
        status(404)
    };
    // A client that has gone away is its own test's business.
    let _ = request.respond(response);
}

/// The CDN: one request a connection, which it may break.
fn deliver(mut stream: TcpStream, state: &Mutex<State>) {
    let lines = BufReader::new(stream.try_clone().unwrap()).lines();
    let lines: Vec<_> = lines.map_while(Result::ok).take_while(|line| !line.is_empty()).collect();
    let Some(name) = lines.first().and_then(|line| line.split(' ').nth(1)) else { return };
    let find = |name: &str| {
        let mut headers = lines.iter().filter_map(|line| line.split_once(": "));
        Some(headers.find(|(found, _)| found.eq_ignore_ascii_case(name))?.1.to_owned())
    };
    let (fault, bytes) = {
        let mut state = state.lock().unwrap();
        let range = find("Range").map(|it| format!(" {it}")).unwrap_or_default();
        state.requests.push(format!("/cdn{name}{range}"));
        if find("Authorization").is_some() {
            state.odd.push(format!("the CDN is given the token for {name}"));
        }
        if find("Accept-Encoding").is_none_or(|it| it != "identity") {
            state.odd.push(format!("{name} may come compressed"));
        }
        let file = &state.files[&name[1..].replace("%20", " ")];
        let bytes = state.damaged.as_ref().unwrap_or(file).clone();
        (state.faults.pop_front(), bytes)
    };
    let from =
        find("Range").and_then(|it| it.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok());
    let mut most = usize::MAX;
    let from: Option<usize> = match fault {
        Some(Fault::Status(status)) => {
            let _ = write!(stream, "HTTP/1.1 {status} x\r\nContent-Length: 0\r\n\r\n");
            return;
        }
        Some(Fault::BreaksOff(count)) => {
            most = count;
            from
        }
        Some(Fault::Waits(time)) => {
            std::thread::sleep(time);
            from
        }
        Some(Fault::Held(go)) => {
            let _ = go.recv();
            from
        }
        Some(Fault::Whole) => None,
        None => from,
    };
    let (rest, end) = (&bytes[from.unwrap_or(0).min(bytes.len())..], bytes.len());
    let head = match from {
        Some(from) if from >= end => "416 x\r\n".to_owned(),
        Some(from) => format!("206 x\r\nContent-Range: bytes {from}-{}/{end}\r\n", end - 1),
        None => "200 x\r\n".to_owned(),
    };
    let length = rest.len();
    let head = format!("HTTP/1.1 {head}Content-Length: {length}\r\nConnection: close\r\n\r\n");
    let _ = stream.write_all(head.as_bytes());
    let _ = stream.write_all(&rest[..length.min(most)]);
}
