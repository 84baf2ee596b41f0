//! A token bucket: the credit of a flow that is kept to a rate. It does not round, and loses nothing to late timers.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use super::{Rate, Size};

/// A rate and a burst that can be changed while tunnels run under them.
#[derive(Debug)]
pub struct RateLimit {
    rate: AtomicU64,
    burst: AtomicU64,
}

impl RateLimit {
    /// Creates a limit at that rate and burst.
    pub fn new(rate: Rate, burst: Size) -> Self {
        Self {
            rate: AtomicU64::new(rate.get()),
            burst: AtomicU64::new(burst.get()),
        }
    }

    /// Changes both; a running tunnel follows within [`MAX_WAIT`].
    pub fn set(&self, rate: Rate, burst: Size) {
        self.rate.store(rate.get(), Ordering::Relaxed);
        self.burst.store(burst.get(), Ordering::Relaxed);
    }

    /// Returns the rate in effect.
    pub fn rate(&self) -> Rate {
        Rate::per_second(self.rate.load(Ordering::Relaxed)).unwrap_or(Rate::UNLIMITED)
    }

    /// Returns the burst in effect, in bytes.
    pub(crate) fn burst(&self) -> u64 {
        self.burst.load(Ordering::Relaxed)
    }
}

/// A rate of one tunnel that replaces its target's, while it is set.
#[derive(Debug, Default)]
pub struct RateOverride {
    /// 0 is none.
    rate: AtomicU64,
}

impl RateOverride {
    /// Changes it; a running tunnel follows within [`MAX_WAIT`].
    pub fn set(&self, rate: Option<Rate>) {
        self.rate.store(rate.map_or(0, Rate::get), Ordering::Relaxed);
    }

    /// Returns the rate, if there is one.
    pub fn get(&self) -> Option<Rate> {
        Rate::per_second(self.rate.load(Ordering::Relaxed))
    }
}

/// A snapshot of a rate and a burst.
#[derive(Clone, Copy, Debug)]
pub(super) struct EffectiveLimit {
    pub(super) rate: Rate,
    pub(super) burst: u64,
}

impl From<&RateLimit> for EffectiveLimit {
    fn from(limit: &RateLimit) -> Self {
        Self {
            rate: limit.rate(),
            burst: limit.burst(),
        }
    }
}

/// The credit of one flow under a [`RateLimit`].
///
/// Credit is kept in byte-nanoseconds, so nothing is rounded away: a rate in whole nanoseconds per byte would be 66 %
/// off at 600 MB/s. Credit falls below zero when more is spent than there was.
///
/// A timer that fires late must cost the flow nothing. So the credit of a backlogged flow may exceed the burst, by as
/// much as the flow earns within [`LATENESS`].
#[derive(Debug)]
pub(super) struct TokenBucket {
    credit: i128,
    /// When the credit was last brought up to date.
    earned_until: Instant,
    /// True if the flow has had to wait for credit, and has not paused since.
    is_backlogged: bool,
}

impl TokenBucket {
    /// Creates a full bucket.
    pub(super) fn full(limit: impl Into<EffectiveLimit>) -> Self {
        Self {
            credit: byte_nanoseconds(limit.into().burst),
            earned_until: Instant::now(),
            is_backlogged: false,
        }
    }

    /// Returns the full bucket with the credit that makes it full at that time, or with none.
    pub(super) fn with_fill_time(mut self, time: Instant, rate: Rate) -> Self {
        let missing = earned(rate, time.saturating_duration_since(self.earned_until));
        self.credit = self.credit.saturating_sub(missing).max(0);
        self
    }

    /// Returns when it will be full, from its last refill on.
    pub(super) fn fill_time(&self, limit: impl Into<EffectiveLimit>) -> Instant {
        let EffectiveLimit { rate, burst } = limit.into();
        self.earned_until + self.time_to(byte_nanoseconds(burst), rate)
    }

    /// Adds what was earned since the last call, up to the burst, and above it while backlogged. `is_waiting`: the flow
    /// waits for credit, or has just waited for it.
    pub(super) fn refill(&mut self, limit: impl Into<EffectiveLimit>, is_waiting: bool) {
        let EffectiveLimit { rate, burst } = limit.into();
        let elapsed = self.earned_until.elapsed();
        self.is_backlogged = is_waiting || (self.is_backlogged && elapsed <= PAUSE);
        let lateness = if self.is_backlogged { LATENESS } else { Duration::ZERO };
        let max = byte_nanoseconds(burst).saturating_add(earned(rate, lateness));
        self.credit = self.credit.saturating_add(earned(rate, elapsed)).min(max);
        self.earned_until += elapsed;
    }

    /// Takes the credit of `bytes`.
    pub(super) fn debit(&mut self, bytes: u64) {
        self.credit -= byte_nanoseconds(bytes);
    }

    /// Refunds the credit of bytes that were paid for and not moved.
    pub(super) fn give_back(&mut self, bytes: u64) {
        self.credit += byte_nanoseconds(bytes);
    }

    /// Forgets what was spent beyond the credit.
    pub(super) fn forgive_debt(&mut self) {
        self.credit = self.credit.max(0);
    }

    /// Returns whether there is any credit, be it less than a byte's.
    pub(super) fn has_credit(&self) -> bool {
        self.credit > 0
    }

    /// Returns the whole bytes that there is credit for.
    pub(super) fn available(&self) -> u64 {
        u64::try_from(self.credit.max(0) / BYTE).unwrap_or(u64::MAX)
    }

    /// Returns when there will be [some credit](Self::has_credit), at most [`MAX_WAIT`] after the last refill.
    pub(super) fn has_credit_at(&self, rate: Rate) -> Instant {
        self.reaches_at(1, rate)
    }

    /// Returns when there will be credit for `bytes`, at most [`MAX_WAIT`] after the last refill.
    pub(super) fn available_at(&self, bytes: u64, rate: Rate) -> Instant {
        self.reaches_at(byte_nanoseconds(bytes), rate)
    }

    fn reaches_at(&self, credit: i128, rate: Rate) -> Instant {
        self.earned_until + self.time_to(credit, rate).min(MAX_WAIT)
    }

    fn time_to(&self, credit: i128, rate: Rate) -> Duration {
        let missing = u128::try_from(credit - self.credit).unwrap_or_default();
        let nanoseconds = u64::try_from(missing.div_ceil(rate.get().into())).unwrap_or(u64::MAX);
        Duration::from_nanos(nanoseconds)
    }
}

fn byte_nanoseconds(bytes: u64) -> i128 {
    i128::from(bytes) * BYTE
}

fn earned(rate: Rate, elapsed: Duration) -> i128 {
    i128::try_from(u128::from(rate.get()) * elapsed.as_nanos()).unwrap_or(i128::MAX)
}

/// The longest sleep for credit, so that a changed limit is seen soon.
pub const MAX_WAIT: Duration = Duration::from_millis(100);

/// The credit of one byte: at a rate of 1 B/s it is earned in as many nanoseconds.
const BYTE: i128 = 1_000_000_000;
/// The longest gap between two refills of a backlogged flow. In a longer one it had nothing to send, or a peer that
/// took nothing.
const PAUSE: Duration = Duration::from_millis(5);
/// The longest delay of a wake-up that costs a backlogged flow no credit.
const LATENESS: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use super::*;

    fn limit() -> RateLimit {
        RateLimit::new("1KiB/s".parse().unwrap(), "1KiB".parse().unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn credit_is_earned_to_the_nanosecond_and_never_above_the_burst() {
        let limit = limit();
        let mut bucket = TokenBucket::full(&limit);
        assert_eq!(bucket.available(), 1024);
        bucket.debit(1025);
        assert!(!bucket.has_credit());
        assert_eq!(bucket.available(), 0);
        let start = Instant::now();
        let rate = limit.rate();
        // A byte takes 976,562.5 ns, which is rounded up once.
        assert_eq!((bucket.available_at(1, rate) - start).as_nanos(), 1_953_125);
        assert_eq!((bucket.has_credit_at(rate) - start).as_nanos(), 976_563);
        assert_eq!(bucket.available_at(1024, rate) - start, MAX_WAIT);
        tokio::time::advance(Duration::from_secs(1)).await;
        bucket.refill(&limit, false);
        assert_eq!(bucket.available(), 1023);
        tokio::time::advance(Duration::from_secs(3600)).await;
        bucket.refill(&limit, false);
        assert_eq!(bucket.available(), 1024);
    }

    #[tokio::test(start_paused = true)]
    async fn a_backlogged_flow_earns_above_the_burst_until_it_pauses() {
        let limit = limit();
        let mut bucket = TokenBucket::full(&limit);
        tokio::time::advance(Duration::from_secs(1)).await;
        bucket.refill(&limit, true);
        // 50 ms at 1 KiB/s.
        assert_eq!(bucket.available(), 1024 + 51);
        tokio::time::advance(PAUSE).await;
        bucket.refill(&limit, false);
        assert_eq!(bucket.available(), 1024 + 51);
        tokio::time::advance(PAUSE + Duration::from_millis(1)).await;
        bucket.refill(&limit, false);
        assert_eq!(bucket.available(), 1024);
    }

    #[tokio::test(start_paused = true)]
    async fn debt_is_paid_off_or_forgiven() {
        let mut bucket = TokenBucket::full(&limit());
        bucket.debit(3000);
        bucket.give_back(1000);
        assert!(!bucket.has_credit());
        bucket.forgive_debt();
        bucket.give_back(7);
        assert_eq!(bucket.available(), 7);
    }
}
