//! Relays bytes both ways between the two transports of a tunnel, and returns how the tunnel ended.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

use tokio::time::timeout;

pub use self::config::{DirectionLimits, EarlyData, OnClose, Options, RelayConfig, Resources, Transports};
use self::copy::Flow;
pub use self::failure::Failure;
pub use self::prefix::InspectPrefix;
use self::prefix::Prefix;
use self::pump::Pump;
use self::timeouts::{SILENCE_TIMEOUT, idle, silence};
use crate::base::boxed::boxed;
use crate::net::transport::{Reader, Transport, Writer};
use crate::tunnel::direction::Direction;
use crate::tunnel::outcome::{Close, CloseReason, Side};

pub mod activity_rule;
mod config;
mod cooperative_yield;
mod copy;
mod failure;
mod frames;
pub mod meter;
mod prefix;
mod pump;
mod splice;
mod strategy;
mod timeouts;

/// Relays until both sides have finished, one has failed, the tunnel is idle, or `ending` completes.
///
/// An end of stream is passed on as one and leaves the other direction running. A reset is passed on when the
/// caller drops `transports`, as it must do next. If a side resets after its end of stream, only the end of stream is
/// passed on. When `ending` or a timeout ends the tunnel, bytes already read are still written. A side that has not
/// been sent an end of stream is then reset, so that a truncated stream cannot look complete.
///
/// The session of a resumable tunnel has its own end, and resends what was lost. Therefore such a tunnel ends after 2 s
/// of silence once it is half-closed, and a drain sends both of its sides an end of stream.
pub async fn relay<D: Transport, U: Transport>(
    transports: &mut Transports<D, U>,
    config: &RelayConfig<'_>,
    ending: Pin<&mut impl Future<Output = Close>>,
) -> Close {
    let RelayEnd { close, eof_sent, .. } = run(transports, config, ending).await;
    finish(transports, close, eof_sent).await;
    close
}

/// The end of a relay, before its transports are [closed](finish).
#[derive(Clone, Copy, Debug)]
pub struct RelayEnd {
    /// The side and the reason.
    pub close: Close,
    /// The ends of stream that were passed on before.
    pub eof_sent: EofSent,
    /// True if the proxy ended the tunnel, and the client has taken all that was read for it and can take more.
    pub takes_more: bool,
}

/// The directions whose end of stream has been passed on, of a tunnel that may be resumable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EofSent {
    /// The client's.
    pub upload: bool,
    /// The target's.
    pub download: bool,
    /// True if the tunnel is resumable. Unsent bytes are not waited for, because the session resends them.
    pub is_resumable: bool,
}

/// Prepares both transports for their drop after a tunnel's end: with a reset, or gracefully.
pub async fn finish<D: Transport, U: Transport>(transports: &mut Transports<D, U>, close: Close, eof_sent: EofSent) {
    let Transports {
        downstream, upstream, ..
    } = transports;
    let has_finished = match close.by {
        Side::Client => eof_sent.upload,
        Side::Target | Side::Proxy => eof_sent.download,
    };
    match close.reason {
        CloseReason::Eof if has_finished && !eof_sent.is_resumable => boxed(downstream.sent()).await,
        CloseReason::Reset | CloseReason::Truncated | CloseReason::Vanished | CloseReason::Io | CloseReason::Panic => {
            match close.by {
                Side::Client if has_finished => close_after_failure(downstream, eof_sent, upstream).await,
                Side::Client => reset(downstream, upstream),
                Side::Target | Side::Proxy if has_finished => close_after_failure(upstream, eof_sent, downstream).await,
                Side::Target | Side::Proxy => reset(upstream, downstream),
            }
        }
        CloseReason::Corrupted => match close.by {
            Side::Client => alert_and_reset(downstream, upstream).await,
            Side::Target | Side::Proxy => alert_and_reset(upstream, downstream).await,
        },
        CloseReason::Idle
        | CloseReason::Lifetime
        | CloseReason::Drained
        | CloseReason::TargetRemoved
        | CloseReason::AccessRevoked
        | CloseReason::Expired
        | CloseReason::ClosedByOperator => {
            boxed(async {
                tokio::join!(
                    close_side(upstream, eof_sent.upload),
                    close_side(downstream, eof_sent.download)
                )
            })
            .await;
        }
        CloseReason::NotSsh => boxed(finish_notified(transports, close.by)).await,
        CloseReason::Eof | CloseReason::ResumedElsewhere => {
            boxed(async { tokio::join!(upstream.shutdown_gracefully(), downstream.shutdown_gracefully()) }).await;
        }
    }
}

/// As [`finish`], before anything was relayed, for a client that was sent the reason: a reset would discard it.
pub async fn finish_notified<D: Transport, U: Transport>(transports: &mut Transports<D, U>, by: Side) {
    let Transports {
        downstream, upstream, ..
    } = transports;
    let close_upstream = async {
        match by {
            // It has nothing to finish: an anchor would take an end of stream for a half-close.
            Side::Target => upstream.abort().await,
            Side::Client | Side::Proxy => upstream.shutdown_gracefully().await,
        }
    };
    tokio::join!(close_upstream, downstream.shutdown_gracefully());
}

/// Closes a side of a tunnel that the proxy ends. A side that has not received the end of the other's stream is reset:
/// a FIN, an END_STREAM or a close_notify would make a truncated download look complete.
async fn close_side(side: &mut impl Transport, has_its_end: bool) {
    if has_its_end {
        side.shutdown_gracefully().await;
    } else {
        side.abort().await;
    }
}

/// As [`relay`], but closes neither side.
pub async fn run<D: Transport, U: Transport>(
    transports: &mut Transports<D, U>,
    config: &RelayConfig<'_>,
    ending: Pin<&mut impl Future<Output = Close>>,
) -> RelayEnd {
    let EarlyData {
        upload: early_upload,
        download: early_download,
        inspector,
    } = transports.early.take().map(|early| *early).unwrap_or_default();
    let bulk = transports
        .downstream
        .bulk_mode()
        .with_upstream(transports.upstream.bulk_mode());
    let (from_client, to_client) = transports.downstream.split();
    let (from_target, to_target) = transports.upstream.split();
    let up = Flow {
        direction: Direction::Upload,
        reader: from_client,
        writer: to_target,
        prefix: Prefix::new(Direction::Upload, config.inspected(), inspector.clone(), config.meter),
    };
    let down = Flow {
        direction: Direction::Download,
        reader: from_target,
        writer: to_client,
        prefix: Prefix::new(Direction::Download, config.inspected(), inspector, config.meter),
    };
    let mut upload = Pump::new(up, bulk, config).beginning_with(early_upload);
    let mut download = Pump::new(down, bulk, config).beginning_with(early_download);
    let close = tokio::select! {
        biased;
        close = until_both_end(&mut upload, &mut download, config) => close,
        close = ending => close,
    };
    config.before_close();
    let is_written = close.by == Side::Proxy && boxed(write_in_flight(&mut upload, &mut download)).await;
    let eof_sent = EofSent {
        upload: upload.has_finished(),
        download: download.has_finished(),
        is_resumable: config.is_resumable(),
    };
    RelayEnd {
        close,
        eof_sent,
        takes_more: is_written && !eof_sent.download,
    }
}

/// Passes the failure of one transport on to the other.
fn reset(failed: &mut impl Transport, other: &mut impl Transport) {
    failed.reset_on_drop();
    other.reset_on_drop();
}

/// Closes `other` gracefully, after `failed` has ended its stream and then failed.
///
/// The last bytes of `failed` may be in the send buffer of `other`, where a reset would discard them. A server that
/// closes at once fails this way: its kernel answers a late message of the client with a reset.
async fn close_after_failure(failed: &mut impl Transport, eof_sent: EofSent, other: &mut impl Transport) {
    failed.reset_on_drop();
    boxed(async {
        if !eof_sent.is_resumable {
            other.sent().await;
        }
        other.shutdown_gracefully().await;
    })
    .await;
}

/// Lets the side whose record is broken read the alert, and resets the other: bytes are missing.
async fn alert_and_reset(broken: &mut impl Transport, other: &mut impl Transport) {
    other.reset_on_drop();
    boxed(broken.shutdown_gracefully()).await;
}

/// Writes what was read, within a deadline. Returns whether all of the download is written.
async fn write_in_flight(
    upload: &mut Pump<'_, impl Reader, impl Writer>,
    download: &mut Pump<'_, impl Reader, impl Writer>,
) -> bool {
    // Both sides are closed next, whether it succeeds or not.
    let (_, written) = tokio::join!(
        timeout(FLUSH_TIMEOUT, upload.flush()),
        timeout(FLUSH_TIMEOUT, download.flush())
    );
    matches!(written, Ok(Ok(())))
}

/// Relays until both sides have finished, one has failed, or nothing moves any more.
async fn until_both_end(
    upload: &mut Pump<'_, impl Reader, impl Writer>,
    download: &mut Pump<'_, impl Reader, impl Writer>,
    config: &RelayConfig<'_>,
) -> Close {
    let (finished, first) = tokio::select! {
        finished = upload.run() => (finished, Side::Client),
        finished = download.run() => (finished, Side::Target),
        close = idle(config) => return close,
    };
    if let Err(failure) = finished {
        return failure.into();
    }
    match first {
        Side::Client => boxed(half_closed(download, upload, first, config)).await,
        Side::Target | Side::Proxy => boxed(half_closed(upload, download, first, config)).await,
    }
}

/// Relays the direction that is left. The side that has finished first still takes bytes, and may still reset.
async fn half_closed(
    running: &mut Pump<'_, impl Reader, impl Writer>,
    ended: &mut Pump<'_, impl Reader, impl Writer>,
    first: Side,
    config: &RelayConfig<'_>,
) -> Close {
    let half_closed = config.options.half_closed;
    let mut timeout = config.options.idle.map_or(half_closed, |idle| idle.min(half_closed));
    let is_resumable = config.is_resumable();
    if is_resumable {
        timeout = timeout.min(SILENCE_TIMEOUT);
    }
    let failure = tokio::select! {
        biased;
        finished = running.run() => match finished {
            Ok(()) => return eof(first),
            Err(failure) => failure,
        },
        failure = ended.reader_failed() => failure,
        close = silence(config.meter, timeout) => return if is_resumable { eof(first) } else { close },
    };
    match first {
        Side::Client => {
            let is_over = boxed(is_over_when_cancelled(running, ended, &failure)).await;
            if is_over { eof(first) } else { failure.into() }
        }
        Side::Target | Side::Proxy if ended.has_sent_end() && failure.is_cancelled => eof(first),
        Side::Target | Side::Proxy => failure.into(),
    }
}

fn eof(first: Side) -> Close {
    Close {
        by: first,
        reason: CloseReason::Eof,
    }
}

/// Returns whether the failure is a cancel by a client that has finished, and the target then ends without a further
/// byte. At a logout, an HTTP/2 client cancels its stream as others close their socket.
async fn is_over_when_cancelled(
    download: &mut Pump<'_, impl Reader, impl Writer>,
    upload: &mut Pump<'_, impl Reader, impl Writer>,
    failure: &Failure,
) -> bool {
    if failure.by != Side::Client {
        return false;
    }
    let is_cancelled = failure.is_cancelled || {
        // The error of a write may not tell a cancel from a reset: that of the reader does.
        let mut failed = pin!(upload.reader_failed());
        poll_fn(|context| Poll::Ready(failed.as_mut().poll(context)))
            .await
            .map(|failure| failure.is_cancelled)
            == Poll::Ready(true)
    };
    is_cancelled && timeout(END_TIMEOUT, download.ends_here()).await == Ok(true)
}

/// How long a target has to end its stream after a client has cancelled its own.
const END_TIMEOUT: Duration = Duration::from_secs(10);
/// The time to write bytes that were already read, when the proxy ends a tunnel.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);
