//! The HTTP/2 client on a connection that its peer, an anchor, has dialled.
//!
//! Each stream is a tunnel's upstream (RFC 9113 section 8.5), driven in the task of the tunnel. The connection has a
//! task of its own.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use h2::client::{self, SendRequest};
use h2::{Ping, PingPong};
use http::{HeaderName, HeaderValue, Method, Request, StatusCode, Uri};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, timeout_at};

use super::connection::Connection;
use super::outgoing::Outgoing;
use super::payload::Payload;
use super::recv_queue::OpenStreams;
use super::stream::Stream;
use super::{MAX_HEADER_BYTES, MAX_RESET_STREAMS, MAX_STREAM_ERRORS, MAX_UNSENT, MAX_WINDOW, RESET_TIME, WINDOW};
use crate::base::authority::Authority;
use crate::net::transport::Transport;

/// A handle that opens streams at the peer. The connection ends with the last clone and the last stream.
#[derive(Clone, Debug)]
pub struct Streams {
    requests: SendRequest<Payload>,
    outgoing: Outgoing,
    open: OpenStreams,
}

/// Why there is no stream.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The peer has answered with another status than 200.
    #[error("the peer answers {0}")]
    Refused(StatusCode),
    /// The connection has ended, or the stream was reset.
    #[error("the connection has ended")]
    Broken(#[from] h2::Error),
}

/// Why a connection has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionEnd {
    /// Either side has closed it gracefully.
    Closed,
    /// The peer has reset it, or violated RFC 9113.
    Broken,
    /// The peer has exceeded its frame budget.
    Flooded,
    /// The peer has not answered a PING in time.
    Unresponsive,
}

impl ConnectionEnd {
    /// Returns the value of a label and of a log field.
    pub fn label(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Broken => "broken",
            Self::Flooded => "frame_flood",
            Self::Unresponsive => "unresponsive",
        }
    }
}

impl Streams {
    /// Begins HTTP/2 on a connection whose first bytes, `early`, were read already. The future drives the connection,
    /// and completes at its end. The receiver completes when the peer serves the connection: with the peer's preface
    /// (RFC 9113 section 3.4).
    ///
    /// # Errors
    /// h2 refuses its settings: never, as they are constant.
    pub async fn begin<D: Transport>(
        transport: D,
        early: Vec<u8>,
    ) -> Result<(Self, oneshot::Receiver<()>, impl Future<Output = ConnectionEnd> + Send), h2::Error> {
        let connection = Connection::to_server(transport, early);
        let (requests, mut h2) = client::Builder::new()
            .enable_push(false)
            .initial_window_size(WINDOW)
            // The maximum, so that stalled tunnels do not stop the others. The caps on tunnels bound the streams.
            .initial_connection_window_size(MAX_WINDOW)
            .max_header_list_size(MAX_HEADER_BYTES)
            .max_send_buffer_size(MAX_UNSENT)
            .max_local_error_reset_streams(Some(MAX_STREAM_ERRORS))
            .max_concurrent_reset_streams(MAX_RESET_STREAMS)
            .reset_stream_duration(RESET_TIME)
            .data_frame_budget(usize::MAX)
            .handshake(connection.clone())
            .await?;
        let outgoing = connection.outgoing();
        let streams = Self {
            requests,
            outgoing: outgoing.clone(),
            open: connection.open_streams(),
        };
        let pings = h2.ping_pong();
        let (begun, preface) = oneshot::channel();
        let mut begun = Some(begun);
        let driven = async move {
            let poll = |context: &mut Context<'_>| {
                let polled = poll_driver(&mut h2, &connection, context);
                if connection.has_settings()
                    && let Some(begun) = begun.take()
                {
                    begun.send(()).ok();
                }
                polled
            };
            let end = tokio::select! {
                end = poll_fn(poll) => end,
                () = until_unresponsive(pings, || connection.last_read()) => ConnectionEnd::Unresponsive,
            };
            outgoing.closed();
            end
        };
        Ok((streams, preface, driven))
    }

    /// Opens a stream to `authority`, and waits for the answer. Dropping the future before that cancels the stream.
    ///
    /// # Errors
    /// The connection has ended, or the peer refuses the stream.
    pub async fn open(&self, authority: &Authority) -> Result<Stream, OpenError> {
        let mut request = Request::new(());
        *request.method_mut() = Method::CONNECT;
        *request.uri_mut() = uri(authority, None);
        let mut requests = self.requests.clone().ready().await?;
        self.outgoing.credit().request_sent();
        let (response, send) = requests.send_request(request, false)?;
        let (head, receive) = response.await?.into_parts();
        if head.status != StatusCode::OK {
            return Err(OpenError::Refused(head.status));
        }
        Ok(Stream::new(self.open.open(receive), send, self.outgoing.clone()))
    }

    /// Sends a POST with at most one field and no body. Completes with the answer, regardless of its status.
    ///
    /// # Errors
    /// The connection has ended.
    pub async fn tell(
        &self,
        authority: &Authority,
        path: &'static str,
        field: Option<(&'static str, HeaderValue)>,
    ) -> Result<(), h2::Error> {
        let mut request = Request::new(());
        *request.method_mut() = Method::POST;
        *request.uri_mut() = uri(authority, Some(path));
        let field = field.map(|(name, value)| (HeaderName::from_static(name), value));
        request.headers_mut().extend(field);
        let mut requests = self.requests.clone().ready().await?;
        self.outgoing.credit().request_sent();
        requests.send_request(request, true)?.0.await.map(drop)
    }
}

/// Returns the URI of a CONNECT or, with `path`, of a POST. An authority is valid in both: it has only ASCII letters,
/// digits and `-._:[]`.
fn uri(authority: &Authority, path: Option<&'static str>) -> Uri {
    let uri = Uri::builder().authority(authority.to_string());
    let uri = match path {
        Some(path) => uri.scheme("http").path_and_query(path),
        None => uri,
    };
    uri.build().unwrap_or_default()
}

/// Drives a connection, and flushes in one go what h2 and the streams have written.
fn poll_driver<D: Transport>(
    h2: &mut client::Connection<Connection<D>, Payload>,
    connection: &Connection<D>,
    context: &mut Context<'_>,
) -> Poll<ConnectionEnd> {
    if let Poll::Ready(ended) = Pin::new(h2).poll(context) {
        return Poll::Ready(match ended {
            Ok(()) => ConnectionEnd::Closed,
            Err(_) if connection.is_flooded() => ConnectionEnd::Flooded,
            Err(_) => ConnectionEnd::Broken,
        });
    }
    if connection.is_flooded() {
        return Poll::Ready(ConnectionEnd::Flooded);
    }
    connection.hand_over_small_frames();
    match connection.poll_flush(context) {
        Poll::Ready(Err(_)) => Poll::Ready(ConnectionEnd::Broken),
        Poll::Ready(Ok(())) | Poll::Pending => Poll::Pending,
    }
}

/// Sends a PING after each interval; completes when one is not answered in time, and nothing else is received either. On a
/// slow link the answer may wait for other bytes. `last_read` returns the time of the last ones.
async fn until_unresponsive(pings: Option<PingPong>, last_read: impl Fn() -> Instant) {
    let Some(mut pings) = pings else { return };
    loop {
        sleep(PING_INTERVAL).await;
        let sent = Instant::now();
        let mut answer = pin!(pings.ping(Ping::opaque()));
        loop {
            let heard = last_read().max(sent);
            match timeout_at(heard + PING_TIMEOUT, answer.as_mut()).await {
                Ok(Ok(_)) => break,
                Err(_) if last_read() > heard => {}
                Ok(Err(_)) | Err(_) => return,
            }
        }
    }
}

/// The pause between the answer to a PING and the next one.
const PING_INTERVAL: Duration = Duration::from_secs(5);
/// The timeout of the answer, and of any byte: a dead path is detected within 15 s.
const PING_TIMEOUT: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::duplex;
    use tokio::time::timeout;

    /// The peer answers no PING.
    #[tokio::test(start_paused = true)]
    async fn a_peer_is_unresponsive_after_15_s_without_any_byte() {
        for is_silent in [true, false] {
            let (ours, _peer) = duplex(1024);
            let (_requests, mut connection) = client::handshake(ours).await.unwrap();
            let (pings, start) = (connection.ping_pong(), Instant::now());
            let connection = tokio::spawn(connection);
            let unresponsive = until_unresponsive(pings, || if is_silent { start } else { Instant::now() });
            assert_eq!(timeout(Duration::from_secs(600), unresponsive).await.is_ok(), is_silent);
            assert!(!is_silent || start.elapsed().as_secs() == 15);
            connection.abort();
        }
    }
}
