//! Talks HTTP/2 with one client: many tunnels on one connection, each of them a stream (RFC 9113 section 8.5).
//!
//! On the h2 crate's server, and not on hyper's: a tunnel needs its stream's resets, half-closes and window, which an
//! upgraded connection of hyper's hides. All of a connection is one task: what a stream has to send and what its
//! connection sends is gathered without waking another thread, and a quiet tunnel is a future on the heap, not a task.

use std::future::{Future, poll_fn};
use std::panic::AssertUnwindSafe;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::{CatchUnwind, FutureExt};
use futures_util::stream::{FuturesUnordered, StreamExt};
use h2::Reason;
use h2::server;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

pub use self::connection::Connection;
use self::local_waker::LocalWaker;
use self::payload::Payload;
pub use self::request::Request;
pub use self::stream::Stream;
use crate::drain::Drain;
use crate::net::transport::Transport;
use crate::outcome::{Malformed, Refusal};

mod connection;
mod frames;
mod local_waker;
mod payload;
mod read_buffer;
mod request;
mod send_buffer;
mod stream;
mod write_queue;

/// Serves a connection to its end: every request becomes a future that `tunnel` makes, and that is run here.
///
/// `late` says when the first request takes too long, and given a moment, when the connection has been without a tunnel
/// for too long since then. When the drain has stopped new tunnels, or there are none for this client on this connection
/// any more (`lapsed`), the client is told to ask elsewhere (GOAWAY), and the connection ends with its last tunnel.
///
/// # Errors
/// Why the connection was refused as a whole: it never asked for anything, or sent too many frames. The requests on it
/// have ended each for itself.
pub async fn serve<D: Transport, F: Future<Output = ()>, L: Future<Output = Refusal>>(
    wire: Connection<D>,
    late: impl Fn(Option<Instant>) -> L,
    drain: &Drain,
    lapsed: &Notify,
    tunnel: impl Fn(Request) -> F,
) -> Result<(), Refusal> {
    let mut late_first = Box::pin(late(None));
    let connection = tokio::select! {
        biased;
        connection = handshake(&wire) => connection?,
        refusal = &mut late_first => return Err(refusal),
    };
    let serving = Serving {
        connection,
        wire,
        streams: FuturesUnordered::new(),
        requests: 0,
        bound: Bound::Late(late_first),
    };
    serving.run(late, drain, lapsed, tunnel).await
}

async fn handshake<D: Transport>(wire: &Connection<D>) -> Result<server::Connection<Connection<D>, Payload>, Refusal> {
    let mut handshake = server::Builder::new()
        .initial_window_size(WINDOW)
        .initial_connection_window_size(MOST_STREAMS * WINDOW)
        .max_concurrent_streams(MOST_STREAMS)
        .max_pending_accept_reset_streams(MOST_CANCELLED)
        .max_header_list_size(MOST_HEAD)
        .max_send_buffer_size(MOST_UNSENT)
        .max_local_error_reset_streams(Some(MOST_STREAM_ERRORS))
        .data_frame_budget(SMALL_FRAMES)
        .handshake(wire.clone());
    let connection = poll_fn(|context| {
        let done = Pin::new(&mut handshake).poll(context);
        // Its SETTINGS, which it does not know to be unsent.
        match wire.poll_send(context) {
            Poll::Ready(Err(_)) => Poll::Ready(Err(Refusal::NoRequest)),
            Poll::Ready(Ok(())) | Poll::Pending => done.map_err(|error| refusal_of(&error)),
        }
    });
    connection.await
}

/// Why a connection ended that was refused as a whole.
fn refusal_of(error: &h2::Error) -> Refusal {
    if error.is_io() || error.is_remote() {
        Refusal::NoRequest
    } else if error.reason() == Some(Reason::ENHANCE_YOUR_CALM) {
        Refusal::Flood
    } else {
        Refusal::Malformed(Malformed::Frame)
    }
}

/// A connection that is being served.
struct Serving<D: Transport, F, L> {
    connection: server::Connection<Connection<D>, Payload>,
    wire: Connection<D>,
    /// A panic ends its stream and nothing else: its record accounts for it.
    streams: FuturesUnordered<CatchUnwind<AssertUnwindSafe<F>>>,
    requests: u64,
    bound: Bound<L>,
}

/// How long a connection may go on like this.
enum Bound<L> {
    /// As long as it has requests.
    Busy,
    /// Without one, until then.
    Late(Pin<Box<L>>),
    /// As long as it has requests, and for a moment more: the client has been told to ask elsewhere.
    Leaving(Linger),
    /// Until the client closes it too, or then.
    Closing(Linger),
}

type Linger = Pin<Box<dyn Future<Output = ()> + Send>>;

enum Event {
    Asked(Box<Request>),
    Ended,
    Leaving,
    Overdue(Refusal),
    Unclosed,
    Flooded,
    Closed(Option<h2::Error>),
}

impl<D: Transport, F: Future<Output = ()>, L: Future<Output = Refusal>> Serving<D, F, L> {
    async fn run(
        mut self,
        late: impl Fn(Option<Instant>) -> L,
        drain: &Drain,
        lapsed: &Notify,
        tunnel: impl Fn(Request) -> F,
    ) -> Result<(), Refusal> {
        let mut verdict = Ok(());
        let mut leaving = pin!(async {
            tokio::select! {
                () = drain.clone().stopped() => {}
                () = lapsed.notified() => {}
            }
        });
        let turn = LocalWaker::new();
        loop {
            let event = poll_fn(|context| turn.poll(context, |context| self.poll_next(context, leaving.as_mut())));
            match event.await {
                Event::Asked(request) => {
                    self.asked();
                    self.streams.push(AssertUnwindSafe(tunnel(*request)).catch_unwind());
                }
                Event::Ended => self.ended(&late, drain),
                Event::Leaving => {
                    self.connection.graceful_shutdown();
                    self.bound = Bound::Leaving(linger(drain));
                }
                Event::Unclosed => break,
                Event::Overdue(refusal) => {
                    if self.requests == 0 {
                        verdict = Err(refusal);
                    }
                    self.close(Reason::NO_ERROR, drain);
                }
                Event::Flooded => {
                    verdict = Err(Refusal::Flood);
                    self.close(Reason::ENHANCE_YOUR_CALM, drain);
                }
                Event::Closed(error) => {
                    verdict = verdict.and(self.verdict(error.as_ref()));
                    break;
                }
            }
        }
        // What is left of its streams learns of the end now.
        drop(self.connection);
        self.wire.buffers().abandoned();
        while self.streams.next().await.is_some() {}
        verdict
    }

    fn poll_next(&mut self, context: &mut Context<'_>, leaving: Pin<&mut impl Future<Output = ()>>) -> Poll<Event> {
        if matches!(self.bound, Bound::Busy | Bound::Late(_)) && leaving.poll(context).is_ready() {
            return Poll::Ready(Event::Leaving);
        }
        // Before the connection: what they have to send leaves with the rest.
        if let Poll::Ready(Some(_)) = self.streams.poll_next_unpin(context) {
            return Poll::Ready(Event::Ended);
        }
        match self.connection.poll_accept(context) {
            Poll::Ready(Some(Ok((request, respond)))) => {
                let request = Request::new(request, respond, (self.wire.buffers(), self.wire.credit()));
                return Poll::Ready(Event::Asked(Box::new(request)));
            }
            Poll::Ready(Some(Err(error))) => return Poll::Ready(Event::Closed(Some(error))),
            Poll::Ready(None) => return Poll::Ready(Event::Closed(None)),
            Poll::Pending => {}
        }
        if let Poll::Ready(Err(_)) = self.wire.poll_send(context) {
            return Poll::Ready(Event::Closed(None));
        }
        if self.wire.flooded() && !matches!(self.bound, Bound::Closing(_)) {
            return Poll::Ready(Event::Flooded);
        }
        match &mut self.bound {
            Bound::Late(late) => late.as_mut().poll(context).map(Event::Overdue),
            Bound::Closing(bound) => bound.as_mut().poll(context).map(|()| Event::Unclosed),
            Bound::Leaving(bound) if self.streams.is_empty() => {
                bound.as_mut().poll(context).map(|()| Event::Overdue(Refusal::Draining))
            }
            Bound::Leaving(_) | Bound::Busy => Poll::Pending,
        }
    }

    fn asked(&mut self) {
        self.requests += 1;
        if matches!(self.bound, Bound::Late(_)) {
            self.bound = Bound::Busy;
        }
    }

    fn ended(&mut self, late: &impl Fn(Option<Instant>) -> L, drain: &Drain) {
        match self.bound {
            Bound::Busy if self.streams.is_empty() => self.bound = Bound::Late(Box::pin(late(Some(Instant::now())))),
            Bound::Leaving(_) => self.bound = Bound::Leaving(linger(drain)),
            Bound::Busy | Bound::Late(_) | Bound::Closing(_) => {}
        }
    }

    fn close(&mut self, reason: Reason, drain: &Drain) {
        self.connection.abrupt_shutdown(reason);
        self.bound = Bound::Closing(linger(drain));
    }

    /// What is to be said of a connection that has closed. That it did after its requests is nothing.
    fn verdict(&self, error: Option<&h2::Error>) -> Result<(), Refusal> {
        let refusal = error.map_or(Refusal::NoRequest, refusal_of);
        if self.requests == 0 || refusal == Refusal::Flood {
            return Err(refusal);
        }
        Ok(())
    }
}

/// A moment, if there is one.
fn linger(drain: &Drain) -> Linger {
    let ended = drain.clone().ended();
    Box::pin(async move {
        timeout(LINGER, ended).await.ok();
    })
}

/// As many as RFC 9113 section 6.5.2 recommends at least. The limits of a client count streams as tunnels.
const MOST_STREAMS: u32 = 100;
/// What a client may send on a stream ahead of its target: at a round trip of 50 ms it bounds an upload to 5 MiB/s.
///
/// The connection has that for every stream, as tunnels that are stuck would stop the others otherwise, so they hold
/// 25 MiB at most. It is one size for as long as a connection lasts. Made smaller when streams are many, it leaves those
/// that are there already without any: h2 tells a client that it may send again when that is half of what it has, and
/// does not look again when SETTINGS have taken what was left.
const WINDOW: u32 = 256 * 1024;
/// As over HTTP/1.
const MOST_HEAD: u32 = 16 * 1024;
/// How much of a download waits here for its client: all that a connection has room for, if it is alone.
const MOST_UNSENT: usize = 512 * 1024;
/// Streams that were opened and reset before anybody looked: all that can be open at once, as who carries the tunnels of
/// many may have to give them up together. More of them are too many frames.
const MOST_CANCELLED: usize = MOST_STREAMS as usize;
/// Streams that h2 had to reset: a client that is mistaken so often is not mistaken.
const MOST_STREAM_ERRORS: usize = 100;
/// What frames of less than 256 bytes may lack of that together while they wait: 8,000 keystrokes.
const SMALL_FRAMES: usize = 2 * 1024 * 1024;
/// How long a client may take to close a connection that has no use any more.
const LINGER: Duration = Duration::from_secs(1);
