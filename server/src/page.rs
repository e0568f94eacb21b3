//! The page, for people in a browser: a chat at `/`, and live graphs of `/metrics`.
//!
//! Its files are part of the program, and nothing in them is fetched from elsewhere: browsers are told to
//! refuse it. It asks for what any client can ask for, and for one thing more, its markdown as HTML.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::Response;
use axum::routing::{MethodRouter, get, post};
use serde_json::json;

use crate::fields::Fields;
use crate::server::Shared;
use crate::{Problem, body, markdown};

/// Where markdown becomes HTML.
pub(crate) const MARKDOWN: &str = "/page/markdown";
/// Most bytes of a markdown text. Answers that are longer are shown as they are.
const MOST_MARKDOWN: usize = 256 << 10;

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const SVG: &str = "image/svg+xml";

/// Where each file is, of which type, and what it holds.
const FILES: [(&str, &str, &str); 20] = [
    ("/", HTML, include_str!("page/chat.html")),
    ("/page/metrics", HTML, include_str!("page/metrics.html")),
    ("/page/page.css", CSS, include_str!("page/page.css")),
    ("/page/icon.svg", SVG, include_str!("page/icon.svg")),
    ("/page/theme.js", SCRIPT, include_str!("page/theme.js")),
    ("/page/storage.js", SCRIPT, include_str!("page/storage.js")),
    ("/page/api.js", SCRIPT, include_str!("page/api.js")),
    ("/page/conversation.js", SCRIPT, include_str!("page/conversation.js")),
    ("/page/message.js", SCRIPT, include_str!("page/message.js")),
    ("/page/clipboard.js", SCRIPT, include_str!("page/clipboard.js")),
    ("/page/keys.js", SCRIPT, include_str!("page/keys.js")),
    ("/page/scroll.js", SCRIPT, include_str!("page/scroll.js")),
    ("/page/list.js", SCRIPT, include_str!("page/list.js")),
    ("/page/drawer.js", SCRIPT, include_str!("page/drawer.js")),
    ("/page/notice.js", SCRIPT, include_str!("page/notice.js")),
    ("/page/keep.js", SCRIPT, include_str!("page/keep.js")),
    ("/page/settings.js", SCRIPT, include_str!("page/settings.js")),
    ("/page/chat.js", SCRIPT, include_str!("page/chat.js")),
    ("/page/graph.js", SCRIPT, include_str!("page/graph.js")),
    ("/page/metrics.js", SCRIPT, include_str!("page/metrics.js")),
];

/// What a browser has to know of every file. Nothing but the server's own files is loaded or run, no other
/// page can frame it, and a newer server's files are taken at once.
const HEADERS: [(HeaderName, &str); 4] = [
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
         img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::CACHE_CONTROL, "no-cache"),
];

/// The page's own paths.
pub(crate) fn routes() -> Router<Arc<Shared>> {
    let files = FILES.iter().map(|&(path, kind, text)| (path, file(kind, text)));
    let files = files.fold(Router::new(), |router, (path, file)| router.route(path, file));
    files.route(MARKDOWN, post(rendered))
}

/// Whether `path` is for everybody. Files are: they are the same in every copy of the program.
pub(crate) fn is_open(path: &str) -> bool {
    FILES.iter().any(|(file, ..)| *file == path)
}

fn file(kind: &'static str, text: &'static str) -> MethodRouter<Arc<Shared>> {
    get(async move || {
        let mut response = body::with_type(StatusCode::OK, kind, text);
        for (name, value) in HEADERS {
            response.headers_mut().insert(name, HeaderValue::from_static(value));
        }
        response
    })
}

/// `{"text"}` as `{"html"}`.
async fn rendered(
    State(shared): State<Arc<Shared>>,
    request: Request,
) -> Result<Response, Problem> {
    // JSON may take six bytes for one.
    let most = shared.options.most_bytes.min(6 * MOST_MARKDOWN + 64);
    let mut fields = Fields::new(body::read(request, most).await?);
    let text = fields.take::<String>("text")?;
    fields.finish()?;
    let text = text.ok_or_else(|| Problem::field("text", "is missing: give markdown"))?;
    if text.len() > MOST_MARKDOWN {
        let message = format!("has {} bytes: give {MOST_MARKDOWN} at most", text.len());
        let problem = Problem::field("text", message);
        return Err(problem.with_status(StatusCode::PAYLOAD_TOO_LARGE));
    }
    let html = tokio::task::spawn_blocking(move || markdown::html(&text)).await;
    let html = html.map_err(|error| Problem::internal(format!("markdown: {error}")))?;
    Ok(body::json(StatusCode::OK, &json!({"html": html})))
}
