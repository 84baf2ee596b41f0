//! A WebSocket to the proxy (RFC 6455), through a load balancer that passes no CONNECT on: the upgrade, its answer, and the
//! stream after it.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

use super::url::{ProxyUrl, Scheme};
use crate::protocol::websocket::handshake::{SUBPROTOCOL, UPGRADE, VERSION, accept, new_key};
use crate::protocol::websocket::{CloseFrame, Codec, Role};

/// The request for a WebSocket.
#[derive(Debug)]
pub(crate) struct Upgrade<'a> {
    proxy: &'a ProxyUrl,
    path: &'a str,
    key: String,
}

impl<'a> Upgrade<'a> {
    /// Creates the request to a proxy; `None` if its URL is not one of WebSockets.
    pub(crate) fn new(proxy: &'a ProxyUrl) -> Option<Self> {
        let path = proxy.websocket()?;
        let key = new_key();
        Some(Self { proxy, path, key })
    }

    /// Returns the request line, Host and the fields of the upgrade.
    pub(super) fn head(&self, target: &str) -> String {
        let Self { proxy, path, key } = self;
        let authority = proxy.authority().to_string();
        let port = match proxy.scheme() {
            Scheme::Http => ":80",
            Scheme::Https => ":443",
        };
        // As browsers do: some load balancers compare the whole value.
        let host = authority.strip_suffix(port).unwrap_or(&authority);
        // Brackets are no part of a path (RFC 3986 section 3.3).
        let target = target.replace('[', "%5B").replace(']', "%5D");
        format!(
            "GET {path}/{target} HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\nUpgrade: {UPGRADE}\r\n\
             Sec-WebSocket-Version: {VERSION}\r\nSec-WebSocket-Key: {key}\r\nSec-WebSocket-Protocol: {SUBPROTOCOL}\r\n"
        )
    }

    /// Returns whether these are the fields `Sec-WebSocket-Accept` and `Sec-WebSocket-Protocol` of a 101 from the proxy.
    pub(super) fn is_accepted(&self, accepted: Option<&str>, subprotocol: Option<&str>) -> bool {
        accepted == Some(&*accept(self.key.as_bytes())) && subprotocol == Some(SUBPROTOCOL)
    }

    /// Returns the advice for an answer that is not the proxy's.
    pub(super) fn advice(&self, status: u16) -> String {
        let path = self.path;
        match status {
            101 => {
                "the answer has not the Sec-WebSocket-Accept and the subprotocol of switchboard, or an extension: another \
                    server, or a program on the way, has answered"
                    .to_owned()
            }
            200..400 => format!("a web server has answered with a page: is {path}/ routed to switchboard?"),
            400 | 426 => "the load balancer does not pass WebSockets on: enable them there".to_owned(),
            404 | 405 => {
                format!("nothing takes WebSockets there: is {path}/ routed to switchboard, and `listen.websocket` set?")
            }
            502..=504 => "the load balancer does not reach switchboard".to_owned(),
            _ => "this is no answer of switchboard: the load balancer or a web server has answered".to_owned(),
        }
    }
}

/// The stream of a WebSocket over `S`. A shutdown sends a close frame; an end without one is an error.
#[derive(Debug)]
pub(crate) struct WebSocketStream<S> {
    stream: S,
    codec: Codec,
    pings: Interval,
}

impl<S: AsyncRead + AsyncWrite + Unpin> WebSocketStream<S> {
    /// Creates the stream after the 101. `early` was read after its head.
    pub(crate) fn new(stream: S, early: Vec<u8>) -> Self {
        let mut pings = interval_at(Instant::now() + PING_INTERVAL, PING_INTERVAL);
        pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self {
            stream,
            codec: Codec::new(Role::Client, early),
            pings,
        }
    }

    /// Returns the stream under it.
    pub(crate) fn get_ref(&self) -> &S {
        &self.stream
    }

    /// Queues a ping if one is due, and wakes the task when the next one is.
    fn poll_pings(&mut self, context: &mut Context<'_>) {
        while self.pings.poll_tick(context).is_ready() {
            self.codec.sender.ping();
        }
    }

    fn poll_send(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Self { stream, codec, .. } = self;
        let write = |pieces: &[IoSlice<'_>]| Pin::new(&mut *stream).poll_write_vectored(context, pieces);
        ready!(codec.sender.poll_flush(write))?;
        Pin::new(stream).poll_flush(context)
    }

    /// Decodes the bytes of one read into `payload`. The length is `None` at the end of the stream under it.
    fn poll_decode(&mut self, context: &mut Context<'_>, payload: &mut [u8]) -> Poll<io::Result<Option<usize>>> {
        let Self { stream, codec, .. } = self;
        if let Some(decoded) = codec.decode_unread(payload) {
            return Poll::Ready(decoded.map(Some));
        }
        let mut buffer = ReadBuf::new(payload);
        ready!(Pin::new(stream).poll_read(context, &mut buffer))?;
        let read = buffer.filled_mut();
        Poll::Ready((!read.is_empty()).then(|| codec.decode(read)).transpose())
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for WebSocketStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.poll_pings(context);
        loop {
            // Sends pings and pongs, if the peer takes them now: else the next write does. It is the next write's to fail: the
            // proxy's last bytes have the reason.
            let _is_sent = self.poll_send(context);
            match self.codec.receiver.close_frame() {
                Some(close_frame) if close_frame.is_normal() => return Poll::Ready(Ok(())),
                Some(close_frame) => return Poll::Ready(Err(closed(close_frame))),
                None => {}
            }
            let payload = buffer.initialize_unfilled_to(buffer.remaining().min(MAX_READ));
            if payload.is_empty() {
                return Poll::Ready(Ok(()));
            }
            match ready!(self.poll_decode(context, payload))? {
                Some(0) => {}
                Some(decoded) => {
                    buffer.advance(decoded);
                    return Poll::Ready(Ok(()));
                }
                None => {
                    let text = "the connection ended without a WebSocket close";
                    return Poll::Ready(Err(io::Error::new(io::ErrorKind::ConnectionAborted, text)));
                }
            }
        }
    }
}

fn closed(close_frame: &CloseFrame) -> io::Error {
    let CloseFrame { code, reason } = close_frame;
    let colon = if reason.is_empty() { "" } else { ": " };
    let code = code.unwrap_or_default();
    let text = format!("the WebSocket was closed with {code}{colon}{reason}");
    io::Error::new(io::ErrorKind::ConnectionReset, text)
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for WebSocketStream<S> {
    /// Sends a ping that is due before `bytes`: nothing may be read while the reader's own output is blocked.
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_pings(context);
        let Self { stream, codec, .. } = &mut *self;
        let write = |pieces: &[IoSlice<'_>]| Pin::new(&mut *stream).poll_write_vectored(context, pieces);
        codec.sender.poll_write(bytes, write)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_pings(context);
        self.poll_send(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.codec.sender.close();
        ready!(self.poll_send(context))?;
        // The peer may have more to send until it has closed, too.
        match self.codec.receiver.close_frame() {
            Some(_) => Pin::new(&mut self.stream).poll_shutdown(context),
            None => Poll::Ready(Ok(())),
        }
    }
}

/// The pause between pings: load balancers close idle connections after 60 s (AWS, nginx) or 100 s (Cloudflare).
const PING_INTERVAL: Duration = Duration::from_secs(25);
const MAX_READ: usize = 64 * 1024;

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_ping_precedes_what_is_written_while_nothing_is_read() {
        let (ours, mut theirs) = duplex(1024);
        let mut stream = WebSocketStream::new(ours, Vec::new());
        for _ in 0..3 {
            advance(PING_INTERVAL).await;
            stream.write_all(b"x").await.unwrap();
            let mut sent = [0; 2 + 4 + 2 + 4 + 1];
            theirs.read_exact(&mut sent).await.unwrap();
            assert_eq!((sent[0], sent[6]), (0x89, 0x82));
        }
    }
}
