//! One request and its answer by HTTP/1.1, in bounded size. The admin port answers one request on each connection.

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::header::{ACCEPT, CONNECTION, CONTENT_TYPE, HOST, USER_AGENT};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio_util::task::AbortOnDropHandle;

use super::request::{Ask, Bidirectional, ReplicaError, strange};

/// The status and the body.
pub(super) async fn ask(stream: Bidirectional, host: &str, ask: &Ask) -> Result<(u16, Bytes), ReplicaError> {
    let (response, _running) = begin(stream, host, ask).await?;
    let status = response.status().as_u16();
    let body = Limited::new(response.into_body(), LARGEST_BODY).collect().await;
    let body = body.map_err(|error| match error.is::<http_body_util::LengthLimitError>() {
        true => ReplicaError::Strange(format!("its answer has more than {} MiB", LARGEST_BODY >> 20)),
        false => strange(&*error),
    })?;
    Ok((status, body.to_bytes()))
}

/// The head of the answer; its body is read as long as the second value lives.
pub(super) async fn begin(
    stream: Bidirectional,
    host: &str,
    ask: &Ask,
) -> Result<(Response<Incoming>, AbortOnDropHandle<hyper::Result<()>>), ReplicaError> {
    let mut builder = http1::Builder::new();
    let handshake = builder.max_buf_size(LARGEST_HEAD).handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = handshake.map_err(|error| strange(&error))?;
    let running = AbortOnDropHandle::new(tokio::spawn(connection));
    let request = Request::builder()
        .method(ask.method)
        .uri(&ask.path)
        .header(HOST, host)
        .header(ACCEPT, "application/json, text/event-stream")
        .header(USER_AGENT, concat!("switchboard/", env!("CARGO_PKG_VERSION")))
        .header(CONNECTION, "close");
    let request = match ask.body.is_empty() {
        true => request,
        false => request.header(CONTENT_TYPE, "application/json"),
    };
    let request = request
        .body(Full::new(ask.body.clone()))
        .map_err(|error| strange(&error))?;
    let response = sender.send_request(request).await.map_err(|error| strange(&error))?;
    Ok((response, running))
}

/// In bytes. A tunnel takes about 900 in JSON, and a part of a list has at most [`LARGEST_PART`](super::query::LARGEST_PART).
const LARGEST_BODY: usize = 32 << 20;
const LARGEST_HEAD: usize = 32 << 10;
