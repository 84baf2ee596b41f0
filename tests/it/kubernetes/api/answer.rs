//! The answers of an API server, and the body that a watch streams.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::Response;
use hyper::body::{Body, Bytes, Frame};
use hyper::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::sleep;

pub(crate) type Answer = Response<http_body_util::combinators::UnsyncBoxBody<Bytes, io::Error>>;

/// A piece of a stream; an error ends the connection, in the middle of the body.
pub(crate) type Piece = Result<Bytes, io::Error>;

/// Pieces as they come, until the sender is dropped.
struct Pieces(mpsc::Receiver<Piece>);

impl Body for Pieces {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        self.0
            .poll_recv(context)
            .map(|piece| piece.map(|piece| piece.map(Frame::data)))
    }
}

pub(crate) fn json(status: u16, body: &Value) -> Answer {
    with(status, "application/json", body.to_string())
}

pub(crate) fn stream(pieces: mpsc::Receiver<Piece>) -> Answer {
    let mut answer = Response::new(Pieces(pieces).boxed_unsync());
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    answer
}

/// That text as JSON, whatever it is.
pub(crate) fn text(status: u16, body: String) -> Answer {
    with(status, "application/json", body)
}

/// A success that ends within its body, and its connection with it.
pub(crate) fn cut() -> Answer {
    let (sender, pieces) = mpsc::channel(2);
    tokio::spawn(async move {
        sender.send(Ok(Bytes::from_static(b"{\"kind\": "))).await.ok();
        // An error that comes at once with it would keep back the head as well.
        sleep(Duration::from_millis(100)).await;
        sender.send(Err(io::ErrorKind::ConnectionReset.into())).await.ok();
    });
    stream(pieces)
}

/// A refusal as the API server words it.
pub(crate) fn refusal(code: u16, message: &str) -> Answer {
    json(code, &status(code, message))
}

/// A refusal from in front of the API server: by its overload protection, or a load balancer.
pub(crate) fn too_many(retry_after: u32) -> Answer {
    let mut answer = with(
        429,
        "text/plain; charset=utf-8",
        "Too many requests, please try again later.\n".into(),
    );
    answer.headers_mut().insert(RETRY_AFTER, HeaderValue::from(retry_after));
    answer
}

pub(crate) fn status(code: u16, message: &str) -> Value {
    let reason = match code {
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "NotFound",
        410 => "Expired",
        422 => "Invalid",
        500 => "InternalError",
        504 => "Timeout",
        _ => "",
    };
    json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "reason": reason, "code": code,
    })
}

fn with(status: u16, content_type: &'static str, body: String) -> Answer {
    let body = Full::new(Bytes::from(body)).map_err(|never| match never {});
    let mut answer = Response::new(body.boxed_unsync());
    *answer.status_mut() = hyper::StatusCode::from_u16(status).unwrap();
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    answer
}
