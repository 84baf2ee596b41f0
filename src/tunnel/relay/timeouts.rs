//! The timeouts of idle and of half-closed tunnels. A half-closed resumable tunnel has a short one: its session no
//! longer uses it, and the session's next tunnel may need the slots.

use std::future::{Future, pending};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::config::RelayConfig;
use super::failure::Failure;
use super::meter::Meter;
use crate::base::boxed::boxed;
use crate::net::transport::Reader;
use crate::tunnel::outcome::{Close, CloseReason, Side};

/// Completes when the sender is to be abandoned although its bytes wait for the receiver. The sender has failed; or the
/// tunnel is resumable, the sender has ended, and no byte has moved for [`SILENCE_TIMEOUT`]. Nothing else would notice.
pub(super) async fn abandoned(reader: &mut impl Reader, config: &RelayConfig<'_>, by: Side) -> Failure {
    if !config.is_resumable() {
        return Failure::new(by, &reader.failed().await);
    }
    if let Err(error) = reader.ended().await {
        return Failure::new(by, &error);
    }
    tokio::select! {
        biased;
        error = reader.failed() => Failure::new(by, &error),
        // It has ended gracefully, but the other side did not take its last bytes in time.
        _ = silence(config.meter, SILENCE_TIMEOUT) => Failure {
            by,
            reason: CloseReason::Eof,
            is_cancelled: false,
        },
    }
}

/// Completes when no byte was written either way for `timeout`, counted from now at the earliest.
pub(super) fn silence(meter: &Meter, timeout: Duration) -> impl Future<Output = Close> {
    let now = Instant::now();
    elapsed(move || meter.last_moved().max(now), timeout)
}

/// Completes when the tunnel has been idle for the idle timeout; never without one. A session that comes back after a
/// longer time has [`RETURN_TIMEOUT`].
#[expect(
    clippy::manual_async_fn,
    reason = "an async fn keeps each argument twice, for as long as the tunnel is idle"
)]
pub(super) fn idle(config: &RelayConfig<'_>) -> impl Future<Output = Close> {
    async move {
        match config.options.idle {
            Some(timeout) => {
                let last_active = || config.meter.activity().last_active;
                let returned = Instant::now() + timeout.min(RETURN_TIMEOUT);
                boxed(sleep_until(returned.max(last_active() + timeout))).await;
                elapsed(last_active, timeout).await
            }
            None => pending().await,
        }
    }
}

#[expect(
    clippy::manual_async_fn,
    reason = "an async fn keeps each argument twice, for as long as the tunnel is idle"
)]
fn elapsed(last: impl Fn() -> Instant, timeout: Duration) -> impl Future<Output = Close> {
    async move {
        while let deadline = last() + timeout
            && deadline > Instant::now()
        {
            boxed(sleep_until(deadline)).await;
        }
        Close {
            by: Side::Proxy,
            reason: CloseReason::Idle,
        }
    }
}

/// The longest silence of a resumable tunnel of which one side has ended. Even a slow receiver is not that silent: it
/// sends an ACK within 100 ms while it passes bytes on (docs/resume.md). So a last message after many bytes, such as
/// the end of the session, still arrives.
pub(super) const SILENCE_TIMEOUT: Duration = Duration::from_secs(2);

/// How long the tunnel of a session that was idle for longer than the idle timeout waits for its user: the time to open a
/// laptop and type.
const RETURN_TIMEOUT: Duration = Duration::from_mins(1);

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::tunnel::direction::Direction;
    use tokio::time::sleep;

    #[tokio::test(start_paused = true)]
    async fn a_tunnel_whose_bytes_only_repeat_reaches_its_idle_timeout() {
        let (meter, start) = (Meter::new(Arc::default()), Instant::now());
        let pings = async {
            for beat in 1..=600 {
                sleep(Duration::from_secs(10)).await;
                meter.record(Direction::Upload, 12);
                meter.record(Direction::Download, 12);
                if beat % 6 == 0 {
                    meter.end_minute();
                }
            }
        };
        let idle = elapsed(|| meter.activity().last_active, Duration::from_mins(10));
        let close = tokio::select! {
            biased;
            close = idle => close,
            () = pings => panic!("it never ends"),
        };
        assert_eq!(close.reason, CloseReason::Idle);
        // The first minutes have none to be compared with.
        assert_eq!(start.elapsed(), Duration::from_mins(13));
    }

    #[tokio::test(start_paused = true)]
    async fn a_tunnel_in_use_outlives_an_idle_timeout_of_less_than_a_minute() {
        let meter = Meter::new(Arc::default());
        let typing = async {
            for minute in 1..=10 {
                for _ in 0..60 {
                    sleep(Duration::from_secs(1)).await;
                    for _ in 0..=minute % 5 {
                        meter.record(Direction::Upload, 36);
                    }
                }
                meter.end_minute();
            }
        };
        tokio::select! {
            biased;
            () = typing => {}
            _ = elapsed(|| meter.activity().last_active, Duration::from_secs(30)) => panic!("it has ended"),
        }
    }
}
