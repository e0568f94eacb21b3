//! Downloads one file over HTTP and takes up where an earlier attempt stopped.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use ureq::http::{Response, StatusCode, Uri, header};
use ureq::tls::{RootCerts, TlsConfig};
use ureq::{Agent, Body};

use super::progress::{Progress, Step};
use super::{Error, Result};

/// Attempts in one run; each goes on where the one before it stopped.
const ATTEMPTS: u32 = 4;

/// Downloads `url` to `path`. What has arrived waits in `<path>.part` for the next attempt, in
/// this run or a later one.
pub fn to_file(url: &str, path: &Path, progress: Progress) -> Result<()> {
    let fail = |why: String| Error::Download { url: url.to_owned(), why };
    let part = Part::new(path);
    let mut config = Agent::config_builder();
    if is_here(url) {
        // No proxy reaches this machine.
        config = config.proxy(None);
    }
    let agent: Agent = config
        .tls_config(TlsConfig::builder().root_certs(RootCerts::PlatformVerifier).build())
        .timeout_connect(Some(Duration::from_secs(30)))
        .timeout_recv_response(Some(Duration::from_secs(60)))
        // A stalled attempt ends, and the next one goes on behind it.
        .timeout_recv_body(Some(Duration::from_secs(600)))
        .http_status_as_error(false)
        .build()
        .into();
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let step = progress.bytes(&format!("download {name}"), 0);
    let mut last = String::new();
    for attempt in 0..ATTEMPTS {
        if attempt > 0 {
            std::thread::sleep(Duration::from_millis(250 << attempt));
        }
        match attempt_once(&agent, url, &part, &step) {
            Ok(()) => {
                fs::rename(&part.file, path).map_err(Error::io("put in place", path))?;
                part.forget_validator()?;
                step.done();
                return Ok(());
            }
            Err(Failure::Final(why)) => return Err(fail(why)),
            Err(Failure::Local(error)) => return Err(error),
            Err(Failure::Passing(why)) => last = why,
        }
    }
    let kept = part.file.metadata().map_or(0, |meta| meta.len());
    Err(fail(format!(
        "{last}, {ATTEMPTS} times; {kept} bytes are kept: run the same command again to go on"
    )))
}

/// Whether `url` is of this machine itself.
fn is_here(url: &str) -> bool {
    let uri = url.parse::<Uri>();
    uri.is_ok_and(|uri| matches!(uri.host(), Some("127.0.0.1" | "localhost" | "[::1]")))
}

enum Failure {
    /// Another attempt would fail alike.
    Final(String),
    /// Another attempt may succeed.
    Passing(String),
    /// This machine failed.
    Local(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure::Local(error)
    }
}

/// An unfinished download, and the validator that tells whether the server's file is still the
/// one it began with.
struct Part {
    file: PathBuf,
    validator: PathBuf,
}

impl Part {
    fn new(path: &Path) -> Part {
        let with = |suffix| {
            let mut name = path.as_os_str().to_owned();
            name.push(suffix);
            PathBuf::from(name)
        };
        Part { file: with(".part"), validator: with(".part.etag") }
    }

    fn forget_validator(&self) -> Result<()> {
        super::place::remove(&self.validator)
    }
}

fn attempt_once(agent: &Agent, url: &str, part: &Part, step: &Step) -> Result<(), Failure> {
    let have = part.file.metadata().map_or(0, |meta| meta.len());
    let mut get = agent.get(url);
    if have > 0 {
        get = get.header(header::RANGE, format!("bytes={have}-"));
        if let Ok(validator) = fs::read_to_string(&part.validator) {
            get = get.header(header::IF_RANGE, validator);
        }
    }
    let response = get.call().map_err(|e| match e {
        ureq::Error::BadUri(_) | ureq::Error::HostNotFound | ureq::Error::Tls(_) => {
            Failure::Final(format!("{e}; check the network, --base-url and the proxy settings"))
        }
        other => Failure::Passing(other.to_string()),
    })?;
    let start = match response.status() {
        StatusCode::OK => 0,
        StatusCode::PARTIAL_CONTENT => match content_range_start(&response) {
            Some(start) if start == have => have,
            _ => {
                restart(part)?;
                return Err(Failure::Passing("the server sent another part of the file".into()));
            }
        },
        StatusCode::RANGE_NOT_SATISFIABLE => {
            restart(part)?;
            return Err(Failure::Passing("the server's file is shorter than before".into()));
        }
        StatusCode::NOT_FOUND => {
            let why = "404: there is no such file; check --iree-version and --base-url";
            return Err(Failure::Final(why.into()));
        }
        status if status.is_server_error() => {
            return Err(Failure::Passing(format!("the server answered {status}")));
        }
        status => return Err(Failure::Final(format!("the server answered {status}"))),
    };
    receive(response, start, part, step)
}

fn receive(response: Response<Body>, start: u64, part: &Part, step: &Step) -> Result<(), Failure> {
    remember_validator(&response, part)?;
    let file = if start == 0 {
        File::create(&part.file)
    } else {
        OpenOptions::new().append(true).open(&part.file)
    };
    let mut file = file.map_err(Error::io("write", &part.file))?;
    let length = header_text(&response, header::CONTENT_LENGTH).and_then(|t| t.parse::<u64>().ok());
    let total = length.map(|length| start + length);
    step.set_total(total.unwrap_or(0));
    step.set(start);
    let mut body = response.into_body().into_reader();
    let mut at = start;
    let mut buffer = vec![0; 1 << 16];
    loop {
        match body.read(&mut buffer) {
            Ok(0) => break,
            Ok(n) => {
                io::Write::write_all(&mut file, &buffer[..n])
                    .map_err(Error::io("write", &part.file))?;
                at += n as u64;
                step.set(at);
            }
            Err(e) => return Err(Failure::Passing(format!("the connection broke: {e}"))),
        }
    }
    match total {
        Some(total) if at != total => {
            Err(Failure::Passing(format!("only {at} of {total} bytes arrived")))
        }
        _ => Ok(()),
    }
}

fn restart(part: &Part) -> Result<()> {
    super::place::remove(&part.file)?;
    part.forget_validator()
}

fn remember_validator(response: &Response<Body>, part: &Part) -> Result<()> {
    // A weak tag does not promise equal bytes.
    let etag = header_text(response, header::ETAG).filter(|tag| !tag.starts_with("W/"));
    match etag.or_else(|| header_text(response, header::LAST_MODIFIED)) {
        None => part.forget_validator(),
        Some(text) => fs::write(&part.validator, text).map_err(Error::io("write", &part.validator)),
    }
}

fn content_range_start(response: &Response<Body>) -> Option<u64> {
    let text = header_text(response, header::CONTENT_RANGE)?;
    text.strip_prefix("bytes ")?.split('-').next()?.parse().ok()
}

fn header_text(response: &Response<Body>, name: header::HeaderName) -> Option<String> {
    Some(response.headers().get(name)?.to_str().ok()?.to_owned())
}

/// Reads through while counting into a step.
pub struct CountingReader<'a, R> {
    pub inner: R,
    pub step: &'a Step,
}

impl<R: Read> Read for CountingReader<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(buffer)?;
        self.step.add(n as u64);
        Ok(n)
    }
}
