//! The hub over HTTP.

use std::io::Read;
use std::time::Duration;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use ureq::http::{HeaderMap, Response, Uri, header};
use ureq::tls::TlsConfig;
use ureq::{Agent, Body};

use super::part::Part;
use super::roots;
use super::settings::Settings;
use super::{is_plain, is_word};
use crate::Progress;

/// What names may have in an address.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// Requests that may fail one after the other, each time without having brought anything.
const ATTEMPTS: u32 = 5;

/// Longest that a hub is waited for that asks for time.
const LONGEST_PAUSE: Duration = Duration::from_secs(300);

const REDIRECTIONS: usize = 10;

/// The hub, asked with one user's token.
pub struct Client<'a> {
    agent: Agent,
    settings: &'a Settings,
    endpoint: Uri,
    progress: &'a dyn Progress,
}

/// Why something did not come.
#[derive(Debug)]
pub enum Error {
    /// The hub refused it, and said when to come back, or not.
    Status(u16, Option<Duration>),
    /// The hub was not reached, or its answer broke off.
    Network(String),
    /// The hub answered what no hub does.
    Odd(String),
    /// What came has another SHA-256 than the hub says.
    Damaged(String),
    /// It cannot be kept on this machine.
    Local(anyhow::Error),
}

type Result<T> = std::result::Result<T, Error>;

/// What the hub says of a revision.
#[derive(Debug)]
pub struct Info {
    /// Its commit, a word.
    pub commit: String,
    /// Names of its files that can be paths below a folder.
    pub files: Vec<String>,
}

/// What the hub says of a file.
#[derive(Debug)]
pub struct Metadata {
    /// A word that is another one for other bytes.
    pub etag: String,
    /// In bytes, where it is said.
    pub size: Option<u64>,
}

impl Error {
    /// Whether the hub gave no answer that says anything of the model.
    pub fn is_unreachable(&self) -> bool {
        match self {
            Self::Status(status, _) => *status == 429 || *status >= 500,
            Self::Network(_) => true,
            Self::Odd(_) | Self::Damaged(_) | Self::Local(_) => false,
        }
    }

    /// Whether the same request may be answered soon.
    fn may_pass(&self) -> bool {
        match self {
            Self::Status(status, _) => matches!(status, 408 | 429 | 500 | 502..=504),
            Self::Network(_) => true,
            Self::Odd(_) | Self::Damaged(_) | Self::Local(_) => false,
        }
    }
}

impl<'a> Client<'a> {
    /// One that says on `progress` when it has to wait.
    ///
    /// # Errors
    ///
    /// The endpoint is no address.
    pub fn new(settings: &'a Settings, progress: &'a dyn Progress) -> Result<Self> {
        let agent = Agent::config_builder()
            .tls_config(TlsConfig::builder().root_certs(roots()).build())
            .user_agent(concat!("iree-llm/", env!("CARGO_PKG_VERSION")))
            // What is compressed on its way has no size and no parts.
            .accept_encoding("identity")
            .http_status_as_error(false)
            // A token is for the hub alone: who follows looks where to.
            .max_redirects(0)
            .timeout_resolve(Some(Duration::from_secs(10)))
            .timeout_connect(Some(Duration::from_secs(10)))
            .build()
            .into();
        let endpoint = address(&settings.endpoint)?;
        Ok(Self { agent, settings, endpoint, progress })
    }

    /// What `revision` of the model `name` is; with `patience` a hub that has no time is asked again.
    ///
    /// # Errors
    ///
    /// There is no answer, or one that no hub gives.
    pub fn info(&self, name: &str, revision: &str, patience: bool) -> Result<Info> {
        #[derive(Deserialize)]
        struct Answer {
            sha: String,
            siblings: Vec<Sibling>,
        }
        #[derive(Deserialize)]
        struct Sibling {
            rfilename: String,
        }
        let revision = utf8_percent_encode(revision, PLAIN);
        let url = format!("{}/api/models/{name}/revision/{revision}", self.settings.endpoint);
        let ask = || {
            let most = self.settings.etag_timeout;
            let response =
                self.follow(&url, |url| self.request(self.agent.get(url), url, most).call())?;
            let body = success(response)?.into_body();
            let answer = serde_json::from_reader(body.into_with_config().limit(64 << 20).reader());
            answer.map_err(|error| match error.is_io() {
                true => Error::Network(error.to_string()),
                false => Error::Odd(format!("{url} is no answer of a hub ({error})")),
            })
        };
        let Answer { sha, siblings } = if patience { self.patiently(ask)? } else { ask()? };
        if !is_word(&sha) {
            return Err(Error::Odd(format!("{url} names an odd commit")));
        }
        let files = siblings.into_iter().map(|it| it.rfilename).filter(|name| is_plain(name));
        Ok(Info { commit: sha, files: files.collect() })
    }

    /// Where a file of a model is.
    pub fn url(&self, name: &str, commit: &str, file: &str) -> String {
        let parts = file.split('/').map(|part| utf8_percent_encode(part, PLAIN).to_string());
        let file = parts.collect::<Vec<_>>().join("/");
        format!("{}/{name}/resolve/{commit}/{file}", self.settings.endpoint)
    }

    /// What the hub says of the file at `url`.
    ///
    /// # Errors
    ///
    /// There is no answer, or one that no hub gives.
    pub fn metadata(&self, url: &str) -> Result<Metadata> {
        let response = self.patiently(|| {
            let mut url = address(url)?;
            for _ in 0..REDIRECTIONS {
                let most = self.settings.etag_timeout;
                let response = self.request(self.agent.head(&url), &url, most).call()?;
                match redirection(&url, &response)? {
                    // One to another address says what lies there.
                    Some((next, true)) => url = next,
                    Some((_, false)) => return Ok(response),
                    None => return success(response),
                }
            }
            Err(Error::Odd(format!("{url} leads in circles")))
        })?;
        let headers = response.headers();
        let etag = text(headers, "x-linked-etag").or_else(|| text(headers, "etag"));
        let etag = etag.map(|etag| etag.trim_start_matches("W/").trim_matches('"').to_owned());
        let Some(etag) = etag.filter(|etag| is_word(etag)) else {
            return Err(Error::Odd(format!("{url} has no ETag that can name a file")));
        };
        let size = number(headers, "x-linked-size");
        // That of a redirection is its own.
        let here = || number(headers, "content-length").filter(|_| response.status().is_success());
        Ok(Metadata { etag, size: size.or_else(here) })
    }

    /// Adds to `part` what it lacks of the file at `url`, of `size` bytes if that is known; `shown` is told how many of
    /// how many bytes there are.
    ///
    /// # Errors
    ///
    /// It does not come, or cannot be written. What has come stays in `part`.
    pub fn download(
        &self,
        url: &str,
        size: Option<u64>,
        part: &mut Part,
        mut shown: impl FnMut(u64, Option<u64>),
    ) -> Result<()> {
        let mut failures = 0;
        loop {
            let before = part.length();
            let Err(error) = self.attempt(url, size, part, &mut shown) else { return Ok(()) };
            if part.length() > before {
                failures = 0;
            }
            failures += 1;
            self.pause(error, failures)?;
        }
    }

    fn attempt(
        &self,
        url: &str,
        size: Option<u64>,
        part: &mut Part,
        shown: &mut impl FnMut(u64, Option<u64>),
    ) -> Result<()> {
        if size.is_some_and(|size| part.length() > size) {
            part.clear().map_err(Error::Local)?;
        }
        if size == Some(part.length()) {
            return Ok(());
        }
        let have = part.length();
        let response = self.follow(url, |url| {
            let request = self.request(self.agent.get(url), url, self.settings.download_timeout);
            match have {
                0 => request.call(),
                _ => request.header(header::RANGE, format!("bytes={have}-")).call(),
            }
        })?;
        // Nothing follows what there is, which is not the file then.
        if response.status() == 416 {
            part.clear().map_err(Error::Local)?;
            return Err(Error::Network("the file is shorter than what there was".into()));
        }
        let response = success(response)?;
        let headers = response.headers();
        if text(headers, "content-encoding").is_some_and(|it| it != "identity") {
            return Err(Error::Odd(format!("{url} is sent compressed, which was not asked for")));
        }
        let size = match response.status().as_u16() {
            206 => {
                let range = text(headers, "content-range");
                let range = range.and_then(|it| it.strip_prefix("bytes ")?.split_once('/'));
                let start = range.and_then(|(range, _)| range.split('-').next()?.parse().ok());
                if start != Some(have) {
                    part.clear().map_err(Error::Local)?;
                    return Err(Error::Network("another part of the file came".into()));
                }
                size.or_else(|| range?.1.parse().ok())
            }
            _ => {
                let size = size.or_else(|| number(headers, "content-length"));
                part.clear().map_err(Error::Local)?;
                size
            }
        };
        let mut body = response.into_body().into_reader();
        let mut block = vec![0; 1 << 20];
        loop {
            shown(part.length(), size);
            match body.read(&mut block).map_err(|error| Error::Network(error.to_string()))? {
                0 => break,
                read => part.push(&block[..read]).map_err(Error::Local)?,
            }
            if size.is_some_and(|size| part.length() > size) {
                part.clear().map_err(Error::Local)?;
                return Err(Error::Network("more came than the file has".into()));
            }
        }
        match size {
            Some(size) if part.length() < size => {
                Err(Error::Network(format!("it ended after {} of {size} bytes", part.length())))
            }
            _ => Ok(()),
        }
    }

    /// The answer at `url`, or where that leads.
    fn follow(
        &self,
        url: &str,
        ask: impl Fn(&Uri) -> std::result::Result<Response<Body>, ureq::Error>,
    ) -> Result<Response<Body>> {
        let mut url = address(url)?;
        for _ in 0..REDIRECTIONS {
            let response = ask(&url)?;
            match redirection(&url, &response)? {
                Some((next, _)) => url = next,
                None => return Ok(response),
            }
        }
        Err(Error::Odd(format!("{url} leads in circles")))
    }

    /// A request with the token, if it goes to the hub, that waits at `most` so long for the next byte.
    fn request<B>(
        &self,
        request: ureq::RequestBuilder<B>,
        url: &Uri,
        most: Duration,
    ) -> ureq::RequestBuilder<B> {
        let request = request.config().timeout_per_read(Some(most)).build();
        let hub =
            (url.scheme(), url.authority()) == (self.endpoint.scheme(), self.endpoint.authority());
        match &self.settings.token {
            Some(token) if hub => request.header(header::AUTHORIZATION, format!("Bearer {token}")),
            _ => request,
        }
    }

    fn patiently<T>(&self, ask: impl Fn() -> Result<T>) -> Result<T> {
        let mut failures = 0;
        loop {
            match ask() {
                Err(error) => {
                    failures += 1;
                    self.pause(error, failures)?;
                }
                answer => return answer,
            }
        }
    }

    /// Waits before the next attempt, where one may help.
    fn pause(&self, error: Error, failures: u32) -> Result<()> {
        if !error.may_pass() || failures >= ATTEMPTS {
            return Err(error);
        }
        let pause = match error {
            Error::Status(_, Some(pause)) => pause.min(LONGEST_PAUSE),
            _ => Duration::from_millis(250) * (1 << (failures - 1)),
        };
        let endpoint = &self.settings.endpoint;
        match error {
            Error::Network(why) => self.progress.say(&format!("{endpoint}: {why}; trying again")),
            _ if pause > Duration::from_secs(5) => {
                self.progress.say(&format!("{endpoint} asks to wait {} s", pause.as_secs()));
            }
            _ => {}
        }
        std::thread::sleep(pause);
        Ok(())
    }
}

fn address(url: &str) -> Result<Uri> {
    let uri = url.parse::<Uri>().ok().filter(|uri| uri.scheme().is_some() && uri.host().is_some());
    uri.ok_or_else(|| Error::Odd(format!("`{url}` is no address")))
}

/// Where an answer leads, and whether that is given as a path of the same place.
fn redirection(url: &Uri, response: &Response<Body>) -> Result<Option<(Uri, bool)>> {
    if !matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308) {
        return Ok(None);
    }
    match text(response.headers(), "location") {
        Some(path) if path.starts_with('/') && !path.starts_with("//") => {
            let (scheme, place) = (url.scheme_str(), url.authority());
            let (scheme, place) = (scheme.unwrap_or_default(), place.map_or("", |it| it.as_str()));
            Ok(Some((address(&format!("{scheme}://{place}{path}"))?, true)))
        }
        Some(other) => Ok(Some((address(other)?, false))),
        None => Err(Error::Odd(format!("{url} leads nowhere"))),
    }
}

fn success(response: Response<Body>) -> Result<Response<Body>> {
    if response.status().is_success() {
        return Ok(response);
    }
    let pause = number(response.headers(), "retry-after").map(Duration::from_secs);
    Err(Error::Status(response.status().as_u16(), pause))
}

fn text<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    headers.get(name)?.to_str().ok()
}

fn number(headers: &HeaderMap, name: &str) -> Option<u64> {
    text(headers, name)?.trim().parse().ok()
}

impl From<ureq::Error> for Error {
    fn from(error: ureq::Error) -> Self {
        Self::Network(error.to_string())
    }
}
