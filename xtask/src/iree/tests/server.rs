//! A loopback HTTP server that can misbehave on purpose.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use sha2::{Digest, Sha256};

/// How the server sends its file.
#[derive(Clone, Copy)]
pub enum Behaviour {
    /// All of it, or the asked-for range.
    Whole,
    /// Closes the first connection after `at` bytes; ranges work.
    BreaksOnce { at: usize },
    /// Never sends a byte beyond `at`, though it announces more.
    Stuck { at: usize },
}

/// What a client asked for.
#[derive(Clone, Debug)]
pub struct Asked {
    pub path: String,
    pub range: Option<String>,
}

#[derive(Default)]
struct State {
    file: Option<(Vec<u8>, Behaviour)>,
    asked: Vec<Asked>,
}

/// The server; it lives as long as the test's process.
pub struct Server {
    state: Arc<Mutex<State>>,
    port: u16,
}

impl Server {
    pub fn start() -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let state = Arc::new(Mutex::new(State::default()));
        let shared = state.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                // A client that hangs up is part of the tests.
                let _ = answer(stream, &shared);
            }
        });
        Server { state, port }
    }

    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}/", self.port)
    }

    pub fn serve(&self, bytes: Vec<u8>, behaviour: Behaviour) {
        self.state.lock().unwrap().file = Some((bytes, behaviour));
    }

    pub fn requests(&self) -> Vec<Asked> {
        self.state.lock().unwrap().asked.clone()
    }
}

fn answer(mut stream: TcpStream, state: &Mutex<State>) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    let first = lines.next().transpose()?.unwrap_or_default();
    let path = first.split(' ').nth(1).unwrap_or_default().to_owned();
    let (mut range, mut if_range) = (None, None);
    for line in lines {
        let line = line?;
        if line.is_empty() {
            break;
        }
        let (name, value) = line.split_once(':').unwrap_or((&line, ""));
        match name.to_ascii_lowercase().as_str() {
            "range" => range = Some(value.trim().to_owned()),
            "if-range" => if_range = Some(value.trim().to_owned()),
            _ => {}
        }
    }
    let mut state = state.lock().unwrap();
    state.asked.push(Asked { path, range: range.clone() });
    let Some((bytes, behaviour)) = state.file.as_mut() else {
        return stream.write_all(
            b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
        );
    };
    let etag = format!("\"{:x}\"", Sha256::digest(&*bytes));
    let same = if_range.is_none_or(|asked| asked == etag);
    let start = range
        .filter(|_| same)
        .and_then(|r| r.strip_prefix("bytes=")?.strip_suffix('-')?.parse::<usize>().ok());
    let end = match *behaviour {
        Behaviour::Whole => bytes.len(),
        Behaviour::BreaksOnce { at } => {
            *behaviour = Behaviour::Whole;
            at
        }
        Behaviour::Stuck { at } => at,
    };
    let from = start.unwrap_or(0);
    let head = match start {
        Some(from) => format!(
            "206 Partial Content\r\nContent-Range: bytes {from}-{}/{}",
            bytes.len() - 1,
            bytes.len()
        ),
        None => "200 OK".to_owned(),
    };
    write!(
        stream,
        "HTTP/1.1 {head}\r\nETag: {etag}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        bytes.len() - from
    )?;
    stream.write_all(bytes.get(from..end.max(from)).unwrap_or_default())
}
