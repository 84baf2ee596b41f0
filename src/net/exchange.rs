//! One request and its answer by HTTP/1.1, the only one on its connection, in bounded size.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::header::{ACCEPT, CONNECTION, HOST, USER_AGENT};
use hyper::http::request::Builder;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_util::task::AbortOnDropHandle;

use crate::base::text::chain;

/// A request with the fields that every one has.
pub(crate) fn request(path: &str, host: &str, accept: &'static str) -> Builder {
    Request::builder()
        .uri(path)
        .header(HOST, host)
        .header(ACCEPT, accept)
        .header(USER_AGENT, concat!("switchboard/", env!("CARGO_PKG_VERSION")))
        .header(CONNECTION, "close")
}

/// Sends the request, and returns the head of the answer; its body is read as long as the second value lives.
///
/// # Errors
/// The reason, with words of the peer. There is no deadline: the caller has one.
pub(crate) async fn begin<S>(
    stream: S,
    request: Builder,
    body: Bytes,
) -> Result<(Response<Incoming>, AbortOnDropHandle<hyper::Result<()>>), String>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let request = request.body(Full::new(body)).map_err(|error| chain(&error))?;
    let mut builder = http1::Builder::new();
    let (stream, left) = Begin::bounded(stream);
    let handshake = builder.max_buf_size(LARGEST_HEAD).handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = handshake.map_err(|error| chain(&error))?;
    let running = AbortOnDropHandle::new(tokio::spawn(connection));
    let response = sender.send_request(request).await.map_err(|error| chain(&error))?;
    left.store(usize::MAX, Ordering::Relaxed);
    Ok((response, running))
}

/// Reads the body of an answer, of at most so many bytes.
///
/// # Errors
/// The reason: it is longer, or broke off.
pub(crate) async fn body(mut frames: Incoming, largest: usize) -> Result<Bytes, String> {
    // One buffer: the frames of a body that comes byte by byte would take many times its size.
    let mut body = BytesMut::new();
    while let Some(frame) = frames.frame().await {
        let frame = frame.map_err(|error| chain(&error))?;
        let Some(data) = frame.data_ref() else {
            continue;
        };
        if body.len() + data.len() > largest {
            return Err(format!("its answer has more than {} MiB", largest >> 20));
        }
        body.extend_from_slice(data);
    }
    Ok(body.freeze())
}

/// A connection of which only so many bytes can be read until its answer has begun: hyper reads interim answers, such as
/// `100 Continue`, without end.
struct Begin<S> {
    stream: S,
    left: Arc<AtomicUsize>,
}

impl<S> Begin<S> {
    /// The connection, and how many bytes may still be read.
    fn bounded(stream: S) -> (Self, Arc<AtomicUsize>) {
        let left = Arc::new(AtomicUsize::new(LONGEST_BEGIN));
        let own = Arc::clone(&left);
        (Self { stream, left: own }, left)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Begin<S> {
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

impl<S: AsyncWrite + Unpin> AsyncWrite for Begin<S> {
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

/// In bytes.
const LARGEST_HEAD: usize = 32 << 10;
/// The head of the answer, what comes in front of it, and what hyper has read behind it before that is known: at most as much
/// as a head may have.
const LONGEST_BEGIN: usize = 256 << 10;
