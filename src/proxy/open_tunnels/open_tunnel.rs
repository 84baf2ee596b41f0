//! An open tunnel as operators see it and act on it. Its relay never waits for them.

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::Poll;
use std::time::{Duration, SystemTime};

use futures_util::task::AtomicWaker;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::ended_sessions::EndedSessions;
use super::restrictions::Restrictions;
use crate::base::text::excerpt;
use crate::net::sock_diag::{DiagError, SockDiag, TcpInfo};
use crate::proxy::record::RequestInfo;
use crate::tunnel::direction::{Both, Direction};
use crate::tunnel::drain::TunnelGuard;
use crate::tunnel::limits::Rate;
use crate::tunnel::limits::bucket::RateOverride;
use crate::tunnel::relay::meter::{Activity, Meter, WINDOW_INTERVAL};
use crate::tunnel::target_metrics::TargetSeries;

/// A tunnel from its 200 to its end.
#[derive(Debug)]
pub struct OpenTunnel {
    /// Its request info, and later the SSH software of both sides.
    pub info: RequestInfo,
    /// When it was established.
    pub start: Start,
    /// Its byte counts.
    pub meter: Meter,
    /// Counts the tunnel as open for a drain, and knows its session.
    pub guard: TunnelGuard,
    /// Rates that replace those of its target: its own ones, or else those of a restriction.
    pub rate_overrides: Both<RateOverride>,
    /// The rates that an operator has set for this tunnel alone.
    own_rates: Both<RateOverride>,
    /// The reason of an operator that has closed it, so that the session in it moves to another tunnel.
    close_reason: OnceLock<Box<str>>,
    /// The reason of an operator that has ended the session in it, too.
    final_reason: OnceLock<Box<str>>,
    /// The waker of the tunnel's task: for `close_reason`, and for what has become of its windows. Not a `Notify`, whose 72
    /// bytes an idle tunnel would keep.
    task_waker: AtomicWaker,
    /// The series of its target.
    pub(crate) series: Arc<TargetSeries>,
    /// The last sample of its counts.
    sample: Mutex<RateSample>,
    /// The last measurements of the connections of the client and of the target.
    last_rtt: Mutex<[Option<RttSample>; 2]>,
    /// True if a send queue was not empty at the last check of its windows.
    has_unsent: AtomicBool,
    /// True once its connections have been sampled for the last time.
    is_closed: AtomicBool,
}

/// A sample of a tunnel's counts, and its rates.
#[derive(Clone, Copy, Debug)]
struct RateSample {
    at: Instant,
    bytes: Both<u64>,
    rates: Both<u64>,
}

impl OpenTunnel {
    /// Creates a tunnel that was established just now; its bytes count for its target, too.
    pub(crate) fn new(info: RequestInfo, series: &Arc<TargetSeries>, guard: TunnelGuard) -> Self {
        let start = Start::now();
        let meter = Meter::new(Arc::clone(&series.totals)).idle_for(info.idle);
        // A tunnel that begins is active, unless its session sleeps.
        series.was_active(start.to_system_time(meter.activity().last_active));
        Self {
            info,
            start,
            meter,
            guard,
            rate_overrides: Default::default(),
            own_rates: Default::default(),
            close_reason: OnceLock::new(),
            final_reason: OnceLock::new(),
            task_waker: AtomicWaker::new(),
            series: Arc::clone(series),
            sample: Mutex::new(RateSample {
                at: start.established,
                bytes: Both::default(),
                rates: Both::default(),
            }),
            last_rtt: Mutex::default(),
            has_unsent: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
        }
    }

    /// Returns its activity, and notes it for the target.
    pub fn activity(&self) -> Activity {
        let activity = self.meter.activity();
        self.series.was_active(self.start.to_system_time(activity.last_active));
        activity
    }

    /// Ends a minute, as the rule of [`activity`](crate::tunnel::relay::activity_rule) counts them.
    pub(crate) fn end_minute(&self) {
        self.meter.end_minute();
        let _noted = self.activity();
    }

    /// Returns the bytes a second between the last two samples, taken at least 1 s apart; the first is at the start.
    pub fn rates(&self) -> Both<u64> {
        let mut sample = self.sample.lock();
        let millis = sample.at.elapsed().as_millis();
        if millis < MIN_SAMPLE_INTERVAL.as_millis() {
            return sample.rates;
        }
        let bytes = Both::from_fn(|direction| self.meter.bytes(direction));
        let rate = |moved: u64| u64::try_from(u128::from(moved) * 1000 / millis).unwrap_or(u64::MAX);
        *sample = RateSample {
            at: Instant::now(),
            bytes,
            rates: Both::from_fn(|direction| rate(bytes[direction] - sample.bytes[direction])),
        };
        sample.rates
    }

    /// Returns what the kernel knows of the connections of the client and of the target. It takes some microseconds.
    pub fn legs(&self, diag: &SockDiag) -> [Result<TcpInfo, DiagError>; 2] {
        let seen = diag.look_up_all(self.info.socket_addrs());
        for (trip, seen) in self.last_rtt.lock().iter_mut().zip(&seen) {
            if let Ok(TcpInfo { rtt, retransmits, .. }) = *seen {
                let measured = RttSample { rtt, retransmits };
                *trip = (measured != RttSample::default()).then_some(measured);
            }
        }
        seen
    }

    /// Checks whether a side keeps its receive window closed. Called every minute. Skips a quiet tunnel with nothing
    /// unsent.
    pub(crate) fn look_at_windows(&self, diag: &SockDiag) {
        let is_quiet = self.meter.last_moved().elapsed() > WINDOW_INTERVAL * 2;
        if is_quiet && !self.has_unsent.load(Ordering::Relaxed) {
            return;
        }
        let [client, target] = self.legs(diag).map(Result::unwrap_or_default);
        let has_unsent = client.send_queue > 0 || target.send_queue > 0;
        self.has_unsent.store(has_unsent, Ordering::Relaxed);
        if self.meter.note_windows(&client, &target) {
            self.task_waker.wake();
        }
    }

    /// Samples the connections for the last time, when a side has ended: later they may be gone. That takes a twelfth
    /// of a set-up's CPU time, so a tunnel of less than a second is not sampled.
    pub(crate) fn look_at_end(&self, diag: &SockDiag) {
        if self.start.established.elapsed() >= MIN_SAMPLE_INTERVAL && !self.is_closed.swap(true, Ordering::Relaxed) {
            let _seen = self.legs(diag);
        }
    }

    /// Returns the connections' round trips in the last sample.
    pub(crate) fn last_rtt(&self) -> [Option<RttSample>; 2] {
        *self.last_rtt.lock()
    }

    /// Sets or removes the tunnel's own rate of a direction.
    pub(crate) fn set_own_rate(&self, direction: Direction, rate: Option<Rate>) {
        self.own_rates[direction].set(rate);
    }

    /// Sets its rates: its own ones, or else those of the restrictions.
    pub(crate) fn apply_limits(&self, restrictions: &Restrictions) {
        // One caller at a time, from the read to the write: else the rates of a moment ago could replace the new ones.
        let _lock = self.sample.lock();
        for direction in [Direction::Upload, Direction::Download] {
            let own = self.own_rates[direction].get();
            let rate = own.or_else(|| restrictions.rate(&self.info.subject(), direction));
            self.rate_overrides[direction].set(rate);
        }
    }

    /// Ends the tunnel, with a reason for the access log, and if `is_final` the session in it. Returns whether this
    /// call was the first.
    pub fn close(&self, reason: &str, is_final: bool) -> bool {
        let reason = excerpt(reason, MAX_REASON).into();
        // A final close also replaces the move of a tunnel that is still open.
        let is_first = match is_final {
            true => self.final_reason.set(reason).is_ok(),
            false => !self.is_end_final() && self.close_reason.set(reason).is_ok(),
        };
        self.task_waker.wake();
        is_first
    }

    /// Returns the reason of the operator that has ended the tunnel.
    pub fn close_reason(&self) -> Option<&str> {
        self.final_reason
            .get()
            .or(self.close_reason.get())
            .map(|reason| &**reason)
    }

    /// Returns whether that operator has ended the session in the tunnel, too.
    pub(crate) fn is_end_final(&self) -> bool {
        self.final_reason.get().is_some()
    }

    /// Completes when an operator ends the tunnel, or has ended the session that its client wants to go on with. Only
    /// the tunnel's own task may wait for this.
    pub(crate) async fn closed_by_operator(&self, ended: &EndedSessions) {
        let mut session = None;
        poll_fn(|context| {
            self.task_waker.register(context.waker());
            if session.is_none() {
                session = self.guard.session();
                if let Some(reason) = session.and_then(|session| ended.reason(session, self.info.user_name())) {
                    self.close(&reason, true);
                }
            }
            match self.close_reason() {
                Some(_) => Poll::Ready(()),
                None => Poll::Pending,
            }
        })
        .await;
    }
}

/// The maximum number of characters of an operator's reason.
const MAX_REASON: usize = 200;
const MIN_SAMPLE_INTERVAL: Duration = Duration::from_secs(1);

/// The time at which a tunnel was established.
#[derive(Clone, Copy, Debug)]
pub struct Start {
    /// By the host's clock.
    pub started: SystemTime,
    /// By the monotonic clock.
    pub established: Instant,
}

impl Start {
    /// Returns the current time.
    pub(crate) fn now() -> Self {
        Self {
            started: SystemTime::now(),
            established: Instant::now(),
        }
    }

    /// Returns another moment by the host's clock, as if it had not been set between the two.
    pub(crate) fn to_system_time(self, moment: Instant) -> SystemTime {
        let before = self.established.saturating_duration_since(moment);
        let started = self.started.checked_sub(before).unwrap_or(self.started);
        started + moment.saturating_duration_since(self.established)
    }
}

/// The round-trip time of a connection, and its retransmissions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RttSample {
    /// The smoothed round-trip time.
    pub rtt: Duration,
    /// The number of retransmitted segments.
    pub retransmits: u32,
}

#[cfg(test)]
mod tests;
