//! Keeps one direction of a tunnel at its rate.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::Rate;
use super::bucket::{EffectiveLimit, RateLimit, RateOverride, TokenBucket};
use crate::base::boxed::boxed;

/// The throttle of one direction of one tunnel. Bytes beyond the credit, such as early data, are not charged.
#[derive(Debug)]
pub struct Throttle<'a> {
    limit: &'a RateLimit,
    rate_override: Option<&'a RateOverride>,
    /// `None` without a limit at the last call: a limit that is set later starts with a full bucket. Boxed to save
    /// memory in tunnels without limits, which have two throttles.
    bucket: Option<Box<TokenBucket>>,
}

impl<'a> Throttle<'a> {
    /// Creates a throttle with a full bucket.
    pub fn new(limit: &'a RateLimit) -> Self {
        let is_limited = !limit.rate().is_unlimited();
        Self {
            limit,
            rate_override: None,
            bucket: is_limited.then(|| Box::new(TokenBucket::full(limit))),
        }
    }

    /// Returns the throttle with an override: while that is set, it replaces the limit's rate.
    pub fn with_override(self, rate_override: Option<&'a RateOverride>) -> Self {
        Self { rate_override, ..self }
    }

    fn in_force(&self) -> EffectiveLimit {
        let limit = EffectiveLimit::from(self.limit);
        let rate_override = self.rate_override.and_then(RateOverride::get);
        EffectiveLimit {
            rate: rate_override.unwrap_or(limit.rate),
            ..limit
        }
    }

    /// Returns whether no limit is set now. If so, drops the bucket: the next limit starts with a full one.
    pub fn is_unlimited(&mut self) -> bool {
        let is_unlimited = self.in_force().rate.is_unlimited();
        if is_unlimited {
            self.bucket = None;
        }
        is_unlimited
    }

    /// Waits until the credit is worth a wake-up, and returns how many bytes may be moved: 1 to `max`.
    ///
    /// `waited` is called with the length of each wait for credit. Afterwards, call [`spend`](Self::spend) with the
    /// bytes moved.
    pub async fn admit(&mut self, max: usize, waited: impl Fn(Duration)) -> usize {
        loop {
            match self.admit_at_once(max) {
                Ok(admitted) => return admitted,
                Err(until) => waited(boxed(self.sleep_for_credit(until)).await),
            }
        }
    }

    /// Returns the bytes that may be moved now. The error is when to try again.
    fn admit_at_once(&mut self, max: usize) -> Result<usize, Instant> {
        let in_force = self.in_force();
        let EffectiveLimit { rate, burst } = in_force;
        if rate.is_unlimited() {
            self.bucket = None;
            return Ok(max);
        }
        let bucket = self.bucket.get_or_insert_with(|| Box::new(TokenBucket::full(in_force)));
        bucket.refill(in_force, false);
        let available = bucket.available();
        if available < worth_moving(rate).min(burst).min(max as u64) {
            return Err(bucket.available_at(worth_waiting_for(in_force), rate));
        }
        Ok(usize::try_from(available).unwrap_or(usize::MAX).min(max))
    }

    /// Debits the bytes that were moved.
    pub fn spend(&mut self, bytes: usize) {
        let in_force = self.in_force();
        if let Some(bucket) = &mut self.bucket {
            bucket.refill(in_force, false);
            bucket.debit(bytes as u64);
            bucket.forgive_debt();
        }
    }

    /// Sleeps until that instant, and returns how long it took.
    async fn sleep_for_credit(&mut self, until: Instant) -> Duration {
        let asleep = Instant::now();
        sleep_until(until).await;
        let in_force = self.in_force();
        if let Some(bucket) = &mut self.bucket {
            bucket.refill(in_force, true);
        }
        asleep.elapsed()
    }
}

/// Returns the bytes to sleep for: those of one quantum of time, within the burst.
fn worth_waiting_for(EffectiveLimit { rate, burst }: EffectiveLimit) -> u64 {
    (rate.get() / QUANTA_PER_SECOND).min(burst).max(1)
}

/// Returns the fewest bytes that are worth a wake-up. A slow rate makes do with less.
fn worth_moving(rate: Rate) -> u64 {
    (rate.get() / MOVES_PER_SECOND).clamp(1, MIN_MOVE)
}

/// A sleep is for 50 ms worth of bytes, which is 20 wake-ups a second, or for the burst if that is less.
///
/// A flow that sleeps finds the CPU's caches cold, which costs more than the bytes do. With longer sleeps, the bytes of
/// one second would be more than 10 % off the rate.
const QUANTA_PER_SECOND: u64 = 20;
/// A quarter of a quantum is worth moving.
const MOVES_PER_SECOND: u64 = 80;
/// 64 KiB are worth moving at any rate.
const MIN_MOVE: u64 = 64 * 1024;

#[cfg(test)]
mod tests {
    use super::super::Size;
    use super::super::bucket::MAX_WAIT;
    use super::*;
    use proptest::prelude::*;

    fn limit(rate: &str, burst: &str) -> RateLimit {
        RateLimit::new(rate.parse().unwrap(), burst.parse().unwrap())
    }

    /// Moves as fast as the throttle lets it for that long, in pieces of at most `max`. Returns the bytes moved.
    async fn run(throttle: &mut Throttle<'_>, max: usize, period: Duration) -> u64 {
        let end = Instant::now() + period;
        let mut moved = 0;
        while Instant::now() < end {
            let admitted = throttle.admit(max, |_| ()).await;
            assert!((1..=max).contains(&admitted));
            if Instant::now() < end {
                throttle.spend(admitted);
                moved += admitted as u64;
            }
        }
        moved
    }

    fn assert_within(moved: u64, expected: u64, percent: u64) {
        assert!(
            moved.abs_diff(expected) * 100 <= expected * percent,
            "{moved} is not within {percent} % of {expected}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn the_mean_and_every_second_are_the_rate_from_slow_to_fast() {
        for rate in ["64KiB/s", "1MiB/s", "10MiB/s", "600MB/s", "1GiB/s"] {
            for (max, burst) in [(1000, "4KiB"), (65_536, "64KiB"), (1 << 20, "1MiB")] {
                let limit = limit(rate, burst);
                let rate = limit.rate().get();
                let mut throttle = Throttle::new(&limit);
                throttle.spend(1 << 20);
                let mut total = 0;
                for _ in 0..5 {
                    let second = run(&mut throttle, max, Duration::from_secs(1)).await;
                    assert_within(second, rate, 10);
                    total += second;
                }
                assert_within(total, rate * 5, 2);
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_slowest_rate_still_moves() {
        let limit = limit("1B/s", "1MiB");
        let mut throttle = Throttle::new(&limit);
        throttle.spend(1 << 20);
        let start = Instant::now();
        for _ in 0..10 {
            assert_eq!(throttle.admit(65_536, |_| ()).await, 1);
            throttle.spend(1);
        }
        assert_eq!(start.elapsed().as_secs(), 10);
    }

    #[tokio::test(start_paused = true)]
    async fn a_trickle_saves_no_more_than_the_burst() {
        let limit = limit("1MiB/s", "64KiB");
        let mut throttle = Throttle::new(&limit);
        for _ in 0..1000 {
            throttle.admit(1, |_| ()).await;
            throttle.spend(1);
            tokio::time::advance(Duration::from_millis(3)).await;
        }
        assert!(throttle.admit(1 << 20, |_| ()).await <= 64 << 10);
    }

    #[tokio::test(start_paused = true)]
    async fn after_a_pause_the_burst_may_be_moved_at_once_and_no_more() {
        let limit = limit("1MiB/s", "256KiB");
        let mut throttle = Throttle::new(&limit);
        for pause in [0, 1, 3600] {
            tokio::time::advance(Duration::from_secs(pause)).await;
            let start = Instant::now();
            let mut at_once = 0;
            loop {
                let admitted = throttle.admit(10_000, |_| ()).await;
                if Instant::now() > start {
                    break;
                }
                throttle.spend(admitted);
                at_once += admitted;
            }
            assert!(
                (252 * 1024..=256 * 1024).contains(&at_once),
                "{at_once} after {pause} s"
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_late_wake_up_costs_the_flow_nothing() {
        let limit = limit("1GiB/s", "1MiB");
        let mut throttle = Throttle::new(&limit);
        let start = Instant::now();
        let mut moved = 0;
        while start.elapsed() < Duration::from_secs(5) {
            let admitted = throttle.admit(1 << 20, |_| ()).await;
            throttle.spend(admitted);
            moved += admitted as u64;
            // A scheduler that comes back 3 ms late from time to time, as on a busy machine.
            if moved % (7 << 20) < 1 << 20 {
                tokio::time::advance(Duration::from_millis(3)).await;
            }
        }
        assert_within(moved, 5 << 30, 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_changed_limit_reaches_a_flow_that_waits() {
        let limit = limit("1B/s", "1B");
        let mut throttle = Throttle::new(&limit);
        throttle.spend(1);
        let start = Instant::now();
        let change = async {
            tokio::time::sleep(Duration::from_millis(150)).await;
            limit.set(Rate::UNLIMITED, Size::bytes(1).unwrap());
        };
        let (admitted, ()) = tokio::join!(throttle.admit(65_536, |_| ()), change);
        assert_eq!(admitted, 65_536);
        assert!(start.elapsed() <= Duration::from_millis(150) + MAX_WAIT);
    }

    #[tokio::test(start_paused = true)]
    async fn unlimited_never_waits_and_limiting_starts_with_a_full_bucket() {
        let limit = limit("unlimited", "64KiB");
        let mut throttle = Throttle::new(&limit);
        let start = Instant::now();
        for _ in 0..1000 {
            assert_eq!(throttle.admit(1 << 20, |_| ()).await, 1 << 20);
            throttle.spend(1 << 20);
        }
        limit.set("64KiB/s".parse().unwrap(), "64KiB".parse().unwrap());
        assert_eq!(throttle.admit(1 << 20, |_| ()).await, 65_536);
        assert_eq!(start.elapsed(), Duration::ZERO);
    }

    proptest! {
        #[test]
        fn it_never_moves_more_than_burst_and_rate_allow(
            rate in 1_u64..1 << 32,
            burst in 1_u64..1 << 22,
            steps in proptest::collection::vec((1_usize..1 << 18, 0_u64..40), 1..60),
        ) {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
            runtime.block_on(async {
                let limit = RateLimit::new(Rate::per_second(rate).unwrap(), Size::bytes(burst).unwrap());
                let mut throttle = Throttle::new(&limit);
                let start = Instant::now();
                let mut moved = 0_u128;
                for (max, pause) in steps {
                    // At the slowest rates a whole quantum takes minutes: bounded here.
                    let Ok(admitted) = tokio::time::timeout(Duration::from_secs(60), throttle.admit(max, |_| ())).await
                    else { break };
                    throttle.spend(admitted);
                    moved += admitted as u128;
                    let allowed = u128::from(burst) + u128::from(rate) * start.elapsed().as_nanos() / 1_000_000_000;
                    prop_assert!(moved <= allowed + 1, "{moved} moved, {allowed} allowed");
                    tokio::time::advance(Duration::from_millis(pause)).await;
                }
                Ok(())
            })?;
        }
    }
}
