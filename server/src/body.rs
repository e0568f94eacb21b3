//! JSON in and out, and what lasts as long as a body.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes, HttpBody, to_bytes};
use axum::extract::Request;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use http_body::{Frame, SizeHint};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::Problem;
use crate::server::aside;

/// Bytes of a body that is read beside the thread that serves: half a millisecond or more.
const LARGE: usize = 64 << 10;

/// Reads the JSON object that `request` has, of `limit` bytes at most.
pub(crate) async fn read(request: Request, limit: usize) -> Result<Map<String, Value>, Problem> {
    // What a page in a browser can send without asking first is never this type.
    let kind = request.headers().get(header::CONTENT_TYPE).and_then(|it| it.to_str().ok());
    let kind = kind.unwrap_or_default().split(';').next().unwrap_or_default().trim();
    if !kind.eq_ignore_ascii_case("application/json") {
        let message = format!(
            "the content type is {kind:?}: send JSON with `Content-Type: application/json`"
        );
        return Err(Problem::request(message).with_status(StatusCode::UNSUPPORTED_MEDIA_TYPE));
    }
    let bytes = to_bytes(request.into_body(), limit).await.map_err(|error| {
        let mut cause: Option<&dyn std::error::Error> = Some(&error);
        while let Some(it) = cause {
            if it.to_string().contains("length limit exceeded") {
                let message = format!("the body has more than {limit} bytes, which are the most");
                return Problem::request(message).with_status(StatusCode::PAYLOAD_TOO_LARGE);
            }
            cause = it.source();
        }
        Problem::request(format!("the body cannot be read: {error}"))
    })?;
    let is_large = bytes.len() > LARGE;
    let parse = move || serde_json::from_slice(&bytes);
    match if is_large { aside(parse).await? } else { parse() } {
        Ok(Value::Object(fields)) => Ok(fields),
        Ok(_) => Err(Problem::request("the body is JSON but no object: send {…}")),
        Err(error) => Err(Problem::request(format!("the body is not valid JSON: {error}"))),
    }
}

/// A response that holds `value`.
pub(crate) fn json(status: StatusCode, value: &impl Serialize) -> Response {
    let text = serde_json::to_vec(value).expect("values without maps of odd keys");
    with_type(status, "application/json", text)
}

/// A response of the type `kind`.
pub(crate) fn with_type(status: StatusCode, kind: &'static str, text: impl Into<Body>) -> Response {
    let mut response = Response::new(text.into());
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

/// `response`, which keeps `held` until its body has ended or nobody reads it any more.
pub(crate) fn holding(response: Response, held: impl Send + Unpin + 'static) -> Response {
    response.map(|body| Body::new(Holding { body, _held: held }))
}

struct Holding<T> {
    body: Body,
    _held: T,
}

impl<T: Unpin> HttpBody for Holding<T> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
