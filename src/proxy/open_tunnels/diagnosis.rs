//! Diagnoses why a tunnel is slow, from samples of it. docs/operations.md states the rule.

use std::time::Duration;

use crate::daemon::admin::api::Verdict;
use crate::net::sock_diag::TcpInfo;
use crate::tunnel::direction::{Both, Direction};
use crate::tunnel::limits::Rate;
use crate::tunnel::outcome::Side;

/// A sample of a tunnel.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sample {
    /// The time since the first sample.
    pub at: Duration,
    /// The bytes of each direction so far.
    pub bytes: Both<u64>,
    /// The time that each direction has waited for its limits so far.
    pub waited: Both<Duration>,
    /// The connections of the client and of the target.
    pub legs: [Option<TcpInfo>; 2],
}

/// The samples of a tunnel.
#[derive(Clone, Copy, Debug, Default)]
pub struct Samples<'a> {
    /// The samples, at even intervals.
    pub looks: &'a [Sample],
    /// The share of the time in which the worker threads were busy, 0 to 1.
    pub load: f64,
    /// The rates that an operator has set for it.
    pub rate_overrides: Both<Option<Rate>>,
}

/// A possible cause, and its share of the time.
#[derive(Debug)]
struct SlowCause {
    share: f64,
    verdict: Verdict,
    said: String,
}

/// Returns the cause of a slow tunnel, and its evidence.
pub fn diagnose_samples(observed: &Samples<'_>) -> (Verdict, Vec<String>) {
    let Some(finding) = observed.finding() else {
        return (Verdict::Nothing, vec![observed.unhindered()]);
    };
    (finding.verdict, vec![finding.said])
}

impl Samples<'_> {
    fn finding(&self) -> Option<SlowCause> {
        if BOTH.into_iter().any(|direction| self.rate(direction) >= FAST) {
            return None;
        }
        let held = BOTH
            .into_iter()
            .flat_map(|direction| {
                [
                    self.limit(direction),
                    self.reader(direction),
                    self.queue(direction),
                    self.unread_backlog(direction),
                ]
            })
            .flatten()
            .max_by(|one, other| one.share.total_cmp(&other.share));
        // A cause that holds bytes back explains more than one that delays later bytes.
        held.or_else(|| self.stall())
            .or_else(|| self.load())
            .or_else(|| self.sender_bound())
            .or_else(|| self.latency())
            .or_else(|| self.silence())
    }

    /// Detects waits for the direction's limits.
    fn limit(&self, direction: Direction) -> Option<SlowCause> {
        let waited = self.last()?.waited[direction].saturating_sub(self.first()?.waited[direction]);
        let share = self.share_of(waited);
        let by_operator = self.rate_overrides[direction].map(|rate| format!(": an operator has set {rate}"));
        (share >= HELD).then(|| SlowCause {
            share,
            verdict: Verdict::Limit,
            said: format!(
                "the {} has waited {} ms of {} ms for its limits{}",
                direction.label(),
                waited.as_millis(),
                self.length().as_millis(),
                by_operator.unwrap_or_default()
            ),
        })
    }

    /// Detects a closed window: the receiver does not read.
    fn reader(&self, direction: Direction) -> Option<SlowCause> {
        let side = direction.receiver();
        let [first, last] = self.both(side)?;
        let counted = self.share_of(last.peer_window_limited.saturating_sub(first.peer_window_limited));
        let seen = self.share(|sample| sample.leg(side).is_some_and(has_closed_window));
        let share = counted.max(seen);
        (share >= HELD).then(|| SlowCause {
            share,
            verdict: verdict(side),
            said: format!(
                "the {} does not read: its receive window held bytes back for {:.0} % of the time, and {} wait",
                side.label(),
                share * 100.0,
                last.send_queue
            ),
        })
    }

    /// Detects bytes that wait for the receiver's network, if this network shows a [symptom](Self::symptom).
    fn queue(&self, direction: Direction) -> Option<SlowCause> {
        let side = direction.receiver();
        let share = self.share(|sample| {
            sample
                .leg(side)
                .is_some_and(|leg| leg.not_sent > 0 && !has_closed_window(leg))
        });
        let symptom = self.symptom(side)?;
        (share >= HELD).then(|| SlowCause {
            share,
            verdict: verdict(side),
            said: format!(
                "bytes waited for the network of the {} for {:.0} % of the time: {symptom}",
                side.label(),
                share * 100.0
            ),
        })
    }

    /// Detects unread bytes of the sender, though the receiver's connection would take more.
    fn unread_backlog(&self, direction: Direction) -> Option<SlowCause> {
        let (from, to) = (direction.sender(), direction.receiver());
        let share = self.share(|sample| {
            let waits = sample.leg(from).is_some_and(|leg| leg.receive_queue > 0);
            waits && sample.leg(to).is_some_and(|leg| leg.not_sent == 0)
        });
        let is_limited = self.limit(direction).is_some();
        if share < MOSTLY || is_limited {
            return None;
        }
        let (verdict, why) = if self.load >= LOADED {
            (Verdict::Proxy, "the proxy's threads lack CPU time".to_owned())
        } else {
            (
                verdict(to),
                format!("the {} does not read, or not its HTTP/2 stream", to.label()),
            )
        };
        Some(SlowCause {
            share,
            verdict,
            said: format!(
                "bytes of the {} were not read for {:.0} % of the time, the threads were at {:.0} %: {why}",
                from.label(),
                share * 100.0,
                self.load * 100.0
            ),
        })
    }

    /// Detects a side that acknowledges nothing.
    fn stall(&self) -> Option<SlowCause> {
        SIDES.into_iter().find_map(|side| {
            let [first, last] = self.both(side)?;
            let waits = self.share(|sample| sample.leg(side).is_some_and(|leg| leg.in_flight() > 0));
            (waits >= ALWAYS && first.acknowledged == last.acknowledged).then(|| SlowCause {
                share: waits,
                verdict: verdict(side),
                said: format!(
                    "the {} has acknowledged none of {} bytes",
                    side.label(),
                    last.in_flight()
                ),
            })
        })
    }

    /// Detects threads without a pause.
    fn load(&self) -> Option<SlowCause> {
        (self.load >= FULL).then(|| SlowCause {
            share: self.load,
            verdict: Verdict::Proxy,
            said: format!("the proxy's threads were at {:.0} %", self.load * 100.0),
        })
    }

    /// Detects a sender of bulk, or of less without a pause, that nothing here holds up: it sets the pace.
    fn sender_bound(&self) -> Option<SlowCause> {
        let direction = self.busier();
        let (side, rate) = (direction.sender(), self.rate(direction));
        let [first, last] = self.both(side)?;
        let lost = last.out_of_order.saturating_sub(first.out_of_order);
        let lost = (lost > 0).then(|| format!(", and {lost} segments came out of order"));
        let trip = (last.rtt >= FAR).then(|| {
            let in_trip = u128::from(rate) * last.rtt.as_millis() / 1000;
            format!(", {in_trip} bytes in each round trip of {:.0} ms", millis(last.rtt))
        });
        let is_steady = rate >= STEADY && self.longest_pause(direction) < MAX_PAUSE;
        (rate >= BULK || is_steady).then(|| SlowCause {
            share: 1.0,
            verdict: verdict(side),
            said: format!(
                "the {} sends at most {} KiB/s{}, which are relayed at once{}",
                side.label(),
                rate >> 10,
                trip.unwrap_or_default(),
                lost.unwrap_or_default()
            ),
        })
    }

    /// Returns what was seen of a tunnel that nothing held up.
    fn unhindered(&self) -> String {
        let direction = self.busier();
        let (side, ms) = (direction.sender().label(), self.length().as_millis());
        let what = match self.moved(direction) {
            0 => format!("no byte came in {ms} ms"),
            bytes => {
                let pause = self.longest_pause(direction).as_millis();
                format!("the {side} sent {bytes} bytes in {ms} ms, with a pause of {pause} ms")
            }
        };
        format!("nothing held the tunnel up: {what}")
    }

    /// Detects a network that delays what little is sent.
    fn latency(&self) -> Option<SlowCause> {
        let slowest = SIDES
            .into_iter()
            .filter(|side| {
                let sent_again = self
                    .both(*side)
                    .is_some_and(|[first, last]| last.retransmits > first.retransmits);
                sent_again || self.rtt(*side) >= SLOW_TRIP
            })
            .max_by_key(|side| self.rtt(*side))?;
        Some(SlowCause {
            share: 1.0,
            verdict: verdict(slowest),
            said: format!("the network of the {}: {}", slowest.label(), self.symptom(slowest)?),
        })
    }

    /// Detects a target that was sent bytes and answers nothing.
    fn silence(&self) -> Option<SlowCause> {
        let (first, last) = (self.first()?, self.last()?);
        let is_sent = |sample: &&Sample| sample.bytes.upload > first.bytes.upload;
        let sent = self.looks.iter().find(is_sent)?;
        let since = last.at.saturating_sub(sent.at);
        let is_silent = first.bytes.download == last.bytes.download;
        (is_silent && since >= self.length() / 2 && since >= MAX_SERVER_DELAY).then(|| SlowCause {
            share: 1.0,
            verdict: Verdict::Target,
            said: format!("the target has answered nothing for {} ms", since.as_millis()),
        })
    }

    /// Returns the sign of a slow network of a side; `None` without one.
    fn symptom(&self, side: Side) -> Option<String> {
        let [first, last] = self.both(side)?;
        let sent_again = last.retransmits.saturating_sub(first.retransmits);
        let grown = last.rtt.saturating_sub(last.lowest_rtt);
        let trip = format!(
            "its round trip takes {:.1} ms, at best {:.1} ms",
            millis(last.rtt),
            millis(last.lowest_rtt)
        );
        if sent_again > 0 {
            return Some(format!("{sent_again} segments were sent again, {trip}"));
        }
        let is_slow = last.rtt >= FAR || grown >= GROWN && last.rtt >= last.lowest_rtt * 3;
        is_slow.then_some(trip)
    }

    fn rtt(&self, side: Side) -> Duration {
        self.last()
            .and_then(|sample| sample.leg(side))
            .map_or(Duration::ZERO, |leg| leg.rtt)
    }

    /// Returns the share of the samples that show it.
    fn share(&self, shows: impl Fn(&Sample) -> bool) -> f64 {
        let showing = self.looks.iter().filter(|sample| shows(sample)).count();
        as_f64(showing) / as_f64(self.looks.len().max(1))
    }

    fn share_of(&self, time: Duration) -> f64 {
        time.as_secs_f64() / self.length().as_secs_f64().max(f64::MIN_POSITIVE)
    }

    /// Returns the direction that moved more bytes.
    fn busier(&self) -> Direction {
        let is_upload = self.moved(Direction::Upload) > self.moved(Direction::Download);
        if is_upload {
            Direction::Upload
        } else {
            Direction::Download
        }
    }

    /// Returns the bytes per second.
    fn rate(&self, direction: Direction) -> u64 {
        let millis = u64::try_from(self.length().as_millis()).unwrap_or(u64::MAX);
        self.moved(direction).saturating_mul(1000) / millis.max(1)
    }

    fn moved(&self, direction: Direction) -> u64 {
        let ends = self.last().zip(self.first());
        ends.map_or(0, |(last, first)| {
            last.bytes[direction].saturating_sub(first.bytes[direction])
        })
    }

    /// Returns the longest time without a byte of a direction.
    fn longest_pause(&self, direction: Direction) -> Duration {
        let mut last = self.looks.first();
        let pauses = self.looks.iter().map(|look| {
            let since = last.filter(|last| last.bytes[direction] == look.bytes[direction]);
            if since.is_none() {
                last = Some(look);
            }
            since.map_or(Duration::ZERO, |since| look.at.saturating_sub(since.at))
        });
        pauses.max().unwrap_or_default()
    }

    /// Returns the first and the last sample of a connection.
    fn both(&self, side: Side) -> Option<[&TcpInfo; 2]> {
        Some([self.first()?.leg(side)?, self.last()?.leg(side)?])
    }

    fn first(&self) -> Option<&Sample> {
        self.looks.first()
    }

    fn last(&self) -> Option<&Sample> {
        self.looks.last()
    }

    fn length(&self) -> Duration {
        self.last().map_or(Duration::ZERO, |sample| sample.at)
    }
}

impl Sample {
    fn leg(&self, side: Side) -> Option<&TcpInfo> {
        let [client, target] = &self.legs;
        match side {
            Side::Client => client.as_ref(),
            Side::Target | Side::Proxy => target.as_ref(),
        }
    }
}

/// Returns whether unsent bytes wait because the peer's receive window has no space for a segment.
fn has_closed_window(leg: &TcpInfo) -> bool {
    leg.not_sent > 0 && leg.peer_window.saturating_sub(leg.in_flight()) < leg.segment.min(leg.not_sent)
}

fn verdict(side: Side) -> Verdict {
    match side {
        Side::Client => Verdict::Client,
        Side::Target => Verdict::Target,
        Side::Proxy => Verdict::Proxy,
    }
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

#[expect(clippy::cast_precision_loss, reason = "a number of looks is small")]
fn as_f64(count: usize) -> f64 {
    count as f64
}

const BOTH: [Direction; 2] = [Direction::Download, Direction::Upload];
const SIDES: [Side; 2] = [Side::Client, Side::Target];
/// The bytes per second from which on no tunnel is called slow.
const FAST: u64 = 100 << 20;
/// The bytes per second from which on a direction carries more than a terminal.
const BULK: u64 = 64 << 10;
/// The same of a direction without a pause.
const STEADY: u64 = 4 << 10;
/// The screens of a terminal come in bursts with longer pauses.
const MAX_PAUSE: Duration = Duration::from_millis(300);
/// Shares of the time.
const HELD: f64 = 0.3;
const MOSTLY: f64 = 0.5;
const ALWAYS: f64 = 0.95;
/// Shares of the time in which the threads are busy.
const LOADED: f64 = 0.7;
const FULL: f64 = 0.95;
/// A round trip within a region is shorter.
const FAR: Duration = Duration::from_millis(30);
/// A round trip this much above the shortest shows a router's queue.
const GROWN: Duration = Duration::from_millis(20);
/// From here on a keystroke feels slow.
const SLOW_TRIP: Duration = Duration::from_millis(100);
/// An SSH server echoes a keystroke, and acknowledges bulk, sooner.
const MAX_SERVER_DELAY: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests;
