//! One request and its answer by HTTP/1.1, in bounded size. The admin port answers one request on each connection.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::header::{ACCEPT, CONNECTION, CONTENT_TYPE, HOST, USER_AGENT};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_util::task::AbortOnDropHandle;

use super::request::{Ask, Bidirectional, ReplicaError, strange};

/// The status and the body.
pub(super) async fn ask(stream: Bidirectional, host: &str, ask: &Ask) -> Result<(u16, Bytes), ReplicaError> {
    let (response, _running) = begin(stream, host, ask).await?;
    let status = response.status().as_u16();
    let mut frames = response.into_body();
    // One buffer: the frames of a body that comes byte by byte would take many times its size.
    let mut body = BytesMut::new();
    while let Some(frame) = frames.frame().await {
        let frame = frame.map_err(|error| strange(&error))?;
        let Some(data) = frame.data_ref() else {
            continue;
        };
        if body.len() + data.len() > LARGEST_BODY {
            let most = LARGEST_BODY >> 20;
            return Err(ReplicaError::Strange(format!("its answer has more than {most} MiB")));
        }
        body.extend_from_slice(data);
    }
    Ok((status, body.freeze()))
}

/// The head of the answer; its body is read as long as the second value lives.
pub(super) async fn begin(
    stream: Bidirectional,
    host: &str,
    ask: &Ask,
) -> Result<(Response<Incoming>, AbortOnDropHandle<hyper::Result<()>>), ReplicaError> {
    let mut builder = http1::Builder::new();
    let (stream, left) = Begin::bounded(stream);
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
    left.store(usize::MAX, Ordering::Relaxed);
    Ok((response, running))
}

/// A connection of which only so many bytes can be read until its answer has begun: hyper reads interim answers, such as
/// `100 Continue`, without end.
struct Begin {
    stream: Bidirectional,
    left: Arc<AtomicUsize>,
}

impl Begin {
    /// The connection, and how many bytes may still be read.
    fn bounded(stream: Bidirectional) -> (Self, Arc<AtomicUsize>) {
        let left = Arc::new(AtomicUsize::new(LONGEST_BEGIN));
        let own = Arc::clone(&left);
        (Self { stream, left: own }, left)
    }
}

impl AsyncRead for Begin {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        let read = buffer.filled().len() - before;
        let take = |left: usize| left.checked_sub(read);
        let taken = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        Poll::Ready(taken.map(drop).map_err(|_| {
            let most = LONGEST_BEGIN >> 10;
            io::Error::other(format!("more than {most} KiB came in front of its answer"))
        }))
    }
}

impl AsyncWrite for Begin {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// In bytes. A tunnel takes about 900 in JSON, and a part of a list has at most [`LARGEST_PART`](super::listing::LARGEST_PART).
const LARGEST_BODY: usize = 32 << 20;
const LARGEST_HEAD: usize = 32 << 10;
/// The head of the answer, what comes in front of it, and what hyper has read behind it before that is known: at most as much
/// as a head may have.
const LONGEST_BEGIN: usize = 256 << 10;
