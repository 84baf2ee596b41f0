//! Sends one HTTP/1.1 request on a connection of its own and reads the response, in bounded size.

use std::error::Error;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Collected, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::header::{ACCEPT, CONNECTION, HOST, USER_AGENT};
use hyper::http::request::Builder;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::task::AbortOnDropHandle;

use crate::base::text::chain;

/// Returns a request with the header fields that all requests have.
pub(crate) fn request(path: &str, host: &str, accept: &'static str) -> Builder {
    Request::builder()
        .uri(path)
        .header(HOST, host)
        .header(ACCEPT, accept)
        .header(USER_AGENT, concat!("switchboard/", env!("CARGO_PKG_VERSION")))
        .header(CONNECTION, "close")
}

/// Sends the request, and returns the head of the response. Its body can be read only while the second value lives.
/// The caller sets the deadline.
///
/// # Errors
/// The reason, which may quote the peer.
pub(crate) async fn send_request<S>(
    stream: S,
    request: Builder,
    body: Bytes,
) -> Result<(Response<Incoming>, AbortOnDropHandle<hyper::Result<()>>), String>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let request = request.body(Full::new(body)).map_err(|error| chain(&error))?;
    let mut builder = http1::Builder::new();
    let handshake = builder
        .max_buf_size(MAX_HEADER_BYTES)
        .handshake(TokioIo::new(stream))
        .await;
    let (mut sender, connection) = handshake.map_err(|error| chain(&error))?;
    let running = AbortOnDropHandle::new(tokio::spawn(connection));
    let response = sender.send_request(request).await.map_err(|error| chain(&error))?;
    Ok((response, running))
}

/// Reads the body of a response, of at most `max` bytes.
///
/// # Errors
/// The reason: the body is longer, or was cut off.
pub(crate) async fn read_body(frames: Incoming, max: usize) -> Result<Bytes, String> {
    let reason = |error: Box<dyn Error + Send + Sync>| match error.is::<LengthLimitError>() {
        true => format!("its answer has more than {} MiB", max >> 20),
        false => chain(&*error),
    };
    let body = Limited::new(frames, max).collect().await;
    body.map(Collected::to_bytes).map_err(reason)
}

/// In bytes.
const MAX_HEADER_BYTES: usize = 32 << 10;
