//! The proxy's side of an HTTP/2 connection: many tunnels, each of them a stream (RFC 9113 section 8.5).
//!
//! Uses h2 and not hyper, whose upgraded connections hide a stream's resets, half-closes and window. A connection runs
//! in one task: its streams relay without waking another thread, and an idle tunnel is a future on the heap, not a
//! task.

use std::future::{Future, poll_fn};
use std::panic::AssertUnwindSafe;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::{CatchUnwind, FutureExt};
use futures_util::stream::{FuturesUnordered, StreamExt};
use h2::{Reason, server};
use tokio::sync::Notify;
use tokio::time::timeout;

pub use self::connection::Connection;
use self::local_waker::LocalWaker;
use self::payload::Payload;
pub use self::request::Request;
pub use self::stream::Stream;
use crate::net::transport::Transport;
use crate::tunnel::drain::Drain;
use crate::tunnel::outcome::{self, Malformed, RefusalReason};

pub mod client;
mod connection;
mod frame_budget;
mod local_waker;
mod outgoing;
mod payload;
mod read_buffer;
mod recv_queue;
mod request;
mod send_buffer;
mod stream;
mod write_queue;
mod zero_copy;

/// The event that a connection without a tunnel waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitFor {
    /// The first request. The wait begins with the connection.
    FirstRequest,
    /// Another request. The wait begins with the end of the last tunnel.
    FurtherRequest,
    /// The client's close. This wait has its timeout here, so `overdue` only waits for an eviction.
    Close,
}

/// The events that cause a GOAWAY: the client then opens new tunnels on another connection.
#[derive(Clone, Copy, Debug)]
pub struct GoAway<'a> {
    /// The drain of the process.
    pub drain: &'a Drain,
    /// The number of this connection.
    pub number: u64,
    /// Notified when the connection must take no more tunnels, as when its client's certificate is no longer valid.
    pub requested: &'a Notify,
}

/// Serves a connection to its end. `serve_stream` makes a future of every request, which runs in this task.
///
/// `overdue` completes when the wait that begins with its call takes too long, or when the connection is evicted. After
/// a GOAWAY the connection ends with its last tunnel.
///
/// # Errors
/// The refusal of the connection as a whole: it made no request, sent too many frames, or violated RFC 9113. Its
/// requests report their own ends.
pub async fn serve<D: Transport, F: Future<Output = ()>, E: Future<Output = RefusalReason>>(
    connection: Connection<D>,
    overdue: impl Fn(WaitFor) -> E,
    go_away: GoAway<'_>,
    serve_stream: impl Fn(Request) -> F,
) -> Result<(), RefusalReason> {
    let mut first_request = Box::pin(overdue(WaitFor::FirstRequest));
    let h2 = tokio::select! {
        biased;
        h2 = handshake(&connection) => h2,
        refusal = &mut first_request => return Err(refusal),
    };
    let h2 = match h2 {
        Ok(h2) => h2,
        Err(refusal) => {
            end(connection, refusal, overdue(WaitFor::Close)).await;
            return Err(refusal);
        }
    };
    let serving = Http2Server {
        h2,
        connection,
        tunnels: FuturesUnordered::new(),
        late: FuturesUnordered::new(),
        requests: 0,
        phase: Phase::Idle(first_request),
    };
    serving.run(overdue, go_away, serve_stream).await
}

async fn handshake<D: Transport>(
    connection: &Connection<D>,
) -> Result<server::Connection<Connection<D>, Payload>, RefusalReason> {
    let mut builder = server::Builder::new();
    if connection.offers_websockets() {
        builder.enable_connect_protocol();
    }
    let mut handshake = builder
        .initial_window_size(WINDOW)
        .initial_connection_window_size(connection.streams().saturating_mul(WINDOW).min(MAX_WINDOW))
        .max_concurrent_streams(connection.streams())
        .max_header_list_size(MAX_HEADER_BYTES)
        .max_send_buffer_size(MAX_UNSENT)
        // These would count over the life of a connection, or all users together. `FrameBudget` has the bounds.
        .max_pending_accept_reset_streams(usize::MAX)
        .max_local_error_reset_streams(Some(MAX_STREAM_ERRORS))
        .data_frame_budget(usize::MAX)
        .max_concurrent_reset_streams(MAX_RESET_STREAMS)
        .reset_stream_duration(RESET_TIME)
        .handshake(connection.clone());
    let handshake = poll_fn(|context| {
        let done = Pin::new(&mut handshake).poll(context);
        // Sends the SETTINGS, which h2 counts as sent.
        match connection.poll_flush(context) {
            Poll::Ready(Err(_)) => Poll::Ready(Err(RefusalReason::PortProbe)),
            Poll::Ready(Ok(())) | Poll::Pending => done.map_err(|error| connection_refusal(&error)),
        }
    });
    handshake.await
}

/// Returns the refusal for a connection that ends with this error.
fn connection_refusal(error: &h2::Error) -> RefusalReason {
    if let Some(error) = error.get_io() {
        outcome::refusal_of(error, RefusalReason::PortProbe)
    } else if error.is_remote() {
        RefusalReason::PortProbe
    } else if error.reason() == Some(Reason::ENHANCE_YOUR_CALM) {
        RefusalReason::Flood
    } else {
        RefusalReason::Malformed(Malformed::Frame)
    }
}

/// A connection that is being served.
struct Http2Server<D: Transport, F, E> {
    h2: server::Connection<Connection<D>, Payload>,
    connection: Connection<D>,
    /// The tunnels' futures. A panic ends its own tunnel only, whose record accounts for it.
    tunnels: FuturesUnordered<CatchUnwind<AssertUnwindSafe<F>>>,
    /// The futures of requests that came after the GOAWAY, which hold nothing open.
    late: FuturesUnordered<CatchUnwind<AssertUnwindSafe<F>>>,
    /// The number of requests so far.
    requests: u64,
    phase: Phase<E>,
}

/// The phase of a connection, with the time that bounds it.
enum Phase<E> {
    /// There are tunnels. No bound.
    Busy,
    /// There is no tunnel.
    Idle(Pin<Box<E>>),
    /// GOAWAY has been sent. The bound begins with the end of the last tunnel.
    GoingAway(CloseWait<E>),
    /// The client has to close the connection. `None` ends it after one attempt to flush the GOAWAY.
    Closing(Option<CloseWait<E>>),
}

/// The wait for a client to close its connection.
struct CloseWait<E> {
    /// Completes after [`LINGER`], or when the drain has ended.
    time: Pin<Box<dyn Future<Output = ()> + Send>>,
    /// Completes when the connection is evicted: a client that does not close it holds a descriptor.
    evicted: Pin<Box<E>>,
}

impl<E: Future<Output = RefusalReason>> CloseWait<E> {
    fn new(overdue: &impl Fn(WaitFor) -> E, drain: &Drain) -> Self {
        let ended = drain.clone().ended();
        Self {
            time: Box::pin(async move {
                timeout(LINGER, ended).await.ok();
            }),
            evicted: Box::pin(overdue(WaitFor::Close)),
        }
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        match self.evicted.as_mut().poll(context) {
            Poll::Ready(_) => Poll::Ready(()),
            Poll::Pending => self.time.as_mut().poll(context),
        }
    }
}

enum Event {
    Request(Box<Request>),
    TunnelEnded,
    GoAway,
    /// The time without a tunnel is over.
    Expired(RefusalReason),
    /// The client has not closed the connection in time.
    Unclosed,
    Flooded,
    Closed(Option<h2::Error>),
}

impl<D: Transport, F: Future<Output = ()>, E: Future<Output = RefusalReason>> Http2Server<D, F, E> {
    async fn run(
        mut self,
        overdue: impl Fn(WaitFor) -> E,
        go_away: GoAway<'_>,
        serve_stream: impl Fn(Request) -> F,
    ) -> Result<(), RefusalReason> {
        let GoAway {
            drain,
            number,
            requested,
        } = go_away;
        let (mut verdict, mut failure) = (Ok(()), None);
        let mut leaving = pin!(async {
            tokio::select! {
                () = drain.draining(number) => {}
                () = requested.notified() => {}
            }
        });
        let local = LocalWaker::new();
        loop {
            let event = poll_fn(|context| local.poll(context, |context| self.poll_event(context, leaving.as_mut())));
            match event.await {
                Event::Request(request) => {
                    let tunnel = AssertUnwindSafe(serve_stream(*request)).catch_unwind();
                    self.begin_tunnel(tunnel);
                }
                Event::TunnelEnded => self.end_tunnel(&overdue, drain),
                Event::GoAway => {
                    self.h2.graceful_shutdown();
                    self.phase = Phase::GoingAway(CloseWait::new(&overdue, drain));
                }
                Event::Unclosed => break,
                Event::Expired(refusal) => {
                    if self.requests == 0 {
                        verdict = Err(refusal);
                    }
                    // Evicted: its descriptor is needed at once.
                    let linger = (refusal != RefusalReason::Evicted).then(|| CloseWait::new(&overdue, drain));
                    self.close(Reason::NO_ERROR, linger);
                }
                Event::Flooded => {
                    verdict = Err(RefusalReason::Flood);
                    self.close(Reason::ENHANCE_YOUR_CALM, Some(CloseWait::new(&overdue, drain)));
                }
                Event::Closed(error) => {
                    verdict = verdict.and(self.verdict(error.as_ref()));
                    failure = error.as_ref().map(connection_refusal);
                    break;
                }
            }
        }
        // The remaining tunnels fail, and write their own records.
        drop(self.h2);
        self.connection.outgoing().closed();
        while self.tunnels.next().await.is_some() || self.late.next().await.is_some() {}
        if let Some(refusal) = failure {
            end(self.connection, refusal, overdue(WaitFor::Close)).await;
        }
        verdict
    }

    fn poll_event(&mut self, context: &mut Context<'_>, leaving: Pin<&mut impl Future<Output = ()>>) -> Poll<Event> {
        if matches!(self.phase, Phase::Busy | Phase::Idle(_)) && leaving.poll(context).is_ready() {
            return Poll::Ready(Event::GoAway);
        }
        // Before h2, so that what they have to send is flushed below.
        if let Poll::Ready(Some(_)) = self.tunnels.poll_next_unpin(context) {
            return Poll::Ready(Event::TunnelEnded);
        }
        while let Poll::Ready(Some(_)) = self.late.poll_next_unpin(context) {}
        match self.h2.poll_accept(context) {
            Poll::Ready(Some(Ok((request, respond)))) => {
                let request = request.map(|body| self.connection.open_streams().open(body));
                let request = Request::new(request, respond, self.connection.outgoing());
                return Poll::Ready(Event::Request(Box::new(request)));
            }
            Poll::Ready(Some(Err(error))) => return Poll::Ready(Event::Closed(Some(error))),
            Poll::Ready(None) => return Poll::Ready(Event::Closed(None)),
            Poll::Pending => {}
        }
        self.connection.hand_over_small_frames();
        if let Poll::Ready(Err(_)) = self.connection.poll_flush(context) {
            return Poll::Ready(Event::Closed(None));
        }
        if self.connection.is_flooded() && !matches!(self.phase, Phase::Closing(_)) {
            return Poll::Ready(Event::Flooded);
        }
        match &mut self.phase {
            Phase::Idle(overdue) => overdue.as_mut().poll(context).map(Event::Expired),
            Phase::Closing(None) => Poll::Ready(Event::Unclosed),
            Phase::Closing(Some(linger)) => linger.poll(context).map(|()| Event::Unclosed),
            Phase::GoingAway(linger) if self.tunnels.is_empty() => {
                linger.poll(context).map(|()| Event::Expired(RefusalReason::Draining))
            }
            Phase::GoingAway(_) | Phase::Busy => Poll::Pending,
        }
    }

    fn begin_tunnel(&mut self, tunnel: CatchUnwind<AssertUnwindSafe<F>>) {
        self.requests += 1;
        match self.phase {
            Phase::GoingAway(_) | Phase::Closing(_) => return self.late.push(tunnel),
            Phase::Idle(_) => self.phase = Phase::Busy,
            Phase::Busy => {}
        }
        self.tunnels.push(tunnel);
    }

    fn end_tunnel(&mut self, overdue: &impl Fn(WaitFor) -> E, drain: &Drain) {
        match self.phase {
            Phase::Busy if self.tunnels.is_empty() => {
                self.phase = Phase::Idle(Box::pin(overdue(WaitFor::FurtherRequest)))
            }
            Phase::GoingAway(_) => self.phase = Phase::GoingAway(CloseWait::new(overdue, drain)),
            Phase::Busy | Phase::Idle(_) | Phase::Closing(_) => {}
        }
    }

    fn close(&mut self, reason: Reason, linger: Option<CloseWait<E>>) {
        self.h2.abrupt_shutdown(reason);
        self.phase = Phase::Closing(linger);
    }

    /// Returns the refusal of a closed connection as an error. After a request, only a flood or a violation of RFC 9113
    /// is an error. Even a field name in upper case is such a violation, which ends the connection.
    fn verdict(&self, error: Option<&h2::Error>) -> Result<(), RefusalReason> {
        let refusal = error.map_or(RefusalReason::PortProbe, connection_refusal);
        if self.requests == 0 || matches!(refusal, RefusalReason::Flood | RefusalReason::Malformed(_)) {
            return Err(refusal);
        }
        Ok(())
    }
}

/// Ends a connection that h2 has abandoned, at the latest when it is evicted.
async fn end<D: Transport>(
    connection: Connection<D>,
    refusal: RefusalReason,
    evicted: impl Future<Output = RefusalReason>,
) {
    tokio::select! {
        // First, because the first poll sends the alert.
        biased;
        () = connection.end(refusal) => {}
        _ = evicted => {}
    }
}

/// The window of a stream: 5 MiB/s of upload at a round trip of 50 ms.
///
/// The connection's window has as much for every stream, so that stalled tunnels do not stop the others: a client's
/// connection holds at most 25 MiB. The window never changes. Shrinking it with many streams would stall existing ones:
/// h2 sends a WINDOW_UPDATE when half of a window can be released, and does not check again after a SETTINGS frame that
/// took the other half.
const WINDOW: u32 = 256 * 1024;
/// The largest window (RFC 9113 section 6.9.1).
const MAX_WINDOW: u32 = (1 << 31) - 1;
/// The maximum size of a request's header, as over HTTP/1.
const MAX_HEADER_BYTES: u32 = 16 * 1024;
/// The bytes that a stream may queue in h2: all send buffers of the connection, if there is no other stream.
const MAX_UNSENT: usize = 512 * 1024;
/// Maximum number of streams that h2 resets for the peer's errors: it queues each of these resets, however little the peer
/// reads. Only frames of streams that h2 has forgotten count, and illegal ones.
const MAX_STREAM_ERRORS: usize = 100_000;
/// Maximum number of streams that were reset and whose late frames are still ignored.
const MAX_RESET_STREAMS: usize = 4000;
/// How long late frames of a stream are ignored: an anchor that has not answered a PING in 15 s is gone.
const RESET_TIME: Duration = Duration::from_secs(30);
/// The time in which a client has to close a connection that is no longer needed.
const LINGER: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use futures_util::future::Either;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};
    use tokio::time::Instant;

    use super::*;
    use crate::tunnel::drain::DrainController;

    /// Returns the time for which a connection that makes no request stays, when its wait ends with that refusal, and what its
    /// client receives. With `is_evicted`, its descriptor is needed from then on.
    async fn stay(refusal: RefusalReason, is_evicted: bool) -> (Duration, Vec<u8>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (server, _) = listener.accept().await.unwrap();
        client.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
        client.write_all(b"\0\0\0\x04\0\0\0\0\0").await.unwrap();
        let begun = Notify::new();
        let overdue = |awaited| match awaited {
            WaitFor::FirstRequest | WaitFor::FurtherRequest => Either::Left(async {
                begun.notified().await;
                refusal
            }),
            WaitFor::Close if is_evicted => Either::Right(Either::Left(ready(RefusalReason::Evicted))),
            WaitFor::Close => Either::Right(Either::Right(pending())),
        };
        let ((_conductor, drain), requested) = (DrainController::new(), Notify::new());
        let go_away = GoAway {
            drain: &drain,
            number: 7,
            requested: &requested,
        };
        let mut received = vec![0; 9];
        let start = Instant::now();
        let served = serve(Connection::new(server, Vec::new()), overdue, go_away, |_| ready(()));
        let reads = async {
            // The SETTINGS: the connection waits for its first request.
            client.read_exact(&mut received).await.unwrap();
            begun.notify_one();
            pending::<()>().await;
        };
        tokio::select! {
            verdict = served => assert_eq!(verdict, Err(refusal)),
            () = reads => {}
        }
        let stayed = start.elapsed();
        client.read_to_end(&mut received).await.ok();
        (stayed, received)
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_whose_descriptor_is_needed_ends_when_its_goaway_is_sent() {
        for (refusal, is_evicted, expected) in [
            (RefusalReason::Evicted, false, Duration::ZERO),
            (RefusalReason::RequestHeaderTimeout, true, Duration::ZERO),
            (RefusalReason::ConnectRate, true, Duration::ZERO),
            (RefusalReason::RequestHeaderTimeout, false, LINGER),
        ] {
            let (stayed, received) = Box::pin(stay(refusal, is_evicted)).await;
            assert!(
                stayed.abs_diff(expected) < Duration::from_millis(2),
                "{refusal:?}: {stayed:?}"
            );
            // Length 8, type GOAWAY, of the connection; no stream was begun, and no error.
            let goaway = [0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
            assert!(
                received.windows(17).any(|frame| frame == goaway),
                "{refusal:?}: {received:?}"
            );
        }
    }
}
