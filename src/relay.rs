//! Relays bytes both ways between two sockets until they end, and says how they ended.

use std::future::{Future, pending};
use std::io;
use std::pin::Pin;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::{Instant, sleep_until, timeout};

pub use self::pump::Engine;
use self::pump::{Broken, Pump};
pub use self::splice::PipePool;
use crate::budget::Budget;
use crate::meter::Meter;
use crate::outcome::{Close, Reason, Side};
use crate::socket;
use crate::throttle::Limit;

mod copy;
mod pump;
mod splice;

/// How long a relay may be silent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// The longest silence both ways; `None` is for ever, as SSH sessions sleep for days.
    pub idle: Option<Duration>,
    /// The longest silence once one side has finished.
    pub half_closed: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            idle: None,
            half_closed: Duration::from_secs(300),
        }
    }
}

/// The two sockets of a tunnel.
#[derive(Debug)]
pub struct Ends {
    /// The client's.
    pub downstream: TcpStream,
    /// The target's.
    pub upstream: TcpStream,
    /// What the client sent behind its request head: the first bytes of the upload.
    pub early: Vec<u8>,
}

/// What bounds one direction.
#[derive(Clone, Copy, Debug)]
pub struct Bounds<'a> {
    /// This tunnel alone.
    pub tunnel: &'a Limit,
    /// This tunnel together with others: those of its target, of its client, of the process.
    pub shared: [Option<&'a Budget>; 3],
}

/// Nothing is shared.
impl<'a> From<&'a Limit> for Bounds<'a> {
    fn from(tunnel: &'a Limit) -> Self {
        Self {
            tunnel,
            shared: [None; 3],
        }
    }
}

/// Under what a relay runs. All of it may be shared with other relays but the meter.
#[derive(Clone, Copy, Debug)]
pub struct Terms<'a> {
    /// What bounds the upload.
    pub upload: Bounds<'a>,
    /// What bounds the download.
    pub download: Bounds<'a>,
    /// Counts the bytes.
    pub meter: &'a Meter,
    /// Where hot directions get their pipes.
    pub pipes: &'a PipePool,
    /// What moves its bytes.
    pub engine: Engine,
    /// Timeouts.
    pub options: &'a Options,
}

/// Relays until both sides have finished, one has failed, nothing moves any more, or `ending` says so.
///
/// An end of stream is passed on as one and leaves the other direction running; a reset is passed on as a reset, when
/// the caller drops `ends`, which it does next. Only who resets after it has finished is followed by no reset, but by
/// the end of stream that it sent first. When `ending` or a timeout ends it, what was read is still written and both
/// sides are closed.
pub async fn relay(ends: &mut Ends, terms: &Terms<'_>, ending: Pin<&mut impl Future<Output = Close>>) -> Close {
    let early = std::mem::take(&mut ends.early);
    let (from_client, to_client) = ends.downstream.split();
    let (from_target, to_target) = ends.upstream.split();
    let mut upload = Pump::upload(from_client, to_target, early, terms);
    let mut download = Pump::download(from_target, to_client, terms);
    let close = tokio::select! {
        biased;
        close = until_both_end(&mut upload, &mut download, terms) => close,
        close = ending => close,
    };
    match close.reason {
        Reason::Eof => {}
        Reason::Reset | Reason::Io | Reason::Panic => match close.by {
            Side::Client => pass_on_break(&upload, &download).await,
            Side::Target | Side::Proxy => pass_on_break(&download, &upload).await,
        },
        Reason::Idle | Reason::Lifetime | Reason::Drained | Reason::Revoked => {
            // Boxed: an open tunnel need not hold the room for it.
            Box::pin(say_goodbye(&mut upload, &mut download)).await;
        }
    }
    close
}

/// Prepares the sockets for their drop after the source of `broken` has failed.
///
/// Had it finished before, all that it sent stands in the other side's send buffer, and a reset would throw the tail
/// away: a server that closes at once gets a late message of its client, and its kernel answers with a reset.
async fn pass_on_break(broken: &Pump<'_>, other: &Pump<'_>) {
    socket::reset_on_drop(broken.source());
    if broken.has_finished() {
        // Boxed, as the goodbye.
        Box::pin(socket::close_gently(other.source())).await;
    } else {
        socket::reset_on_drop(other.source());
    }
}

/// Writes what was read, within a deadline, and closes both sides.
async fn say_goodbye(upload: &mut Pump<'_>, download: &mut Pump<'_>) {
    let last_words = async { tokio::join!(upload.flush(), download.flush()) };
    // Whether it succeeds is the peers' affair: they are told to go in any case.
    timeout(LAST_WORDS, last_words).await.ok();
    tokio::join!(
        socket::close_gently(upload.source()),
        socket::close_gently(download.source())
    );
}

async fn until_both_end<'a, 'p>(upload: &'p mut Pump<'a>, download: &'p mut Pump<'a>, terms: &'a Terms<'a>) -> Close {
    let (finished, first) = tokio::select! {
        finished = upload.run() => (finished, Side::Client),
        finished = download.run() => (finished, Side::Target),
        close = silence(terms.meter, terms.options.idle, Instant::now()) => return close,
    };
    if let Err(broken) = finished {
        return close_of(&broken);
    }
    // Half-closed: the side that has finished still takes bytes, and may still reset.
    let (running, ended) = match first {
        Side::Client => (download, upload),
        Side::Target | Side::Proxy => (upload, download),
    };
    let half_closed = terms.options.half_closed;
    let longest = terms.options.idle.map_or(half_closed, |idle| idle.min(half_closed));
    tokio::select! {
        biased;
        finished = running.run() => match finished {
            Ok(()) => Close { by: first, reason: Reason::Eof },
            Err(broken) => close_of(&broken),
        },
        error = socket::failed(ended.source()) => close_of(&Broken { by: first, error }),
        close = silence(terms.meter, Some(longest), Instant::now()) => close,
    }
}

fn close_of(broken: &Broken) -> Close {
    let reset = matches!(
        broken.error.kind(),
        io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionAborted
    );
    Close {
        by: broken.by,
        reason: if reset { Reason::Reset } else { Reason::Io },
    }
}

/// Completes when no byte was written either way for `longest`, counted from `since` at the earliest.
async fn silence(meter: &Meter, longest: Option<Duration>, since: Instant) -> Close {
    let Some(longest) = longest else {
        return pending().await;
    };
    loop {
        let deadline = meter.last_moved().max(since) + longest;
        if deadline <= Instant::now() {
            return Close {
                by: Side::Proxy,
                reason: Reason::Idle,
            };
        }
        Box::pin(sleep_until(deadline)).await;
    }
}

/// How long bytes that were already read have to be written when the proxy ends a tunnel.
const LAST_WORDS: Duration = Duration::from_secs(1);
