//! The page: its files, what markdown becomes, and who may see it.

use std::io::Write as _;
use std::process::Command;

use crate::server::*;
use serde_json::json;

const PAGES: [&str; 2] = ["/", "/page/metrics"];
const TOUR: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../server/tests/page/tour.py");
/// What the tour ends with where there is no browser (`EX_UNAVAILABLE`).
const UNAVAILABLE: i32 = 69;

/// The values of `href` and `src` in `html`.
fn addresses(html: &str) -> impl Iterator<Item = &str> {
    let attributes = ["href=\"", "src=\""].into_iter();
    attributes.flat_map(|name| html.split(name).skip(1)).map(|it| it.split('"').next().unwrap())
}

#[test]
fn pages_bring_all_that_they_need() {
    let server = Server::start(&["--log", "off"]);
    let mut files = Vec::new();
    for page in PAGES {
        let reply = server.get(page);
        assert_eq!(reply.status, 200);
        assert!(reply.head.contains("content-type: text/html; charset=utf-8"), "{}", reply.head);
        let folder = &page[..=page.rfind('/').unwrap()];
        for address in addresses(&reply.text).filter(|it| !it.starts_with('#')) {
            let path = match address {
                "../" => "/".to_owned(),
                _ => format!("{folder}{address}"),
            };
            files.push(path);
        }
        // Neither would run, nor be seen.
        for inline in ["<script>", "<style", " style=", " onclick="] {
            assert!(!reply.text.contains(inline), "{page}: {inline}");
        }
    }
    // What scripts bring, scripts name.
    for script in [
        include_str!("../../../server/src/page/chat.js"),
        include_str!("../../../server/src/page/message.js"),
    ] {
        let names = script.split(" from \"./").skip(1).map(|it| it.split('"').next().unwrap());
        files.extend(names.map(|name| format!("/page/{name}")));
    }
    files.push("/page/graph.js".to_owned());
    for path in &files {
        let reply = server.get(path);
        assert_eq!(reply.status, 200, "{path}");
        let head = reply.head;
        let kind = match path.rsplit_once('.').map(|it| it.1) {
            Some("js") => "text/javascript; charset=utf-8",
            Some("css") => "text/css; charset=utf-8",
            Some("svg") => "image/svg+xml",
            _ => "text/html; charset=utf-8",
        };
        assert!(head.contains(&format!("content-type: {kind}")), "{path}: {head}");
        assert!(head.contains("content-security-policy: default-src 'none'; script-src 'self';"));
        assert!(head.contains("frame-ancestors 'none'"), "{head}");
        assert!(head.contains("x-content-type-options: nosniff"), "{head}");
        assert!(head.contains("cache-control: no-cache"), "{head}");
        // The one name that looks like an address, and is none.
        let text = reply.text.replace("xmlns=\"http://www.w3.org/2000/svg\"", "");
        for outside in ["http:", "https:", "\"//", "'//", "`//", "url(", "@import"] {
            assert!(!text.contains(outside), "{path}: {outside}");
        }
    }
    assert_eq!(server.raw("HEAD", "/", "text/plain", b"").status, 200);
    server.post("/", &json!({})).error(405);
    server.get("/page/nothing.js").error(404);
    server.get("/page/markdown").error(405);
}

#[test]
fn markdown_is_rendered_and_nothing_in_it_runs() {
    let server = Server::start(&["--log", "off"]);
    let ask = |text: &str| server.post("/page/markdown", &json!({"text": text}));
    let html = |text: &str| ask(text).json()["html"].as_str().unwrap().to_owned();
    assert_eq!(html("*a*"), "<p><em>a</em></p>\n");
    assert!(html("```rust\nlet a;\n```").contains("<code class=\"language-rust\">let a;"));
    assert!(html("| a |\n|---|\n| 1 |").contains("<td>1</td>"));
    for text in
        ["<script>alert(1)</script>", "a <script>alert(1)</script>", "<img onerror=alert(1)>"]
    {
        let html = html(text);
        assert!(!html.contains("<script") && !html.contains("<img"), "{html}");
        assert!(html.contains("alert(1)"), "it is shown: {html}");
    }
    assert_eq!(html("[x](javascript:alert(1))"), "<p>x</p>\n");
    server.post("/page/markdown", &json!({})).error(400);
    server.post("/page/markdown", &json!({"text": 1})).error(400);
    server.post("/page/markdown", &json!({"text": "", "unsafe": true})).error(400);
    server.raw("POST", "/page/markdown", "text/plain", b"{\"text\": \"a\"}").error(415);
    let error = ask(&"a".repeat((256 << 10) + 1)).error(413);
    assert!(error["message"].as_str().unwrap().contains("262144"), "{error}");
    ask(&"a".repeat(2 << 20)).error(413);
    // As much as there may be of what nests, and of what never ends.
    for piece in ["[", "*", "> ", "- ", "`", "<"] {
        assert_eq!(ask(&piece.repeat((256 << 10) / piece.len())).status, 200, "{piece}");
    }
}

#[test]
fn the_page_asks_for_a_key_and_can_be_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("keys");
    std::fs::write(&file, "alpha\n").unwrap();
    let keys = ["--log", "off", "--api-key", file.to_str().unwrap()];
    let mut server = Server::start(&keys);
    for path in [&PAGES[..], &["/page/chat.js", "/page/page.css"]].concat() {
        assert_eq!(server.get(path).status, 200, "{path}");
    }
    let text = json!({"text": "a"});
    for path in ["/v1/models", "/metrics", "/page/markdown", "/page/nothing.js", "/page/", "//"] {
        assert_eq!(server.get(path).error(401)["code"], "invalid_api_key", "{path}");
    }
    server.post("/page/markdown", &text).error(401);
    server.key = Some("alpha");
    assert_eq!(server.post("/page/markdown", &text).status, 200);
    drop(server);

    let mut server = Server::start(&[&keys[..], &["--no-page"]].concat());
    server.get("/").error(401);
    server.key = Some("alpha");
    for path in [&PAGES[..], &["/page/chat.js"]].concat() {
        server.get(path).error(404);
    }
    server.post("/page/markdown", &text).error(404);
}

/// Runs the tour of a browser; says why not where there is none.
fn tour(server: &Server, more: &[&str]) {
    let url = format!("http://{}", server.address);
    let python = std::env::var("PYTHON").unwrap_or_else(|_| "python3".into());
    let shots = concat!(env!("CARGO_TARGET_TMPDIR"), "/page");
    let tour = Command::new(&python).args([TOUR, &url, "--shots", shots]).args(more).output();
    let skip = |why: &str| {
        let line = format!("SKIPPED: no browser has seen the page: {why}\n");
        std::io::stderr().write_all(line.as_bytes()).unwrap();
    };
    match tour {
        Err(error) => skip(&format!("cannot run {python}: {error}")),
        Ok(tour) if tour.status.code() == Some(UNAVAILABLE) => {
            skip(String::from_utf8_lossy(&tour.stderr).trim());
        }
        Ok(tour) => assert!(tour.status.success(), "{}", String::from_utf8_lossy(&tour.stderr)),
    }
}

/// What `cargo xtask test --all` adds.
mod long {
    use super::*;

    #[test]
    #[ignore = "long: cargo xtask test --all"]
    fn a_browser_does_what_people_do() {
        tour(&Server::start(&["--log", "off"]), &[]);
    }

    #[test]
    #[ignore = "long: cargo xtask test --all"]
    fn a_browser_gives_the_key() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("keys");
        std::fs::write(&file, "alpha\n").unwrap();
        let server = Server::start(&["--log", "off", "--api-key", file.to_str().unwrap()]);
        tour(&server, &["--key", "alpha"]);
    }
}
