//! By which names a server may be called.

use std::net::IpAddr;

use axum::http::uri::Authority;
use axum::http::{HeaderMap, Uri, header};

use crate::Problem;

/// The names by which requests may call a server (`Host`).
///
/// A site can have its own name lead to 127.0.0.1 once its page is open in a browser (DNS rebinding). To the browser
/// the server of that machine is then the site's own, which the page may use. Its requests still have the site's name,
/// and that has a dot.
#[derive(Debug, Clone, Default)]
pub struct Hosts {
    /// Those that are good besides addresses, localhost and names without a dot; if absent, all are.
    names: Option<Vec<String>>,
}

impl Hosts {
    /// Addresses, names without a dot (`localhost`, what this machine calls itself) and what ends with `.localhost`, which
    /// are no site's, and `names` (without a port).
    pub fn local(names: &[String]) -> Self {
        Self { names: Some(names.iter().map(|it| plain(it)).collect()) }
    }

    /// Whether a request to `uri` with `headers` may be answered. One that names no host, as those of HTTP/1.0, comes
    /// from no browser.
    ///
    /// # Errors
    ///
    /// It calls the server by another name.
    pub(crate) fn admit(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), Problem> {
        let Some(names) = &self.names else { return Ok(()) };
        // Of HTTP/2, and of requests as proxies get them.
        let asked = uri.host().into_iter().map(plain);
        let said = headers.get_all(header::HOST).iter().map(|it| {
            let authority = Authority::try_from(it.as_bytes());
            authority.map_or_else(|_| String::new(), |it| plain(it.host()))
        });
        for name in asked.chain(said) {
            let is_ours = is_address(&name)
                || (!name.is_empty() && !name.contains('.'))
                || name.ends_with(".localhost")
                || names.contains(&name);
            if !is_ours {
                return Err(Problem::foreign_host(&name));
            }
        }
        Ok(())
    }
}

/// `name` as others that mean the same.
fn plain(name: &str) -> String {
    name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase()
}

fn is_address(name: &str) -> bool {
    let inner = name.strip_prefix('[').and_then(|it| it.strip_suffix(']'));
    inner.unwrap_or(name).parse::<IpAddr>().is_ok()
}

#[cfg(test)]
mod tests {
    use axum::http::{HeaderValue, StatusCode};

    use super::*;

    fn status(hosts: &Hosts, uri: &'static str, names: &[&'static str]) -> Option<StatusCode> {
        let mut headers = HeaderMap::new();
        for name in names {
            headers.append(header::HOST, HeaderValue::from_static(name));
        }
        hosts.admit(&Uri::from_static(uri), &headers).err().map(|it| it.status())
    }

    #[test]
    fn names_of_sites_are_refused_and_those_of_this_machine_are_not() {
        let hosts = Hosts::local(&["Gate.example".into()]);
        let good = [
            "127.0.0.1:8080",
            "10.0.0.7",
            "[::1]:8080",
            "[fe80::1]",
            "localhost",
            "LocalHost:8080",
            "localhost.:80",
            "a.localhost:1",
            "here",
            "ip6-localhost:8080",
            "gate.example",
            "GATE.example.:443",
        ];
        for name in good {
            assert_eq!(status(&hosts, "/", &[name]), None, "{name}");
        }
        let bad = [
            "evil.example",
            "evil.example:8080",
            "localhost.evil.example",
            "a.gate.example",
            "1.2.3",
            "127.0.0.1.evil.example",
            "",
            "a b",
            "[::1",
        ];
        for name in bad {
            assert_eq!(status(&hosts, "/", &[name]), Some(StatusCode::FORBIDDEN), "{name}");
            assert_eq!(status(&Hosts::default(), "/", &[name]), None, "{name}");
        }
        // All that there are count; HTTP/2 has it in the address.
        assert_eq!(status(&hosts, "/", &[]), None);
        let both = ["localhost", "evil.example"];
        assert_eq!(status(&hosts, "/", &both), Some(StatusCode::FORBIDDEN));
        assert_eq!(status(&hosts, "http://localhost:80/", &[]), None);
        assert_eq!(status(&hosts, "http://evil.example/", &[]), Some(StatusCode::FORBIDDEN));
        assert_eq!(
            status(&hosts, "http://evil.example/", &["localhost"]),
            Some(StatusCode::FORBIDDEN)
        );
    }
}
